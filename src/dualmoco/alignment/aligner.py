"""Aligns two texts, given the vectors of their sentences: anchors in, links out.

1. A band around the anchors is scored with the mean vectors of spans, and only links on near-optimal paths are kept.
2. Longer links are rescored with the vectors of their joined sentences, if spans can be encoded.
3. The best path is found, with link types and deletions weighted by their frequency in the document.
4. Links are rescored by their words, with translations learned from that path, and the path is found again.
5. The score of a link and its margin over the alternatives give its confidence.

Shapes: N and M sentences, P maximum sentences per side of a link, D dimension, a anchors, b links, s steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dualmoco.alignment.anchors import Anchors
from dualmoco.alignment.dynamic_programming import (
    BestPath,
    LinkTable,
    StepPriors,
    band_around,
    best_path,
    full_band,
    link_losses,
    rows_at_edge,
    step_margins,
    widen_band,
)
from dualmoco.alignment.lexical import Words, lexical_scores
from dualmoco.alignment.scoring import AlignmentCosts, BandCosines, DocumentStats, LinkScorer, pair_cosines
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.text.languages import text_separator

DEFAULT_LONGEST = 5  # maximum sentences per side of a link
EXACT_CELLS = 160_000  # up to this many cells are searched without a band
LINK_BUFFER = 2  # cells around the anchors that are searched first
BAND_ROUNDS = 3  # how often the band is widened where the path runs along its edge
NEAR_OPTIMAL = 0.8  # links with at most this loss are rescored
CLOSE_ANCHORS = 8  # lengths are compared between anchors with at most this many sentences between them
PATH_ROUNDS = 3  # the first path without priors of types, the others with frequencies from the previous path
TYPE_SMOOTHING = 0.5  # links that are added to the count of each type
FIRST_DELETION_FACTOR = 0.5  # applied to the cost of deletions before their frequency is known
USUAL_DELETION_SHARE = 0.07  # share of the steps of a typical document that are deletions
LINKED_WEIGHTS = (-0.7, 1.1, 3.5)  # weights of a logistic regression: intercept, score, margin
DELETION_WEIGHTS = (-0.2, 0.0, 4.5)
CONFIDENCE_DECIMALS = 4

SpanEncoder = Callable[[Ids], Vectors]
"""Takes spans (u, 2) of a text, as first sentence and end (exclusive), and returns unit vectors (u, D)."""


@dataclass(frozen=True)
class Links:
    """The links of two texts, in order; each sentence of either side is in exactly one of them."""

    src: Ids  # (b, 2) first source sentence of each link, from 0, and end (exclusive)
    tgt: Ids  # (b, 2)
    scores: Floats  # (b,) 1 for a typical translation in this document, about 0 for unrelated text; NaN for a deletion
    confidence: Floats  # (b,) between 0 and 1

    def __len__(self) -> int:
        return len(self.src)

    @property
    def is_linked(self) -> np.ndarray:
        """Whether each link has sentences on both sides, shape (b,); the others are deletions or insertions."""
        result: np.ndarray = (self.src[:, 1] > self.src[:, 0]) & (self.tgt[:, 1] > self.tgt[:, 0])
        return result

    def take(self, chosen: np.ndarray) -> Links:
        """Some of the links, by number or by mask."""
        return Links(self.src[chosen], self.tgt[chosen], self.scores[chosen], self.confidence[chosen])


@dataclass(frozen=True)
class Side:
    """One of the two texts, as input to the aligner."""

    vectors: Vectors  # (N, D) unit vectors of the sentences
    lengths: Floats  # (N,) lengths of the sentences in characters
    encode: SpanEncoder | None = None  # encodes several sentences as one text; None to average their vectors
    words: Words | None = None  # None to align by vectors only

    @classmethod
    def from_sentences(
        cls,
        sentences: Sequence[str],
        lang: str,
        vectors: Vectors,
        encode: Callable[[list[str]], Vectors] | None,
        words: Words | None,
    ) -> Side:
        """Describes a text; `encode` returns the unit vectors of texts in its language."""

        def encode_spans(spans: Ids) -> Vectors:
            assert encode is not None
            return encode([join_sentences(sentences[first:end], lang) for first, end in spans.tolist()])

        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.float64)
        return cls(vectors, lengths, encode_spans if encode else None, words)


def join_sentences(sentences: Sequence[str], lang: str) -> str:
    """Sentences as one text, separated by spaces if the language uses them, and between Latin words in any language."""
    text = "".join(sentences[:1])
    for left, right in pairwise(sentences):
        text += text_separator(left, right, lang) + right
    return text


def align_sides(src: Side, tgt: Side, anchors: Anchors, longest: int = DEFAULT_LONGEST) -> Links:
    """Aligns two texts, given the anchors that `find_anchors` found; `longest` limits the sentences of either side."""
    steps, scores, margins = find_path(src, tgt, anchors, longest)
    return Links(*_step_spans(steps), scores, confidence(scores, margins))


def find_path(src: Side, tgt: Side, anchors: Anchors, longest: int = DEFAULT_LONGEST) -> tuple[Ids, Floats, Floats]:
    """The steps of the best path (s, 2), their scores (s,), NaN for deletions, and their margins (s,)."""
    costs = AlignmentCosts()
    stats = document_stats(anchors, (src.lengths, tgt.lengths))
    scorer = LinkScorer((src.vectors, tgt.vectors), (src.lengths, tgt.lengths), stats, costs, longest)
    table, cosines = _near_optimal_links(scorer, anchors)
    if src.encode is not None and tgt.encode is not None:
        longer = table.types > 0  # all but 1-1 links
        some = table.take(longer)
        table.gains[longer] = scorer.rescore(some, cosines, _span_cosines(some, src, tgt))
    similarity = scorer.similarity(table)
    path, priors = _path_with_priors(table, costs)
    if src.words is not None and tgt.words is not None:
        linked = path.links >= 0
        src_spans, tgt_spans = _step_spans(path.steps)
        lexical = lexical_scores(src.words, tgt.words, table.spans(), (src_spans[linked], tgt_spans[linked]))
        table = replace(table, gains=(table.gains + costs.words * lexical).astype(np.float32))
        path, priors = _path_with_priors(table, costs)
    scores = np.full(len(path.steps), np.nan)
    scores[path.links >= 0] = similarity[path.links[path.links >= 0]]
    return path.steps, scores, step_margins(table, priors, path)


def document_stats(anchors: Anchors, lengths: tuple[Floats, Floats]) -> DocumentStats:
    """Estimates the similarity of translations and the ratio of lengths (N,) and (M,)."""
    if not len(anchors.src):
        return DocumentStats(1.0, float(lengths[0].sum() / lengths[1].sum()))
    # only the text between close anchors is measured, because something was deleted between distant ones
    is_close = np.append((np.diff(anchors.src) <= CLOSE_ANCHORS) & (np.diff(anchors.tgt) <= CLOSE_ANCHORS), False)
    sums = np.add.reduceat(lengths[0], anchors.src), np.add.reduceat(lengths[1], anchors.tgt)  # up to the next anchor
    src, tgt = (float(side[is_close].sum() if is_close.any() else side.sum()) for side in sums)
    return DocumentStats(max(float(np.median(anchors.similarity)), 0.01), src / tgt)


def _near_optimal_links(scorer: LinkScorer, anchors: Anchors) -> tuple[LinkTable, BandCosines]:
    """The links on near-optimal paths around the anchors, and the cosines that they were scored with."""
    counts = len(scorer.vectors[0]), len(scorer.vectors[1])
    exact = (counts[0] + 1) * (counts[1] + 1) <= EXACT_CELLS
    band = full_band(*counts) if exact else band_around(anchors.src, anchors.tgt, counts, buffer=LINK_BUFFER)
    priors = _first_priors(scorer.longest, scorer.costs)
    cosines = scorer.cosines(band, anchors.cosines)
    for rounds_left in range(BAND_ROUNDS, -1, -1):
        table = scorer.table(
            band, cosines, priors.deletion - NEAR_OPTIMAL / 2
        )  # deleting the sentences of other links loses less
        path = best_path(table, priors)
        edges = rows_at_edge(band, path.steps)
        if not len(edges) or not rounds_left:
            break
        band = widen_band(band, edges)
        cosines = scorer.cosines(band, cosines)
    return table.take(link_losses(table, priors, path) <= NEAR_OPTIMAL), cosines


def _span_cosines(table: LinkTable, src: Side, tgt: Side) -> Floats:
    """Cosines (b,) of the spans of links, encoded as one text each; single sentences are encoded already."""
    src_spans, tgt_spans = table.spans()
    src_vectors, src_places = _encode_spans(src, src_spans, table.longest)
    tgt_vectors, tgt_places = _encode_spans(tgt, tgt_spans, table.longest)
    cosines = pair_cosines((src_vectors, src.vectors), (tgt_vectors, tgt.vectors), src_places, tgt_places)
    return np.asarray(cosines, dtype=np.float64)


def _encode_spans(side: Side, spans: Ids, longest: int) -> tuple[Vectors, Ids]:
    """Vectors (u, D) of the distinct longer spans (b, 2), and the place of each span among them.

    For a single sentence with number i, the place is -1 - i.
    """
    assert side.encode is not None
    sizes = np.diff(spans)[:, 0]
    keys = spans[:, 1] * (longest + 1) + sizes
    wanted = np.zeros((len(side.vectors) + 1) * (longest + 1), dtype=bool)
    wanted[keys[sizes > 1]] = True
    ends, long_sizes = np.divmod(np.flatnonzero(wanted), longest + 1)
    places = np.where(sizes > 1, (np.cumsum(wanted) - 1)[keys], -1 - spans[:, 0])
    if not len(ends):
        return side.vectors[:0], places
    return side.encode(np.stack([ends - long_sizes, ends], axis=1)), places


def _path_with_priors(table: LinkTable, costs: AlignmentCosts) -> tuple[BestPath, StepPriors]:
    """The best path with steps weighted by the frequency of their types in the document, and these weights."""
    priors = _first_priors(table.longest, costs)
    path = best_path(table, priors)
    for _ in range(PATH_ROUNDS - 1):
        priors = step_priors(path.steps, table.longest, costs)
        path = best_path(table, priors)
    return path, priors


def _first_priors(longest: int, costs: AlignmentCosts) -> StepPriors:
    """Initial priors: all types are equal, and deletions are cheap."""
    return StepPriors(np.zeros(longest**2), FIRST_DELETION_FACTOR * costs.skip)


def step_priors(steps: Ids, longest: int, costs: AlignmentCosts) -> StepPriors:
    """Priors from the smoothed frequencies of the types of a path's steps (s, 2)."""
    linked = steps[steps.all(axis=1)] - 1
    counts = np.full(longest**2, TYPE_SMOOTHING) + np.bincount(linked @ [longest, 1], minlength=longest**2)
    deletions = (len(steps) - len(linked) + TYPE_SMOOTHING) / (len(steps) + 1)
    deletion = costs.skip + costs.skip_rarity * np.log(deletions / USUAL_DELETION_SHARE)
    return StepPriors(costs.rarity * np.log(counts / (len(steps) + 1)), min(0.0, float(deletion)))


def _step_spans(steps: Ids) -> tuple[Ids, Ids]:
    """Source and target spans of steps (s, 2), as first sentence and end (exclusive), shapes (s, 2)."""
    sides = zip(steps.cumsum(axis=0).T, steps.T, strict=True)
    src, tgt = (np.stack([ends - sizes, ends], axis=1) for ends, sizes in sides)
    return src, tgt


def confidence(scores: Floats, margins: Floats) -> Floats:
    """Probabilities (b,) that links with these scores, NaN for deletions, and margins are exactly right."""
    is_deletion = np.isnan(scores)
    weights = np.where(is_deletion[:, None], DELETION_WEIGHTS, LINKED_WEIGHTS)  # (b, 3)
    features = np.stack([np.ones(len(scores)), np.where(is_deletion, 0.0, scores), margins], axis=1)
    log_odds = np.einsum("bk,bk->b", weights, features)
    return np.asarray(np.round(1 / (1 + np.exp(-log_odds)), CONFIDENCE_DECIMALS))
