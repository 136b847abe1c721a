"""Approximate nearest neighbours: only vectors of cells close by are compared.

Space is cut into cells around centroids of the targets, and every target resides in one. A source visits the few cells
it is nearest to; cell after cell, visitors are scored against residents as one product of matrices, which gives both
directions. Shapes: n sources, m targets, L cells, p probes (cells that a source visits), D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from dualmoco.errors import ConfigError, DataError
from dualmoco.neighbors import SPARE, UNSEEN, Candidates, Ids, Tell, as_tensor
from dualmoco.storage import write_bytes
from dualmoco.vectors import VectorRows, Vectors

TRAINED_PER_CELL = 40  # rows
ROUNDS = 10  # of k-means
ROWS_AT_ONCE = 65_536
VISITORS_AT_ONCE = 8192


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
    """Centroids, and the cell in which each target resides."""

    centroids: Vectors  # (L, D)
    homes: Ids  # (m,)

    @classmethod
    def make(cls, tgt: VectorRows, tell: Tell) -> Cells:
        """Finds centroids by k-means on a sample, and every target's cell.

        Args:
            tgt: Unit vectors (m, D).
            tell: Is told how many targets have a cell.

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
        cells = cls(means.centroids, np.empty(len(tgt), dtype=np.int64))
        for start in range(0, len(tgt), ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, len(tgt)))
            cells.homes[rows] = cells.closest(tgt[rows], 1)[:, 0]
            tell(rows.stop - rows.start)
        return cells

    @classmethod
    def load(cls, path: Path) -> Cells:
        """Reads what `save` wrote; DataError if it is damaged."""
        try:
            content = load_file(path)
            return cls(content["centroids"].numpy(), content["homes"].numpy())
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(f"{path}: cannot be read as cells ({error}); remove it and run the command again") from None

    def save(self, path: Path) -> None:
        """Writes the cells; RunError if that fails."""
        tensors = {"centroids": torch.from_numpy(self.centroids), "homes": torch.from_numpy(self.homes)}
        write_bytes(path, save(tensors))

    def closest(self, vectors: Vectors, probes: int) -> Ids:
        """The cells nearest to each of some vectors (n, D), the nearest first, shape (n, p)."""
        index = require_faiss().IndexFlatIP(self.centroids.shape[1])
        index.add(self.centroids)
        cells: Ids = index.search(vectors, min(probes, len(self.centroids)))[1]
        return cells


def scan_cells(
    src: VectorRows, tgt: VectorRows, rows: slice, columns: slice, k: int, cells: Cells, probes: int, *,
    tell: Tell | None = None,
) -> tuple[Candidates, Candidates]:  # fmt: skip
    """Candidates from one block of sources and one of targets, comparing sources with the cells they visit alone.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        rows: The block of sources.
        columns: The block of targets.
        k: How many neighbours are wanted in the end.
        cells: Of the targets.
        probes: How many cells a source visits: more find more and take longer.
        tell: Is told how many sources are done.

    Returns:
        Candidates of the block's sources among its targets, and of its targets among its sources.
    """
    forward = Candidates.empty(rows.stop - rows.start, min(k + SPARE, len(tgt)))
    backward = Candidates.empty(columns.stop - columns.start, min(k + SPARE, len(src)))
    visited = np.concatenate([
        cells.closest(src[start : min(start + ROWS_AT_ONCE, rows.stop)], probes)
        for start in range(rows.start, rows.stop, ROWS_AT_ONCE)
    ])  # (rows, p)  # fmt: skip
    residents = _by_cell(cells.homes[columns], len(cells.centroids))
    visitors = [entries // visited.shape[1] for entries in _by_cell(visited.ravel(), len(cells.centroids))]
    done = 0
    for cell, (here, guests) in enumerate(zip(residents, visitors, strict=True), start=1):
        _meet(src, tgt, guests, here, (rows.start, columns.start), (forward, backward))
        if tell:
            reached = len(forward.ids) * cell // len(residents)
            tell(reached - done)
            done = reached
    return forward, backward


def _meet(
    src: VectorRows, tgt: VectorRows, guests: Ids, here: Ids, first: tuple[int, int],
    found: tuple[Candidates, Candidates],
) -> None:  # fmt: skip
    """Scores the visitors of a cell against its residents, both numbered within their blocks."""
    if not len(guests) or not len(here):
        return
    keys, columns = as_tensor(tgt[here + first[1]]), torch.from_numpy(here)
    for start in range(0, len(guests), VISITORS_AT_ONCE):
        some = guests[start : start + VISITORS_AT_ONCE]
        rows = torch.from_numpy(some)
        scores = torch.mm(as_tensor(src[some + first[0]]), keys.T)  # (visitors, residents)
        found[0].offer(rows, scores, columns + first[1])
        found[1].offer(columns, scores, rows + first[0], axis=1)


def _by_cell(cells: Ids, count: int) -> Sequence[Ids]:
    """Places in an array of cells, for each cell, rising."""
    order = np.argsort(cells, kind="stable")
    return np.split(order, np.cumsum(np.bincount(cells, minlength=count))[:-1])


def union(one: Candidates, other: Candidates) -> Candidates:
    """The candidates of either, for the same rows; a row of the other side counts once."""
    known = (other.ids[:, :, None] == one.ids[:, None, :]) & (one.scores[:, None, :] > UNSEEN)  # (n, c, c)
    fresh = torch.where(known.any(dim=2), UNSEEN, other.scores)
    return Candidates(torch.cat([one.scores, fresh], dim=1), torch.cat([one.ids, other.ids], dim=1))
