"""What a link is worth: how alike two runs of sentences are, and how well their lengths agree.

Likeness counts as far as it is more than that of each run to the sentences beside the other.

Takes `Runs` of both sides and what anchors tell of this pair of texts, gives `Gains` to path.py. Shapes: N and M
sentences, P the longest run, r and c rows and columns of a tile of cells, b links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.runs import Runs
from dualmoco.core.vectors import Floats, Ids

PLACES = 5  # of cosines, so that a sum in another order changes nothing


@dataclass(frozen=True)
class Prices:
    """What decides between links, in units of a usual translation's similarity; chosen on generated documents.

    docs/align.md says how, and how much each of them matters.
    """

    beside: float = 0.75
    """Share of the similarity to the sentences beside the other run that is taken off."""
    length: float = 1.0
    """For the square of the logarithm of how much longer a side is than it should be."""
    length_cap: float = 2.0
    """The most that such a square counts."""
    length_start: float = 0.3
    """Added to all lengths, in mean sentences: of short ones the ratio says little."""
    size_power: float = 0.25
    """A link of more sentences counts more, by the mean number of both sides to this power."""
    many: float = 0.1
    """For every sentence beyond the first of the side that has fewer: several to several is rare."""
    rarity: float = 0.04
    """For the logarithm of the share that links of the same type have in this very document."""
    skip: float = -0.2
    """For a sentence that is left out."""


@dataclass(frozen=True)
class Scale:
    """What anchors tell of a pair of texts."""

    similarity: float
    """Of a usual translation, above that of unrelated sentences."""
    ratio: float
    """Characters of the source for one of the target."""


class LinkGains:
    """Gains of the steps into a tile of cells; see `path.Gains`.

    Args:
        src: Runs of the source.
        tgt: Runs of the target.
        lengths: Characters of the sentences of both sides, shapes (N,) and (M,).
        scale: What anchors tell.
        prices: What decides.
    """

    def __init__(self, src: Runs, tgt: Runs, lengths: tuple[Floats, Floats], scale: Scale, prices: Prices) -> None:
        self.src, self.tgt, self.scale, self.prices = src, tgt, scale, prices
        start = prices.length_start * float(np.mean(lengths[0]))
        self.logs = (
            _log_lengths(lengths[0], src.longest, start),  # (P, N + 1)
            _log_lengths(lengths[1] * scale.ratio, src.longest, start),  # (P, M + 1)
        )
        sizes = np.arange(1, src.longest + 1)
        self.weights = ((sizes[:, None] + sizes) / 2.0) ** prices.size_power  # (P, P)
        self.costs = prices.many * (np.minimum(sizes[:, None], sizes) - 1.0)  # (P, P)

    def __call__(self, rows: slice, columns: slice) -> np.ndarray:
        """Gains (P, P, r, c)."""
        near_src, near_tgt = _around(rows, self.src), _around(columns, self.tgt)
        gains = np.round(self.src.cosines(self.tgt, rows, columns), PLACES)
        _add_up(
            gains, np.round(self.src.beside(self.tgt.sentences[near_tgt], rows), PLACES), columns.start, near_tgt.start,
            np.round(self.tgt.beside(self.src.sentences[near_src], columns), PLACES), rows.start, near_src.start,
            self.logs[0][:, rows], self.logs[1][:, columns], self.weights, self.costs, 1.0 / self.scale.similarity,
            self.prices.beside, self.prices.length, self.prices.length_cap,
        )  # fmt: skip
        return gains

    def similarity(self, src: Ids, tgt: Ids) -> Floats:
        """Cosines of links (b, 2) less those of what stands beside, 1 for a usual translation, shape (b,)."""
        x, y = self.src.at(src), self.tgt.at(tgt)
        beside = _beside(x, tgt, self.tgt), _beside(y, src, self.src)
        above = np.einsum("bd,bd->b", x, y) - self.prices.beside * (beside[0] + beside[1]) / 2
        return np.asarray(np.round(above.astype(np.float64), PLACES) / self.scale.similarity)


@njit(cache=True)
def _add_up(
    gains: np.ndarray, src_beside: np.ndarray, column: int, first_tgt: int, tgt_beside: np.ndarray, row: int,
    first_src: int, src_logs: Floats, tgt_logs: Floats, weights: Floats, costs: Floats, scale: float, share: float,
    length: float, cap: float,
) -> None:  # fmt: skip
    """Makes gains of cosines (P, P, r, c), in their place.

    `src_beside` (P, r, k) are cosines of the source runs with target sentences from `first_tgt` on, `tgt_beside`
    (P, c, k) the other way round; `column` and `row` are the ends of the tile's first runs.
    """
    longest, _, height, width = gains.shape
    for m in range(longest):
        for n in range(longest):
            for i in range(height):
                for j in range(width):
                    left, right = (
                        column + j - n - 2 - first_tgt,
                        column + j - first_tgt,
                    )  # sentences beside the target run
                    beside = _mean_of_two(src_beside[m, i], left, right)
                    left, right = row + i - m - 2 - first_src, row + i - first_src
                    beside += _mean_of_two(tgt_beside[n, j], left, right)
                    off = src_logs[m, i] - tgt_logs[n, j]
                    above = (gains[m, n, i, j] - share * beside / 2) * scale
                    gains[m, n, i, j] = weights[m, n] * (above - length * min(off * off, cap)) - costs[m, n]


@njit(cache=True)
def _mean_of_two(values: np.ndarray, left: int, right: int) -> float:
    """The mean of those of two places that there are; 0 if there is neither."""
    total, count = 0.0, 0
    if left >= 0:
        total, count = total + values[left], count + 1
    if right < len(values):
        total, count = total + values[right], count + 1
    return total / count if count else 0.0


def _around(ends: slice, runs: Runs) -> slice:
    """Sentences from the one before the longest run of a tile's first end to the one after its last end."""
    return slice(max(0, ends.start - runs.longest - 1), min(len(runs.sentences), ends.stop))


def _beside(vectors: np.ndarray, runs: Ids, other: Runs) -> np.ndarray:
    """Mean cosine of vectors (b, D) with the sentences on both sides of runs (b, 2) of the other text, (b,)."""
    total, count = np.zeros(len(runs)), np.zeros(len(runs))
    for places in (runs[:, 0] - 1, runs[:, 1]):
        there = (places >= 0) & (places < len(other.sentences))
        total[there] += np.einsum("bd,bd->b", vectors[there], other.sentences[places[there]])
        count += there
    return np.asarray(total / np.maximum(count, 1))


def _log_lengths(lengths: Floats, longest: int, start: float) -> Floats:
    """Logarithms of the lengths of runs by size and end, (P, N + 1), all longer by `start`."""
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    begins = np.maximum(np.arange(len(ends)) - np.arange(1, longest + 1)[:, None], 0)
    return np.asarray(np.log(np.maximum(ends - ends[begins], 1.0) + start))
