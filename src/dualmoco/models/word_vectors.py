"""Averaged word vectors as a model: the baseline of GloVe, word2vec and fastText.

Word vectors are read from text files (GloVe, word2vec, fastText's `.vec`; compressed or not), or from an array and a
file of its words. A sentence is split into words of the table, and its vector is the mean of theirs. Shapes: V words, n
sentences, D dimension.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Vectors, check_vectors, map_array
from dualmoco.models.folder import files_sha256
from dualmoco.models.model import ANY_LANGUAGE, Identity, Model, assemble_model
from dualmoco.text.files import read_lines

BLOCK_LINES = 4096
BLOCK_SENTENCES = 512
LONGEST_WORD = 8  # characters of a word in text without spaces
UNSPACED = "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
UNSPACED += "\U00020000-\U0003ffff"
"""Thai, Lao, Tibetan, Burmese, Khmer, Kana and Han."""
WORD_PATTERN = re.compile(
    rf"(?P<run>[{UNSPACED}]+)"
    r"|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b"  # English contractions as in the Penn Treebank
    rf"|[^\W{UNSPACED}]+|[^\w\s]",
    re.IGNORECASE,
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WordTable:
    """Words and their vectors."""

    rows: dict[str, int]  # the row of each word
    vectors: Vectors  # shape (V, D)
    files: tuple[Path, ...]  # what they were read from


def read_word_table(path: Path) -> WordTable:
    """Reads word vectors: lines of a word and its numbers, or `.npy` with words in `.txt` or `.parquet`."""
    # Lines may be compressed, with or without a first line of count and dimension. The first vector of a word counts.
    if path.suffix == ".npy":
        beside = [path.with_suffix(ending) for ending in (".txt", ".parquet")]
        found = [file for file in beside if file.is_file()]
        if not found:
            raise DataError(
                f"{path}: no words for these vectors; expected {beside[0].name}, one per line, or {beside[1].name}"
            )
        return read_array(path, found[0])
    return _read_text(path)


def read_array(vectors: Path, words: Path) -> WordTable:
    """Reads vectors (V, D) from a `.npy` file, and words from a text file or the first column of a Parquet file."""
    rows: dict[str, int] = {}
    count = 0
    for count, word in enumerate(_read_column(words) if words.suffix == ".parquet" else read_lines(words), start=1):
        rows.setdefault(word, count - 1)
    table = map_array(vectors)
    if len(table) != count or not count:
        raise DataError(f"{vectors}: {len(table):,} vectors for the {count:,} words of {words.name}; expected as many")
    return WordTable(rows, check_vectors(table, count, str(vectors)), (vectors, words))


def _read_column(path: Path) -> list[str]:
    try:
        file = pq.ParquetFile(path)
        return [str(word) for word in file.read(columns=file.schema_arrow.names[:1]).column(0).to_pylist()]
    except (OSError, pa.ArrowInvalid, IndexError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}; expected words in the first column") from None


def _read_text(path: Path) -> WordTable:
    lines = enumerate(read_lines(path), start=1)
    number, first = next(lines, (0, ""))
    fields = first.rstrip(" ").split(" ")
    promised = int(fields[0]) if len(fields) == 2 and all(field.isdecimal() for field in fields) else None
    dimension = len(fields) - 1 if promised is None else int(fields[1])
    if dimension < 1:
        raise DataError(f"{path}: no word vectors on the first line; expected a word and its numbers on every line")
    words: dict[str, int] = {}
    table: Vectors = np.empty((0, dimension), dtype=np.float32)
    count = 0
    for block in _blocks(lines if promised is not None else chain([(number, first)], lines)):
        names, numbers = zip(*(_split_line(path, at, line, dimension) for at, line in block), strict=True)
        _put(table, count, _parse_numbers(path, [at for at, _ in block], numbers, dimension))
        for name in names:
            words.setdefault(name, count)
            count += 1
    if not count:
        raise DataError(f"{path}: no words; expected a word and its numbers on every line")
    if promised is not None and promised != count:
        logger.warning("%s: its first line says %s words, but it has %s", path, f"{promised:,}", f"{count:,}")
    table.resize((count, dimension), refcheck=False)
    return WordTable(words, table, (path,))


def _blocks(lines: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Numbered lines in blocks, without empty ones."""
    filled = ((number, line.rstrip(" ")) for number, line in lines if line.rstrip(" "))
    while block := list(islice(filled, BLOCK_LINES)):
        yield block


def _split_line(path: Path, number: int, line: str, dimension: int) -> tuple[str, str]:
    """The word of a line, which may contain spaces, and its numbers as one string."""
    if line.count(" ") == dimension:
        word, _, numbers = line.partition(" ")
        return word, numbers
    word, *fields = line.rsplit(" ", dimension)
    if len(fields) < dimension or _is_number(word.rpartition(" ")[2]):
        found = len(line.split(" ")) - 1
        raise DataError(f"{path}:{number}: {found} numbers; expected a word and {dimension}, as on the first line")
    return word, " ".join(fields)


