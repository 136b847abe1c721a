"""Approximate search by inverted lists for mining, and what it shares with the lists of an index (faiss_index.py).

Mining and indexes need different lists. In mining, all rows of one side are queries at once, on disk, in blocks that
any machine can scan, so a list and the queries that visit it are one matrix product. Queries of an index come one by
one, and FAISS keeps compressed lists in one mapped file. Shapes: n sources or queries, m targets or keys, D dimension,
k neighbours, L lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.progress import Progress
from dualmoco.core.storage import write_bytes
from dualmoco.core.vectors import Floats, Ids, VectorRows, Vectors
from dualmoco.search.exact import SPARE, Candidates, Neighbors, as_floats, cell_maxima, nearest

TRAINED_PER_LIST = 40  # training rows per list
KMEANS_ROUNDS = 10
ROWS_AT_ONCE = 65_536  # rows assigned to lists at once
RECALL_ROWS = 1000  # sample to measure recall on
PROBED_LISTS_PER_ROOT = 2  # lists are longer than those of an index, because each is one matrix product
SOURCE_BYTES = 1 << 28  # size of the sources in memory
VISITORS_AT_ONCE = 2048  # their similarities with the targets of a list fit into the cache
MOST_PROBES = 2  # times the average, for sources that are close to many lists
REACH_ROWS = 4096  # sample to choose the reach on
NOT_PROBED = -1
LEAST_COSINE = 1e-9  # avoids division by zero


def require_faiss() -> Any:
    """The module faiss; ConfigError if it is not installed."""
    try:
        import faiss
    except ModuleNotFoundError:
        raise ConfigError("approximate search needs faiss; pip install 'dualmoco[faiss]'") from None
    return faiss


def default_lists(rows: int, per_root: int) -> int:
    """Number of inverted lists: a power of two near `per_root` * sqrt(rows), or fewer if rows are too few to train."""
    wanted = 1 << round(float(np.log2(max(1.0, per_root * rows**0.5))))
    return int(max(1, min(wanted, rows // TRAINED_PER_LIST)))


def sample_rows(count: int, size: int, *, without: Ids | None = None, seed: int = 0) -> Ids:
    """Row numbers of a random sample of `size` of `count` rows, or all, ascending, none of them in `without`."""
    rows: int | Ids = count if without is None else np.setdiff1d(np.arange(count), without)
    possible = count if isinstance(rows, int) else len(rows)
    drawn: Ids = np.random.default_rng(seed).choice(rows, size=min(size, possible), replace=False)
    return np.sort(drawn)


def sampled_recall(found: Neighbors, queries: VectorRows, keys: VectorRows) -> float:
    """Recall of approximate neighbours: the share of the true k nearest that were found, for a sample of queries."""
    rows = sample_rows(len(queries), RECALL_ROWS)
    return recall(found.scores[rows], nearest(queries[rows], keys, found.ids.shape[1]).scores)


def recall(found: Floats, truth: Floats) -> float:
    """Share of the true neighbours found, from descending cosines (q, k); equally near neighbours count as found."""
    return float((found >= truth[:, -1:]).mean()) if truth.size else 1.0


@dataclass(frozen=True)
class ProbedLists:
    """Inverted lists of targets, and the rule for which of them a source probes."""

    centroids: Vectors  # (L, D)
    members: Ids  # (m,) list of each target
    most: int  # largest number of lists that a source probes
    reach: float  # a list is probed if its closeness (see `search`) is at least this

    @classmethod
    def train(cls, src: VectorRows, tgt: VectorRows, probes: int, progress: Progress) -> ProbedLists:
        """Trains centroids on a sample, assigns the targets to lists, and sets the reach for `probes` on average."""
        faiss = require_faiss()
        count = default_lists(len(tgt), PROBED_LISTS_PER_ROOT)
        means = faiss.Kmeans(
            tgt.shape[1], count, niter=KMEANS_ROUNDS, spherical=True, seed=1, min_points_per_centroid=1
        )
        means.train(tgt[sample_rows(len(tgt), TRAINED_PER_LIST * count)])
        members = np.empty(len(tgt), dtype=np.int64)
        lists = cls(means.centroids, members, min(MOST_PROBES * probes, count), -np.inf)
        for start in range(0, len(tgt), ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, len(tgt)))
            members[rows] = lists.search(tgt[rows], 1)[1][:, 0]
            progress(rows.stop - rows.start)
        if probes >= count:
            return lists
        visitors = src[sample_rows(len(src), REACH_ROWS)]
        closeness = np.sort(lists.search(visitors, lists.most)[0].ravel())
        return replace(lists, reach=float(closeness[-probes * len(visitors)]))

    @classmethod
    def load(cls, path: Path) -> ProbedLists:
        """Reads a file of `save`; DataError if it is missing or damaged."""
        try:
            with safe_open(path, framework="np") as file:
                notes = file.metadata()
                centroids, members = file.get_tensor("centroids"), file.get_tensor("members")
            return cls(centroids, members, int(notes["most"]), float(notes["reach"]))
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: cannot be read as inverted lists ({error}); remove it and run the command again"
            ) from None

    def save(self, path: Path) -> None:
        """Writes the lists; RunError if the disk is full or not writable."""
        tensors: dict[str, np.ndarray] = {"centroids": self.centroids, "members": self.members}
        write_bytes(path, save(tensors, {"most": str(self.most), "reach": repr(self.reach)}))

    def search(self, vectors: Vectors, count: int) -> tuple[Vectors, Ids]:
        """Closeness and numbers of the lists nearest to each vector (n, D), both (n, count), nearest first.

        The closeness is 1 for the nearest list, and falls with the cosine of the centroid relative to the nearest one.
        """
        index = require_faiss().IndexFlatIP(self.centroids.shape[1])
        index.add(self.centroids)
        cosines, lists = index.search(vectors, count)
        best = cosines[:, :1]
        return 1 - (best - cosines) / np.maximum(np.abs(best), LEAST_COSINE), lists

    def probed(self, vectors: Vectors) -> Ids:
        """The lists that each vector (n, D) probes, shape (n, most), padded with NOT_PROBED."""
        closeness, lists = self.search(vectors, self.most)
        return np.where(closeness >= self.reach, lists, NOT_PROBED)


def scan_lists(
    src: VectorRows,
    tgt: VectorRows,
    rows: slice,
    columns: slice,
    k: int,
    lists: ProbedLists,
    *,
    progress: Progress | None = None,
) -> Candidates:
    """Candidates of a block of sources among a block of targets, from the lists that each source probes."""
    found = Candidates.empty(rows.stop - rows.start, min(k + SPARE, len(tgt)))
    members = _by_list(lists.members[columns], len(lists.centroids))
    size = max(1, SOURCE_BYTES // (4 * src.shape[1]))
    for start in range(rows.start, rows.stop, size):
        vectors = as_floats(src[start : min(start + size, rows.stop)])
        probed = lists.probed(vectors)  # (sources, most)
        visitors = [entries // probed.shape[1] for entries in _by_list(probed.ravel(), len(members))]
        counted = 0
        for number, (here, guests) in enumerate(zip(members, visitors, strict=True), start=1):
            if len(here) and len(guests):
                ids = here + columns.start
                _score_list(found, vectors, guests, start - rows.start, as_floats(tgt[ids]), ids)
            if progress:
                reached = len(vectors) * number // len(members)
                progress(reached - counted)
                counted = reached
    return found


def _score_list(found: Candidates, vectors: Vectors, guests: Ids, first: int, keys: Vectors, ids: Ids) -> None:
    """Scores the visitors of a list, numbered from `first`, against its targets (r, D)."""
    for start in range(0, len(guests), VISITORS_AT_ONCE):
        some = guests[start : start + VISITORS_AT_ONCE]
        scores = vectors[some] @ keys.T
        found.offer(some + first, scores, cell_maxima(scores), ids)


def _by_list(lists: Ids, count: int) -> Sequence[Ids]:
    """For each list, the positions of its number in an array of list numbers, ascending."""
    order = np.argsort(lists, kind="stable")
    ends = np.searchsorted(lists[order], np.arange(count + 1))
    return [order[start:stop] for start, stop in pairwise(ends.tolist())]
