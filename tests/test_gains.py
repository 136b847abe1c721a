"""What links are worth, against formulas worked out one link at a time."""

from __future__ import annotations

import numpy as np
import pytest

from alignments import Step, mean_vector, random_units
from dualmoco.alignment.dynamic_programming import Band, full_band, pad_band
from dualmoco.alignment.scoring import (
    AlignmentCosts,
    BandCosines,
    DocumentStats,
    LinkScorer,
    band_cosines,
    pair_cosines,
    unit_scales,
)
from dualmoco.core.vectors import Floats, Vectors

RAGGED = Band(
    np.array([0, 0, 0, 1, 2, 2, 2, 3, 5, 5, 6, 6, 7, 8, 8]),
    np.array([2, 3, 3, 4, 4, 5, 7, 8, 9, 9, 10, 11, 11, 11, 11]),
)
"""Of 14 and 11 sentences."""


@pytest.mark.parametrize("band", [full_band(14, 11), RAGGED])
def test_cosines_stand_in_their_cells(band: Band) -> None:
    """Cell by cell, zero in the first row and column; pairs by number too."""
    generator = np.random.default_rng(0)
    src, tgt = random_units(generator, 14, 12), random_units(generator, 11, 12)
    cells = [(i, j) for i in range(15) for j in range(band.low[i], band.high[i] + 1)]
    expected = [float(src[i - 1] @ tgt[j - 1]) if i and j else 0.0 for i, j in cells]
    np.testing.assert_allclose(band_cosines(src, tgt, band).values, expected, atol=6e-6)
    inner = [(i - 1, j - 1) for i, j in cells if i and j]
    products = [float(src[i] @ tgt[j]) for i, j in inner]
    src_places, tgt_places = np.array(inner).T
    for one, other in ((src_places, tgt_places), (-1 - src_places, tgt_places), (-1 - src_places, -1 - tgt_places)):
        found = pair_cosines((src, src), (tgt, tgt), one, other)
        np.testing.assert_allclose(found, products, atol=6e-6)


@pytest.mark.parametrize(
    ("band", "other"), [(full_band(14, 11), RAGGED), (RAGGED, full_band(14, 11)), (RAGGED, RAGGED)]
)
def test_known_cosines_are_not_multiplied_again(band: Band, other: Band) -> None:
    """What another band holds is taken from there, here with 10 added to tell; only the rest is multiplied."""
    generator = np.random.default_rng(3)
    src, tgt = random_units(generator, 14, 12), random_units(generator, 11, 12)
    known = band_cosines(src, tgt, other)
    cells = [(i, j) for i in range(15) for j in range(band.low[i], band.high[i] + 1)]
    taken = [bool(i and j and other.low[i] <= j <= other.high[i]) for i, j in cells]
    found = band_cosines(src, tgt, band, BandCosines(other, known.values + 10)).values
    np.testing.assert_allclose(found, band_cosines(src, tgt, band).values + 10 * np.array(taken), atol=1e-6)


def test_padded_band_has_what_stands_around() -> None:
    """Every cell so many rows and columns before and after one of the band, as far as the text goes."""
    wider = pad_band(RAGGED, 3, 1)
    for row in range(15):
        for there in range(max(0, row - 3), min(14, row + 1) + 1):
            assert wider.low[there] <= max(0, RAGGED.low[row] - 3)
            assert wider.high[there] >= min(11, RAGGED.high[row] + 1)
    assert (np.diff(wider.low) >= 0).all() and (np.diff(wider.high) >= 0).all()


@pytest.mark.parametrize("longest", [1, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 30])
def test_shares_make_unit_vectors_of_sums(count: int, longest: int) -> None:
    """A run's sum times its share has length one; there is none where a run would begin before the text."""
    vectors = random_units(np.random.default_rng(count), count, 16)
    shares = unit_scales(vectors, longest)
    assert shares.shape == (longest, count + 1)
    for size in range(1, longest + 1):
        assert not shares[size - 1, :size].any()
        for end in range(size, count + 1):
            total = vectors[end - size : end].astype(np.float64).sum(axis=0)
            assert shares[size - 1, end] * np.linalg.norm(total) == pytest.approx(1, abs=1e-5)


