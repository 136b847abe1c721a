"""Word vectors as files: GloVe's and word2vec's text, fastText's `.vec`, packed or not, or an array beside its words.

Gives `wordvectors.py` a table: the words, each with the number of its row, and the rows (V, D).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WordTable:
    """Words and their vectors."""

    rows: dict[str, int]
    """The row of each word."""
    vectors: Vectors
    """Shape (V, D)."""
    files: tuple[Path, ...]
    """What they were read from."""


def read_word_table(path: Path) -> WordTable:
    """Reads word vectors.

    Args:
        path: A text file with a word and its numbers on each line, packed or not, with or without a first line that
            gives count and dimension; or a `.npy` file with its words in a `.txt` or `.parquet` file of the same stem.

    Returns:
        The table; of a word that comes twice the first vector counts.

    Raises:
        DataError: A file that is missing, empty or damaged, another dimension than that of the first line, or a value
            that is no finite number, with the number of the line.
    """
    if path.suffix == ".npy":
        beside = [path.with_suffix(ending) for ending in (".txt", ".parquet")]
        found = [file for file in beside if file.is_file()]
        if not found:
            raise DataError(f"{path}: no words beside it; expected {beside[0].name}, one a line, or {beside[1].name}")
        return read_array(path, found[0])
    return _read_text(path)


def read_array(vectors: Path, words: Path) -> WordTable:
    """Reads word vectors kept as an array.

    Args:
        vectors: A `.npy` file of shape (V, D).
        words: A text file with one word a line, or a `.parquet` file with the words in its first column.

    Returns:
        The table.

    Raises:
        DataError: A file that is missing or damaged, or another number of words than of vectors.
    """
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
        names, numbers = zip(*(_cut(path, at, line, dimension) for at, line in block), strict=True)
        _put(table, count, _parse(path, [at for at, _ in block], numbers, dimension))
        for name in names:
            words.setdefault(name, count)
            count += 1
    if not count:
        raise DataError(f"{path}: holds no word; expected a word and its numbers on every line")
    if promised is not None and promised != count:
        logger.warning("%s: its first line promises %s words, %s were read", path, f"{promised:,}", f"{count:,}")
    table.resize((count, dimension), refcheck=False)
    return WordTable(words, table, (path,))


def _blocks(lines: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Some thousand numbered lines at a time, without empty ones."""
    block = []
    for number, line in lines:
        if line := line.rstrip(" "):
            block.append((number, line))
        if len(block) == BLOCK_LINES:
            yield block
            block = []
    if block:
        yield block


def _cut(path: Path, number: int, line: str, dimension: int) -> tuple[str, str]:
    """A line's word, which may hold spaces, and its numbers, still as one text."""
    if line.count(" ") == dimension:
        word, _, numbers = line.partition(" ")
        return word, numbers
    word, *fields = line.rsplit(" ", dimension)
    if len(fields) < dimension or _is_number(word.rpartition(" ")[2]):
        found = len(line.split(" ")) - 1
        raise DataError(f"{path}:{number}: {found} numbers; expected a word and {dimension}, as on the first line")
    return word, " ".join(fields)


def _parse(path: Path, places: list[int], numbers: tuple[str, ...], dimension: int) -> Vectors:
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
    """Whether the reader of `_parse` takes a field."""
    try:
        pa.scalar(field).cast(pa.float32())
    except pa.ArrowInvalid:
        return False
    return True


