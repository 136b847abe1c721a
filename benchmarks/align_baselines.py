"""The algorithms of Bertalign and vecalign, implemented from their descriptions, for the same vectors as ours.

Bertalign (Liu and Zhu, 2022) finds one-to-one anchors among the nearest neighbours, then the best links around them;
vecalign (Thompson and Koehn, 2019) finds a path among averaged vectors and refines it. Both are compiled, like the
originals; see `align_kernels`. Shapes: N and M sentences, P the longest run, D dimension, T types, s steps.
"""

from __future__ import annotations

import faiss
import numpy as np

from benchmarks.align_kernels import NEVER, bertalign_gains, best_steps, row_starts, vecalign_gains
from dualmoco.core.vectors import Floats, Ids

NEIGHBOURS, LEAST_WINDOW, WINDOW_SHARE = 3, 250, 0.06  # Bertalign: neighbours in its first pass
ANCHOR_WINDOW = 5  # columns around its anchors
EXACT_SENTENCES = 300  # vecalign: up to this many sentences, all cells are searched
PATH_WINDOW = 5  # cells on each side of its path, across the diagonal
USUAL_SAMPLE, COST_SAMPLE = (
    100,
    5_000,
)  # runs to estimate the usual distance, and pairs to estimate the cost of a deletion
Lengths = tuple[Floats, Floats]


def bertalign(src: np.ndarray, tgt: np.ndarray, lengths: Lengths, largest: int = 5, skip: float = -0.1) -> Ids:
    """Aligns two texts like Bertalign.

    Args:
        src: Unit vectors of source runs by length and end, single precision, shape (P, N + 1, D).
        tgt: Unit vectors of target runs, shape (P, M + 1, D).
        lengths: Characters of the sentences of both sides, shapes (N,) and (M,).
        largest: Maximum sentences of a link, both sides together.
        skip: Gain of deleting one sentence.

    Returns:
        Number of source and target sentences of each step, shape (s, 2).
    """
    anchors = bertalign_anchors(src[0, 1:], tgt[0, 1:])
    band = _band_between(anchors, (src.shape[1] - 1, tgt.shape[1] - 1))
    types = _types(len(src), largest)
    ratio = lengths[0].sum() / max(lengths[1].sum(), 1.0)
    src_ends, tgt_ends = (np.append(0.0, np.cumsum(side)) for side in (lengths[0], lengths[1] * ratio))
    return best_steps(*band, bertalign_gains(*band, types, src, tgt, src_ends, tgt_ends), types, skip)


