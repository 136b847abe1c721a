"""The bootstrap: how often each unit of a sample is drawn, and the interval of what the resamples give.

Takes sizes of strata and values of resamples. Shapes: R resamples, n units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dualmoco.core.vectors import Floats, Ids

LEVEL = 0.95
CELLS = 4_000_000  # counts drawn at once


def draw_counts(strata: Sequence[int], resamples: int, seed: int) -> Iterator[Ids]:
    """Draws units with replacement, from each stratum as many as it has.

    Args:
        strata: How many units each stratum has; they sum to n.
        resamples: R.
        seed: Of the draws.

    Yields:
        Counts (some, n), how often each unit is drawn; R rows in all.
    """
    generator = np.random.default_rng(seed)
    at_once = max(1, CELLS // max(1, sum(strata)))
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        parts = [generator.multinomial(size, np.full(size, 1 / size), size=rows) for size in strata]
        yield np.concatenate(parts, axis=1)


def percentile_interval(values: Floats) -> tuple[float, float]:
    """The ends of the middle 95 % of the resamples' values (R,)."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
