"""Neighbours of two sides' vectors out of core: block by block, resumable, in bounded memory.

Takes vectors on disk and the settings of mining, gives `Neighbors` of both sides. Shapes: n sources, m targets, D
dimension.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.options import VectorPrecision
from dualmoco.core.progress import counting
from dualmoco.embeddings.arrays import ShardedVectors
from dualmoco.embeddings.encode import StoreForm
from dualmoco.embeddings.engines.engine import Engine
from dualmoco.embeddings.store import SHARD_ROWS, Store
from dualmoco.mining.blocks import Scanning, make_plan
from dualmoco.mining.margins import Margin, Retrieval
from dualmoco.mining.resumable import RunFile, digest, scan_blocks, stacked
from dualmoco.search.approximate import default_lists, sampled_recall
from dualmoco.search.candidates import UNSEEN, Candidates
from dualmoco.search.neighbors import Neighbors, nearest, rerank
from dualmoco.search.probing import PROBED_LISTS_PER_ROOT, ProbedLists

DEFAULT_MEMORY = 1 << 30  # bytes
PROBES = 14
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MineSettings:
    """How two files are mined."""

    precision: VectorPrecision = VectorPrecision.fp32
    margin: Margin = Margin.distance
    k: int = 3
    retrieval: Retrieval = Retrieval.max
    threshold: float | None = None
    """Lowest score to accept; all pairs if None and nothing calibrates it."""
    approximate: bool = False
    probes: int = PROBES
    memory: int = DEFAULT_MEMORY
    shard_rows: int = SHARD_ROWS

    @property
    def form(self) -> StoreForm:
        """How vectors are stored."""
        return StoreForm(self.precision, self.shard_rows)


def find_neighbors(
    stores: Sequence[Store], settings: MineSettings, work: Path, engine: Engine
) -> tuple[Neighbors, Neighbors, float | None]:
    """Neighbours of two stores both ways, and their recall where they are approximate.

    Args:
        stores: Of the sources and the targets.
        settings: Exact or approximate, k, memory.
        work: Folder for finished blocks.
        engine: Where it runs.

    Returns:
        Neighbours of the sources, of the targets, and the recall.
    """
    src, tgt = stores[0].vectors(), stores[1].vectors()
    if not settings.approximate:
        return *scan_stores(src, tgt, settings.k, work / "scan", engine, memory=settings.memory), None
    forward, backward = probe_stores(
        src, tgt, settings.k, settings.probes, work / "probe", engine, memory=settings.memory
    )  # fmt: skip
    recall = sampled_recall(forward, src, tgt)
    logger.info("approximate search: %.1f %% of the true neighbours found, on a sample", 100 * recall)
    return forward, backward, recall


def scan_stores(
    src: ShardedVectors, tgt: ShardedVectors, k: int, folder: Path, engine: Engine, *, memory: int = DEFAULT_MEMORY
) -> tuple[Neighbors, Neighbors]:
    """Exact neighbours of every source and every target.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        k: How many neighbours.
        folder: For the candidates of finished blocks, of this scan and of others.
        engine: Where blocks are scanned.
        memory: Bytes for candidates.

    Returns:
        Neighbours of the sources and of the targets, the same for any memory and engine.
    """
    plan = make_plan(src.shape, tgt.shape, k, memory)
    found = scan_blocks(Scanning(src, tgt, k), plan, folder, engine)
    sides = ((found.src, plan.src, src, tgt), (found.tgt, plan.tgt, tgt, src))
    forward, backward = (
        _joined([
            rerank(file.candidates(), _Run(queries, run), keys, k) for file, run in zip(files, runs, strict=True)
        ])
        for files, runs, queries, keys in sides
    )  # fmt: skip
    return forward, backward


def probe_stores(
    src: ShardedVectors, tgt: ShardedVectors, k: int, probes: int, folder: Path, engine: Engine, *,
    memory: int = DEFAULT_MEMORY,
) -> tuple[Neighbors, Neighbors]:  # fmt: skip
    """Neighbours of every source and every target, some of which may be missed.

    The sources probe inverted lists of the targets, and the targets those of the sources; what has found a row is a
    candidate of that row too. So a translation is missed only if neither side finds it.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        k: How many neighbours.
        probes: Lists that a row probes on average.
        folder: For lists and candidates of finished blocks, of this search and of others.
        engine: Where blocks are scanned.
        memory: Bytes for candidates.

    Returns:
        Neighbours of the sources and of the targets.

    Raises:
        ConfigError: FAISS is not installed.
    """
    count = default_lists(max(len(src), len(tgt)), PROBED_LISTS_PER_ROOT)
    compared = min(1.0, probes / count + count / max(len(src), len(tgt)))
    plan = make_plan(src.shape, tgt.shape, k, memory, compared)
    there, back = (
        scan_blocks(Scanning(queries, keys, k, _lists(queries, keys, probes, folder)), cut, folder, engine)
        for queries, keys, cut in ((src, tgt, plan), (tgt, src, plan.turned()))
    )
    return (
        _rerank_probed(there.src, stacked(back.src).transposed(len(src)), plan.src, src, tgt, k),
        _rerank_probed(back.src, stacked(there.src).transposed(len(tgt)), plan.tgt, tgt, src, k),
    )


class _Run:
    """Some rows of a store as if they were all."""

    def __init__(self, vectors: ShardedVectors, run: slice) -> None:
        self.vectors, self.run = vectors, run

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.vectors.dimension

    def __len__(self) -> int:
        return _length(self.run)

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, slice):
            return self.vectors[np.asarray(rows) + self.run.start]
        start, stop, _ = rows.indices(len(self))
        return self.vectors[self.run.start + start : self.run.start + stop]


def _lists(src: ShardedVectors, tgt: ShardedVectors, probes: int, folder: Path) -> Path:
    """The file of the targets' inverted lists, made if it is not there or damaged."""
    path = folder / f"{digest(sides=[(side.sha256, side.shape) for side in (src, tgt)], probes=probes)}.lists"
    try:
        ProbedLists.load(path)
    except DataError:
        with counting("training lists", len(tgt), " rows") as progress:
            ProbedLists.train(src, tgt, probes, progress).save(path)
    return path


def _rerank_probed(
    files: Sequence[RunFile], others: Candidates, runs: Sequence[slice], queries: ShardedVectors, keys: ShardedVectors,
    k: int,
) -> Neighbors:  # fmt: skip
    """The best k of a side's own candidates and of others; a row that has fewer is searched everywhere."""
    k = min(k, len(keys))
    parts = []
    for file, run in zip(files, runs, strict=True):
        found = file.candidates().union(Candidates(others.scores[run], others.ids[run]))
        rows = _Run(queries, run)
        near = rerank(found, rows, keys, k, exact=False)
        short = np.flatnonzero(((found.scores > UNSEEN).sum(dim=1) < k).numpy())
        if len(short):
            again = nearest(rows[short], keys, k)
            near.ids[short], near.scores[short] = again.ids, again.scores
        parts.append(near)
    return _joined(parts)


def _joined(parts: Sequence[Neighbors]) -> Neighbors:
    return Neighbors(np.concatenate([near.ids for near in parts]), np.concatenate([near.scores for near in parts]))


def _length(run: slice) -> int:
    return int(run.stop - run.start)
