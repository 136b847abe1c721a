"""How the rectangle of n sources by m targets is cut into blocks; it depends on the sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualmoco.embeddings.engines.engine import Block
from dualmoco.search.neighbors import SPARE

CANDIDATE_BYTES = 12  # a score and an id
HELD = 4  # candidates of a row held at once: a block's of both sides, and what they are merged with
LEAST_ROWS = 1024
BLOCK_FLOPS = 6e13  # about ten minutes of two cores


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
