"""Exact nearest neighbours by cosine.

Similarities are computed in single precision, tile by tile, one tile per thread. A tile is read once to find the maxima
of its small cells. A cell is read again only if its maximum exceeds the lowest candidate of one of its rows, so few
numbers are compared or sorted. `rerank` then scores the candidates in double precision, so that results do not
depend on tiles, blocks, threads or devices. Shapes: n rows or queries, m rows of the other side or keys, D dimension,
k neighbours, c candidates, h similarities that may be candidates, r rows and w columns of a tile, R and W of its cells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.hardware import one_blas_thread, thread_count
from dualmoco.core.progress import Progress
from dualmoco.core.vectors import Floats, Ids, VectorRows, Vectors
from dualmoco.search.accelerator import CPU, DEVICE_TILE, best_of_tile, choose_device

SPARE = 2  # candidates kept in addition to the k neighbours
UNSEEN = -2.0  # score of an empty place, below every cosine
COSINE_PLACES = 6  # decimal places of a similarity; equal ones are ordered by row number
TILE = (2048, 1024)  # rows and columns of similarities in the cache at once
RESCORED_ROWS = 1024
KEYS_AT_ONCE = 8192
UNSURE_ROWS = 256
NAN_VECTORS = "vectors contain NaN; expected unit vectors: encode them again"
LANES = 64  # minimum number of parts of a row whose maxima give a lower bound for its candidates
DENSE_HITS = 4  # times the candidates; if more similarities exceed the lowest candidate, it is raised first
PAIRS_AT_ONCE = 32_768
CELL = 4  # rows and columns of a cell
FEW_CELLS = 1 / 16  # up to this share of a tile's cells, it is faster to look only at those cells


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
        """Whether the nearest neighbour has the same row number, like translations in aligned texts, shape (n,)."""
        return np.asarray(self.ids[:, 0] == np.arange(len(self.ids)))

    @classmethod
    def concatenate(cls, parts: Sequence[Neighbors]) -> Neighbors:
        """The neighbours of several runs of rows, one after another."""
        return cls(np.concatenate([near.ids for near in parts]), np.concatenate([near.scores for near in parts]))


def nearest_both_ways(
    src: VectorRows,
    tgt: VectorRows,
    k: int,
    *,
    tile: tuple[int, int] = TILE,
    device: str | None = None,
    progress: Progress | None = None,
) -> tuple[Neighbors, Neighbors]:
    """Neighbours (n, k) of the sources among the targets, and (m, k) of the targets among the sources.

    Vectors may be on disk. `tile` (rows and columns scored at once) changes the speed, never the result. `device` is
    `cpu`, a device of PyTorch such as `cuda`, or None for a GPU if there is one and the search is large.
    """
    src_found, tgt_found = scan(
        src, tgt, slice(0, len(src)), slice(0, len(tgt)), k, tile=tile, device=device, progress=progress
    )
    return rerank(src_found, src, tgt, k), rerank(tgt_found, tgt, src, k)


def nearest(
    queries: VectorRows,
    keys: VectorRows,
    k: int,
    *,
    tile: tuple[int, int] = TILE,
    device: str | None = None,
    progress: Progress | None = None,
) -> Neighbors:
    """Neighbours of every query among the keys; see `nearest_both_ways` for the arguments."""
    best = Candidates.empty(len(queries), min(k + SPARE, len(keys)))
    block = Block(slice(0, len(queries)), slice(0, len(keys)))
    _scan_block(queries, keys, block, best, None, tile, device, progress)
    return rerank(best, queries, keys, k)


def scan(
    src: VectorRows,
    tgt: VectorRows,
    rows: slice,
    columns: slice,
    k: int,
    *,
    tile: tuple[int, int] = TILE,
    device: str | None = None,
    progress: Progress | None = None,
) -> tuple[Candidates, Candidates]:
    """Candidates of a block of sources and of a block of targets; blocks can be scanned anywhere and then merged."""
    src_found = Candidates.empty(rows.stop - rows.start, min(k + SPARE, len(tgt)))
    tgt_found = Candidates.empty(columns.stop - columns.start, min(k + SPARE, len(src)))
    _scan_block(src, tgt, Block(rows, columns), src_found, tgt_found, tile, device, progress)
    return src_found, tgt_found


class Block(NamedTuple):
    """A run of sources and a run of targets that are compared."""

    rows: slice
    columns: slice


def _scan_block(
    src: VectorRows,
    tgt: VectorRows,
    block: Block,
    src_found: Candidates,
    tgt_found: Candidates | None,
    tile: tuple[int, int],
    device: str | None,
    progress: Progress | None,
) -> None:
    """Adds the similarities of a block to the candidates of its sources and, unless None, of its targets."""
    height, width = (run.stop - run.start for run in block)
    device = device or choose_device(height, width, src.shape[1])
    if device != CPU:
        _scan_on_device(src, tgt, block, src_found, tgt_found, device, progress)
        return
    strips = _runs(block.rows, tile[0])
    threads = thread_count()
    pieces = -(-threads // max(1, len(strips)))  # a few queries are compared with several runs of keys at once
    width = max(tile[1], -(-width // pieces))
    work = [Block(rows, columns) for rows in strips for columns in _runs(block.columns, width)]
    lock = threading.Lock()

    def run(piece: Block) -> None:
        queries = as_floats(src[piece.rows])
        room = np.empty(len(queries) * min(tile[1], width), dtype=np.float32)
        above = np.arange(piece.rows.start, piece.rows.stop)
        for columns in _runs(piece.columns, tile[1]):
            keys = as_floats(tgt[columns])
            scores = room[: len(queries) * len(keys)].reshape(len(queries), len(keys))
            np.matmul(queries, keys.T, out=scores)
            across, highest = np.arange(columns.start, columns.stop), cell_maxima(scores)
            src_found.offer(above - block.rows.start, scores, highest, across, lock)
            if tgt_found:
                tgt_found.offer(across - block.columns.start, scores.T, highest.T, above, lock)

    with _each_in_a_thread(min(threads, len(work))) as each:
        for piece, _ in zip(work, each(run, work), strict=True):
            if progress and piece.columns.stop == block.columns.stop:
                progress(piece.rows.stop - piece.rows.start)


def _scan_on_device(
    src: VectorRows,
    tgt: VectorRows,
    block: Block,
    src_found: Candidates,
    tgt_found: Candidates | None,
    device: str,
    progress: Progress | None,
) -> None:
    """Does the same as `_scan_block` on a GPU."""
    kept, kept_across = src_found.ids.shape[1], tgt_found.ids.shape[1] if tgt_found else None
    for rows in _runs(block.rows, DEVICE_TILE[0]):
        queries, above = as_floats(src[rows]), np.arange(rows.start, rows.stop)
        for columns in _runs(block.columns, DEVICE_TILE[1]):
            best, best_across = best_of_tile(queries, as_floats(tgt[columns]), kept, kept_across, device)
            across = np.arange(columns.start, columns.stop)
            src_found.add(above - block.rows.start, best[0], across[best[1]])
            if tgt_found and best_across:
                tgt_found.add(across - block.columns.start, best_across[0], above[best_across[1]])
        if progress:
            progress(rows.stop - rows.start)


def _runs(rows: slice, size: int) -> list[slice]:
    return [slice(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]


@contextmanager
def _each_in_a_thread(threads: int) -> Iterator[Callable[..., Iterable[None]]]:
    """A `map` that runs in several threads, each with matrix products of one thread."""
    with one_blas_thread():
        if threads < 2:
            yield map
            return
        pool = ThreadPoolExecutor(threads)
        try:
            yield pool.map
        finally:
            pool.shutdown(cancel_futures=True)


def rerank(candidates: Candidates, queries: VectorRows, keys: VectorRows, k: int, *, exact: bool = True) -> Neighbors:
    """The k nearest keys of every query: scores its candidates in double precision, orders them by score and number.

    `exact` searches again if the last candidate is so close that a dropped one may belong to the k nearest.
    """
    k = min(k, len(keys))
    ids, rough = candidates.ids, candidates.scores
    scores = np.empty(ids.shape, dtype=np.float64)
    for start in range(0, len(ids), RESCORED_ROWS):
        rows = slice(start, start + RESCORED_ROWS)
        scores[rows] = np.einsum("nd,ncd->nc", queries[rows], keys[ids[rows]], dtype=np.float64)
    if np.isnan(scores).any():
        raise DataError(NAN_VECTORS)
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
        above = as_floats(queries) @ as_floats(block).T >= floor[:, None]  # (q, block)
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
    """The k best keys (b, D) of each query (q, D), used if too many keys are close; ties go to the lower number."""
    scores = (queries.astype(np.float64) @ keys.astype(np.float64).T).round(COSINE_PLACES)  # (q, b)
    last = max(0, scores.shape[1] - k)
    lowest = np.partition(scores, last, axis=1)[:, last, None]  # (q, 1) the k-th best
    above, equal = scores > lowest, scores == lowest
    first = np.cumsum(equal, axis=1) <= k - above.sum(axis=1, keepdims=True)
    row, key = np.nonzero(above | (equal & first))
    return row, key, scores[row, key]


def _tolerance(dimension: int) -> float:
    """Upper bound of the rounding error of a cosine: D products in single precision, then decimal rounding."""
    return 2 * dimension * 2.0**-24 + 10.0**-COSINE_PLACES


def as_floats(array: Vectors) -> Vectors:
    """Vectors in single precision, without a copy if possible."""
    return np.ascontiguousarray(array, dtype=np.float32)


class Candidates:
    """The c best rows of the other side seen so far for each of n rows; the order of ties is not defined."""

    def __init__(self, scores: Vectors, ids: Ids) -> None:
        self.scores, self.ids = scores, ids  # (n, c), scores descending

    @classmethod
    def empty(cls, rows: int, kept: int) -> Candidates:
        """Candidates before any similarity was seen."""
        return cls(np.full((rows, kept), UNSEEN, dtype=np.float32), np.zeros((rows, kept), dtype=np.int64))

    def offer(self, rows: Ids, scores: Vectors, highest: Vectors, ids: Ids, lock: threading.Lock | None = None) -> None:
        """Adds similarities (r, w) of some rows (r,) to rows (w,) of the other side; `highest` are their cell maxima.

        With a lock, several threads may add similarities at once. DataError if a similarity is NaN.
        """
        if np.isnan(highest.max()):
            raise DataError(NAN_VECTORS)
        lowest = self.scores[rows, -1]  # (r,) only increases, whatever other threads do meanwhile
        hits = _hits(scores, highest, lowest, self.scores.shape[1])
        if len(hits[0]):
            with lock or nullcontext():
                self._add_hits(rows, *hits, ids)

    def add(self, rows: Ids, scores: Vectors, ids: Ids) -> None:
        """Adds rows (r, a) of the other side to the candidates of some rows (r,); DataError if a score is NaN."""
        if np.isnan(scores).any():
            raise DataError(NAN_VECTORS)
        scores = np.concatenate([self.scores[rows], scores], axis=1)
        ids = np.concatenate([self.ids[rows], ids], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.scores.shape[1]]
        self.scores[rows] = np.take_along_axis(scores, best, axis=1)
        self.ids[rows] = np.take_along_axis(ids, best, axis=1)

    def merge(self, other: Candidates) -> None:
        """Adds candidates of the same rows among other rows of the other side."""
        self.add(np.arange(len(self.ids)), other.scores, other.ids)

    def union(self, other: Candidates) -> Candidates:
        """The c best candidates of both, for the same rows; each row of the other side counts once."""
        known = (other.ids[:, :, None] == self.ids[:, None, :]) & (self.scores[:, None, :] > UNSEEN)  # (n, c, c)
        fresh = np.where(known.any(axis=2), np.float32(UNSEEN), other.scores)
        both = Candidates(self.scores.copy(), self.ids.copy())
        both.merge(Candidates(fresh, other.ids))
        return both

    def transposed(self, count: int) -> Candidates:
        """Candidates (m, c) of the other side's `count` rows: for each, the c best rows that found it."""
        seen, kept = self.scores > UNSEEN, self.ids.shape[1]
        finders, ids, scores = np.nonzero(seen)[0], self.ids[seen], self.scores[seen]
        order = np.lexsort((finders, -scores, ids))
        finders, ids, scores = finders[order], ids[order], scores[order]
        place = np.arange(len(ids)) - np.searchsorted(ids, ids)  # 0 for the best that found a row, then 1 and so on
        best = place < kept
        others = Candidates.empty(count, kept)
        others.scores[ids[best], place[best]] = scores[best]
        others.ids[ids[best], place[best]] = finders[best]
        return others

    def _add_hits(self, rows: Ids, own: Ids, other: Ids, scores: np.ndarray, ids: Ids) -> None:
        """Adds h similarities, in the order of `own`: `own` numbers `rows`, `other` numbers `ids`."""
        is_first = np.concatenate([[True], own[1:] != own[:-1]])  # (h,) of its row
        starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        place = np.arange(len(own)) - starts[group]  # 0 for the first of a row, then 1 and so on
        new = Candidates.empty(len(starts), int(place.max()) + 1)
        new.scores[group, place], new.ids[group, place] = scores, ids[other]
        self.add(rows[own[starts]], new.scores, new.ids)


