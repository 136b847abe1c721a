"""A threshold from pairs that are known to be translations: gold ones, or some planted among the others.

Of planted pairs both sentences are known, so every mined pair with one of them is right or wrong. Shapes: p pairs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Ids
from dualmoco.mining.margins import ScoredPairs, Threshold, best_threshold

RESAMPLES = 200
LEVEL = 0.95


@dataclass(frozen=True)
class Calibration:
    """The threshold, how good it is on known pairs, and how much it varies when they are drawn anew."""

    threshold: Threshold
    low: float
    high: float
    known: int

    def to_json(self) -> dict[str, Any]:
        """For manifests."""
        return {**asdict(self.threshold), "low": self.low, "high": self.high, "known_pairs": self.known}


def calibrate(pairs: ScoredPairs, known: dict[int, int], seed: int = 0) -> Calibration:
    """Chooses the threshold of highest F1 on known pairs.

    Args:
        pairs: Mined pairs by descending score.
        known: For source rows whose translation is known, the target row.
        seed: Of the resamples.

    Returns:
        The threshold with its 95 % interval by bootstrap over known pairs.

    Raises:
        DataError: No known pair was mined at any score.
    """
    targets = {target: source for source, target in known.items()}
    src, tgt = pairs.src.tolist(), pairs.tgt.tolist()
    owner = np.array([a if a in known else targets.get(b, -1) for a, b in zip(src, tgt, strict=True)])
    judged = np.flatnonzero(owner >= 0)
    correct = np.array([known.get(src[place]) == tgt[place] for place in judged], dtype=bool)
    if not correct.any():
        raise DataError(f"none of {len(known):,} known pairs was mined; expected some: are the languages right?")
    scores, owners = pairs.scores[judged], owner[judged]
    chosen = best_threshold(scores, correct, len(known))
    values = _resampled(scores, correct, owners, np.array(sorted(known)), seed)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Calibration(chosen, float(low), float(high), len(known))


def _resampled(scores: np.ndarray, correct: np.ndarray, owners: Ids, sources: Ids, seed: int) -> list[float]:
    """Best thresholds over resamples of the known pairs."""
    generator = np.random.default_rng(seed)
    places = np.searchsorted(sources, owners)
    values = []
    for _ in range(RESAMPLES):
        counts = np.bincount(generator.integers(len(sources), size=len(sources)), minlength=len(sources))
        weights = counts[places]
        found = best_threshold(np.repeat(scores, weights), np.repeat(correct, weights), len(sources)).value
        if np.isfinite(found):
            values.append(found)
    return values
