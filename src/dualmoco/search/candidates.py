"""Candidates for neighbours: the best rows seen so far, gathered tile by tile or block by block, in single precision.

Takes similarities, gives what `neighbors.rerank` scores exactly. Shapes: n rows, m rows of the other side, c
candidates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SPARE = 2  # candidates kept beyond the k neighbours wanted
UNSEEN = -2.0  # below every cosine


class Candidates:
    """The c best rows of the other side seen so far for each of n rows, in no guaranteed order among equals."""

    def __init__(self, scores: Tensor, ids: Tensor) -> None:
        self.scores, self.ids = scores, ids  # (n, c), scores descending

    @classmethod
    def empty(cls, rows: int, kept: int) -> Candidates:
        """None seen yet."""
        return cls(torch.full((rows, kept), UNSEEN), torch.zeros(rows, kept, dtype=torch.int64))

    def offer(self, rows: Tensor, scores: Tensor, ids: Tensor, *, axis: int = 0) -> None:
        """Takes a tile of similarities of some rows with some of the others.

        Most rows find nothing better in a tile than they have: only those that do are sorted.

        Args:
            rows: Which rows the tile is of, shape (r,).
            scores: The tile, (r, o) or (o, r).
            ids: Numbers of the others, shape (o,).
            axis: Of the tile, along which the rows lie.
        """
        across = 1 - axis
        improved = (scores.amax(dim=across) > self.scores[rows, -1]).nonzero()[:, 0]
        if len(improved):
            kept = min(self.scores.shape[1], len(ids))
            best, places = scores.index_select(axis, improved).topk(kept, dim=across)
            if axis:
                best, places = best.T, places.T
            self._keep(rows[improved], best, ids[places])

    def merge(self, other: Candidates) -> None:
        """Takes the candidates of the same rows among other rows of the other side."""
        self._keep(torch.arange(len(self.ids)), other.scores, other.ids)

    def union(self, other: Candidates) -> Candidates:
        """The c best candidates of either, for the same rows; a row of the other side counts once."""
        known = (other.ids[:, :, None] == self.ids[:, None, :]) & (self.scores[:, None, :] > UNSEEN)  # (n, c, c)
        fresh = torch.where(known.any(dim=2), UNSEEN, other.scores)
        both = Candidates(self.scores.clone(), self.ids.clone())
        both.merge(Candidates(fresh, other.ids))
        return both

    def transposed(self, count: int) -> Candidates:
        """What these candidates mean for the other side: for each of its rows, the c best that have found it.

        Args:
            count: Rows of the other side, m.

        Returns:
            Candidates (m, c).
        """
        seen, kept = self.scores > UNSEEN, self.ids.shape[1]
        finders, ids, scores = seen.nonzero()[:, 0].numpy(), self.ids[seen].numpy(), self.scores[seen].numpy()
        order = np.lexsort((finders, -scores, ids))
        finders, ids, scores = finders[order], ids[order], scores[order]
        place = np.arange(len(ids)) - np.searchsorted(ids, ids)  # 0 for the best that found a row, then 1 and so on
        best = place < kept
        others = Candidates.empty(count, kept)
        others.scores.numpy()[ids[best], place[best]] = scores[best]
        others.ids.numpy()[ids[best], place[best]] = finders[best]
        return others

    def _keep(self, rows: Tensor, scores: Tensor, ids: Tensor) -> None:
        scores = torch.cat([self.scores.index_select(0, rows), scores], dim=1)
        ids = torch.cat([self.ids.index_select(0, rows), ids], dim=1)
        best, order = scores.topk(self.scores.shape[1], dim=1)
        self.scores.index_copy_(0, rows, best)
        self.ids.index_copy_(0, rows, ids.gather(1, order))
