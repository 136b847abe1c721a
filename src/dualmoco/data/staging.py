"""Clean pairs on disk: the temporary store between the two passes of `prepare`, and the Parquet shards it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
GROUP_ROWS = 100_000  # of a Parquet row group
STORE_SCHEMA = pa.schema([("src", pa.large_string()), ("tgt", pa.large_string())])
SHARD_SCHEMA = pa.schema([("src", pa.large_string()), ("tgt", pa.large_string()), ("corpus", pa.string())])
SRC_ID, TGT_ID, PAIR_ID = range(3)  # columns of a pair's ids
TRAIN_SPLIT, HELDOUT_SPLIT = "train", "heldout"


class PairStatus(IntEnum):
    """Whether a clean pair is trained on, held out or dropped."""

    train = 0
    heldout = 1
    duplicate = 2
    repeated_side = 3
    not_sampled = 4
    shares_heldout = 5


class TemporaryStore:
    """Pairs in the order in which they were read, each with its ids (3,) and status."""

    def __init__(self, folder: Path) -> None:
        self._texts, self._ids, self._status = folder / "texts.arrow", folder / "ids.bin", folder / "status.bin"
        self.rows = 0
        self._id_stream = self._ids.open("wb")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(str(self._texts), STORE_SCHEMA, options=options)

    def __enter__(self) -> TemporaryStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._id_stream:
            self._writer.close()

    def append(self, src: pa.LargeStringArray, tgt: pa.LargeStringArray, ids: np.ndarray) -> None:
        """Adds pairs with their ids (rows, 3)."""
        if len(ids):
            self._writer.write_batch(pa.record_batch([src, tgt], schema=STORE_SCHEMA))
            self._id_stream.write(ids.astype("<i8").tobytes())
            self.rows += len(ids)

    def ids(self) -> tuple[Ids, Ids, Ids]:
        """The ids of all sources, targets and pairs, each (rows,), memory-mapped."""
        shape = (self.rows, 3)
        ids = np.memmap(self._ids, dtype="<i8", mode="r", shape=shape) if self.rows else np.empty(shape, dtype="<i8")
        return ids[:, SRC_ID], ids[:, TGT_ID], ids[:, PAIR_ID]

    def status(self) -> np.ndarray:
        """The status of each pair (rows,), memory-mapped and writable; initially `PairStatus.train`."""
        if not self.rows:
            return np.empty(0, dtype=np.uint8)
        if not self._status.exists():
            with self._status.open(
                "wb"
            ) as stream:  # not sparse: on a full disk, writing to a mapped hole kills the process
                for part in slices(self.rows):
                    stream.write(bytes(part.stop - part.start))
        return np.memmap(self._status, dtype=np.uint8, mode="r+", shape=(self.rows,))

    def texts(self) -> Iterator[pa.RecordBatch]:
        """All pairs, in the batches that were appended."""
        with pa.memory_map(str(self._texts)) as file:
            yield from pa.ipc.open_stream(file)


def slices(rows: int) -> Iterator[slice]:
    """Cuts rows into parts that fit into memory."""
    for start in range(0, rows, SLICE_ROWS):
        yield slice(start, min(start + SLICE_ROWS, rows))


def write_shards(
    store: TemporaryStore, corpora: Sequence[tuple[str, slice]], folder: Path, shard_pairs: int
) -> list[FileRecord]:
    """Writes training and held-out pairs, given name and rows of each corpus in order; returns the files by name."""
    status = store.status()
    writers = {
        PairStatus.train: _ShardWriter(folder, TRAIN_SPLIT, shard_pairs),
        PairStatus.heldout: _ShardWriter(folder, HELDOUT_SPLIT, shard_pairs),
    }
    row, corpus = 0, 0
    with counting("writing", store.rows, " pairs") as advance:
        for batch in store.texts():
            while row >= corpora[corpus][1].stop:  # a batch belongs to one corpus
                corpus += 1
            own = status[row : row + len(batch)]
            for wanted, writer in writers.items():
                writer.write(batch.filter(pa.array(own == wanted)), corpora[corpus][0])
            row += len(batch)
            advance(len(batch))
    paths = sorted(path for writer in writers.values() for path in writer.close())
    return [describe_file(path, folder) for path in paths]


class _ShardWriter:
    """Writes the pairs of one split to files with a fixed number of pairs."""

    def __init__(self, folder: Path, split: str, shard_pairs: int) -> None:
        self.folder, self.split, self.shard_pairs = folder, split, shard_pairs
        self.paths: list[Path] = []
        self.waiting: list[pa.RecordBatch] = []
        self.rows, self.room = 0, 0  # rows in the buffer, and rows that still fit into the current file
        self.file: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch, corpus: str) -> None:
        if len(batch):
            names = pa.repeat(pa.scalar(corpus, pa.string()), len(batch))
            self.waiting.append(pa.record_batch([*batch.columns, names], schema=SHARD_SCHEMA))
            self.rows += len(batch)
            if self.rows >= GROUP_ROWS:
                self._flush()

    def close(self) -> list[Path]:
        self._flush()
        if self.file:
            self.file.close()
        return self.paths

    def _flush(self) -> None:
        table = pa.Table.from_batches(self.waiting, SHARD_SCHEMA)
        self.waiting, self.rows = [], 0
        while table.num_rows:
            if not self.room:
                self._open()
            count = min(GROUP_ROWS, self.room, table.num_rows)
            assert self.file
            self.file.write_table(table.slice(0, count), row_group_size=count)
            table, self.room = table.slice(count), self.room - count

    def _open(self) -> None:
        if self.file:
            self.file.close()
        path = self.folder / f"{self.split}-{len(self.paths):05d}.parquet"
        self.paths.append(path)
        self.file = pq.ParquetWriter(path, SHARD_SCHEMA, compression="zstd", compression_level=1)
        self.room = self.shard_pairs
