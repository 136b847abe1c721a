"""Cosines of the sentences of two texts in the cells of a band, and of pairs of vectors.

Cell (i, j) holds the cosine of source sentence i with target sentence j, counted from 1; row 0 and column 0 are zero.
Shapes: N and M sentences, D dimension, c cells, u vectors, b pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.band import Band
from dualmoco.core.vectors import Ids, Vectors

SCALE = 1e5  # cosines are rounded to five places, so that a sum in another order changes nothing


@dataclass(frozen=True)
class BandCosines:
    """Cosines of single sentences."""

    band: Band
    values: np.ndarray  # (c,) by cell, single precision


def band_cosines(src: Vectors, tgt: Vectors, band: Band, known: BandCosines | None = None) -> BandCosines:
    """Cosines in a band, the same for any number of threads.

    Args:
        src: Unit vectors of the source sentences, shape (N, D).
        tgt: Of the target sentences, shape (M, D).
        band: The cells.
        known: Of the same sentences in another band; those are not multiplied again.

    Returns:
        The cosines.
    """
    known = known or BandCosines(Band(band.high + 1, band.high), np.empty(0, dtype=np.float32))  # of no cell
    cosines = np.zeros(band.cells, dtype=np.float32)
    old = known.band
    _multiply(src, tgt, band.low, band.high, band.starts, old.low, old.high, old.starts, known.values, cosines)
    return BandCosines(band, cosines)


@njit(cache=True)
def _multiply(
    src: np.ndarray, tgt: np.ndarray, low: Ids, high: Ids, starts: Ids, known_low: Ids, known_high: Ids,
    known_starts: Ids, known: np.ndarray, cosines: np.ndarray,
) -> None:  # fmt: skip
    """Writes the cosines of each row: what is known already, and what lies before it and after it."""
    columns = np.arange(len(tgt))
    for row in range(1, len(low)):
        begin, end, to_cell = max(1, low[row]), high[row] + 1, starts[row] - low[row]
        first, last = max(begin, known_low[row]), min(end, known_high[row] + 1)
        if first >= last:
            first = last = end
        for column in range(first, last):
            cosines[to_cell + column] = known[known_starts[row] + column - known_low[row]]
        for one, other in ((begin, first), (last, end)):
            found = cosines[to_cell + one : to_cell + other]
            dots(src[row - 1], tgt, columns[one - 1 : other - 1], found)
            for place in range(len(found)):
                found[place] = np.round(found[place] * SCALE) / SCALE


@njit(cache=True, fastmath=True)
def dots(own: np.ndarray, vectors: np.ndarray, which: np.ndarray, products: np.ndarray) -> None:
    """Writes the scalar products of a vector (D,) with some of others (u, D), by their numbers (n,).

    Four at a time: for a narrow band that is as fast as products of matrices.
    """
    end = len(which) - 1
    for first in range(0, end + 1, 4):
        a, b = vectors[which[first]], vectors[which[min(first + 1, end)]]
        c, d = vectors[which[min(first + 2, end)]], vectors[which[min(first + 3, end)]]
        one, two, three, four = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for part in range(len(own)):
            one += own[part] * a[part]
            two += own[part] * b[part]
            three += own[part] * c[part]
            four += own[part] * d[part]
        products[first], products[min(first + 1, end)] = one, two
        products[min(first + 2, end)], products[min(first + 3, end)] = three, four


@njit(cache=True)
def pair_cosines(src: np.ndarray, tgt: np.ndarray, pairs: Ids) -> np.ndarray:
    """Cosines (b,) of pairs (b, 2) of unit vectors (u, D) of either side."""
    cosines = np.empty(len(pairs), dtype=np.float32)
    for number in range(len(pairs)):
        cosines[number] = np.round(_dot(src[pairs[number, 0]], tgt[pairs[number, 1]]) * SCALE) / SCALE
    return cosines


@njit(cache=True, fastmath=True)
def _dot(first: np.ndarray, second: np.ndarray) -> float:
    """The scalar product of two vectors (D,)."""
    total = np.float32(0)
    for place in range(len(first)):
        total += first[place] * second[place]
    return float(total)
