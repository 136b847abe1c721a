"""Gains of candidate links: how similar both sides are, compared with their neighbors, and how well lengths agree.

All cosines are computed from single sentences: the cosine of two mean vectors is a scaled sum of sentence cosines.
`LinkScorer` turns the cosines in a band into a `LinkTable`. Cell (i, j) of a band holds the cosine of source sentence i
and target sentence j, counted from 1; row 0 and column 0 are zero.

Shapes: N and M sentences, P maximum sentences per side of a link, D dimension, c cells, u vectors, b links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.dynamic_programming import Band, BandArrays, LinkTable, pad_band
from dualmoco.core.vectors import Floats, Ids, Vectors

COSINE_ROUNDING = 1e5  # cosines are rounded to five decimals, so that the order of summation does not matter

VectorTables = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class BandCosines:
    """Cosines of single sentences, by cell."""

    band: Band
    values: np.ndarray  # (c,), float32


def band_cosines(src: Vectors, tgt: Vectors, band: Band, known: BandCosines | None = None) -> BandCosines:
    """Cosines of unit vectors (N, D) and (M, D) in a band; those that are known from another band are copied."""
    known = known or BandCosines(Band(band.high + 1, band.high), np.empty(0, dtype=np.float32))  # has no cells
    cosines = np.zeros(band.cells, dtype=np.float32)
    _fill_cosines(src, tgt, band.arrays, known.band.arrays, known.values, cosines)
    return BandCosines(band, cosines)


@njit(cache=True)
def _fill_cosines(
    src: np.ndarray, tgt: np.ndarray, band: BandArrays, known_band: BandArrays, known: np.ndarray, cosines: np.ndarray
) -> None:
    """Writes the cosines of each row: copies the known ones, computes those before and after them."""
    (low, high, starts), (known_low, known_high, known_starts) = band, known_band
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
                found[place] = np.round(found[place] * COSINE_ROUNDING) / COSINE_ROUNDING


@njit(cache=True, fastmath=True)
def dots(own: np.ndarray, vectors: np.ndarray, which: np.ndarray, products: np.ndarray) -> None:
    """Writes the dot products of a vector (D,) with the vectors (u, D) that are numbered in `which` (n,)."""
    end = len(which) - 1
    for first in range(0, end + 1, 4):  # four at a time: as fast as a matrix product when the band is narrow
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
def pair_cosines(src: VectorTables, tgt: VectorTables, src_places: Ids, tgt_places: Ids) -> np.ndarray:
    """Cosines (b,) of pairs of a source and a target vector.

    Each side has two tables of vectors (u, D); place i is row i of the first, place -1 - i is row i of the second.
    """
    cosines = np.empty(len(src_places), dtype=np.float32)
    for pair in range(len(src_places)):
        one, other = src_places[pair], tgt_places[pair]
        x = src[0][one] if one >= 0 else src[1][-1 - one]
        y = tgt[0][other] if other >= 0 else tgt[1][-1 - other]
        cosines[pair] = np.round(_dot(x, y) * COSINE_ROUNDING) / COSINE_ROUNDING
    return cosines


@njit(cache=True, fastmath=True)
def _dot(first: np.ndarray, second: np.ndarray) -> float:
    total = np.float32(0)
    for place in range(len(first)):
        total += first[place] * second[place]
    return float(total)


@dataclass(frozen=True)
class AlignmentCosts:
    """Weights of the terms of a gain, in units of a typical translation's similarity; docs/explanation/alignment.md."""

    context: float = 0.6  # share of the similarity to the neighbors of the other side that is subtracted
    length: float = 1.0  # cost of the squared log ratio of actual to expected length
    length_cap: float = 2.0  # upper limit of that square
    length_start: float = (
        0.3  # added to all lengths (in mean sentence lengths), because ratios of short spans are noisy
    )
    size_power: float = 0.25  # a link's gain is multiplied by the mean number of sentences of a side to this power
    many: float = 0.1  # cost of each sentence after the first on the shorter side, because many-to-many links are rare
    rarity: float = 0.08  # weight of the log frequency of the link's type in this document
    skip: float = -0.25  # added for each deleted sentence, if the share of deletions in the document is typical
    skip_rarity: float = 0.08  # weight of the log ratio of the share of deletions in this document to the typical share
    words: float = 1.5  # weight of the lexical score of a link, which is 1 for a typical 1-1 link


