"""The best path through a band of cells: dynamic programming, exact within the band.

A cell (i, j) is reached when i sentences of the source and j of the target are linked. A step to it takes a run of
1 to P source sentences with a run of 1 to P target sentences, or leaves one sentence of either side out. Takes `Band`
and gains of runs, gives the steps. Shapes: N and M sentences, P the longest run, s steps.
"""

# Compiled by Numba: a version vectorised in NumPy, row by row, took several times as long (docs/align.md).

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.core.vectors import Floats, Ids

TILE_STEPS = 64  # rows of a tile of cells times P
MOST_MARGIN = 2.0  # beyond it nothing is more certain
KEPT_BYTES = 512 << 20  # of gains, at most
NEVER = -1e30  # in the place of minus infinity
Gains = Callable[[slice, slice], np.ndarray]
"""Takes rows and columns of cells, gives the gain of every step with both sides into each, (P, P, rows, columns), in
single precision: at [m - 1, n - 1] that of m source and n target sentences, anything where there are fewer before."""


@dataclass(frozen=True)
class Band:
    """The cells that are looked at: in row i the columns from low[i] to high[i], both never falling."""

    low: Ids  # (N + 1,), 0 in the first row
    high: Ids  # (N + 1,), M in the last row


def full_band(rows: int, columns: int) -> Band:
    """All cells of N = `rows` source and M = `columns` target sentences."""
    return Band(np.zeros(rows + 1, dtype=np.int64), np.full(rows + 1, columns, dtype=np.int64))


@dataclass(frozen=True)
class Path:
    """A way through the cells."""

    steps: Ids  # (s, 2) sentences of the source and of the target that each step takes
    totals: np.ndarray  # (N + 1, width) best sum of gains up to each cell of a row, from its lowest column on


def best_path(band: Band, gains: Gains, types: Floats, skip: float) -> Path:
    """The steps from the first cell to the last whose gains sum up highest.

    Args:
        band: Where to look.
        gains: Of the steps with both sides.
        types: Added to the gain of every step of m source and n target sentences, at [m - 1, n - 1]; shape (P, P).
        skip: Gain of leaving out one sentence; not above 0.

    Returns:
        The path.
    """
    if (band.low[1:] > band.high[:-1] + len(types)).any():
        raise ValueError("a band without a way through it; expected every row to begin where the one above ends")
    rows, width, longest = len(band.low), int((band.high - band.low).max()) + 1, len(types)
    totals = np.empty((rows, width))
    taken = np.empty((rows, width), dtype=np.uint8)  # the step that came to it
    for cells in _tiles(band, longest):
        _fill(totals, taken, band.low, band.high, gains(*cells), cells[0].start, cells[1].start, types, skip)
    steps = np.empty((rows + int(band.high[-1]), 2), dtype=np.int64)
    count = _trace(taken, band.low, int(band.high[-1]), longest, steps)
    return Path(steps[:count][::-1], totals)


def margins(path: Path, band: Band, gains: Gains, types: Floats, skip: float) -> Floats:
    """How much a path would lose if it had to do without each of its steps.

    Args:
        path: The best one.
        band: Where it was looked for.
        gains: Of the steps with both sides.
        types: As for `best_path`.
        skip: As for `best_path`.

    Returns:
        For each step the sum of gains less that of the best path with one of its sentences in another step, (s,); at
        most MOST_MARGIN.
    """
    best = path.totals[-1, int(band.high[-1] - band.low[-1])]
    ends = path.steps.cumsum(axis=0)
    owners = [np.repeat(np.arange(len(path.steps)), path.steps[:, side]) for side in (0, 1)]  # (N,), (M,)
    others = [np.full(len(side), best - MOST_MARGIN) for side in owners]
    after = np.full_like(path.totals, NEVER)  # best sum of gains from each cell on
    after[-1, int(band.high[-1] - band.low[-1])] = 0.0
    for cells in reversed(_tiles(band, len(types))):
        _look_back(
            path.totals, after, band.low, band.high, gains(*cells), cells[0].start, cells[1].start, types, skip,
            (owners[0], owners[1]), ends, path.steps, (others[0], others[1]), best - MOST_MARGIN,
        )  # fmt: skip
    rivals = np.full(len(path.steps), best - MOST_MARGIN)
    for owner, other in zip(owners, others, strict=True):
        np.maximum.at(rivals, owner, other)
    return np.asarray(best - rivals)


def _tiles(band: Band, longest: int) -> list[tuple[slice, slice]]:
    """Rows and columns of the tiles that a band is cut into."""
    height, rows = TILE_STEPS // longest, len(band.low)
    ends = [(first, min(first + height, rows)) for first in range(0, rows, height)]
    return [(slice(first, last), slice(int(band.low[first]), int(band.high[last - 1]) + 1)) for first, last in ends]


