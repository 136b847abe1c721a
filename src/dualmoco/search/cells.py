"""Approximate nearest neighbours: only vectors of cells close by are compared.

Space is cut into cells around centroids of the targets, and every target resides in one. A source visits the few cells
it is nearest to; cell after cell, visitors are scored against residents as one product of matrices. Shapes: n sources,
m targets, L cells, p probes (cells that a source visits on average), c candidates, D dimension.
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
from dualmoco.core.vectors import Ids, VectorRows, Vectors
from dualmoco.search.neighbors import SPARE, UNSEEN, Candidates, as_tensor

TRAINED_PER_CELL = 40  # rows
ROUNDS = 10  # of k-means
ROWS_AT_ONCE = 65_536
SOURCE_BYTES = 1 << 28  # of sources in memory
VISITORS_AT_ONCE = 2048  # whose similarities with a cell's residents fit the cache
SPREAD = 2  # times p cells are visited at most, by sources that lie between many
REACH_ROWS = 4096  # on which the reach is measured
NOWHERE = -1
TINY = 1e-9


def require_faiss() -> Any:
    """FAISS, if it is installed; ConfigError if not."""
    try:
        import faiss
    except ModuleNotFoundError:
        raise ConfigError("approximate search needs faiss; pip install 'dualmoco[faiss]'") from None
    return faiss


def default_cells(rows: int) -> int:
    """How many cells suit a number of rows: about twice its square root, each with enough rows to train on."""
    wanted = 1 << round(float(np.log2(max(1.0, 2 * rows**0.5))))
    return int(max(1, min(wanted, rows // TRAINED_PER_CELL)))


@dataclass(frozen=True)
class Cells:
    """Centroids, the cell in which each target resides, and which cells a source visits."""

    centroids: Vectors  # (L, D)
    homes: Ids  # (m,)
    most: int
    """Cells that a source visits at most."""
    reach: float
    """A cell is visited if its centroid's cosine, divided by that of the nearest centroid, is at least this."""

    @classmethod
    def make(cls, src: VectorRows, tgt: VectorRows, probes: int, progress: Progress) -> Cells:
        """Finds centroids by k-means on a sample, every target's cell, and the reach of the sources.

        Args:
            src: Unit vectors (n, D).
            tgt: Unit vectors (m, D).
            probes: How many cells a source shall visit on average: more find more and take longer.
            progress: Is called with how many targets have a cell.

        Returns:
            The cells.

        Raises:
            ConfigError: FAISS is not installed.
        """
        faiss = require_faiss()
        count = default_cells(len(tgt))
        chosen = np.random.default_rng(0).permutation(len(tgt))[: TRAINED_PER_CELL * count]
        means = faiss.Kmeans(tgt.shape[1], count, niter=ROUNDS, spherical=True, seed=1, min_points_per_centroid=1)
        means.train(tgt[np.sort(chosen)])
        homes = np.empty(len(tgt), dtype=np.int64)
        cells = cls(means.centroids, homes, min(SPREAD * probes, count), -np.inf)
        for start in range(0, len(tgt), ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, len(tgt)))
            homes[rows] = cells.search(tgt[rows], 1)[1][:, 0]
            progress(rows.stop - rows.start)
        if probes >= count:
            return cells
        visitors = src[np.sort(np.random.default_rng(0).permutation(len(src))[:REACH_ROWS])]
        closeness = np.sort(cells.search(visitors, cells.most)[0].ravel())
        return replace(cells, reach=float(closeness[-probes * len(visitors)]))

    @classmethod
    def load(cls, path: Path) -> Cells:
        """Reads what `save` wrote; DataError if it is damaged."""
        try:
            with safe_open(path, framework="np") as file:
                notes = file.metadata()
                centroids, homes = file.get_tensor("centroids"), file.get_tensor("homes")
            return cls(centroids, homes, int(notes["most"]), float(notes["reach"]))
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as cells ({error}); remove it and run the command again") from None

    def save(self, path: Path) -> None:
        """Writes the cells; RunError if that fails."""
        tensors: dict[str, np.ndarray] = {"centroids": self.centroids, "homes": self.homes}
        write_bytes(path, save(tensors, {"most": str(self.most), "reach": repr(self.reach)}))

    def search(self, vectors: Vectors, count: int) -> tuple[Vectors, Ids]:
        """The cells nearest to each of some vectors (n, D), the nearest first.

        Args:
            vectors: Unit vectors.
            count: How many cells of each.

        Returns:
            How close they are, 1 for the nearest, and which they are, both (n, count).
        """
        index = require_faiss().IndexFlatIP(self.centroids.shape[1])
        index.add(self.centroids)
        cosines, cells = index.search(vectors, count)
        nearest = cosines[:, :1]
        return 1 - (nearest - cosines) / np.maximum(np.abs(nearest), TINY), cells

    def visited(self, vectors: Vectors) -> Ids:
        """The cells that each of some vectors (n, D) visits, shape (n, most), filled up with NOWHERE."""
        closeness, cells = self.search(vectors, self.most)
        return np.where(closeness >= self.reach, cells, NOWHERE)


