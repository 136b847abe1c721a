"""What an alignment is: links between runs of sentences of two texts, in order. Shapes: b links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dualmoco.alignment.anchors import Anchors
from dualmoco.alignment.dynamic_programming import (
    BestPath,
    LinkTable,
    StepPrices,
    band_around,
    best_path,
    full_band,
    losses,
    margins,
    touched,
    widened,
)
from dualmoco.alignment.lexical import Words, judge_links
from dualmoco.alignment.scoring import AlignmentCosts, BandCosines, DocumentStats, LinkGains, pair_cosines
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.text.languages import WITHOUT_SPACES, base_language


@dataclass(frozen=True)
class Links:
    """b links in the order of both texts; every sentence of either side is in exactly one of them."""

    src: Ids  # (b, 2) the first source sentence of each link, and the one after its last; from 0
    tgt: Ids  # (b, 2)
    scores: Floats  # (b,) 1 for a usual translation in this document, about 0 for unrelated sentences; NaN on one side
    confidence: Floats  # (b,) between 0 and 1

    def __len__(self) -> int:
        return len(self.src)

    @property
    def is_linked(self) -> np.ndarray:
        """Which have sentences on both sides, shape (b,); the others were left out by the translator, or added."""
        result: np.ndarray = (self.src[:, 1] > self.src[:, 0]) & (self.tgt[:, 1] > self.tgt[:, 0])
        return result

    def take(self, chosen: np.ndarray) -> Links:
        """The links at some places, or those a mask names."""
        return Links(self.src[chosen], self.tgt[chosen], self.scores[chosen], self.confidence[chosen])


RunEncoder = Callable[[Ids], Vectors]
"""Takes runs of a text (u, 2), each from one sentence to before another, gives unit vectors (u, D)."""


def run_encoder(sentences: Sequence[str], lang: str, encode: Callable[[list[str]], Vectors]) -> RunEncoder:
    """Encodes runs as one text each.

    Args:
        sentences: Of the text.
        lang: Its language, which decides what stands between sentences.
        encode: Makes unit vectors of texts.

    Returns:
        What encodes runs.
    """

    def encode_runs(runs: Ids) -> Vectors:
        return encode([run_text(sentences[first:last], lang) for first, last in runs.tolist()])

    return encode_runs


def run_text(sentences: Sequence[str], lang: str) -> str:
    """Sentences as one text."""
    return ("" if base_language(lang) in WITHOUT_SPACES else " ").join(sentences)


LINKED = (-0.7, 1.1, 3.5)  # constant, for the score, for the margin
ONE_SIDED = (-0.2, 0.0, 4.5)
PLACES = 4


def confidence(scores: Floats, margins: Floats) -> Floats:
    """Probabilities that links are right.

    Args:
        scores: Of the links, shape (b,); NaN for one-sided ones.
        margins: What the path would lose without each, shape (b,); see `path.margins`.

    Returns:
        Numbers between 0 and 1, shape (b,).
    """
    one_sided = np.isnan(scores)
    weights = np.where(one_sided[:, None], ONE_SIDED, LINKED)  # (b, 3)
    known = np.stack([np.ones(len(scores)), np.where(one_sided, 0.0, scores), margins], axis=1)
    odds = np.einsum("bk,bk->b", weights, known)
    return np.asarray(np.round(1 / (1 + np.exp(-odds)), PLACES))


LONGEST = 5
EXACT_CELLS = 160_000
"""Up to so many cells all are looked at."""
CLOSE = 8  # sentences from one anchor to the next, at most, for their lengths to be compared
NEAR_BEST = 0.8  # what a path may lose with a link that is looked at again
PASSES = 3  # the path without prices of types, then twice with those of the path before
UNSEEN = 0.5  # links that a type counts before any is seen
FIRST_SKIP = 0.5  # share of the price of leaving a sentence out that holds before this document has told its own
USUAL_SKIPS = 0.07  # share of the steps that leave a sentence out
ROUNDS = 3  # of widening the band where the path runs along its edge
BUFFER = 2  # cells around the anchors in which the path is looked for first


@dataclass(frozen=True)
class Side:
    """A text as the aligner knows it."""

    vectors: Vectors  # (N, D) unit vectors of its sentences
    lengths: Floats  # (N,) their characters
    encode: RunEncoder | None = None  # of several sentences as one text; None for the mean of their vectors
    words: Words | None = None  # None to go by vectors alone


@dataclass(frozen=True)
class AlignmentPath:
    """The best path, and what is known of its steps."""

    steps: Ids  # (s, 2) sentences of the source and of the target that each takes
    scores: Floats  # (s,) similarity, 1 for a usual translation; NaN where a sentence is left out
    margins: Floats  # (s,) what the path would lose without each


def align_sides(src: Side, tgt: Side, anchors: Anchors, longest: int = LONGEST) -> Links:
    """Aligns two texts; arguments as for `find_steps`."""
    found = find_steps(src, tgt, anchors, longest)
    return Links(*_runs(found.steps), found.scores, confidence(found.scores, found.margins))


def find_steps(src: Side, tgt: Side, anchors: Anchors, longest: int = LONGEST) -> AlignmentPath:
    """Finds the best path through two texts.

    Args:
        src: One text.
        tgt: The other.
        anchors: Where the path runs; see `find_anchors`.
        longest: Sentences of one side in a link.

    Returns:
        Its steps.
    """
    prices = AlignmentCosts()
    scale = measure(anchors, (src.lengths, tgt.lengths))
    gains = LinkGains((src.vectors, tgt.vectors), (src.lengths, tgt.lengths), scale, prices, longest)
    table, cosines = _near_best(gains, anchors, prices)
    if src.encode is not None and tgt.encode is not None:
        longer = table.sizes > 0  # all but those of one sentence with one
        some = table.take(longer)
        table.gains[longer] = gains.changed(some, cosines, _run_cosines(some, src, tgt))
    similarity = gains.similarity(table)
    path, steps_prices = _settled_path(table, prices)
    if src.words is not None and tgt.words is not None:
        said = judge_links(src.words, tgt.words, table.runs(), _linked_runs(path))
        table = replace(table, gains=(table.gains + prices.words * said).astype(np.float32))
        path, steps_prices = _settled_path(table, prices)
    scores = np.full(len(path.steps), np.nan)
    scores[path.links >= 0] = similarity[path.links[path.links >= 0]]
    return AlignmentPath(path.steps, scores, margins(table, steps_prices, path))


def _near_best(gains: LinkGains, anchors: Anchors, prices: AlignmentCosts) -> tuple[LinkTable, BandCosines]:
    """The links of paths that are nearly as good as the best one around the anchors, and the cosines around them."""
    counts = len(gains.vectors[0]), len(gains.vectors[1])
    exact = (counts[0] + 1) * (counts[1] + 1) <= EXACT_CELLS
    band = full_band(*counts) if exact else band_around(anchors.src, anchors.tgt, counts, buffer=BUFFER)
    first = _first_prices(gains.longest, prices)
    cosines = gains.cosines(band, anchors.cosines)
    for rounds_left in range(ROUNDS, -1, -1):
        table = gains.table(band, cosines, first.skip - NEAR_BEST / 2)  # others lose to leaving their sentences out
        path = best_path(table, first)
        edges = touched(band, path.steps)
        if not len(edges) or not rounds_left:
            break
        band = widened(band, edges)
        cosines = gains.cosines(band, cosines)
    return table.take(losses(table, first, path) <= NEAR_BEST), cosines


def _run_cosines(table: LinkTable, src: Side, tgt: Side) -> Floats:
    """Cosines (b,) of the links' runs as they are encoded; single sentences are encoded already."""
    (src_runs, src_places), (tgt_runs, tgt_places) = (
        _encode_runs(side, runs, table.longest) for side, runs in zip((src, tgt), table.runs(), strict=True)
    )
    found = np.zeros(len(table.sizes))
    for long_src, long_tgt in ((True, True), (True, False), (False, True)):
        chosen = np.flatnonzero(((src_places >= 0) == long_src) & ((tgt_places >= 0) == long_tgt))
        places = np.stack([src_places[chosen], tgt_places[chosen]], axis=1)
        found[chosen] = pair_cosines(
            src_runs if long_src else src.vectors,
            tgt_runs if long_tgt else tgt.vectors,
            np.where(places < 0, -1 - places, places),
        )
    return found