@dataclass(frozen=True)
class DocumentStats:
    """Statistics of a pair of documents, estimated from anchors."""

    similarity: float  # cosine of a typical translation minus that of unrelated sentences
    ratio: float  # source characters per target character


class LinkScorer:
    """Computes the gains of links from the unit vectors and the lengths in characters of both texts' sentences."""

    def __init__(
        self,
        vectors: tuple[Vectors, Vectors],  # (N, D), (M, D)
        lengths: tuple[Floats, Floats],  # (N,), (M,)
        stats: DocumentStats,
        costs: AlignmentCosts,
        longest: int,
    ) -> None:
        self.vectors, self.stats, self.costs, self.longest = vectors, stats, costs, longest
        self.scales = unit_scales(vectors[0], longest), unit_scales(vectors[1], longest)  # (P, N + 1), (P, M + 1)
        start = costs.length_start * float(np.mean(lengths[0]))
        self.log_lengths = (
            _log_lengths(lengths[0], longest, start),  # (P, N + 1)
            _log_lengths(lengths[1] * stats.ratio, longest, start),  # (P, M + 1)
        )
        sizes = np.arange(1, longest + 1)
        self.weights = ((sizes[:, None] + sizes) / 2.0) ** costs.size_power  # (P, P)
        self.many_costs = costs.many * (np.minimum(sizes[:, None], sizes) - 1.0)  # (P, P)

    def cosines(self, band: Band, known: BandCosines | None = None) -> BandCosines:
        """Cosines of all sentences that links into a band contain or have as neighbors."""
        return band_cosines(*self.vectors, pad_band(band, self.longest, 1), known)

    def table(self, band: Band, cosines: BandCosines, least: float) -> LinkTable:
        """The links into the cells of a band whose gain is at least `least` per sentence."""
        most = band.cells * self.longest**2
        offsets, types = np.empty(band.cells + 1, dtype=np.int64), np.empty(most, dtype=np.uint8)
        gains = np.empty(most, dtype=np.float32)
        costs = self.costs.context, self.costs.length, self.costs.length_cap
        count = _score_links(
            band.arrays,
            cosines.band.arrays,
            cosines.values,
            self.scales,
            self.log_lengths,
            (self.weights, self.many_costs),
            (1.0 / self.stats.similarity, *costs, least),
            (offsets, types, gains),
        )
        return LinkTable(band, offsets, types[:count].copy(), gains[:count].copy(), self.longest)

    def similarity(self, table: LinkTable) -> Floats:
        """The links' similarity without the other terms of their gains, 1 for a typical translation, shape (b,)."""
        rows, columns = table.ends
        m, n = np.divmod(table.types, self.longest)
        off = self.log_lengths[0][m, rows] - self.log_lengths[1][n, columns]
        length_costs = self.costs.length * np.minimum(off * off, self.costs.length_cap)
        return np.asarray((table.gains + self.many_costs[m, n]) / self.weights[m, n] + length_costs)

    def rescore(self, table: LinkTable, cosines: BandCosines, found: np.ndarray) -> np.ndarray:
        """Gains (b,) of links when the cosines of their mean vectors are replaced by others (b,)."""
        rows, columns = table.ends
        m, n = np.divmod(table.types, self.longest)
        sums = _block_sums(cosines.band.arrays, cosines.values, rows, columns, m, n)
        more = found - sums * self.scales[0][m, rows] * self.scales[1][n, columns]
        return np.asarray(table.gains + self.weights[m, n] * more / self.stats.similarity, dtype=np.float32)


def unit_scales(vectors: Vectors, longest: int) -> Floats:
    """Factors (P, N + 1), by size and end, that scale the sum of a span's vectors to unit length; 0 before the text."""
    products = _neighbor_products(vectors, longest).T  # (P, N)
    squares = np.zeros((longest, len(vectors) + 1))
    squares[0, 1:] = products[0]
    for size in range(1, min(longest, len(vectors))):
        more = sum(products[back, size - back :][: len(vectors) - size] for back in range(1, size + 1))
        squares[size, size + 1 :] = squares[size - 1, size:-1] + products[0, size:] + 2 * np.asarray(more)
    return np.divide(1.0, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 1e-9)


