"""Which words of two texts meet: pairs of words that stand in one link near the path, and how near their vectors are.

Takes words of both texts and links, gives `Meetings` to lexicon.py: for every word of the source a row of numbers of
pairs, as far as the target reaches that some link of its sentence holds. Shapes: N sentences, V distinct words, k words
of a text, D dimension, b links, w pairs of words that meet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.cosines import dots
from dualmoco.core.vectors import Ids, Vectors

SHARPNESS = 10.0  # of the nearness of vectors
Runs = tuple[Ids, Ids]
"""Sentences of links on either side, each from one to before another, shapes (b, 2)."""


@dataclass(frozen=True)
class Words:
    """The words of a text."""

    ids: Ids  # (k,) each word's number
    ends: Ids  # (N + 1,) how many words there are up to each sentence, from 0
    vectors: Vectors | None  # (V, D) unit vectors by number; None if nothing is known of them


@dataclass(frozen=True)
class Part:
    """The words of some sentences of a text, numbered anew."""

    first: int  # the first sentence
    ids: np.ndarray  # (k,) in 32 bits, as all that there are millions of
    ends: Ids  # (N + 1,)
    distinct: Ids  # (V,) their numbers in the whole text

    @property
    def size(self) -> int:
        """V."""
        return len(self.distinct)


@dataclass(frozen=True)
class Meetings:
    """Pairs of words that meet, by source word."""

    src: Part
    tgt: Part
    pairs: np.ndarray  # (w, 2)
    nearness: np.ndarray  # (w,) above 0; 1 where nothing is known of words
    rows: Ids  # (k,) the pair of source word k and target word j has the number numbers[rows[k] + j]
    numbers: np.ndarray  # (sum of what each source word meets,)


def find_meetings(src: Words, tgt: Words, links: Runs) -> Meetings:
    """The pairs of words of some links.

    Args:
        src: Words of the source.
        tgt: Words of the target.
        links: At least one.

    Returns:
        The pairs.
    """
    one, other = _part(src, links[0]), _part(tgt, links[1])
    low, high = _reach(links[0] - one.first, links[1] - other.first, len(one.ends) - 1)
    if src.vectors is None or tgt.vectors is None:  # vectors of no dimension have products of 0, so all are as near
        vectors = np.zeros((one.size, 0), dtype=np.float32), np.zeros((other.size, 0), dtype=np.float32)
    else:
        vectors = src.vectors[one.distinct], tgt.vectors[other.distinct]
    return Meetings(one, other, *_meet(one.ids, one.ends, other.ids, other.ends, low, high, *vectors))


def _part(words: Words, runs: Ids) -> Part:
    first, last = int(runs[:, 0].min()), int(runs[:, 1].max())
    ends = words.ends[first : last + 1]
    ids = words.ids[ends[0] : ends[-1]]
    new, distinct = _number_anew(ids, int(ids.max(initial=-1)) + 1)
    return Part(first, new, ends - ends[0], distinct)


@njit(cache=True)
def _number_anew(ids: Ids, most: int) -> tuple[np.ndarray, Ids]:
    """Numbers (k,) of words below `most` by the order in which they appear, and the old ones (V,) of these."""
    new, distinct = np.empty(len(ids), np.int32), np.empty(min(len(ids), most), np.int64)
    number, count = np.full(most, -1, np.int32), 0
    for place in range(len(ids)):
        if number[ids[place]] < 0:
            number[ids[place]], distinct[count] = count, ids[place]
            count += 1
        new[place] = number[ids[place]]
    return new, distinct[:count].copy()


@njit(cache=True)
def _reach(src: Ids, tgt: Ids, count: int) -> tuple[Ids, Ids]:
    """For each source sentence (N,) the first target sentence of its links (b, 2), and the one after the last."""
    low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for link in range(len(src)):
        for sentence in range(src[link, 0], src[link, 1]):
            if high[sentence] == 0:
                low[sentence] = tgt[link, 0]
            low[sentence] = min(low[sentence], tgt[link, 0])
            high[sentence] = max(high[sentence], tgt[link, 1])
    return low, high


@njit(cache=True)
def _meet(
    ids: np.ndarray, ends: Ids, other_ids: np.ndarray, other_ends: Ids, low: Ids, high: Ids, vectors: np.ndarray,
    other_vectors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, Ids, np.ndarray]:  # fmt: skip
    """The pairs, their nearness, rows and numbers of `Meetings`; takes all places of a source word together."""
    begins, stops, rows, total = np.empty_like(ids), np.empty_like(ids), np.empty(len(ids), np.int64), 0
    for sentence in range(len(low)):
        for k in range(ends[sentence], ends[sentence + 1]):
            begins[k], stops[k] = other_ends[low[sentence]], other_ends[high[sentence]]
            rows[k] = total - begins[k]
            total += stops[k] - begins[k]
    numbers = np.empty(total, np.int32)
    pairs, near, count = np.empty((total, 2), np.int32), np.empty(total, np.float32), 0
    seen, number = np.full(len(other_vectors), -1, np.int32), np.empty(len(other_vectors), np.int32)
    for k in np.argsort(ids, kind="mergesort"):
        word, before = ids[k], count
        for place in range(begins[k], stops[k]):
            other = other_ids[place]
            if seen[other] != word:
                seen[other], number[other] = word, count
                pairs[count, 0], pairs[count, 1] = word, other
                count += 1
            numbers[rows[k] + place] = number[other]
        dots(vectors[word], other_vectors, pairs[before:count, 1], near[before:count])
    for pair in range(count):
        near[pair] = np.exp(np.float32(SHARPNESS) * near[pair])
    return pairs[:count].copy(), near[:count].copy(), rows, numbers
