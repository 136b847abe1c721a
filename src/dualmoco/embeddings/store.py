"""Vectors in `.npy` shards: single or half precision or int8, read by rows as unit vectors of single precision.

Shapes: n rows, D dimension.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError
from dualmoco.core.storage import LOCK, file_sha256, write_bytes, write_json
from dualmoco.core.vectors import Ids, Vectors, unit_vectors
from dualmoco.core.version import VERSION
from dualmoco.embeddings.unique_lines import LineTable, lines_at

LARGEST_INT8 = 127


DTYPES = {VectorPrecision.fp32: np.float32, VectorPrecision.fp16: np.float16, VectorPrecision.int8: np.int8}


def pack(vectors: Vectors, precision: VectorPrecision) -> np.ndarray:
    """Unit vectors (n, D) as they are stored."""
    if precision != VectorPrecision.int8:
        return vectors.astype(DTYPES[precision])
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = np.divide(LARGEST_INT8 * vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    packed: np.ndarray = np.rint(scaled).astype(np.int8)
    return packed


def unpack(stored: np.ndarray) -> Vectors:
    """Stored vectors (n, D) as unit vectors in single precision."""
    if stored.dtype == np.float32:
        return np.ascontiguousarray(stored)
    return unit_vectors(stored.astype(np.float32))


class ShardedVectors:
    """Vectors of several memory-mapped `.npy` files, one after the other.

    Args:
        paths: The files.
        dimension: D.
        checksums: SHA-256 of each file, if they are known; read from the files when asked for if not.
    """

    def __init__(self, paths: Sequence[Path], dimension: int, checksums: Sequence[str] = ()) -> None:
        self.paths, self.checksums = list(paths), list(checksums)
        self.parts = [_map(path, dimension) for path in self.paths]
        self.headers = [path.stat().st_size - part.nbytes for path, part in zip(self.paths, self.parts, strict=True)]
        self.ends = np.cumsum([0, *(len(part) for part in self.parts)])  # row where each part begins, and the end
        self.dimension = dimension

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""
        return len(self), self.dimension

    @property
    def sha256(self) -> str:
        """Of all vectors: what is made of them and kept is named by it."""
        checksums = self.checksums or [file_sha256(path) for path in self.paths]
        return hashlib.sha256("".join(checksums).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, rows: Any) -> Vectors:
        """Unit vectors of a slice, or of an array of row numbers of any shape."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                return self[np.arange(start, stop, step)]
            return unpack(self._run(start, max(start, stop)))
        ids = np.asarray(rows)
        flat = ids.ravel()
        return unpack(self._take(flat)).reshape(*ids.shape, self.dimension)

    def read(self, rows: np.ndarray) -> Vectors:
        """Unit vectors of rows, shape (n,), each read from its place on disk.

        For random rows of a large store: what is taken through the map is counted as this process's memory, with all
        that the system maps around each row.
        """
        if not hasattr(os, "preadv"):
            return self[rows]
        owners = np.searchsorted(self.ends, rows, side="right") - 1
        stored = np.empty((len(rows), self.dimension), dtype=self.parts[0].dtype)
        width, buffer = stored.itemsize * self.dimension, stored.reshape(-1).view(np.uint8).data
        with ExitStack() as stack:
            files = {owner: stack.enter_context(self.paths[owner].open("rb")) for owner in np.unique(owners).tolist()}
            for place, (owner, number) in enumerate(
                zip(owners.tolist(), (rows - self.ends[owners]).tolist(), strict=True)
            ):
                row = buffer[place * width : (place + 1) * width]
                if os.preadv(files[owner].fileno(), [row], self.headers[owner] + number * width) != width:
                    raise DataError(f"{self.paths[owner]}: became shorter while in use; encode again")
        return unpack(stored)

    def _take(self, rows: np.ndarray) -> np.ndarray:
        if len(self.parts) == 1:
            return self.parts[0].take(rows, axis=0)
        owners = np.searchsorted(self.ends, rows, side="right") - 1
        found = np.empty((len(rows), self.dimension), dtype=self.parts[0].dtype if self.parts else np.float32)
        for owner in np.unique(owners).tolist():
            mine = owners == owner
            found[mine] = self.parts[owner].take(rows[mine] - self.ends[owner], axis=0)
        return found

    def _run(self, start: int, stop: int) -> np.ndarray:
        pieces = [
            part[max(0, start - first) : max(0, stop - first)]
            for part, first in zip(self.parts, self.ends[:-1].tolist(), strict=True)
            if first < stop and first + len(part) > start
        ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, self.dimension), dtype=np.float32)


def _map(path: Path, dimension: int) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as vectors: {error}; encode again") from None
    if array.ndim != 2 or array.shape[1] != dimension:
        raise DataError(f"{path}: an array of shape {array.shape}; expected (n, {dimension})")
    return np.asarray(array)


MANIFEST, ROWS = "manifest.json", "rows.npy"
UNBORN = (LOCK, ROWS, f".{ROWS}.partial", f".{MANIFEST}.partial")
"""What a run killed before its first shard leaves behind."""
SHARD_ROWS = 65_536


