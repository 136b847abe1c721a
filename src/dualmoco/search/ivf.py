"""What all approximate search has in common: how many inverted lists there are, what they are trained on, their recall.

Two kinds of lists use it, for a reason. `probing.py` serves mining: all rows of one side are queries at once, on disk,
in blocks that any machine can do, so a list and its visitors are one matrix product. `inverted.py` serves an index:
queries come one by one, and FAISS keeps compressed lists in one file that is mapped. Shapes: n rows, q queries, k
neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.progress import Progress
from dualmoco.core.storage import write_bytes
from dualmoco.core.vectors import Floats, Ids, VectorRows, Vectors
from dualmoco.search.exact import SPARE, Candidates, Neighbors, as_tensor, nearest

TRAINED_PER_LIST = 40  # rows that a list's centroid is trained on
KMEANS_ROUNDS = 10  # of k-means
ROWS_AT_ONCE = 65_536  # assigned to lists
RECALL_ROWS = 1000  # on which recall is measured


def require_faiss() -> Any:
    """FAISS, if it is installed; ConfigError if not."""
    try:
        import faiss
    except ModuleNotFoundError:
        raise ConfigError("approximate search needs faiss; pip install 'dualmoco[faiss]'") from None
    return faiss


def default_lists(rows: int, per_root: int) -> int:
    """How many inverted lists suit a number of rows.

    Args:
        rows: How many vectors the lists hold.
        per_root: Lists for each square root of the rows: more are shorter, and take longer to choose from.

    Returns:
        A power of two near that, or fewer if the rows are too few to train so many.
    """
    wanted = 1 << round(float(np.log2(max(1.0, per_root * rows**0.5))))
    return int(max(1, min(wanted, rows // TRAINED_PER_LIST)))


def sample_rows(count: int, size: int, *, without: Ids | None = None, seed: int = 0) -> Ids:
    """Some rows drawn at random, ascending.

    Args:
        count: How many rows there are.
        size: How many are wanted; all if there are fewer.
        without: Rows that are not drawn.
        seed: The same rows for the same seed.

    Returns:
        Row numbers.
    """
    rows: int | Ids = count if without is None else np.setdiff1d(np.arange(count), without)
    possible = count if isinstance(rows, int) else len(rows)
    drawn: Ids = np.random.default_rng(seed).choice(rows, size=min(size, possible), replace=False)
    return np.sort(drawn)


def sampled_recall(found: Neighbors, queries: VectorRows, keys: VectorRows) -> float:
    """The recall of approximate neighbours of all queries, by exact search of a sample of them.

    Args:
        found: The k neighbours of every query, scored exactly.
        queries: Unit vectors (q, D).
        keys: Unit vectors (n, D).

    Returns:
        The share of the true k nearest that were found.
    """
    rows = sample_rows(len(queries), RECALL_ROWS)
    return recall(found.scores[rows], nearest(queries[rows], keys, found.ids.shape[1]).scores)


def recall(found: Floats, truth: Floats) -> float:
    """The share of the true nearest that were found; of equally near ones any counts.

    Args:
        found: Cosines of what was found, shape (q, k).
        truth: Cosines of the true nearest, descending, shape (q, k).

    Returns:
        From 0 to 1; 1 if there is nothing to find.
    """
    return float((found >= truth[:, -1:]).mean()) if truth.size else 1.0


PROBED_LISTS_PER_ROOT = 2  # each is a matrix product with its visitors, so they are longer than those of an index
SOURCE_BYTES = 1 << 28  # of sources in memory
VISITORS_AT_ONCE = 2048  # whose similarities with the targets of a list fit the cache
SPREAD = 2  # times p lists are probed at most, by sources that lie between many
REACH_ROWS = 4096  # on which the reach is measured
NOWHERE = -1
TINY = 1e-9


@dataclass(frozen=True)
class ProbedLists:
    """Centroids, the list of each target, and which lists a source probes."""

    centroids: Vectors  # (L, D)
    members: Ids  # (m,) the list that each target is in
    most: int
    """Lists that a source probes at most."""
    reach: float
    """A list is probed if its centroid's cosine, divided by that of the nearest centroid, is at least this."""

    @classmethod
    def train(cls, src: VectorRows, tgt: VectorRows, probes: int, progress: Progress) -> ProbedLists:
        """Finds centroids by k-means on a sample, every target's list, and the reach of the sources.

        Args:
            src: Unit vectors (n, D).
            tgt: Unit vectors (m, D).
            probes: How many lists a source shall probe on average: more find more and take longer.
            progress: Is called with how many targets have a list.

        Returns:
            The lists.

        Raises:
            ConfigError: FAISS is not installed.
        """
        faiss = require_faiss()
        count = default_lists(len(tgt), PROBED_LISTS_PER_ROOT)
        means = faiss.Kmeans(
            tgt.shape[1], count, niter=KMEANS_ROUNDS, spherical=True, seed=1, min_points_per_centroid=1
        )
        means.train(tgt[sample_rows(len(tgt), TRAINED_PER_LIST * count)])
        members = np.empty(len(tgt), dtype=np.int64)
        lists = cls(means.centroids, members, min(SPREAD * probes, count), -np.inf)
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
        """Reads what `save` wrote; DataError if it is damaged."""
        try:
            with safe_open(path, framework="np") as file:
                notes = file.metadata()
                centroids, members = file.get_tensor("centroids"), file.get_tensor("members")
            return cls(centroids, members, int(notes["most"]), float(notes["reach"]))
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as lists ({error}); remove it and run the command again") from None

    def save(self, path: Path) -> None:
        """Writes the lists; RunError if that fails."""
        tensors: dict[str, np.ndarray] = {"centroids": self.centroids, "members": self.members}
        write_bytes(path, save(tensors, {"most": str(self.most), "reach": repr(self.reach)}))

    def search(self, vectors: Vectors, count: int) -> tuple[Vectors, Ids]:
        """The lists nearest to each of some vectors (n, D), the nearest first.

        Args:
            vectors: Unit vectors.
            count: How many lists of each.

        Returns:
            How close they are, 1 for the nearest, and which they are, both (n, count).
        """
        index = require_faiss().IndexFlatIP(self.centroids.shape[1])
        index.add(self.centroids)
        cosines, lists = index.search(vectors, count)
        nearest = cosines[:, :1]
        return 1 - (nearest - cosines) / np.maximum(np.abs(nearest), TINY), lists

    def probed(self, vectors: Vectors) -> Ids:
        """The lists that each of some vectors (n, D) probes, shape (n, most), filled up with NOWHERE."""
        closeness, lists = self.search(vectors, self.most)
        return np.where(closeness >= self.reach, lists, NOWHERE)


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
    """Candidates of a block of sources among a block of targets, each from the lists that it probes.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        rows: The block of sources.
        columns: The block of targets.
        k: How many neighbours are wanted in the end.
        lists: Of the targets.
        progress: Is called with how many sources are done.

    Returns:
        The candidates of the block's sources.
    """
    found = Candidates.empty(rows.stop - rows.start, min(k + SPARE, len(tgt)))
    members = _by_list(lists.members[columns], len(lists.centroids))
    size = max(1, SOURCE_BYTES // (4 * src.shape[1]))
    for start in range(rows.start, rows.stop, size):
        vectors = as_tensor(src[start : min(start + size, rows.stop)])
        probed = lists.probed(vectors.numpy())  # (sources, most)
        visitors = [entries // probed.shape[1] for entries in _by_list(probed.ravel(), len(members))]
        counted = 0
        for number, (here, guests) in enumerate(zip(members, visitors, strict=True), start=1):
            if len(here) and len(guests):
                ids, some = torch.from_numpy(here + columns.start), torch.from_numpy(guests)
                _score_list(found, vectors, some, start - rows.start, as_tensor(tgt[ids.numpy()]), ids)
            if progress:
                reached = len(vectors) * number // len(members)
                progress(reached - counted)
                counted = reached
    return found


def _score_list(found: Candidates, vectors: Tensor, guests: Tensor, first: int, keys: Tensor, ids: Tensor) -> None:
    """Scores the visitors of a list, whose numbers begin at `first`, against its targets (r, D)."""
    for some in guests.split(VISITORS_AT_ONCE):
        found.offer(some + first, torch.mm(vectors.index_select(0, some), keys.T), ids)


def _by_list(lists: Ids, count: int) -> Sequence[Ids]:
    """Places in an array of list numbers, for each list, ascending; those that are NOWHERE left out."""
    order = np.argsort(lists, kind="stable")
    ends = np.searchsorted(lists[order], np.arange(count + 1))
    return [order[start:stop] for start, stop in pairwise(ends.tolist())]
