"""What the words of a link say: which words of two texts translate each other, learnt from the texts themselves.

IBM's model 1 (Brown et al., 1993), trained on the links of a first path as Moore (2002) did, with words looked for near
the same place of the other side (Dyer et al., 2013), and not from nothing: before any link is seen, a word translates
into those whose vectors are near. A count of a pair of words is lowered by
DISCOUNT, for a link that is to be judged was among those that were counted. Names, which no model knows, are learnt so.
Long texts have a lexicon for every stretch. Takes words of both texts and a path's links, gives each link a number.
Shapes: N and M sentences, V distinct words, k words of a text, D dimension, b links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dualmoco.core.vectors import Floats, Ids, Vectors

STRETCH = 1000  # source sentences that a lexicon is learnt from
ROUNDS = 4  # of expectation and maximisation
DISCOUNT = 0.7
PRIOR_COUNT = 5.0  # what nearness of vectors counts for, in words
SHARPNESS = 10.0  # of that nearness
IN_PLACE = 3.0  # how much a word is looked for in the place of its link where the other stands in its own
TRANSLATED = 0.5  # share of the words that have a translation in the link
LEAST_USUAL = 5.0  # what words say of a link of one with one, at least, for differences not to be blown up
PLACES = 4  # of cosines of words, so that a sum in another order changes nothing
Matrix = np.ndarray


@dataclass(frozen=True)
class Words:
    """The words of a text."""

    ids: Ids  # (k,) each word's number
    ends: Ids  # (N + 1,) how many words there are up to each sentence, from 0
    vectors: Vectors | None  # (V, D) unit vectors by number; None if nothing is known of them

    def part(self, first: int, last: int) -> Words:
        """Those of some sentences."""
        return Words(
            self.ids[self.ends[first] : self.ends[last]], self.ends[first : last + 1] - self.ends[first], self.vectors
        )


def link_words(src: Words, tgt: Words, links: tuple[Ids, Ids], table: tuple[Ids, Ids]) -> Floats:
    """How well the words of links translate each other.

    Args:
        src: Words of the source.
        tgt: Words of the target.
        links: Runs of both sides that a path links, shapes (l, 2), rising.
        table: Runs of both sides of the links to judge, shapes (b, 2), by rising ends of the source.

    Returns:
        Sums of the logarithms of how much more likely the words are than anywhere, 1 for a mean link of one with one
        sentence; shape (b,).
    """
    found = np.zeros(len(table[0]))
    for first in range(0, len(src.ends) - 1, STRETCH):
        here = slice(*np.searchsorted(table[0][:, 1], [first + 1, first + STRETCH + 1]))
        if here.start == here.stop:
            continue
        judged = table[0][here], table[1][here]
        bounds = [(int(side[:, 0].min()), int(side[:, 1].max())) for side in judged]
        known = _inside(links[0], bounds[0]) & _inside(links[1], bounds[1])
        found[here] = _judge(
            src.part(*bounds[0]), tgt.part(*bounds[1]), links[0][known] - bounds[0][0], links[1][known] - bounds[1][0],
            judged[0] - bounds[0][0], judged[1] - bounds[1][0],
        )  # fmt: skip
    return found / _usual(links, table, found)


def _inside(runs: Ids, bounds: tuple[int, int]) -> np.ndarray:
    """Which runs (l, 2) lie between two sentences, shape (l,)."""
    return np.asarray((runs[:, 0] >= bounds[0]) & (runs[:, 1] <= bounds[1]))


def _usual(links: tuple[Ids, Ids], table: tuple[Ids, Ids], found: Floats) -> float:
    """The mean of the links of one with one sentence that are on the path; LEAST_USUAL where words say little."""
    partner = np.full(int(table[0].max(initial=0)) + 1, -1)  # of each source sentence that the path links so
    single = (np.diff(links[0])[:, 0] == 1) & (np.diff(links[1])[:, 0] == 1)
    partner[links[0][single, 0]] = links[1][single, 0]
    alone = (np.diff(table[0])[:, 0] == 1) & (np.diff(table[1])[:, 0] == 1)
    chosen = found[alone & (partner[table[0][:, 0]] == table[1][:, 0])]
    return max(float(chosen.mean()), LEAST_USUAL) if len(chosen) else LEAST_USUAL


def _judge(src: Words, tgt: Words, src_links: Ids, tgt_links: Ids, src_runs: Ids, tgt_runs: Ids) -> Floats:
    """Numbers (b,) of the runs of a stretch, not scaled."""
    (src_ids, src_known), (tgt_ids, tgt_known) = (_renumbered(side) for side in (src, tgt))
    one, other = (src_ids, src.ends), (tgt_ids, tgt.ends)
    nearness = _nearness(src_known, tgt_known, src, tgt)
    into_tgt = _learn(*one, *other, src_links, tgt_links, nearness)
    into_src = _learn(*other, *one, tgt_links, src_links, np.ascontiguousarray(nearness.T))
    return np.asarray(
        _explain(*one, *other, src_runs, tgt_runs, into_tgt) + _explain(*other, *one, tgt_runs, src_runs, into_src)
    )


def _renumbered(words: Words) -> tuple[Ids, Ids]:
    """Words (k,) by numbers without gaps, and the numbers (V,) that they had."""
    known, ids = np.unique(words.ids, return_inverse=True)
    return ids.astype(np.int64), known


def _nearness(src_known: Ids, tgt_known: Ids, src: Words, tgt: Words) -> Matrix:
    """How near words are by their vectors, (V, V') above 0; all alike where there are none."""
    if src.vectors is None or tgt.vectors is None:
        return np.ones((len(src_known), len(tgt_known)), dtype=np.float32)
    cosines = src.vectors[src_known] @ tgt.vectors[tgt_known].T
    return np.exp(SHARPNESS * np.round(cosines, PLACES), dtype=np.float32)


def _learn(
    ids: Ids, ends: Ids, other_ids: Ids, other_ends: Ids, runs: Ids, other_runs: Ids, nearness: Matrix
) -> Matrix:
    """How many times more likely a word of the other text is beside one of this, (V, V')."""
    share = np.bincount(other_ids, minlength=nearness.shape[1]).astype(np.float32) / max(1, len(other_ids))  # (V',)
    prior = nearness * share
    prior *= PRIOR_COUNT / prior.sum(axis=1, keepdims=True)
    likely = prior / PRIOR_COUNT
    for _ in range(ROUNDS):
        counts = np.zeros_like(prior)
        _count(ids, ends, other_ids, other_ends, runs, other_runs, likely, counts)
        _estimate(counts, prior, likely)
    return np.asarray(likely / share)


@njit(cache=True)
def _count(
    ids: Ids, ends: Ids, other_ids: Ids, other_ends: Ids, runs: Ids, other_runs: Ids, likely: Matrix, counts: Matrix
) -> None:
    """Expectation: shares each word of the other text among the words of its link."""
    for link in range(len(runs)):
        here = ids[ends[runs[link, 0]] : ends[runs[link, 1]]]
        there = other_ids[other_ends[other_runs[link, 0]] : other_ends[other_runs[link, 1]]]
        falling, rising, shares = _near_places(len(here))
        for place in range(len(there)):
            _share_places(place, len(there), falling, rising, shares)
            word, total = there[place], 0.0
            for k in range(len(here)):
                total += shares[k] * likely[here[k], word]
            if total > 0:
                for k in range(len(here)):
                    counts[here[k], word] += shares[k] * likely[here[k], word] / total


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


@njit(cache=True)
def _estimate(counts: Matrix, prior: Matrix, likely: Matrix) -> None:
    """Maximisation: lowered counts and those of the prior, as shares of a word's row."""
    for word in range(len(counts)):
        total = 0.0
        for other in range(counts.shape[1]):
            value = max(counts[word, other] - DISCOUNT, 0.0) + prior[word, other]
            likely[word, other] = value
            total += value
        for other in range(counts.shape[1]):
            likely[word, other] /= total


@njit(cache=True)
def _explain(ids: Ids, ends: Ids, other_ids: Ids, other_ends: Ids, runs: Ids, other_runs: Ids, times: Matrix) -> Floats:
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
                total += shares[k] * times[here[k], there[place]]
            found[link] += np.log(1 - TRANSLATED + TRANSLATED * total)
    return found
