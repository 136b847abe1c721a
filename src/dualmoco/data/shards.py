"""Parquet files of prepared pairs: columns src, tgt, corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dualmoco.core.progress import counting
from dualmoco.data.manifest import FileRecord, describe_file
from dualmoco.data.temporary import Fate, TemporaryStore

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
    writers = {Fate.train: _Writer(folder, TRAIN, shard_pairs), Fate.heldout: _Writer(folder, HELDOUT, shard_pairs)}
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
