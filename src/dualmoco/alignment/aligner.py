"""Two texts' runs of sentences to links: anchors, what they tell of these texts, the best path around them.

Takes `Runs` of both sides, gives `Links`. Shapes: N and M sentences, s steps, b links.
"""

from __future__ import annotations

import numpy as np

from dualmoco.alignment.anchors import Anchors, band_around
from dualmoco.alignment.confidence import confidence
from dualmoco.alignment.gains import LinkGains, Prices, Scale
from dualmoco.alignment.links import Links
from dualmoco.alignment.path import Band, KeptGains, best_path, full_band, margins
from dualmoco.alignment.runs import Runs
from dualmoco.core.vectors import Floats, Ids

EXACT_CELLS = 160_000
"""Up to so many cells all are looked at."""
CLOSE = 8  # sentences from one anchor to the next, at most, for their lengths to be compared
PASSES = 3  # the path without prices of types, then twice with those of the path before
UNSEEN = 0.5  # links that a type counts before any is seen
ROUNDS = 3  # of widening the band where the path runs along its edge
BUFFER = 5  # cells around the anchors in which the path is looked for first
NEAR = 32  # rows and columns that are added around such a place


def align_runs(
    src: Runs, tgt: Runs, lengths: tuple[Floats, Floats], anchors: Anchors, prices: Prices | None = None
) -> Links:
    """Aligns two texts.

    Args:
        src: Runs of the source sentences.
        tgt: Runs of the target sentences.
        lengths: Characters of the sentences of both sides, shapes (N,) and (M,).
        anchors: Where the path runs; see `find_anchors`.
        prices: What decides between links.

    Returns:
        The links.
    """
    prices = prices or Prices()
    gains = LinkGains(src, tgt, lengths, measure(anchors, lengths), prices)
    counts = len(src.sentences), len(tgt.sentences)
    exact = (counts[0] + 1) * (counts[1] + 1) <= EXACT_CELLS
    band = full_band(*counts) if exact else band_around(anchors.src, anchors.tgt, counts, buffer=BUFFER)
    kept, types = KeptGains(gains), np.zeros((src.longest, src.longest))
    for _ in range(PASSES):
        used, path = types, best_path(band, kept, types, prices.skip)
        for _ in range(ROUNDS):
            edges = touched(band, path.steps, counts[1])
            if not len(edges):
                break
            band, kept = widened(band, edges, counts[1]), KeptGains(gains)
            path = best_path(band, kept, types, prices.skip)
        types = prices.rarity * np.log(type_shares(path.steps, src.longest))
    return _links(path.steps, gains, margins(path, band, kept, used, prices.skip))


def type_shares(steps: Ids, longest: int) -> Floats:
    """The share of links of m source and n target sentences among a path's steps, at [m - 1, n - 1]; never zero."""
    both = steps[steps.all(axis=1)] - 1
    counts = np.full((longest, longest), UNSEEN)
    np.add.at(counts, (both[:, 0], both[:, 1]), 1.0)
    return np.asarray(counts / (len(steps) + 1))


def measure(anchors: Anchors, lengths: tuple[Floats, Floats]) -> Scale:
    """What anchors tell of a pair of texts: their median similarity, and the ratio of lengths where they are close.

    Between anchors far apart something was left out or added, which says nothing of lengths.
    """
    if not len(anchors.src):
        return Scale(1.0, float(lengths[0].sum() / lengths[1].sum()))
    steps = np.diff(anchors.src), np.diff(anchors.tgt)
    close = np.append((steps[0] <= CLOSE) & (steps[1] <= CLOSE), False)
    sums = [_sums_between(side, places) for side, places in zip(lengths, (anchors.src, anchors.tgt), strict=True)]
    src, tgt = (float(side[close].sum() if close.any() else side.sum()) for side in sums)
    return Scale(max(float(np.median(anchors.similarity)), 0.01), src / tgt)


def _sums_between(lengths: Floats, places: Ids) -> Floats:
    """Characters from each anchor to before the next, of the last to the end; shape (a,)."""
    return np.asarray(np.add.reduceat(lengths, places))


def touched(band: Band, steps: Ids, columns: int) -> Ids:
    """Rows in which a path runs along the edge of its band, where the text does not end there."""
    cells = np.concatenate([np.zeros((1, 2), dtype=np.int64), steps.cumsum(axis=0)])
    rows, places = cells[:, 0], cells[:, 1]
    low, high = band.low[rows], band.high[rows]
    at_edge = ((places == low) & (low > 0)) | ((places == high) & (high < columns))
    return np.unique(rows[at_edge])


def widened(band: Band, rows: Ids, columns: int) -> Band:
    """The band with more cells around some rows."""
    width = NEAR
    near = np.zeros(len(band.low), dtype=bool)
    for row in rows.tolist():
        near[max(0, row - width) : row + width + 1] = True
    low = np.where(near, np.maximum(band.low - width, 0), band.low)
    high = np.where(near, np.minimum(band.high + width, columns), band.high)
    return Band(np.minimum.accumulate(low[::-1])[::-1], np.maximum.accumulate(high))


def _links(steps: Ids, gains: LinkGains, lost: Floats) -> Links:
    """The links that steps (s, 2) make, with their scores."""
    ends = steps.cumsum(axis=0)
    src, tgt = (np.stack([ends[:, side] - steps[:, side], ends[:, side]], axis=1) for side in (0, 1))
    both = steps.all(axis=1)
    scores = np.full(len(steps), np.nan)
    scores[both] = gains.similarity(src[both], tgt[both])
    return Links(src, tgt, scores, confidence(scores, lost))
