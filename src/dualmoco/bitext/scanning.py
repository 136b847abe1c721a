"""Neighbours of two stores out of core: block by block, resumable, in bounded memory.

The plan depends on the sizes alone; candidates of finished blocks lie in a folder, and whichever blocks are missing are
scanned. Shapes: n sources, m targets, c candidates.
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

from dualmoco.embedding.arrays import ShardedVectors
from dualmoco.engines.engine import Block, Engine, Scanning
from dualmoco.neighbors import SPARE, Candidates, Neighbors, settle
from dualmoco.progress import counting
from dualmoco.storage import write_bytes

GIBIBYTE = 1 << 30
CANDIDATE_BYTES = 12  # a score and an id
BLOCK_FLOPS = 6e13  # about ten minutes of two cores


@dataclass(frozen=True)
class Plan:
    """How the rectangle of n x m similarities is cut."""

    rows: Sequence[slice]
    slabs: Sequence[slice]

    def blocks(self) -> list[Block]:
        """All blocks, slab after slab."""
        pairs = [(rows, slab) for slab in self.slabs for rows in self.rows]
        return [Block(number, rows, slab) for number, (rows, slab) in enumerate(pairs)]

    def place(self, block: Block) -> tuple[int, int]:
        """Which run of rows and which slab a block is of."""
        return block.number % len(self.rows), block.number // len(self.rows)


def make_plan(src: tuple[int, int], tgt: tuple[int, int], k: int, memory: int) -> Plan:
    """Cuts the work so that a block's candidates fit the memory and no block takes much longer than ten minutes.

    Args:
        src: n and D.
        tgt: m and D.
        k: Neighbours wanted.
        memory: Bytes for candidates.

    Returns:
        The plan.
    """
    most = max(1024, int(memory / (4 * (k + SPARE) * CANDIDATE_BYTES)))
    columns = min(tgt[0], most)
    rows = int(min(src[0], most, max(1024, BLOCK_FLOPS / (2 * columns * src[1]))))
    return Plan(_cut(src[0], rows), _cut(tgt[0], columns))


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
    blocks, left = plan.blocks(), list[Block]()
    slabs = [_Slab(folder / f"slab-{number:05d}.safetensors") for number in range(len(plan.slabs))]
    for block in blocks:
        row, slab = plan.place(block)
        if row not in slabs[slab].done or not _forward_path(folder, block).is_file():
            left.append(block)
    with counting("scanning", sum(block.rows.stop - block.rows.start for block in left), " rows") as tell:
        for block, forward, backward in engine.scan(Scanning(src, tgt, k), left, tell):
            row, slab = plan.place(block)
            _write(_forward_path(folder, block), forward, {})
            slabs[slab].add(row, backward)
    return (
        _joined([_merged(folder, plan, row) for row in range(len(plan.rows))], plan.rows, src, tgt, k),
        _joined([slab.candidates() for slab in slabs], plan.slabs, tgt, src, k),
    )


class _Slab:
    """Candidates of some targets among the sources of the blocks scanned so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[int] = set()
        if path.is_file():
            loaded = _read(path)
            if loaded:
                self.done = {int(word) for word in loaded[1]["done"].split()}

    def add(self, row: int, backward: Candidates) -> None:
        """Takes one more block's; what is on disk is always whole."""
        if row in self.done:
            return
        if self.done:
            backward.merge(self.candidates())
        self.done.add(row)
        _write(self.path, backward, {"done": " ".join(map(str, sorted(self.done)))})

    def candidates(self) -> Candidates:
        """All of them."""
        loaded = _read(self.path)
        assert loaded is not None, "a slab that was written can be read"
        return loaded[0]


def _merged(folder: Path, plan: Plan, row: int) -> Candidates:
    """Candidates of one run of sources among all targets."""
    parts = [_read(_forward_path(folder, block)) for block in plan.blocks() if plan.place(block)[0] == row]
    first, *others = [part[0] for part in parts if part]
    for other in others:
        first.merge(other)
    return first


def _joined(
    parts: Sequence[Candidates], runs: Sequence[slice], queries: ShardedVectors, keys: ShardedVectors, k: int
) -> Neighbors:
    settled = [settle(part, _Run(queries, run), keys, k) for part, run in zip(parts, runs, strict=True)]
    return Neighbors(np.concatenate([near.ids for near in settled]), np.concatenate([near.scores for near in settled]))


class _Run:
    """Some rows of a store as if they were all."""

    def __init__(self, vectors: ShardedVectors, run: slice) -> None:
        self.vectors, self.run = vectors, run

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.vectors.width

    def __len__(self) -> int:
        return int(self.run.stop - self.run.start)

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, slice):
            return self.vectors[np.asarray(rows) + self.run.start]
        start, stop, _ = rows.indices(len(self))
        return self.vectors[self.run.start + start : self.run.start + stop]


def _cut(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _forward_path(folder: Path, block: Block) -> Path:
    return folder / f"block-{block.number:06d}.safetensors"


def _write(path: Path, candidates: Candidates, notes: dict[str, str]) -> None:
    tensors = {"scores": candidates.scores.contiguous(), "ids": candidates.ids.to(torch.int64).contiguous()}
    write_bytes(path, save(tensors, notes))


def _read(path: Path) -> tuple[Candidates, dict[str, str]] | None:
    """What `_write` wrote; None if the file is damaged, so that its block is scanned again."""
    try:
        with safe_open(path, framework="pt") as file:
            return Candidates(file.get_tensor("scores"), file.get_tensor("ids")), file.metadata() or {}
    except (OSError, SafetensorError):
        return None
