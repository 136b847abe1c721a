"""Estimates precision, recall and thresholds of all mined pairs from the judgements of some of them.

The pairs are divided into bands of scores, and pairs are drawn at random from each band. A drawn pair that a reviewer
has judged represents the unjudged pairs of its band. A pair that was judged for another reason, such as a score close
to the threshold, represents only itself. So the estimate is unbiased whichever other pairs are judged, and whether or
not a higher score means a better pair. Shapes: p pairs, j judged pairs, B bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.stats import binomial_interval
from dualmoco.core.vectors import Floats, Ids
from dualmoco.mining.pair_columns import PairColumns, pair_digest, read_pair_columns

MOST_BANDS = 10
BAND_BINS = 1000  # bins of the histogram that defines the bands
MOST_UNKNOWN = 0.1  # no precision is shown if a larger share of pairs has no representative judgement
SMOOTHING = 2.0  # weight, in drawn pairs, of the overall share when a band's share is smoothed
THRESHOLD_STEPS = 400  # thresholds that are tried
UNJUDGED, ACCEPTED, REJECTED = 0, 1, 2
VERDICTS = {"accept": ACCEPTED, "reject": REJECTED}


@dataclass(frozen=True)
class ShareEstimate:
    """An estimated share with its 95 % interval."""

    value: float | None
    """None if too few pairs are represented by judgements."""
    low: float
    high: float


@dataclass(frozen=True)
class ThresholdEstimate:
    """The pairs that reach a threshold."""

    threshold: float
    kept: int
    """Number of pairs."""
    precision: ShareEstimate
    """Share of right pairs among them."""
    recall: ShareEstimate
    """Share of all right pairs of the file that reach the threshold."""
    judged: int
    """Number of judged pairs."""
    drawn: int
    """Number of judged pairs that were drawn at random."""
    unknown: float
    """Share of pairs that no judgement represents."""


@dataclass(frozen=True)
class RightCount:
    """Estimated number of right pairs among some pairs."""

    represented: float  # expected, of the represented pairs
    low: float  # of all pairs
    high: float
    pairs: int
    unknown: int  # pairs that no judgement represents
    judged: int
    drawn: int

    @property
    def share(self) -> float | None:
        """Share of right pairs, if enough of them are represented."""
        known = self.pairs - self.unknown
        return self.represented / known if self.pairs and self.unknown <= MOST_UNKNOWN * self.pairs else None


class Judgements:
    """The verdicts about the pairs of a file.

    Args:
        pairs: Columns of the file.
    """

    def __init__(self, pairs: PairColumns) -> None:
        self.pairs = pairs
        self.order: Ids = np.argsort(-pairs.scores, kind="stable")  # (p,) rows by descending score
        self.sorted_scores: Floats = pairs.scores[self.order]
        self.edges = _band_edges(self.sorted_scores)  # (B + 1,) first rank of each band, then p
        self.clear()

    def clear(self) -> None:
        """Removes all judgements."""
        self.verdicts = np.zeros(len(self.pairs), dtype=np.int8)
        self.is_drawn = np.zeros(len(self.pairs), dtype=bool)
        self.gone = 0
        """Number of judgements of pairs that are no longer in the file."""
        self._forget()

    def _forget(self) -> None:
        self.__dict__.pop("_judged", None)

    def apply(self, event: Mapping[str, Any]) -> int | None:
        """Adds a judgement, see `event`; returns the row of the pair, or None if the file does not have it.

        Raises:
            DataError: The event is not a judgement.
        """
        if not isinstance(event.get("id"), str) or event.get("verdict") not in VERDICTS:
            raise DataError(f"{dict(event)!r:.80}: not a judgement; expected the id of a pair and accept or reject")
        row = self.find(event)
        if row is None:
            self.gone += 1
            return None
        self.verdicts[row] = VERDICTS[event["verdict"]]
        self.is_drawn[row] |= event.get("drawn", False) or event.get("band") == self.band_note(row)
        self._forget()
        return row

    def replay(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all judgements."""
        self.clear()
        for event in events:
            self.apply(event)

    def event(self, row: int, verdict: str, *, is_drawn: bool) -> dict[str, Any]:
        """A judgement as an event of a journal.

        Args:
            row: Row of the pair in the file.
            verdict: accept or reject.
            is_drawn: Whether the pair came from the random order, so that it represents others of its band.
        """
        pair = self.pairs.rows(np.array([row]))[0]
        kept = {
            "row": row,
            "id": self.pairs.pair_id(row),
            "score": pair["score"],
            "src": pair["src"],
            "tgt": pair["tgt"],
        }
        return {"type": "judge", "verdict": verdict, **kept, "band": self.band_note(row) if is_drawn else None}

    def find(self, event: Mapping[str, Any]) -> int | None:
        """The row of the pair of a judgement; None if the file does not have it."""
        row = event.get("row", -1)
        if 0 <= row < len(self.pairs) and self.pairs.pair_id(row) == event["id"]:
            return int(row)
        return self.pairs.rows_by_id.get(event["id"])

    @cached_property
    def ranks(self) -> Ids:
        """The rank (p,) of each row by descending score, from 0."""
        ranks = np.empty(len(self.order), dtype=np.int64)
        ranks[self.order] = np.arange(len(ranks))
        return ranks

    @property
    def band_count(self) -> int:
        """The number of bands."""
        return len(self.edges) - 1

    def bands_of(self, rows: Ids) -> Ids:
        """The band of each of some rows; band 0 has the highest scores."""
        return np.searchsorted(self.edges, self.ranks[rows], side="right") - 1

    def band_note(self, row: int) -> list[float]:
        """The lowest and highest score and the size of the band of a row.

        A judgement represents other pairs only as long as its band is the same.
        """
        band = int(self.bands_of(np.array([row]))[0])
        first, end = int(self.edges[band]), int(self.edges[band + 1])
        return [float(self.sorted_scores[end - 1]), float(self.sorted_scores[first]), end - first]

    @cached_property
    def drawing_order(self) -> Ids:
        """All rows (p,) in a random order that takes one pair of each band in turn."""
        keys = np.random.default_rng(0).permutation(len(self.order))
        bands = np.repeat(np.arange(self.band_count), np.diff(self.edges))
        by_band = np.lexsort((keys, bands))  # ranks
        turns = np.arange(len(by_band)) - self.edges[bands]
        drawn: Ids = self.order[by_band[np.lexsort((bands, turns))]]
        return drawn

    @cached_property
    def _judged(self) -> tuple[Ids, np.ndarray, np.ndarray]:
        """Ranks of the judged pairs (j,), in order, and whether each is right, and drawn."""
        rows = np.flatnonzero(self.verdicts)
        rows = rows[np.argsort(self.ranks[rows])]
        return self.ranks[rows], self.verdicts[rows] == ACCEPTED, self.is_drawn[rows]

    def count_right(self, first: int, end: int) -> RightCount:
        """Estimates how many pairs between two ranks are right."""
        ranks, right, drawn = self._judged
        inside = (ranks >= first) & (ranks < end)
        bands = np.searchsorted(self.edges, ranks[inside], side="right") - 1
        right, drawn = right[inside], drawn[inside]
        sizes: Floats = np.diff(np.clip(self.edges, first, end)).astype(np.float64)  # (B,)
        judged, sampled, accepted = (
            self._per_band(bands, weights) for weights in (np.ones_like(right), drawn, right & drawn)
        )
        rest: Floats = sizes - judged  # (B,) pairs that nobody has judged
        stands = (sampled > 0) & (rest > 0)
        unknown = float(rest[~stands].sum())
        known_right, represented = float(right.sum()), rest[stands].sum()
        expected = low = high = 0.0
        if represented:
            share, *bounds = _stratified_share(rest[stands], sampled[stands], accepted[stands])
            expected, low, high = (float(represented) * value for value in (share, *bounds))
        return RightCount(
            known_right + expected,
            known_right + np.floor(low),  # pairs are whole
            known_right + np.ceil(high) + unknown,
            end - first,
            round(unknown),
            int(inside.sum()),
            int(drawn.sum()),
        )

    def _per_band(self, bands: Ids, chosen: np.ndarray) -> Floats:
        """How many of some pairs, given by their bands, are chosen in each band (B,)."""
        return np.bincount(bands, chosen.astype(np.float64), self.band_count).astype(np.float64)

    def reaching(self, threshold: float) -> int:
        """The number of pairs that reach a threshold."""
        return int(np.searchsorted(-self.sorted_scores, -threshold, side="right"))

    def estimate(self, threshold: float) -> ThresholdEstimate:
        """Precision and recall of the pairs that reach a threshold."""
        kept = self.reaching(threshold)
        above, below = self.count_right(0, kept), self.count_right(kept, len(self.pairs))
        precision = ShareEstimate(above.share, above.low / max(1, kept), above.high / kept if kept else 1.0)
        recall = ShareEstimate(
            _recall(above, below),
            above.low / max(1e-9, above.low + below.high),
            above.high / max(1e-9, above.high + below.low),
        )
        unknown = above.unknown / kept if kept else 0.0
        return ThresholdEstimate(threshold, kept, precision, recall, above.judged, above.drawn, unknown)

    def threshold_for(self, precision: float, *, is_sure: bool = False) -> ThresholdEstimate | None:
        """The lowest threshold whose pairs have a precision; None if there is none.

        Args:
            precision: Share of right pairs.
            is_sure: Whether the lower end of the interval must reach the precision, not only the estimate.
        """
        ranks = np.unique(np.linspace(1, len(self.pairs), THRESHOLD_STEPS).astype(np.int64))
        for rank in ranks[::-1].tolist():
            found = self.estimate(float(self.sorted_scores[rank - 1]))
            reached = found.precision.low if is_sure else found.precision.value
            if reached is not None and reached >= precision:
                return found
        return None

    @property
    def judged_count(self) -> int:
        """The number of judged pairs."""
        return int(np.count_nonzero(self.verdicts))

    def counts(self) -> dict[str, int]:
        """Numbers of pairs by verdict."""
        unjudged, accepted, rejected = np.bincount(self.verdicts, minlength=3).tolist()
        return {"unjudged": unjudged, "accepted": accepted, "rejected": rejected}


