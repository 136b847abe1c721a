"""Links as text: what stands on both sides of each, and how many there are of which type.

Takes `Aligned`, gives `AlignedPair`s, which the writers and the Python interface share.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from math import isnan
from pathlib import Path
from statistics import fmean

import numpy as np

from dualmoco.alignment.documents import Aligned, Document
from dualmoco.core.errors import require
from dualmoco.core.storage import write_bytes, write_json
from dualmoco.core.vectors import Floats, Ids
from dualmoco.core.version import VERSION
from dualmoco.mining.io import NOT_XML, TranslationUnit, as_tmx, xml_attribute, xml_content
from dualmoco.text.languages import WITHOUT_SPACES, base_language

BREAKS = re.compile("\r\n|[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


@dataclass(frozen=True)
class AlignedPair:
    """What a link joins; a side without sentences is empty, and has no places."""

    src: str
    """Its sentences as one text."""
    tgt: str
    score: float | None
    """1 for a usual translation in this document, about 0 for unrelated sentences; None with one side only."""
    confidence: float
    """Between 0 and 1."""
    src_places: tuple[str, ...]
    """Where each sentence stands, such as 3.2 for the second of the third paragraph."""
    tgt_places: tuple[str, ...]

    @property
    def type(self) -> str:
        """Numbers of sentences of both sides, such as 2-1."""
        return f"{len(self.src_places)}-{len(self.tgt_places)}"

    @property
    def is_linked(self) -> bool:
        """Whether it has sentences on both sides."""
        return bool(self.src_places and self.tgt_places)


@dataclass(frozen=True)
class LinkCounts:
    """What a document's links are in numbers."""

    links: int
    linked: int
    """Those with both sides."""
    types: Mapping[str, int]
    """Links of each type such as 1-1, the most frequent first."""
    mean_score: float | None
    """Of those with both sides; None without any."""


def aligned_pairs(aligned: Aligned) -> list[AlignedPair]:
    """All links of two documents as text, in order.

    Args:
        aligned: The documents and their links.

    Returns:
        One pair a link. The sentences of a side are joined by a space, or by nothing where the language has none.
    """
    links = aligned.links
    sides = (_side(aligned.src, links.src), _side(aligned.tgt, links.tgt))
    numbers = zip(links.scores.tolist(), links.confidence.tolist(), strict=True)
    return [
        AlignedPair(src, tgt, None if isnan(score) else score, confidence, src_places, tgt_places)
        for (src, src_places), (tgt, tgt_places), (score, confidence) in zip(*sides, numbers, strict=True)
    ]


def count_links(pairs: Sequence[AlignedPair]) -> LinkCounts:
    """Counts the links of a document by type."""
    types = Counter(pair.type for pair in pairs)
    scores = [pair.score for pair in pairs if pair.score is not None]
    ordered = dict(sorted(types.items(), key=lambda item: (-item[1], item[0])))
    mean = round(fmean(scores), 4) if scores else None
    return LinkCounts(len(pairs), sum(pair.is_linked for pair in pairs), ordered, mean)


def one_line(text: str) -> str:
    """Text with a space for each tab and each line end of any kind."""
    return BREAKS.sub(" ", text)


def _side(document: Document, runs: Ids) -> list[tuple[str, tuple[str, ...]]]:
    """Text and places of each run (b, 2) of sentences."""
    between = "" if base_language(document.lang) in WITHOUT_SPACES else " "
    return [
        (between.join(document.sentences[first:end]), tuple(document.places[first:end])) for first, end in runs.tolist()
    ]


DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'


def as_xces(aligned: Aligned, src: str, tgt: str) -> bytes:
    """The links as XCES.

    Args:
        aligned: The documents and their links.
        src: Name of the file of the source document.
        tgt: Of the target document.

    Returns:
        The bytes of the file; a link's certainty is its confidence.
    """
    documents = f"fromDoc={xml_attribute(src)} toDoc={xml_attribute(tgt)}"
    lines = [f'<cesAlign version="1.0" {documents}>', f'<linkGrp targType="s" {documents}>']
    confidence = aligned.links.confidence.tolist()
    for number, ((of_src, of_tgt), certainty) in enumerate(
        zip(_sentence_ids(aligned), confidence, strict=True), start=1
    ):
        lines.append(
            f'<link id="L{number}" xtargets="{" ".join(of_src)};{" ".join(of_tgt)}" '
            f'type="{len(of_src)}-{len(of_tgt)}" certainty="{certainty:z.4f}" status="auto"/>'
        )
    return _file([*lines, "</linkGrp>", "</cesAlign>"])


