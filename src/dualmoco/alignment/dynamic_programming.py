"""The cells that are looked at: a band around the anchors, and how it grows.

A cell (i, j) is reached when i sentences of the source and j of the target are linked. Takes anchors' numbers, gives
`Band`. Shapes: N and M sentences, a anchors, c cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numba import njit

from dualmoco.core.vectors import Floats, Ids

BUFFER = 3  # cells around a path in which the next one is looked for
GAP = 64  # sentences between two anchors; a wider gap is crossed along its diagonal
NEAR = 32  # rows and columns that are added around a place where a path runs along the edge


@dataclass(frozen=True)
class Band:
    """In row i the columns from low[i] to high[i], both never falling; cells are numbered row by row."""

    low: Ids  # (N + 1,), 0 in the first row
    high: Ids  # (N + 1,), M in the last row

    @cached_property
    def starts(self) -> Ids:
        """Number of the first cell of each row, and of all cells, shape (N + 2,)."""
        return np.append(0, np.cumsum(self.high - self.low + 1))

    @property
    def cells(self) -> int:
        """How many there are: c."""
        return int(self.starts[-1])

    def check_passable(self, reach: int) -> None:
        """ValueError if no steps of at most so many columns lead through."""
        if (self.low[1:] > self.high[:-1] + reach).any():
            raise ValueError("a band without a way through it; expected every row to begin where the one above ends")


def full_band(rows: int, columns: int) -> Band:
    """All cells of N = `rows` source and M = `columns` target sentences."""
    return Band(np.zeros(rows + 1, dtype=np.int64), np.full(rows + 1, columns, dtype=np.int64))


def band_around(src: Ids, tgt: Ids, counts: tuple[int, int], gap: int = GAP, buffer: int = BUFFER) -> Band:
    """The cells around anchors.

    Args:
        src: Source sentences of anchors, rising, shape (a,).
        tgt: Their target sentences.
        counts: N and M.
        gap: Between anchors further apart than this the cells around the diagonal are taken, not all.
        buffer: How far around.

    Returns:
        The band.
    """
    rows, columns = _corners(src, tgt, counts, gap)
    numbers = np.arange(counts[0] + 1)
    before = np.clip(numbers - buffer, 0, counts[0])
    after = np.clip(numbers + buffer, 0, counts[0])
    low = columns[np.maximum(np.searchsorted(rows, before, "left") - 1, 0)] - buffer
    high = columns[np.minimum(np.searchsorted(rows, after, "right"), len(rows) - 1)] + buffer
    low, high = np.clip(low, 0, counts[1]), np.clip(high, 0, counts[1])
    low[0], high[-1] = 0, counts[1]
    return Band(low, high)


def _corners(src: Ids, tgt: Ids, counts: tuple[int, int], gap: int) -> tuple[Ids, Ids]:
    """Cells that the path goes through, rows and columns never falling; wide gaps have cells along their diagonal."""
    corners = [np.empty(2 * len(side) + 2, dtype=np.int64) for side in (src, tgt)]
    for side, anchors, count in zip(corners, (src, tgt), counts, strict=True):
        side[0], side[-1] = 0, count
        side[1:-1:2], side[2:-1:2] = anchors, anchors + 1
    wide = np.maximum(np.diff(corners[0]), np.diff(corners[1]))
    pieces = np.maximum(1, -(-wide // gap))  # (2 a + 1,)
    owner = np.repeat(np.arange(len(pieces)), pieces)
    part = (np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) / pieces[owner]
    rows, columns = ((side[owner] + np.floor(part * np.diff(side)[owner])).astype(np.int64) for side in corners)
    return np.append(rows, counts[0]), np.append(columns, counts[1])


def padded(band: Band, before: int, after: int) -> Band:
    """The band with so many more rows and columns before and after each of its cells, as far as the text goes."""
    rows, columns = np.arange(len(band.low)), int(band.high[-1])
    low = band.low[np.maximum(rows - after, 0)] - before
    high = band.high[np.minimum(rows + before, len(rows) - 1)] + after
    return Band(np.maximum(low, 0), np.minimum(high, columns))


def touched(band: Band, steps: Ids) -> Ids:
    """Rows in which a path of steps (s, 2) runs along the edge of its band, where the text does not end there."""
    cells = np.concatenate([np.zeros((1, 2), dtype=np.int64), steps.cumsum(axis=0)])
    rows, places = cells[:, 0], cells[:, 1]
    low, high = band.low[rows], band.high[rows]
    at_edge = ((places == low) & (low > 0)) | ((places == high) & (high < band.high[-1]))
    return np.unique(rows[at_edge])


def widened(band: Band, rows: Ids) -> Band:
    """The band with more cells around some rows."""
    near = np.zeros(len(band.low), dtype=bool)
    for row in rows.tolist():
        near[max(0, row - NEAR) : row + NEAR + 1] = True
    low = np.where(near, np.maximum(band.low - NEAR, 0), band.low)
    high = np.where(near, np.minimum(band.high + NEAR, band.high[-1]), band.high)
    return Band(np.minimum.accumulate(low[::-1])[::-1], np.maximum.accumulate(high))


# Compiled by Numba: a version vectorised in NumPy, row by row, took several times as long (docs/align.md).


MOST_MARGIN = 2.0  # beyond it nothing is more certain
NEVER = -1e30  # in the place of minus infinity
LEFT, UP = -1, -2  # in the place of a link: a target or a source sentence that is left out


@dataclass(frozen=True)
class LinkTable:
    """Links that a path can take, by the cell that they lead to."""

    band: Band
    firsts: Ids  # (c + 1,) number of the first link into each cell
    sizes: np.ndarray  # (b,) m source and n target sentences as (m - 1) * P + n - 1, in 8 bits
    gains: np.ndarray  # (b,) in single precision
    longest: int  # P

    @cached_property
    def ends(self) -> tuple[Ids, Ids]:
        """Rows and columns that the links lead to, shapes (b,)."""
        rows = np.repeat(np.arange(len(self.band.low)), np.diff(self.firsts[self.band.starts]))
        cells = np.repeat(np.arange(self.band.cells), np.diff(self.firsts))
        return rows, cells - self.band.starts[rows] + self.band.low[rows]

    def runs(self) -> tuple[Ids, Ids]:
        """Sentences of the links on either side, from one to before another, shapes (b, 2)."""
        rows, columns = self.ends
        m, n = (part.astype(np.int64) + 1 for part in np.divmod(self.sizes, self.longest))
        return np.stack([rows - m, rows], axis=1), np.stack([columns - n, columns], axis=1)

    def take(self, kept: np.ndarray) -> LinkTable:
        """Some of the links, by a mask (b,)."""
        firsts, sizes, gains = _take(kept, self.firsts, self.sizes, self.gains)
        return replace(self, firsts=firsts, sizes=sizes, gains=gains)


@dataclass(frozen=True)
class StepPrices:
    """What is added to the gains of steps."""

    types: Floats  # (P * P,) for links by their size
    skip: float  # for leaving out one sentence; not above 0


@dataclass(frozen=True)
class BestPath:
    """A way through the cells."""

    steps: Ids  # (s, 2) sentences of the source and of the target that each step takes
    links: Ids  # (s,) numbers of the links; below zero where a sentence is left out
    totals: Floats  # (c,) best sum of gains up to each cell


def best_path(table: LinkTable, prices: StepPrices) -> BestPath:
    """The steps from the first cell to the last whose gains sum up highest.

    Args:
        table: The links.
        prices: Of their sizes, and of leaving out sentences.

    Returns:
        The path.
    """
    band = table.band
    band.check_passable(table.longest)
    totals, taken = np.empty(band.cells), np.empty(band.cells, dtype=np.int32)
    _fill(*_arrays(table), prices.types, prices.skip, totals, taken)
    rows, columns = len(band.low) - 1, int(band.high[-1])
    steps, links = np.empty((rows + columns, 2), dtype=np.int64), np.empty(rows + columns, dtype=np.int64)
    count = _trace(taken, band.low, band.starts, columns, table.sizes, table.longest, steps, links)
    return BestPath(steps[:count][::-1], links[:count][::-1], totals)


def losses(table: LinkTable, prices: StepPrices, path: BestPath) -> Floats:
    """How much less than the best path the best one with each of the links has, shape (b,); 0 on the best path."""
    found: Floats = _look_back(*_arrays(table), prices.types, prices.skip, path.totals)[0]
    return found


def margins(table: LinkTable, prices: StepPrices, path: BestPath) -> Floats:
    """How much a path would lose if it had to do without each of its steps.

    Args:
        table: The links.
        prices: As for `best_path`.
        path: The best one.

    Returns:
        For each step the sum of gains less that of the best path with one of its sentences in another step, (s,); at
        most MOST_MARGIN.
    """
    lost, *skipped = _look_back(*_arrays(table), prices.types, prices.skip, path.totals)
    lost[path.links[path.links >= 0]] = np.inf  # a step is no rival of itself
    near = np.flatnonzero(lost < MOST_MARGIN)
    src, tgt = (side[near] for side in table.runs())
    rivals = [np.full(count, MOST_MARGIN) for count in (len(table.band.low) - 1, int(table.band.high[-1]))]
    _lower(rivals[0], src, lost[near])
    _lower(rivals[1], tgt, lost[near])
    owners = [np.repeat(np.arange(len(path.steps)), path.steps[:, side]) for side in (0, 1)]  # (N,), (M,)
    one_sided = path.links < 0
    for rival, owner, without in zip(rivals, owners, skipped, strict=True):
        out = one_sided[owner]  # sentences that the path leaves out itself
        np.minimum(rival, np.where(out, np.inf, without), out=rival)
    found = np.full(len(path.steps), MOST_MARGIN)
    for owner, rival in zip(owners, rivals, strict=True):
        np.minimum.at(found, owner, rival)
    return np.asarray(np.maximum(found, 0.0))


def _arrays(table: LinkTable) -> tuple[Ids, Ids, Ids, Ids, np.ndarray, Ids, Ids, np.ndarray]:
    """The band, the links, how many sentences links of each size take of either side, (P * P,), and gains."""
    band, (m, n) = table.band, np.divmod(np.arange(table.longest**2), table.longest)
    return band.low, band.high, band.starts, table.firsts, table.sizes, m + 1, n + 1, table.gains


@njit(cache=True)
def _fill(
    low: Ids,
    high: Ids,
    starts: Ids,
    firsts: Ids,
    sizes: np.ndarray,
    src_sizes: Ids,
    tgt_sizes: Ids,
    gains: np.ndarray,
    types: Floats,
    skip: float,
    totals: Floats,
    taken: np.ndarray,
) -> None:
    """Finds the best sum of each cell and the step that came to it, row by row."""
    reach = np.empty((3, len(types)), np.int64)
    for row in range(len(low)):
        _look_up(low, high, starts, row, src_sizes, tgt_sizes, reach)
        for column in range(low[row], high[row] + 1):
            cell = starts[row] + column - low[row]
            best, step = _best_skip(low, high, starts, row, column, skip, totals)
            for link in range(firsts[cell], firsts[cell + 1]):
                size = sizes[link]
                if reach[1, size] <= column <= reach[2, size]:
                    total = totals[reach[0, size] + column] + gains[link] + types[size]
                    if total > best:
                        best, step = total, link
            totals[cell], taken[cell] = best, step


@njit(cache=True)
def _look_up(low: Ids, high: Ids, starts: Ids, row: int, src_sizes: Ids, tgt_sizes: Ids, reach: Ids) -> None:
    """For links of each size into a row: what is added to a column for the cell they come from, and in which columns.

    Writes three numbers a size, (3, P * P): the difference, the first and the last column.
    """
    for size in range(len(src_sizes)):
        above = row - src_sizes[size]
        reach[1, size], reach[2, size] = 1, 0
        if above >= 0:
            reach[0, size] = starts[above] - low[above] - tgt_sizes[size]
            reach[1, size], reach[2, size] = low[above] + tgt_sizes[size], high[above] + tgt_sizes[size]


@njit(cache=True, inline="always")
def _best_skip(
    low: Ids, high: Ids, starts: Ids, row: int, column: int, skip: float, totals: Floats
) -> tuple[float, int]:
    """The best sum of a cell if a sentence of either side is left out before it, and which; 0 for the first cell."""
    best, step = 0.0 if row == column == 0 else NEVER, LEFT
    if column > low[row]:
        best = totals[starts[row] + column - low[row] - 1] + skip
    if row > 0 and low[row - 1] <= column <= high[row - 1]:
        total = totals[starts[row - 1] + column - low[row - 1]] + skip
        if total > best:
            best, step = total, UP
    return best, step


@njit(cache=True)
def _look_back(
    low: Ids,
    high: Ids,
    starts: Ids,
    firsts: Ids,
    sizes: np.ndarray,
    src_sizes: Ids,
    tgt_sizes: Ids,
    gains: np.ndarray,
    types: Floats,
    skip: float,
    totals: Floats,
) -> tuple[Floats, Floats, Floats]:
    """What paths lose with each of the links, (b,), and if each sentence is left out, (N,) and (M,).

    Takes cells from the last to the first: the best sum from each cell on is known when it is reached.
    """
    after, best = np.full(len(totals), NEVER), totals[-1]
    lost, lost_src, lost_tgt = np.full(len(gains), np.inf), np.full(len(low) - 1, np.inf), np.full(high[-1], np.inf)
    after[-1], reach = 0.0, np.empty((3, len(types)), np.int64)
    for row in range(len(low) - 1, -1, -1):
        _look_up(low, high, starts, row, src_sizes, tgt_sizes, reach)
        for column in range(high[row], low[row] - 1, -1):
            cell = starts[row] + column - low[row]
            rest = after[cell]
            if column > low[row]:
                after[cell - 1] = max(after[cell - 1], rest + skip)
                lost_tgt[column - 1] = min(lost_tgt[column - 1], best - (totals[cell - 1] + skip + rest))
            if row > 0 and low[row - 1] <= column <= high[row - 1]:
                place = starts[row - 1] + column - low[row - 1]
                after[place] = max(after[place], rest + skip)
                lost_src[row - 1] = min(lost_src[row - 1], best - (totals[place] + skip + rest))
            for link in range(firsts[cell], firsts[cell + 1]):
                size = sizes[link]
                if reach[1, size] <= column <= reach[2, size]:
                    place = reach[0, size] + column
                    onwards = rest + gains[link] + types[size]
                    after[place] = max(after[place], onwards)
                    lost[link] = best - (totals[place] + onwards)
    return lost, lost_src, lost_tgt


@njit(cache=True)
def _take(kept: np.ndarray, firsts: Ids, sizes: np.ndarray, gains: np.ndarray) -> tuple[Ids, np.ndarray, np.ndarray]:
    """The links for which `kept` (b,) is true."""
    count, cells = 0, len(firsts) - 1
    left, total = np.empty_like(firsts), kept.sum()
    left_sizes, left_gains = np.empty(total, sizes.dtype), np.empty(total, gains.dtype)
    for cell in range(cells):
        left[cell] = count
        for link in range(firsts[cell], firsts[cell + 1]):
            if kept[link]:
                left_sizes[count], left_gains[count] = sizes[link], gains[link]
                count += 1
    left[cells] = count
    return left, left_sizes, left_gains


@njit(cache=True)
def _lower(values: Floats, runs: Ids, limits: Floats) -> None:
    """Puts each limit in the place of the larger values of its run (b, 2)."""
    for number in range(len(runs)):
        for place in range(runs[number, 0], runs[number, 1]):
            values[place] = min(values[place], limits[number])


@njit(cache=True)
def _trace(
    taken: np.ndarray, low: Ids, starts: Ids, columns: int, sizes: np.ndarray, longest: int, steps: Ids, links: Ids
) -> int:
    """Writes the steps of the best path, the last one first; gives their number."""
    row, column, count = len(low) - 1, columns, 0
    while row > 0 or column > 0:
        link = taken[starts[row] + column - low[row]]
        m, n = (1, 0) if link == UP else (0, 1)
        if link >= 0:
            m, n = sizes[link] // longest + 1, sizes[link] % longest + 1
        steps[count, 0], steps[count, 1], links[count] = m, n, link
        row, column, count = row - m, column - n, count + 1
    return count