def cell_maxima(scores: Vectors) -> Vectors:
    """Maxima (R, W) of the cells of a tile (r, w): a cell is CELL rows by CELL columns, each R or W apart."""
    return _folded(_folded(scores, np.maximum).T, np.maximum).T


def _folded(values: np.ndarray, fold: np.ufunc) -> np.ndarray:
    """Combines the members of each cell along the first axis."""
    size, starts = _cells(len(values))
    folded = np.copy(values[:size], order="K")
    for start in starts[1:].tolist():
        fold(folded, values[start : start + size], out=folded)
    return folded


def _cells(length: int) -> tuple[int, Ids]:
    """Number of cells along an axis, and where the first, second, ... members of the cells begin; they may overlap."""
    size = -(-length // CELL)
    return size, np.minimum(size * np.arange(CELL), length - size)


def _hits(scores: Vectors, highest: Vectors, lowest: np.ndarray, kept: int) -> tuple[Ids, Ids, np.ndarray]:
    """Rows, columns and values (h,) of the similarities (r, w) that exceed the lowest candidate (r,) of their row.

    They are ordered by row and column. If there are many, most of those that cannot be among the `kept` best of their
    row are dropped.
    """
    cells = np.flatnonzero(highest > _folded(lowest, np.minimum)[:, None])
    if len(cells) <= FEW_CELLS * highest.size:
        return _hits_of_cells(scores, np.divmod(cells, highest.shape[1]), lowest)
    above = _above(scores, lowest, kept)
    if scores.flags.c_contiguous:
        own, other = np.divmod(np.flatnonzero(above), scores.shape[1])
    else:  # a transposed tile is read in the order of its memory
        other, own = np.divmod(np.flatnonzero(above.T), len(scores))
        order = np.argsort(own, kind="stable")
        own, other = own[order], other[order]
    return own, other, scores[own, other]


def _hits_of_cells(scores: Vectors, cells: tuple[Ids, Ids], lowest: np.ndarray) -> tuple[Ids, Ids, np.ndarray]:
    """Does the same as `_hits` for the similarities in some cells, given by the numbers of their row and column."""
    (row, column), (height, width) = cells, scores.shape
    own = row[:, None, None] + _cells(height)[1][:, None]  # (cells, CELL, 1)
    other = column[:, None, None] + _cells(width)[1]  # (cells, 1, CELL)
    place = own * width + other
    in_memory = place if scores.flags.c_contiguous else other * height + own
    values = scores.ravel(order="K").take(in_memory)
    is_hit = values > lowest.take(own)
    place, first = np.unique(place[is_hit], return_index=True)  # cells at an edge may overlap
    own, other = np.divmod(place, width)
    return own, other, values[is_hit][first]


def _above(scores: Vectors, lowest: np.ndarray, kept: int) -> np.ndarray:
    """Which similarities (r, w) exceed the lowest candidate (r,) of their row; if most do, with a higher limit."""
    above = scores > lowest[:, None]
    lanes = max(LANES, 2 * kept)
    if np.count_nonzero(above) > DENSE_HITS * kept * len(scores) and lanes <= scores.shape[1]:
        above = scores > np.maximum(lowest, _lower_bound(scores, kept, lanes))[:, None]
    return np.asarray(above)


def _lower_bound(scores: Vectors, kept: int, lanes: int) -> np.ndarray:
    """A number (r,) per row that at least `kept` of its similarities (r, w) exceed, because the maxima of lanes do."""
    width = scores.shape[1] // lanes * lanes
    highest = scores[:, :width].reshape(len(scores), -1, lanes).max(axis=1)  # (r, lanes)
    return np.nextafter(np.partition(highest, lanes - kept, axis=1)[:, lanes - kept], np.float32(-np.inf))
