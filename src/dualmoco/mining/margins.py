"""Scores candidate pairs by their margin and selects pairs one to one (section 3.2 of the paper).

Follows Artetxe and Schwenk (2019): the margin compares the cosine of a pair with the mean cosine of both sentences with
their neighbours. Shapes: n sources, m targets, k neighbours, p pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dualmoco.core.vectors import Floats, Ids
from dualmoco.search.exact import COSINE_PLACES, Neighbors


class Margin(StrEnum):
    """How to compare the cosine a of a pair with the mean cosine b of its neighbours."""

    distance = "distance"  # a - b, as in the paper
    ratio = "ratio"  # a / b, as in LASER
    absolute = "absolute"  # only a


class Retrieval(StrEnum):
    """Which candidates become pairs."""

    forward = "forward"  # the best target of each source
    backward = "backward"  # the best source of each target
    intersection = "intersection"  # pairs that are each other's best
    max = "max"  # both directions, one to one, higher scores first


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs by descending score, then by source row, then by target row."""

    src: Ids  # (p,) rows
    tgt: Ids  # (p,) rows
    scores: Floats  # (p,) margins, rounded to COSINE_PLACES

    def __len__(self) -> int:
        return len(self.src)

    @classmethod
    def sorted(cls, src: Ids, tgt: Ids, scores: Floats) -> ScoredPairs:
        """Sorts pairs given in any order."""
        order = np.lexsort((tgt, src, -scores))
        return cls(src[order], tgt[order], scores[order])

    def above(self, threshold: float | None) -> ScoredPairs:
        """The pairs that score at least the threshold; all pairs if it is None."""
        return self if threshold is None else self.take(self.scores >= threshold)

    def take(self, chosen: np.ndarray) -> ScoredPairs:
        """The pairs at the given positions, or selected by a mask."""
        return ScoredPairs(self.src[chosen], self.tgt[chosen], self.scores[chosen])


def margin_scores(cosines: Floats, src_means: Floats, tgt_means: Floats, margin: Margin) -> Floats:
    """Rounded margins of pairs; means are broadcast. A ratio to a mean that is not positive is minus infinity."""
    means = np.broadcast_to((src_means + tgt_means) / 2, cosines.shape)
    if margin == Margin.absolute:
        scores = cosines
    elif margin == Margin.distance:
        scores = cosines - means
    else:
        scores = np.divide(cosines, means, out=np.full(cosines.shape, -np.inf), where=means > 0)
    rounded: Floats = np.round(scores, COSINE_PLACES)
    return rounded


def best_candidates(near: Neighbors, means: Floats, margin: Margin) -> tuple[Ids, Floats]:
    """The neighbour of each row with the highest margin: its row and its score, both (n,); ties go to the lower row."""
    scores = margin_scores(near.scores, near.mean[:, None], means[near.ids], margin)  # (n, k)
    best = np.lexsort((near.ids, -scores), axis=1)[:, :1]  # (n, 1)
    return np.take_along_axis(near.ids, best, axis=1)[:, 0], np.take_along_axis(scores, best, axis=1)[:, 0]


def select_pairs(
    src_near: Neighbors, tgt_near: Neighbors, margin: Margin = Margin.distance, retrieval: Retrieval = Retrieval.max
) -> ScoredPairs:
    """Selects pairs from the neighbours of the sources (n, k) and of the targets (m, k)."""
    tgt_best, src_scores = best_candidates(src_near, tgt_near.mean, margin)  # (n,)
    src_best, tgt_scores = best_candidates(tgt_near, src_near.mean, margin)  # (m,)
    sources, targets = np.arange(len(tgt_best)), np.arange(len(src_best))
    if retrieval == Retrieval.forward:
        return ScoredPairs.sorted(sources, tgt_best, src_scores)
    if retrieval == Retrieval.backward:
        return ScoredPairs.sorted(src_best, targets, tgt_scores)
    if retrieval == Retrieval.intersection:
        mutual = src_best[tgt_best] == sources
        return ScoredPairs.sorted(sources[mutual], tgt_best[mutual], src_scores[mutual])
    src, tgt = np.concatenate([sources, src_best]), np.concatenate([tgt_best, targets])
    return one_to_one(ScoredPairs.sorted(src, tgt, np.concatenate([src_scores, tgt_scores])))


def one_to_one(pairs: ScoredPairs) -> ScoredPairs:
    """Keeps, in order, each pair whose source and target are not in an earlier kept pair."""
    taken_src, taken_tgt = set[int](), set[int]()
    kept = []
    for place, (src, tgt) in enumerate(zip(pairs.src.tolist(), pairs.tgt.tolist(), strict=True)):
        if src not in taken_src and tgt not in taken_tgt:
            taken_src.add(src)
            taken_tgt.add(tgt)
            kept.append(place)
    return pairs.take(np.array(kept, dtype=np.int64))
