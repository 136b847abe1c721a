"""Scores: a metric over test items, its confidence interval, its signature, and comparisons of two models.

A `Sample` keeps the data of a metric, so that the metric can be computed again on resampled test items. A `Signer`
turns samples or plain numbers into `Score` objects, whose signature says how the number was made. The paired
bootstrap at the end compares two evaluations of the same test sets. Shapes: R resamples, n test items.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.progress import counting
from dualmoco.core.stats import draw_counts, percentile_interval
from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Floats, Ids
from dualmoco.models.model import Identity

BOOTSTRAP_RESAMPLES = 1000
SIGNATURE_DIGITS = 12  # of each checksum in a signature


class Sample(Protocol):
    """Test items and the metric that is computed from them."""

    @property
    def strata(self) -> Sequence[int]:
        """Sizes of the groups that are resampled separately; they sum to n."""

    def statistic(self, weights: Floats) -> Floats:
        """The metric in percent for each row of weights (R, n), shape (R,)."""

    def aligned_with(self, other: Any) -> tuple[Sample, Sample]:
        """This sample and another one with the same items in the same order; DataError if the items differ."""

    def to_json(self) -> dict[str, Any]:
        """The sample as a JSON object that `sample_from_json` reads."""


def value_of(sample: Sample) -> float:
    """The metric of a sample, in percent."""
    return float(sample.statistic(np.ones((1, sum(sample.strata))))[0])


def interval(sample: Sample, resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of a sample's metric, in percent."""
    draws = draw_counts(sample.strata, resamples, seed)
    return percentile_interval(np.concatenate([sample.statistic(counts.astype(np.float64)) for counts in draws]))


@dataclass(frozen=True)
class MeanSample:
    """Values whose mean is the metric, such as accuracy."""

    values: Floats  # (n,) from 0 to 1

    @property
    def strata(self) -> Sequence[int]:
        """One group."""
        return [len(self.values)]

    def statistic(self, weights: Floats) -> Floats:
        """The mean in percent."""
        average: Floats = 100 * (weights @ self.values) / weights.sum(axis=1)
        return average

    def aligned_with(self, other: MeanSample) -> tuple[MeanSample, MeanSample]:
        """Both samples, if they have the same number of items."""
        _require_same_items(len(self.values) == len(other.values))
        return self, other

    def to_json(self) -> dict[str, Any]:
        """The values, whole numbers without a decimal point."""
        return {"kind": "hits", "values": _rounded(self.values)}


@dataclass(frozen=True)
class Correlation:
    """Predicted and gold similarities of pairs, in groups whose correlations are averaged."""

    predicted: Floats  # (n,)
    gold: Floats  # (n,)
    groups: Sequence[int]  # sizes
    weighted: bool = True  # whether groups are weighted by their size
    ranks: bool = True  # whether ranks are correlated (Spearman) or values (Pearson)

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
        covariance = (weights * a * b).sum(axis=1)
        spread = np.sqrt((weights * a * a).sum(axis=1) * (weights * b * b).sum(axis=1))
        correlation: Floats = np.divide(covariance, spread, out=np.zeros_like(covariance), where=spread > 0)
        return correlation

    def aligned_with(self, other: Correlation) -> tuple[Correlation, Correlation]:
        """Both samples, if they have the same gold scores."""
        _require_same_items(list(self.groups) == list(other.groups) and np.array_equal(self.gold, other.gold))
        return self, other

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        numbers = {"predicted": _rounded(self.predicted), "gold": _rounded(self.gold), "groups": list(self.groups)}
        return {"kind": "correlation", **numbers, "weighted": self.weighted, "ranks": self.ranks}


def _weighted_ranks(values: Floats, weights: Floats) -> Floats:
    """Ranks (R, n) of values (n,) repeated by their weights; equal values share their middle rank."""
    distinct, place = np.unique(values, return_inverse=True)
    starts = np.searchsorted(np.sort(values), distinct)
    counts = np.add.reduceat(weights[:, np.argsort(place, kind="stable")], starts, axis=1)  # (R, distinct)
    middles = np.cumsum(counts, axis=1) - (counts - 1) / 2
    ranks: Floats = middles[:, place]
    return ranks


