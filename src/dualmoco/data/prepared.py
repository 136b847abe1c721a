"""Prepared pairs for training, mapped from disk: opening takes no time and no memory, any row is at hand at once.

Parquet is for exchange; the first training on a folder unpacks it into plain Arrow buffers beside it, in `mapped/`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.storage import new_folder
from dualmoco.core.vectors import Ids
from dualmoco.data.bitext import Pairs, of_corpora
from dualmoco.data.block import sentence_ids
from dualmoco.data.manifest import read_prepared_manifest
from dualmoco.data.shards import HELDOUT, TRAIN

BATCH_ROWS = 100_000
MAPPED = "mapped"
SIDE_COLUMNS, KINDS = ("src", "tgt"), ("text", "offsets", "ids")


def open_prepared(folder: Path) -> tuple[Pairs, Pairs]:
    """Opens a prepared folder.

    Args:
        folder: Made by `dualmoco prepare`.

    Returns:
        The pairs for training, and those held out.

    Raises:
        DataError: A folder of another kind, or a shard that is missing or not the one of the manifest.
    """
    manifest = read_prepared_manifest(folder)
    mapped = folder / MAPPED
    shards = json.dumps(manifest["shards"])
    if not (mapped / "shards.json").is_file() or (mapped / "shards.json").read_text() != shards:
        _check_shards(folder, manifest["shards"])
        with new_folder(mapped) as new:
            for split in (TRAIN, HELDOUT):
                names = [shard["path"] for shard in manifest["shards"] if shard["path"].startswith(split)]
                _unpack([folder / name for name in names], new, split)
            (new / "shards.json").write_text(shards)
    return _map(mapped, TRAIN, manifest), _map(mapped, HELDOUT, manifest)


def _check_shards(folder: Path, shards: list[dict[str, object]]) -> None:
    for shard in shards:
        path = folder / str(shard["path"])
        if not path.is_file() or path.stat().st_size != shard["bytes"]:
            raise DataError(f"{path}: missing or not as the manifest says; prepare the pairs again")


def _unpack(paths: list[Path], folder: Path, split: str) -> None:
    """Writes, for each side, one file of UTF-8, one of the places where sentences end, and one of ids."""
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    names = [f"{side}.{kind}" for side in SIDE_COLUMNS for kind in KINDS]
    position = dict.fromkeys(SIDE_COLUMNS, 0)
    with counting(f"unpacking {split} pairs", rows, " pairs") as advance, ExitStack() as stack:
        streams = {name: stack.enter_context((folder / f"{split}.{name}").open("wb")) for name in names}
        for side in SIDE_COLUMNS:
            streams[f"{side}.offsets"].write(bytes(8))
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=list(SIDE_COLUMNS)):
                for side in SIDE_COLUMNS:
                    texts = batch.column(side).to_pylist()
                    encoded = [text.encode() for text in texts]
                    ends = position[side] + np.cumsum([len(text) for text in encoded], dtype="<i8")
                    position[side] = int(ends[-1])
                    streams[f"{side}.text"].write(b"".join(encoded))
                    streams[f"{side}.offsets"].write(ends.tobytes())
                    streams[f"{side}.ids"].write(sentence_ids(texts).astype("<i8").tobytes())
                advance(len(batch))


def _map(folder: Path, split: str, manifest: dict[str, Any]) -> Pairs:
    counts = [(corpus["name"], corpus[split]) for corpus in manifest["corpora"]]  # shards lie corpus by corpus
    rows = sum(count for _, count in counts)
    src, tgt = (_map_texts(folder, f"{split}.{side}", rows) for side in SIDE_COLUMNS)
    src_ids, tgt_ids = (_map_ids(folder / f"{split}.{side}.ids", rows) for side in SIDE_COLUMNS)
    return Pairs(src, tgt, src_ids, tgt_ids, *of_corpora(*counts))


def _map_texts(folder: Path, name: str, count: int) -> pa.LargeStringArray:
    offsets, text = (_buffer(folder / f"{name}.{kind}") for kind in ("offsets", "text"))
    return pa.LargeStringArray.from_buffers(count, offsets, text)


def _buffer(path: Path) -> pa.Buffer:
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _map_ids(path: Path, count: int) -> Ids:
    return np.memmap(path, dtype="<i8", mode="r", shape=(count,)) if count else np.empty(0, dtype="<i8")
