"""What a number was computed from, kept so that it can be resampled.

Each sample gives its statistic for any weights of its units, so that a bootstrap resample is a row of counts, and the
number itself is the statistic with every weight one. Shapes: R resamples, n units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dualmoco.core.bootstrap import draw_counts, percentile_interval
from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats, Ids

RESAMPLES = 1000


class Sample(Protocol):
    """Units that were drawn, and the metric that is computed from them."""

    @property
    def strata(self) -> Sequence[int]:
        """Sizes of the groups that are resampled apart; they sum to n."""

    def statistic(self, weights: Floats) -> Floats:
        """The metric in percent for each row of weights (R, n), shape (R,)."""

    def beside(self, other: Any) -> tuple[Sample, Sample]:
        """This sample and another of the same units, in one order; DataError if the units are not the same."""

    def to_json(self) -> dict[str, Any]:
        """The sample as JSON holds it; `sample_from_json` reads it."""


def value_of(sample: Sample) -> float:
    """The metric of a sample, in percent."""
    return float(sample.statistic(np.ones((1, sum(sample.strata))))[0])


def interval(sample: Sample, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """The middle 95 % of a sample's metric over resamples of its units, in percent."""
    draws = draw_counts(sample.strata, resamples, seed)
    return percentile_interval(np.concatenate([sample.statistic(counts.astype(np.float64)) for counts in draws]))


@dataclass(frozen=True)
class Hits:
    """An average over units, such as accuracy."""

    values: Floats  # (n,) from 0 to 1

    @property
    def strata(self) -> Sequence[int]:
        """One group."""
        return [len(self.values)]

    def statistic(self, weights: Floats) -> Floats:
        """The average in percent."""
        average: Floats = 100 * (weights @ self.values) / weights.sum(axis=1)
        return average

    def beside(self, other: Hits) -> tuple[Hits, Hits]:
        """Both samples, if they have as many units."""
        _check(len(self.values) == len(other.values))
        return self, other

    def to_json(self) -> dict[str, Any]:
        """Values as they are, whole numbers without a point."""
        return {"kind": "hits", "values": _short(self.values)}


@dataclass(frozen=True)
class Correlation:
    """Similarities of pairs beside their gold scores, in groups whose correlations are averaged."""

    predicted: Floats  # (n,)
    gold: Floats  # (n,)
    groups: Sequence[int]  # sizes
    weighted: bool = True
    """Whether a group counts by its size."""
    ranks: bool = True
    """Whether ranks are correlated (Spearman) or values (Pearson)."""

    @property
    def strata(self) -> Sequence[int]:
        """The groups."""
        return self.groups

    def statistic(self, weights: Floats) -> Floats:
        """The average correlation of the groups, times 100."""
        ends = np.cumsum(self.groups)
        total, shares = np.zeros(len(weights)), 0
        for end, size in zip(ends, self.groups, strict=True):
            part, share = slice(end - size, end), size if self.weighted else 1
            total += share * self._correlation(part, weights[:, part])
            shares += share
        return 100 * total / shares

    def _correlation(self, part: slice, weights: Floats) -> Floats:
        a, b = self.predicted[part], self.gold[part]
        if self.ranks:
            a, b = _weighted_ranks(a, weights), _weighted_ranks(b, weights)  # (R, n)
        count = weights.sum(axis=1, keepdims=True)
        a = a - (weights * a).sum(axis=1, keepdims=True) / count
        b = b - (weights * b).sum(axis=1, keepdims=True) / count
        shared = (weights * a * b).sum(axis=1)
        spread = np.sqrt((weights * a * a).sum(axis=1) * (weights * b * b).sum(axis=1))
        correlation: Floats = np.divide(shared, spread, out=np.zeros_like(shared), where=spread > 0)
        return correlation

    def beside(self, other: Correlation) -> tuple[Correlation, Correlation]:
        """Both samples, if their gold scores are the same."""
        _check(list(self.groups) == list(other.groups) and np.array_equal(self.gold, other.gold))
        return self, other

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "kind": "correlation", "predicted": _short(self.predicted), "gold": _short(self.gold),
            "groups": list(self.groups), "weighted": self.weighted, "ranks": self.ranks,
        }  # fmt: skip