def _stratified_share(sizes: Floats, drawn: Floats, right: Floats) -> tuple[float, float, float]:
    """The share of right pairs in strata, and its 95 % interval.

    The interval is Wilson's for as many simple random draws as would have the variance of the stratified ones.

    Args:
        sizes: Number of pairs of each stratum (B,), without those that were drawn.
        drawn: Number of drawn pairs (B,).
        right: Number of drawn pairs that are right (B,).
    """
    weights, noise = sizes / sizes.sum(), 1 / drawn + 1 / sizes
    share = float(weights @ (right / drawn))
    effective = 1 / float(weights**2 @ noise)
    shares = (right + SMOOTHING * share) / (drawn + SMOOTHING)  # so that strata with few draws still have a variance
    if variance := float(weights**2 @ (shares * (1 - shares) * noise)):
        effective = min(effective, share * (1 - share) / variance)
    return share, *binomial_interval(share * effective, effective)


def read_judged(path: Path) -> list[dict[str, Any]]:
    """The judgements in a table with the columns score, src, tgt and verdict.

    Without a column `drawn` (yes or no), all pairs are assumed to be drawn at random from their band.

    Raises:
        DataError: The table cannot be read, lacks a column, or has an unknown verdict.
    """
    pairs = read_pair_columns(path)
    if "verdict" not in pairs.table.column_names:
        raise DataError(f"{path.name}: no column verdict; expected accept or reject for each judged pair")
    found = []
    for row in pairs.table.to_pylist():
        if row["verdict"] not in VERDICTS:
            raise DataError(f"{path.name}: verdict {row['verdict']!r:.40}; expected accept or reject")
        drawn = str(row.get("drawn", "yes")) == "yes"
        found.append({"id": pair_digest(row["src"], row["tgt"]), "verdict": row["verdict"], "drawn": drawn})
    return found


def _recall(above: RightCount, below: RightCount) -> float | None:
    """Share of the right pairs that are above; None if too little is known."""
    if above.share is None or (below.pairs and below.share is None):
        return None
    right, missed = above.share * above.pairs, (below.share or 0.0) * below.pairs
    return right / (right + missed) if right + missed else None


def _band_edges(scores: Floats) -> Ids:
    """First rank of each band of descending scores (p,), then p.

    By the rule of Dalenius and Hodges (1959): each band has the same part of the sum of the square roots of a
    histogram, so neither the frequent nor the rare scores share one band. Equal scores are in one band.
    """
    counts, bins = np.histogram(scores, BAND_BINS)
    filled = np.cumsum(np.sqrt(counts))
    wanted = filled[-1] * np.arange(1, MOST_BANDS) / MOST_BANDS
    lowest = bins[np.searchsorted(filled, wanted) + 1]  # scores where a band begins
    starts = np.searchsorted(-scores, -lowest, side="right")
    return np.unique(np.concatenate([[0], starts, [len(scores)]]))
