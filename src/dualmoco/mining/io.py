"""Reads the input of mining (texts, bitexts, known pairs), and writes and reads files of pairs in several formats."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, iterparse
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.storage import write_recorded, write_text
from dualmoco.core.vectors import Floats, Ids
from dualmoco.data.readers.base import Row, Source
from dualmoco.data.readers.formats import read_pairs
from dualmoco.embeddings.unique_lines import TextFile, lines_at
from dualmoco.text.containers import as_pairs, as_sentences
from dualmoco.text.files import open_binary, read_lines, read_table

Texts = str | Path | Sequence[str]
"""Name of a text file with one sentence per line, plain or compressed; or the sentences, see `as_sentences`."""
Bitext = str | Path | Sequence[tuple[str, str]] | Mapping[str, Sequence[str]]
"""Name of a file in any format of `dualmoco prepare`; or pairs of sentences, or a table of them, see `as_pairs`."""
PAIRS_ENDINGS = (".tsv", ".csv", ".jsonl", ".parquet", ".tmx")
PACKED_ENDING = ".gz"  # may follow any ending except .parquet
CELL_BREAKS = re.compile("[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")  # characters that end a cell or a line somewhere
NOT_XML = re.compile("[^\t\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # also line ends, which no sentence has


def as_text_file(texts: Texts, lang: str, path: Path) -> TextFile:
    """A text as a file; sentences are written to `path`. DataError if one is not a string of one line."""
    if isinstance(texts, str | Path):
        return TextFile(Path(texts), lang)
    sentences = as_sentences(texts)
    for number, text in enumerate(sentences):
        if "\n" in text:
            raise DataError(f"sentence {number}: {text!r:.60}; expected a string of one line")
    write_text(path, "".join(f"{text}\n" for text in sentences))
    return TextFile(path, lang)


class Problems:
    """Counts the unusable lines of a bitext; the first one is an error unless `skip` is set."""

    def __init__(self, pairs: Bitext, *, skip: bool) -> None:
        self.name, self.skip, self.count = pairs if isinstance(pairs, str | Path) else "pairs", skip, 0

    def report(self, line: int, what: str) -> None:
        """Reports what is wrong with a line."""
        if not self.skip:
            raise DataError(f"{self.name}:{line}: {what}; fix the line, or skip unreadable lines with on_error=skip")
        self.count += 1


def read_bitext(
    pairs: Bitext,
    langs: tuple[str, str],
    tgt_file: str | Path | None,
    form: str,
    problems: Problems,
    columns: tuple[str, str] | None = None,
) -> Iterator[Row]:
    """Yields the pairs of a bitext with their line numbers; columns are named, or numbered from 0."""
    if not isinstance(pairs, str | Path):
        yield from (Row(src, tgt, number) for number, (src, tgt) in enumerate(as_pairs(pairs, columns, langs), start=1))
        return
    source = Source(Path(pairs), *langs, columns, Path(tgt_file) if tgt_file else None)
    yield from read_pairs(source, form, report=problems.report)


@dataclass(frozen=True)
class GoldPairs:
    """Pairs known to be translations: line numbers from 1 in the two texts, or sentences to plant in them."""

    gold: Sequence[tuple[int, int]] = ()
    planted: Sequence[tuple[str, str]] = ()


def read_gold_pairs(
    gold: str | Path | Sequence[tuple[int, int]] | None, planted: str | Path | Sequence[tuple[str, str]] | None
) -> GoldPairs:
    """The known pairs to choose the threshold on, from files or as given; ConfigError if both kinds are given."""
    if gold is not None and planted is not None:
        raise ConfigError("gold and planted pairs were both given; expected only one of them")
    if isinstance(gold, str | Path):
        gold = [_line_numbers(Path(gold), number, *cells) for number, cells in read_table(Path(gold), [0, 1])]
    if isinstance(planted, str | Path):
        planted = [(src, tgt) for _, (src, tgt) in read_table(Path(planted), [0, 1])]
    return GoldPairs(list(gold or ()), list(planted or ()))


def _line_numbers(path: Path, number: int, src: str, tgt: str) -> tuple[int, int]:
    if not (src.isdecimal() and tgt.isdecimal()):
        raise DataError(f"{path}:{number}: {src!r}, {tgt!r}; expected two line numbers from 1")
    return int(src), int(tgt)


class MinedPair(NamedTuple):
    """Two sentences, their score, their mean cosines with their neighbours, and their first lines, from 1."""

    score: float  # margin or cosine
    src: str  # source sentence
    tgt: str  # target sentence
    src_mean: float  # mean cosine of the source sentence with its neighbors
    tgt_mean: float  # mean cosine of the target sentence with its neighbors
    src_line: int  # line of the source sentence, from 1
    tgt_line: int  # line of the target sentence, from 1


@dataclass(frozen=True)
class PairTable:
    """The data of p pairs except for the sentences; see `MinedPair`."""

    scores: Floats
    src_means: Floats
    tgt_means: Floats
    src_lines: Ids
    tgt_lines: Ids

    def rows(self, sides: Sequence[Sequence[str]]) -> Iterator[MinedPair]:
        """Yields the pairs with their sentences."""
        means, lines = (self.src_means, self.tgt_means), (self.src_lines, self.tgt_lines)
        columns = (column.tolist() for column in (*means, *lines))
        return map(MinedPair._make, zip(self.scores.tolist(), *sides, *columns, strict=True))


def check_pairs_path(path: Path, endings: Sequence[str] = PAIRS_ENDINGS) -> None:
    """ConfigError if an output file is a folder, has another ending, or needs a package that is not installed."""
    if path.is_dir():
        raise ConfigError(f"{path}: a folder; expected the name of a file to write")
    ending = pairs_ending(path) if endings is PAIRS_ENDINGS else path.suffix
    if ending not in endings:
        raise ConfigError(f"{path}: ends with {path.suffix or 'nothing'}; expected one of {', '.join(endings)}")
    if ending == ".parquet":
        require("pyarrow.parquet", "data", "Parquet")


def pairs_ending(path: Path) -> str:
    """The ending of a file of pairs without that of its compression."""
    is_packed = path.suffix == PACKED_ENDING and Path(path.stem).suffix != ".parquet"
    return Path(path.stem).suffix if is_packed else path.suffix


def write_pairs(
    path: Path,
    table: PairTable,
    sides: Sequence[Sequence[str]],
    langs: tuple[str, str],
    origin: Mapping[str, object],
    extra: Mapping[str, Sequence[str]] | None = None,
    pages: Mapping[Path, str] | None = None,
) -> None:
    """Writes pairs, in the order of the table, to a file of PAIRS_ENDINGS, and their origin to `PATH.json`.

    `extra` columns are written after those of `MinedPair`, and `pages` to separate files.
    """
    notes, ending = {name: str(value) for name, value in origin.items()}, pairs_ending(path)
    names = [_free_name(name) for name in extra or {}]
    others = list(zip(*extra.values(), strict=True)) if extra else [()] * len(table.scores)
    rows = zip(table.rows(sides), others, strict=True)
    if ending == ".parquet":
        content = _as_parquet(table, sides, notes, dict(zip(names, (extra or {}).values(), strict=True)))
    elif ending == ".tmx":
        content = as_tmx((_translation_unit(pair, names, more) for pair, more in rows), langs, notes)
    elif ending == ".jsonl":
        content = _as_jsonl(rows, names)
    elif ending == ".csv":
        content = _as_csv(rows, names)
    else:
        content = _as_tsv(rows, names)
    files = {path: gzip.compress(content, mtime=0) if path.suffix == PACKED_ENDING else content}
    write_recorded(path, origin, files | {page: text.encode() for page, text in (pages or {}).items()})


def _free_name(name: str) -> str:
    """The name of an extra column, made different from the columns of `MinedPair`."""
    return f"{name}_given" if name in MinedPair._fields else name


def sentences_at(path: Path, lines: Ids) -> list[str]:
    """The sentences at some lines of a file, from 1, in the order of the given lines."""
    wanted, places = np.unique(lines - 1, return_inverse=True)
    found = list(lines_at(path, wanted.tolist()))
    return [found[place] for place in places.tolist()]


def read_mined(path: Path) -> Iterator[MinedPair]:
    """Yields the pairs of a file of `mine`, `score` or `paraphrases`, without extra columns."""
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet, ".tmx": _read_tmx}
    return readers.get(pairs_ending(path), _read_tsv)(path)


PairRows = Iterable[tuple[MinedPair, Sequence[str]]]  # pairs with their extra columns


def _cells(pair: MinedPair, more: Sequence[str]) -> list[str]:
    numbers = f"{pair.src_mean:.6f}", f"{pair.tgt_mean:.6f}", str(pair.src_line), str(pair.tgt_line)
    return [f"{pair.score:.6f}", pair.src, pair.tgt, *numbers, *more]


def _from_cells(cells: Sequence[str]) -> MinedPair:
    score, src, tgt, src_mean, tgt_mean, src_line, tgt_line = cells[: len(MinedPair._fields)]
    return MinedPair(float(score), src, tgt, float(src_mean), float(tgt_mean), int(src_line), int(tgt_line))


def _as_tsv(rows: PairRows, names: Sequence[str]) -> bytes:
    stream = io.StringIO()
    stream.write("\t".join([*MinedPair._fields, *names]) + "\n")
    for pair, more in rows:
        stream.write("\t".join(CELL_BREAKS.sub(" ", cell) for cell in _cells(pair, more)) + "\n")
    return stream.getvalue().encode()


def _read_tsv(path: Path) -> Iterator[MinedPair]:
    lines = read_lines(path)
    next(lines)
    yield from (_from_cells(line.split("\t")) for line in lines)


def _as_csv(rows: PairRows, names: Sequence[str]) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*MinedPair._fields, *names])
    writer.writerows(_cells(pair, more) for pair, more in rows)
    return stream.getvalue().encode()


def _read_csv(path: Path) -> Iterator[MinedPair]:
    with io.TextIOWrapper(open_binary(path), encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream)
        next(rows)
        yield from map(_from_cells, rows)


def _as_jsonl(rows: PairRows, names: Sequence[str]) -> bytes:
    stream = io.StringIO()
    for pair, more in rows:
        stream.write(json.dumps(pair._asdict() | dict(zip(names, more, strict=True)), ensure_ascii=False) + "\n")
    return stream.getvalue().encode()


def _read_jsonl(path: Path) -> Iterator[MinedPair]:
    for line in read_lines(path):
        content = json.loads(line)
        yield MinedPair(**{name: content[name] for name in MinedPair._fields})


def _as_parquet(
    table: PairTable, sides: Sequence[Sequence[str]], notes: Mapping[str, str], extra: Mapping[str, Sequence[str]]
) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = (table.scores, *sides, table.src_means, table.tgt_means, table.src_lines, table.tgt_lines)
    columns = {**dict(zip(MinedPair._fields, values, strict=True)), **extra}
    arrow = pa.table(columns).replace_schema_metadata(dict(notes))
    stream = io.BytesIO()
    pq.write_table(arrow, stream, compression="zstd")
    return stream.getvalue()


def _read_parquet(path: Path) -> Iterator[MinedPair]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(columns=list(MinedPair._fields)):
        for row in batch.to_pylist():
            yield MinedPair(**row)


@dataclass(frozen=True)
class TranslationUnit:
    """Two texts that translate each other."""

    src: str
    tgt: str
    props: Mapping[str, object]  # further properties
    segtype: str | None = None  # segment type, sentence or block; None if the header's applies


def _translation_unit(pair: MinedPair, names: Sequence[str], more: Sequence[str]) -> TranslationUnit:
    numbers = {name: f"{getattr(pair, name):.6f}" for name in ("score", "src_mean", "tgt_mean")}
    lines = {"src_line": pair.src_line, "tgt_line": pair.tgt_line}
    return TranslationUnit(pair.src, pair.tgt, {**numbers, **lines, **dict(zip(names, more, strict=True))})


def as_tmx(units: Iterable[TranslationUnit], langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    """The content of a TMX file; `origin` becomes properties of its header, and its `version` that of the tool."""
    stream = io.StringIO()
    stream.write('<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n')
    stream.write(
        f'<header creationtool="dualmoco" creationtoolversion={xml_attribute(origin.get("version", ""))} o-tmf="tsv" '
        f'segtype="sentence" adminlang="en" srclang={xml_attribute(langs[0])} datatype="plaintext">\n'
    )
    for name, value in origin.items():
        stream.write(_prop(name, value) + "\n")
    stream.write("</header>\n<body>\n")
    for unit in units:
        stream.write(f"<tu segtype={xml_attribute(unit.segtype)}>" if unit.segtype else "<tu>")
        stream.write("".join(_prop(name, str(value)) for name, value in unit.props.items()))
        for lang, text in zip(langs, (unit.src, unit.tgt), strict=True):
            stream.write(f"<tuv xml:lang={xml_attribute(lang)}><seg>{xml_content(text)}</seg></tuv>")
        stream.write("</tu>\n")
    stream.write("</body>\n</tmx>\n")
    return stream.getvalue().encode()


def xml_content(text: str) -> str:
    """Text between tags, without the characters that XML does not allow."""
    return escape(NOT_XML.sub("", text))


def xml_attribute(text: str) -> str:
    """A quoted attribute value, without the characters that XML does not allow."""
    return quoteattr(NOT_XML.sub("", text))


def _prop(name: str, value: str) -> str:
    return f"<prop type={xml_attribute(name)}>{xml_content(value)}</prop>"


def _read_tmx(path: Path) -> Iterator[MinedPair]:
    with open_binary(path) as stream:
        for _, unit in iterparse(stream):
            if unit.tag == "tu":
                yield _from_unit(unit)
                unit.clear()


def _from_unit(unit: Element) -> MinedPair:
    props = {prop.attrib["type"]: prop.text or "" for prop in unit.iter("prop")}
    src, tgt = (segment.text or "" for segment in unit.iter("seg"))
    score, src_mean, tgt_mean = (float(props[name]) for name in ("score", "src_mean", "tgt_mean"))
    return MinedPair(score, src, tgt, src_mean, tgt_mean, int(props["src_line"]), int(props["tgt_line"]))