@njit(cache=True)
def _fill(
    totals: np.ndarray, taken: np.ndarray, low: Ids, high: Ids, gains: np.ndarray, first: int, left: int,
    types: Floats, skip: float,
) -> None:  # fmt: skip
    """Finds the best totals of a tile's cells, row by row."""
    longest = len(types)
    for row in range(first, first + gains.shape[2]):
        for column in range(low[row], high[row] + 1):
            best, step = _best_link(totals, low, high, gains[:, :, row - first, column - left], types, row, column)
            if row > 0 and low[row - 1] <= column <= high[row - 1]:
                total = totals[row - 1, column - low[row - 1]] + skip
                if total > best:
                    best, step = total, longest * longest
            if column > low[row]:
                total = totals[row, column - 1 - low[row]] + skip
                if total > best:
                    best, step = total, longest * longest + 1
            totals[row, column - low[row]] = best
            taken[row, column - low[row]] = step


@njit(cache=True)
def _best_link(
    totals: np.ndarray, low: Ids, high: Ids, gains: np.ndarray, types: Floats, row: int, column: int
) -> tuple[float, int]:
    """The best total of a cell (row, column) after a step with both sides, and the number of that step."""
    best, step, longest = 0.0 if row == 0 and column == 0 else NEVER, 0, len(types)
    for m in range(1, min(longest, row) + 1):
        begin, end = low[row - m], high[row - m]
        for n in range(max(1, column - end), min(longest, column - begin) + 1):
            total = totals[row - m, column - n - begin] + gains[m - 1, n - 1] + types[m - 1, n - 1]
            if total > best:
                best, step = total, (m - 1) * longest + n - 1
    return best, step


@njit(cache=True)
def _look_back(
    totals: np.ndarray, after: np.ndarray, low: Ids, high: Ids, gains: np.ndarray, first: int, left: int,
    types: Floats, skip: float, owners: tuple[Ids, Ids], ends: Ids, steps: Ids, others: tuple[Floats, Floats],
    least: float,
) -> None:  # fmt: skip
    """Takes a tile's cells from the last to the first: the best sums from each cell on are known when it is reached.

    Every step into it is tried; the best sum of a path with that step counts for its sentences, unless it is their own.
    """
    longest = len(types)
    for row in range(first + gains.shape[2] - 1, first - 1, -1):
        for column in range(high[row], low[row] - 1, -1):
            rest = after[row, column - low[row]]
            for m in range(0, min(longest, row) + 1):
                begin, end = low[row - m], high[row - m]
                for n in range(max(0, column - end), min(longest, column - begin) + 1):
                    if m == 0 or n == 0:
                        gain = skip if m + n == 1 else NEVER
                    else:
                        gain = gains[m - 1, n - 1, row - first, column - left] + types[m - 1, n - 1]
                    place = column - n - begin
                    after[row - m, place] = max(after[row - m, place], gain + rest)
                    total = totals[row - m, place] + gain + rest
                    if total <= least:
                        continue
                    owner = owners[0][row - 1] if m > 0 else owners[1][column - 1]
                    if not _is_step(ends[owner], steps[owner], row, column, m, n):
                        _raise_to(others[0][row - m : row], total)
                        _raise_to(others[1][column - n : column], total)


@njit(cache=True)
def _is_step(end: Ids, step: Ids, row: int, column: int, m: int, n: int) -> bool:
    """Whether a step of the path is the one of m and n sentences into a cell."""
    return bool(end[0] == row and end[1] == column and step[0] == m and step[1] == n)


@njit(cache=True)
def _raise_to(values: Floats, least: float) -> None:
    """Puts a number in the place of all smaller ones."""
    for place in range(len(values)):
        values[place] = max(values[place], least)


@njit(cache=True)
def _trace(taken: np.ndarray, low: Ids, columns: int, longest: int, steps: Ids) -> int:
    """Writes the steps of the best path, the last one first; gives their number."""
    row, column, count = len(low) - 1, columns, 0
    while row > 0 or column > 0:
        step = taken[row, column - low[row]]
        if step == longest * longest:
            m, n = 1, 0
        elif step == longest * longest + 1:
            m, n = 0, 1
        else:
            m, n = step // longest + 1, step % longest + 1
        steps[count, 0], steps[count, 1] = m, n
        row, column, count = row - m, column - n, count + 1
    return count


class KeptGains:
    """Gains that are made once for several paths through the same band, while they are not too many.

    Args:
        gains: What makes them.
    """

    def __init__(self, gains: Gains) -> None:
        self.gains, self.bytes = gains, 0
        self.tiles: dict[tuple[int, int, int, int], np.ndarray] = {}

    def __call__(self, rows: slice, columns: slice) -> np.ndarray:
        """See `Gains`."""
        key = rows.start, rows.stop, columns.start, columns.stop
        if key in self.tiles:
            return self.tiles[key]
        tile = self.gains(rows, columns)
        if self.bytes + tile.nbytes <= KEPT_BYTES:
            self.tiles[key] = tile
            self.bytes += tile.nbytes
        return tile
