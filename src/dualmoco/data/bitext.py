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
CORPUS = np.uint16


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs in memory, as Arrow strings, with the ids of their normalised texts."""

    src: pa.LargeStringArray
    tgt: pa.LargeStringArray
    src_ids: Ids
    tgt_ids: Ids
    corpus: np.ndarray  # (n,) of uint16: place in `corpora` of the corpus that each pair comes from
    corpora: tuple[str, ...]  # their names

    def __len__(self) -> int:
        return len(self.src_ids)

    @classmethod
    def from_texts(cls, pairs: Iterable[SentencePair]) -> Pairs:
        """Makes a corpus of (source, target) texts."""
        src, tgt = ([*side] for side in zip(*pairs, strict=True))
        return cls(_arrow(src), _arrow(tgt), sentence_ids(src), sentence_ids(tgt), *of_corpora(("", len(src))))

    @classmethod
    def concatenate(cls, parts: Sequence[Pairs]) -> Pairs:
        """The rows of at least one part after another; corpora of one name become one."""
        src, tgt = (pa.concat_arrays([getattr(part, side) for part in parts]) for side in ("src", "tgt"))
        src_ids, tgt_ids = (np.concatenate([getattr(part, side) for part in parts]) for side in ("src_ids", "tgt_ids"))
        names = list(dict.fromkeys(name for part in parts for name in part.corpora))
        places = [np.array([names.index(name) for name in part.corpora], dtype=CORPUS)[part.corpus] for part in parts]
        return cls(src, tgt, src_ids, tgt_ids, np.concatenate(places), tuple(names))

    def texts(self, rows: np.ndarray | slice = slice(None)) -> tuple[list[str], list[str]]:
        """The source and the target sentences of some rows."""
        rows = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return self.src.take(rows).to_pylist(), self.tgt.take(rows).to_pylist()

    def take(self, rows: np.ndarray) -> Pairs:
        """A corpus of some rows, in their order."""
        texts, ids = (self.src.take(rows), self.tgt.take(rows)), (self.src_ids[rows], self.tgt_ids[rows])
        return Pairs(*texts, *ids, self.corpus[rows], self.corpora)

    def digest(self) -> str:
        """A hash of all sentences and their order."""
        state = xxhash.xxh3_64(self.src_ids.tobytes())
        state.update(self.tgt_ids.tobytes())
        return str(state.hexdigest())


def of_corpora(*counts: tuple[str, int]) -> tuple[np.ndarray, tuple[str, ...]]:
    """`corpus` and `corpora` of pairs that lie corpus by corpus, given each one's name and number of pairs."""
    names = list(dict.fromkeys(name for name, _ in counts))
    places = np.array([names.index(name) for name, _ in counts], dtype=CORPUS)
    return np.repeat(places, [count for _, count in counts]), tuple(names)


def _arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, type=pa.large_string())
