"""Two texts to links: known ones are found, whatever the band, the side and the kind of runs."""

from __future__ import annotations

import numpy as np
import pytest

from alignments import Synthetic, check_whole, random_types, types_of
from dualmoco.alignment import aligner as aligner
from dualmoco.alignment import anchors
from dualmoco.alignment.aligner import USUAL_DELETION_SHARE, Links, confidence, document_stats, step_priors
from dualmoco.alignment.anchors import Anchors
from dualmoco.alignment.scoring import AlignmentCosts, DocumentStats


@pytest.mark.parametrize("encoded", [False, True])
def test_known_links_are_all_found(encoded: bool) -> None:
    """One to one, one to many and left out, in a text of three hundred links; both kinds of runs."""
    text = Synthetic(0, random_types(0, 300))
    links = text.aligned(encoded=encoded)
    check_whole(links, (len(text.vectors[0]), len(text.vectors[1])))
    assert types_of(links) == text.types
    assert np.median(links.scores[links.is_linked]) == pytest.approx(1.0, abs=0.15)
    assert np.median(links.confidence) > 0.95
    again = text.aligned(encoded=encoded)
    for one, two in ((links.src, again.src), (links.tgt, again.tgt), (links.scores, again.scores)):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(links.confidence, again.confidence)


def test_coarse_to_fine_is_exact_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A band around anchors gives the links, scores and nearly the margins of all cells."""
    text = Synthetic(5, random_types(5, 250))
    exact = text.aligned()
    monkeypatch.setattr(aligner, "EXACT_CELLS", 0)
    monkeypatch.setattr(anchors, "COARSEST_CELLS", 4000)
    banded = text.aligned()
    assert banded.src.tolist() == exact.src.tolist() and banded.tgt.tolist() == exact.tgt.tolist()
    np.testing.assert_array_equal(banded.scores, exact.scores)
    np.testing.assert_allclose(banded.confidence, exact.confidence, atol=0.02)


@pytest.mark.parametrize("exact_cells", [0, 10_000_000])
def test_foreign_sentences_are_left_out(exact_cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred sentences that only the target has cost no link beside them."""
    monkeypatch.setattr(aligner, "EXACT_CELLS", exact_cells)
    types = [*random_types(8, 150), *[(0, 1)] * 300, *random_types(9, 150)]
    text = Synthetic(8, types)
    links = text.aligned()
    check_whole(links, (len(text.vectors[0]), len(text.vectors[1])))
    assert types_of(links) == types


@pytest.mark.parametrize("exact_cells", [0, 10_000_000])
def test_flipped_texts_have_flipped_links(exact_cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which side is called the source does not matter."""
    monkeypatch.setattr(aligner, "EXACT_CELLS", exact_cells)
    text = Synthetic(11, random_types(11, 200))
    one, back = text.aligned(), text.aligned(flipped=True)
    other = Links(back.tgt, back.src, back.scores, back.confidence)
    check_whole(other, (len(text.vectors[0]), len(text.vectors[1])))
    assert types_of(one) == types_of(other)
    np.testing.assert_allclose(one.scores[one.is_linked], other.scores[other.is_linked], atol=1e-4)


def test_links_by_mask() -> None:
    """What `take` keeps."""
    links = Links(
        np.array([[0, 1], [1, 3], [3, 4], [4, 5]]),
        np.array([[0, 1], [1, 2], [2, 2], [2, 3]]),
        np.array([1.0, 0.9, np.nan, 1.1]),
        np.array([0.9, 0.8, 0.5, 0.9]),
    )
    assert len(links) == 4 and links.is_linked.tolist() == [True, True, False, True]
    kept = links.take(np.flatnonzero(links.is_linked))
    assert kept.src.tolist() == [[0, 1], [1, 3], [4, 5]] and kept.tgt.tolist() == [[0, 1], [1, 2], [2, 3]]


# What anchors tell, and the band that grows


def test_ratio_of_lengths_ignores_a_far_gap() -> None:
    """Between close anchors the source is twice as long; what one side has alone does not count."""
    src, tgt = np.full(130, 20.0), np.full(30, 10.0)
    places = np.concatenate([np.arange(15), np.arange(115, 130)])
    found = document_stats(Anchors(places, np.arange(30), np.linspace(0.2, 0.6, 30)), (src, tgt))
    assert found.similarity == pytest.approx(0.4) and found.ratio == 2


def test_measure_without_close_anchors_takes_all() -> None:
    """One anchor: from it to the end; none: everything, and a usual similarity of one."""
    lengths = np.array([5.0, 10.0, 20.0]), np.array([7.0, 10.0, 5.0])
    assert document_stats(Anchors(np.array([1]), np.array([1]), np.array([0.5])), lengths) == DocumentStats(0.5, 2.0)
    none = np.empty(0, dtype=np.int64)
    assert document_stats(Anchors(none, none, np.empty(0)), lengths) == DocumentStats(1.0, 35 / 22)


def test_prices_of_steps_by_hand() -> None:
    """By links seen and half a link more, among all steps and one more; leaving out is dearer where it is rare."""
    steps = np.array([[1, 1], [1, 1], [2, 1], [0, 1], [1, 2]])
    prices = AlignmentCosts(rarity=1.0, skip=-0.5, skip_rarity=0.1)
    found = step_priors(steps, 2, prices)
    np.testing.assert_allclose(np.exp(found.types), np.array([2.5, 1.5, 1.5, 0.5]) / 6)
    assert found.deletion == pytest.approx(-0.5 + 0.1 * np.log(0.25 / USUAL_DELETION_SHARE))
    assert step_priors(np.ones((400, 2), dtype=np.int64), 2, prices).deletion < -0.5
    assert step_priors(np.array([[0, 1]] * 9), 2, AlignmentCosts(skip=-0.01, skip_rarity=1.0)).deletion == 0


def test_a_band_that_is_too_narrow_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors that lead the path away from the links of all cells do not keep it there."""
    monkeypatch.setattr(aligner, "EXACT_CELLS", 0)
    text = Synthetic(21, [*[(1, 1)] * 60, *[(0, 1)] * 25, *[(1, 1)] * 60])
    few = Anchors(np.array([0, 60, 119]), np.array([0, 60, 144]), np.full(3, 0.9))  # the second is wrong
    assert types_of(text.aligned(anchors=few)) == text.types


# Confidence


def test_confidence_grows_with_margin_and_score() -> None:
    """Between 0 and 1, never less for more; one-sided links have no score."""
    steps = np.linspace(-3, 5, 81)
    for fixed in (-1.0, 0.0, 0.4, 1.2):
        by_margin = confidence(np.full(81, fixed), steps.clip(0))
        by_score = confidence(steps, np.full(81, max(fixed, 0.0)))
        for found in (by_margin, by_score):
            assert (np.diff(found) >= 0).all() and found.min() >= 0 and found.max() <= 1 and found[0] < found[-1]
    one_sided = confidence(np.full(81, np.nan), steps.clip(0))
    assert (np.diff(one_sided) >= 0).all() and 0 <= one_sided[0] < one_sided[-1] <= 1
