"""What mining is given, as files: texts or sentences, bitexts or pairs, known pairs that choose a threshold."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from xml.etree.ElementTree import Element, iterparse
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.storage import write_bytes, write_json, write_text
from dualmoco.core.vectors import Floats, Ids
from dualmoco.data.readers.base import Row, Source
from dualmoco.data.readers.formats import read_pairs
from dualmoco.embeddings.unique_lines import TextFile, lines_at
from dualmoco.text.files import read_lines, read_table

Texts = str | Path | Sequence[str]
"""The name of a text file, one sentence a line, plain or compressed; or the sentences themselves."""
Bitext = str | Path | Sequence[tuple[str, str]]
"""The name of a file in any format of `dualmoco prepare`; or pairs of sentences."""
T = TypeVar("T")


@dataclass(frozen=True)
class GoldPairs:
    """Pairs that are translations: lines from 1 in the two files, or sentences to be planted among them."""

    gold: Sequence[tuple[int, int]] = ()
    planted: Sequence[tuple[str, str]] = ()


def as_text_file(texts: Texts, lang: str, place: Path) -> TextFile:
    """A text as a file.

    Args:
        texts: The name of a file, or sentences.
        lang: Their language.
        place: Where sentences are written.

    Returns:
        The file.

    Raises:
        DataError: A sentence that is no string of one line.
    """
    if isinstance(texts, str | Path):
        return TextFile(Path(texts), lang)
    for number, text in enumerate(texts):
        if not isinstance(text, str) or "\n" in text:
            raise DataError(f"sentence {number}: {text!r:.60}; expected a string of one line")
    write_text(place, "".join(f"{text}\n" for text in texts))
    return TextFile(place, lang)


class Problems:
    """Lines of a bitext that cannot be used: the first is an error, unless they are to be left out and counted."""

    def __init__(self, pairs: Bitext, *, skip: bool) -> None:
        self.name, self.skip, self.count = pairs if isinstance(pairs, str | Path) else "pairs", skip, 0

    def report(self, line: int, what: str) -> None:
        """Takes the number of a line and what is wrong with it."""
        if not self.skip:
            raise DataError(f"{self.name}:{line}: {what}; on_error=skip leaves such lines out")
        self.count += 1


def read_bitext(
    pairs: Bitext, langs: tuple[str, str], tgt_file: str | Path | None, form: str, problems: Problems
) -> Iterator[Row]:
    """Yields the pairs of a bitext.

    Args:
        pairs: The name of a file, or pairs of sentences.
        langs: Languages of both sides.
        tgt_file: The translations, if the file holds source lines alone.
        form: Format of the file, or `auto`.
        problems: Takes the lines that cannot be read.

    Yields:
        A pair with the number of its line.

    Raises:
        DataError: A file that cannot be read, or a line of it where problems are errors.
    """
    if not isinstance(pairs, str | Path):
        yield from (Row(src, tgt, number) for number, (src, tgt) in enumerate(pairs, start=1))
        return
    source = Source(Path(pairs), *langs, tgt_path=Path(tgt_file) if tgt_file else None)
    yield from read_pairs(source, form, report=problems.report)


def read_gold_pairs(
    gold: str | Path | Sequence[tuple[int, int]] | None, planted: str | Path | Sequence[tuple[str, str]] | None
) -> GoldPairs:
    """The pairs that choose the threshold.

    Args:
        gold: Line numbers from 1, or a file of them.
        planted: Sentences, or a file of them.

    Returns:
        Gold lines, planted sentences, or neither.

    Raises:
        ConfigError: Both.
        DataError: A file of another form.
    """
    if gold is not None and planted is not None:
        raise ConfigError("gold and planted pairs; expected one of them")
    return GoldPairs(
        _pairs_of(gold, _line_numbers), _pairs_of(planted, lambda path, number, cells: (cells[0], cells[1]))
    )


def _pairs_of(
    given: str | Path | Sequence[tuple[T, T]] | None, parse: Callable[[Path, int, list[str]], tuple[T, T]]
) -> list[tuple[T, T]]:
    if given is None:
        return []
    if isinstance(given, str | Path):
        return [parse(Path(given), number, cells) for number, cells in read_table(Path(given), [0, 1])]
    return list(given)


def _line_numbers(path: Path, number: int, cells: list[str]) -> tuple[int, int]:
    if not (cells[0].isdecimal() and cells[1].isdecimal()):
        raise DataError(f"{path}:{number}: {cells[0]!r}, {cells[1]!r}; expected two line numbers from 1")
    return int(cells[0]), int(cells[1])


NOT_XML = re.compile("[^\t\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # and line ends, which no sentence has


@dataclass(frozen=True)
class TranslationUnit:
    """Two texts that translate each other."""

    src: str
    tgt: str
    props: Mapping[str, object]
    """What else is known of them."""
    segtype: str | None = None
    """What they are, sentence or block; None where the header says it."""


def as_tmx(units: Iterable[TranslationUnit], langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    """A whole TMX file.

    Args:
        units: In the order to be written.
        langs: Of the source and of the target.
        origin: Where the units come from; `version` is that of the tool.

    Returns:
        Its bytes.
    """
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
    """Text between tags, without the characters that XML cannot hold."""
    return escape(NOT_XML.sub("", text))


def xml_attribute(text: str) -> str:
    """Text in quotes as the value of an attribute, without the characters that XML cannot hold."""
    return quoteattr(NOT_XML.sub("", text))


def _prop(name: str, value: str) -> str:
    return f"<prop type={xml_attribute(name)}>{xml_content(value)}</prop>"


MINED_COLUMNS = ("score", "src", "tgt", "src_mean", "tgt_mean", "src_line", "tgt_line")
SentenceSides = Sequence[Sequence[str]]
"""The source sentences and the target sentences of pairs."""
ENDINGS = (".tsv", ".parquet", ".tmx")


class MinedPair(NamedTuple):
    """Two sentences, their score, their mean cosines with their neighbours, and where they first stand, from 1."""

    score: float
    src: str
    tgt: str
    src_mean: float
    tgt_mean: float
    src_line: int
    tgt_line: int


@dataclass(frozen=True)
class PairTable:
    """p pairs with their scores, both sentences' mean cosine to their neighbours, and their lines, from 1."""

    scores: Floats
    src_means: Floats
    tgt_means: Floats
    src_lines: Ids
    tgt_lines: Ids


