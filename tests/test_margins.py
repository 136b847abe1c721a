"""Margins, selection and thresholds against slow oracles and tables worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.mining.margins import Margin, Retrieval, ScoredPairs, margin_scores, one_to_one, select_pairs
from dualmoco.mining.threshold import best_threshold
from dualmoco.search.exact import Neighbors, nearest_both_ways


def random_units(count: int, seed: int, dimension: int = 6) -> Vectors:
    """Unit vectors in random directions."""
    return unit_vectors(np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32))


def slow_margin(src: Vectors, tgt: Vectors, i: int, j: int, k: int, margin: Margin) -> float:
    """The paper's formula: the cosine set against half the sum of both sides' mean of k nearest cosines."""
    cosines = np.round(src.astype(np.float64) @ tgt.astype(np.float64).T, 6)
    near_src: list[float] = sorted(cosines[i].tolist(), reverse=True)[:k]
    near_tgt: list[float] = sorted(cosines[:, j].tolist(), reverse=True)[:k]
    b = sum(near_src) / (2 * len(near_src)) + sum(near_tgt) / (2 * len(near_tgt))
    a = float(cosines[i, j])
    ratio = a / b if b > 0 else float("-inf")
    return {Margin.distance: a - b, Margin.ratio: ratio, Margin.absolute: a}[margin]


def slow_mine(src: Vectors, tgt: Vectors, k: int, margin: Margin) -> list[tuple[int, int]]:
    """Max retrieval as a plain loop: best of k candidates both ways, then the highest scores one to one."""
    cosines = np.round(src.astype(np.float64) @ tgt.astype(np.float64).T, 6)
    found = []
    for i in range(len(src)):
        near = sorted(range(len(tgt)), key=lambda j: (-cosines[i, j], j))[:k]
        found.append((*max((slow_margin(src, tgt, i, j, k, margin), -j) for j in near), i))
    candidates = [(round(score, 6), i, -j) for score, j, i in found]
    for j in range(len(tgt)):
        near = sorted(range(len(src)), key=lambda i: (-cosines[i, j], i))[:k]
        score, i = max((slow_margin(src, tgt, i, j, k, margin), -i) for i in near)
        candidates.append((round(score, 6), -i, j))
    used_src, used_tgt, pairs = set(), set(), []
    for _, i, j in sorted(candidates, key=lambda row: (-row[0], row[1], row[2])):
        if i not in used_src and j not in used_tgt:
            used_src.add(i)
            used_tgt.add(j)
            pairs.append((i, j))
    return pairs


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(Margin), st.integers(0, 500))
def test_mining_agrees_with_a_plain_loop(sources: int, targets: int, margin: Margin, seed: int) -> None:
    """Pairs and their order are those of the oracle, and each score is the formula's."""
    src, tgt = random_units(sources, seed), random_units(targets, seed + 1)
    pairs = select_pairs(*nearest_both_ways(src, tgt, 3), margin)
    assert list(zip(pairs.src.tolist(), pairs.tgt.tolist(), strict=True)) == slow_mine(src, tgt, 3, margin)
    for i, j, score in zip(pairs.src, pairs.tgt, pairs.scores, strict=True):
        assert score == pytest.approx(slow_margin(src, tgt, i, j, 3, margin), abs=2e-6)


def worked_table() -> tuple[Neighbors, Neighbors]:
    """Cosines [[.9, .8, .1], [.7, .2, .6]] with two neighbours each way."""
    forward = Neighbors(np.array([[0, 1], [0, 2]]), np.array([[0.9, 0.8], [0.7, 0.6]]))
    backward = Neighbors(np.array([[0, 1], [0, 1], [1, 0]]), np.array([[0.9, 0.7], [0.8, 0.2], [0.6, 0.1]]))
    return forward, backward


@pytest.mark.parametrize(
    ("retrieval", "expected"),
    [  # means: sources .85 and .65; targets .8, .5 and .35
        (Retrieval.forward, [(0, 1, 0.125), (1, 2, 0.1)]),
        (Retrieval.backward, [(0, 1, 0.125), (1, 2, 0.1), (0, 0, 0.075)]),
        (Retrieval.intersection, [(0, 1, 0.125), (1, 2, 0.1)]),
        (Retrieval.max, [(0, 1, 0.125), (1, 2, 0.1)]),
    ],
)
def test_retrievals_of_a_table_worked_by_hand(retrieval: Retrieval, expected: list[tuple[int, int, float]]) -> None:
    """Each retrieval gives the pairs one finds with pencil and paper."""
    pairs = select_pairs(*worked_table(), Margin.distance, retrieval)
    assert list(zip(pairs.src.tolist(), pairs.tgt.tolist(), pairs.scores.tolist(), strict=True)) == expected


def test_ratio_to_a_mean_that_is_not_positive_is_never_chosen() -> None:
    """A ratio of two negative cosines would look excellent."""
    scores = margin_scores(np.array([-0.5, 0.5]), np.array([-0.1, 0.5]), np.array([-0.1, 0.5]), Margin.ratio)
    assert scores.tolist() == [-np.inf, 1.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_one_to_one_is_greedy_and_maximal(rows: list[tuple[int, int]]) -> None:
    """No sentence is used twice, and every pair left out meets an earlier one that was kept."""
    src, tgt = np.array([row[0] for row in rows], dtype=int), np.array([row[1] for row in rows], dtype=int)
    pairs = ScoredPairs(src, tgt, -np.arange(len(rows), dtype=np.float64))
    kept = one_to_one(pairs)
    assert len(set(kept.src.tolist())) == len(kept) == len(set(kept.tgt.tolist()))
    places = (-kept.scores).astype(int).tolist()
    for place, (a, b) in enumerate(rows):
        if place not in places:
            assert any(rows[earlier][0] == a or rows[earlier][1] == b for earlier in places if earlier < place)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=20), st.integers(0, 5))
def test_threshold_is_the_best_of_all(rows: list[tuple[int, bool]], missed: int) -> None:
    """No other threshold gives a higher F1, and the metrics are those of the pairs above it."""
    rows = sorted(rows, reverse=True)
    scores, correct = np.array([float(row[0]) for row in rows]), np.array([row[1] for row in rows])
    gold = int(correct.sum()) + missed
    chosen = best_threshold(scores, correct, max(1, gold))

    def f1(threshold: float) -> float:
        above = scores >= threshold
        return float(2 * correct[above].sum() / (above.sum() + max(1, gold)))

    assert chosen.f1 == pytest.approx(max(f1(value) for value in [*scores, np.inf]))
    assert f1(chosen.value) == pytest.approx(chosen.f1)


def test_threshold_of_nothing_right_accepts_nothing() -> None:
    """Where no pair is right the threshold is infinite."""
    assert best_threshold(np.array([0.5]), np.array([False]), 3).value == np.inf
    assert best_threshold(np.array([]), np.array([], dtype=bool), 3).f1 == 0
