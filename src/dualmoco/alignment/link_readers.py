"""Reads alignments: files of `dualmoco align`, and TMX, TSV, XLIFF, XCES and InterText files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from math import nan
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

import numpy as np

from dualmoco.alignment.aligner import Links
from dualmoco.alignment.output import (
    ALIGNMENT_COLUMNS,
    AUTOMATIC,
    CONFIRMED,
    EDITED,
    LINE_BREAKS,
    Aligned,
)
from dualmoco.alignment.splitting import Document
from dualmoco.core.errors import DataError, require
from dualmoco.core.storage import check_contained, read_record
from dualmoco.data.readers.base import Source, clip_reason
from dualmoco.data.readers.formats import guess_format, read_pairs
from dualmoco.text.files import READ_ERRORS, open_binary, read_lines
from dualmoco.text.languages import base_language

LINK_FILE_SUFFIXES = (".tsv", ".tab", ".parquet", ".tmx", ".xlf", ".xliff", ".sdlxliff", ".xml")
MAX_LINKS = 500_000
MAX_LINK_FILE_BYTES = 100_000_000
LANGUAGE_ATTRIBUTES = ("source-language", "target-language", "srcLang", "trgLang")
Recognise = Callable[[Sequence[str], str], str]
"""The language of some sentences; the file name is used in messages."""

LinkCells = tuple[list[str], list[str]]  # the source and the target sentences of a link
Found = tuple[LinkCells, LinkCells, float, float, str]  # sentences and places of a link, score, confidence, status


def read_alignment(path: Path, langs: tuple[str | None, str | None], recognise: Recognise) -> Aligned:
    """Reads a file of links; DataError if it is damaged or not a file of links.

    A language that is None is taken from the file, or else recognised.
    """
    if path.suffix not in LINK_FILE_SUFFIXES:
        known = ", ".join(LINK_FILE_SUFFIXES)
        raise DataError(f"{path.name}: ends with {path.suffix or 'nothing'}; expected an alignment: {known}")
    if not path.is_file():
        raise DataError(f"{path.name}: no such file; expected an alignment")
    if (size := path.stat().st_size) > MAX_LINK_FILE_BYTES:
        raise DataError(f"{path.name}: {size:,} bytes; expected at most {MAX_LINK_FILE_BYTES:,}; split the file")
    named = tuple(given or own for given, own in zip(langs, _own_languages(path), strict=True))
    if path.suffix == ".xml":
        return _read_xml(path, (named[0], named[1]), recognise)
    reader = _own_reader(path)
    if reader is None:
        reader = _read_foreign(path, (named[0] or "src", named[1] or "tgt"))
    found = list(islice(reader, MAX_LINKS + 1))
    if not found:
        raise DataError(f"{path.name}: no sentence pairs; expected at least one")
    if len(found) > MAX_LINKS:
        raise DataError(f"{path.name}: more than {MAX_LINKS:,} links; split the file")
    return _as_aligned(path, found, (named[0], named[1]), recognise)


def _as_aligned(
    path: Path, found: Sequence[Found], langs: tuple[str | None, str | None], recognise: Recognise
) -> Aligned:
    sides, spans = [], []
    names = _own_names(path)
    for side, lang in enumerate(langs):
        texts = [text for link in found for text in link[0][side]]
        places = [place for link in found for place in link[1][side]]
        sides.append(Document(names[side], texts, places, lang or recognise(texts, path.name)))
        ends = np.cumsum([len(link[0][side]) for link in found], dtype=np.int64)
        spans.append(np.stack([np.append(0, ends[:-1]), ends], axis=1))
    numbers = (np.array([link[place] for link in found], dtype=np.float64) for place in (2, 3))
    origin = {"tool": "dualmoco serve", "opened": path.name}
    return Aligned(sides[0], sides[1], Links(spans[0], spans[1], *numbers), origin, [link[4] for link in found])


def _own_names(path: Path) -> tuple[str, str]:
    """The names of the documents that a file was made from."""
    record = read_record(path) or {}
    stem = path.name.partition(".")[0]
    src, tgt = (str(record.get(side, f"{stem}.{side}")) for side in ("src", "tgt"))
    return Path(src).name, Path(tgt).name


def _own_languages(path: Path) -> tuple[str | None, str | None]:
    """The languages that a file or its record names."""
    record = read_record(path) or {}
    src, tgt = record.get("src_lang"), record.get("tgt_lang")
    if isinstance(src, str) and isinstance(tgt, str):
        return src, tgt
    if path.suffix == ".parquet":
        notes = _open_parquet(path).schema_arrow.metadata or {}
        src, tgt = (notes.get(name.encode(), b"").decode("utf-8", "replace") for name in ("src_lang", "tgt_lang"))
        return src or None, tgt or None
    if path.suffix in (".tmx", ".xlf", ".xliff", ".sdlxliff"):
        return _xml_languages(path)
    return None, None


def _xml_languages(path: Path) -> tuple[str, str]:
    """The first two languages that an XML file names, the header's source language first."""
    found: dict[str, str] = {}
    parser = expat.ParserCreate()

    def start(name: str, attributes: dict[str, str]) -> None:
        for code in _named_languages(name, attributes):
            found.setdefault(base_language(code), code)

    def refuse(*_: object) -> None:
        raise DataError(f"{path.name}: declares an XML entity; refused as unsafe")

    parser.StartElementHandler, parser.EntityDeclHandler = start, refuse
    try:
        with open_binary(path) as stream:
            is_done = False
            while not is_done:
                chunk = stream.read(1 << 16)
                parser.Parse(chunk, not chunk)
                is_done = not chunk or len(found) > 1
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        raise DataError(f"{path.name}:{error.lineno}: malformed XML ({reason}); expected a valid file") from None
    except (*READ_ERRORS, LookupError, ValueError) as error:
        raise DataError(f"{path.name}: cannot be read ({clip_reason(error)})") from None
    if len(found) < 2:
        named = ", ".join(found.values()) or "no language"
        raise DataError(f"{path.name}: names {named}; expected a source and a target language")
    src, tgt, *_ = found.values()
    return src, tgt


