"""Exact nearest neighbours against a slow oracle, for any tile, with ties and near ties."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats, Ids, Vectors, unit_vectors
from dualmoco.search.exact import COSINE_PLACES, _hits, cell_maxima, nearest, nearest_both_ways


def random_units(count: int, dimension: int, seed: int) -> Vectors:
    """Unit vectors in random directions."""
    return unit_vectors(np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32))


def slow_neighbors(queries: Vectors, keys: Vectors, k: int) -> tuple[Ids, Floats]:
    """Neighbours by sorting every rounded double-precision cosine, then the row number."""
    ids, scores = [], []
    for query in queries.astype(np.float64):
        cosines = [round(float(query @ key), COSINE_PLACES) for key in keys.astype(np.float64)]
        order = sorted(range(len(keys)), key=lambda row: (-cosines[row], row))[:k]
        ids.append(order)
        scores.append([cosines[row] for row in order])
    return np.array(ids), np.array(scores)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 6),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 1000),
)
def test_both_directions_agree_with_sorting_everything(
    sources: int, targets: int, k: int, tile: tuple[int, int], seed: int
) -> None:
    """Ids and scores of both sides are those of the oracle, for any sizes and tiles."""
    src, tgt = random_units(sources, 8, seed), random_units(targets, 8, seed + 1)
    forward, backward = nearest_both_ways(src, tgt, k, tile=tile)
    for found, (ids, scores) in ((forward, slow_neighbors(src, tgt, k)), (backward, slow_neighbors(tgt, src, k))):
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_allclose(found.scores, scores, atol=1e-12)


@pytest.mark.parametrize("tile", [(1, 1), (3, 5), (64, 64)])
def test_equal_vectors_are_ordered_by_their_number(tile: tuple[int, int]) -> None:
    """More copies of one vector than candidates are kept: the lowest numbers win in every tiling."""
    base = random_units(3, 6, 0)
    keys = base[np.array([0, 1, 2] * 20)]
    found = nearest(base, keys, 4, tile=tile)
    np.testing.assert_array_equal(found.ids, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]])


def test_differences_below_single_precision_do_not_depend_on_tiles() -> None:
    """Keys that differ by less than single precision tells apart give the same neighbours in every tiling."""
    generator = np.random.default_rng(0)
    base = random_units(1, 64, 1)
    keys = unit_vectors((base + 1e-7 * generator.standard_normal((200, 64))).astype(np.float32))
    queries = random_units(20, 64, 2)
    first = nearest(queries, keys, 3, tile=(20, 200))
    for tile in ((1, 200), (7, 13), (20, 1)):
        again = nearest(queries, keys, 3, tile=tile)
        np.testing.assert_array_equal(first.ids, again.ids)
        np.testing.assert_array_equal(first.scores, again.scores)
    np.testing.assert_array_equal(first.ids, slow_neighbors(queries, keys, 3)[0])


def test_fewer_rows_than_neighbours() -> None:
    """A side of two rows has two neighbours to give, and one row is no special case."""
    forward, backward = nearest_both_ways(random_units(5, 4, 0), random_units(2, 4, 1), 3)
    assert forward.ids.shape == (5, 2) and backward.ids.shape == (2, 3)
    assert nearest(random_units(1, 4, 0), random_units(1, 4, 1), 3).ids.tolist() == [[0]]


def test_progress_counts_rows() -> None:
    """The counts add up to all sources."""
    counted: list[int] = []
    nearest_both_ways(random_units(10, 4, 0), random_units(7, 4, 1), 2, tile=(3, 3), progress=counted.append)
    assert counted == [3, 3, 3, 1]


def test_mean_is_over_the_neighbours() -> None:
    """`mean` averages a row's scores."""
    found = nearest(random_units(4, 5, 0), random_units(9, 5, 1), 3)
    np.testing.assert_allclose(found.mean, [sum(row) / 3 for row in found.scores.tolist()])


