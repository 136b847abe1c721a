"""Where the path runs: sentences that translate each other one to one, found from coarse to fine in linear time.

Vectors of both texts are averaged two by two until few are left; the best path among those is exact, and leads the
search among twice as many, down to the sentences themselves (Thompson and Koehn, 2019). Takes sentence vectors, gives
`Anchors`, and the band around them. Shapes: N and M sentences, a anchors, D dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmoco.alignment.path import Band, best_path, full_band
from dualmoco.core.vectors import Floats, Ids, Vectors, unit_vectors

FEW_CELLS = 90_000  # at most so many are looked at without a band
BUFFER = 8  # cells around a path in which the next one is looked for
GAP = 64  # sentences between two anchors; a wider gap is crossed along its diagonal
SAMPLE = 512  # sentences of each side whose cosines tell what is usual
FEWEST_PARTNERS = 0.3
"""The share of the shorter text's sentences that have a partner, below which texts are not translations: of unrelated
ones it was at most 0.26, of translations at least 0.8 (docs/align.md)."""
DEVIATIONS = 2.0  # above what is usual, from where on two sentences can be an anchor
FEW_PAIRS = 100  # of sentences: of fewer most may be translations, so that nothing is usual
PLACES = 5


@dataclass(frozen=True)
class Anchors:
    """Sentences that are linked one to one; both numbers rise."""

    src: Ids  # (a,)
    tgt: Ids  # (a,)
    similarity: Floats  # (a,) cosines above what is usual for these texts


def find_anchors(src: Vectors, tgt: Vectors) -> Anchors:
    """Finds anchors.

    Args:
        src: Unit vectors of the source sentences, shape (N, D).
        tgt: Of the target sentences, shape (M, D).

    Returns:
        The anchors; none if no two sentences are more alike than others.
    """
    if (len(src) + 1) * (len(tgt) + 1) <= FEW_CELLS or min(len(src), len(tgt)) < 2 * BUFFER:
        band = full_band(len(src), len(tgt))
    else:
        coarse = find_anchors(_halved(src), _halved(tgt))
        band = band_around(2 * coarse.src + 1, 2 * coarse.tgt + 1, (len(src), len(tgt)), 2 * GAP)
    likeness = _Likeness(src, tgt)
    steps = best_path(band, likeness, np.zeros((1, 1)), 0.0).steps
    ends = steps.cumsum(axis=0)[steps.all(axis=1)]
    return Anchors(ends[:, 0] - 1, ends[:, 1] - 1, likeness.at(ends[:, 0] - 1, ends[:, 1] - 1))


def can_tell(rows: int, columns: int) -> bool:
    """Whether texts of N and M sentences are long enough to tell what is usual for them."""
    return rows * columns >= FEW_PAIRS


def partner_share(anchors: Anchors, rows: int, columns: int) -> float:
    """The share of the shorter text's sentences that have a partner; 1 where that cannot be told."""
    return len(anchors.src) / min(rows, columns) if can_tell(rows, columns) else 1.0


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


class _Likeness:
    """How much more alike two sentences are than it takes to be an anchor; see `path.Gains`, with P = 1."""

    def __init__(self, src: Vectors, tgt: Vectors) -> None:
        self.src, self.tgt = src, tgt
        known = 0.5 if can_tell(len(src), len(tgt)) else 0.0
        self.usual_src, self.usual_tgt = (
            known * (src @ tgt.mean(axis=0)),
            known * (tgt @ src.mean(axis=0)),
        )  # (N,), (M,)
        rows, columns = (np.linspace(0, len(side) - 1, min(len(side), SAMPLE)).astype(np.int64) for side in (src, tgt))
        sample = src[rows] @ tgt[columns].T - self.usual_src[rows][:, None] - self.usual_tgt[columns][None, :]
        least = sample.mean() + DEVIATIONS * sample.std() if known else 0.0
        self.least = float(np.round(least, PLACES))

    def __call__(self, rows: slice, columns: slice) -> np.ndarray:
        """Gains (1, 1, r, c)."""
        gains = np.zeros((1, 1, rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)
        top, left = max(rows.start, 1), max(columns.start, 1)  # no step leads into the first row or column
        ends, others = slice(top - 1, rows.stop - 1), slice(left - 1, columns.stop - 1)
        above = self.src[ends] @ self.tgt[others].T - self.usual_src[ends, None] - self.usual_tgt[others]
        gains[0, 0, top - rows.start :, left - columns.start :] = np.round(above, PLACES) - self.least
        return gains

    def at(self, src: Ids, tgt: Ids) -> Floats:
        """Cosines of some pairs above what is usual, shape (a,)."""
        cosines = np.einsum("ad,ad->a", self.src[src], self.tgt[tgt])
        return np.asarray(np.round(cosines - self.usual_src[src] - self.usual_tgt[tgt], PLACES), dtype=np.float64)


def _halved(vectors: Vectors) -> Vectors:
    """Means of two sentences each, of the last alone if their number is odd, shape (ceil(N / 2), D)."""
    halved = np.array(vectors[::2])
    halved[: len(vectors) // 2] += vectors[1::2]
    return unit_vectors(halved)
