"""Sentence vectors as arrays: checked, and brought to unit length. Shapes: n sentences, D width."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dualmoco.core.errors import DataError

Vectors = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ids = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class VectorRows(Protocol):
    """Vectors (n, D) in memory or on disk, read by rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Vectors:
        """The vectors of a slice or of an array of row numbers, in memory."""


def check_vectors(vectors: Any, count: int, name: str, width: int | None = None) -> Vectors:
    """Vectors that can be compared.

    Args:
        vectors: What an encoder or a file gave.
        count: How many there must be.
        name: Where they come from, for the error.
        width: D, if it is known already.

    Returns:
        The vectors (n, D) in single precision.

    Raises:
        DataError: Another number or width, or a value that is not a finite number.
    """
    array = np.asarray(vectors)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(f"{name}: an array of shape {array.shape}, {array.dtype}; expected numbers of shape (n, D)")
    if len(array) != count:
        raise DataError(f"{name}: {len(array):,} vectors; expected {count:,}, one a sentence")
    if width is not None and array.shape[1] != width:
        raise DataError(f"{name}: vectors of width {array.shape[1]}; expected {width}, as the others have")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(bad):
        raise DataError(f"{name}: {len(bad):,} vectors hold NaN or infinity, first at row {bad[0]}; encode them again")
    result: Vectors = array.astype(np.float32, copy=False)
    return result


def unit_vectors(vectors: Vectors) -> Vectors:
    """The vectors (n, D) at length one; a vector of zeros, which has no direction, stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (n, 1)
    result: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return result
