"""Neighbours of two stores out of core: block by block, resumable, in bounded memory.

Candidates of every run of rows lie in a file that says which blocks are in it; blocks that are missing are scanned.
Shapes: n sources, m targets, c candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.storage import write_bytes
from dualmoco.embeddings.arrays import ShardedVectors
from dualmoco.embeddings.engines.engine import Engine
from dualmoco.mining.blocks import Plan, Scanning, make_plan
from dualmoco.search.cells import Cells, default_cells, turned, union
from dualmoco.search.neighbors import UNSEEN, Candidates, Neighbors, nearest, rerank

GIBIBYTE = 1 << 30


def scan_stores(
    src: ShardedVectors, tgt: ShardedVectors, k: int, folder: Path, engine: Engine, *, memory: int = GIBIBYTE
) -> tuple[Neighbors, Neighbors]:
    """Exact neighbours of every source and every target.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        k: How many neighbours.
        folder: Of this scan alone, for the candidates of finished blocks.
        engine: Where blocks are scanned.
        memory: Bytes for candidates.

    Returns:
        Neighbours of the sources and of the targets, the same for any memory and engine.
    """
    plan = make_plan(src.shape, tgt.shape, k, memory)
    found = _scan(Scanning(src, tgt, k), plan, folder, engine)
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
    memory: int = GIBIBYTE,
) -> tuple[Neighbors, Neighbors]:  # fmt: skip
    """Neighbours of every source and every target, some of which may be missed.

    The sources visit cells of the targets, and the targets cells of the sources; what has found a row is a candidate of
    that row too. So a translation is missed only if neither side's visit finds it.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        k: How many neighbours.
        probes: Cells that a row visits on average.
        folder: Of this search alone.
        engine: Where blocks are scanned.
        memory: Bytes for candidates.

    Returns:
        Neighbours of the sources and of the targets.

    Raises:
        ConfigError: FAISS is not installed.
    """
    count = default_cells(max(len(src), len(tgt)))
    compared = min(1.0, probes / count + count / max(len(src), len(tgt)))
    plan = make_plan(src.shape, tgt.shape, k, memory, compared)
    there = _scan(Scanning(src, tgt, k, _cells(src, tgt, probes, folder / "tgt.cells")), plan, folder / "there", engine)
    back = _scan(
        Scanning(tgt, src, k, _cells(tgt, src, probes, folder / "src.cells")), plan.turned(), folder / "back", engine
    )
    return (
        _settle_probed(there.src, turned(_stacked(back.src), len(src)), plan.src, src, tgt, k),
        _settle_probed(back.src, turned(_stacked(there.src), len(tgt)), plan.tgt, tgt, src, k),
    )


@dataclass(frozen=True)
class _Found:
    """Files of candidates of both sides."""

    src: Sequence[_RunFile]
    tgt: Sequence[_RunFile]


def _scan(work: Scanning, plan: Plan, folder: Path, engine: Engine) -> _Found:
    """Scans the blocks of a plan that are missing."""
    found = _Found(
        [_RunFile(folder / f"src-{number:05d}.safetensors") for number in range(len(plan.src))],
        [_RunFile(folder / f"tgt-{number:05d}.safetensors") for number in range(len(plan.tgt))],
    )
    left = []
    for block in plan.blocks():
        row, column = plan.place(block)
        if column not in found.src[row].done or (work.cells is None and row not in found.tgt[column].done):
            left.append(block)
    pieces = {block.number: block for block in left}
    with counting("scanning", sum(map(work.size, left)), " rows") as progress:
        for number, (forward, backward) in engine.run(work, pieces.items(), progress):
            row, column = plan.place(pieces[number])
            found.src[row].add(column, forward)
            if backward:
                found.tgt[column].add(row, backward)
    return found


class _RunFile:
    """Candidates of a run of rows among those rows of the other side that were scanned so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[int] = set()  # runs of the other side
        loaded = _read(path) if path.is_file() else None
        if loaded:
            self.done = {int(word) for word in loaded[1]["done"].split()}

    def add(self, other: int, found: Candidates) -> None:
        """Takes one more block's; what is on disk is always whole."""
        if other in self.done:
            return
        if self.done:
            found.merge(self.candidates())
        self.done.add(other)
        tensors = {"scores": found.scores.contiguous(), "ids": found.ids.contiguous()}
        write_bytes(self.path, save(tensors, {"done": " ".join(map(str, sorted(self.done)))}))

    def candidates(self) -> Candidates:
        """All of them."""
        loaded = _read(self.path)
        if loaded is None:
            raise DataError(f"{self.path}: was damaged while in use; run the command again")
        return loaded[0]


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


def _cells(src: ShardedVectors, tgt: ShardedVectors, probes: int, path: Path) -> Path:
    """The file of the targets' cells, made if it is not there or damaged."""
    try:
        Cells.load(path)
    except DataError:
        with counting("finding cells", len(tgt), " rows") as progress:
            Cells.make(src, tgt, probes, progress).save(path)
    return path


def _settle_probed(
    files: Sequence[_RunFile], others: Candidates, runs: Sequence[slice], queries: ShardedVectors, keys: ShardedVectors,
    k: int,
) -> Neighbors:  # fmt: skip
    """The best k of a side's own candidates and of others; a row that has fewer is searched everywhere."""
    k = min(k, len(keys))
    parts = []
    for file, run in zip(files, runs, strict=True):
        found = union(file.candidates(), Candidates(others.scores[run], others.ids[run]))
        rows = _Run(queries, run)
        near = rerank(found, rows, keys, k, exact=False)
        short = np.flatnonzero(((found.scores > UNSEEN).sum(dim=1) < k).numpy())
        if len(short):
            again = nearest(rows[short], keys, k)
            near.ids[short], near.scores[short] = again.ids, again.scores
        parts.append(near)
    return _joined(parts)


def _stacked(files: Sequence[_RunFile]) -> Candidates:
    parts = [file.candidates() for file in files]
    return Candidates(torch.cat([part.scores for part in parts]), torch.cat([part.ids for part in parts]))


def _joined(parts: Sequence[Neighbors]) -> Neighbors:
    return Neighbors(np.concatenate([near.ids for near in parts]), np.concatenate([near.scores for near in parts]))


def _length(run: slice) -> int:
    return int(run.stop - run.start)


def _read(path: Path) -> tuple[Candidates, dict[str, str]] | None:
    """Candidates and notes of a file; None if it is damaged, so that its blocks are scanned again."""
    try:
        with safe_open(path, framework="pt") as file:
            return Candidates(file.get_tensor("scores"), file.get_tensor("ids")), file.metadata() or {}
    except (OSError, SafetensorError):
        return None
