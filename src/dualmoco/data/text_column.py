"""Some thousand sentence pairs as one array of code points: what cleaning works on.

Readers make blocks of raw text, `rewriting.py` changes their sentences, `dropping.py` removes pairs, `prepare.py`
writes what is left.
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


Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]  # lengths and places
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]  # of rows or of code points


@dataclass(frozen=True)
class TextColumn:
    """The sentences of one language: row i is `codes[starts[i]:ends[i]]`."""

    codes: Codes
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> TextColumn:
        """Makes a side of sentences."""
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        ends = np.cumsum(lengths)
        return cls(to_codes("".join(texts)), ends - lengths, ends)

    @property
    def lengths(self) -> Ints:
        """Characters of each row."""
        return self.ends - self.starts

    def texts(self) -> list[str]:
        """The sentences as strings."""
        side = self.compact()
        text = to_text(side.codes)
        return [text[start:end] for start, end in zip(side.starts.tolist(), side.ends.tolist(), strict=True)]

    def take(self, rows: np.ndarray) -> TextColumn:
        """Some rows, given by number or by a mask."""
        return TextColumn(self.codes, self.starts[rows], self.ends[rows])

    def replace(self, rows: np.ndarray, texts: Sequence[str]) -> TextColumn:
        """The side with new sentences in some rows, given by number."""
        new = TextColumn.from_texts(texts)
        starts, ends = self.starts.copy(), self.ends.copy()
        starts[rows], ends[rows] = new.starts + len(self.codes), new.ends + len(self.codes)
        return TextColumn(np.concatenate([self.codes, new.codes]), starts, ends)

    def blank(self) -> Mask:
        """Mask of the rows that are empty or only white space."""
        spaces = (self.codes == ord(" ")) | ((lookup(character_kinds(), self.codes) & SPACE) != 0)
        return np.asarray(self.count(~spaces) == 0)

    def count(self, holds: Mask) -> Ints:
        """How many characters of each row belong to a set.

        Args:
            holds: For each code point of `codes`, whether it does.

        Returns:
            Counts of shape (rows,).
        """
        before = np.zeros(len(holds) + 1, dtype=np.int64)
        np.cumsum(holds, out=before[1:])
        counts: Ints = before[self.ends] - before[self.starts]
        return counts

    def compact(self) -> TextColumn:
        """The same rows without code points that belong to none."""
        lengths = self.lengths
        ends = np.cumsum(lengths)
        if len(ends) and ends[-1] == len(self.codes) and (self.starts == ends - lengths).all():
            return self
        gather = np.repeat(self.starts - (ends - lengths), lengths) + np.arange(lengths.sum())
        return TextColumn(self.codes[gather], ends - lengths, ends)

    def fold(self) -> TextColumn:
        """The rows as `normalize` leaves them."""
        side = self.compact()
        folded = lookup(folded_characters(), side.codes)
        kept = folded != 0
        lengths = side.count(kept)
        odd = np.flatnonzero((lengths == 0) | (side.count(folded == REWRITTEN) > 0))
        ends = np.cumsum(lengths)
        plain = TextColumn(folded[kept], ends - lengths, ends)
        return plain.replace(odd, [normalize(text) for text in side.take(odd).texts()]).compact() if len(odd) else plain

    def ids(self) -> Ids:
        """A 64-bit id for each row, equal for sentences that `normalize` makes equal."""
        return hash_rows(self.fold())

    def to_arrow(self) -> pa.LargeStringArray:
        """The rows as Arrow strings."""
        arrow = require("pyarrow", "data", "Arrow")
        side = self.compact()
        encoded = to_text(side.codes).encode("utf-8", "surrogatepass")
        widths = 1 + (side.codes > 0x7F).astype(np.int64) + (side.codes > 0x7FF) + (side.codes > 0xFFFF)
        before = np.zeros(len(side.codes) + 1, dtype=np.int64)
        np.cumsum(widths, out=before[1:])
        offsets = before[np.append(side.starts, side.ends[-1:])] if len(side) else np.zeros(1, dtype=np.int64)
        return arrow.LargeStringArray.from_buffers(len(side), arrow.py_buffer(offsets), arrow.py_buffer(encoded))


@dataclass(frozen=True)
class PairBlock:
    """Sentence pairs: row i of both sides, and where it was read."""

    src: TextColumn
    tgt: TextColumn
    lines: Ints

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: np.ndarray) -> PairBlock:
        """Some rows, given by number or by a mask."""
        return PairBlock(self.src.take(rows), self.tgt.take(rows), self.lines[rows])


def hash_rows(folded: TextColumn) -> Ids:
    """A 64-bit id for each row of a folded side."""
    data = memoryview(folded.codes.astype("<u4", copy=False).tobytes())
    digest = xxhash.xxh3_64_intdigest
    bounds = zip((4 * folded.starts).tolist(), (4 * folded.ends).tolist(), strict=True)
    return np.array([digest(data[start:end]) for start, end in bounds], dtype=np.uint64).view(np.int64)


def sentence_ids(sentences: Iterable[str]) -> Ids:
    """A 64-bit id for each sentence, equal for sentences that `normalize` makes equal."""
    return TextColumn.from_texts(list(sentences)).ids()


def lookup(table: np.ndarray, codes: Codes) -> np.ndarray:
    """The entries of a table over code points; those above LAST_CODE share its last entry."""
    return table[np.minimum(codes, LAST_CODE + 1)]


def to_codes(text: str) -> Codes:
    """The code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def to_text(codes: Codes) -> str:
    """The text of some code points."""
    return codes.astype("<u4", copy=False).tobytes().decode("utf-32-le", "surrogatepass")