@dataclass(frozen=True)
class Extraction:
    """Counts of extracted, correct and gold pairs per sentence: F1."""

    ids: Sequence[str]  # n sentences that have an extracted or a gold pair
    extracted: Ids  # (n,) counts
    correct: Ids  # (n,)
    gold: Ids  # (n,)
    found: Ids | None = None  # (n,) gold pairs that were found, if they are not counted in the same way as `correct`

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

    def aligned_with(self, other: Extraction) -> tuple[Extraction, Extraction]:
        """Both samples over the sentences of either one."""
        mine, theirs = dict(zip(self.ids, self.gold, strict=True)), dict(zip(other.ids, other.gold, strict=True))
        _require_same_items({name for name in mine if mine[name]} == {name for name in theirs if theirs[name]})
        ids = sorted({*mine, *theirs})
        return self._over(ids), other._over(ids)

    def _over(self, ids: list[str]) -> Extraction:
        columns = [counts for counts in (self.extracted, self.correct, self.gold, self.found) if counts is not None]
        rows = dict(zip(self.ids, zip(*columns, strict=True), strict=True))
        none = (0,) * len(columns)
        counts = np.array([rows.get(name, none) for name in ids], dtype=np.int64).reshape(len(ids), len(columns))
        return Extraction(ids, *counts.T)

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        counts = {"extracted": self.extracted, "correct": self.correct, "gold": self.gold, "found": self.found}
        known = {name: value.tolist() for name, value in counts.items() if value is not None}
        return {"kind": "extraction", "ids": list(self.ids), **known}


@dataclass(frozen=True)
class Ranking:
    """Scores of pairs and whether each pair is positive: average precision."""

    predicted: Floats  # (n,)
    labels: Ids  # (n,) 0 or 1

    @property
    def strata(self) -> Sequence[int]:
        """One group."""
        return [len(self.labels)]

    def statistic(self, weights: Floats) -> Floats:
        """Average precision in percent; pairs with equal scores are counted together."""
        order = np.argsort(-self.predicted, kind="stable")
        descending = self.predicted[order]
        last = np.append(descending[1:] < descending[:-1], True)  # last pair of each distinct score
        seen = np.cumsum(weights[:, order], axis=1)[:, last]
        found = np.cumsum(weights[:, order] * self.labels[order], axis=1)[:, last]
        precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
        steps = np.diff(found, axis=1, prepend=0.0)
        average: Floats = 100 * (precision * steps).sum(axis=1) / np.maximum(found[:, -1], 1e-300)
        return average

    def aligned_with(self, other: Ranking) -> tuple[Ranking, Ranking]:
        """Both samples, if they have the same labels."""
        _require_same_items(np.array_equal(self.labels, other.labels))
        return self, other

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {"kind": "ranking", "predicted": _rounded(self.predicted), "labels": self.labels.tolist()}


def sample_from_json(content: Mapping[str, Any]) -> Sample:
    """Reads a sample from `to_json`; DataError for other content."""
    kinds = {"hits": MeanSample, "correlation": Correlation, "extraction": Extraction, "ranking": Ranking}
    fields = dict(content)
    types = {"values": float, "predicted": float, "extracted": int, "correct": int, "found": int, "labels": int}
    try:
        kind = kinds[fields.pop("kind")]
        types["gold"] = int if kind is Extraction else float
        for name in types.keys() & fields.keys():
            fields[name] = np.array(fields[name], dtype=types[name])
        sample: Sample = kind(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"cannot read the sample of a score ({error}); evaluate again") from None
    return sample


def _rounded(values: Floats) -> list[float]:
    rounded = [round(value, 6) for value in values.tolist()]
    return [int(value) if value == int(value) else value for value in rounded]


def _require_same_items(same: bool) -> None:
    if not same:
        raise DataError("the two scores are not over the same test items; expected two evaluations of the same data")


@dataclass(frozen=True)
class Score:
    """One number, from 0 to 100 (correlations may be negative)."""

    task: str
    subset: str
    protocol: str  # how the task was scored, or in which direction
    metric: str
    value: float
    n: int  # number of test items
    signature: str
    low: float | None = None  # lower end of the 95 % interval
    high: float | None = None
    sample: Sample | None = None  # data of the value, for paired comparisons

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The parts that must agree for two scores to be comparable."""
        return self.task, self.subset, self.protocol, self.metric

    @property
    def settings(self) -> dict[str, str]:
        """The parts of the signature by name."""
        return dict(part.partition(":")[::2] for part in self.signature.split("|"))

    def to_json(self) -> dict[str, Any]:
        """The score as a JSON object."""
        content = {name: value for name, value in vars(self).items() if name != "sample"}
        return content if self.sample is None else {**content, "sample": self.sample.to_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Score:
        """Reads a score from `to_json`; TypeError or DataError for other content."""
        fields = dict(content)
        sample = fields.pop("sample", None)
        return cls(**fields, sample=sample_from_json(sample) if sample else None)


class Signer:
    """Makes the signed scores of one model on one task's data; `paths` are the test files, in a fixed order."""

    def __init__(self, identity: Identity, task: str, paths: Iterable[Path]) -> None:
        self.identity, self.task = identity, task
        self.data = hashlib.sha256("".join(file_sha256(path) for path in paths).encode()).hexdigest()

    def score(
        self,
        subset: str,
        protocol: str,
        metric: str,
        value: float | Sample,
        n: int,
        ends: tuple[float, float] | None = None,
        /,
        **settings: object,
    ) -> Score:
        """A score with a signature such as `task:bucc|protocol:...|data:...|model:...|pooling:mean|version:0.1.0`.

        `value` is in percent, or the sample that it is computed from; `ends` are those of the 95 % interval, and
        `settings` is everything else that changes the number.
        """
        parts = {
            "task": self.task,
            "protocol": protocol,
            "metric": metric,
            **settings,
            "data": self.data[:SIGNATURE_DIGITS],
            "model": self.identity.sha256[:SIGNATURE_DIGITS],
            **({"dimension": self.identity.dimension} if self.identity.dimension else {}),
            "pooling": self.identity.pooling,
            "postprocessing": self.identity.postprocessing,
            "version": VERSION,
        }
        signature = "|".join(f"{name}:{part}" for name, part in parts.items())
        low, high = ends or (None, None)
        if isinstance(value, float):
            return Score(self.task, subset, protocol, metric, value, n, signature, low, high)
        return Score(self.task, subset, protocol, metric, value_of(value), n, signature, low, high, value)

    def extraction_scores(self, subset: str, protocol: str, sample: Extraction, **settings: object) -> list[Score]:
        """Precision, recall and F1 of extracted pairs; only F1 has an interval."""
        correct, n = float(sample.correct.sum()), int(sample.gold.sum())
        found = correct if sample.found is None else float(sample.found.sum())
        precision, recall = 100 * correct / max(1, int(sample.extracted.sum())), 100 * found / max(1, n)
        return [
            self.score(subset, protocol, "precision", precision, n, **settings),
            self.score(subset, protocol, "recall", recall, n, **settings),
            self.score(subset, protocol, "f1", sample, n, interval(sample), **settings),
        ]