@dataclass(frozen=True)
class Extraction:
    """Sentences with the pairs extracted from them, those that are right, and those that exist: F1."""

    ids: Sequence[str]  # n sentences that have an extracted or a gold pair
    extracted: Ids  # (n,) counts
    correct: Ids  # (n,)
    gold: Ids  # (n,)
    found: Ids | None = None  # (n,) gold pairs that were found, where they are counted otherwise than the correct ones

    @property
    def strata(self) -> Sequence[int]:
        """One group."""
        return [len(self.ids)]

    def statistic(self, weights: Floats) -> Floats:
        """F1 in percent."""
        extracted, gold, correct = (weights @ counts for counts in (self.extracted, self.gold, self.correct))
        found = correct if self.found is None else weights @ self.found
        both = extracted * found + gold * correct
        return np.divide(200 * correct * found, both, out=np.zeros_like(both), where=both > 0)

    def beside(self, other: Extraction) -> tuple[Extraction, Extraction]:
        """Both samples over the sentences of either."""
        mine, theirs = dict(zip(self.ids, self.gold, strict=True)), dict(zip(other.ids, other.gold, strict=True))
        _check({name for name in mine if mine[name]} == {name for name in theirs if theirs[name]})
        ids = sorted({*mine, *theirs})
        return self._over(ids), other._over(ids)

    def _over(self, ids: list[str]) -> Extraction:
        columns = [counts for counts in (self.extracted, self.correct, self.gold, self.found) if counts is not None]
        rows = dict(zip(self.ids, zip(*columns, strict=True), strict=True))
        none = (0,) * len(columns)
        counts = np.array([rows.get(name, none) for name in ids], dtype=np.int64).reshape(len(ids), len(columns))
        return Extraction(ids, *counts.T)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        counts = {"extracted": self.extracted, "correct": self.correct, "gold": self.gold, "found": self.found}
        known = {name: value.tolist() for name, value in counts.items() if value is not None}
        return {"kind": "extraction", "ids": list(self.ids), **known}


@dataclass(frozen=True)
class Ranking:
    """Scores of pairs beside whether they are positive: average precision."""

    predicted: Floats  # (n,)
    labels: Ids  # (n,) 0 or 1

    @property
    def strata(self) -> Sequence[int]:
        """One group."""
        return [len(self.labels)]

    def statistic(self, weights: Floats) -> Floats:
        """Average precision in percent; pairs of equal score are taken together."""
        order = np.argsort(-self.predicted, kind="stable")
        descending = self.predicted[order]
        last = np.append(descending[1:] < descending[:-1], True)  # of pairs that score the same
        seen = np.cumsum(weights[:, order], axis=1)[:, last]
        found = np.cumsum(weights[:, order] * self.labels[order], axis=1)[:, last]
        precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
        steps = np.diff(found, axis=1, prepend=0.0)
        total = np.maximum(found[:, -1], 1e-300)
        average: Floats = 100 * (precision * steps).sum(axis=1) / total
        return average

    def beside(self, other: Ranking) -> tuple[Ranking, Ranking]:
        """Both samples, if their labels are the same."""
        _check(np.array_equal(self.labels, other.labels))
        return self, other

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"kind": "ranking", "predicted": _short(self.predicted), "labels": self.labels.tolist()}


def sample_from_json(content: Mapping[str, Any]) -> Sample:
    """Reads what `to_json` of any sample wrote.

    Args:
        content: A JSON object.

    Returns:
        The sample.

    Raises:
        DataError: Not such an object.
    """
    kinds = {"hits": Hits, "correlation": Correlation, "extraction": Extraction, "ranking": Ranking}
    fields = dict(content)
    arrays = {"values": float, "predicted": float, "extracted": int, "correct": int, "found": int, "labels": int}
    try:
        kind = kinds[fields.pop("kind")]
        arrays["gold"] = int if kind is Extraction else float
        values = {
            name: np.array(value, dtype=arrays[name]) if name in arrays else value for name, value in fields.items()
        }
        sample: Sample = kind(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"a sample of scores that cannot be read ({error}); evaluate again") from None
    return sample


def _weighted_ranks(values: Floats, weights: Floats) -> Floats:
    """Ranks (R, n) of values (n,) that occur as often as their weights say; equal values share their middle rank."""
    distinct, place = np.unique(values, return_inverse=True)
    starts = np.searchsorted(np.sort(values), distinct)
    counts = np.add.reduceat(weights[:, np.argsort(place, kind="stable")], starts, axis=1)  # (R, distinct)
    middles = np.cumsum(counts, axis=1) - (counts - 1) / 2
    ranks: Floats = middles[:, place]
    return ranks


def _short(values: Floats) -> list[float]:
    rounded = [round(value, 6) for value in values.tolist()]
    return [int(value) if value == int(value) else value for value in rounded]


def _check(same: bool) -> None:
    if not same:
        raise DataError("the two scores are not over the same test items; expected two evaluations of the same data")
