from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualmoco.core.errors import DataError
from dualmoco.data import sampling, staging
from dualmoco.data.sampling import allot, drop_repeats, hold_out, keep_sample
from dualmoco.data.staging import PAIR_ID, SRC_ID, TGT_ID, PairStatus


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every test cross the borders of slices and partitions."""
    monkeypatch.setattr(staging, "SLICE_ROWS", 7)
    monkeypatch.setattr(sampling, "PARTITION_ROWS", 10)


def ids_of(rows: list[tuple[int, int]]) -> np.ndarray:
    return np.array([(src, tgt, src * 1000 + tgt) for src, tgt in rows], dtype=np.int64).reshape(-1, 3).T


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=60))
def test_only_the_first_of_each_pair_is_left(rows: list[tuple[int, int]]) -> None:
    status = np.zeros(len(rows), dtype=np.uint8)
    drop_repeats(ids_of(rows)[PAIR_ID], status, PairStatus.duplicate)
    seen: set[tuple[int, int]] = set()
    for row, own in zip(rows, status, strict=True):
        assert (own == PairStatus.duplicate) == (row in seen)
        seen.add(row)


def test_rows_already_dropped_do_not_count_as_first() -> None:
    status = np.array([PairStatus.duplicate, PairStatus.train, PairStatus.train], dtype=np.uint8)
    drop_repeats(ids_of([(1, 1), (1, 2), (1, 3)])[SRC_ID], status, PairStatus.repeated_side)
    assert status.tolist() == [PairStatus.duplicate, PairStatus.train, PairStatus.repeated_side]


@pytest.mark.parametrize(
    ("limits", "weights", "total", "expected"),
    [
        ([0, 0, 0], [1, 1, 1], 0, [10, 100, 1000]),
        ([5, 0, 200], [1, 1, 1], 0, [5, 100, 200]),
        ([0, 0, 0], [1, 1, 1], 90, [10, 40, 40]),
        ([0, 0, 0], [1, 1, 2], 100, [10, 30, 60]),
        ([0, 0, 0], [3, 1, 1], 5, [3, 1, 1]),
        ([0, 0, 0], [1, 1, 1], 10**6, [10, 100, 1000]),
    ],
)
def test_allot(limits: list[int], weights: list[float], total: int, expected: list[int]) -> None:
    assert allot([10, 100, 1000], limits, weights, total) == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.1, 9)), min_size=1, max_size=6), st.integers(1, 200))
def test_allot_gives_the_total_or_all_there_is(corpora: list[tuple[int, float]], total: int) -> None:
    available, weights = [count for count, _ in corpora], [weight for _, weight in corpora]
    taken = allot(available, [0] * len(corpora), weights, total)
    assert sum(taken) == min(total, sum(available))
    assert all(0 <= count <= most for count, most in zip(taken, available, strict=True))


def test_sample_keeps_the_number_and_is_fair() -> None:
    hits = np.zeros(40)
    for seed in range(300):
        status = np.zeros(50, dtype=np.uint8)
        status[::10] = PairStatus.duplicate
        keep_sample(status, slice(5, 45), 9, [seed])
        assert (status[5:45] == PairStatus.train).sum() == 9
        assert (status[:5] != PairStatus.not_sampled).all() and (status[45:] != PairStatus.not_sampled).all()
        hits += status[5:45] == PairStatus.train
    candidates = hits[np.arange(5, 45) % 10 != 0]
    assert (hits[np.arange(5, 45) % 10 == 0] == 0).all()
    assert abs(candidates.mean() - 300 * 9 / 36) < 1e-9
    assert candidates.min() > 40 and candidates.max() < 115  # 75 expected, standard deviation 7.5


def test_same_seed_same_sample() -> None:
    chosen = []
    for seed in (1, 1, 2):
        status = np.zeros(100, dtype=np.uint8)
        keep_sample(status, slice(0, 100), 30, [seed])
        chosen.append(status.tolist())
    assert chosen[0] == chosen[1] != chosen[2]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=30, max_size=80), st.integers(0, 5))
def test_held_out_pairs_share_no_sentence(rows: list[tuple[int, int]], seed: int) -> None:
    ids, status = ids_of(rows), np.zeros(len(rows), dtype=np.uint8)
    drop_repeats(ids[PAIR_ID], status, PairStatus.duplicate)
    try:
        hold_out(list(ids), status, 5, [seed])
    except DataError:
        return
    heldout = ids[:, status == PairStatus.heldout]
    train = ids[:, status == PairStatus.train]
    assert heldout.shape[1] == 5
    for column in (SRC_ID, TGT_ID):
        assert len(np.unique(heldout[column])) == 5
        assert not np.isin(train[column], heldout[column]).any()
    for row in ids[:, status == PairStatus.shares_heldout].T:
        assert row[SRC_ID] in heldout[SRC_ID] or row[TGT_ID] in heldout[TGT_ID]


def test_too_few_pairs_to_hold_out() -> None:
    with pytest.raises(DataError, match="expected more than heldout=3"):
        hold_out(list(ids_of([(1, 1), (2, 2), (3, 3)])), np.zeros(3, dtype=np.uint8), 3, [0])


def test_nothing_to_hold_out() -> None:
    status = np.zeros(3, dtype=np.uint8)
    hold_out(list(ids_of([(1, 1), (2, 2), (3, 3)])), status, 0, [0])
    assert not status.any()
