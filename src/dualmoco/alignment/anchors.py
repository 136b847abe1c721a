"""Where the path runs: sentences that translate each other one to one, found from coarse to fine in linear time.

Vectors of both texts are averaged two by two until few are left; the best path among those is exact, and leads the
search among twice as many, down to the sentences themselves (Thompson and Koehn, 2019). Takes sentence vectors, gives
`Anchors`. Shapes: N and M sentences, a anchors, D dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.dynamic_programming import BUFFER, GAP, LinkTable, StepPrices, band_around, best_path, full_band
from dualmoco.alignment.scoring import BandCosines, band_cosines
from dualmoco.core.vectors import Floats, Ids, Vectors

FEW_CELLS = 90_000  # at most so many are looked at without a band
SAMPLE = 128  # sentences of each side whose cosines tell what is usual
FEWEST_PARTNERS = 0.4
"""The share of the shorter text's sentences that have a partner, below which texts are not translations: of unrelated
ones it was at most 0.3, of translations at least 0.79 (`python -m benchmarks.align_confidence`)."""
DEVIATIONS = 2.0  # above what is usual, from where on two sentences can be an anchor
FEW_PAIRS = 100  # of sentences: of fewer most may be translations, so that nothing is usual
PLACES = 5


@dataclass(frozen=True)
class Anchors:
    """Sentences that are linked one to one; both numbers rise."""

    src: Ids  # (a,)
    tgt: Ids  # (a,)
    similarity: Floats  # (a,) cosines above what is usual for these texts
    cosines: BandCosines | None = None  # in which they were found


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
    cosines = band_cosines(src, tgt, band)
    likeness = _likeness(src, tgt, cosines)
    table = LinkTable(band, np.arange(band.cells + 1), np.zeros(band.cells, dtype=np.uint8), likeness.gains, 1)
    path = best_path(table, StepPrices(np.zeros(1), 0.0))
    linked = path.links >= 0
    ends = path.steps.cumsum(axis=0)[linked]
    similarity = likeness.gains[path.links[linked]].astype(np.float64) + likeness.least
    return Anchors(ends[:, 0] - 1, ends[:, 1] - 1, np.round(similarity, PLACES), cosines)


def can_tell(rows: int, columns: int) -> bool:
    """Whether texts of N and M sentences are long enough to tell what is usual for them."""
    return rows * columns >= FEW_PAIRS


def partner_share(anchors: Anchors, rows: int, columns: int) -> float:
    """The share of the shorter text's sentences that have a partner; 1 where that cannot be told."""
    return len(anchors.src) / min(rows, columns) if can_tell(rows, columns) else 1.0


@dataclass(frozen=True)
class _Likeness:
    """How much more alike sentences are than it takes to be an anchor."""

    gains: np.ndarray  # (c,) by cell of a band, in single precision
    least: float  # what was taken off: so much more than usual it takes


def _likeness(src: Vectors, tgt: Vectors, cosines: BandCosines) -> _Likeness:
    """Cosines in a band less half of what is usual for either sentence, less what it takes to be an anchor."""
    known = 0.5 if can_tell(len(src), len(tgt)) else 0.0
    rows, columns = (np.linspace(0, len(side) - 1, min(len(side), SAMPLE)).astype(np.int64) for side in (src, tgt))
    some_src, some_tgt = src[rows], tgt[columns]
    usual_src, usual_tgt = known * (src @ some_tgt.mean(axis=0)), known * (tgt @ some_src.mean(axis=0))  # (N,), (M,)
    sample = some_src @ some_tgt.T - usual_src[rows][:, None] - usual_tgt[columns]
    least = round(float(sample.mean() + DEVIATIONS * sample.std()), PLACES) if known else 0.0
    gains, band = cosines.values.copy(), cosines.band
    _take_off(gains, band.low, band.high, np.round(usual_src, PLACES), np.round(usual_tgt, PLACES), least)
    return _Likeness(gains, least)


@njit(cache=True)
def _take_off(
    gains: np.ndarray, low: Ids, high: Ids, usual_src: np.ndarray, usual_tgt: np.ndarray, least: float
) -> None:
    """Takes off what is usual, in place."""
    cell = 0
    for row in range(len(low)):
        for column in range(low[row], high[row] + 1):
            if row > 0 and column > 0:
                gains[cell] -= usual_src[row - 1] + usual_tgt[column - 1] + least
            cell += 1


@njit(cache=True, fastmath=True)
def _halved(vectors: np.ndarray) -> np.ndarray:
    """Unit vectors of the sums of two sentences each, of the last alone if their number is odd, (ceil(N / 2), D)."""
    halved = np.empty(((len(vectors) + 1) // 2, vectors.shape[1]), dtype=np.float32)
    for place in range(len(halved)):
        sums, first, second = halved[place], vectors[2 * place], vectors[min(2 * place + 1, len(vectors) - 1)]
        square = np.float32(0)
        for part in range(len(sums)):
            sums[part] = first[part] + second[part]
            square += sums[part] * sums[part]
        scale = np.float32(1 / np.sqrt(square) if square > 0 else 0.0)
        for part in range(len(sums)):
            sums[part] *= scale
    return halved
