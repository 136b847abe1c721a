"""Alignments as files: all formats of `align`, and an HTML page with both texts side by side.

`aligned_pairs` turns the links of an `Aligned` into `AlignedPair`s, which all writers and the Python interface share.
Shapes: b links.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from math import isnan
from pathlib import Path
from statistics import fmean

import numpy as np

from dualmoco.alignment.aligner import Links, join_sentences
from dualmoco.alignment.exchange import Passage, bilingual_epub, bilingual_page, tei, xliff
from dualmoco.alignment.splitting import Document, has_letters
from dualmoco.core import VERSION
from dualmoco.core.errors import require
from dualmoco.core.storage import write_recorded
from dualmoco.core.vectors import Ids
from dualmoco.mining.io import NOT_XML, TranslationUnit, as_tmx, xml_attribute, xml_content

INTERTEXT_ENDING, TEI_ENDING = ".intertext.xml", ".tei.xml"
ALIGNMENT_COLUMNS = ("score", "confidence", "src", "tgt", "src_places", "tgt_places")
AUTOMATIC, EDITED, CONFIRMED = "automatic", "edited", "confirmed"  # statuses of links, see docs/guides/editor.md
LINE_BREAKS = re.compile("\r\n|[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
LOW_CONFIDENCE = 0.5  # links with less confidence are marked on the page
PAGE_CHUNK = 50  # rows that a browser lays out together, when they come near the screen
OVERVIEW_COLUMNS = 200  # maximum columns of the page's overview
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Aligned:
    """Two documents and their links."""

    src: Document
    tgt: Document
    links: Links
    origin: Mapping[str, object]  # model, checksums of the texts, and all settings
    statuses: Sequence[str] | None = (
        None  # status of each link: AUTOMATIC, EDITED or CONFIRMED; None if nobody reviewed them
    )


@dataclass(frozen=True)
class AlignedPair:
    """The text of a link; a side without sentences is empty and has no places."""

    src: str  # source sentences, joined
    tgt: str  # target sentences, joined
    score: float | None  # 1 for a typical translation here, about 0 for unrelated sentences; None if a side is empty
    confidence: float  # between 0 and 1; NaN if unknown because somebody changed the link
    src_places: tuple[str, ...]  # place of each sentence, such as 3.2 for the second sentence of the third paragraph
    tgt_places: tuple[str, ...]  # the same for the target
    status: str | None = None  # AUTOMATIC, EDITED or CONFIRMED; None if nobody reviewed the links

    @property
    def type(self) -> str:
        """Number of source and target sentences, such as 2-1."""
        return f"{len(self.src_places)}-{len(self.tgt_places)}"

    @property
    def is_linked(self) -> bool:
        """Whether both sides have sentences."""
        return bool(self.src_places and self.tgt_places)


@dataclass(frozen=True)
class LinkCounts:
    """Counts of a document's links."""

    links: int
    linked: int  # links with sentences on both sides
    types: Mapping[str, int]  # links per type, such as 1-1, most frequent first
    mean_score: float | None  # mean score of the links with both sides; None if there are none


def aligned_pairs(aligned: Aligned) -> list[AlignedPair]:
    """The links of two documents as text, in order."""
    links = aligned.links
    sides = _span_texts(aligned.src, links.src), _span_texts(aligned.tgt, links.tgt)
    numbers = zip(links.scores.tolist(), links.confidence.tolist(), strict=True)
    statuses: Sequence[str | None] = aligned.statuses or [None] * len(links)
    return [
        AlignedPair(src, tgt, None if isnan(score) else score, confidence, src_places, tgt_places, status)
        for (src, src_places), (tgt, tgt_places), (score, confidence), status in zip(
            *sides, numbers, statuses, strict=True
        )
    ]


def _span_texts(document: Document, spans: Ids) -> list[tuple[str, tuple[str, ...]]]:
    """Text and places of each span (b, 2)."""
    return [
        (join_sentences(document.sentences[first:end], document.lang), tuple(document.places[first:end]))
        for first, end in spans.tolist()
    ]


def count_links(pairs: Sequence[AlignedPair]) -> LinkCounts:
    """Counts the links of a document by type."""
    types = Counter(pair.type for pair in pairs)
    scores = [pair.score for pair in pairs if pair.score is not None]
    ordered = dict(sorted(types.items(), key=lambda item: (-item[1], item[0])))
    mean = round(fmean(scores), 4) if scores else None
    return LinkCounts(len(pairs), sum(pair.is_linked for pair in pairs), ordered, mean)


