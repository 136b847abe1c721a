"""Sentence pairs as training takes them: Arrow strings, in memory or mapped from disk, with ids.

`pairs.py` reads raw files into them, `prepared.py` opens what `dualmoco prepare` made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from dualmoco.core.vectors import Ids
from dualmoco.data.block import sentence_ids

SentencePair = tuple[str, str]


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs in memory, as Arrow strings, with the ids of their normalised texts."""

    src: pa.LargeStringArray
    tgt: pa.LargeStringArray
    src_ids: Ids
    tgt_ids: Ids

    def __len__(self) -> int:
        return len(self.src_ids)

    @classmethod
    def from_texts(cls, pairs: Iterable[SentencePair]) -> Pairs:
        """Makes a corpus of (source, target) texts."""
        src, tgt = ([*side] for side in zip(*pairs, strict=True))
        return cls(_arrow(src), _arrow(tgt), sentence_ids(src), sentence_ids(tgt))

    @classmethod
    def concatenate(cls, parts: Sequence[Pairs]) -> Pairs:
        """The rows of at least one corpus after another."""
        src, tgt = (pa.concat_arrays([getattr(part, side) for part in parts]) for side in ("src", "tgt"))
        src_ids, tgt_ids = (np.concatenate([getattr(part, side) for part in parts]) for side in ("src_ids", "tgt_ids"))
        return cls(src, tgt, src_ids, tgt_ids)

    def texts(self, rows: np.ndarray | slice = slice(None)) -> tuple[list[str], list[str]]:
        """The source and the target sentences of some rows."""
        rows = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return self.src.take(rows).to_pylist(), self.tgt.take(rows).to_pylist()

    def take(self, rows: np.ndarray) -> Pairs:
        """A corpus of some rows, in their order."""
        return Pairs(self.src.take(rows), self.tgt.take(rows), self.src_ids[rows], self.tgt_ids[rows])

    def digest(self) -> str:
        """A hash of all sentences and their order."""
        state = xxhash.xxh3_64(self.src_ids.tobytes())
        state.update(self.tgt_ids.tobytes())
        return str(state.hexdigest())


def _arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, type=pa.large_string())
