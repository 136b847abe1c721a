"""Two evaluations side by side, with the chance that a difference is noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualmoco.core.bootstrap import draw_counts, percentile_interval
from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.evaluation.sample import RESAMPLES, Sample, value_of
from dualmoco.evaluation.score import Score


@dataclass(frozen=True)
class Difference:
    """How much one metric exceeds another over the same test items."""

    value: float
    low: float
    high: float
    p: float
    """Share of resamples, both tails, in which the sign of the difference is not the one seen."""


@dataclass(frozen=True)
class Compared:
    """One metric under two models."""

    a: Score
    b: Score
    difference: Difference | None
    """None where the metric cannot be resampled."""


def compare_samples(a: Sample, b: Sample, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """The difference of two metrics, both resampled with the same units at a time.

    Args:
        a: What one metric was computed from.
        b: The same test items under another model.
        resamples: How many.
        seed: Of the resamples.

    Returns:
        b minus a, its interval and the two-sided p-value.

    Raises:
        DataError: The samples are not of the same test items.
    """
    a, b = a.beside(b)
    draws = (counts.astype(np.float64) for counts in draw_counts(a.strata, resamples, seed))
    differences = np.concatenate([b.statistic(weights) - a.statistic(weights) for weights in draws])  # (R,)
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (int(tail) + 1) / (resamples + 1))
    return Difference(value_of(b) - value_of(a), *percentile_interval(differences), p)


def read_scores(path: Path) -> list[Score]:
    """Reads a file that `dualmoco evaluate --json` wrote.

    Args:
        path: The file.

    Returns:
        Its scores.

    Raises:
        DataError: Not such a file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [Score.from_json(score) for score in content]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; expected a file of evaluate --json") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a list of scores ({error}); expected a file of evaluate --json") from None


def compare_scores(a: Sequence[Score], b: Sequence[Score], resamples: int = RESAMPLES, seed: int = 0) -> list[Compared]:
    """Compares the metrics that two evaluations share, by paired bootstrap.

    Args:
        a: Scores of one model.
        b: Scores of another.
        resamples: How often the test items are drawn again.
        seed: Of the draws.

    Returns:
        The metrics of `a` that `b` has too, in the order of `a`.

    Raises:
        DataError: Nothing in common, or the same name over other test data.
    """
    others = {score.key: score for score in b}
    shared = [(score, others[score.key]) for score in a if score.key in others]
    if not shared:
        raise DataError("the two files share no score; expected evaluations of the same tasks")
    for one, other in shared:
        data, other_data = (score.settings.get("data", "") for score in (one, other))
        if data != other_data:
            raise DataError(f"{' '.join(one.key)}: test data {data} against {other_data}; expected the same test files")
    compared = []
    with counting("comparing", len(shared), " scores") as progress:
        for one, other in shared:
            difference = None
            if one.sample is not None and other.sample is not None:
                difference = compare_samples(one.sample, other.sample, resamples, seed)
            compared.append(Compared(one, other, difference))
            progress(1)
    return compared
