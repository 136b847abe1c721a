"""Clean pairs on disk between the pass that reads them and the pass that writes them: texts, ids, fates.

Only the ids and fates of a slice of rows are in memory at a time, so a corpus may be of any size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from dualmoco.core.vectors import Ids

SLICE_ROWS = 1 << 20
STORE_SCHEMA = pa.schema([("src", pa.large_string()), ("tgt", pa.large_string())])
SRC_ID, TGT_ID, KEY = range(3)  # which of a pair's ids


class Fate(IntEnum):
    """What becomes of a clean pair."""

    train = 0
    heldout = 1
    duplicate = 2
    repeated_side = 3
    not_sampled = 4
    shares_heldout = 5


@dataclass(frozen=True)
class CleanPart:
    """Clean pairs of one block, with the ids of both sides and of the pair."""

    src: pa.LargeStringArray
    tgt: pa.LargeStringArray
    ids: np.ndarray  # (rows, 3)


class TemporaryStore:
    """Pairs in the order they were read, each with ids (3,) and a fate."""

    def __init__(self, folder: Path) -> None:
        """Opens an empty store for writing.

        Args:
            folder: Where its two files are made.
        """
        self._texts, self._ids = folder / "texts.arrow", folder / "ids.bin"
        self._fates = folder / "fates.bin"
        self.rows = 0
        self._id_stream = self._ids.open("wb")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(str(self._texts), STORE_SCHEMA, options=options)

    def append(self, part: CleanPart) -> None:
        """Adds pairs at the end."""
        if len(part.ids):
            self._writer.write_batch(pa.record_batch([part.src, part.tgt], schema=STORE_SCHEMA))
            self._id_stream.write(part.ids.astype("<i8").tobytes())
            self.rows += len(part.ids)

    def __enter__(self) -> TemporaryStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._id_stream.close()

    def ids(self) -> tuple[Ids, Ids, Ids]:
        """The ids of all sources, targets and pairs, each (rows,), memory-mapped."""
        shape = (self.rows, 3)
        ids = np.memmap(self._ids, dtype="<i8", mode="r", shape=shape) if self.rows else np.empty(shape, dtype="<i8")
        return ids[:, SRC_ID], ids[:, TGT_ID], ids[:, KEY]

    def fates(self) -> np.ndarray:
        """The fate of each row (rows,), memory-mapped and writable; all are for training at first."""
        if not self.rows:
            return np.empty(0, dtype=np.uint8)
        if not self._fates.exists():
            self._fates.touch()
            os.truncate(self._fates, self.rows)  # all zeros: Fate.train
        return np.memmap(self._fates, dtype=np.uint8, mode="r+", shape=(self.rows,))

    def texts(self) -> Iterator[pa.RecordBatch]:
        """All pairs, a block at a time."""
        with pa.memory_map(str(self._texts)) as file:
            yield from pa.ipc.open_stream(file)


def slices(rows: int) -> Iterator[slice]:
    """Cuts rows into parts that fit into memory."""
    for start in range(0, rows, SLICE_ROWS):
        yield slice(start, min(start + SLICE_ROWS, rows))


def mix(src: Ids, tgt: Ids) -> Ids:
    """One 64-bit id of each pair of ids."""
    one, other = src.view(np.uint64), tgt.view(np.uint64)
    first, second = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
    mixed: np.ndarray = one * first + (other ^ (other >> np.uint64(31))) * second
    mixed = (mixed ^ (mixed >> np.uint64(32))) * second
    ids: Ids = (mixed ^ (mixed >> np.uint64(32))).view(np.int64)
    return ids