def as_intertext(aligned: Aligned, src: str, tgt: str) -> bytes:
    """The links as InterText reads and writes them: without a root around them, and the target before the source.

    Args:
        aligned: The documents and their links.
        src: Name of the file of the source document.
        tgt: Of the target document.

    Returns:
        The bytes of the file.
    """
    lines = [f"<linkGrp toDoc={xml_attribute(tgt)} fromDoc={xml_attribute(src)}>"]
    for of_src, of_tgt in _sentence_ids(aligned):
        lines.append(
            f'<link type="{len(of_tgt)}-{len(of_src)}" xtargets="{" ".join(of_tgt)};{" ".join(of_src)}" status="auto"/>'
        )
    return _file([*lines, "</linkGrp>"])


def as_sentences(document: Document) -> bytes:
    """A document as XML, in which every sentence has its name.

    Args:
        document: Of sentences; those that share the number before the dot of their place are one paragraph.

    Returns:
        The bytes of the file.
    """
    lines = [f"<text xml:lang={xml_attribute(document.lang)}>"]
    numbered = enumerate(zip(document.sentences, document.places, strict=True), start=1)
    paragraphs = groupby(numbered, key=lambda item: item[1][1].partition(".")[0])
    for paragraph, (_, members) in enumerate(paragraphs, start=1):
        lines.append(f'<p id="p{paragraph}">')
        lines.extend(f'<s id="s{number}">{xml_content(one_line(text))}</s>' for number, (text, _) in members)
        lines.append("</p>")
    return _file([*lines, "</text>"])


def _sentence_ids(aligned: Aligned) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the names of the sentences of both sides of each link."""
    for src, tgt in zip(aligned.links.src.tolist(), aligned.links.tgt.tolist(), strict=True):
        yield _names(*src), _names(*tgt)


def _names(first: int, end: int) -> list[str]:
    return [f"s{number + 1}" for number in range(first, end)]


def _file(lines: list[str]) -> bytes:
    return (DECLARATION + "\n".join(lines) + "\n").encode()


LOW = 0.5
"""Links of less confidence are marked."""
CHUNK = 50  # rows that a browser lays out together, and only once they come near
OVERVIEW_COLUMNS = 200  # of the overview, at most


@dataclass(frozen=True)
class _Row:
    """A link as the page shows it."""

    number: int
    """From 1."""
    type: str
    classes: str
    confidence: str
    score: str
    src: Sequence[tuple[str, str]]
    """Place and text of each sentence."""
    tgt: Sequence[tuple[str, str]]
    before: int | None = None
    """Of a link of low confidence, the number of the one before it."""
    after: int | None = None


@dataclass(frozen=True)
class _Column:
    """Neighbouring links as one column of the overview; heights between 0 and 1."""

    place: int
    first: int
    """Number of the first of them, and of the last."""
    last: int
    goal: int
    """Of the least confident one."""
    mean: float
    low: float
    """Share of them that is of low confidence."""
    gaps: float
    """Share of them that has one side only."""


def alignment_page(aligned: Aligned) -> str:
    """Both texts side by side, one row a link, links of low confidence marked and within reach.

    Args:
        aligned: The documents and their links.

    Returns:
        HTML.

    Raises:
        ConfigError: jinja2 is not installed; says how to install it.
    """
    jinja2 = require("jinja2", "eval", "A page of an alignment")
    pairs = aligned_pairs(aligned)
    rows = _rows(aligned, pairs)
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
        low=LOW,
        chunks=[rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)],
        lows=[row.number for row in rows if "low" in row.classes],
        linked=[_linked_share(runs, aligned.links.is_linked) for runs in (aligned.links.src, aligned.links.tgt)],
        columns=_columns(aligned.links.confidence, aligned.links.is_linked),
        place_width=max((len(place) for place in (*aligned.src.places, *aligned.tgt.places)), default=0),
    )
    return page


def _rows(aligned: Aligned, pairs: Sequence[AlignedPair]) -> list[_Row]:
    lows = (np.flatnonzero(aligned.links.confidence < LOW) + 1).tolist()
    around = zip([None, *lows], lows, [*lows[1:], None], strict=False)
    neighbors = {low: (before, after) for before, low, after in around}
    sides = (_sentences(aligned.src), _sentences(aligned.tgt))
    rows = []
    runs = zip(aligned.links.src.tolist(), aligned.links.tgt.tolist(), strict=True)
    for number, (pair, (src, tgt)) in enumerate(zip(pairs, runs, strict=True), start=1):
        marks = (("low", number in neighbors), ("gap", not pair.is_linked), ("many", pair.type != "1-1"))
        score = "" if pair.score is None else f"{pair.score:z.2f}"
        rows.append(
            _Row(
                number,
                pair.type,
                " ".join(name for name, holds in marks if holds),
                f"{pair.confidence:z.2f}",
                score,
                sides[0][src[0] : src[1]],
                sides[1][tgt[0] : tgt[1]],
                *neighbors.get(number, (None, None)),
            )
        )
    return rows


def _sentences(document: Document) -> list[tuple[str, str]]:
    """Places and texts, without the characters that no page can hold."""
    texts = (NOT_XML.sub("", one_line(text)) for text in document.sentences)
    return list(zip(document.places, texts, strict=True))


def _linked_share(runs: np.ndarray, is_linked: np.ndarray) -> float:
    """Share of a side's sentences that are linked to some of the other."""
    sizes = runs[:, 1] - runs[:, 0]
    return float(sizes[is_linked].sum() / max(sizes.sum(), 1))


