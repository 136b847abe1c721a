"""A number of an evaluation, and the signature that says how it was made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.stats import draw_counts, percentile_interval
from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Floats, Ids
from dualmoco.core.version import VERSION
from dualmoco.models.model import Identity

SHOWN = 12  # characters of a checksum in a signature


@dataclass(frozen=True)
class Score:
    """One number, from 0 to 100 (correlations may fall below)."""

    task: str
    subset: str
    protocol: str
    """How the task was scored, or in which direction."""
    metric: str
    value: float
    n: int
    """Test items behind it."""
    signature: str
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    sample: Sample | None = None
    """What it was computed from, for paired comparisons."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What must agree for two scores to be comparable."""
        return self.task, self.subset, self.protocol, self.metric

    @property
    def settings(self) -> dict[str, str]:
        """What the signature says, by name."""
        return dict(part.partition(":")[::2] for part in self.signature.split("|"))

    def to_json(self) -> dict[str, Any]:
        """The score as a JSON object."""
        content = {name: value for name, value in vars(self).items() if name != "sample"}
        return content if self.sample is None else {**content, "sample": self.sample.to_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Score:
        """Reads what `to_json` wrote; TypeError or DataError if it is something else."""
        fields = dict(content)
        sample = fields.pop("sample", None)
        return cls(**fields, sample=sample_from_json(sample) if sample else None)


@dataclass(frozen=True)
class Signer:
    """Signs the scores of one model on one task's data."""

    identity: Identity
    task: str
    data: str
    """Checksum of the test files."""

    def sign(self, protocol: str, metric: str, **settings: object) -> str:
        """One line that says how a number was made.

        Args:
            protocol: How the task was scored, or in which direction.
            metric: What was counted.
            settings: Everything else that changes the number.

        Returns:
            Such as `task:bucc|protocol:...|data:...|model:...|pooling:mean|postprocessing:none|version:0.1.0`.
        """
        parts = {
            "task": self.task,
            "protocol": protocol,
            "metric": metric,
            **settings,
            "data": self.data[:SHOWN],
            "model": self.identity.sha256[:SHOWN],
            "pooling": self.identity.pooling,
            "postprocessing": self.identity.postprocessing,
            "version": VERSION,
        }
        return "|".join(f"{name}:{value}" for name, value in parts.items())

    def score(
        self,
        subset: str,
        protocol: str,
        metric: str,
        sample: Sample,
        n: int,
        ends: tuple[float, float],
        /,
        **settings: object,
    ) -> Score:
        """A signed score of a sample.

        Args:
            subset: The part of the task's data.
            protocol: How the task was scored, or in which direction.
            metric: What was counted.
            sample: What the value is computed from.
            n: Test items.
            ends: Of the 95 % interval.
            settings: Everything else that changes the number, for the signature.

        Returns:
            The score.
        """
        signature = self.sign(protocol, metric, **settings)
        return Score(self.task, subset, protocol, metric, value_of(sample), n, signature, *ends, sample)


def data_sha256(paths: Iterable[Path]) -> str:
    """One checksum of several files, in their order."""
    return hashlib.sha256("".join(file_sha256(path) for path in paths).encode()).hexdigest()


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
class MeanSample:
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

    def beside(self, other: MeanSample) -> tuple[MeanSample, MeanSample]:
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
            "kind": "correlation",
            "predicted": _short(self.predicted),
            "gold": _short(self.gold),
            "groups": list(self.groups),
            "weighted": self.weighted,
            "ranks": self.ranks,
        }


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
    kinds = {"hits": MeanSample, "correlation": Correlation, "extraction": Extraction, "ranking": Ranking}
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
