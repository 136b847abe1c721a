"""What the words of a link say: which words of two texts translate each other, learnt from the texts themselves.

IBM's model 1 (Brown et al., 1993), trained on the links of a first path as Moore (2002) did, with words looked for near
the same place of the other side (Dyer et al., 2013), and not from nothing: before any link is seen, a word translates
into those whose vectors are near. A count of a pair of words is lowered by DISCOUNT, for a link that is to be judged
was among those that were counted. Names, which no model knows, are learnt so. Long texts have a lexicon for every
stretch. Only pairs of words that meet in some link are kept; others are taken to have nothing to do with each other.
Takes words of both texts and links, gives each link a number. Shapes: N sentences, V distinct words, k words of a text,
D dimension, b links, w pairs of words that meet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.alignment.cosines import dot
from dualmoco.core.vectors import Floats, Ids, Vectors

STRETCH = 500  # source sentences that a lexicon is learnt from
ROUNDS = 4  # of expectation and maximisation
DISCOUNT = 0.7
PRIOR_COUNT = 5.0  # what nearness of vectors counts for, in words
SHARPNESS = 10.0  # of that nearness
IN_PLACE = 3.0  # how much a word is looked for in the place of its link where the other stands in its own
TRANSLATED = 0.5  # share of the words that have a translation in the link
LEAST_USUAL = 5.0  # what words say of a link of one with one, at least, for differences not to be blown up
Runs = tuple[Ids, Ids]
"""Sentences of links on either side, each from one to before another, shapes (b, 2)."""


@dataclass(frozen=True)
class Words:
    """The words of a text."""

    ids: Ids  # (k,) each word's number
    ends: Ids  # (N + 1,) how many words there are up to each sentence, from 0
    vectors: Vectors | None  # (V, D) unit vectors by number; None if nothing is known of them


class WordModel:
    """Judges links by their words.

    Args:
        src: Words of the source.
        tgt: Words of the target.
        judged: The links, by rising ends of the source.
    """

    def __init__(self, src: Words, tgt: Words, judged: Runs) -> None:
        self.judged, self.stretches = judged, []
        for first in range(0, len(src.ends) - 1, STRETCH):
            here = slice(*np.searchsorted(judged[0][:, 1], [first + 1, first + STRETCH + 1]))
            if here.start < here.stop:
                self.stretches.append((here, _Stretch((src, tgt), (judged[0][here], judged[1][here]))))

    def judge(self, path: Runs) -> Floats:
        """How well the words of the links translate each other, learnt from those that a path takes.

        Args:
            path: Links with both sides.

        Returns:
            Sums of the logarithms of how much more likely the words are than anywhere, 1 for a mean link of one with
            one sentence on the path; shape (b,).
        """
        found = np.zeros(len(self.judged[0]))
        for here, stretch in self.stretches:
            found[here] = stretch.judge(path)
        return found / self._usual(path, found)

    def _usual(self, path: Runs, found: Floats) -> float:
        """The mean of the links of one with one sentence that are on the path; LEAST_USUAL where words say little."""
        src, tgt = self.judged
        partner = np.full(int(src.max(initial=0)) + 1, -1)  # of each source sentence that the path links so
        single = (np.diff(path[0])[:, 0] == 1) & (np.diff(path[1])[:, 0] == 1)
        partner[path[0][single, 0]] = path[1][single, 0]
        alone = (np.diff(src)[:, 0] == 1) & (np.diff(tgt)[:, 0] == 1)
        chosen = found[alone & (partner[src[:, 0]] == tgt[:, 0])]
        return max(float(chosen.mean()), LEAST_USUAL) if len(chosen) else LEAST_USUAL


class _Stretch:
    """The links of a part of two texts, and the words in it, numbered anew."""

    def __init__(self, words: tuple[Words, Words], judged: Runs) -> None:
        self.bounds = [(int(side[:, 0].min()), int(side[:, 1].max())) for side in judged]
        self.judged = judged[0] - self.bounds[0][0], judged[1] - self.bounds[1][0]
        self.sides, known = [], []
        for side, (first, last) in zip(words, self.bounds, strict=True):
            ends = side.ends[first : last + 1]
            numbers, ids = np.unique(side.ids[ends[0] : ends[-1]], return_inverse=True)
            self.sides.append((ids.astype(np.int64), ends - ends[0]))
            known.append(numbers)
        self.sizes = len(known[0]), len(known[1])
        pairs = _pairs_that_meet(*self.sides[0], *self.sides[1], *self.judged, self._empty())
        self.pairs = pairs  # (w, 2), in 32 bits as what follows, for there are millions
        self.nearness = np.ones(len(pairs), dtype=np.float32)  # (w,)
        src, tgt = (side.vectors for side in words)
        if src is not None and tgt is not None:
            self.nearness = _nearness(src[known[0]], tgt[known[1]], pairs)

    def judge(self, path: Runs) -> Floats:
        """See `WordModel.judge`; not scaled."""
        inside = [
            (side[:, 0] >= first) & (side[:, 1] <= last) for side, (first, last) in zip(path, self.bounds, strict=True)
        ]
        src, tgt = (side[inside[0] & inside[1]] - bounds[0] for side, bounds in zip(path, self.bounds, strict=True))
        number = self._empty()
        number[self.pairs[:, 0], self.pairs[:, 1]] = np.arange(len(self.pairs))
        one, other, back = self.sides[0], self.sides[1], np.ascontiguousarray(number.T)
        into_tgt = self._learn(one, other, (src, tgt), number, self.pairs)
        into_src = self._learn(other, one, (tgt, src), back, self.pairs[:, ::-1])
        return np.asarray(
            _explain(*one, *other, *self.judged, number, into_tgt)
            + _explain(*other, *one, *self.judged[::-1], back, into_src)
        )

    def _empty(self) -> np.ndarray:
        return np.full(self.sizes, -1, dtype=np.int32)

    def _learn(
        self, here: tuple[Ids, Ids], there: tuple[Ids, Ids], path: Runs, number: np.ndarray, pairs: np.ndarray
    ) -> Floats:
        """How many times more likely than anywhere a word of the other text is beside one of this, (w,)."""
        word, other = pairs.T
        share = np.bincount(there[0], minlength=number.shape[1]) / max(1, len(there[0]))  # (V',)
        prior = self.nearness * share[other]
        met = np.bincount(word, share[other], minlength=len(number)).astype(np.float64)  # (V,) share of the other words
        unmet = 1.0 - met
        scale = PRIOR_COUNT / (np.bincount(word, prior, minlength=len(number)) + unmet)
        prior, unmet = prior * scale[word], unmet * scale
        likely = prior / PRIOR_COUNT
        for _ in range(ROUNDS):
            counts = np.zeros(len(prior))
            _count(*here, *there, *path, number, likely, counts)
            likely = np.maximum(counts - DISCOUNT, 0) + prior
            likely /= (np.bincount(word, likely, minlength=len(number)) + unmet)[word]
        return np.asarray(likely / share[other])


@njit(cache=True)
def _pairs_that_meet(
    ids: Ids, ends: Ids, other_ids: Ids, other_ends: Ids, runs: Ids, other_runs: Ids, number: np.ndarray
) -> np.ndarray:
    """The pairs (w, 2) of words that stand in one link; numbers them in a table (V, V') of -1."""
    count = 0
    for link in range(len(runs)):
        for k in range(ends[runs[link, 0]], ends[runs[link, 1]]):
            row = number[ids[k]]
            for place in range(other_ends[other_runs[link, 0]], other_ends[other_runs[link, 1]]):
                if row[other_ids[place]] < 0:
                    row[other_ids[place]] = count
                    count += 1
    pairs = np.empty((count, 2), np.int32)
    for word in range(len(number)):
        for other in range(number.shape[1]):
            if number[word, other] >= 0:
                pairs[number[word, other]] = word, other
    return pairs


@njit(cache=True)
def _nearness(src: np.ndarray, tgt: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """How near words are by their unit vectors (V, D) and (V', D), above 0, shape (w,)."""
    near = np.empty(len(pairs), np.float32)
    for pair in range(len(pairs)):
        near[pair] = np.exp(SHARPNESS * dot(src[pairs[pair, 0]], tgt[pairs[pair, 1]]))
    return near


@njit(cache=True)
def _count(
    ids: Ids, ends: Ids, other_ids: Ids, other_ends: Ids, runs: Ids, other_runs: Ids, number: np.ndarray,
    likely: Floats, counts: Floats,
) -> None:  # fmt: skip
    """Expectation: shares each word of the other text among the words of its link."""
    for link in range(len(runs)):
        here = ids[ends[runs[link, 0]] : ends[runs[link, 1]]]
        there = other_ids[other_ends[other_runs[link, 0]] : other_ends[other_runs[link, 1]]]
        falling, rising, shares = _near_places(len(here))
        for place in range(len(there)):
            _share_places(place, len(there), falling, rising, shares)
            total = 0.0
            for k in range(len(here)):
                shares[k] *= likely[number[here[k], there[place]]]
                total += shares[k]
            if total > 0:
                for k in range(len(here)):
                    counts[number[here[k], there[place]]] += shares[k] / total


@njit(cache=True)
def _explain(
    ids: Ids, ends: Ids, other_ids: Ids, other_ends: Ids, runs: Ids, other_runs: Ids, number: np.ndarray, times: Floats
) -> Floats:
    """Sums over the other side's words of the logarithm of how much more likely they are by this side's, (b,)."""
    found = np.zeros(len(runs))
    for link in range(len(runs)):
        here = ids[ends[runs[link, 0]] : ends[runs[link, 1]]]
        there = other_ids[other_ends[other_runs[link, 0]] : other_ends[other_runs[link, 1]]]
        falling, rising, shares = _near_places(len(here))
        for place in range(len(there)):
            _share_places(place, len(there), falling, rising, shares)
            total = 0.0
            for k in range(len(here)):
                total += shares[k] * times[number[here[k], there[place]]]
            found[link] += np.log(1 - TRANSLATED + TRANSLATED * total)
    return found


@njit(cache=True)
def _near_places(count: int) -> tuple[Floats, Floats, Floats]:
    """For words of a run of so many: what makes their share fall after a place, and rise to it; room for shares."""
    places = (np.arange(count) + 0.5) / max(1, count)
    return np.exp(-IN_PLACE * places), np.exp(IN_PLACE * places), np.empty(count)


@njit(cache=True)
def _share_places(place: int, count: int, falling: Floats, rising: Floats, shares: Floats) -> None:
    """Writes how near words are to a place of the other run, exp(-IN_PLACE * distance), as shares of one."""
    there, total = (place + 0.5) / count, 0.0
    up, down = np.exp(-IN_PLACE * there), np.exp(IN_PLACE * there)
    for k in range(len(shares)):
        shares[k] = min(rising[k] * up, falling[k] * down)
        total += shares[k]
    for k in range(len(shares)):
        shares[k] /= total