def bertalign_anchors(src: np.ndarray, tgt: np.ndarray) -> Ids:
    """The first pass of Bertalign: one-to-one steps (s, 2) between near neighbours of sentences (N, D), (M, D)."""
    counts = len(src), len(tgt)
    index = faiss.IndexFlatIP(tgt.shape[1])
    index.add(tgt)
    cosines, ids = index.search(src, min(NEIGHBOURS, counts[1]))
    window = max(LEAST_WINDOW, int(WINDOW_SHARE * max(counts)), counts[1] // counts[0])  # rows next to each other touch
    middle = np.arange(counts[0] + 1) * counts[1] // counts[0]
    low, high = np.maximum(middle - window, 0), np.minimum(middle + window, counts[1])
    gains = np.full((int((high - low + 1).sum()), 1), NEVER, dtype=np.float32)
    rows, columns = np.repeat(np.arange(1, counts[0] + 1), ids.shape[1]), ids.ravel() + 1
    inside = (columns >= low[rows]) & (columns <= high[rows])
    places = row_starts(low, high)[rows] + columns - low[rows]
    gains[places[inside], 0] = cosines.ravel()[inside]
    return best_steps(low, high, gains, _types(1, 2), 0.0)


def vecalign(src: np.ndarray, tgt: np.ndarray, lengths: Lengths, largest: int = 8, seed: int = 0) -> Ids:
    """Aligns two texts like vecalign.

    Args:
        src: Unit vectors of source runs by length and end, single precision, shape (P, N + 1, D).
        tgt: Unit vectors of target runs, shape (P, M + 1, D).
        lengths: Unused; both algorithms have the same arguments.
        largest: Maximum sentences of a link, both sides together.
        seed: Random seed of the samples for usual distances.

    Returns:
        Number of source and target sentences of each step, shape (s, 2).
    """
    chance = np.random.default_rng(seed)
    path = vecalign_path(src[:1], tgt[:1], chance)
    band = _band_around(path, (src.shape[1] - 1, tgt.shape[1] - 1))
    return _vecalign_steps(band, src, tgt, _types(len(src), largest), chance)


def vecalign_path(src: np.ndarray, tgt: np.ndarray, chance: np.random.Generator) -> Ids:
    """The recursion of vecalign: one-to-one steps (s, 2) of sentences (1, N + 1, D) and (1, M + 1, D)."""
    counts = src.shape[1] - 1, tgt.shape[1] - 1
    if max(counts) <= EXACT_SENTENCES:
        band = np.zeros(counts[0] + 1, dtype=np.int64), np.full(counts[0] + 1, counts[1])
    else:
        coarse = vecalign_path(_halved(src), _halved(tgt), chance)
        band = _band_around(np.repeat(coarse, 2, axis=0), counts)
    return _vecalign_steps(band, src, tgt, _types(1, 2), chance)


def _vecalign_steps(
    band: tuple[Ids, Ids], src: np.ndarray, tgt: np.ndarray, types: Ids, chance: np.random.Generator
) -> Ids:
    """The best path through a band, with costs relative to the usual distances of these vectors."""
    usual_src, usual_tgt = _usual_distances(src, tgt, chance), _usual_distances(tgt, src, chance)
    rows, columns = (chance.integers(1, side.shape[1], COST_SAMPLE) for side in (src, tgt))
    distances = 1 - np.einsum("kd,kd->k", src[0, rows], tgt[0, columns])
    skip = np.quantile(2 * distances / (usual_src[0, rows] + usual_tgt[0, columns]), 0.2)
    return best_steps(*band, vecalign_gains(*band, types, src, tgt, usual_src, usual_tgt), types, -float(skip))


def _usual_distances(vectors: np.ndarray, others: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Mean distances of runs to random runs of the other side, shape (P, N + 1)."""
    count = others.shape[1] - 1
    sizes = chance.integers(1, min(len(others), count) + 1, USUAL_SAMPLE)
    chosen = others[sizes - 1, chance.integers(sizes, count + 1)]
    return np.asarray(1 - vectors @ chosen.mean(axis=0))


def _halved(vectors: np.ndarray) -> np.ndarray:
    """Means of adjacent pairs of vectors, with an odd last one alone; (1, N + 1, D) to (1, N / 2 + 1, D)."""
    sums = np.zeros((1, vectors.shape[1] // 2 + 1, vectors.shape[2]), dtype=np.float32)
    sums[0, 1:] = vectors[0, 1::2]
    sums[0, 1 : (vectors.shape[1] + 1) // 2] += vectors[0, 2::2]
    sums[0, 1:] /= np.maximum(np.linalg.norm(sums[0, 1:], axis=1, keepdims=True), 1e-9)
    return sums


def _types(longest: int, largest: int) -> Ids:
    """Number of source and target sentences of each type of step, shape (T + 2, 2); the last two are deletions."""
    sizes = range(1, longest + 1)
    return np.array([*((m, n) for m in sizes for n in sizes if m + n <= largest), (1, 0), (0, 1)])


def _band_between(anchors: Ids, counts: tuple[int, int]) -> tuple[Ids, Ids]:
    """Lowest and highest columns of each row, from the last anchor before it to the next, and a few more."""
    ends = np.cumsum(anchors, axis=0)[anchors.all(axis=1)]
    rows, columns = (np.concatenate([[0], ends[:, side], [counts[side]]]) for side in (0, 1))
    following = np.searchsorted(rows[1:], np.arange(counts[0] + 1)) + 1
    low = np.maximum(columns[following - 1] - ANCHOR_WINDOW, 0)
    high = np.minimum(columns[following] + ANCHOR_WINDOW, counts[1])
    high[-1] = counts[1]
    return low, high


def _band_around(steps: Ids, counts: tuple[int, int]) -> tuple[Ids, Ids]:
    """Lowest and highest columns of each row, up to a few cells across the diagonal from any cell of a path."""
    cells = np.minimum(np.concatenate([[[0, 0]], np.cumsum(steps, axis=0)]), counts)
    rows = np.arange(counts[0] + 1)
    left = cells[np.searchsorted(cells[:, 0], rows), 1]
    right = cells[np.searchsorted(cells[:, 0], rows, "right") - 1, 1]
    far = range(PATH_WINDOW + 1)
    low = np.min([left[np.maximum(rows - k, 0)] - k for k in far], axis=0)
    high = np.max([right[np.minimum(rows + k, counts[0])] + k for k in far], axis=0)
    return np.maximum(low, 0), np.minimum(high, counts[1])
