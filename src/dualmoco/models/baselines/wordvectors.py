"""Averaged word vectors as a model: the baseline that every sentence encoder has to beat.

Text is cut at spaces. What is not a word of the table as written or in lower case is cut into words and punctuation;
text without spaces, such as Chinese, into the longest words of the table from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Vectors
from dualmoco.models.baselines.wordtable import WordTable, read_word_table
from dualmoco.models.folder import files_sha256
from dualmoco.models.model import ANY_LANGUAGE, Identity, Model, assemble_model

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
