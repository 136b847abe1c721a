"""Which documents of two folders are versions of each other: sentences that translate each other vote for theirs.

Takes documents and their sentence vectors, gives pairs of documents, one to one. Shapes: n and m sentences of all
documents together, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualmoco.alignment.anchors import FEWEST_PARTNERS, find_anchors, partner_share
from dualmoco.core.vectors import Ids, Vectors
from dualmoco.mining.margins import Margin, ScoredPairs, one_to_one, select_pairs
from dualmoco.search.neighbors import nearest_both_ways

NEIGHBORS = 3
LEAST_SHARE = 0.2
"""Of the shorter document's sentences that must have their partner in the other."""


@dataclass(frozen=True)
class Match:
    """Two documents that belong together."""

    src: int
    tgt: int
    share: float
    """Of the shorter document's sentences that have their partner in the other."""


def match_documents(src: Sequence[Vectors], tgt: Sequence[Vectors]) -> list[Match]:
    """Pairs documents, each with at most one other.

    Args:
        src: Unit vectors (n, D) of the sentences of each source document.
        tgt: Of each target document.

    Returns:
        The pairs, by the source documents' order.
    """
    near = nearest_both_ways(np.concatenate(src), np.concatenate(tgt), NEIGHBORS)
    pairs = select_pairs(*near, Margin.distance)
    pairs = pairs.take(pairs.scores > 0)
    owners = _owners(src)[pairs.src], _owners(tgt)[pairs.tgt]
    votes = np.zeros((len(src), len(tgt)))
    np.add.at(votes, owners, 1.0)
    sizes = np.minimum(np.array([len(side) for side in src])[:, None], np.array([len(side) for side in tgt])[None, :])
    shares = np.round(votes / sizes, 6)
    rows, columns = np.nonzero(shares >= LEAST_SHARE)
    order = np.lexsort((columns, rows, -shares[rows, columns]))
    chosen = one_to_one(ScoredPairs(rows[order], columns[order], shares[rows[order], columns[order]]))
    found = [
        Match(*match) for match in zip(chosen.src.tolist(), chosen.tgt.tolist(), chosen.scores.tolist(), strict=True)
    ]
    related = [match for match in found if _are_related(src[match.src], tgt[match.tgt])]
    return sorted(related, key=lambda match: match.src)


def _are_related(src: Vectors, tgt: Vectors) -> bool:
    """Whether two documents are translations; among few, the best partner of an unrelated one has votes too."""
    return partner_share(find_anchors(src, tgt), len(src), len(tgt)) >= FEWEST_PARTNERS


def _owners(documents: Sequence[Vectors]) -> Ids:
    """The document of each sentence."""
    return np.repeat(np.arange(len(documents)), [len(document) for document in documents])
