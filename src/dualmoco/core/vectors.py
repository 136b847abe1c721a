"""Arrays of sentence vectors: their types, checks and normalization. Shapes: n sentences, D dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dualmoco.core.errors import DataError

Vectors = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ids = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class VectorRows(Protocol):
    """Vectors (n, D) in memory or on disk."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (n, D)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Vectors:
        """The vectors of a slice or of an array of row numbers, loaded into memory."""


def check_vectors(vectors: Any, count: int, name: str, dimension: int | None = None) -> Vectors:
    """The vectors (n, D) in fp32; DataError if n is not `count`, D is not `dimension`, or a value is not finite."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(f"{name}: an array of shape {array.shape}, {array.dtype}; expected numbers of shape (n, D)")
    if len(array) != count:
        raise DataError(f"{name}: {len(array):,} vectors; expected {count:,}, one per sentence")
    if dimension is not None and array.shape[1] != dimension:
        raise DataError(f"{name}: vectors of dimension {array.shape[1]}; expected {dimension}, the same as the others")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(bad):
        raise DataError(
            f"{name}: {len(bad):,} vectors contain NaN or infinity, first at row {bad[0]}; encode them again"
        )
    result: Vectors = array.astype(np.float32, copy=False)
    return result


def unit_vectors(vectors: Vectors) -> Vectors:
    """The vectors (n, D) scaled to length 1; zero vectors stay zero, and vectors of infinite length become NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (n, 1)
    lengths[np.isinf(lengths)] = np.nan  # dividing by infinity would give zeros and hide the error
    result: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths != 0)
    return result


def map_array(path: Path) -> np.ndarray[Any, Any]:
    """Memory-maps the array (n, D) of a `.npy` file; DataError if it is damaged or does not contain floats."""
    try:
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read as an array: {reason}; expected numbers saved by numpy.save") from None
    if array.ndim != 2 or array.dtype.kind != "f":
        shape = f"an array of shape {array.shape}, {array.dtype}"
        raise DataError(f"{path}: {shape}; expected floating-point numbers of shape (n, D)")
    return array
