"""Statistics of weighted samples against scipy and scikit-learn, and what the bootstrap makes of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score

from dualmoco.core import stats
from dualmoco.core.errors import DataError
from dualmoco.core.stats import draw_counts
from dualmoco.evaluation.metrics import (
    Correlation,
    Extraction,
    MeanSample,
    Ranking,
    Sample,
    compare_samples,
    interval,
    sample_from_json,
    value_of,
)

GENERATOR = np.random.default_rng(0)
PREDICTED, GOLD = GENERATOR.random(30).round(1), GENERATOR.integers(0, 6, 30).astype(np.float64)


def repeated(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Values as often as their weights say."""
    return np.repeat(values, weights.astype(int))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=30, max_size=30).filter(lambda weights: sum(map(bool, weights)) > 5))
def test_weighted_correlations_are_those_of_repeated_items(weights: list[int]) -> None:
    """Weights stand for repetitions, ties included; scipy is the judge."""
    row = np.array(weights, dtype=np.float64)
    a, b = repeated(PREDICTED, row), repeated(GOLD, row)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return
    for ranks, judge in ((True, spearmanr), (False, pearsonr)):
        sample = Correlation(PREDICTED, GOLD, [30], ranks=ranks)
        assert sample.statistic(row[None])[0] == pytest.approx(100 * judge(a, b).statistic)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_weighted_average_precision_is_that_of_repeated_items(weights: list[int]) -> None:
    """scikit-learn's average precision, equal scores taken together."""
    row, labels = np.array(weights, dtype=np.float64), (GOLD > 2).astype(int)
    if not repeated(labels, row).sum():
        return
    expected = average_precision_score(repeated(labels, row), repeated(PREDICTED, row))
    assert Ranking(PREDICTED, labels).statistic(row[None])[0] == pytest.approx(100 * expected)


def test_groups_are_averaged_by_size_or_plainly() -> None:
    """Wmean weighs each group's correlation by its pairs, mean does not; a loop is the judge."""
    sizes = [10, 15, 5]
    parts = np.split(np.arange(30), np.cumsum(sizes)[:-1])
    each = [spearmanr(PREDICTED[part], GOLD[part]).statistic for part in parts]
    weighted = 100 * sum(size * value for size, value in zip(sizes, each, strict=True)) / 30
    assert value_of(Correlation(PREDICTED, GOLD, sizes)) == pytest.approx(weighted)
    assert value_of(Correlation(PREDICTED, GOLD, sizes, weighted=False)) == pytest.approx(100 * sum(each) / 3)


def test_f1_of_extractions() -> None:
    """Three extracted, two right, four exist: F1 is 4/7."""
    sample = Extraction(["a", "b", "c", "d", "e"], *map(np.array, ([1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 0, 1, 1])))
    assert value_of(sample) == pytest.approx(100 * 4 / 7)


@pytest.mark.parametrize(
    "sample",
    [
        MeanSample(np.array([0.0, 1.0, 1.0])),
        Correlation(PREDICTED, GOLD, [10, 20], weighted=False, ranks=False),
        Extraction(["x", "y"], np.array([1, 0]), np.array([1, 0]), np.array([1, 1])),
        Ranking(PREDICTED, (GOLD > 2).astype(int)),
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_samples_survive_json(sample: Sample) -> None:
    """What is read back gives the same metric."""
    again = sample_from_json(json.loads(json.dumps(sample.to_json())))
    assert type(again) is type(sample) and value_of(again) == pytest.approx(value_of(sample), abs=1e-3)


@pytest.mark.parametrize("content", [{}, {"kind": "hits"}, {"kind": "moon"}, {"kind": "hits", "values": ["a"]}])
def test_foreign_json_is_refused(content: dict[str, object]) -> None:
    """One line instead of a traceback."""
    with pytest.raises(DataError, match="evaluate again"):
        sample_from_json(content)


def test_every_resample_draws_as_many_units_as_each_stratum_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the draws are cut into small parts; on average each unit is drawn once."""
    monkeypatch.setattr(stats, "COUNTS_PER_BLOCK", 70)
    parts = list(draw_counts([3, 7], 1000, seed=0))
    counts = np.concatenate(parts)
    assert counts.shape == (1000, 10) and {len(part) for part in parts} == {7, 1000 % 7}
    assert (counts[:, :3].sum(axis=1) == 3).all() and (counts[:, 3:].sum(axis=1) == 7).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(10), abs=0.1)


def test_interval_of_a_share_is_the_binomial_one() -> None:
    """90 of 100: the normal approximation says 84.1 to 95.9."""
    low, high = interval(MeanSample(np.repeat([1.0, 0.0], [90, 10])), 4000)
    assert low == pytest.approx(84.1, abs=1.1) and high == pytest.approx(95.9, abs=1.1)


def test_a_model_does_not_differ_from_itself() -> None:
    """No difference, p of one."""
    sample = MeanSample(GENERATOR.integers(0, 2, 50).astype(np.float64))
    difference = compare_samples(sample, sample)
    assert (difference.value, difference.p) == (0, 1)


def test_clear_and_doubtful_differences() -> None:
    """Ten more of a hundred, never fewer, is no chance; one up and one down is."""
    base = np.repeat([1.0, 0.0], [50, 50])
    better, swapped = base.copy(), base.copy()
    better[50:60] = 1
    swapped[0], swapped[50], swapped[51] = 0, 1, 1
    clear = compare_samples(MeanSample(base), MeanSample(better))
    assert clear.value == pytest.approx(10) and clear.p < 0.01 and clear.low > 0
    assert compare_samples(MeanSample(base), MeanSample(swapped)).p > 0.3


def test_p_values_are_uniform_where_there_is_no_difference() -> None:
    """Of many comparisons of equally good models about a tenth fall below 0.1."""
    generator = np.random.default_rng(1)
    below = 0
    for seed in range(200):
        a, b = (MeanSample((generator.random(150) < 0.8).astype(np.float64)) for _ in range(2))
        below += compare_samples(a, b, 200, seed).p < 0.1
    assert 8 <= below <= 38


def test_other_test_items_are_refused() -> None:
    """Metrics over different items cannot be paired."""
    with pytest.raises(DataError, match="same test items"):
        compare_samples(MeanSample(np.ones(3)), MeanSample(np.ones(4)))
    with pytest.raises(DataError, match="same test items"):
        compare_samples(Correlation(PREDICTED, GOLD, [30]), Correlation(PREDICTED, GOLD + 1, [30]))


def test_extractions_are_paired_by_sentence() -> None:
    """Sentences that only one model extracts from count for both, with nothing for the other."""
    a = Extraction(["x"], np.array([1]), np.array([1]), np.array([1]))
    b = Extraction(["w", "x"], np.array([1, 1]), np.array([0, 1]), np.array([0, 1]))
    assert compare_samples(a, b, 50).value == pytest.approx(100 * (2 / 3 - 1))