def write_aligned(path: Path, aligned: Aligned, page: Path | None = None) -> None:
    """Writes the links, the page if requested, and `PATH.json` with origin and counts; see `link_files`."""
    files = alignment_contents(path, aligned)
    if page is not None:
        files[page] = alignment_page(aligned).encode()
    write_recorded(path, {**aligned.origin, **asdict(count_links(aligned_pairs(aligned)))}, files)


def alignment_contents(path: Path, aligned: Aligned) -> dict[Path, bytes]:
    """The files of `link_files` and their contents; the ending of `path`, one of ALIGNMENT_ENDINGS, is the format."""
    ending = alignment_ending(path)
    if ending in TEXT_FILE_ENDINGS:
        src, tgt, _ = files = link_files(path)
        links = _intertext if ending == INTERTEXT_ENDING else _xces
        contents = [_document_xml(aligned.src), _document_xml(aligned.tgt), links(aligned, src.name, tgt.name)]
        return dict(zip(files, contents, strict=True))
    pairs = aligned_pairs(aligned)
    if ending in TRANSLATION_ENDINGS:
        left_out = sum(pair.is_linked and not _is_translation(pair) for pair in pairs)
        if left_out:
            logger.info("%s: skipped %s links with equal sides or without letters", path, f"{left_out:,}")
    return {path: WRITERS[ending](pairs, aligned)}


def alignment_ending(path: Path) -> str:
    """The ending of a file of links, one of ALIGNMENT_ENDINGS."""
    found: str = next((ending for ending in (INTERTEXT_ENDING, TEI_ENDING) if path.name.endswith(ending)), path.suffix)
    return found


def link_files(path: Path) -> list[Path]:
    """The files of links that end up at `path`: XCES and InterText need `STEM.src.xml` and `STEM.tgt.xml` before it."""
    ending = alignment_ending(path)
    if ending not in TEXT_FILE_ENDINGS:
        return [path]
    stem = path.name.removesuffix(ending)
    return [path.with_name(f"{stem}.src.xml"), path.with_name(f"{stem}.tgt.xml"), path]