def _encode_runs(side: Side, runs: Ids, longest: int) -> tuple[Vectors, Ids]:
    """Vectors (u, D) of the distinct ones of runs (b, 2), and the place of each among them.

    In the place of a run of one sentence, -1 less the number of that sentence.
    """
    assert side.encode is not None
    sizes = np.diff(runs)[:, 0]
    number = runs[:, 1] * (longest + 1) + sizes
    asked = np.zeros((len(side.vectors) + 1) * (longest + 1), dtype=bool)
    asked[number[sizes > 1]] = True
    ends, long = np.divmod(np.flatnonzero(asked), longest + 1)
    places = np.where(sizes > 1, (np.cumsum(asked) - 1)[number], -1 - runs[:, 0])
    if not len(ends):
        return side.vectors[:0], places
    return side.encode(np.stack([ends - long, ends], axis=1)), places


def _settled_path(table: LinkTable, prices: AlignmentCosts) -> tuple[BestPath, StepPrices]:
    """The best path when steps are priced by how often this document has their type, and those prices."""
    used = _first_prices(table.longest, prices)
    path = best_path(table, used)
    for _ in range(PASSES - 1):
        used = step_prices(path.steps, table.longest, prices)
        path = best_path(table, used)
    return path, used


def _first_prices(longest: int, prices: AlignmentCosts) -> StepPrices:
    """Prices of steps before anything is known of the document: all types alike, and sentences are left out freely."""
    return StepPrices(np.zeros(longest**2), FIRST_SKIP * prices.skip)


