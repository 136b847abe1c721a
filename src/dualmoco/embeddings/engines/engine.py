"""What an engine does, and the pieces of work it is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dualmoco.core.vectors import check_vectors
from dualmoco.embeddings.arrays import ShardedVectors, VectorPrecision, pack
from dualmoco.models.backend import Backend
from dualmoco.search.cells import Cells, scan_cells
from dualmoco.search.neighbors import Candidates, Tell, scan


@dataclass(frozen=True)
class Encoding:
    """How sentences are encoded: a back-end, and where another process finds its model."""

    backend: Backend
    model: str
    lang: str
    precision: VectorPrecision


@dataclass(frozen=True)
class Scanning:
    """Two sides' vectors and how many neighbours are wanted."""

    src: ShardedVectors
    tgt: ShardedVectors
    k: int
    cells: Path | None = None
    """File of the targets' cells, where the sources' candidates come from alone; everything is compared if None."""

    def open(self) -> Scan:
        """What scans a block."""
        if self.cells is None:
            return lambda block, tell=None: scan(self.src, self.tgt, block.rows, block.columns, self.k, tell=tell)
        cells = Cells.load(self.cells)
        return lambda block, tell=None: (
            scan_cells(self.src, self.tgt, block.rows, block.columns, self.k, cells, tell=tell),
            None,
        )


class Block(NamedTuple):
    """Some sources against some targets."""

    number: int
    rows: slice
    columns: slice


class Scan(Protocol):
    """Scans blocks of one pair of sides."""

    def __call__(self, block: Block, tell: Tell | None = None) -> tuple[Candidates, Candidates | None]:
        """Candidates of the block's sources, and of its targets unless cells are visited."""


class Engine(Protocol):
    """Runs pieces of work and gives back each when it is done, in any order."""

    def encode(
        self, work: Encoding, shards: Iterable[tuple[int, list[str]]], tell: Tell
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Packed vectors of each numbered shard."""

    def scan(
        self, work: Scanning, blocks: Sequence[Block], tell: Tell
    ) -> Iterator[tuple[Block, Candidates, Candidates | None]]:
        """Candidates of each block's sources, and of its targets unless cells are visited."""


def encode_shard(backend: Backend, texts: Sequence[str], precision: VectorPrecision) -> np.ndarray:
    """Vectors of some sentences as they are stored; DataError if the back-end gave NaN."""
    return pack(check_vectors(backend.encode(texts), len(texts), backend.name, backend.width), precision)