def _tsv(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    lines = ["\t".join(ALIGNMENT_COLUMNS + (("status",) if aligned.statuses else ()))]
    for pair in pairs:
        score, confidence, *others = _properties(pair).values()
        lines.append("\t".join((score, confidence, one_line(pair.src), one_line(pair.tgt), *others)))
    return ("\n".join(lines) + "\n").encode()


def _tmx(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    units = (
        TranslationUnit(
            one_line(pair.src), one_line(pair.tgt), _properties(pair), "sentence" if pair.type == "1-1" else "block"
        )
        for pair in pairs
        if pair.is_linked and _is_translation(pair)
    )
    return as_tmx(units, (aligned.src.lang, aligned.tgt.lang), _as_text(aligned.origin))


def _is_translation(pair: AlignedPair) -> bool:
    """Whether a link is worth a translation memory: its sides differ, and both have letters."""
    src, tgt = (" ".join(text.split()) for text in (pair.src, pair.tgt))
    return src != tgt and has_letters(src) and has_letters(tgt)


def _parquet(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"score": pa.float64(), "confidence": pa.float64(), "src": pa.string(), "tgt": pa.string()}
    if aligned.statuses:
        types["status"] = pa.string()
    columns = {
        name: pa.array([getattr(pair, name) for pair in pairs], kind, from_pandas=True) for name, kind in types.items()
    }  # from_pandas: NaN is null
    for name in ("src_places", "tgt_places"):
        columns[name] = pa.array([" ".join(getattr(pair, name)) for pair in pairs], pa.string())
    for name, document, spans in (("src", aligned.src, aligned.links.src), ("tgt", aligned.tgt, aligned.links.tgt)):
        sentences = [list(document.sentences[first:end]) for first, end in spans.tolist()]
        columns[f"{name}_sentences"] = pa.array(sentences, pa.list_(pa.string()))
    stream = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(_as_text(aligned.origin)), stream, compression="zstd")
    return stream.getvalue()


def one_line(text: str) -> str:
    """Text with tabs and line breaks of any kind replaced by spaces."""
    return LINE_BREAKS.sub(" ", text)


def _properties(pair: AlignedPair) -> dict[str, str]:
    return {
        "score": "" if pair.score is None else f"{pair.score:z.4f}",
        "confidence": "" if isnan(pair.confidence) else f"{pair.confidence:z.4f}",
        "src_places": " ".join(pair.src_places),
        "tgt_places": " ".join(pair.tgt_places),
        **({"status": pair.status} if pair.status else {}),
    }


def _as_text(origin: Mapping[str, object]) -> dict[str, str]:
    """The origin with all values as strings, those of other types as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in origin.items()
    }


# XML


def _xces(aligned: Aligned, src: str, tgt: str) -> bytes:
    """The links between two files as XCES; the certainty of a link is its confidence."""
    documents = f"fromDoc={xml_attribute(src)} toDoc={xml_attribute(tgt)}"
    lines = [f'<cesAlign version="1.0" {documents}>', f'<linkGrp targType="s" {documents}>']
    links = zip(_sentence_ids(aligned), aligned.links.confidence.tolist(), _link_statuses(aligned), strict=True)
    for number, ((src_ids, tgt_ids), certainty, status) in enumerate(links, start=1):
        known = "" if isnan(certainty) else f'certainty="{certainty:z.4f}" '
        lines.append(
            f'<link id="L{number}" xtargets="{" ".join(src_ids)};{" ".join(tgt_ids)}" '
            f'type="{len(src_ids)}-{len(tgt_ids)}" {known}status="{status}"/>'
        )
    return _xml_file([*lines, "</linkGrp>", "</cesAlign>"])


def _intertext(aligned: Aligned, src: str, tgt: str) -> bytes:
    """The links as InterText reads and writes them: linkGrp is the root, and the target comes before the source."""
    lines = [f"<linkGrp toDoc={xml_attribute(tgt)} fromDoc={xml_attribute(src)}>"]
    for (src_ids, tgt_ids), status in zip(_sentence_ids(aligned), _link_statuses(aligned), strict=True):
        targets = f"{' '.join(tgt_ids)};{' '.join(src_ids)}"
        lines.append(f'<link type="{len(tgt_ids)}-{len(src_ids)}" xtargets="{targets}" status="{status}"/>')
    return _xml_file([*lines, "</linkGrp>"])


def _link_statuses(aligned: Aligned) -> list[str]:
    """`man` for links that somebody made or confirmed, `auto` for all others."""
    statuses = aligned.statuses or [AUTOMATIC] * len(aligned.links)
    return ["auto" if status == AUTOMATIC else "man" for status in statuses]


def _document_xml(document: Document) -> bytes:
    """A document with an id for each sentence; places with the same number before the dot are one paragraph."""
    lines = [f"<text xml:lang={xml_attribute(document.lang)}>"]
    numbered = enumerate(zip(document.sentences, document.places, strict=True), start=1)
    paragraphs = groupby(numbered, key=lambda item: item[1][1].partition(".")[0])
    for paragraph, (_, members) in enumerate(paragraphs, start=1):
        lines.append(f'<p id="p{paragraph}">')
        lines.extend(f'<s id="s{number}">{xml_content(one_line(text))}</s>' for number, (text, _) in members)
        lines.append("</p>")
    return _xml_file([*lines, "</text>"])


def _sentence_ids(aligned: Aligned) -> Iterator[list[list[str]]]:
    """Yields the ids of the source and of the target sentences of each link."""
    for spans in zip(aligned.links.src.tolist(), aligned.links.tgt.tolist(), strict=True):
        yield [[f"s{number + 1}" for number in range(*span)] for span in spans]


def _passages(pairs: Sequence[AlignedPair]) -> list[Passage]:
    return [Passage(one_line(pair.src), one_line(pair.tgt), pair.status == CONFIRMED) for pair in pairs]


def _xliff(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    known = [pair for pair in pairs if not pair.is_linked or _is_translation(pair)]
    return xliff(_passages(known), (aligned.src, aligned.tgt))


def _tei(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    return tei((aligned.src, aligned.tgt), aligned.links)


def _bilingual_page(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    return bilingual_page(_passages(pairs), (aligned.src, aligned.tgt))


def _bilingual_epub(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    return bilingual_epub(_passages(pairs), (aligned.src, aligned.tgt))


WRITERS: dict[str, Callable[[Sequence[AlignedPair], Aligned], bytes]] = {
    ".tsv": _tsv,
    ".parquet": _parquet,
    ".tmx": _tmx,
    ".xlf": _xliff,
    TEI_ENDING: _tei,
    ".html": _bilingual_page,
    ".epub": _bilingual_epub,
}
TEXT_FILE_ENDINGS = (".xml", INTERTEXT_ENDING)  # formats that need the texts in separate files
TRANSLATION_ENDINGS = (".tmx", ".xlf")  # formats for translation memories, see `_is_translation`
ALIGNMENT_ENDINGS = (*WRITERS, *TEXT_FILE_ENDINGS)


def _xml_file(lines: list[str]) -> bytes:
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *lines, ""]).encode()


# The page


def alignment_page(aligned: Aligned) -> str:
    """An HTML page with both texts side by side, one row per link; links of low confidence are easy to find."""
    jinja2 = require("jinja2", "eval", "A page of an alignment")
    links, pairs = aligned.links, aligned_pairs(aligned)
    lows: list[int] = (np.flatnonzero(links.confidence < LOW_CONFIDENCE) + 1).tolist()  # numbers from 1
    rows = _page_rows(aligned, pairs, lows)
    sizes = [spans[:, 1] - spans[:, 0] for spans in (links.src, links.tgt)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dualmoco.alignment", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page: str = environment.get_template("page.html.j2").render(
        src=aligned.src,
        tgt=aligned.tgt,
        counts=count_links(pairs),
        origin=aligned.origin,
        version=VERSION,
        low=LOW_CONFIDENCE,
        chunks=[rows[start : start + PAGE_CHUNK] for start in range(0, len(rows), PAGE_CHUNK)],
        lows=lows,
        linked=[float(side[links.is_linked].sum() / max(side.sum(), 1)) for side in sizes],  # shares of the sentences
        columns=_overview_columns(links),
        place_width=max((len(place) for place in (*aligned.src.places, *aligned.tgt.places)), default=0),
    )
    return page


def _page_rows(aligned: Aligned, pairs: Sequence[AlignedPair], lows: Sequence[int]) -> list[dict[str, object]]:
    """Each link for the template; low-confidence links have the numbers of the previous and next one."""
    is_low, before, after = set(lows), dict(pairwise(reversed(lows))), dict(pairwise(lows))
    src_sentences, tgt_sentences = _page_sentences(aligned.src), _page_sentences(aligned.tgt)
    rows = []
    links = zip(pairs, aligned.links.src.tolist(), aligned.links.tgt.tolist(), strict=True)
    for number, (pair, src, tgt) in enumerate(links, start=1):
        marks = {"low": number in is_low, "gap": not pair.is_linked, "many": pair.type != "1-1"}
        rows.append(
            {
                "number": number,
                "type": pair.type,
                "classes": " ".join(name for name, holds in marks.items() if holds),
                "confidence": f"{pair.confidence:z.2f}",
                "exact": f"{pair.confidence:z.4f}",
                "score": "" if pair.score is None else f"{pair.score:z.2f}",
                "src": src_sentences[slice(*src)],
                "tgt": tgt_sentences[slice(*tgt)],
                "before": before.get(number),
                "after": after.get(number),
            }
        )
    return rows


def _page_sentences(document: Document) -> list[tuple[str, str]]:
    """Places and texts of the sentences, without characters that are invalid in a page."""
    texts = (NOT_XML.sub("", one_line(text)) for text in document.sentences)
    return list(zip(document.places, texts, strict=True))


def _overview_columns(links: Links) -> list[dict[str, float]]:
    """Adjacent links as columns of the overview; heights are between 0 and 1."""
    count, is_linked = len(links), links.is_linked
    ends = np.linspace(0, count, min(count, OVERVIEW_COLUMNS) + 1).astype(np.int64).tolist()
    columns = []
    for place, (first, end) in enumerate(pairwise(ends)):
        part = links.confidence[first:end]
        columns.append(
            {
                "place": place,
                "first": first + 1,  # numbers of the first and last link
                "last": end,
                "goal": first + int(part.argmin()) + 1,  # number of the least confident link
                "mean": float(part.mean()),
                "low": float((part < LOW_CONFIDENCE).mean()),  # shares of the links
                "gaps": float((~is_linked[first:end]).mean()),
            }
        )
    return columns
