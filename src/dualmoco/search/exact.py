"""Exact nearest neighbours by cosine.

Similarities are computed in single precision, tile by tile, and the best candidates of every row are kept. `rerank`
then scores the candidates in double precision, so that results do not depend on tiles, blocks or threads. Shapes: n
rows or queries, m rows of the other side or keys, D dimension, k neighbours, c candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualmoco.core.errors import DataError
from dualmoco.core.progress import Progress
from dualmoco.core.vectors import Floats, Ids, VectorRows, Vectors

SPARE = 2  # candidates kept in addition to the k neighbours
UNSEEN = -2.0  # score of an empty place, below every cosine
COSINE_PLACES = 6  # decimal places of a similarity; equal ones are ordered by row number
TILE = (1024, 1024)  # rows and columns of similarities in the cache at once
RESCORED_ROWS = 1024
KEYS_AT_ONCE = 8192
UNSURE_ROWS = 256
PAIRS_AT_ONCE = 32_768


@dataclass(frozen=True)
class Neighbors:
    """The k nearest rows of the other side for every row, nearest first."""

    ids: Ids  # (n, k)
    scores: Floats  # (n, k) cosines, rounded to COSINE_PLACES

    @property
    def mean(self) -> Floats:
        """Mean cosine of a row with its neighbours, shape (n,)."""
        means: Floats = self.scores.mean(axis=1)
        return means

    @property
    def found_translations(self) -> np.ndarray:
        """Whether the nearest neighbour has the row's own number, as translations in aligned texts have, shape (n,)."""
        return np.asarray(self.ids[:, 0] == np.arange(len(self.ids)))

    @classmethod
    def concatenate(cls, parts: Sequence[Neighbors]) -> Neighbors:
        """The neighbours of several runs of rows, one after the other."""
        return cls(np.concatenate([near.ids for near in parts]), np.concatenate([near.scores for near in parts]))


def nearest_both_ways(
    src: VectorRows, tgt: VectorRows, k: int, *, tile: tuple[int, int] = TILE, progress: Progress | None = None
) -> tuple[Neighbors, Neighbors]:
    """Neighbours (n, k) of the sources among the targets, and (m, k) of the targets among the sources.

    Vectors may be on disk. `tile` (rows and columns scored at once) changes the speed, never the result.
    """
    src_found, tgt_found = scan(src, tgt, slice(0, len(src)), slice(0, len(tgt)), k, tile=tile, progress=progress)
    return rerank(src_found, src, tgt, k), rerank(tgt_found, tgt, src, k)


def nearest(
    queries: VectorRows, keys: VectorRows, k: int, *, tile: tuple[int, int] = TILE, progress: Progress | None = None
) -> Neighbors:
    """Neighbours of every query among the keys; see `nearest_both_ways` for the arguments."""
    best = Candidates.empty(len(queries), min(k + SPARE, len(keys)))
    everything = slice(0, len(queries)), slice(0, len(keys))
    for rows, columns, scores in _tiles(queries, keys, *everything, tile, progress):
        best.offer(rows, scores, columns)
    return rerank(best, queries, keys, k)


def scan(
    src: VectorRows,
    tgt: VectorRows,
    rows: slice,
    columns: slice,
    k: int,
    *,
    tile: tuple[int, int] = TILE,
    progress: Progress | None = None,
) -> tuple[Candidates, Candidates]:
    """Candidates of a block of sources and of a block of targets; blocks can be scanned anywhere and then merged."""
    src_found = Candidates.empty(rows.stop - rows.start, min(k + SPARE, len(tgt)))
    tgt_found = Candidates.empty(columns.stop - columns.start, min(k + SPARE, len(src)))
    for above, across, scores in _tiles(src, tgt, rows, columns, tile, progress):
        src_found.offer(above - rows.start, scores, across)
        tgt_found.offer(across - columns.start, scores, above, axis=1)
    return src_found, tgt_found


def rerank(candidates: Candidates, queries: VectorRows, keys: VectorRows, k: int, *, exact: bool = True) -> Neighbors:
    """The k nearest keys of every query: scores its candidates in double precision, orders them by score and number.

    `exact` searches again if the last candidate is so close that a dropped one may belong to the k nearest.
    """
    k = min(k, len(keys))
    ids, rough = candidates.ids.numpy(), candidates.scores.numpy()
    scores = np.empty(ids.shape, dtype=np.float64)
    for start in range(0, len(ids), RESCORED_ROWS):
        rows = slice(start, start + RESCORED_ROWS)
        scores[rows] = np.einsum("nd,ncd->nc", queries[rows], keys[ids[rows]], dtype=np.float64)
    if np.isnan(scores).any():
        raise DataError("vectors hold NaN, so that they are not of length 1; encode them again")
    scores = np.where(rough > UNSEEN, scores.round(COSINE_PLACES), -np.inf)
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    found = Neighbors(np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1))
    if exact and ids.shape[1] < len(keys):
        floor = found.scores[:, -1] - _tolerance(queries.shape[1])
        unsure = np.flatnonzero(rough[:, -1] >= floor)
        for start in range(0, len(unsure), UNSURE_ROWS):
            rows_again = unsure[start : start + UNSURE_ROWS]
            found.ids[rows_again], found.scores[rows_again] = _search_exactly(
                queries[rows_again], keys, k, floor[rows_again]
            )
    return found