def check_pairs_path(path: Path, endings: Sequence[str] = ENDINGS) -> None:
    """Refuses an output file of an unknown kind.

    Args:
        path: The file to be written.
        endings: Those that can be written.

    Raises:
        ConfigError: A folder, another ending, or Parquet without its package.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: a folder; expected the name of a file to write")
    if path.suffix not in endings:
        raise ConfigError(f"{path}: ends with {path.suffix or 'nothing'}; expected one of {', '.join(endings)}")
    if path.suffix == ".parquet":
        require("pyarrow.parquet", "data", "Parquet")


def write_pairs(
    path: Path, table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, object]
) -> None:
    """Writes the pairs with their sentences, and `PATH.json` with where they come from.

    Args:
        path: Ends with .tsv, .parquet or .tmx.
        table: The pairs, in the order to be written.
        sides: The p source and the p target sentences, in the same order.
        langs: Their languages.
        origin: Model and text checksums and every setting.

    Raises:
        RunError: The disk is full or not writable; an older file is then as it was.
    """
    writers = {".tsv": _tsv, ".parquet": _parquet, ".tmx": _tmx}
    write_bytes(path, writers[path.suffix](table, sides, langs, {name: str(value) for name, value in origin.items()}))
    write_json(path.with_name(f"{path.name}.json"), dict(origin))


def sentences_at(path: Path, lines: Ids) -> list[str]:
    """The sentences of some lines of a file, from 1, in the order of the lines given."""
    wanted, places = np.unique(lines - 1, return_inverse=True)
    found = list(lines_at(path, wanted.tolist()))
    return [found[place] for place in places.tolist()]


def _rows(table: PairTable) -> Iterator[tuple[float, float, float, int, int]]:
    columns = (table.scores, table.src_means, table.tgt_means, table.src_lines, table.tgt_lines)
    return zip(*(column.tolist() for column in columns), strict=True)


def _tsv(table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    stream = io.StringIO()
    stream.write("\t".join(MINED_COLUMNS) + "\n")
    for (score, a, b, i, j), src, tgt in zip(_rows(table), *sides, strict=True):
        texts = "\t".join(" ".join(text.split("\t")) for text in (src, tgt))
        stream.write(f"{score:.6f}\t{texts}\t{a:.6f}\t{b:.6f}\t{i}\t{j}\n")
    return stream.getvalue().encode()


def _parquet(table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = (table.scores, *sides, table.src_means, table.tgt_means, table.src_lines, table.tgt_lines)
    arrow = pa.table(dict(zip(MINED_COLUMNS, values, strict=True))).replace_schema_metadata(dict(origin))
    stream = io.BytesIO()
    pq.write_table(arrow, stream, compression="zstd")
    return stream.getvalue()


def _tmx(table: PairTable, sides: SentenceSides, langs: tuple[str, str], origin: Mapping[str, str]) -> bytes:
    units = (
        TranslationUnit(
            src,
            tgt,
            {"score": f"{score:.6f}", "src_mean": f"{a:.6f}", "tgt_mean": f"{b:.6f}", "src_line": i, "tgt_line": j},
        )
        for (score, a, b, i, j), src, tgt in zip(_rows(table), *sides, strict=True)
    )
    return as_tmx(units, langs, origin)


def read_mined(path: Path) -> Iterator[MinedPair]:
    """Yields the pairs of a file that `dualmoco mine`, `score` or `paraphrases` wrote.

    Args:
        path: Ends with .tsv, .parquet or .tmx.

    Yields:
        One pair.
    """
    readers = {".tsv": _read_tsv, ".parquet": _read_parquet, ".tmx": _read_tmx}
    return readers[path.suffix](path)


def _read_tsv(path: Path) -> Iterator[MinedPair]:
    lines = read_lines(path)
    next(lines)
    for line in lines:
        score, src, tgt, src_mean, tgt_mean, src_line, tgt_line = line.split("\t")
        yield MinedPair(float(score), src, tgt, float(src_mean), float(tgt_mean), int(src_line), int(tgt_line))


def _read_parquet(path: Path) -> Iterator[MinedPair]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            yield MinedPair(**row)


def _read_tmx(path: Path) -> Iterator[MinedPair]:
    for _, unit in iterparse(path):
        if unit.tag == "tu":
            yield _from_unit(unit)
            unit.clear()


def _from_unit(unit: Element) -> MinedPair:
    known: dict[str, Any] = {prop.attrib["type"]: prop.text for prop in unit.iter("prop")}
    src, tgt = (segment.text or "" for segment in unit.iter("seg"))
    score, src_mean, tgt_mean = (float(known[name]) for name in ("score", "src_mean", "tgt_mean"))
    return MinedPair(score, src, tgt, src_mean, tgt_mean, int(known["src_line"]), int(known["tgt_line"]))