@dataclass(frozen=True)
class StoreKey:
    """All that decides the vectors of a store."""

    model_sha256: str
    backend: str
    lang: str
    text_sha256: str
    precision: str
    shard_rows: int = SHARD_ROWS
    pooling: str = "own"
    """Of the model, and its prompt, where they are not its own."""


@dataclass(frozen=True)
class Shard:
    """One file of vectors."""

    file: str
    rows: int
    sha256: str


class Store:
    """A folder of vectors, whole or in the making."""

    def __init__(self, folder: Path, key: StoreKey, dimension: int, lines: Ids, count: int) -> None:
        self.folder, self.key, self.dimension, self.lines, self.count = folder, key, dimension, lines, count
        self.shards: dict[int, Shard] = {}

    def missing(self) -> list[int]:
        """Numbers of the shards that are still to be made."""
        return [number for number in range(-(-self.count // self.key.shard_rows)) if number not in self.shards]

    def vectors(self) -> ShardedVectors:
        """Unit vectors (n, D) of the distinct sentences, mapped from disk; DataError if some are missing."""
        if self.missing():
            raise DataError(f"{self.folder}: {len(self.missing())} shards are missing; run dualmoco encode again")
        shards = [self.shards[number] for number in sorted(self.shards)]
        paths = [self.folder / shard.file for shard in shards]
        return ShardedVectors(paths, self.dimension, [shard.sha256 for shard in shards])

    def first_lines(self) -> Ids:
        """The line, from 0, where each distinct sentence first stands, shape (n,)."""
        rows, first = np.unique(self.lines, return_index=True)
        return first[rows >= 0]

    def add(self, number: int, packed: np.ndarray) -> None:
        """Writes a shard and then the manifest that names it."""
        name = f"{number:05d}.npy"
        stream = io.BytesIO()
        np.save(stream, packed, allow_pickle=False)
        write_bytes(self.folder / name, stream.getvalue())
        self.shards[number] = Shard(name, len(packed), file_sha256(self.folder / name))
        self.save()

    def save(self) -> None:
        """Writes the manifest."""
        write_json(
            self.folder / MANIFEST,
            {
                "version": VERSION,
                "key": asdict(self.key),
                "width": self.dimension,
                "lines": len(self.lines),
                "sentences": self.count,
                "shards": [asdict(self.shards[number]) for number in sorted(self.shards)],
            },
        )


def open_or_start(folder: Path, key: StoreKey, dimension: int, lines: LineTable) -> Store:
    """Opens a store to resume, or begins one.

    Args:
        folder: Where it is or shall be.
        key: What it must be of.
        dimension: D.
        lines: Of the text.

    Returns:
        The store with the shards that are there and whole; damaged ones are to be made again.

    Raises:
        DataError: The folder holds vectors of something else, or other files.
    """
    if not (folder / MANIFEST).exists():
        if folder.exists() and any(path.name not in UNBORN for path in folder.iterdir()):
            raise DataError(f"{folder}: holds other files; expected a new folder, or vectors of dualmoco encode")
        store = Store(folder, key, dimension, lines.rows, len(lines.first))
        stream = io.BytesIO()
        np.save(stream, lines.rows, allow_pickle=False)
        write_bytes(folder / ROWS, stream.getvalue())
        store.save()
        return store
    store = open_store(folder)
    for name, value in asdict(key).items():
        given = getattr(store.key, name)
        if given != value:
            said = f"{name} {_short(given)}; expected {_short(value)}"
            raise DataError(f"{folder}: holds vectors with {said}: use another folder")
    store.shards = {number: shard for number, shard in store.shards.items() if _is_whole(folder, shard)}
    return store


def open_store(folder: Path) -> Store:
    """Opens a folder of `dualmoco encode` without checking its shards' checksums.

    Args:
        folder: The folder.

    Returns:
        The store.

    Raises:
        DataError: Not such a folder.
    """
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        key = StoreKey(**content["key"])
        rows = np.load(folder / ROWS, allow_pickle=False)
        store = Store(folder, key, int(content["width"]), rows, int(content["sentences"]))
        store.shards = {int(shard["file"].partition(".")[0]): Shard(**shard) for shard in content["shards"]}
        return store
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: not a folder of dualmoco encode ({error}); expected one") from None


def pending(store: Store, path: Path, first: Ids) -> Iterator[tuple[int, list[str]]]:
    """Yields the sentences of each shard that is still to be made.

    Args:
        store: The store.
        path: Its text.
        first: Where each distinct sentence first stands.

    Yields:
        The shard's number and its sentences.
    """
    size, missing = store.key.shard_rows, store.missing()
    wanted = [first[number * size : (number + 1) * size] for number in missing]
    texts = lines_at(path, np.concatenate([np.empty(0, dtype=np.int64), *wanted]).tolist())
    for number, numbers in zip(missing, wanted, strict=True):
        yield number, list(islice(texts, len(numbers)))


def _is_whole(folder: Path, shard: Shard) -> bool:
    path = folder / shard.file
    return path.is_file() and file_sha256(path) == shard.sha256


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else repr(value)