@dataclass(frozen=True)
class Difference:
    """Difference between two values of one metric over the same test items."""

    value: float
    low: float
    high: float
    p: float  # two-sided share of resamples in which the difference does not have the observed sign


@dataclass(frozen=True)
class Compared:
    """One metric of two models."""

    a: Score
    b: Score
    difference: Difference | None  # None if the metric cannot be resampled


def compare_samples(a: Sample, b: Sample, resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0) -> Difference:
    """Compares a metric of two models by paired bootstrap: b minus a, its interval and the two-sided p-value."""
    a, b = a.aligned_with(b)
    draws = (counts.astype(np.float64) for counts in draw_counts(a.strata, resamples, seed))
    differences = np.concatenate([b.statistic(weights) - a.statistic(weights) for weights in draws])  # (R,)
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (int(tail) + 1) / (resamples + 1))
    return Difference(value_of(b) - value_of(a), *percentile_interval(differences), p)


def read_scores(path: Path) -> list[Score]:
    """Reads an output of `dualmoco evaluate --out FILE.json`; DataError for other files."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [Score.from_json(score) for score in content]
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror}; expected an output of evaluate --out FILE.json"
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a list of scores ({error}); expected an output of evaluate --out FILE.json"
        ) from None


def compare_scores(
    a: Sequence[Score], b: Sequence[Score], resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0
) -> list[Compared]:
    """Compares the metrics of `a` that `b` has too, by paired bootstrap; DataError if none, or if test data differ."""
    others = {score.key: score for score in b}
    shared = [(score, others[score.key]) for score in a if score.key in others]
    if not shared:
        raise DataError("the two files have no score in common; expected evaluations of the same tasks")
    for one, other in shared:
        data, other_data = (score.settings.get("data", "") for score in (one, other))
        if data != other_data:
            raise DataError(f"{' '.join(one.key)}: test data {data} and {other_data}; expected the same test files")
    compared = []
    with counting("comparing", len(shared), " scores") as progress:
        for one, other in shared:
            difference = None
            if one.sample is not None and other.sample is not None:
                difference = compare_samples(one.sample, other.sample, resamples, seed)
            compared.append(Compared(one, other, difference))
            progress(1)
    return compared


def compare(
    a: str | Path, b: str | Path, *, resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0, subsets: bool = False
) -> list[Compared]:
    """Compares two evaluations by paired bootstrap.

    Args:
        a: Scores of one model, written by `Evaluation.to_json`.
        b: Scores of another model on the same test sets.
        resamples: Number of resamples of the test items.
        seed: Random seed.
        subsets: Compare the subsets of STS and Pearson correlations too.

    Returns:
        The scores that both have, each with the difference, its 95 % interval and the p-value.

    Raises:
        ConfigError: Fewer than one resample.
        DataError: A file cannot be read, the files have no score in common, or the test data differ.
    """
    if resamples < 1:
        raise ConfigError(f"resamples {resamples}; expected at least 1")
    scores, others = (_of_one_model(Path(path)) for path in (a, b))
    if not subsets:
        scores = [score for score in scores if score.protocol != "subset" and score.metric != "pearson"]
    return compare_scores(scores, others, resamples, seed)


def _of_one_model(path: Path) -> list[Score]:
    """The scores of a file; DataError if they belong to several models."""
    scores = read_scores(path)
    if len({score.key for score in scores}) < len(scores):
        raise DataError(f"{path}: scores of several models; expected one model: evaluate each model with its own --out")
    return scores
