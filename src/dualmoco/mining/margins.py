"""Parallel sentences from nearest neighbours: margin scores and one-to-one selection (section 3.2).

Takes `Neighbors` of both directions, gives `ScoredPairs`. Follows Artetxe and Schwenk (2019): a pair's cosine is set
against the average cosine of both sentences' neighbours. Shapes: n sources, m targets, k neighbours, p pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dualmoco.core.vectors import Floats, Ids
from dualmoco.search.exact import PLACES, Neighbors


class Margin(StrEnum):
    """How a cosine a is set against the neighbours' mean b."""

    distance = "distance"
    """a - b, the paper's choice."""
    ratio = "ratio"
    """a / b, as in LASER."""
    absolute = "absolute"
    """a alone."""


class Retrieval(StrEnum):
    """Which candidates become pairs."""

    forward = "forward"
    """The best target of every source."""
    backward = "backward"
    """The best source of every target."""
    intersection = "intersection"
    """Pairs that are each other's best."""
    max = "max"
    """Both directions together, one to one, the higher score first."""


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs by descending score; of equal scores the lower source, then the lower target comes first."""

    src: Ids  # (p,) rows of the source side
    tgt: Ids  # (p,)
    scores: Floats  # (p,) margins, rounded to PLACES

    def __len__(self) -> int:
        return len(self.src)

    @classmethod
    def sorted(cls, src: Ids, tgt: Ids, scores: Floats) -> ScoredPairs:
        """Pairs given in any order."""
        order = np.lexsort((tgt, src, -scores))
        return cls(src[order], tgt[order], scores[order])

    def above(self, threshold: float | None) -> ScoredPairs:
        """The pairs that score at least the threshold; all if None."""
        return self if threshold is None else self.take(self.scores >= threshold)

    def take(self, chosen: np.ndarray) -> ScoredPairs:
        """The pairs at some places, or those a mask names."""
        return ScoredPairs(self.src[chosen], self.tgt[chosen], self.scores[chosen])


def margin_scores(cosines: Floats, src_means: Floats, tgt_means: Floats, margin: Margin) -> Floats:
    """Scores of pairs.

    Args:
        cosines: Of any shape.
        src_means: Mean cosine of each pair's source with its neighbours, shaped like `cosines` or broadcast to it.
        tgt_means: The same for the targets.
        margin: How they are compared.

    Returns:
        Scores shaped like `cosines`, rounded; a ratio to a mean that is not positive is minus infinity.
    """
    means = np.broadcast_to((src_means + tgt_means) / 2, cosines.shape)
    if margin == Margin.absolute:
        scores = cosines
    elif margin == Margin.distance:
        scores = cosines - means
    else:
        scores = np.divide(cosines, means, out=np.full(cosines.shape, -np.inf), where=means > 0)
    rounded: Floats = np.round(scores, PLACES)
    return rounded


def best_candidates(near: Neighbors, means: Floats, margin: Margin) -> tuple[Ids, Floats]:
    """The neighbour of each row with the highest margin.

    Args:
        near: Neighbours of n rows.
        means: Of the other side's rows, shape (m,).
        margin: How pairs are scored.

    Returns:
        Its row number and its score, shapes (n,); of equal scores the lower row number.
    """
    scores = margin_scores(near.scores, near.mean[:, None], means[near.ids], margin)  # (n, k)
    best = np.lexsort((near.ids, -scores), axis=1)[:, :1]  # (n, 1)
    return np.take_along_axis(near.ids, best, axis=1)[:, 0], np.take_along_axis(scores, best, axis=1)[:, 0]


def select_pairs(
    forward: Neighbors, backward: Neighbors, margin: Margin = Margin.distance, retrieval: Retrieval = Retrieval.max
) -> ScoredPairs:
    """The pairs that two sides' neighbours suggest.

    Args:
        forward: Neighbours of the n sources.
        backward: Neighbours of the m targets.
        margin: How pairs are scored.
        retrieval: Which candidates become pairs.

    Returns:
        Pairs by descending score.
    """
    tgt_best, forward_scores = best_candidates(forward, backward.mean, margin)  # (n,)
    src_best, backward_scores = best_candidates(backward, forward.mean, margin)  # (m,)
    sources, targets = np.arange(len(tgt_best)), np.arange(len(src_best))
    found = {
        Retrieval.forward: (sources, tgt_best, forward_scores),
        Retrieval.backward: (src_best, targets, backward_scores),
        Retrieval.max: (
            np.concatenate([sources, src_best]),
            np.concatenate([tgt_best, targets]),
            np.concatenate([forward_scores, backward_scores]),
        ),
    }
    if retrieval == Retrieval.intersection:
        mutual = src_best[tgt_best] == sources
        return ScoredPairs.sorted(sources[mutual], tgt_best[mutual], forward_scores[mutual])
    pairs = ScoredPairs.sorted(*found[retrieval])
    return one_to_one(pairs) if retrieval == Retrieval.max else pairs


def one_to_one(pairs: ScoredPairs) -> ScoredPairs:
    """The pairs left when, in their order, each takes its source and its target for itself."""
    taken_src, taken_tgt = set[int](), set[int]()
    kept = []
    for place, (src, tgt) in enumerate(zip(pairs.src.tolist(), pairs.tgt.tolist(), strict=True)):
        if src not in taken_src and tgt not in taken_tgt:
            taken_src.add(src)
            taken_tgt.add(tgt)
            kept.append(place)
    return pairs.take(np.array(kept, dtype=np.int64))