def test_a_run_whose_vectors_cancel_has_no_share() -> None:
    """Opposite vectors have no mean direction; zeros neither."""
    vectors = np.array([[1, 0], [-1, 0], [0, 0]], dtype=np.float32)
    shares = unit_scales(vectors, 2)
    assert shares[0].tolist() == [0, 1, 1, 0] and shares[1].tolist() == [0, 0, 0, 1]


class Formula:
    """The gain of a link worked out by itself, as scoring.py describes it."""

    def __init__(self, sides: tuple[Vectors, Vectors], lengths: tuple[Floats, Floats], scale: DocumentStats) -> None:
        self.sides, self.lengths, self.scale, self.prices = sides, lengths, scale, AlignmentCosts()

    def beside(self, vector: np.ndarray, side: int, first: int, end: int) -> float:
        """Mean cosine of a vector with the sentences before and after a run of the other side."""
        places = [place for place in (first - 1, end) if 0 <= place < len(self.sides[side])]
        return float(np.mean([vector @ self.sides[side][place] for place in places])) if places else 0.0

    def similarity(self, src: Step, tgt: Step, cosine: float | None = None) -> float:
        """Cosine, perhaps another than that of means, above that of what stands beside, in usual translations'."""
        x, y = mean_vector(self.sides[0], *src), mean_vector(self.sides[1], *tgt)
        beside = (self.beside(x, 1, *tgt) + self.beside(y, 0, *src)) / 2
        own = float(x @ y) if cosine is None else cosine
        return (own - self.prices.context * beside) / self.scale.similarity

    def gain(self, src: Step, tgt: Step, cosine: float | None = None) -> float:
        """All of it: similarity, lengths, the weight of a larger link, the price of several to several."""
        m, n = src[1] - src[0], tgt[1] - tgt[0]
        start = self.prices.length_start * self.lengths[0].mean()
        characters = self.lengths[0][slice(*src)].sum(), self.lengths[1][slice(*tgt)].sum() * self.scale.ratio
        off = np.log((characters[0] + start) / (characters[1] + start)) ** 2
        value = self.similarity(src, tgt, cosine) - self.prices.length * min(off, self.prices.length_cap)
        return float(((m + n) / 2) ** self.prices.size_power * value - self.prices.many * (min(m, n) - 1))


@pytest.mark.parametrize("band", [full_band(14, 11), RAGGED])
@pytest.mark.parametrize("longest", [1, 3, 5])
def test_gains_are_what_the_formula_says(longest: int, band: Band) -> None:
    """Every link of every cell by a plain loop; and what other cosines of its runs would make of it."""
    generator = np.random.default_rng(3)
    sides = random_units(generator, 14, 12), random_units(generator, 11, 12)
    lengths = generator.integers(1, 80, 14).astype(np.float64), generator.integers(1, 30, 11).astype(np.float64)
    formula = Formula(sides, lengths, DocumentStats(0.4, 2.5))
    gains = LinkScorer(sides, lengths, formula.scale, formula.prices, longest)
    around = gains.cosines(band)
    table = gains.table(band, around, -np.inf)
    runs = [(tuple(a), tuple(b)) for a, b in zip(*(side.tolist() for side in table.spans()), strict=True)]
    np.testing.assert_allclose(table.gains, [formula.gain(a, b) for a, b in runs], atol=2e-4)
    np.testing.assert_allclose(gains.similarity(table), [formula.similarity(a, b) for a, b in runs], atol=2e-4)
    other = generator.uniform(-1, 1, len(runs)).astype(np.float32)
    expected = [formula.gain(a, b, float(cosine)) for (a, b), cosine in zip(runs, other, strict=True)]
    np.testing.assert_allclose(gains.rescore(table, around, other), expected, atol=3e-4)
    inside = [
        ((i - m, i), (j - n, j))
        for i in range(15)
        for j in range(band.low[i], band.high[i] + 1)
        for m in range(1, min(i, longest) + 1)
        for n in range(1, min(j, longest) + 1)
    ]
    assert runs == inside
    few = gains.table(band, around, -0.4)
    worth = table.gains >= -0.4 * np.array([a[1] - a[0] + b[1] - b[0] for a, b in runs])
    assert few.gains.tolist() == table.gains[worth].tolist() and 0 < len(few.gains) < len(table.gains)
    assert few.offsets.tolist() == table.take(worth).offsets.tolist()
