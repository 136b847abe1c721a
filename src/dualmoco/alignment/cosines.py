"""Cosines of the sentences of two texts in the cells of a band, and of pairs of vectors.

Cell (i, j) holds the cosine of source sentence i with target sentence j, counted from 1; row 0 and column 0 are zero.
Shapes: N and M sentences, D dimension, c cells, u vectors, b pairs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dualmoco.alignment.band import Band
from dualmoco.core.vectors import Ids, Vectors

SCALE = 1e5  # cosines are rounded to five places, so that a sum in another order changes nothing


def band_cosines(src: Vectors, tgt: Vectors, band: Band) -> np.ndarray:
    """Cosines in a band, the same for any number of threads.

    Args:
        src: Unit vectors of the source sentences, shape (N, D).
        tgt: Of the target sentences, shape (M, D).
        band: The cells.

    Returns:
        Numbers in single precision by cell, shape (c,).
    """
    cosines = np.zeros(band.cells, dtype=np.float32)
    _multiply(src, tgt, band.low, band.high, band.starts, cosines)
    return cosines


@njit(cache=True, fastmath=True)
def _multiply(src: np.ndarray, tgt: np.ndarray, low: Ids, high: Ids, starts: Ids, cosines: np.ndarray) -> None:
    """Writes the cosines of each row, four at a time: that is as fast as products of matrices for a narrow band."""
    sums = np.zeros(4, np.float32)
    for row in range(1, len(low)):
        own, last = src[row - 1], high[row] - 1
        for first in range(max(1, low[row]) - 1, last + 1, 4):
            a, b = tgt[first], tgt[min(first + 1, last)]
            c, d = tgt[min(first + 2, last)], tgt[min(first + 3, last)]
            one, two, three, four = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for part in range(len(own)):
                one += own[part] * a[part]
                two += own[part] * b[part]
                three += own[part] * c[part]
                four += own[part] * d[part]
            sums[0], sums[1], sums[2], sums[3] = one, two, three, four
            for more in range(min(4, last + 1 - first)):
                cosines[starts[row] + first + 1 + more - low[row]] = np.round(sums[more] * SCALE) / SCALE


@njit(cache=True)
def pair_cosines(src: np.ndarray, tgt: np.ndarray, pairs: Ids) -> np.ndarray:
    """Cosines (b,) of pairs (b, 2) of unit vectors (u, D) of either side."""
    cosines = np.empty(len(pairs), dtype=np.float32)
    for number in range(len(pairs)):
        cosines[number] = np.round(dot(src[pairs[number, 0]], tgt[pairs[number, 1]]) * SCALE) / SCALE
    return cosines


@njit(cache=True, fastmath=True)
def dot(first: np.ndarray, second: np.ndarray) -> float:
    """The scalar product of two vectors (D,)."""
    total = np.float32(0)
    for place in range(len(first)):
        total += first[place] * second[place]
    return float(total)
