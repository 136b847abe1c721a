"""Cosines of the sentences of two texts in the cells of a band, and of pairs of vectors.

Cell (i, j) holds the cosine of source sentence i with target sentence j, counted from 1; row 0 and column 0 are zero.
Shapes: N and M sentences, D dimension, c cells, u vectors, b pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.dynamic_programming import Band, LinkTable, padded
from dualmoco.core.vectors import Floats, Ids, Vectors

SCALE = 1e5  # cosines are rounded to five places, so that a sum in another order changes nothing


@dataclass(frozen=True)
class BandCosines:
    """Cosines of single sentences."""

    band: Band
    values: np.ndarray  # (c,) by cell, single precision


def band_cosines(src: Vectors, tgt: Vectors, band: Band, known: BandCosines | None = None) -> BandCosines:
    """Cosines in a band, the same for any number of threads.

    Args:
        src: Unit vectors of the source sentences, shape (N, D).
        tgt: Of the target sentences, shape (M, D).
        band: The cells.
        known: Of the same sentences in another band; those are not multiplied again.

    Returns:
        The cosines.
    """
    known = known or BandCosines(Band(band.high + 1, band.high), np.empty(0, dtype=np.float32))  # of no cell
    cosines = np.zeros(band.cells, dtype=np.float32)
    old = known.band
    _multiply(src, tgt, band.low, band.high, band.starts, old.low, old.high, old.starts, known.values, cosines)
    return BandCosines(band, cosines)


@njit(cache=True)
def _multiply(
    src: np.ndarray,
    tgt: np.ndarray,
    low: Ids,
    high: Ids,
    starts: Ids,
    known_low: Ids,
    known_high: Ids,
    known_starts: Ids,
    known: np.ndarray,
    cosines: np.ndarray,
) -> None:
    """Writes the cosines of each row: what is known already, and what lies before it and after it."""
    columns = np.arange(len(tgt))
    for row in range(1, len(low)):
        begin, end, to_cell = max(1, low[row]), high[row] + 1, starts[row] - low[row]
        first, last = max(begin, known_low[row]), min(end, known_high[row] + 1)
        if first >= last:
            first = last = end
        for column in range(first, last):
            cosines[to_cell + column] = known[known_starts[row] + column - known_low[row]]
        for one, other in ((begin, first), (last, end)):
            found = cosines[to_cell + one : to_cell + other]
            dots(src[row - 1], tgt, columns[one - 1 : other - 1], found)
            for place in range(len(found)):
                found[place] = np.round(found[place] * SCALE) / SCALE


@njit(cache=True, fastmath=True)
def dots(own: np.ndarray, vectors: np.ndarray, which: np.ndarray, products: np.ndarray) -> None:
    """Writes the scalar products of a vector (D,) with some of others (u, D), by their numbers (n,).

    Four at a time: for a narrow band that is as fast as products of matrices.
    """
    end = len(which) - 1
    for first in range(0, end + 1, 4):
        a, b = vectors[which[first]], vectors[which[min(first + 1, end)]]
        c, d = vectors[which[min(first + 2, end)]], vectors[which[min(first + 3, end)]]
        one, two, three, four = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for part in range(len(own)):
            one += own[part] * a[part]
            two += own[part] * b[part]
            three += own[part] * c[part]
            four += own[part] * d[part]
        products[first], products[min(first + 1, end)] = one, two
        products[min(first + 2, end)], products[min(first + 3, end)] = three, four


@njit(cache=True)
def pair_cosines(src: np.ndarray, tgt: np.ndarray, pairs: Ids) -> np.ndarray:
    """Cosines (b,) of pairs (b, 2) of unit vectors (u, D) of either side."""
    cosines = np.empty(len(pairs), dtype=np.float32)
    for number in range(len(pairs)):
        cosines[number] = np.round(_dot(src[pairs[number, 0]], tgt[pairs[number, 1]]) * SCALE) / SCALE
    return cosines


@njit(cache=True, fastmath=True)
def _dot(first: np.ndarray, second: np.ndarray) -> float:
    """The scalar product of two vectors (D,)."""
    total = np.float32(0)
    for place in range(len(first)):
        total += first[place] * second[place]
    return float(total)


@dataclass(frozen=True)
class AlignmentCosts:
    """What decides between links, in units of a usual translation's similarity; chosen on generated documents.

    docs/align.md says how, and how much each of them matters.
    """

    beside: float = 0.6
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
    rarity: float = 0.08
    """For the logarithm of the share that links of the same type have in this very document."""
    skip: float = -0.25
    """For a sentence that is left out, if USUAL_SKIPS of the steps of this document leave one out."""
    skip_rarity: float = 0.08
    """For the logarithm of how many times more of them do."""
    words: float = 1.5
    """For what the words of a link say, 1 for a usual link of one with one; see lexicon.py."""


@dataclass(frozen=True)
class DocumentStats:
    """What anchors tell of a pair of texts."""

    similarity: float
    """Of a usual translation, above that of unrelated sentences."""
    ratio: float
    """Characters of the source for one of the target."""


class LinkGains:
    """Gains of links between two texts, by the mean vectors of their runs.

    Args:
        vectors: Unit vectors of the sentences of both sides, shapes (N, D) and (M, D).
        lengths: Their characters, shapes (N,) and (M,).
        scale: What anchors tell.
        prices: What decides.
        longest: P.
    """

    def __init__(
        self,
        vectors: tuple[Vectors, Vectors],
        lengths: tuple[Floats, Floats],
        scale: DocumentStats,
        prices: AlignmentCosts,
        longest: int,
    ) -> None:
        self.vectors, self.scale, self.prices, self.longest = vectors, scale, prices, longest
        self.shares = mean_shares(vectors[0], longest), mean_shares(vectors[1], longest)  # (P, N + 1), (P, M + 1)
        start = prices.length_start * float(np.mean(lengths[0]))
        self.logs = (
            _log_lengths(lengths[0], longest, start),  # (P, N + 1)
            _log_lengths(lengths[1] * scale.ratio, longest, start),  # (P, M + 1)
        )
        sizes = np.arange(1, longest + 1)
        self.weights = ((sizes[:, None] + sizes) / 2.0) ** prices.size_power  # (P, P)
        self.costs = prices.many * (np.minimum(sizes[:, None], sizes) - 1.0)  # (P, P)

    def cosines(self, band: Band, known: BandCosines | None = None) -> BandCosines:
        """Cosines of all single sentences that links into a band, and what stands beside them, are made of."""
        return band_cosines(*self.vectors, padded(band, self.longest, 1), known)

    def table(self, band: Band, cosines: BandCosines, least: float) -> LinkTable:
        """The links into the cells of a band.

        Args:
            band: The cells.
            cosines: Around it.
            least: A link that is worth less than this for each of its sentences is left out.

        Returns:
            The links.
        """
        near, most = cosines.band, band.cells * self.longest**2
        firsts, sizes = np.empty(band.cells + 1, dtype=np.int64), np.empty(most, dtype=np.uint8)
        gains = np.empty(most, dtype=np.float32)
        count = _price(
            band.low,
            band.high,
            near.low,
            near.high,
            near.starts,
            cosines.values,
            *self.shares,
            *self.logs,
            self.weights,
            self.costs,
            1.0 / self.scale.similarity,
            self.prices.beside,
            self.prices.length,
            self.prices.length_cap,
            least,
            firsts,
            sizes,
            gains,
        )
        return LinkTable(band, firsts, sizes[:count].copy(), gains[:count].copy(), self.longest)

    def similarity(self, table: LinkTable) -> Floats:
        """What the links' gains say of likeness alone, 1 for a usual translation, shape (b,)."""
        rows, columns = table.ends
        m, n = np.divmod(table.sizes, self.longest)
        off = self.logs[0][m, rows] - self.logs[1][n, columns]
        lengths = self.prices.length * np.minimum(off * off, self.prices.length_cap)
        return np.asarray((table.gains + self.costs[m, n]) / self.weights[m, n] + lengths)

    def changed(self, table: LinkTable, cosines: BandCosines, found: np.ndarray) -> np.ndarray:
        """Gains (b,) of links whose runs were found to have other cosines (b,) than their mean vectors have."""
        rows, columns = table.ends
        m, n = np.divmod(table.sizes, self.longest)
        sums = _sums(cosines.band.low, cosines.band.starts, cosines.values, rows, columns, m, n)
        more = found - sums * self.shares[0][m, rows] * self.shares[1][n, columns]
        return np.asarray(table.gains + self.weights[m, n] * more / self.scale.similarity, dtype=np.float32)


