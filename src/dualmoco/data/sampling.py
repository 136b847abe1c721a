"""Which clean pairs are kept: no duplicates, a sample of each corpus, held-out pairs apart.

Takes the ids of pairs, in memory or mapped from disk, and decides their fates, a slice at a time; `prepare.py` and
`pairs.py` write and train what is left. The same seed gives the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Ids
from dualmoco.data.staging import SRC_ID, TGT_ID, PairStatus, slices

PARTITION_ROWS = 8_000_000  # ids sorted at once
SPARE_CANDIDATES = 4  # held-out candidates for each one wanted, as some share a sentence


def drop_repeats(ids: Ids, fates: np.ndarray, fate: PairStatus) -> None:
    """Gives all rows but the first of each id a fate.

    Args:
        ids: Of shape (rows,).
        fates: Of shape (rows,), changed in place; rows not for training are passed over.
        fate: Of the rows that repeat an id.
    """
    partitions = max(1, math.ceil(len(ids) / PARTITION_ROWS))
    for partition in range(partitions):
        rows, values = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for part in slices(len(ids)):
            own = np.ascontiguousarray(ids[part])
            chosen = fates[part] == PairStatus.train
            if partitions > 1:
                chosen &= own.view(np.uint64) % partitions == partition
            places = np.flatnonzero(chosen)
            rows.append(places + part.start)
            values.append(own[places])
        all_rows, all_values = np.concatenate(rows), np.concatenate(values)
        order = np.argsort(all_values, kind="stable")
        ordered = all_values[order]
        fates[all_rows[order[1:][ordered[1:] == ordered[:-1]]]] = fate


def allot(available: Sequence[int], limits: Sequence[int], weights: Sequence[float], total: int) -> list[int]:
    """How many pairs each corpus gives.

    Args:
        available: Pairs of each corpus.
        limits: The most to take of each; 0 for all.
        weights: Shares of the total, in any unit.
        total: Pairs altogether; 0 for no limit.

    Returns:
        A number for each corpus. What a small corpus cannot give falls to the others, by their weights.
    """
    most = [min(count, limit) if limit else count for count, limit in zip(available, limits, strict=True)]
    if not total or total >= sum(most):
        return most
    taken, open_corpora, left = [0] * len(most), set(range(len(most))), total
    while open_corpora:
        unit = left / sum(weights[corpus] for corpus in open_corpora)
        full = {corpus for corpus in open_corpora if most[corpus] <= unit * weights[corpus]}
        if not full:
            break
        for corpus in full:
            taken[corpus] = most[corpus]
            left -= most[corpus]
        open_corpora -= full
    shares = {corpus: left * weights[corpus] / sum(weights[c] for c in open_corpora) for corpus in open_corpora}
    for corpus, share in shares.items():
        taken[corpus] = math.floor(share)
    by_remainder = sorted(shares, key=lambda corpus: (math.floor(shares[corpus]) - shares[corpus], corpus))
    for corpus in by_remainder[: total - sum(taken)]:
        taken[corpus] += 1
    return taken


def keep_sample(fates: np.ndarray, rows: slice, count: int, seed: list[int]) -> None:
    """Keeps a random choice of a corpus's rows, every choice being equally likely.

    Args:
        fates: Of shape (rows,), changed in place.
        rows: Of the corpus.
        count: Rows for training to keep.
        seed: Of the choice.
    """
    random, own = np.random.default_rng(seed), fates[rows]
    left = sum(int((own[part] == PairStatus.train).sum()) for part in slices(len(own)))
    for part in slices(len(own)):
        places = part.start + np.flatnonzero(own[part] == PairStatus.train)
        here = int(random.hypergeometric(len(places), left - len(places), count)) if count else 0
        kept = random.choice(len(places), here, replace=False)
        dropped = np.ones(len(places), dtype=bool)
        dropped[kept] = False
        own[places[dropped]] = PairStatus.not_sampled
        left, count = left - len(places), count - here


def hold_out(ids: Sequence[Ids], fates: np.ndarray, count: int, seed: list[int]) -> None:
    """Sets random pairs apart, and drops the pairs that share a sentence with one of them.

    Args:
        ids: Of the source and of the target sentences, each of shape (rows,).
        fates: Of shape (rows,), changed in place.
        count: Pairs to hold out; no sentence is twice among them.
        seed: Of the choice.

    Raises:
        DataError: Too few pairs.
    """
    if not count:
        return
    usable = sum(int((fates[part] == PairStatus.train).sum()) for part in slices(len(fates)))
    chosen = _distinct(ids, _random_rows(fates, usable, min(usable, SPARE_CANDIDATES * count), seed))
    if len(chosen) < count < usable:
        chosen = _distinct(ids, _random_rows(fates, usable, usable, seed))
    if len(chosen) < count or usable <= count:
        raise DataError(
            f"{usable} usable pairs, {len(chosen)} of them without a common sentence; expected more than "
            f"heldout={count}: give more data or hold out less"
        )
    heldout = np.sort(chosen[:count])
    src, tgt = np.sort(ids[SRC_ID][heldout]), np.sort(ids[TGT_ID][heldout])
    for part in slices(len(fates)):
        shares = np.isin(ids[SRC_ID][part], src) | np.isin(ids[TGT_ID][part], tgt)
        view = fates[part]
        view[shares & (view == PairStatus.train)] = PairStatus.shares_heldout
    fates[heldout] = PairStatus.heldout


def _random_rows(fates: np.ndarray, usable: int, count: int, seed: list[int]) -> np.ndarray:
    """Distinct rows for training, in random order."""
    places = np.random.default_rng(seed).choice(usable, count, replace=False)
    order = np.argsort(places)
    found, before = [], 0
    for part in slices(len(fates)):
        rows = part.start + np.flatnonzero(fates[part] == PairStatus.train)
        first, last = np.searchsorted(places[order], [before, before + len(rows)])
        found.append(rows[places[order][first:last] - before])
        before += len(rows)
    rows = np.empty(count, dtype=np.int64)
    rows[order] = np.concatenate(found)
    return rows


def _distinct(ids: Sequence[Ids], rows: np.ndarray) -> np.ndarray:
    """Rows without those whose source or target sentence an earlier one has."""
    for column in (SRC_ID, TGT_ID):
        rows = rows[np.sort(np.unique(ids[column][rows], return_index=True)[1])]
    return rows
