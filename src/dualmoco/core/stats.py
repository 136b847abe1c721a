"""The bootstrap: resampled counts and percentile intervals. Shapes: R resamples, n units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dualmoco.core.vectors import Floats, Ids

CONFIDENCE_LEVEL = 0.95
COUNTS_PER_BLOCK = 4_000_000


def draw_counts(strata: Sequence[int], resamples: int, seed: int) -> Iterator[Ids]:
    """Draws units with replacement within each stratum; yields R rows (n,) of counts, in blocks."""
    generator = np.random.default_rng(seed)
    block = max(1, COUNTS_PER_BLOCK // max(1, sum(strata)))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        parts = [generator.multinomial(size, np.full(size, 1 / size), size=rows) for size in strata]
        yield np.concatenate(parts, axis=1)


def percentile_interval(values: Floats) -> tuple[float, float]:
    """The 95 % interval of the resampled values (R,)."""
    low, high = np.quantile(values, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return float(low), float(high)


def binomial_interval(hits: float, total: float) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's formula; (0, 1) if `total` is 0."""
    if not total:
        return 0.0, 1.0
    share, z = hits / total, 1.959964
    middle, scale = share + z * z / (2 * total), 1 + z * z / total
    spread = z * np.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return float((middle - spread) / scale), float((middle + spread) / scale)