def mean_shares(vectors: Vectors, longest: int) -> Floats:
    """What the sum of a run's vectors is multiplied with to be a unit vector.

    Args:
        vectors: Unit vectors of single sentences, shape (N, D).
        longest: P.

    Returns:
        Numbers by size and end, shape (P, N + 1); 0 where a run would begin before the text.
    """
    products = _neighbour_products(vectors, longest).T  # (P, N)
    squares = np.zeros((longest, len(vectors) + 1))
    squares[0, 1:] = products[0]
    for size in range(1, min(longest, len(vectors))):
        more = sum(products[back, size - back :][: len(vectors) - size] for back in range(1, size + 1))
        squares[size, size + 1 :] = squares[size - 1, size:-1] + products[0, size:] + 2 * np.asarray(more)
    return np.divide(1.0, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 1e-9)


@njit(cache=True)
def _neighbour_products(vectors: np.ndarray, longest: int) -> np.ndarray:
    """Products of each vector with the one so many places after it, by the first's place and the distance, (N, P)."""
    products, places = np.zeros((len(vectors), longest), np.float32), np.arange(len(vectors))
    for place in range(len(vectors)):
        after = places[place : place + longest]
        dots(vectors[place], vectors, after, products[place, : len(after)])
    return products


@njit(cache=True)
def _price(
    low: Ids,
    high: Ids,
    near_low: Ids,
    near_high: Ids,
    near_starts: Ids,
    cosines: np.ndarray,
    src_shares: Floats,
    tgt_shares: Floats,
    src_logs: Floats,
    tgt_logs: Floats,
    weights: Floats,
    costs: Floats,
    scale: float,
    beside: float,
    length: float,
    cap: float,
    least: float,
    firsts: Ids,
    sizes: np.ndarray,
    gains: np.ndarray,
) -> int:
    """Writes a table of links from cosines of single sentences in a band with cells around; gives their number."""
    longest, rows, columns = len(weights), len(low) - 1, high[-1]
    width = (high - low).max() + longest + 2
    single = np.zeros((longest + 2, width))  # cosines of the row after this one, of this one and of those before it
    down = np.zeros((longest, width))  # sums of the cosines of 1 to P rows up to this one
    cell, count = 0, 0
    for row in range(rows + 1):
        left = low[row] - longest
        _lay_out(row, left, near_low, near_high, near_starts, cosines, single, down)
        for column in range(low[row], high[row] + 1):
            place, firsts[cell] = column - left, count
            last = 0.0 if column == columns else 1.0
            for m in range(min(longest, row)):
                block, above, below = 0.0, 0.0, 0.0
                first_row, last_row = 0.0 if row == m + 1 else 1.0, 0.0 if row == rows else 1.0
                x, src_log = src_shares[m, row], src_logs[m, row]
                around = 0.5 if first_row + last_row == 2 else 1.0
                for n in range(min(longest, column)):
                    block += down[m, place - n]
                    above += single[m + 2, place - n]
                    below += single[0, place - n]
                    first, y = 0.0 if column == n + 1 else 1.0, tgt_shares[n, column]
                    sides = first * down[m, place - n - 1] + last * down[m, place + 1]
                    near = x * sides * (0.5 if first + last == 2 else 1.0)
                    near += y * (first_row * above + last_row * below) * around
                    off = src_log - tgt_logs[n, column]
                    likeness = (block * x * y - beside * near / 2) * scale
                    gain = weights[m, n] * (likeness - length * min(off * off, cap)) - costs[m, n]
                    if gain >= least * (m + n + 2):
                        sizes[count], gains[count] = m * longest + n, gain
                        count += 1
            cell += 1
    firsts[cell] = count
    return count