@njit(cache=True)
def _neighbor_products(vectors: np.ndarray, longest: int) -> np.ndarray:
    """Dot products of each vector with itself and with the P - 1 vectors after it, shape (N, P)."""
    products, places = np.zeros((len(vectors), longest), np.float32), np.arange(len(vectors))
    for place in range(len(vectors)):
        after = places[place : place + longest]
        dots(vectors[place], vectors, after, products[place, : len(after)])
    return products


def _log_lengths(lengths: Floats, longest: int, start: float) -> Floats:
    """Logs of the lengths of spans plus `start`, by size and end, shape (P, N + 1)."""
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    begins = np.maximum(np.arange(len(ends)) - np.arange(1, longest + 1)[:, None], 0)
    return np.asarray(np.log(np.maximum(ends - ends[begins], 1.0) + start))


@njit(cache=True)
def _score_links(
    band: BandArrays,
    padded: BandArrays,
    cosines: np.ndarray,
    scales: tuple[Floats, Floats],
    log_lengths: tuple[Floats, Floats],
    by_type: tuple[Floats, Floats],
    constants: tuple[float, float, float, float, float],
    links: tuple[Ids, np.ndarray, np.ndarray],
) -> int:
    """Writes the links into the cells of a band, from cosines in the padded band, and returns their number."""
    (low, high, _), (src_scales, tgt_scales), (src_logs, tgt_logs) = band, scales, log_lengths
    (weights, costs), (scale, context, length, cap, least), (offsets, types, gains) = by_type, constants, links
    longest, rows, columns = len(weights), len(low) - 1, high[-1]
    width = (high - low).max() + longest + 2
    single = np.zeros((longest + 2, width))  # cosines of the next row, this row and those before it
    down = np.zeros((longest, width))  # sums of the cosines of the last 1 to P rows
    cell, count = 0, 0
    for row in range(rows + 1):
        left = low[row] - longest
        _lay_out_rows(row, left, padded, cosines, single, down)
        for column in range(low[row], high[row] + 1):
            place, offsets[cell] = column - left, count
            has_right = 0.0 if column == columns else 1.0
            for m in range(min(longest, row)):
                block, above, below = 0.0, 0.0, 0.0  # sums of cosines inside the link, before it and after it
                has_above, has_below = 0.0 if row == m + 1 else 1.0, 0.0 if row == rows else 1.0
                src_scale, src_log = src_scales[m, row], src_logs[m, row]
                src_mean = 0.5 if has_above + has_below == 2 else 1.0
                for n in range(min(longest, column)):
                    block += down[m, place - n]
                    above += single[m + 2, place - n]
                    below += single[0, place - n]
                    has_left, tgt_scale = 0.0 if column == n + 1 else 1.0, tgt_scales[n, column]
                    sides = has_left * down[m, place - n - 1] + has_right * down[m, place + 1]
                    near = src_scale * sides * (0.5 if has_left + has_right == 2 else 1.0)
                    near += tgt_scale * (has_above * above + has_below * below) * src_mean
                    off = src_log - tgt_logs[n, column]
                    similarity = (block * src_scale * tgt_scale - context * near / 2) * scale
                    gain = weights[m, n] * (similarity - length * min(off * off, cap)) - costs[m, n]
                    if gain >= least * (m + n + 2):
                        types[count], gains[count] = m * longest + n, gain
                        count += 1
            cell += 1
    offsets[cell] = count
    return count


@njit(cache=True)
def _lay_out_rows(row: int, left: int, band: BandArrays, cosines: np.ndarray, single: Floats, down: Floats) -> None:
    """Writes the cosines around a row of cells, from column `left` on, and their sums; zeros outside the band."""
    low, high, starts = band
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
def _block_sums(band: BandArrays, cosines: np.ndarray, rows: Ids, columns: Ids, m: Ids, n: Ids) -> Floats:
    """Sums (b,) of the cosines of all source sentences of a link with all of its target sentences."""
    low, _, starts = band
    sums = np.zeros(len(rows))
    for link in range(len(rows)):
        for row in range(rows[link] - m[link], rows[link] + 1):
            for column in range(columns[link] - n[link], columns[link] + 1):
                sums[link] += cosines[starts[row] + column - low[row]]
    return sums
