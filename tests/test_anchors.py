"""Anchors and the bands around them."""

from __future__ import annotations

import numpy as np
import pytest

from alignments import Step, random_units, related
from dualmoco.alignment import anchors
from dualmoco.alignment import dynamic_programming as bands
from dualmoco.alignment.anchors import find_anchors
from dualmoco.alignment.dynamic_programming import (
    BAND_BUFFER,
    WIDE_GAP,
    Band,
    LinkTable,
    StepPriors,
    band_around,
    best_path,
    rows_at_edge,
    widen_band,
)
from dualmoco.core.vectors import Ids


def random_anchors(seed: int, counts: Step, many: int) -> tuple[Ids, Ids]:
    """Numbers that rise on both sides."""
    generator = np.random.default_rng(seed)
    src, tgt = (np.sort(generator.choice(count, min(many, *counts), replace=False)) for count in counts)
    return src, tgt


@pytest.mark.parametrize(
    ("counts", "many"), [((50, 60), 20), ((500, 30), 4), ((30, 500), 4), ((400, 900), 3), ((1, 1), 1), ((700, 650), 0)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_band_holds_all_anchors(seed: int, counts: Step, many: int) -> None:
    """Its edges never fall, it has all anchors with their buffer, and a path leads through it however wide the gaps."""
    src, tgt = random_anchors(seed, counts, many)
    band = band_around(src, tgt, counts)
    assert len(band.low) == len(band.high) == counts[0] + 1
    assert (np.diff(band.low) >= 0).all() and (np.diff(band.high) >= 0).all() and (band.low <= band.high).all()
    assert band.low[0] == 0 and band.high[-1] == counts[1] and (band.low[1:] <= band.high[:-1]).all()
    for row, column in ((src, tgt), (src + 1, tgt + 1)):
        assert (band.low[row] <= np.maximum(column - BAND_BUFFER, 0)).all()
        assert (band.high[row] >= np.minimum(column + BAND_BUFFER, counts[1])).all()
    zeros = np.zeros(band.cells, dtype=np.uint8)
    table = LinkTable(band, np.arange(band.cells + 1), zeros, zeros.astype(np.float32), 1)
    path = best_path(table, StepPriors(np.zeros(1), 0.0))
    assert path.steps.sum(axis=0).tolist() == list(counts) and path.totals[-1] == 0


def test_wide_gaps_are_crossed_along_their_diagonal() -> None:
    """Without anchors the band is narrow and straight; a gap that is not wide is looked at whole."""
    band = band_around(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), (3000, 1500))
    rows = np.arange(3001)
    assert (band.low <= rows / 2).all() and (band.high >= rows / 2).all()
    assert (band.high - band.low).max() <= 2 * (WIDE_GAP + BAND_BUFFER)
    narrow = band_around(np.array([0, 40]), np.array([0, 50]), (41, 51))
    assert narrow.low[21] == 0 and narrow.high[21] == 51


def test_anchors_of_long_related_texts_are_found() -> None:
    """Over 95 % of the pairs that are there, though a tenth of either side has none, and nearly nothing else."""
    generator = np.random.default_rng(1)
    src, tgt = related(generator, 3100, 64, 1.2)
    kept = [np.sort(generator.choice(3100, count, replace=False)) for count in (3000, 2900)]
    true = np.intersect1d(kept[0], kept[1])
    found = find_anchors(src[kept[0]], tgt[kept[1]])
    assert (np.diff(found.src) > 0).all() and (np.diff(found.tgt) > 0).all()
    right = kept[0][found.src] == kept[1][found.tgt]
    assert right.sum() > 0.95 * len(true) and right.mean() > 0.95
    assert len(found.similarity) == len(found.src) and found.similarity[right].min() > 0


@pytest.mark.parametrize("count", [60, 1000])
def test_unrelated_texts_have_few_anchors(count: int) -> None:
    """Fewer than the share from which texts are taken for translations."""
    generator = np.random.default_rng(2)
    found = find_anchors(random_units(generator, count, 64), random_units(generator, count - 10, 64))
    assert len(found.src) < 0.3 * (count - 10)


def test_anchors_from_coarse_to_fine_are_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The band that halved texts give holds the best path."""
    generator = np.random.default_rng(4)
    src, tgt = related(generator, 280, 64, 0.8)
    tgt = np.delete(tgt, np.s_[100:130], axis=0)
    exact = find_anchors(src, tgt)
    monkeypatch.setattr(anchors, "COARSEST_CELLS", 2000)
    found = find_anchors(src, tgt)
    assert found.src.tolist() == exact.src.tolist() and found.tgt.tolist() == exact.tgt.tolist()
    np.testing.assert_array_equal(found.similarity, exact.similarity)


def test_touched_rows_by_hand() -> None:
    """Rows where the path is at an edge, unless the text ends there."""
    band = Band(np.array([0, 0, 1, 2, 3, 4]), np.array([2, 3, 4, 5, 6, 6]))
    inside = np.array([[1, 1], [1, 1], [1, 1], [1, 1], [1, 2]])
    assert rows_at_edge(band, inside).tolist() == []
    high = np.array([[0, 1], [0, 1], [1, 1], [1, 0], [1, 1], [1, 1], [1, 1]])
    assert rows_at_edge(band, high).tolist() == [0, 1]
    low = np.array([[1, 0], [1, 1], [1, 1], [1, 1], [1, 3]])
    assert rows_at_edge(band, low).tolist() == [2, 3, 4]


def test_widened_band_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """More cells around some rows, none beyond the text, and edges that still never fall."""
    monkeypatch.setattr(bands, "BAND_GROWTH", 2)
    band = Band(np.arange(10).clip(2) - 2, np.arange(10).clip(None, 7) + 2)
    wider = widen_band(band, np.array([5]))
    assert band.low.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7] and band.high.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 9, 9]
    assert wider.low.tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 6, 7]
    assert wider.high.tolist() == [2, 3, 4, 7, 8, 9, 9, 9, 9, 9]
