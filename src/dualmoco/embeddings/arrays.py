"""Vectors in `.npy` shards: single or half precision or int8, read by rows as unit vectors of single precision.

Shapes: n rows, D dimension.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.options import VectorPrecision
from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Vectors, unit_vectors

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