def _columns(confidence: Floats, is_linked: np.ndarray) -> list[_Column]:
    ends = np.linspace(0, len(confidence), min(len(confidence), OVERVIEW_COLUMNS) + 1).astype(np.int64).tolist()
    columns = []
    for place, (first, end) in enumerate(pairwise(ends)):
        part = confidence[first:end]
        columns.append(
            _Column(
                place,
                first + 1,
                end,
                first + int(part.argmin()) + 1,
                float(part.mean()),
                float((part < LOW).mean()),
                float((~is_linked[first:end]).mean()),
            )
        )
    return columns


COLUMNS = ("score", "confidence", "src", "tgt", "src_places", "tgt_places")
INTERTEXT = ".intertext.xml"
ENDINGS = (".tsv", ".parquet", ".tmx", ".xml", INTERTEXT)


def write_aligned(path: Path, aligned: Aligned) -> None:
    """Writes the links, and `PATH.json` with where they come from and how many they are.

    XML only names sentences; the documents that have them are written beside it, as `STEM.src.xml` and `STEM.tgt.xml`.

    Args:
        path: Ends with one of `ENDINGS`.
        aligned: The documents and their links.

    Raises:
        RunError: The disk is full or not writable; an older file is then as it was.
    """
    pairs = aligned_pairs(aligned)
    if path.suffix == ".xml":
        _write_xml(path, aligned)
    else:
        writers = {".tsv": _tsv, ".parquet": _parquet, ".tmx": _tmx}
        write_bytes(path, writers[path.suffix](pairs, aligned))
    write_json(path.with_name(f"{path.name}.json"), {**aligned.origin, **asdict(count_links(pairs))})


def _write_xml(path: Path, aligned: Aligned) -> None:
    is_intertext = path.name.endswith(INTERTEXT)
    stem = path.name.removesuffix(INTERTEXT if is_intertext else ".xml")
    src, tgt = f"{stem}.src.xml", f"{stem}.tgt.xml"
    write_bytes(path.with_name(src), as_sentences(aligned.src))  # first, so that links never name what is not there
    write_bytes(path.with_name(tgt), as_sentences(aligned.tgt))
    write_bytes(path, as_intertext(aligned, src, tgt) if is_intertext else as_xces(aligned, src, tgt))


def _tsv(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    lines = ["\t".join(COLUMNS)]
    for pair in pairs:
        texts = one_line(pair.src), one_line(pair.tgt)
        lines.append("\t".join((_decimals(pair.score), _decimals(pair.confidence), *texts, *_places(pair))))
    return ("\n".join(lines) + "\n").encode()


def _parquet(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = [_places(pair) for pair in pairs]
    links = aligned.links
    columns = {
        "score": pa.array([pair.score for pair in pairs], pa.float64()),
        "confidence": pa.array([pair.confidence for pair in pairs], pa.float64()),
        "src": pa.array([pair.src for pair in pairs], pa.string()),
        "tgt": pa.array([pair.tgt for pair in pairs], pa.string()),
        "src_places": pa.array([src for src, _ in places], pa.string()),
        "tgt_places": pa.array([tgt for _, tgt in places], pa.string()),
    }
    for name, document, runs in (("src", aligned.src, links.src), ("tgt", aligned.tgt, links.tgt)):
        sentences = [list(document.sentences[first:end]) for first, end in runs.tolist()]
        columns[f"{name}_sentences"] = pa.array(sentences, pa.list_(pa.string()))
    stream = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(_as_text(aligned.origin)), stream, compression="zstd")
    return stream.getvalue()


def _tmx(pairs: Sequence[AlignedPair], aligned: Aligned) -> bytes:
    units = (_unit(pair) for pair in pairs if pair.is_linked)
    return as_tmx(units, (aligned.src.lang, aligned.tgt.lang), _as_text(aligned.origin))


def _unit(pair: AlignedPair) -> TranslationUnit:
    src_places, tgt_places = _places(pair)
    props = {
        "score": _decimals(pair.score),
        "confidence": _decimals(pair.confidence),
        "src_places": src_places,
        "tgt_places": tgt_places,
    }
    segtype = "sentence" if pair.type == "1-1" else "block"
    return TranslationUnit(one_line(pair.src), one_line(pair.tgt), props, segtype)


def _places(pair: AlignedPair) -> tuple[str, str]:
    return " ".join(pair.src_places), " ".join(pair.tgt_places)


def _decimals(number: float | None) -> str:
    return "" if number is None else f"{number:z.4f}"


def _as_text(origin: Mapping[str, object]) -> dict[str, str]:
    """What is no text as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in origin.items()
    }
