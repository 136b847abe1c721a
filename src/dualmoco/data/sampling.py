"""Which clean pairs are kept: no duplicates, a sample of each corpus, held-out pairs apart.

Works on the ids and fates of a spool, a slice at a time; the same seed gives the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.data.temporary import SRC_ID, TGT_ID, Fate, slices

PARTITION_ROWS = 8_000_000  # ids sorted at once
SPARE = 4  # held-out candidates for each one wanted, as some share a sentence


def drop_repeats(ids: np.ndarray, fates: np.ndarray, column: int, fate: Fate) -> None:
    """Gives all rows but the first of each id a fate.

    Args:
        ids: Of shape (rows, 3).
        fates: Of shape (rows,), changed in place; rows not for training are passed over.
        column: Of the ids to compare.
        fate: Of the rows that repeat an id.
    """
    partitions = max(1, math.ceil(len(ids) / PARTITION_ROWS))
    for partition in range(partitions):
        rows, values = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for part in slices(len(ids)):
            column_ids = np.ascontiguousarray(ids[part, column])
            chosen = fates[part] == Fate.train
            if partitions > 1:
                chosen &= column_ids.view(np.uint64) % partitions == partition
            places = np.flatnonzero(chosen)
            rows.append(places + part.start)
            values.append(column_ids[places])
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


def sample(fates: np.ndarray, start: int, stop: int, count: int, seed: list[int]) -> None:
    """Keeps a random choice of a corpus's rows, every choice being equally likely.

    Args:
        fates: Of shape (rows,), changed in place.
        start: First row of the corpus.
        stop: Row after its last.
        count: Rows for training to keep.
        seed: Of the choice.
    """
    random = np.random.default_rng(seed)
    left = sum(int((fates[start:stop][part] == Fate.train).sum()) for part in slices(stop - start))
    for part in slices(stop - start):
        rows = start + part.start + np.flatnonzero(fates[start:stop][part] == Fate.train)
        here = int(random.hypergeometric(len(rows), left - len(rows), count)) if count else 0
        kept = random.choice(len(rows), here, replace=False)
        dropped = np.ones(len(rows), dtype=bool)
        dropped[kept] = False
        fates[rows[dropped]] = Fate.not_sampled
        left, count = left - len(rows), count - here


def hold_out(ids: np.ndarray, fates: np.ndarray, count: int, seed: list[int]) -> None:
    """Sets random pairs apart, and drops the pairs that share a sentence with one of them.

    Args:
        ids: Of shape (rows, 3).
        fates: Of shape (rows,), changed in place.
        count: Pairs to hold out; no sentence is twice among them.
        seed: Of the choice.

    Raises:
        DataError: Too few pairs.
    """
    if not count:
        return
    usable = sum(int((fates[part] == Fate.train).sum()) for part in slices(len(fates)))
    chosen = _distinct(ids, _random_rows(fates, usable, min(usable, SPARE * count), seed))
    if len(chosen) < count < usable:
        chosen = _distinct(ids, _random_rows(fates, usable, usable, seed))
    if len(chosen) < count or usable <= count:
        raise DataError(
            f"{usable} usable pairs, {len(chosen)} of them without a common sentence; expected more than "
            f"heldout={count}: give more data or hold out less"
        )
    heldout = np.sort(chosen[:count])
    src, tgt = np.sort(ids[heldout, SRC_ID]), np.sort(ids[heldout, TGT_ID])
    for part in slices(len(ids)):
        shares = np.isin(ids[part, SRC_ID], src) | np.isin(ids[part, TGT_ID], tgt)
        view = fates[part]
        view[shares & (view == Fate.train)] = Fate.shares_heldout
    fates[heldout] = Fate.heldout


def _random_rows(fates: np.ndarray, usable: int, count: int, seed: list[int]) -> np.ndarray:
    """Distinct rows for training, in random order."""
    places = np.random.default_rng(seed).choice(usable, count, replace=False)
    order = np.argsort(places)
    found, before = [], 0
    for part in slices(len(fates)):
        rows = part.start + np.flatnonzero(fates[part] == Fate.train)
        first, last = np.searchsorted(places[order], [before, before + len(rows)])
        found.append(rows[places[order][first:last] - before])
        before += len(rows)
    rows = np.empty(count, dtype=np.int64)
    rows[order] = np.concatenate(found)
    return rows


def _distinct(ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows without those whose source or target sentence an earlier one has."""
    for column in (SRC_ID, TGT_ID):
        rows = rows[np.sort(np.unique(ids[rows, column], return_index=True)[1])]
    return rows
