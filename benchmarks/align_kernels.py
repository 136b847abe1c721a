"""The compiled functions of `align_baselines`: gains of links in a band of cells, and the best path through it.

Shapes: N and M sentences, P the longest run, D dimension, T types of links, c cells of a band, s steps.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dualmoco.core.vectors import Floats, Ids

NEVER = -1e30  # in place of minus infinity


@njit(cache=True)
def row_starts(low: Ids, high: Ids) -> Ids:
    """Number of the first cell of each row of a band, and of all cells, shape (N + 2,)."""
    return np.append(0, np.cumsum(high - low + 1))


@njit(cache=True)
def best_steps(low: Ids, high: Ids, gains: np.ndarray, types: Ids, skip: float) -> Ids:
    """The path through a band with the highest sum of gains (c, T), as steps (s, 2)."""
    starts, kept = row_starts(low, high), types.max() + 1
    totals = np.empty((kept, (high - low).max() + 1))  # of the last rows
    taken = np.empty(starts[-1], np.uint8)
    for row in range(len(low)):
        for column in range(low[row], high[row] + 1):
            cell = starts[row] + column - low[row]
            best, taken[cell] = 0.0 if row == column == 0 else NEVER, 0
            for kind in range(len(types)):
                above, left = row - types[kind, 0], column - types[kind, 1]
                if above >= 0 and low[above] <= left <= high[above]:
                    gain = gains[cell, kind] if kind < gains.shape[1] else skip
                    total = totals[above % kept, left - low[above]] + gain
                    if total > best:
                        best, taken[cell] = total, kind
            totals[row % kept, column - low[row]] = best
    row, column, count = len(low) - 1, high[-1], 0
    steps = np.empty((row + column, 2), np.int64)
    while row > 0 or column > 0:
        steps[count] = types[taken[starts[row] + column - low[row]]]
        row, column, count = row - steps[count, 0], column - steps[count, 1], count + 1
    return steps[:count][::-1]


@njit(cache=True, fastmath=True)
def _dot(first: np.ndarray, second: np.ndarray) -> float:
    total = np.float32(0)
    for place in range(len(first)):
        total += first[place] * second[place]
    return float(total)


@njit(cache=True)
def _beside(run: np.ndarray, sentences: np.ndarray, end: int, size: int) -> float:
    """Mean cosine of a run with the sentences (N + 1, D) left and right of another run."""
    total, count = 0.0, 0
    if end > size:
        total, count = total + _dot(run, sentences[end - size]), count + 1
    if end + 1 < len(sentences):
        total, count = total + _dot(run, sentences[end + 1]), count + 1
    return total / max(count, 1)


@njit(cache=True)
def bertalign_gains(
    low: Ids, high: Ids, types: Ids, src: np.ndarray, tgt: np.ndarray, src_ends: Floats, tgt_ends: Floats
) -> np.ndarray:
    """Gains (c, T): cosine minus the cosine with neighbours, weighted by the similarity of lengths."""
    starts = row_starts(low, high)
    gains = np.full((starts[-1], len(types) - 2), np.float32(NEVER))
    for row in range(1, len(low)):
        for column in range(max(1, low[row]), high[row] + 1):
            for kind in range(len(types) - 2):
                m, n = types[kind]
                if m <= row and n <= column:
                    x, y = src[m - 1, row], tgt[n - 1, column]
                    near = (_beside(x, tgt[0], column, n) + _beside(y, src[0], row, m)) / 2
                    a = max(src_ends[row] - src_ends[row - m], 1.0)
                    b = max(tgt_ends[column] - tgt_ends[column - n], 1.0)
                    weight = np.log2(1 + min(a, b) / max(a, b))
                    gains[starts[row] + column - low[row], kind] = (_dot(x, y) - near) * weight
    return gains


@njit(cache=True)
def vecalign_gains(
    low: Ids, high: Ids, types: Ids, src: np.ndarray, tgt: np.ndarray, usual_src: np.ndarray, usual_tgt: np.ndarray
) -> np.ndarray:
    """Gains (c, T): negative costs: distances relative to the usual distance of both runs, times sentences."""
    starts = row_starts(low, high)
    gains = np.full((starts[-1], len(types) - 2), np.float32(NEVER))
    for row in range(1, len(low)):
        for column in range(max(1, low[row]), high[row] + 1):
            for kind in range(len(types) - 2):
                m, n = types[kind]
                if m <= row and n <= column:
                    usual = usual_src[m - 1, row] + usual_tgt[n - 1, column]
                    cost = 2 * m * n * (1 - _dot(src[m - 1, row], tgt[n - 1, column])) / usual
                    gains[starts[row] + column - low[row], kind] = -cost
    return gains
