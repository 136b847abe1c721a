"""The best path through two texts by dynamic programming, within a band of cells.

Cell (i, j) is reached once the first i source and the first j target sentences are aligned. A path leads from cell
(0, 0) to cell (N, M); each step is a link of several sentences, or the deletion of one sentence of either side. Only
the cells of a `Band` are visited. The loops are compiled by Numba, because row-wise NumPy took several times as long.

Shapes: N and M sentences, P maximum sentences per side of a link, a anchors, c cells, b candidate links, s steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numba import njit

from dualmoco.core.vectors import Floats, Ids

BAND_BUFFER = 3  # cells on each side of a coarse path that are searched for the finer one
WIDE_GAP = 64  # sentences between two anchors; wider gaps are crossed along their diagonal
BAND_GROWTH = 32  # rows and columns added where a path runs along the edge of its band

BandArrays = tuple[Ids, Ids, Ids]
"""Lower edge, upper edge and row starts of a band: arguments of the compiled functions."""


@dataclass(frozen=True)
class Band:
    """The cells to visit: in row i the columns low[i] to high[i], numbered row by row. The edges never decrease."""

    low: Ids  # (N + 1,), 0 in the first row
    high: Ids  # (N + 1,), M in the last row

    @cached_property
    def starts(self) -> Ids:
        """Number of the first cell of each row, and of all cells, shape (N + 2,)."""
        return np.append(0, np.cumsum(self.high - self.low + 1))

    @property
    def cells(self) -> int:
        """Number of cells."""
        return int(self.starts[-1])

    @property
    def arrays(self) -> BandArrays:
        """See `BandArrays`."""
        return self.low, self.high, self.starts


def full_band(rows: int, columns: int) -> Band:
    """All cells of two texts with N = `rows` and M = `columns` sentences."""
    return Band(np.zeros(rows + 1, dtype=np.int64), np.full(rows + 1, columns, dtype=np.int64))


def band_around(src: Ids, tgt: Ids, counts: tuple[int, int], gap: int = WIDE_GAP, buffer: int = BAND_BUFFER) -> Band:
    """The cells around anchors (a,) in texts of N and M sentences, with `buffer` cells on each side.

    Between anchors that are more than `gap` sentences apart, only cells near the diagonal are included.
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
    """Rows and columns of the cells before and after each anchor, with cells along the diagonal of wide gaps."""
    corners = [np.empty(2 * len(side) + 2, dtype=np.int64) for side in (src, tgt)]
    for side, anchors, count in zip(corners, (src, tgt), counts, strict=True):
        side[0], side[-1] = 0, count
        side[1:-1:2], side[2:-1:2] = anchors, anchors + 1
    widths = np.maximum(np.diff(corners[0]), np.diff(corners[1]))
    pieces = np.maximum(1, -(-widths // gap))  # (2 a + 1,)
    owner = np.repeat(np.arange(len(pieces)), pieces)
    part = (np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) / pieces[owner]
    rows, columns = ((side[owner] + np.floor(part * np.diff(side)[owner])).astype(np.int64) for side in corners)
    return np.append(rows, counts[0]), np.append(columns, counts[1])


def pad_band(band: Band, before: int, after: int) -> Band:
    """The band with more rows and columns before and after each of its cells, within the limits of the texts."""
    rows, columns = np.arange(len(band.low)), int(band.high[-1])
    low = band.low[np.maximum(rows - after, 0)] - before
    high = band.high[np.minimum(rows + before, len(rows) - 1)] + after
    return Band(np.maximum(low, 0), np.minimum(high, columns))


def rows_at_edge(band: Band, steps: Ids) -> Ids:
    """Rows in which a path of steps (s, 2) touches an edge of its band that is not the start or end of the target."""
    cells = np.concatenate([np.zeros((1, 2), dtype=np.int64), steps.cumsum(axis=0)])
    rows, columns = cells[:, 0], cells[:, 1]
    low, high = band.low[rows], band.high[rows]
    at_edge = ((columns == low) & (low > 0)) | ((columns == high) & (high < band.high[-1]))
    return np.unique(rows[at_edge])


def widen_band(band: Band, rows: Ids) -> Band:
    """The band with BAND_GROWTH more cells on each side of the given rows and of the rows near them."""
    near = np.zeros(len(band.low), dtype=bool)
    for row in rows.tolist():
        near[max(0, row - BAND_GROWTH) : row + BAND_GROWTH + 1] = True
    low = np.where(near, np.maximum(band.low - BAND_GROWTH, 0), band.low)
    high = np.where(near, np.minimum(band.high + BAND_GROWTH, band.high[-1]), band.high)
    low = np.minimum.accumulate(low[::-1])[::-1]
    return Band(np.ascontiguousarray(low), np.maximum.accumulate(high))  # another layout would be compiled separately


MAX_MARGIN = 2.0  # larger margins do not mean more certainty
UNREACHABLE = -1e30  # total of a cell that no path reaches
DELETED_TGT, DELETED_SRC = -1, -2  # in place of a link number: a sentence of that side is deleted

PathProblem = tuple[Ids, Ids, Ids, Ids, np.ndarray, np.ndarray, int, Floats, float]
"""Band arrays, then offsets, types, gains and `longest` of a LinkTable, then both fields of StepPriors."""


@dataclass(frozen=True)
class LinkTable:
    """Candidate links, grouped by the cell they lead to."""

    band: Band
    offsets: Ids  # (c + 1,) number of the first link into each cell
    types: np.ndarray  # (b,) the type m-n as (m - 1) * P + n - 1, uint8
    gains: np.ndarray  # (b,) what each link adds to the total of a path, float32
    longest: int  # P

    @cached_property
    def ends(self) -> tuple[Ids, Ids]:
        """Rows and columns of the cells that the links lead to, shapes (b,)."""
        rows = np.repeat(np.arange(len(self.band.low)), np.diff(self.offsets[self.band.starts]))
        cells = np.repeat(np.arange(self.band.cells), np.diff(self.offsets))
        return rows, cells - self.band.starts[rows] + self.band.low[rows]

    def spans(self) -> tuple[Ids, Ids]:
        """Source and target spans of the links, as first sentence and end (exclusive), shapes (b, 2)."""
        rows, columns = self.ends
        m, n = (part.astype(np.int64) + 1 for part in np.divmod(self.types, self.longest))
        return np.stack([rows - m, rows], axis=1), np.stack([columns - n, columns], axis=1)

    def take(self, kept: np.ndarray) -> LinkTable:
        """The links for which a mask (b,) is true."""
        places = np.flatnonzero(kept)
        offsets = np.searchsorted(places, self.offsets)
        return replace(self, offsets=offsets, types=self.types[places], gains=self.gains[places])


@dataclass(frozen=True)
class StepPriors:
    """Terms added to the total of a path for the type of each step."""

    types: Floats  # (P * P,) for links, by type
    deletion: float  # for each deleted sentence; at most 0


@dataclass(frozen=True)
class BestPath:
    """The path with the highest total."""

    steps: Ids  # (s, 2) number of source and target sentences of each step
    links: Ids  # (s,) number of each step's link; negative for a deletion
    totals: Floats  # (c,) highest total of a path to each cell


def best_path(table: LinkTable, priors: StepPriors) -> BestPath:
    """Finds the path whose gains and priors have the highest sum; ValueError if the band has a break."""
    band = table.band
    if (band.low[1:] > band.high[:-1] + table.longest).any():
        raise ValueError("no path leads through the band; expected each row to start before the previous row ends")
    totals, taken = np.empty(band.cells), np.empty(band.cells, dtype=np.int32)
    _forward_pass(_problem(table, priors), totals, taken)
    longest_path = len(band.low) - 1 + int(band.high[-1])
    steps, links = np.empty((longest_path, 2), dtype=np.int64), np.empty(longest_path, dtype=np.int64)
    count = _trace_back(taken, band.arrays, table.types, table.longest, steps, links)
    return BestPath(steps[:count][::-1], links[:count][::-1], totals)


def link_losses(table: LinkTable, priors: StepPriors, path: BestPath) -> Floats:
    """How far the best path through each link falls short of the best path, shape (b,); 0 for links on that path."""
    losses: Floats = _backward_pass(_problem(table, priors), path.totals)[0]
    return losses


def step_margins(table: LinkTable, priors: StepPriors, path: BestPath) -> Floats:
    """How far the best path without each step falls short of the best path, shape (s,); at most MAX_MARGIN.

    A path is without a step if it has at least one of the step's sentences in another step.
    """
    losses, *deletion_losses = _backward_pass(_problem(table, priors), path.totals)
    losses[path.links[path.links >= 0]] = np.inf  # a step is not its own alternative
    close = np.flatnonzero(losses < MAX_MARGIN)
    margins = np.full(len(path.steps), MAX_MARGIN)
    for side, (spans, without) in enumerate(zip(table.spans(), deletion_losses, strict=True)):
        owner = np.repeat(np.arange(len(path.steps)), path.steps[:, side])  # step of each sentence, (N,) or (M,)
        lowest = np.full(len(owner), MAX_MARGIN)  # loss of the best path that has the sentence in another step
        _lower(lowest, spans[close], losses[close])
        is_deleted = path.links[owner] < 0
        np.minimum(lowest, np.where(is_deleted, np.inf, without), out=lowest)
        np.minimum.at(margins, owner, lowest)
    return np.asarray(np.maximum(margins, 0.0))


def _problem(table: LinkTable, priors: StepPriors) -> PathProblem:
    links = table.offsets, table.types, table.gains, table.longest
    return *table.band.arrays, *links, priors.types, priors.deletion


@njit(cache=True)
def _forward_pass(problem: PathProblem, totals: Floats, taken: np.ndarray) -> None:
    """Writes the highest total of each cell and the step that leads to it, row by row."""
    low, high, starts, offsets, types, gains, longest, priors, deletion = problem
    origins = np.empty((3, len(priors)), np.int64)
    for row in range(len(low)):
        _find_origins(low, high, starts, row, longest, origins)
        for column in range(low[row], high[row] + 1):
            cell = starts[row] + column - low[row]
            best, step = _best_deletion(low, high, starts, row, column, deletion, totals)
            for link in range(offsets[cell], offsets[cell + 1]):
                kind = types[link]
                if origins[1, kind] <= column <= origins[2, kind]:
                    total = totals[origins[0, kind] + column] + gains[link] + priors[kind]
                    if total > best:
                        best, step = total, link
            totals[cell], taken[cell] = best, step


@njit(cache=True)
def _find_origins(low: Ids, high: Ids, starts: Ids, row: int, longest: int, origins: Ids) -> None:
    """Writes where links of each type into a row come from, (3, P * P).

    The first number plus the column that a link leads to is the cell it comes from; that cell is in the band if the
    column is between the second and the third number.
    """
    for kind in range(longest * longest):
        m, n = kind // longest + 1, kind % longest + 1
        above = row - m
        origins[1, kind], origins[2, kind] = 1, 0
        if above >= 0:
            origins[0, kind] = starts[above] - low[above] - n
            origins[1, kind], origins[2, kind] = low[above] + n, high[above] + n


@njit(cache=True, inline="always")
def _best_deletion(
    low: Ids, high: Ids, starts: Ids, row: int, column: int, deletion: float, totals: Floats
) -> tuple[float, int]:
    """The highest total of a cell that a deletion leads to, and the deleted side; 0 for the first cell."""
    best, step = 0.0 if row == column == 0 else UNREACHABLE, DELETED_TGT
    if column > low[row]:
        best = totals[starts[row] + column - low[row] - 1] + deletion
    if row > 0 and low[row - 1] <= column <= high[row - 1]:
        total = totals[starts[row - 1] + column - low[row - 1]] + deletion
        if total > best:
            best, step = total, DELETED_SRC
    return best, step


@njit(cache=True)
def _backward_pass(problem: PathProblem, totals: Floats) -> tuple[Floats, Floats, Floats]:
    """Losses of the best path through each link, (b,), and with each sentence deleted, (N,) and (M,)."""
    low, high, starts, offsets, types, gains, longest, priors, deletion = problem
    after, best = np.full(len(totals), UNREACHABLE), totals[-1]
    losses = np.full(len(gains), np.inf)
    src_losses, tgt_losses = np.full(len(low) - 1, np.inf), np.full(high[-1], np.inf)
    after[-1], origins = 0.0, np.empty((3, len(priors)), np.int64)
    for row in range(len(low) - 1, -1, -1):  # from last to first: the best total from a cell to the end is then known
        _find_origins(low, high, starts, row, longest, origins)
        for column in range(high[row], low[row] - 1, -1):
            cell = starts[row] + column - low[row]
            rest = after[cell]
            if column > low[row]:
                after[cell - 1] = max(after[cell - 1], rest + deletion)
                tgt_losses[column - 1] = min(tgt_losses[column - 1], best - (totals[cell - 1] + deletion + rest))
            if row > 0 and low[row - 1] <= column <= high[row - 1]:
                origin = starts[row - 1] + column - low[row - 1]
                after[origin] = max(after[origin], rest + deletion)
                src_losses[row - 1] = min(src_losses[row - 1], best - (totals[origin] + deletion + rest))
            for link in range(offsets[cell], offsets[cell + 1]):
                kind = types[link]
                if origins[1, kind] <= column <= origins[2, kind]:
                    origin = origins[0, kind] + column
                    total = rest + gains[link] + priors[kind]
                    after[origin] = max(after[origin], total)
                    losses[link] = best - (totals[origin] + total)
    return losses, src_losses, tgt_losses


@njit(cache=True)
def _trace_back(taken: np.ndarray, band: BandArrays, types: np.ndarray, longest: int, steps: Ids, links: Ids) -> int:
    """Writes the steps of the best path, last step first, and returns their number."""
    low, high, starts = band
    row, column, count = len(low) - 1, high[-1], 0
    while row > 0 or column > 0:
        link = taken[starts[row] + column - low[row]]
        m, n = (1, 0) if link == DELETED_SRC else (0, 1)
        if link >= 0:
            m, n = types[link] // longest + 1, types[link] % longest + 1
        steps[count, 0], steps[count, 1], links[count] = m, n, link
        row, column, count = row - m, column - n, count + 1
    return count


@njit(cache=True)
def _lower(values: Floats, spans: Ids, limits: Floats) -> None:
    """Lowers the values in each span (b, 2) to the limit of that span (b,)."""
    for number in range(len(spans)):
        for place in range(spans[number, 0], spans[number, 1]):
            values[place] = min(values[place], limits[number])