@pytest.mark.parametrize("pairs", [1, 50, 10**6], ids=["all blocks tie", "some blocks tie", "pairs are listed"])
@pytest.mark.parametrize("kind", ["zero", "equal", "few", "mixed"])
def test_ties_over_many_blocks(kind: str, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few keys are compared at once, and however many of them tie, the lowest row numbers win."""
    monkeypatch.setattr("dualmoco.search.exact.KEYS_AT_ONCE", 7)
    monkeypatch.setattr("dualmoco.search.exact.PAIRS_AT_ONCE", pairs)
    base, order = random_units(5, 6, 3), np.random.default_rng(4)
    keys = {
        "zero": np.zeros((60, 6), dtype=np.float32),
        "equal": np.repeat(base[:1], 60, axis=0),
        "few": base[order.integers(5, size=60)],
        "mixed": np.concatenate([random_units(30, 6, 5), base[order.integers(2, size=30)]])[order.permutation(60)],
    }[kind]
    queries = np.concatenate([base, np.zeros((2, 6), dtype=np.float32)])
    for k in (1, 3, 9):
        found, (ids, scores) = nearest(queries, keys, k), slow_neighbors(queries, keys, k)
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_allclose(found.scores, scores, atol=1e-12)


def test_memory_does_not_grow_with_ties() -> None:
    """Twice as many keys that all tie take no more memory: no list of all of them is held."""
    queries = np.concatenate([random_units(1, 8, 0).repeat(40, axis=0), np.zeros((40, 8), dtype=np.float32)])
    peaks = []
    for count in (40_000, 80_000):
        keys = queries[:1].repeat(count, axis=0)
        tracemalloc.start()
        found = nearest(queries, keys, 3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        np.testing.assert_array_equal(found.ids, np.tile([0, 1, 2], (80, 1)))
    assert (
        peaks[1] < 1.1 * peaks[0] and peaks[1] < 80_000 * len(queries) * 8
    )  # bytes, were one number kept for each pair


@pytest.mark.parametrize("threads", ["1", "2", "7"])
@pytest.mark.parametrize("tile", [(1024, 1024), (100, 333), (64, 2000), (2000, 70)])
def test_threads_and_dense_tiles_change_nothing(
    tile: tuple[int, int], threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sides that become more and more alike, so that every tile improves every row, give the oracle's neighbours."""
    monkeypatch.setenv("DUALMOCO_THREADS", threads)
    generator = np.random.default_rng(0)
    centre, spread = random_units(1, 16, 1), np.linspace(2, 0.2, 1500)[:, None]
    src, tgt = (
        unit_vectors((centre + spread * generator.standard_normal((1500, 16))).astype(np.float32)) for _ in range(2)
    )
    for k in (3, 40):
        forward, backward = nearest_both_ways(src, tgt, k, tile=tile)
        cosines = (src.astype(np.float64) @ tgt.astype(np.float64).T).round(COSINE_PLACES)
        for found, right in ((forward, cosines), (backward, cosines.T)):
            order = np.argsort(-right, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(found.ids, order)
            np.testing.assert_array_equal(found.scores, np.take_along_axis(right, order, axis=1))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 48), (65, 1023)])
@pytest.mark.parametrize("share", [0.001, 0.5], ids=["few", "many"])
def test_cells_hold_every_similarity_above_the_lowest_candidate(shape: tuple[int, int], share: float) -> None:
    """As comparing the whole tile finds them, in the same order, also in a transposed tile."""
    generator = np.random.default_rng(0)
    for scores in (generator.random(shape, dtype=np.float32), generator.random(shape[::-1], dtype=np.float32).T):
        lowest = (1 - share * generator.random(shape[0])).astype(np.float32)
        highest = cell_maxima(scores)
        assert highest.max() == scores.max()
        own, other, found = _hits(scores, highest, lowest, shape[1])
        np.testing.assert_array_equal((own, other), np.nonzero(scores > lowest[:, None]))
        np.testing.assert_array_equal(found, scores[own, other])


@pytest.mark.parametrize("side", [0, 1])
def test_nan_is_refused(side: int) -> None:
    """One vector with NaN, on either side, is an error and not a sentence without neighbours."""
    sides = [random_units(300, 8, 0), random_units(300, 8, 1)]
    sides[side][77, 3] = np.nan
    with pytest.raises(DataError, match="NaN"):
        nearest(sides[0], sides[1], 3)
    pytest.importorskip("torch")
    with pytest.raises(DataError, match="NaN"):
        nearest(sides[0], sides[1], 3, device="cpu:0")


def test_pytorch_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path for GPUs, here on PyTorch's CPU device, gives the neighbours that numpy gives."""
    pytest.importorskip("torch")
    monkeypatch.setattr("dualmoco.search.exact.DEVICE_TILE", (128, 100))
    src, tgt = random_units(500, 24, 0), random_units(430, 24, 1)
    counted: list[int] = []
    for ours, theirs in zip(
        nearest_both_ways(src, tgt, 5),
        nearest_both_ways(src, tgt, 5, device="cpu:0", progress=counted.append),
        strict=True,
    ):
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.scores, theirs.scores)
    assert counted == [128, 128, 128, 116]
    np.testing.assert_array_equal(nearest(tgt, src, 2, device="cpu:0").ids, nearest(tgt, src, 2).ids)
