"""Anchors: pairs of sentences that translate each other one to one, found from coarse to fine in linear time.

Adjacent sentence vectors are averaged pairwise until few are left. The best path through those is exact and limits the
search at twice the resolution, down to single sentences (Thompson and Koehn, 2019).

Shapes: N and M sentences, a anchors, c cells, D dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.dynamic_programming import (
    BAND_BUFFER,
    WIDE_GAP,
    LinkTable,
    StepPriors,
    band_around,
    best_path,
    full_band,
)
from dualmoco.alignment.scoring import BandCosines, band_cosines
from dualmoco.core.vectors import Floats, Ids, Vectors

COARSEST_CELLS = 90_000  # up to this many cells are searched without a band
SAMPLED_SENTENCES = 128  # sentences per side to estimate the cosine of unrelated sentences
MIN_ANCHOR_SHARE = 0.4
"""Share of the shorter text's sentences that must have an anchor. The share was at most 0.3 for unrelated texts and at
least 0.79 for translations (`python -m benchmarks.align_confidence`)."""
ANCHOR_DEVIATIONS = 2.0  # two sentences can be an anchor from this many standard deviations above the mean
MIN_SENTENCE_PAIRS = (
    100  # with fewer sentences, too many pairs are translations to estimate the scores of unrelated ones
)
ANCHOR_DECIMALS = 5


@dataclass(frozen=True)
class Anchors:
    """Sentences that are linked one to one; the numbers of both sides increase."""

    src: Ids  # (a,)
    tgt: Ids  # (a,)
    similarity: Floats  # (a,) cosine minus the cosine of unrelated sentences
    cosines: BandCosines | None = None  # the cosines computed to find them


def find_anchors(src: Vectors, tgt: Vectors) -> Anchors:
    """Finds the anchors of two texts, given the unit vectors (N, D) and (M, D) of their sentences."""
    if (len(src) + 1) * (len(tgt) + 1) <= COARSEST_CELLS or min(len(src), len(tgt)) < 2 * BAND_BUFFER:
        band = full_band(len(src), len(tgt))
    else:
        coarse = find_anchors(_average_pairs(src), _average_pairs(tgt))
        band = band_around(2 * coarse.src + 1, 2 * coarse.tgt + 1, (len(src), len(tgt)), 2 * WIDE_GAP)
    cosines = band_cosines(src, tgt, band)
    gains, least = _anchor_gains(src, tgt, cosines)
    table = LinkTable(band, np.arange(band.cells + 1), np.zeros(band.cells, dtype=np.uint8), gains, 1)
    path = best_path(table, StepPriors(np.zeros(1), 0.0))
    linked = path.links >= 0
    ends = path.steps.cumsum(axis=0)[linked]
    similarity = gains[path.links[linked]].astype(np.float64) + least
    return Anchors(ends[:, 0] - 1, ends[:, 1] - 1, np.round(similarity, ANCHOR_DECIMALS), cosines)


def anchor_share(anchors: Anchors, rows: int, columns: int) -> float:
    """Share of the shorter text's sentences that have an anchor; 1 for texts too short to judge."""
    return len(anchors.src) / min(rows, columns) if rows * columns >= MIN_SENTENCE_PAIRS else 1.0


def _anchor_gains(src: Vectors, tgt: Vectors, cosines: BandCosines) -> tuple[np.ndarray, float]:
    """Gains of 1-1 links by cell, (c,) float32, and the threshold that was subtracted from them.

    From each cosine, half of what either sentence scores with unrelated sentences is subtracted, then the threshold.
    """
    known = 0.5 if len(src) * len(tgt) >= MIN_SENTENCE_PAIRS else 0.0
    rows, columns = (
        np.linspace(0, len(side) - 1, min(len(side), SAMPLED_SENTENCES)).astype(np.int64) for side in (src, tgt)
    )
    some_src, some_tgt = src[rows], tgt[columns]
    usual_src, usual_tgt = known * (src @ some_tgt.mean(axis=0)), known * (tgt @ some_src.mean(axis=0))  # (N,), (M,)
    sample = some_src @ some_tgt.T - usual_src[rows][:, None] - usual_tgt[columns]
    least = round(float(sample.mean() + ANCHOR_DEVIATIONS * sample.std()), ANCHOR_DECIMALS) if known else 0.0
    gains, band = cosines.values.copy(), cosines.band
    usual = np.round(usual_src, ANCHOR_DECIMALS), np.round(usual_tgt, ANCHOR_DECIMALS)
    _subtract_usual(gains, band.low, band.high, *usual, least)
    return gains, least


@njit(cache=True)
def _subtract_usual(
    gains: np.ndarray, low: Ids, high: Ids, usual_src: np.ndarray, usual_tgt: np.ndarray, least: float
) -> None:
    """Subtracts the usual cosines of both sentences and the threshold, in place."""
    cell = 0
    for row in range(len(low)):
        for column in range(low[row], high[row] + 1):
            if row > 0 and column > 0:
                gains[cell] -= usual_src[row - 1] + usual_tgt[column - 1] + least
            cell += 1


@njit(cache=True, fastmath=True)
def _average_pairs(vectors: np.ndarray) -> np.ndarray:
    """Unit vectors of the sums of two adjacent sentences, shape (ceil(N / 2), D); an odd last sentence stays alone."""
    averaged = np.empty(((len(vectors) + 1) // 2, vectors.shape[1]), dtype=np.float32)
    for place in range(len(averaged)):
        sums, first, second = averaged[place], vectors[2 * place], vectors[min(2 * place + 1, len(vectors) - 1)]
        square = np.float32(0)
        for part in range(len(sums)):
            sums[part] = first[part] + second[part]
            square += sums[part] * sums[part]
        scale = np.float32(1 / np.sqrt(square) if square > 0 else 0.0)
        for part in range(len(sums)):
            sums[part] *= scale
    return averaged
