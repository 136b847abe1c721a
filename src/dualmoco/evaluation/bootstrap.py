"""The noise of a number: percentile intervals and paired comparisons by resampling test items. Shapes: R resamples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dualmoco.core.vectors import Floats
from dualmoco.evaluation.sample import Sample, value_of

RESAMPLES = 1000
LEVEL = 0.95
CELLS = 4_000_000  # weights drawn at once


@dataclass(frozen=True)
class Difference:
    """How much one figure exceeds another over the same test items."""

    value: float
    low: float
    high: float
    p: float
    """Share of resamples, both tails, in which the sign of the difference is not the one seen."""


def interval(sample: Sample, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """The middle 95 % of a figure over resamples of its units, in percent."""
    figures = np.concatenate([sample.statistic(weights) for weights in _draws(sample, resamples, seed)])
    low, high = np.quantile(figures, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def compare_samples(a: Sample, b: Sample, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """The difference of two figures, both resampled with the same units at a time.

    Args:
        a: What one figure was computed from.
        b: The same test items under another model.
        resamples: How many.
        seed: Of the resamples.

    Returns:
        b minus a, its interval and the two-sided p-value.

    Raises:
        DataError: The samples are not of the same test items.
    """
    a, b = a.beside(b)
    differences = np.concatenate(
        [b.statistic(weights) - a.statistic(weights) for weights in _draws(a, resamples, seed)]
    )
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (int(tail) + 1) / (resamples + 1))
    return Difference(value_of(b) - value_of(a), float(low), float(high), p)


def _draws(sample: Sample, resamples: int, seed: int) -> Iterator[Floats]:
    """Yields weights (some, n): how often each unit is drawn, each stratum as often as it has units."""
    generator = np.random.default_rng(seed)
    at_once = max(1, CELLS // max(1, sum(sample.strata)))
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        parts = [generator.multinomial(size, np.full(size, 1 / size), size=count) for size in sample.strata]
        yield np.concatenate(parts, axis=1).astype(np.float64)
