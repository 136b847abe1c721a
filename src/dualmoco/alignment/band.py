"""The cells that are looked at: a band around the anchors, and how it grows.

A cell (i, j) is reached when i sentences of the source and j of the target are linked. Takes anchors' numbers, gives
`Band`. Shapes: N and M sentences, a anchors, c cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dualmoco.core.vectors import Ids

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