def scan_cells(
    src: VectorRows, tgt: VectorRows, rows: slice, columns: slice, k: int, cells: Cells, *,
    progress: Progress | None = None,
) -> Candidates:  # fmt: skip
    """Candidates of a block of sources among a block of targets, each from the cells that it visits.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        rows: The block of sources.
        columns: The block of targets.
        k: How many neighbours are wanted in the end.
        cells: Of the targets.
        progress: Is called with how many sources are done.

    Returns:
        The candidates of the block's sources.
    """
    found = Candidates.empty(rows.stop - rows.start, min(k + SPARE, len(tgt)))
    residents = _by_cell(cells.homes[columns], len(cells.centroids))
    size = max(1, SOURCE_BYTES // (4 * src.shape[1]))
    for start in range(rows.start, rows.stop, size):
        vectors = as_tensor(src[start : min(start + size, rows.stop)])
        visited = cells.visited(vectors.numpy())  # (sources, most)
        visitors = [entries // visited.shape[1] for entries in _by_cell(visited.ravel(), len(residents))]
        told = 0
        for cell, (here, guests) in enumerate(zip(residents, visitors, strict=True), start=1):
            if len(here) and len(guests):
                ids, some = torch.from_numpy(here + columns.start), torch.from_numpy(guests)
                _meet(found, vectors, some, start - rows.start, as_tensor(tgt[ids.numpy()]), ids)
            if progress:
                reached = len(vectors) * cell // len(residents)
                progress(reached - told)
                told = reached
    return found


def _meet(found: Candidates, vectors: Tensor, guests: Tensor, first: int, keys: Tensor, ids: Tensor) -> None:
    """Scores the visitors of a cell, whose numbers begin at `first`, against its residents (r, D)."""
    for some in guests.split(VISITORS_AT_ONCE):
        found.offer(some + first, torch.mm(vectors.index_select(0, some), keys.T), ids)


def _by_cell(cells: Ids, count: int) -> Sequence[Ids]:
    """Places in an array of cells, for each cell, rising; those that are NOWHERE left out."""
    order = np.argsort(cells, kind="stable")
    ends = np.searchsorted(cells[order], np.arange(count + 1))
    return [order[start:stop] for start, stop in pairwise(ends.tolist())]


def turned(found: Candidates, count: int) -> Candidates:
    """What candidates (n, c) of one side tell of the other: for each of its rows, the c best that have found it.

    Args:
        found: Candidates of all rows of one side.
        count: Rows of the other side, m.

    Returns:
        Candidates (m, c).
    """
    seen = found.scores > UNSEEN
    finders, ids, scores = seen.nonzero()[:, 0].numpy(), found.ids[seen].numpy(), found.scores[seen].numpy()
    order = np.lexsort((finders, -scores, ids))
    finders, ids, scores = finders[order], ids[order], scores[order]
    place = np.arange(len(ids)) - np.searchsorted(ids, ids)  # 0 for the best that found a row, then 1 and so on
    best = place < found.ids.shape[1]
    others = Candidates.empty(count, found.ids.shape[1])
    others.scores.numpy()[ids[best], place[best]] = scores[best]
    others.ids.numpy()[ids[best], place[best]] = finders[best]
    return others


def union(one: Candidates, other: Candidates) -> Candidates:
    """The c best candidates of either, for the same rows; a row of the other side counts once."""
    known = (other.ids[:, :, None] == one.ids[:, None, :]) & (one.scores[:, None, :] > UNSEEN)  # (n, c, c)
    fresh = torch.where(known.any(dim=2), UNSEEN, other.scores)
    both = Candidates(one.scores.clone(), one.ids.clone())
    both.merge(Candidates(fresh, other.ids))
    return both