@njit(cache=True)
def _lay_out(
    row: int, left: int, low: Ids, high: Ids, starts: Ids, cosines: np.ndarray, single: Floats, down: Floats
) -> None:
    """Writes the cosines that a row of cells needs, from column `left` on, and their sums; zeros beside the band."""
    for back in range(len(single)):
        single[back] = 0.0
        there = row + 1 - back
        if 1 <= there < len(low):
            begin, end = max(left, low[there]), min(left + single.shape[1], high[there] + 1)
            for column in range(begin, end):
                single[back, column - left] = cosines[starts[there] + column - low[there]]
    for place in range(single.shape[1]):
        total = 0.0
        for m in range(len(down)):
            total += single[m + 1, place]
            down[m, place] = total


@njit(cache=True)
def _sums(low: Ids, starts: Ids, cosines: np.ndarray, rows: Ids, columns: Ids, m: Ids, n: Ids) -> Floats:
    """Sums (b,) of the cosines of all sentences of one run with all of the other."""
    sums = np.zeros(len(rows))
    for link in range(len(rows)):
        for row in range(rows[link] - m[link], rows[link] + 1):
            for column in range(columns[link] - n[link], columns[link] + 1):
                sums[link] += cosines[starts[row] + column - low[row]]
    return sums


def _log_lengths(lengths: Floats, longest: int, start: float) -> Floats:
    """Logarithms of the lengths of runs by size and end, (P, N + 1), all longer by `start`."""
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    begins = np.maximum(np.arange(len(ends)) - np.arange(1, longest + 1)[:, None], 0)
    return np.asarray(np.log(np.maximum(ends - ends[begins], 1.0) + start))
