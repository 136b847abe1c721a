"""A few thousand sentences or sentence pairs as one array of code points, on which numpy can work at once.

Readers make a `PairBlock` of raw text, `filters.py` cleans it, and `prepare.py` and `pairs.py` keep the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dualmoco.core.errors import require
from dualmoco.core.vectors import Ids
from dualmoco.text.characters import LAST_CODE, REWRITTEN, SPACE, Codes, character_kinds, folded_characters, normalize

if TYPE_CHECKING:
    import pyarrow as pa


Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]  # lengths and positions
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]  # over rows or code points


@dataclass(frozen=True)
class TextColumn:
    """Sentences of one language: row i is `codes[starts[i]:ends[i]]`."""

    codes: Codes
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> TextColumn:
        """Makes a column of strings."""
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        ends = np.cumsum(lengths)
        return cls(to_codes("".join(texts)), ends - lengths, ends)

    @property
    def lengths(self) -> Ints:
        """Characters of each row."""
        return self.ends - self.starts

    def texts(self) -> list[str]:
        """The rows as strings."""
        column = self.compact()
        text = to_text(column.codes)
        return [text[start:end] for start, end in zip(column.starts.tolist(), column.ends.tolist(), strict=True)]

    def take(self, rows: np.ndarray) -> TextColumn:
        """Some rows, given by number or by a mask."""
        return TextColumn(self.codes, self.starts[rows], self.ends[rows])

    def replace(self, rows: np.ndarray, texts: Sequence[str]) -> TextColumn:
        """The column with new sentences in some rows, given by number."""
        new = TextColumn.from_texts(texts)
        starts, ends = self.starts.copy(), self.ends.copy()
        starts[rows], ends[rows] = new.starts + len(self.codes), new.ends + len(self.codes)
        return TextColumn(np.concatenate([self.codes, new.codes]), starts, ends)

    def blank(self) -> Mask:
        """Whether each row is empty or only white space."""
        spaces = (self.codes == ord(" ")) | ((lookup(character_kinds(), self.codes) & SPACE) != 0)
        return np.asarray(self.count(~spaces) == 0)

    def count(self, holds: Mask) -> Ints:
        """How many characters of each row are marked in a mask over `codes`."""
        before = np.zeros(len(holds) + 1, dtype=np.int64)
        np.cumsum(holds, out=before[1:])
        counts: Ints = before[self.ends] - before[self.starts]
        return counts

    def compact(self) -> TextColumn:
        """The same rows in a column without gaps: each row starts where the one before it ends."""
        lengths = self.lengths
        ends = np.cumsum(lengths)
        if len(ends) and ends[-1] == len(self.codes) and (self.starts == ends - lengths).all():
            return self
        gather = np.repeat(self.starts - (ends - lengths), lengths) + np.arange(lengths.sum())
        return TextColumn(self.codes[gather], ends - lengths, ends)

    def fold(self) -> TextColumn:
        """The rows after `normalize`."""
        column = self.compact()
        folded = lookup(folded_characters(), column.codes)
        kept = folded != 0
        lengths = column.count(kept)
        odd = np.flatnonzero((lengths == 0) | (column.count(folded == REWRITTEN) > 0))
        ends = np.cumsum(lengths)
        plain = TextColumn(folded[kept], ends - lengths, ends)
        if not len(odd):
            return plain
        return plain.replace(odd, [normalize(text) for text in column.take(odd).texts()]).compact()

    def ids(self) -> Ids:
        """A 64-bit id for each row, equal for rows that are equal after `normalize`."""
        return hash_rows(self.fold())

    def to_arrow(self) -> pa.LargeStringArray:
        """The rows as Arrow strings."""
        arrow = require("pyarrow", "data", "Arrow")
        column = self.compact()
        encoded = to_text(column.codes).encode("utf-8", "surrogatepass")
        widths = 1 + (column.codes > 0x7F).astype(np.int64) + (column.codes > 0x7FF) + (column.codes > 0xFFFF)
        before = np.zeros(len(column.codes) + 1, dtype=np.int64)
        np.cumsum(widths, out=before[1:])
        offsets = before[np.append(column.starts, column.ends[-1:])] if len(column) else np.zeros(1, dtype=np.int64)
        return arrow.LargeStringArray.from_buffers(len(column), arrow.py_buffer(offsets), arrow.py_buffer(encoded))


@dataclass(frozen=True)
class PairBlock:
    """Sentence pairs: row i of both sides, and the number of its line."""

    src: TextColumn
    tgt: TextColumn
    lines: Ints

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: np.ndarray) -> PairBlock:
        """Some rows, given by number or by a mask."""
        return PairBlock(self.src.take(rows), self.tgt.take(rows), self.lines[rows])


def hash_rows(column: TextColumn) -> Ids:
    """A 64-bit hash of each row."""
    data = memoryview(column.codes.astype("<u4", copy=False).tobytes())
    digest = xxhash.xxh3_64_intdigest
    bounds = zip((4 * column.starts).tolist(), (4 * column.ends).tolist(), strict=True)
    return np.array([digest(data[start:end]) for start, end in bounds], dtype=np.uint64).view(np.int64)


def sentence_ids(sentences: Iterable[str]) -> Ids:
    """A 64-bit id for each sentence, equal for sentences that are equal after `normalize`."""
    return TextColumn.from_texts(list(sentences)).ids()


def combine_ids(src: Ids, tgt: Ids) -> Ids:
    """One 64-bit id for each pair of ids."""
    one, other = src.view(np.uint64), tgt.view(np.uint64)
    first, second = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
    mixed: np.ndarray = one * first + (other ^ (other >> np.uint64(31))) * second
    mixed = (mixed ^ (mixed >> np.uint64(32))) * second
    ids: Ids = (mixed ^ (mixed >> np.uint64(32))).view(np.int64)
    return ids


def lookup(table: np.ndarray, codes: Codes) -> np.ndarray:
    """The entries of a table over code points (see `text/characters.py`)."""
    return table[np.minimum(codes, LAST_CODE + 1)]


def to_codes(text: str) -> Codes:
    """The code points of a string."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def to_text(codes: Codes) -> str:
    """The string of some code points."""
    return codes.astype("<u4", copy=False).tobytes().decode("utf-32-le", "surrogatepass")