def step_prices(steps: Ids, longest: int, prices: AlignmentCosts) -> StepPrices:
    """Prices of steps by their share among those (s, 2) of a path; a type that was not seen counts half a step."""
    both = steps[steps.all(axis=1)] - 1
    counts = np.full(longest**2, UNSEEN) + np.bincount(both @ [longest, 1], minlength=longest**2)
    skips = (len(steps) - len(both) + UNSEEN) / (len(steps) + 1)
    skip = prices.skip + prices.skip_rarity * np.log(skips / USUAL_SKIPS)
    return StepPrices(prices.rarity * np.log(counts / (len(steps) + 1)), min(0.0, float(skip)))


def measure(anchors: Anchors, lengths: tuple[Floats, Floats]) -> DocumentStats:
    """What anchors tell of a pair of texts: their median similarity, and the ratio of lengths where they are close.

    Between anchors far apart something was left out or added, which says nothing of lengths.
    """
    if not len(anchors.src):
        return DocumentStats(1.0, float(lengths[0].sum() / lengths[1].sum()))
    steps = np.diff(anchors.src), np.diff(anchors.tgt)
    close = np.append((steps[0] <= CLOSE) & (steps[1] <= CLOSE), False)
    sums = [_sums_between(side, places) for side, places in zip(lengths, (anchors.src, anchors.tgt), strict=True)]
    src, tgt = (float(side[close].sum() if close.any() else side.sum()) for side in sums)
    return DocumentStats(max(float(np.median(anchors.similarity)), 0.01), src / tgt)


def _sums_between(lengths: Floats, places: Ids) -> Floats:
    """Characters from each anchor to before the next, of the last to the end; shape (a,)."""
    return np.asarray(np.add.reduceat(lengths, places))


def _linked_runs(path: BestPath) -> tuple[Ids, Ids]:
    """Runs (b, 2) of both sides of the path's links with both sides."""
    src, tgt = _runs(path.steps)
    linked = path.links >= 0
    return src[linked], tgt[linked]


def _runs(steps: Ids) -> tuple[Ids, Ids]:
    """The first sentence of each step (s, 2) and the one after its last, on either side, shapes (s, 2)."""
    ends = steps.cumsum(axis=0)
    return (
        np.stack([ends[:, 0] - steps[:, 0], ends[:, 0]], axis=1),
        np.stack([ends[:, 1] - steps[:, 1], ends[:, 1]], axis=1),
    )