def _named_languages(name: str, attributes: dict[str, str]) -> Iterator[str]:
    """The languages that a start tag of TMX or XLIFF names."""
    given = [attributes.get(key) for key in LANGUAGE_ATTRIBUTES]
    if name == "tuv":
        given.append(attributes.get("xml:lang", attributes.get("lang")))
    elif name == "header" and attributes.get("srclang") != "*all*":
        given.append(attributes.get("srclang"))
    yield from filter(None, given)


def _read_foreign(path: Path, langs: tuple[str, str]) -> Iterator[Found]:
    """The pairs of a file of another tool; each side is one sentence."""

    def report(line: int, what: str) -> None:
        raise DataError(f"{path.name}:{line}: {what}")

    source = Source(path, *langs)
    try:
        for row in read_pairs(source, guess_format(source), report=report):
            cells = _one(row.src), _one(row.tgt)
            if any(cells):
                yield cells, (_places(cells[0], row.line), _places(cells[1], row.line)), nan, nan, AUTOMATIC
    except DataError as error:
        raise DataError(str(error).replace(str(path), path.name)) from None


def _one(text: str) -> list[str]:
    line = LINE_BREAKS.sub(" ", text).strip()
    return [line] if line else []


def _places(cell: list[str], place: object) -> list[str]:
    return [str(place)] * len(cell)


