"""The best path through a band, and what would be lost without its steps, against slow oracles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from alignments import Step, cells_of
from dualmoco.alignment.dynamic_programming import (
    MAX_MARGIN,
    Band,
    LinkTable,
    StepPriors,
    best_path,
    full_band,
    link_losses,
    step_margins,
)
from dualmoco.core.vectors import Floats, Ids

Move = tuple[int, int, int, int]
"""The cell that a step leads to, and the sentences of both sides that it takes."""


class Problem:
    """Random gains of every step into every cell, and slow ways through them."""

    def __init__(self, seed: int, rows: int, columns: int, longest: int) -> None:
        generator = np.random.default_rng(seed)
        self.rows, self.columns, self.longest = rows, columns, longest
        self.gains = generator.normal(size=(rows + 1, columns + 1, longest, longest)).astype(np.float32)
        self.types: Floats = generator.normal(size=(longest, longest)) / 4
        self.deletion = -float(generator.random())
        self.full = full_band(rows, columns)
        self.priors = StepPriors(self.types.ravel(), self.deletion)

    def table(self, band: Band) -> LinkTable:
        """All links in a band."""
        types = self.longest**2
        gains = np.concatenate(
            [self.gains[row, band.low[row] : band.high[row] + 1].ravel() for row in range(self.rows + 1)]
        )
        sizes = np.tile(np.arange(types, dtype=np.uint8), band.cells)
        return LinkTable(band, np.arange(band.cells + 1) * types, sizes, gains, self.longest)

    def gain(self, row: int, column: int, m: int, n: int) -> float:
        """Of one step into a cell."""
        if not (m and n):
            return self.deletion
        return float(self.gains[row, column, m - 1, n - 1]) + float(self.types[m - 1, n - 1])

    def steps_into(self, row: int, column: int) -> Iterator[Step]:
        """All steps that end at a cell."""
        for m in range(min(self.longest, row) + 1):
            for n in range(min(self.longest, column) + 1):
                if (m and n) or m + n == 1:
                    yield m, n

    def best(self, band: Band, without: Move | None = None) -> float:
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

    def paths(self) -> list[tuple[float, list[Move]]]:
        """Every path there is, as cells with the steps into them, and its sum of gains."""

        def paths_to(row: int, column: int) -> Iterator[tuple[float, list[Move]]]:
            if row == column == 0:
                yield 0.0, []
            for m, n in self.steps_into(row, column):
                for total, cells in paths_to(row - m, column - n):
                    yield total + self.gain(row, column, m, n), [*cells, (row, column, m, n)]

        return list(paths_to(self.rows, self.columns))

    def sum_of(self, steps: Ids) -> float:
        """The sum of gains of steps."""
        return sum(self.gain(*move) for move in moves_of(steps))


def moves_of(steps: Ids) -> list[Move]:
    """Steps with the cells that they lead to."""
    ends = steps.cumsum(axis=0).tolist()
    return [(row, column, m, n) for (row, column), (m, n) in zip(ends, steps.tolist(), strict=True)]


def links_of(moves: list[Move]) -> dict[tuple[str, int], tuple[frozenset[int], frozenset[int]]]:
    """For each sentence of either side the sentences of its link; wherever it is left out, that is the same."""
    found: dict[tuple[str, int], tuple[frozenset[int], frozenset[int]]] = {}
    for row, column, m, n in moves:
        link = frozenset(range(row - m, row)), frozenset(range(column - n, column))
        found |= {("src", number): link for number in link[0]} | {("tgt", number): link for number in link[1]}
    return found


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


SHAPES = [(1, 70, 66), (1, 9, 3), (3, 30, 24), (3, 1, 12), (5, 27, 31), (5, 14, 2), (5, 1, 1)]


@pytest.mark.parametrize(("longest", "rows", "columns"), SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_best_path_is_the_oracles(seed: int, longest: int, rows: int, columns: int) -> None:
    """No path through all cells has a higher sum of gains; the steps take every sentence, and have that sum."""
    problem = Problem(seed, rows, columns, longest)
    path = best_path(problem.table(problem.full), problem.priors)
    assert path.steps.sum(axis=0).tolist() == [rows, columns]
    assert path.steps.max() <= longest and path.steps.min() >= 0 and (path.steps.sum(axis=1) > 0).all()
    one_sided = ~path.steps.all(axis=1)
    assert (path.steps[one_sided].sum(axis=1) == 1).all() and ((path.links < 0) == one_sided).all()
    expected = problem.best(problem.full)
    assert problem.sum_of(path.steps) == pytest.approx(expected, abs=1e-9)
    assert path.totals[-1] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("longest", "rows", "columns"), SHAPES)
@pytest.mark.parametrize("seed", [3, 4])
def test_a_band_around_the_best_path_is_enough(seed: int, longest: int, rows: int, columns: int) -> None:
    """The same steps as through all cells, whatever the edges of the band are like."""
    problem = Problem(seed, rows, columns, longest)
    whole = best_path(problem.table(problem.full), problem.priors)
    band = random_band(seed, rows, columns, cells_of(whole.steps), 5)
    assert band.cells == (band.high - band.low + 1).sum() <= (rows + 1) * (columns + 1)
    assert best_path(problem.table(band), problem.priors).steps.tolist() == whole.steps.tolist()


@pytest.mark.parametrize(("longest", "rows", "columns"), SHAPES)
@pytest.mark.parametrize("seed", [5, 6])
def test_best_path_stays_in_its_band(seed: int, longest: int, rows: int, columns: int) -> None:
    """Around a path that is not the best, the result is the oracle's among the cells of the band."""
    problem = Problem(seed, rows, columns, longest)
    corners = [(row, min(row + ahead, rows) * columns // rows) for row in range(rows + 1) for ahead in (0, 1)]
    band = random_band(seed, rows, columns, np.array(corners), 4)
    path = best_path(problem.table(band), problem.priors)
    cells = cells_of(path.steps)
    assert ((cells[:, 1] >= band.low[cells[:, 0]]) & (cells[:, 1] <= band.high[cells[:, 0]])).all()
    assert cells[-1].tolist() == [rows, columns]
    assert problem.sum_of(path.steps) == pytest.approx(problem.best(band), abs=1e-9)


def test_a_band_without_a_way_is_refused() -> None:
    """Rows that do not meet, whatever the links are worth."""
    band = Band(np.array([0, 9]), np.array([2, 12]))
    table = LinkTable(band, np.zeros(band.cells + 1, dtype=np.int64), np.empty(0, np.uint8), np.empty(0, np.float32), 5)
    with pytest.raises(ValueError, match=r"no path.*expected each row to start"):
        best_path(table, StepPriors(np.zeros(25), -1.0))


def test_links_know_their_cells_and_runs() -> None:
    """Every link of a ragged band, one by one, before and after some are dropped."""
    problem = Problem(0, 6, 5, 3)
    band = Band(np.array([0, 0, 1, 1, 2, 3, 3]), np.array([1, 2, 3, 3, 4, 5, 5]))
    table = problem.table(band)
    expected = [
        ((row - m, row), (column - n, column), problem.gains[row, column, m - 1, n - 1])
        for row in range(7)
        for column in range(band.low[row], band.high[row] + 1)
        for m in (1, 2, 3)
        for n in (1, 2, 3)
    ]
    for kept in (np.ones(len(expected), dtype=bool), np.random.default_rng(0).random(len(expected)) < 0.3):
        some = table.take(kept)
        src, tgt = some.spans()
        found = [(tuple(a), tuple(b), gain) for a, b, gain in zip(src.tolist(), tgt.tolist(), some.gains, strict=True)]
        assert found == [link for link, keep in zip(expected, kept, strict=True) if keep]
        assert some.offsets[-1] == kept.sum() and (np.diff(some.offsets) >= 0).all()


@pytest.mark.parametrize(("longest", "rows", "columns"), [(1, 4, 5), (3, 4, 4), (5, 3, 5)])
def test_losses_by_trying_every_path(longest: int, rows: int, columns: int) -> None:
    """What the best path with a link lacks; links that lose little are enough for the same path."""
    problem = Problem(3, rows, columns, longest)
    table = problem.table(problem.full)
    path = best_path(table, problem.priors)
    found = link_losses(table, problem.priors, path)
    every = problem.paths()
    best = max(total for total, _ in every)
    with_move: dict[Move, float] = {}
    for total, moves in every:
        with_move |= {move: max(total, with_move.get(move, -np.inf)) for move in moves}
    src, tgt = table.spans()
    for lost, (first, row), (begin, column) in zip(found.tolist(), src.tolist(), tgt.tolist(), strict=True):
        known = with_move.get((row, column, row - first, column - begin))
        assert lost == np.inf if known is None else lost == pytest.approx(best - known, abs=1e-9)
    few = table.take(found <= 0.5)
    assert len(few.gains) < len(table.gains)
    assert best_path(few, problem.priors).steps.tolist() == path.steps.tolist()


@pytest.mark.parametrize(("longest", "rows", "columns"), [(1, 4, 5), (3, 4, 4), (5, 5, 4), (5, 3, 5), (3, 1, 3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_margins_by_trying_every_path(seed: int, longest: int, rows: int, columns: int) -> None:
    """What is lost when one of a step's sentences must be in another link, of all paths there are."""
    problem = Problem(seed, rows, columns, longest)
    table = problem.table(problem.full)
    path = best_path(table, problem.priors)
    every = problem.paths()
    best = max(total for total, _ in every)
    own = links_of(moves_of(path.steps))
    for margin, move in zip(step_margins(table, problem.priors, path).tolist(), moves_of(path.steps), strict=True):
        sentences = links_of([move])
        rivals = [
            total for total, moves in every for links in [links_of(moves)] if any(links[s] != own[s] for s in sentences)
        ]
        assert margin == pytest.approx(min(best - max(rivals), MAX_MARGIN), abs=1e-9) and margin >= 0


@pytest.mark.parametrize(("longest", "rows", "columns"), [(1, 66, 6), (3, 25, 22), (5, 14, 30)])
def test_margins_of_links_in_a_band(longest: int, rows: int, columns: int) -> None:
    """The loss is that of the best path without the link, as the oracle finds it when the link is forbidden."""
    problem = Problem(7, rows, columns, longest)
    whole = best_path(problem.table(problem.full), problem.priors)
    for band in (problem.full, random_band(7, rows, columns, cells_of(whole.steps), 6)):
        table = problem.table(band)
        path = best_path(table, problem.priors)
        best = problem.best(band)
        for margin, move in zip(step_margins(table, problem.priors, path).tolist(), moves_of(path.steps), strict=True):
            if all(move[2:]):
                assert margin == pytest.approx(min(best - problem.best(band, move), MAX_MARGIN), abs=1e-9)
