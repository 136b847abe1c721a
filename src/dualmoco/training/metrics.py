"""Figures of merit over vectors.

Takes unit vectors, gives numbers to `training.py`. Shapes: n sentences, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_ROWS = 1024


class RetrievalAccuracy(NamedTuple):
    """Shares of sentences whose nearest neighbour in the other language is their translation."""

    src_to_tgt: float
    tgt_to_src: float

    @property
    def mean(self) -> float:
        """The average of both directions."""
        return (self.src_to_tgt + self.tgt_to_src) / 2


def retrieval_accuracy(src: Tensor, tgt: Tensor) -> RetrievalAccuracy:
    """How often the nearest neighbour is the translation, both ways, in memory that grows with n alone.

    Args:
        src: Unit vectors of shape (n, D).
        tgt: Unit vectors of shape (n, D), row i being the translation of source i.

    Returns:
        The shares from 0 to 1; of equal scores the first counts as nearest.
    """
    return RetrievalAccuracy(_nearest_is_same_row(src, tgt), _nearest_is_same_row(tgt, src))


def _nearest_is_same_row(queries: Tensor, candidates: Tensor) -> float:
    hits = 0
    for start in range(0, len(queries), BLOCK_ROWS):
        nearest = (queries[start : start + BLOCK_ROWS] @ candidates.T).argmax(dim=1)  # (block,)
        hits += int((nearest == torch.arange(start, start + len(nearest), device=nearest.device)).sum())
    return hits / len(queries)
