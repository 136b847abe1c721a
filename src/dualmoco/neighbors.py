"""Exact nearest neighbours among unit vectors, in both directions from one pass over similarity tiles.

Takes two arrays, gives `Neighbors` to `mining.py` and `evaluation/`. Tiles are scored in single precision and keep a
few candidates more than asked for; those are scored again in double precision, so that results do not depend on the
size of the tiles. Shapes: n sources, m targets, D width, k neighbours, c = k + SPARE candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualmoco.vectors import Vectors

SPARE = 2
TILE = (1024, 1024)  # rows and columns of similarities in the cache at once
PLACES = 6  # decimal places of a similarity; beyond them the lower row number comes first
RESCORED_ROWS = 1024
UNSEEN = -2.0  # below every cosine
Tell = Callable[[int], object]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ids = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Neighbors:
    """The k nearest rows of the other side for every row of this one, the nearest first."""

    ids: Ids  # (n, k)
    scores: Floats  # (n, k) cosines, rounded to PLACES

    @property
    def mean(self) -> Floats:
        """The average cosine of a row's neighbours, shape (n,)."""
        means: Floats = self.scores.mean(axis=1)
        return means


def nearest_both_ways(
    src: Vectors, tgt: Vectors, k: int, *, tile: tuple[int, int] = TILE, tell: Tell | None = None
) -> tuple[Neighbors, Neighbors]:
    """Neighbours of every source among the targets and of every target among the sources.

    Args:
        src: Unit vectors (n, D), in memory or memory-mapped.
        tgt: Unit vectors (m, D).
        k: How many neighbours; fewer where the other side has fewer rows.
        tile: Rows and columns scored at once; changes speed, never the result.
        tell: Is told how many sources are done, after each block of them.

    Returns:
        Neighbours of the sources, (n, k), and of the targets, (m, k).
    """
    forward, backward = _Best(len(src), len(tgt), k), _Best(len(tgt), len(src), k)
    for rows, columns, scores in _tiles(src, tgt, tile, tell):
        forward.offer(rows, scores, columns.start)
        backward.offer(columns, scores.T, rows.start)
    return forward.settle(src, tgt, k), backward.settle(tgt, src, k)


def nearest(
    queries: Vectors,
    keys: Vectors,
    k: int,
    *,
    tile: tuple[int, int] = TILE,
    tell: Tell | None = None,
) -> Neighbors:
    """Neighbours of every query among the keys; arguments as in `nearest_both_ways`."""
    best = _Best(len(queries), len(keys), k)
    for rows, columns, scores in _tiles(queries, keys, tile, tell):
        best.offer(rows, scores, columns.start)
    return best.settle(queries, keys, k)


def _tiles(
    src: Vectors, tgt: Vectors, tile: tuple[int, int], tell: Tell | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yields similarities (rows, columns) and which rows and columns they are of; each overwrites the one before."""
    room = torch.empty(tile[0] * tile[1])
    for top in range(0, len(src), tile[0]):
        queries = _tensor(src[top : top + tile[0]])
        for left in range(0, len(tgt), tile[1]):
            keys = _tensor(tgt[left : left + tile[1]])
            scores = room[: len(queries) * len(keys)].view(len(queries), len(keys))
            torch.mm(queries, keys.T, out=scores)
            yield slice(top, top + len(queries)), slice(left, left + len(keys)), scores
        if tell:
            tell(len(queries))


class _Best:
    """The c best candidates seen so far for each of n rows, and what is made of them in the end."""

    def __init__(self, rows: int, others: int, k: int) -> None:
        self.others = others
        self.kept = min(k + SPARE, others)
        self.scores = torch.full((rows, self.kept), UNSEEN)  # (n, c), falling
        self.ids = torch.zeros(rows, self.kept, dtype=torch.int64)  # (n, c)

    def offer(self, rows: slice, scores: Tensor, first_id: int) -> None:
        """Takes similarities (rows, columns) of some rows with the others from `first_id` on.

        Most rows find nothing better in a tile than they have: only those that do are sorted.
        """
        improved = (scores.amax(dim=1) > self.scores[rows, -1]).nonzero()[:, 0]
        if not len(improved):
            return
        candidates, places = scores[improved].topk(min(self.kept, scores.shape[1]), dim=1)
        changed = improved + rows.start
        together = torch.cat([self.scores[changed], candidates], dim=1)
        ids = torch.cat([self.ids[changed], places + first_id], dim=1)
        self.scores[changed], order = together.topk(self.kept, dim=1)
        self.ids[changed] = ids.gather(1, order)

    def settle(self, queries: Vectors, keys: Vectors, k: int) -> Neighbors:
        """Scores the candidates in double precision and orders them by score, then by number."""
        k = min(k, self.others)
        ids, rough = self.ids.numpy(), self.scores.numpy()
        scores = np.empty(ids.shape, dtype=np.float64)
        for start in range(0, len(ids), RESCORED_ROWS):
            rows = slice(start, start + RESCORED_ROWS)
            scores[rows] = np.einsum("nd,ncd->nc", queries[rows], keys[ids[rows]], dtype=np.float64)
        scores = scores.round(PLACES)
        order = np.lexsort((ids, -scores), axis=1)[:, :k]
        found = Neighbors(np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1))
        if self.kept < self.others:
            floor = found.scores[:, -1] - _tolerance(queries.shape[1])  # what might, exactly, be among the k
            for row in np.flatnonzero(rough[:, -1] >= floor).tolist():
                found.ids[row], found.scores[row] = _search_exactly(queries[row], keys, k, floor[row])
        return found


def _search_exactly(query: Vectors, keys: Vectors, k: int, floor: float) -> tuple[Ids, Floats]:
    """Neighbours of one query whose candidates were too close to be sure none is missing."""
    rough = torch.mv(_tensor(keys), _tensor(query)).numpy()  # (m,)
    ids = np.flatnonzero(rough >= floor)
    scores = np.einsum("d,cd->c", query, keys[ids], dtype=np.float64).round(PLACES)
    order = np.lexsort((ids, -scores))[:k]
    return ids[order], scores[order]


def _tolerance(width: int) -> float:
    """More than rounding can change a cosine: of single-precision sums of D products, and to PLACES."""
    return 2 * width * 2.0**-24 + 10.0**-PLACES


def _tensor(array: Vectors) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
