"""The work of scanning: a rectangle of n sources by m targets, cut into blocks that can be scanned anywhere.

The cut depends on the sizes alone. Shapes: D dimension, k neighbours.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dualmoco.core.errors import DataError
from dualmoco.core.progress import Progress
from dualmoco.embeddings.arrays import ShardedVectors
from dualmoco.search.candidates import SPARE, Candidates
from dualmoco.search.neighbors import scan
from dualmoco.search.probing import ProbedLists, scan_lists

CANDIDATE_BYTES = 12  # a score and an id
HELD = 4  # candidates of a row held at once: a block's of both sides, and what they are merged with
LEAST_ROWS = 1024
BLOCK_FLOPS = 6e13  # about ten minutes of two cores


class Block(NamedTuple):
    """Some sources against some targets."""

    number: int
    rows: slice
    columns: slice


Found = tuple[Candidates, Candidates | None]
"""Candidates of a block's sources, and of its targets unless lists are probed."""


@dataclass(frozen=True)
class Plan:
    """Runs of sources and runs of targets; every pair of runs is a block."""

    src: Sequence[slice]
    tgt: Sequence[slice]

    def blocks(self) -> list[Block]:
        """All blocks, one run of targets after the other."""
        pairs = [(rows, columns) for columns in self.tgt for rows in self.src]
        return [Block(number, rows, columns) for number, (rows, columns) in enumerate(pairs)]

    def place(self, block: Block) -> tuple[int, int]:
        """Which run of sources and which of targets a block is of."""
        return block.number % len(self.src), block.number // len(self.src)

    def turned(self) -> Plan:
        """The same cuts with the sides exchanged."""
        return Plan(self.tgt, self.src)


def make_plan(src: tuple[int, int], tgt: tuple[int, int], k: int, memory: int, compared: float = 1.0) -> Plan:
    """Cuts the work into nearly square blocks that fit the memory and take ten minutes or so.

    Args:
        src: n and D.
        tgt: m and D.
        k: Neighbours wanted.
        memory: Bytes for candidates.
        compared: The share of all pairs that is compared.

    Returns:
        The plan.
    """
    most = max(LEAST_ROWS, memory // (HELD * (k + SPARE) * CANDIDATE_BYTES))
    pairs = BLOCK_FLOPS / (2 * src[1] * compared)
    rows = _run_length(src[0], most, pairs**0.5)
    columns = _run_length(tgt[0], most, pairs / rows)
    return Plan(_cut(src[0], _run_length(src[0], most, pairs / columns)), _cut(tgt[0], columns))


def _run_length(total: int, most: int, wanted: float) -> int:
    return min(total, most, max(LEAST_ROWS, int(wanted)))


def _cut(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


@dataclass(frozen=True)
class Scanning:
    """The work of an engine: candidates of blocks of two sides' vectors."""

    src: ShardedVectors
    tgt: ShardedVectors
    k: int
    lists: Path | None = None
    """File of the targets' inverted lists, from which alone candidates come; everything is compared if None."""
    wants_gpu = False

    def open(self) -> Callable[[Block, Progress], Found]:
        """What scans a block."""
        if self.lists is None:
            return lambda block, progress: scan(
                self.src, self.tgt, block.rows, block.columns, self.k, progress=progress
            )  # fmt: skip
        lists = ProbedLists.load(self.lists)
        return lambda block, progress: (
            scan_lists(self.src, self.tgt, block.rows, block.columns, self.k, lists, progress=progress),
            None,
        )

    def size(self, piece: Block) -> int:
        """Sources."""
        return int(piece.rows.stop - piece.rows.start)

    def portable(self) -> PortableScanning:
        """The files of vectors, never the vectors themselves."""
        src, tgt = ([path.resolve() for path in side.paths] for side in (self.src, self.tgt))
        return PortableScanning(src, tgt, self.src.dimension, self.k, self.lists.resolve() if self.lists else None)


@dataclass(frozen=True)
class PortableScanning:
    """Files of vectors, sent to other machines; opened there they are a `Scanning`."""

    src: Sequence[Path]
    tgt: Sequence[Path]
    dimension: int
    k: int
    lists: Path | None
    wants_gpu = False

    def open(self) -> Callable[[Block, Progress], Found]:
        """What scans a block; DataError if the files are not on this machine."""
        host = f"node {socket.gethostname()}"
        for path in (*self.src, *self.tgt, *([self.lists] if self.lists else [])):
            if not path.is_file():
                raise DataError(f"{path}: not found on {host}; expected a work folder that every node sees (--work)")
        src, tgt = (ShardedVectors(side, self.dimension) for side in (self.src, self.tgt))
        return Scanning(src, tgt, self.k, self.lists).open()

    def size(self, piece: Block) -> int:
        """Sources."""
        return int(piece.rows.stop - piece.rows.start)

    def portable(self) -> PortableScanning:
        """Itself."""
        return self