def _own_reader(path: Path) -> Iterator[Found] | None:
    """The links of a TSV or Parquet file that `align` or the editor wrote; None for other files."""
    if path.suffix == ".tsv":
        header = next(_lines(path), "").split("\t")
        return _read_own_tsv(path, header) if tuple(header[: len(ALIGNMENT_COLUMNS)]) == ALIGNMENT_COLUMNS else None
    if path.suffix == ".parquet":
        names = _open_parquet(path).schema_arrow.names
        return _read_own_parquet(path) if {"src_sentences", "tgt_sentences", *ALIGNMENT_COLUMNS} <= {*names} else None
    return None


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from read_lines(path)
    except DataError as error:
        raise DataError(str(error).replace(str(path), path.name)) from None


def _read_own_tsv(path: Path, header: Sequence[str]) -> Iterator[Found]:
    for number, line in enumerate(islice(_lines(path), 1, None), start=2):
        cells = line.split("\t")
        try:
            row = dict(zip(header, cells, strict=True))
            score, confidence = (float(row[name] or nan) for name in ("score", "confidence"))
        except ValueError:
            expected = f"expected {len(header)} tab-separated columns with numbers in the first two"
            raise DataError(f"{path.name}:{number}: {len(cells)} columns; {expected}") from None
        texts = _one(row["src"]), _one(row["tgt"])
        places = _places(texts[0], row["src_places"]), _places(texts[1], row["tgt_places"])
        yield texts, places, score, confidence, _status(row.get("status"))


def _status(given: object) -> str:
    return given if isinstance(given, str) and given in (CONFIRMED, EDITED) else AUTOMATIC


def _open_parquet(path: Path) -> Any:
    parquet = require("pyarrow.parquet", "data", "Parquet")
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pyarrow raises any of its own and of Python's errors for a damaged file
        raise DataError(f"{path.name}: not a Parquet file, or damaged ({clip_reason(error)})") from None


def _read_own_parquet(path: Path) -> Iterator[Found]:
    for batch in _open_parquet(path).iter_batches():
        for row in batch.to_pylist():
            texts = [list(row[f"{side}_sentences"] or ()) for side in ("src", "tgt")]
            places = [(row[f"{side}_places"] or "").split() for side in ("src", "tgt")]
            for side, (own, given) in enumerate(zip(texts, places, strict=True)):
                places[side] = given if len(own) == len(given) else _places(own, " ".join(given))
            score, confidence = (nan if row[name] is None else row[name] for name in ("score", "confidence"))
            yield (texts[0], texts[1]), (places[0], places[1]), score, confidence, _status(row.get("status"))


# XCES and InterText


def _read_xml(path: Path, langs: tuple[str | None, str | None], recognise: Recognise) -> Aligned:
    """A file of links between two other files: XCES, where the source comes first, or InterText, where the target does.

    Sentences without a link become separate links.
    """
    root = _parse(path)
    name = root.tag.rpartition("}")[2]
    group = root if name == "linkGrp" else root.find(".//{*}linkGrp")
    if name not in ("linkGrp", "cesAlign") or group is None:
        raise DataError(f"{path.name}: the root is {name}; expected cesAlign (XCES) or linkGrp (InterText)")
    files = [group.get(key) or root.get(key) or "" for key in ("fromDoc", "toDoc")]
    texts = [_read_text_file(path, file) for file in files]
    sides = []
    for (ids, sentences, places, own), file, lang in zip(texts, files, langs, strict=True):
        code = own or lang or recognise(sentences, file)
        sides.append((ids, Document(Path(file).name, sentences, places, code)))
    reader = _LinkReader(path, [ids for ids, _ in sides])
    for link in group.iter("{*}link"):
        reader.read(link, tgt_first=name == "linkGrp")
    origin = {"tool": "dualmoco serve", "opened": path.name}
    return Aligned(sides[0][1], sides[1][1], reader.links(), origin, reader.statuses)


def _parse(path: Path) -> Any:
    etree = require("lxml.etree", "align", "An XML file of links")
    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
        return etree.parse(str(path), parser).getroot()
    except (etree.XMLSyntaxError, OSError) as error:
        raise DataError(f"{path.name}: not XML, or damaged ({clip_reason(error)})") from None