def _search_exactly(queries: Vectors, keys: VectorRows, k: int, floor: Floats) -> tuple[Ids, Floats]:
    """The k nearest keys of a few queries (q, D), all of which score above the query's floor."""
    row: Ids = np.empty(0, dtype=np.int64)
    key: Ids = np.empty(0, dtype=np.int64)
    score: Floats = np.empty(0, dtype=np.float64)
    for start in range(0, len(keys), KEYS_AT_ONCE):
        block = keys[start : start + KEYS_AT_ONCE]
        above = torch.mm(as_tensor(queries), as_tensor(block).T).numpy() >= floor[:, None]  # (q, block)
        some = _rescored(queries, block, above) if above.sum() <= PAIRS_AT_ONCE else _best_of_ties(queries, block, k)
        row, key = np.concatenate([row, some[0]]), np.concatenate([key, some[1] + start])
        score = np.concatenate([score, some[2]])
        order = np.lexsort((key, -score, row))
        rank = np.arange(len(row)) - np.searchsorted(row[order], row[order])  # among the keys of its query
        best = order[rank < k]
        row, key, score = row[best], key[best], score[best]
    return key.reshape(-1, k), score.reshape(-1, k)


def _rescored(queries: Vectors, keys: Vectors, chosen: np.ndarray) -> tuple[Ids, Ids, Floats]:
    """Rows, keys and rounded cosines of the pairs that a mask (q, b) selects."""
    row, key = np.nonzero(chosen)
    scores: Floats = np.einsum("pd,pd->p", queries[row], keys[key], dtype=np.float64)
    return row, key, scores.round(COSINE_PLACES)


def _best_of_ties(queries: Vectors, keys: Vectors, k: int) -> tuple[Ids, Ids, Floats]:
    """The k best keys (b, D) of each query (q, D), if too many are close to list them; the first among equal ones."""
    scores = (queries.astype(np.float64) @ keys.astype(np.float64).T).round(COSINE_PLACES)  # (q, b)
    last = max(0, scores.shape[1] - k)
    lowest = np.partition(scores, last, axis=1)[:, last, None]  # (q, 1) the k-th best
    above, equal = scores > lowest, scores == lowest
    first = np.cumsum(equal, axis=1) <= k - above.sum(axis=1, keepdims=True)
    row, key = np.nonzero(above | (equal & first))
    return row, key, scores[row, key]


def _tiles(
    src: VectorRows, tgt: VectorRows, rows: slice, columns: slice, tile: tuple[int, int], progress: Progress | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields row numbers, column numbers and their similarities, in a buffer that the next tile overwrites."""
    room = torch.empty(tile[0] * tile[1])
    for top in range(rows.start, rows.stop, tile[0]):
        queries = as_tensor(src[top : min(top + tile[0], rows.stop)])
        above = torch.arange(top, top + len(queries))
        for left in range(columns.start, columns.stop, tile[1]):
            keys = as_tensor(tgt[left : min(left + tile[1], columns.stop)])
            scores = room[: len(queries) * len(keys)].view(len(queries), len(keys))
            torch.mm(queries, keys.T, out=scores)
            yield above, torch.arange(left, left + len(keys)), scores
        if progress:
            progress(len(queries))


def _tolerance(dimension: int) -> float:
    """Upper bound of the rounding error of a cosine: D products in single precision, and decimal places."""
    return 2 * dimension * 2.0**-24 + 10.0**-COSINE_PLACES


def as_tensor(array: Vectors) -> Tensor:
    """Vectors as a tensor of single precision, without a copy if possible."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


class Candidates:
    """The c best rows of the other side seen so far for each of n rows; the order among equals is not defined."""

    def __init__(self, scores: Tensor, ids: Tensor) -> None:
        self.scores, self.ids = scores, ids  # (n, c), scores descending

    @classmethod
    def empty(cls, rows: int, kept: int) -> Candidates:
        """Candidates before anything was seen."""
        return cls(torch.full((rows, kept), UNSEEN), torch.zeros(rows, kept, dtype=torch.int64))

    def offer(self, rows: Tensor, scores: Tensor, ids: Tensor, *, axis: int = 0) -> None:
        """Adds a tile of similarities, its rows along `axis`; only rows that find something better are sorted."""
        across = 1 - axis
        improved = (scores.amax(dim=across) > self.scores[rows, -1]).nonzero()[:, 0]
        if len(improved):
            kept = min(self.scores.shape[1], len(ids))
            best, places = scores.index_select(axis, improved).topk(kept, dim=across)
            if axis:
                best, places = best.T, places.T
            self._keep(rows[improved], best, ids[places])

    def merge(self, other: Candidates) -> None:
        """Adds candidates of the same rows among other rows of the other side."""
        self._keep(torch.arange(len(self.ids)), other.scores, other.ids)

    def union(self, other: Candidates) -> Candidates:
        """The c best candidates of both, for the same rows; a row of the other side counts once."""
        known = (other.ids[:, :, None] == self.ids[:, None, :]) & (self.scores[:, None, :] > UNSEEN)  # (n, c, c)
        fresh = torch.where(known.any(dim=2), UNSEEN, other.scores)
        both = Candidates(self.scores.clone(), self.ids.clone())
        both.merge(Candidates(fresh, other.ids))
        return both

    def transposed(self, count: int) -> Candidates:
        """Candidates (m, c) of the other side's `count` rows: for each, the c best rows that have found it."""
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
