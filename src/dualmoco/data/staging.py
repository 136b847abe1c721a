"""Clean pairs on disk: a temporary store between the two passes of `prepare`, and the final Parquet shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dualmoco.core.progress import counting
from dualmoco.core.vectors import Ids
from dualmoco.data.manifest import FileRecord, describe_file

SLICE_ROWS = 1 << 20
STORE_SCHEMA = pa.schema([("src", pa.large_string()), ("tgt", pa.large_string())])
SRC_ID, TGT_ID, KEY = range(3)  # which of a pair's ids


class PairStatus(IntEnum):
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


SHARD_SCHEMA = pa.schema([("src", pa.large_string()), ("tgt", pa.large_string()), ("corpus", pa.string())])
GROUP_ROWS = 100_000
TRAIN, HELDOUT = "train", "heldout"


def write_shards(
    store: TemporaryStore, corpora: Sequence[tuple[str, slice]], folder: Path, shard_pairs: int
) -> list[FileRecord]:
    """Writes the pairs that are for training or held out.

    Args:
        store: All clean pairs and their fates.
        corpora: Name and rows of each corpus, in their order.
        folder: Where the files are made.
        shard_pairs: Pairs of one file.

    Returns:
        The files, in the order of their names.
    """
    fates = store.fates()
    writers = {
        PairStatus.train: _Writer(folder, TRAIN, shard_pairs),
        PairStatus.heldout: _Writer(folder, HELDOUT, shard_pairs),
    }
    ends = [rows.stop for _, rows in corpora]
    row, corpus = 0, 0
    with counting("writing", store.rows, " pairs") as advance:
        for batch in store.texts():
            while row >= ends[corpus]:  # a block belongs to one corpus
                corpus += 1
            own = fates[row : row + len(batch)]
            for fate, writer in writers.items():
                writer.write(batch.filter(pa.array(own == fate)), corpora[corpus][0])
            row += len(batch)
            advance(len(batch))
    paths = sorted(path for writer in writers.values() for path in writer.close())
    return [describe_file(path, folder) for path in paths]


class _Writer:
    """Pairs of one split, in files of a fixed number of pairs, in row groups of a fixed number."""

    def __init__(self, folder: Path, split: str, shard_pairs: int) -> None:
        self.folder, self.split, self.shard_pairs = folder, split, shard_pairs
        self.paths: list[Path] = []
        self.waiting: list[pa.RecordBatch] = []
        self.rows, self.room = 0, 0
        self.file: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch, corpus: str) -> None:
        if len(batch):
            names = pa.repeat(pa.scalar(corpus, pa.string()), len(batch))
            self.waiting.append(pa.record_batch([*batch.columns, names], schema=SHARD_SCHEMA))
            self.rows += len(batch)
            if self.rows >= GROUP_ROWS:
                self._flush(GROUP_ROWS)

    def close(self) -> list[Path]:
        while self.rows:
            self._flush(min(self.rows, GROUP_ROWS))
        if self.file:
            self.file.close()
        return self.paths

    def _flush(self, least: int) -> None:
        """Writes whole row groups while at least so many rows wait."""
        table = pa.Table.from_batches(self.waiting, SHARD_SCHEMA)
        while table.num_rows >= least > 0:
            if not self.room:
                self._open()
            count = min(GROUP_ROWS, self.room, table.num_rows)
            assert self.file
            self.file.write_table(table.slice(0, count), row_group_size=count)
            table, self.room = table.slice(count), self.room - count
            least = min(least, table.num_rows)
        self.waiting, self.rows = table.to_batches(), table.num_rows

    def _open(self) -> None:
        if self.file:
            self.file.close()
        path = self.folder / f"{self.split}-{len(self.paths):05d}.parquet"
        self.paths.append(path)
        self.file = pq.ParquetWriter(path, SHARD_SCHEMA, compression="zstd", compression_level=1)
        self.room = self.shard_pairs