def _parse_numbers(path: Path, places: list[int], numbers: tuple[str, ...], dimension: int) -> Vectors:
    """The vectors (n, D) of a block of lines."""
    try:
        values = pc.split_pattern(pa.array(numbers), " ").flatten().cast(pa.float32()).to_numpy()
    except pa.ArrowInvalid:
        place, field = next(
            (at, field)
            for at, text in zip(places, numbers, strict=True)
            for field in text.split(" ")
            if not _is_number(field)
        )
        raise DataError(f"{path}:{place}: {field!r} is not a number; expected a word and {dimension} numbers") from None
    vectors: Vectors = values.reshape(len(places), dimension)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(f"{path}:{places[bad[0]]}: holds NaN or infinity; expected finite numbers")
    return vectors


def _is_number(field: str) -> bool:
    """Whether `_parse_numbers` accepts a field."""
    try:
        pa.scalar(field).cast(pa.float32())
    except pa.ArrowInvalid:
        return False
    return True


def _put(table: Vectors, start: int, block: Vectors) -> None:
    """Writes the rows of a block; the table grows in place, by a quarter at a time."""
    end = start + len(block)
    if end > len(table):
        table.resize((max(end, len(table) * 5 // 4), table.shape[1]), refcheck=False)
    table[start:end] = block


class WordAverager:
    """Averages the vectors of a sentence's words."""

    name, is_unit = "words", False

    def __init__(self, table: WordTable) -> None:
        self.table, self.dimension = table, int(table.vectors.shape[1])
        self._known: dict[str, list[int]] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences; zeros for a sentence without a known word."""
        means: Vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        self._known.clear()
        for start in range(0, len(texts), BLOCK_SENTENCES):
            rows = [self.find_rows(text) for text in texts[start : start + BLOCK_SENTENCES]]
            counts = np.array([len(found) for found in rows])  # (b,)
            filled = np.flatnonzero(counts)
            if not len(filled):
                continue
            words = self.table.vectors[np.array([row for found in rows for row in found])]  # (words of the block, D)
            starts = np.concatenate([[0], np.cumsum(counts[filled])[:-1]])
            means[start + filled] = np.add.reduceat(words, starts, axis=0) / counts[filled, None]
        return means

    def find_rows(self, text: str) -> list[int]:
        """The rows of a sentence's words in the table, in order."""
        rows: list[int] = []
        for chunk in text.split():
            found = self._known.get(chunk)
            if found is None:
                found = self._known[chunk] = self._split_chunk(chunk)
            rows += found
        return rows

    def _split_chunk(self, chunk: str) -> list[int]:
        """The rows of the text between two spaces."""
        whole = self._row(chunk)
        if whole is not None:
            return [whole]
        rows: list[int] = []
        for piece in WORD_PATTERN.finditer(chunk):
            if piece["run"]:
                rows += self._longest_words(piece["run"])
            elif (row := self._row(piece[0])) is not None:
                rows.append(row)
        return rows

    def _longest_words(self, run: str) -> list[int]:
        """The rows of the words of a text without spaces, by greedy longest match."""
        rows, start = [], 0
        while start < len(run):
            ends = range(min(len(run), start + LONGEST_WORD), start, -1)
            end = next((end for end in ends if run[start:end] in self.table.rows), 0)
            if end:
                rows.append(self.table.rows[run[start:end]])
            start = end or start + 1
        return rows

    def _row(self, word: str) -> int | None:
        row = self.table.rows.get(word)
        return self.table.rows.get(word.lower()) if row is None else row


def open_words(name: str) -> Model:
    """Opens word vectors of any language, `FILE`, or of several languages, `en=FILE,zh=FILE`."""
    if Path(name).is_file():
        return average_words({ANY_LANGUAGE: read_word_table(Path(name))}, f"words:{name}")
    given = dict(part.partition("=")[::2] for part in name.split(","))
    for lang, file in given.items():
        if not lang or not Path(file).is_file():
            raise ModelError(f"words:{name}: no file {file or lang!r}; expected words:FILE or words:en=FILE,zh=FILE")
    return average_words({lang: read_word_table(Path(file)) for lang, file in given.items()}, f"words:{name}")


def average_words(tables: Mapping[str, WordTable], name: str) -> Model:
    """Makes a model of one table per language, or a single one under ANY_LANGUAGE; DataError if dimensions differ."""
    dimensions = {lang: table.vectors.shape[1] for lang, table in tables.items()}
    if len(set(dimensions.values())) > 1:
        given = ", ".join(f"{lang} {dimension}" for lang, dimension in dimensions.items())
        raise DataError(f"{name}: vectors of different dimension ({given}); expected tables that share a space")
    return assemble_model(Identity(name, _checksum(tables), "mean of words"), tables, WordAverager)


def _checksum(tables: Mapping[str, WordTable]) -> str:
    """The checksum of the files; of a single file for any language, that file's own."""
    if ANY_LANGUAGE not in tables:
        return files_sha256((lang, file) for lang, table in tables.items() for file in table.files)
    files = tables[ANY_LANGUAGE].files
    return file_sha256(files[0]) if len(files) == 1 else files_sha256((file.suffix, file) for file in files)
