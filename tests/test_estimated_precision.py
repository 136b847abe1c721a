"""The precision that mining announces is that of the pairs it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dualmoco
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.stats import binomial_interval
from dualmoco.mining.margins import ScoredPairs
from dualmoco.mining.precision import KnownScores, minimize
from dualmoco.mining.threshold import PlantedRows, judge_by_planted, judge_by_scores, precise_threshold


def draw(generator: np.random.Generator, right: int, wrong: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Descending scores of a made-up job and which pairs are right; wrong ones have an exponential tail."""
    good = 0.26 - 0.06 * generator.gamma(2.0, 0.6, right) + 0.03 * generator.standard_normal(right)
    bad = -0.02 * np.log(generator.random(wrong) ** (-1 / 1.5) - 1)  # skewed logistic, by its inverse
    scores = scale * np.concatenate([good, bad])
    order = np.argsort(-scores)
    return scores[order], (np.arange(right + wrong) < right)[order]


def as_pairs_of(scores: np.ndarray) -> ScoredPairs:
    """A job with these scores."""
    rows = np.arange(len(scores))
    return ScoredPairs(rows, rows, scores)


@pytest.fixture(scope="module")
def known() -> KnownScores:
    """What a model has learnt from held-out pairs."""
    scores, right = draw(np.random.default_rng(99), 300, 9700)
    return KnownScores(*(np.quantile(scores[side], np.arange(1, 100) / 100) for side in (right, ~right)))


@pytest.mark.parametrize("wanted", [0.8, 0.9, 0.95])
@pytest.mark.parametrize(("share", "scale"), [(0.5, 1.0), (0.1, 1.1), (0.03, 0.9), (0.01, 1.0)])
def test_announced_and_true_precision_agree(known: KnownScores, share: float, scale: float, wanted: float) -> None:
    """Within three points, whatever the share of right pairs and however spread out the scores of the text are."""
    total = 20_000
    scores, right = draw(np.random.default_rng(1), round(share * total), round((1 - share) * total), scale)
    found = judge_by_scores(as_pairs_of(scores), known, total, precision=wanted)
    accepted = scores >= found.threshold.value
    assert found.threshold.precision == pytest.approx(wanted, abs=0.005)
    assert right[accepted].mean() == pytest.approx(found.threshold.precision, abs=0.03)
    assert found.low - 0.02 <= right[accepted].mean() <= found.high + 0.02
    assert found.translations == pytest.approx(share * total, rel=0.25)


def test_unrelated_texts_promise_nothing(known: KnownScores) -> None:
    """Without translations, hardly a pair is accepted, and the message says how few there are."""
    scores, _ = draw(np.random.default_rng(2), 0, 20_000)
    found = judge_by_scores(as_pairs_of(scores), known, 20_000)
    assert (scores >= found.threshold.value).sum() <= 3
    assert "% of the lines have a translation" in found.describe()


def test_planted_lines_count_accidental_translations(known: KnownScores) -> None:
    """If lines without their partners score like right pairs, as many other pairs are wrong."""
    generator = np.random.default_rng(3)
    scores, right = draw(generator, 600, 10_000)
    own = np.arange(len(scores))
    accidental = generator.permutation(np.flatnonzero(right))[:200]  # look right, and are wrong
    whole, _ = draw(generator, 300, 0)
    alone, _ = draw(generator, 30, 1470)  # two in a hundred, as in the text
    first = len(scores)
    src = np.concatenate([own, first + np.arange(1800)])
    tgt = np.concatenate([own, first + np.arange(300), own[:1500]])
    pairs = ScoredPairs.sorted(src, tgt, np.concatenate([scores, whole, alone]))
    partners = {first + row: first + row for row in range(300)}
    rows = PlantedRows(partners, frozenset(range(first, first + 1800)), frozenset(range(first, first + 300)), 3300)
    found = judge_by_planted(pairs, rows, 10_600, None)
    accepted = scores >= found.threshold.value
    truth = right.copy()
    truth[accidental] = False
    assert right[accepted].mean() - found.threshold.precision > 0.1
    assert truth[accepted].mean() == pytest.approx(found.threshold.precision, abs=0.08)
    assert found.threshold.recall == pytest.approx((whole >= found.threshold.value).mean())
    with pytest.raises(DataError, match="none of 1 planted pairs was mined"):
        judge_by_planted(pairs, PlantedRows({0: 5}, frozenset([0]), frozenset([5]), 1), 9, None)