def _put(table: Vectors, start: int, block: Vectors) -> None:
    """Writes a block's rows, for which the table grows in place, a quarter at a time, if it has to."""
    end = start + len(block)
    if end > len(table):
        table.resize((max(end, len(table) * 5 // 4), table.shape[1]), refcheck=False)
    table[start:end] = block


LONGEST = 8  # characters of a word in text without spaces
BLOCK_SENTENCES = 512
UNSPACED = "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
UNSPACED += "\U00020000-\U0003ffff"
"""Thai, Lao, Tibetan, Burmese, Khmer, Kana and Han."""
PIECES = re.compile(
    rf"(?P<run>[{UNSPACED}]+)"
    r"|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b"  # English contractions, as the Penn treebank cuts them
    rf"|[^\W{UNSPACED}]+|[^\w\s]",
    re.IGNORECASE,
)


class WordAverager:
    """The mean of the vectors of a sentence's words."""

    name, is_unit = "words", False

    def __init__(self, table: WordTable) -> None:
        self.table = table
        self._known: dict[str, list[int]] = {}

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.table.vectors.shape[1])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The vectors (n, D) of sentences; zeros for a sentence without a known word."""
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
        """The rows of the table that a sentence's words have, in their order."""
        rows: list[int] = []
        for chunk in text.split():
            found = self._known.get(chunk)
            if found is None:
                found = self._known[chunk] = self._cut(chunk)
            rows += found
        return rows

    def _cut(self, chunk: str) -> list[int]:
        """The rows of what stands between two spaces."""
        whole = self._row(chunk)
        if whole is not None:
            return [whole]
        rows: list[int] = []
        for piece in PIECES.finditer(chunk):
            if piece["run"]:
                rows += self._longest_words(piece["run"])
            elif (row := self._row(piece[0])) is not None:
                rows.append(row)
        return rows

    def _longest_words(self, run: str) -> list[int]:
        """The rows of the words of a text without spaces, each as long as the table allows."""
        rows, start = [], 0
        while start < len(run):
            ends = range(min(len(run), start + LONGEST), start, -1)
            end = next((end for end in ends if run[start:end] in self.table.rows), 0)
            if end:
                rows.append(self.table.rows[run[start:end]])
            start = end or start + 1
        return rows

    def _row(self, word: str) -> int | None:
        row = self.table.rows.get(word)
        return self.table.rows.get(word.lower()) if row is None else row


def open_words(name: str) -> Model:
    """Opens word vectors.

    Args:
        name: A file for text of any language, or one for each language: `en=FILE,zh=FILE`.

    Returns:
        The model.

    Raises:
        ModelError: Neither a file nor a list of languages and files.
        DataError: A file that cannot be read as word vectors, or files of different dimension.
    """
    if Path(name).is_file():
        return average_words({ANY_LANGUAGE: read_word_table(Path(name))}, f"words:{name}")
    given = dict(part.partition("=")[::2] for part in name.split(","))
    for lang, file in given.items():
        if not lang or not Path(file).is_file():
            raise ModelError(f"words:{name}: no file {file or lang!r}; expected words:FILE or words:en=FILE,zh=FILE")
    return average_words({lang: read_word_table(Path(file)) for lang, file in given.items()}, f"words:{name}")


def average_words(tables: Mapping[str, WordTable], name: str) -> Model:
    """Makes a model of tables that are read.

    Args:
        tables: One for each language, or one alone under ANY_LANGUAGE.
        name: What to call it in results.

    Returns:
        The model.

    Raises:
        DataError: Tables of different dimension.
    """
    dimensions = {lang: table.vectors.shape[1] for lang, table in tables.items()}
    if len(set(dimensions.values())) > 1:
        given = ", ".join(f"{lang} {dimension}" for lang, dimension in dimensions.items())
        raise DataError(f"{name}: vectors of different dimension ({given}); expected tables that share a space")
    return assemble_model(Identity(name, _checksum(tables), "mean of words"), tables, WordAverager)


def _checksum(tables: Mapping[str, WordTable]) -> str:
    """Of the files; of a table for any language that is one file, that file's own."""
    if ANY_LANGUAGE not in tables:
        return files_sha256((lang, file) for lang, table in tables.items() for file in table.files)
    files = tables[ANY_LANGUAGE].files
    return file_sha256(files[0]) if len(files) == 1 else files_sha256((file.suffix, file) for file in files)
