"""Which clean pairs to keep: deduplication, random samples of corpora, held-out pairs.

All functions change the `PairStatus` of pairs in place, given the ids of their sentences. Both may be mapped from disk
and are processed in slices. The same seed gives the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Ids
from dualmoco.data.staging import SRC_ID, TGT_ID, PairStatus, slices

PARTITION_ROWS = 8_000_000  # ids sorted at once
SPARE_CANDIDATES = 4  # candidates per held-out pair, because some share a sentence


def drop_repeats(ids: Ids, status: np.ndarray, new_status: PairStatus) -> None:
    """Gives a new status to all training pairs but the first with each id, in place; both arrays are (rows,)."""
    partitions = max(1, math.ceil(len(ids) / PARTITION_ROWS))
    for partition in range(partitions):
        rows, values = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for part in slices(len(ids)):
            own = np.ascontiguousarray(ids[part])
            chosen = status[part] == PairStatus.train
            if partitions > 1:
                chosen &= own.view(np.uint64) % partitions == partition
            places = np.flatnonzero(chosen)
            rows.append(places + part.start)
            values.append(own[places])
        all_rows, all_values = np.concatenate(rows), np.concatenate(values)
        order = np.argsort(all_values, kind="stable")
        ordered = all_values[order]
        status[all_rows[order[1:][ordered[1:] == ordered[:-1]]]] = new_status


def allot(available: Sequence[int], limits: Sequence[int], weights: Sequence[float], total: int) -> list[int]:
    """Divides `total` pairs (0: no limit) among corpora by weight; if a corpus is too small, the others give more."""
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


def count_training(status: np.ndarray) -> int:
    """Number of training pairs."""
    return sum(int((status[part] == PairStatus.train).sum()) for part in slices(len(status)))


def keep_sample(status: np.ndarray, rows: slice, count: int, seed: list[int]) -> None:
    """Keeps a uniform random sample of the training pairs in some rows; `status` changes in place."""
    random, own = np.random.default_rng(seed), status[rows]
    left = count_training(own)
    for part in slices(len(own)):
        places = part.start + np.flatnonzero(own[part] == PairStatus.train)
        here = int(random.hypergeometric(len(places), left - len(places), count)) if count else 0
        kept = random.choice(len(places), here, replace=False)
        dropped = np.ones(len(places), dtype=bool)
        dropped[kept] = False
        own[places[dropped]] = PairStatus.not_sampled
        left, count = left - len(places), count - here


def hold_out(ids: Sequence[Ids], status: np.ndarray, count: int, seed: list[int]) -> None:
    """Holds out random pairs without common sentences, and drops pairs that share one; DataError if too few."""
    if not count:
        return
    usable = count_training(status)
    chosen = _distinct(ids, _random_rows(status, usable, min(usable, SPARE_CANDIDATES * count), seed))
    if len(chosen) < count < usable:
        chosen = _distinct(ids, _random_rows(status, usable, usable, seed))
    if len(chosen) < count or usable <= count:
        raise DataError(
            f"{usable} usable pairs, {len(chosen)} of them without a common sentence; expected more than "
            f"heldout={count}: give more data or hold out less"
        )
    heldout = np.sort(chosen[:count])
    src, tgt = np.sort(ids[SRC_ID][heldout]), np.sort(ids[TGT_ID][heldout])
    for part in slices(len(status)):
        shares = np.isin(ids[SRC_ID][part], src) | np.isin(ids[TGT_ID][part], tgt)
        view = status[part]
        view[shares & (view == PairStatus.train)] = PairStatus.shares_heldout
    status[heldout] = PairStatus.heldout


def _random_rows(status: np.ndarray, usable: int, count: int, seed: list[int]) -> np.ndarray:
    """Distinct rows of training pairs, in random order."""
    places = np.random.default_rng(seed).choice(usable, count, replace=False)
    order = np.argsort(places)
    found, before = [], 0
    for part in slices(len(status)):
        rows = part.start + np.flatnonzero(status[part] == PairStatus.train)
        first, last = np.searchsorted(places[order], [before, before + len(rows)])
        found.append(rows[places[order][first:last] - before])
        before += len(rows)
    rows = np.empty(count, dtype=np.int64)
    rows[order] = np.concatenate(found)
    return rows


def _distinct(ids: Sequence[Ids], rows: np.ndarray) -> np.ndarray:
    """Rows whose source and target sentences do not occur in an earlier row."""
    for column in (SRC_ID, TGT_ID):
        rows = rows[np.sort(np.unique(ids[column][rows], return_index=True)[1])]
    return rows
