"""The algorithm of alignment against slow oracles: paths, margins, gains, runs, anchors, bands, links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from dualmoco.alignment import aligner, anchors, runs
from dualmoco.alignment.aligner import align_runs, measure, touched, type_shares, widened
from dualmoco.alignment.anchors import BUFFER, GAP, Anchors, band_around, find_anchors
from dualmoco.alignment.confidence import confidence
from dualmoco.alignment.gains import LinkGains, Prices, Scale
from dualmoco.alignment.links import Links
from dualmoco.alignment.path import MOST_MARGIN, Band, KeptGains, best_path, full_band, margins
from dualmoco.alignment.runs import AveragedRuns, EncodedRuns, encoded_runs, longer_texts
from dualmoco.core.vectors import Floats, Ids, Vectors, unit_vectors

Step = tuple[int, int]


def random_units(generator: np.random.Generator, count: int, dimension: int) -> Vectors:
    """Unit vectors in random directions."""
    return unit_vectors(generator.normal(size=(count, dimension)).astype(np.float32))


# The best path


class Problem:
    """Random gains of every step into every cell, and slow ways through them."""

    def __init__(self, seed: int, rows: int, columns: int, longest: int) -> None:
        generator = np.random.default_rng(seed)
        self.rows, self.columns, self.longest = rows, columns, longest
        self.table = generator.normal(size=(longest, longest, rows + 1, columns + 1)).astype(np.float32)
        self.types: Floats = generator.normal(size=(longest, longest)) / 4
        self.skip = -float(generator.random())
        self.full = full_band(rows, columns)

    def gains(self, rows: slice, columns: slice) -> np.ndarray:
        """What `best_path` asks for."""
        return self.table[:, :, rows, columns]

    def gain(self, row: int, column: int, m: int, n: int) -> float:
        """Of one step into a cell."""
        if not (m and n):
            return self.skip
        return float(self.table[m - 1, n - 1, row, column]) + float(self.types[m - 1, n - 1])

    def steps_into(self, row: int, column: int) -> Iterator[Step]:
        """All steps that end at a cell."""
        for m in range(min(self.longest, row) + 1):
            for n in range(min(self.longest, column) + 1):
                if (m and n) or m + n == 1:
                    yield m, n

    def best(self, band: Band, without: tuple[int, int, int, int] | None = None) -> float:
        """The highest sum of gains of a path inside a band, perhaps one that does without a step into a cell."""

        @cache
        def best_to(row: int, column: int) -> float:
            if not band.low[row] <= column <= band.high[row]:
                return -np.inf
            if row == column == 0:
                return 0.0
            ways = [
                best_to(row - m, column - n) + self.gain(row, column, m, n)
                for m, n in self.steps_into(row, column)
                if (row, column, m, n) != without
            ]
            return max(ways, default=-np.inf)

        return best_to(self.rows, self.columns)

    def paths(self) -> list[tuple[float, list[tuple[int, int, int, int]]]]:
        """Every path there is, as cells with the steps into them, and its sum of gains."""

        def paths_to(row: int, column: int) -> Iterator[tuple[float, list[tuple[int, int, int, int]]]]:
            if row == column == 0:
                yield 0.0, []
            for m, n in self.steps_into(row, column):
                for total, cells in paths_to(row - m, column - n):
                    yield total + self.gain(row, column, m, n), [*cells, (row, column, m, n)]

        return list(paths_to(self.rows, self.columns))

    def sum_of(self, steps: Ids) -> float:
        """The sum of gains of steps."""
        ends = steps.cumsum(axis=0)
        return sum(self.gain(*end, *step) for end, step in zip(ends.tolist(), steps.tolist(), strict=True))


def random_band(seed: int, rows: int, columns: int, cells: Ids, width: int) -> Band:
    """A band with ragged edges around cells (k, 2) of a path."""
    generator = np.random.default_rng(seed)
    low, high = np.full(rows + 1, columns), np.zeros(rows + 1, dtype=np.int64)
    np.minimum.at(low, cells[:, 0], cells[:, 1])
    np.maximum.at(high, cells[:, 0], cells[:, 1])
    low = np.minimum.accumulate(low[::-1])[::-1] - generator.integers(0, width, rows + 1)
    high = np.maximum.accumulate(high) + generator.integers(0, width, rows + 1)
    low, high = np.minimum.accumulate(low[::-1])[::-1].clip(0), np.maximum.accumulate(high).clip(None, columns)
    low[0], high[-1] = 0, columns
    return Band(low, high)


def cells_of(steps: Ids) -> Ids:
    """The cells that a path goes through, the first one too."""
    return np.concatenate([np.zeros((1, 2), dtype=np.int64), steps.cumsum(axis=0)])


SHAPES = [(1, 70, 66), (1, 9, 3), (3, 30, 24), (3, 1, 12), (5, 27, 31), (5, 14, 2), (5, 1, 1)]


@pytest.mark.parametrize(("longest", "rows", "columns"), SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_best_path_is_the_oracles(seed: int, longest: int, rows: int, columns: int) -> None:
    """No path through all cells has a higher sum of gains; the steps take every sentence, and have that sum."""
    problem = Problem(seed, rows, columns, longest)
    path = best_path(problem.full, problem.gains, problem.types, problem.skip)
    assert path.steps.sum(axis=0).tolist() == [rows, columns]
    assert path.steps.max() <= longest and path.steps.min() >= 0 and (path.steps.sum(axis=1) > 0).all()
    one_sided = ~path.steps.all(axis=1)
    assert (path.steps[one_sided].sum(axis=1) == 1).all()
    expected = problem.best(problem.full)
    assert problem.sum_of(path.steps) == pytest.approx(expected, abs=1e-9)
    assert path.totals[-1, -1] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("longest", "rows", "columns"), SHAPES)
@pytest.mark.parametrize("seed", [3, 4])
def test_a_band_around_the_best_path_is_enough(seed: int, longest: int, rows: int, columns: int) -> None:
    """The same steps as through all cells, whatever the edges of the band are like."""
    problem = Problem(seed, rows, columns, longest)
    whole = best_path(problem.full, problem.gains, problem.types, problem.skip)
    band = random_band(seed, rows, columns, cells_of(whole.steps), 5)
    path = best_path(band, problem.gains, problem.types, problem.skip)
    assert (band.high - band.low + 1).sum() <= (rows + 1) * (columns + 1)
    assert path.steps.tolist() == whole.steps.tolist()


@pytest.mark.parametrize(("longest", "rows", "columns"), SHAPES)
@pytest.mark.parametrize("seed", [5, 6])
def test_best_path_stays_in_its_band(seed: int, longest: int, rows: int, columns: int) -> None:
    """Around a path that is not the best, the result is the oracle's among the cells of the band."""
    problem = Problem(seed, rows, columns, longest)
    corners = [(row, min(row + ahead, rows) * columns // rows) for row in range(rows + 1) for ahead in (0, 1)]
    band = random_band(seed, rows, columns, np.array(corners), 4)
    path = best_path(band, problem.gains, problem.types, problem.skip)
    cells = cells_of(path.steps)
    assert ((cells[:, 1] >= band.low[cells[:, 0]]) & (cells[:, 1] <= band.high[cells[:, 0]])).all()
    assert cells[-1].tolist() == [rows, columns]
    assert problem.sum_of(path.steps) == pytest.approx(problem.best(band), abs=1e-9)


# Margins


@pytest.mark.parametrize(("longest", "rows", "columns"), [(1, 4, 5), (3, 4, 4), (5, 5, 4), (5, 3, 5), (3, 1, 3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_margins_by_trying_every_path(seed: int, longest: int, rows: int, columns: int) -> None:
    """What is lost when one of a step's sentences must be in another step, of all paths there are."""
    problem = Problem(seed, rows, columns, longest)
    path = best_path(problem.full, problem.gains, problem.types, problem.skip)
    found = margins(path, problem.full, problem.gains, problem.types, problem.skip)
    every = problem.paths()
    best = max(total for total, _ in every)
    own = [(*end, *step) for end, step in zip(path.steps.cumsum(axis=0).tolist(), path.steps.tolist(), strict=True)]
    for margin, (row, column, m, n) in zip(found.tolist(), own, strict=True):
        sentences = {("src", row - k) for k in range(m)} | {("tgt", column - k) for k in range(n)}
        rivals = [
            total
            for total, cells in every
            if any(
                sentences & ({("src", i - k) for k in range(a)} | {("tgt", j - k) for k in range(b)})
                for i, j, a, b in cells
                if (i, j, a, b) != (row, column, m, n)
            )
        ]
        assert margin == pytest.approx(min(best - max(rivals), MOST_MARGIN), abs=1e-9) and margin >= 0


@pytest.mark.parametrize(("longest", "rows", "columns"), [(1, 66, 6), (3, 25, 22), (5, 14, 30)])
def test_margins_over_several_tiles_and_in_a_band(longest: int, rows: int, columns: int) -> None:
    """The loss is that of the best path without the step, as the oracle finds it when the step is forbidden."""
    problem = Problem(7, rows, columns, longest)
    whole = best_path(problem.full, problem.gains, problem.types, problem.skip)
    for band in (problem.full, random_band(7, rows, columns, cells_of(whole.steps), 6)):
        path = best_path(band, problem.gains, problem.types, problem.skip)
        found = margins(path, band, problem.gains, problem.types, problem.skip)
        best, ends = problem.best(band), path.steps.cumsum(axis=0).tolist()
        for margin, (row, column), (m, n) in zip(found.tolist(), ends, path.steps.tolist(), strict=True):
            expected = best - problem.best(band, (row, column, m, n))
            assert margin == pytest.approx(min(expected, MOST_MARGIN), abs=1e-9)


def test_kept_gains_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles come from memory the second time, as long as there is room."""
    problem, asked = Problem(0, 40, 30, 5), []

    def gains(rows: slice, columns: slice) -> np.ndarray:
        asked.append((rows, columns))
        return problem.gains(rows, columns)

    kept = KeptGains(gains)
    first = best_path(problem.full, kept, problem.types, problem.skip)
    count = len(asked)
    second = best_path(problem.full, kept, problem.types, problem.skip)
    assert len(asked) == count > 1 and first.steps.tolist() == second.steps.tolist()
    monkeypatch.setattr("dualmoco.alignment.path.KEPT_BYTES", 0)
    full = KeptGains(gains)
    for _ in range(2):
        assert best_path(problem.full, full, problem.types, problem.skip).steps.tolist() == first.steps.tolist()
    assert len(asked) == 3 * count and not full.tiles


# Runs


def averages(sentences: Vectors, longest: int) -> np.ndarray:
    """Mean unit vectors of all runs by length and end, (P, N + 1, D); zero where one would begin before the text."""
    vectors = np.zeros((longest, len(sentences) + 1, sentences.shape[1]), dtype=np.float32)
    for size in range(1, longest + 1):
        for end in range(size, len(sentences) + 1):
            mean = sentences[end - size : end].astype(np.float64).mean(axis=0)
            vectors[size - 1, end] = mean / np.linalg.norm(mean)
    return vectors


def all_runs(count: int, longest: int) -> Ids:
    """Every run of a text, (b, 2)."""
    return np.array([(end - size, end) for size in range(1, longest + 1) for end in range(size, count + 1)])


TILES = [
    (slice(0, 4), slice(0, 7)),
    (slice(1, 2), slice(0, 1)),
    (slice(3, 12), slice(2, 9)),
    (slice(6, 31), slice(8, 24)),
]


@pytest.mark.parametrize("longest", [1, 3, 5])
@pytest.mark.parametrize("chunk", [4, 1024])
def test_averaged_runs_are_those_of_mean_vectors(longest: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cosines from sums are those of vectors that were averaged, at the start of a text too."""
    monkeypatch.setattr(runs, "CHUNK", chunk)
    generator = np.random.default_rng(longest)
    sides = [random_units(generator, count, 16) for count in (30, 23)]
    src, tgt = (AveragedRuns(side, longest) for side in sides)
    slow_src, slow_tgt = (EncodedRuns(averages(side, longest)) for side in sides)
    for rows, columns in TILES:
        expected = slow_src.cosines(slow_tgt, rows, columns)
        assert expected.shape == (longest, longest, rows.stop - rows.start, columns.stop - columns.start)
        np.testing.assert_allclose(src.cosines(tgt, rows, columns), expected, atol=2e-6)
        np.testing.assert_allclose(tgt.cosines(src, columns, rows), expected.transpose(1, 0, 3, 2), atol=2e-6)
        np.testing.assert_allclose(src.beside(sides[1][3:9], rows), slow_src.beside(sides[1][3:9], rows), atol=2e-6)
    every = all_runs(30, longest)
    np.testing.assert_allclose(src.at(every), slow_src.at(every), atol=2e-6)
    np.testing.assert_allclose(src.sentences, slow_src.sentences, atol=2e-6)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_texts_shorter_than_the_longest_run(count: int) -> None:
    """Runs that would begin before the text have cosines of zero."""
    generator = np.random.default_rng(count)
    sides = random_units(generator, count, 8), random_units(generator, 3, 8)
    found = AveragedRuns(sides[0], 5).cosines(AveragedRuns(sides[1], 5), slice(0, count + 1), slice(0, 4))
    slow = EncodedRuns(averages(sides[0], 5)).cosines(
        EncodedRuns(averages(sides[1], 5)), slice(0, count + 1), slice(0, 4)
    )
    np.testing.assert_allclose(found, slow, atol=2e-6)
    for size in range(5):
        assert not found[size, :, : size + 1].any() and not found[:, size, :, : size + 1].any()


def test_half_precision_changes_cosines_little() -> None:
    """Runs kept in fp16 have the cosines of single precision to three places, and single sentences in fp32."""
    generator = np.random.default_rng(9)
    vectors = averages(random_units(generator, 20, 32), 3), averages(random_units(generator, 15, 32), 3)
    src, tgt = (EncodedRuns(side) for side in vectors)
    half_src, half_tgt = (EncodedRuns(side.astype(np.float16)) for side in vectors)
    rows, columns = slice(0, 21), slice(2, 16)
    np.testing.assert_allclose(half_src.cosines(half_tgt, rows, columns), src.cosines(tgt, rows, columns), atol=1e-3)
    np.testing.assert_allclose(half_src.beside(tgt.sentences, rows), src.beside(tgt.sentences, rows), atol=1e-3)
    found = half_src.at(all_runs(20, 3))
    np.testing.assert_allclose(found, src.at(all_runs(20, 3)), atol=1e-3)
    assert found.dtype == half_src.sentences.dtype == np.float32


@pytest.mark.parametrize(("lang", "between"), [("en", " "), ("zh-CN", "")])
def test_encoded_runs_are_of_joined_texts(lang: str, between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distinct text is encoded once, and stands where its run ends; long texts are kept in half precision."""
    asked: list[str] = []

    def encode(texts: list[str]) -> Vectors:
        asked.extend(texts)
        return np.array([[len(text), 1] for text in texts], dtype=np.float32).reshape(-1, 2)

    texts = ["a", "bcd", "a", "bcd", "ef"]
    longer = longer_texts(texts, lang, 3)
    assert longer[0] == [f"{one}{between}{two}" for one, two in pairwise(texts)]
    assert longer[1][2] == f"a{between}bcd{between}ef"
    found = encoded_runs(encode(texts), longer, encode)
    assert len(asked) == len(texts) + len({text for size in longer for text in size})
    expected = [len(between.join(texts[first:end])) for first, end in all_runs(5, 3).tolist()]
    assert found.at(all_runs(5, 3))[:, 0].tolist() == expected
    monkeypatch.setattr(runs, "SINGLE_PRECISION", 4)
    half = encoded_runs(encode(texts), longer, encode)
    assert isinstance(half, EncodedRuns) and half.vectors.dtype == np.float16
    assert half.at(all_runs(5, 3))[:, 0].tolist() == expected
    assert encoded_runs(encode(texts[:1]), longer_texts(texts[:1], lang, 3), encode).longest == 3


# Gains


class Formula:
    """The gain of a link worked out by itself, from the words in gains.py."""

    def __init__(self, sides: tuple[Vectors, Vectors], lengths: tuple[Floats, Floats], scale: Scale) -> None:
        self.sides, self.lengths, self.scale, self.prices = sides, lengths, scale, Prices()

    def run(self, side: int, first: int, end: int) -> np.ndarray:
        """The unit vector of a run."""
        mean = self.sides[side][first:end].astype(np.float64).mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean))

    def beside(self, vector: np.ndarray, side: int, first: int, end: int) -> float:
        """Mean cosine of a vector with the sentences before and after a run of the other side."""
        places = [place for place in (first - 1, end) if 0 <= place < len(self.sides[side])]
        return float(np.mean([vector @ self.sides[side][place] for place in places])) if places else 0.0

    def similarity(self, src: Step, tgt: Step) -> float:
        """Cosine above that of what stands beside, in units of a usual translation's."""
        x, y = self.run(0, *src), self.run(1, *tgt)
        beside = (self.beside(x, 1, *tgt) + self.beside(y, 0, *src)) / 2
        return float(x @ y - self.prices.beside * beside) / self.scale.similarity

    def gain(self, src: Step, tgt: Step) -> float:
        """All of it: similarity, lengths, the weight of a larger link, the price of several to several."""
        m, n = src[1] - src[0], tgt[1] - tgt[0]
        start = self.prices.length_start * self.lengths[0].mean()
        characters = self.lengths[0][slice(*src)].sum(), self.lengths[1][slice(*tgt)].sum() * self.scale.ratio
        off = np.log((characters[0] + start) / (characters[1] + start)) ** 2
        value = self.similarity(src, tgt) - self.prices.length * min(off, self.prices.length_cap)
        return float(((m + n) / 2) ** self.prices.size_power * value - self.prices.many * (min(m, n) - 1))


@pytest.mark.parametrize("encoded", [False, True])
def test_gains_are_what_the_formula_says(encoded: bool) -> None:
    """Every link of every cell by a plain loop, in tiles at the start, in the middle and at the end."""
    generator = np.random.default_rng(3)
    sides = random_units(generator, 14, 12), random_units(generator, 11, 12)
    lengths = generator.integers(1, 80, 14).astype(np.float64), generator.integers(1, 30, 11).astype(np.float64)
    formula = Formula(sides, lengths, Scale(0.4, 2.5))
    make: Callable[[Vectors], AveragedRuns | EncodedRuns] = (
        (lambda side: EncodedRuns(averages(side, 3))) if encoded else (lambda side: AveragedRuns(side, 3))
    )
    gains = LinkGains(make(sides[0]), make(sides[1]), lengths, formula.scale, formula.prices)
    for rows, columns in ((slice(0, 15), slice(0, 12)), (slice(5, 8), slice(4, 9)), (slice(12, 15), slice(11, 12))):
        found = gains(rows, columns)
        for i in range(rows.start, rows.stop):
            for j in range(columns.start, columns.stop):
                for m in range(1, min(3, i) + 1):
                    for n in range(1, min(3, j) + 1):
                        expected = formula.gain((i - m, i), (j - n, j))
                        assert found[m - 1, n - 1, i - rows.start, j - columns.start] == pytest.approx(
                            expected, abs=2e-4
                        )
    every = [(a, b) for a in all_runs(14, 3).tolist() for b in all_runs(11, 3).tolist()]
    src, tgt = (np.array([link[side] for link in every]) for side in (0, 1))
    expected_all = [formula.similarity(tuple(a), tuple(b)) for a, b in every]
    np.testing.assert_allclose(gains.similarity(src, tgt), expected_all, atol=1e-4)


# Bands and anchors


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
        assert (band.low[row] <= np.maximum(column - BUFFER, 0)).all()
        assert (band.high[row] >= np.minimum(column + BUFFER, counts[1])).all()

    def nothing(rows: slice, columns: slice) -> np.ndarray:
        return np.zeros((1, 1, rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)

    path = best_path(band, nothing, np.zeros((1, 1)), 0.0)
    assert path.steps.sum(axis=0).tolist() == list(counts) and path.totals[-1, band.high[-1] - band.low[-1]] == 0


def test_wide_gaps_are_crossed_along_their_diagonal() -> None:
    """Without anchors the band is narrow and straight; a gap that is not wide is looked at whole."""
    band = band_around(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), (3000, 1500))
    rows = np.arange(3001)
    assert (band.low <= rows / 2).all() and (band.high >= rows / 2).all()
    assert (band.high - band.low).max() <= 2 * (GAP + BUFFER)
    narrow = band_around(np.array([0, 40]), np.array([0, 50]), (41, 51))
    assert narrow.low[21] == 0 and narrow.high[21] == 51


def related(generator: np.random.Generator, count: int, dimension: int, noise: float) -> tuple[Vectors, Vectors]:
    """Random vectors and noisy copies of them."""
    vectors = random_units(generator, count, dimension)
    shift = generator.normal(size=vectors.shape) * noise / np.sqrt(dimension)
    return vectors, unit_vectors((vectors + shift).astype(np.float32))


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
    monkeypatch.setattr(anchors, "FEW_CELLS", 2000)
    found = find_anchors(src, tgt)
    assert found.src.tolist() == exact.src.tolist() and found.tgt.tolist() == exact.tgt.tolist()
    np.testing.assert_array_equal(found.similarity, exact.similarity)


# Links


class Synthetic:
    """Two texts with known links; the vector of a sentence that stands for several is their mean.

    Args:
        seed: Of the random numbers.
        types: Sentences of both sides of each link, one of them 1 at most.
    """

    def __init__(self, seed: int, types: list[Step]) -> None:
        generator = np.random.default_rng(seed)
        sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        lengths: tuple[list[float], list[float]] = ([], [])
        for sizes in types:
            parts = random_units(generator, max(sizes), 64)
            each = generator.integers(20, 60, max(sizes)).astype(np.float64)
            for side, size in enumerate(sizes):
                if size:
                    one = size < max(sizes)
                    made = parts.mean(axis=0, keepdims=True) if one else parts
                    noisy = unit_vectors(made) + generator.normal(size=made.shape) * 0.04
                    sides[side].extend(unit_vectors(noisy.astype(np.float32)))
                    lengths[side].extend((1.0, 0.4)[side] * (each.sum(keepdims=True) if one else each))
        self.types = types
        self.vectors = np.array(sides[0]), np.array(sides[1])
        self.lengths = np.array(lengths[0]), np.array(lengths[1])

    def aligned(self, *, flipped: bool = False, encoded: bool = False) -> Links:
        """What the aligner makes of them."""
        order = (1, 0) if flipped else (0, 1)
        vectors = [self.vectors[side] for side in order]
        lengths = self.lengths[order[0]], self.lengths[order[1]]
        found = find_anchors(*vectors)
        if encoded:
            made = [EncodedRuns(averages(side, 5)) for side in vectors]
            return align_runs(made[0], made[1], lengths, found)
        return align_runs(AveragedRuns(vectors[0], 5), AveragedRuns(vectors[1], 5), lengths, found)


def random_types(seed: int, count: int) -> list[Step]:
    """Mostly one to one, some one to many either way; some left out, never on both sides in one place."""
    generator = np.random.default_rng(seed)
    known = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 0), (0, 1)]
    drawn = generator.choice(len(known), count, p=[0.66, 0.1, 0.1, 0.03, 0.03, 0.04, 0.04])
    types = [(1, 1)]
    for number in drawn:
        types += [known[number]] if number < 5 else [(1, 1), known[number], (1, 1)]
    return [*types, (1, 1)]


def types_of(links: Links) -> list[Step]:
    """Numbers of sentences of both sides of each link."""
    return list(zip(np.diff(links.src)[:, 0].tolist(), np.diff(links.tgt)[:, 0].tolist(), strict=True))


def check_whole(links: Links, counts: Step) -> None:
    """Every sentence is in exactly one link, in order."""
    for side, count in zip((links.src, links.tgt), counts, strict=True):
        assert side[0, 0] == 0 and side[-1, 1] == count and (side[1:, 0] == side[:-1, 1]).all()
        assert (side[:, 1] >= side[:, 0]).all()
    assert ((links.confidence >= 0) & (links.confidence <= 1)).all()
    assert (np.isnan(links.scores) == ~links.is_linked).all()


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
    monkeypatch.setattr(anchors, "FEW_CELLS", 4000)
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
        np.array([[0, 1], [1, 3], [3, 4], [4, 5]]), np.array([[0, 1], [1, 2], [2, 2], [2, 3]]),
        np.array([1.0, 0.9, np.nan, 1.1]), np.array([0.9, 0.8, 0.5, 0.9]),
    )  # fmt: skip
    assert len(links) == 4 and links.is_linked.tolist() == [True, True, False, True]
    kept = links.take(np.flatnonzero(links.is_linked))
    assert kept.src.tolist() == [[0, 1], [1, 3], [4, 5]] and kept.tgt.tolist() == [[0, 1], [1, 2], [2, 3]]


# What anchors tell, and the band that grows


def test_ratio_of_lengths_ignores_a_far_gap() -> None:
    """Between close anchors the source is twice as long; what one side has alone does not count."""
    src, tgt = np.full(130, 20.0), np.full(30, 10.0)
    places = np.concatenate([np.arange(15), np.arange(115, 130)])
    found = measure(Anchors(places, np.arange(30), np.linspace(0.2, 0.6, 30)), (src, tgt))
    assert found.similarity == pytest.approx(0.4) and found.ratio == 2


def test_measure_without_close_anchors_takes_all() -> None:
    """One anchor: from it to the end; none: everything, and a usual similarity of one."""
    lengths = np.array([5.0, 10.0, 20.0]), np.array([7.0, 10.0, 5.0])
    assert measure(Anchors(np.array([1]), np.array([1]), np.array([0.5])), lengths) == Scale(0.5, 2.0)
    none = np.empty(0, dtype=np.int64)
    assert measure(Anchors(none, none, np.empty(0)), lengths) == Scale(1.0, 35 / 22)


def test_shares_of_types_by_hand() -> None:
    """Links seen and half a link more, among all steps and one more."""
    steps = np.array([[1, 1], [1, 1], [2, 1], [0, 1], [1, 2]])
    np.testing.assert_allclose(type_shares(steps, 2), np.array([[2.5, 1.5], [1.5, 0.5]]) / 6)


def test_touched_rows_by_hand() -> None:
    """Rows where the path is at an edge, unless the text ends there."""
    band = Band(np.array([0, 0, 1, 2, 3, 4]), np.array([2, 3, 4, 5, 6, 6]))
    inside = np.array([[1, 1], [1, 1], [1, 1], [1, 1], [1, 2]])
    assert touched(band, inside, 6).tolist() == []
    high = np.array([[0, 1], [0, 1], [1, 1], [1, 0], [1, 1], [1, 1], [1, 1]])
    assert touched(band, high, 6).tolist() == [0, 1]
    low = np.array([[1, 0], [1, 1], [1, 1], [1, 1], [1, 3]])
    assert touched(band, low, 6).tolist() == [2, 3, 4]


def test_widened_band_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """More cells around some rows, none beyond the text, and edges that still never fall."""
    monkeypatch.setattr(aligner, "NEAR", 2)
    band = Band(np.arange(10).clip(2) - 2, np.arange(10).clip(None, 7) + 2)
    wider = widened(band, np.array([5]), 9)
    assert band.low.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7] and band.high.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 9, 9]
    assert wider.low.tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 6, 7]
    assert wider.high.tolist() == [2, 3, 4, 7, 8, 9, 9, 9, 9, 9]


def test_a_band_that_is_too_narrow_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors that lead the path away from the links of all cells do not keep it there."""
    monkeypatch.setattr(aligner, "EXACT_CELLS", 0)
    text = Synthetic(21, [*[(1, 1)] * 60, *[(0, 1)] * 25, *[(1, 1)] * 60])
    few = Anchors(np.array([0, 60, 119]), np.array([0, 60, 144]), np.full(3, 0.9))  # the second is wrong
    made = [AveragedRuns(side, 5) for side in text.vectors]
    links = align_runs(made[0], made[1], text.lengths, few)
    assert types_of(links) == text.types


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