def test_the_lowest_threshold_of_a_precision() -> None:
    """Equal scores are accepted together; an impossible precision accepts nothing."""
    scores, correct = np.array([0.9, 0.8, 0.8, 0.7]), np.array([True, True, False, True])
    assert precise_threshold(scores, correct, 3, 0.9).value == pytest.approx(0.85)
    assert precise_threshold(scores, correct, 3, 0.75).value == 0.7
    assert precise_threshold(scores, ~correct, 3, 0.9).value > 0.9
    assert precise_threshold(np.array([]), np.array([], dtype=bool), 3, 0.9).precision == 0


def test_interval_of_a_share() -> None:
    """Wilson's formula: symmetric in hits and misses, never beyond 0 and 1."""
    low, high = binomial_interval(90, 100)
    assert [low, high] == pytest.approx([0.8256, 0.9448], abs=1e-4)
    assert list(binomial_interval(10, 100)) == pytest.approx([1 - high, 1 - low])
    assert binomial_interval(0, 0) == (0.0, 1.0) and binomial_interval(5, 5)[1] <= 1


def test_the_simplex_finds_a_minimum() -> None:
    """The valley of Rosenbrock's function."""
    point, loss = minimize(
        lambda x: float((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2), np.array([-1.2, 1.0]), np.array([0.5, 0.5])
    )
    assert point == pytest.approx([1, 1], abs=0.05) and loss < 1e-3


def test_precision_needs_something_to_judge_by(tiny_model: Path) -> None:
    """A model that is not calibrated cannot promise a precision; neither can one be promised beyond 1."""
    with pytest.raises(ConfigError, match=r"is not calibrated for these languages.*dualmoco calibrate"):
        dualmoco.mine(["a b"], ["你好"], model=tiny_model, src_lang="en", tgt_lang="zh", min_precision=0.9)
    with pytest.raises(ConfigError, match="min_precision 90; expected more than 0 and at most 1"):
        dualmoco.mine(["a b"], ["你好"], min_precision=90)
    with pytest.raises(ConfigError, match="a threshold was given together with"):
        dualmoco.mine(["a b"], ["你好"], threshold=0.1, min_precision=0.9)


@pytest.mark.data
def test_announced_precision_on_the_bucc_sample(data_folder: Path) -> None:
    """With gold pairs exactly, without them within three points."""
    folder = data_folder / "eval" / "bucc2018"
    sides = []
    for lang in ("en", "zh"):
        lines = (folder / f"zh-en.dev.{lang}").read_text(encoding="utf-8").splitlines()
        sides.append(dict(line.split("\t", 1) for line in lines))
    places = [{name: line for line, name in enumerate(side, start=1)} for side in sides]
    gold = [line.split() for line in (folder / "zh-en.dev.gold").read_text(encoding="utf-8").splitlines()]
    right = {(places[0][en], places[1][zh]) for zh, en in gold}
    texts = [list(side.values()) for side in sides]
    exact = dualmoco.mine(*texts, model="en-zh-static", gold=sorted(right), progress=False)
    assert exact.calibration is not None and exact.calibration.threshold.f1 > 0.88
    hits = sum((pair.src_line, pair.tgt_line) in right for pair in exact)
    assert exact.calibration.threshold.precision == pytest.approx(hits / len(exact))
    for wanted in (0.9, 0.95):
        found = dualmoco.mine(*texts, model="en-zh-static", min_precision=wanted, progress=False)
        assert found.calibration is not None and found.calibration.basis == "scores"
        hits = sum((pair.src_line, pair.tgt_line) in right for pair in found)
        announced = found.calibration.threshold.precision
        assert announced - 0.02 < hits / len(found) < announced + 0.06  # cautious on this text
        assert found.calibration.translations == pytest.approx(257, rel=0.25) and hits / 257 > 0.7
