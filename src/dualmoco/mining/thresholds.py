"""A threshold of highest F1, from pairs known to be translations: gold ones, or some planted among the others.

Takes `ScoredPairs` and the known pairs, gives the threshold with its interval by bootstrap. Of planted pairs both
sentences are known, so every mined pair with one of them is right or wrong. Shapes: p pairs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dualmoco.core.bootstrap import draw_counts, percentile_interval
from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats, Ids
from dualmoco.mining.margins import ScoredPairs

RESAMPLES = 200


@dataclass(frozen=True)
class Threshold:
    """A lowest score, and how well the pairs from it on agree with the gold it was chosen by."""

    value: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Calibration:
    """The threshold, how good it is on known pairs, and how much it varies when they are drawn again."""

    threshold: Threshold
    low: float
    high: float
    known: int

    def to_json(self) -> dict[str, Any]:
        """For manifests."""
        return {**asdict(self.threshold), "low": self.low, "high": self.high, "known_pairs": self.known}


def best_threshold(scores: Floats, correct: np.ndarray, gold: int) -> Threshold:
    """The lowest score to accept so that F1 against gold pairs is highest.

    Args:
        scores: Of the pairs, descending, shape (p,).
        correct: Whether each is a gold pair, shape (p,).
        gold: How many gold pairs there are, found or not.

    Returns:
        A threshold halfway between two scores; infinity, with F1 0, if no pair is right.
    """
    hits = np.cumsum(correct)  # (p,)
    last = np.append(scores[1:] < scores[:-1], True)[: len(scores)]  # equal scores are accepted together
    f1 = np.where(last, 2 * hits / (np.arange(1, len(hits) + 1) + gold), 0.0)
    if not len(f1) or f1.max() == 0:
        return Threshold(np.inf, 0.0, 0.0, 0.0)
    place = int(f1.argmax())
    following = scores[place + 1] if place + 1 < len(scores) else scores[place]
    value = float(scores[place] + following) / 2 if np.isfinite(following) else float(scores[place])
    return Threshold(value, float(hits[place] / (place + 1)), float(hits[place] / gold), float(f1[place]))


def calibrate(pairs: ScoredPairs, known: dict[int, int], left_out: int = 0, seed: int = 0) -> Calibration:
    """Chooses the threshold of highest F1 on known pairs.

    Args:
        pairs: Mined pairs by descending score.
        known: For source rows whose translation is known, the target row.
        left_out: Known pairs that could not be mined, since a sentence was left out before.
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
    chosen = best_threshold(scores, correct, len(known) + left_out)
    values = _resampled(scores, correct, owners, np.array(sorted(known)), seed)
    return Calibration(chosen, *percentile_interval(values), len(known) + left_out)


def _resampled(scores: Floats, correct: np.ndarray, owners: Ids, sources: Ids, seed: int) -> Floats:
    """Best thresholds over resamples of the known pairs, those without one left out."""
    places = np.searchsorted(sources, owners)
    values = []
    for counts in draw_counts([len(sources)], RESAMPLES, seed):
        for drawn in counts:
            weights = drawn[places]
            repeated, right = np.repeat(scores, weights), np.repeat(correct, weights)
            values.append(best_threshold(repeated, right, len(sources)).value)
    found: Floats = np.array(values)
    return found[np.isfinite(found)]