def _read_text_file(path: Path, name: str) -> tuple[dict[str, int], list[str], list[str], str]:
    """The numbers of the sentences of a text by id, their texts and places, and the language of the text."""
    is_name = name not in ("", ".", "..") and not {"/", "\\", "\0"} & {*name}
    file = path.parent / name
    if not is_name or not file.is_file():
        raise DataError(f"{path.name}: refers to {name!r:.100}; expected that file in the same folder")
    check_contained(file, path.parent)
    root = _parse(file)
    marked = [node for node in root.iter("{*}s") if node.get("id")]
    if not marked:
        raise DataError(f"{name}: no <s id=...>; expected the sentences that {path.name} links")
    ids = {node.get("id"): number for number, node in enumerate(marked)}
    texts = [" ".join("".join(node.itertext()).split()) or "–" for node in marked]
    paragraphs = groupby(marked, key=lambda node: node.getparent())
    places = [
        f"{number}.{place}" for number, (_, part) in enumerate(paragraphs, start=1) for place, _ in enumerate(part, 1)
    ]
    lang = root.get("{http://www.w3.org/XML/1998/namespace}lang") or root.get("lang") or ""
    return ids, texts, places, lang


class _LinkReader:
    """Collects links between sentences, in the order of the texts; `ids` are the sentence ids of both texts."""

    def __init__(self, path: Path, ids: Sequence[dict[str, int]]) -> None:
        self.path, self.ids = path, ids
        self.ends = [0, 0]  # numbers of sentences that are linked so far
        self.spans: list[list[int]] = []  # first sentences and ends of both sides of each link
        self.certainty: list[float] = []
        self.statuses: list[str] = []

    def read(self, link: Any, *, tgt_first: bool) -> None:
        """Adds a link, after separate links for the sentences before it."""
        named = (link.get("xtargets") or ";").split(";")
        if len(named) != 2:
            self.fail(link, f"xtargets {';'.join(named)!r:.60}; expected ids;ids")
        parts = []
        for side, names in enumerate(reversed(named) if tgt_first else named):
            part = [self.number(link, side, name) for name in names.split()]
            self.pass_over(side, part[0] if part else self.ends[side])
            if part != list(range(self.ends[side], self.ends[side] + len(part))):
                self.fail(link, "crosses another link; expected links in the order of the texts")
            parts.append(part)
        status = CONFIRMED if link.get("status") == "man" else AUTOMATIC
        self.add([len(part) for part in parts], self.read_certainty(link), status)

    def number(self, link: Any, side: int, name: str) -> int:
        if name not in self.ids[side]:
            self.fail(link, f"no sentence {name!r:.60} in the text")
        return self.ids[side][name]

    def read_certainty(self, link: Any) -> float:
        try:
            return float(link.get("certainty") or nan)
        except ValueError:
            self.fail(link, f"certainty {link.get('certainty')!r:.60}; expected a number")

    def fail(self, link: Any, what: str) -> NoReturn:
        raise DataError(f"{self.path.name}:{link.sourceline}: {what}")

    def pass_over(self, side: int, end: int) -> None:
        """Adds a separate link for each sentence before `end`."""
        while self.ends[side] < end:
            self.add([1 - side, side], nan, AUTOMATIC)

    def add(self, sizes: Sequence[int], certainty: float, status: str) -> None:
        first = self.ends.copy()
        self.ends = [start + size for start, size in zip(first, sizes, strict=True)]
        self.spans.append([first[0], self.ends[0], first[1], self.ends[1]])
        self.certainty.append(certainty)
        self.statuses.append(status)

    def links(self) -> Links:
        """All links; sentences after the last one become separate links."""
        for side in (0, 1):
            self.pass_over(side, len(self.ids[side]))
        spans = np.array(self.spans, dtype=np.int64).reshape(-1, 4)
        scores = np.full(len(spans), nan)
        return Links(spans[:, :2], spans[:, 2:], scores, np.array(self.certainty, dtype=np.float64))
