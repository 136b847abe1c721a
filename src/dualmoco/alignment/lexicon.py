"""What the words of a link say: which words of two texts translate each other, learnt from the texts themselves.

IBM's model 1 (Brown et al., 1993), trained on the links of a first path as Moore (2002) did, with words looked for near
the same place of the other side (Dyer et al., 2013), and not from nothing: before any link is seen, a word translates
into those whose vectors are near. One round of expectation and maximisation is enough (docs/align.md). A count of a
pair of words is lowered by DISCOUNT, for a link that is to be judged was among those that were counted. Names, which no
model knows, are learnt so. Long texts have a lexicon for every stretch. Only pairs of words that meet near the path are
kept (meetings.py); others are taken to have nothing to do with each other. Takes words of both texts and links, gives
each link a number. Shapes: N sentences, V distinct words, k words of a text, b links, w pairs of words that meet;
what has (..., 2) is of both directions: of target words beside source words, and the other way round.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dualmoco.alignment.meetings import Meetings, Runs, Words, find_meetings
from dualmoco.core.vectors import Floats, Ids

STRETCH = 500  # source sentences that a lexicon is learnt from
DISCOUNT = 0.7
PRIOR_COUNT = 5.0  # what nearness of vectors counts for, in words
IN_PLACE = 3.0  # how much a word is looked for in the place of its link where the other stands in its own
TRANSLATED = 0.5  # share of the words that have a translation in the link
LEAST_USUAL = 5.0  # what words say of a link of one with one, at least, for differences not to be blown up


def judge_links(src: Words, tgt: Words, judged: Runs, path: Runs) -> Floats:
    """How well the words of links translate each other, learnt from those that a path takes.

    Args:
        src: Words of the source.
        tgt: Words of the target.
        judged: The links, by rising ends of the source.
        path: Those of them that the path takes, in its order.

    Returns:
        Sums of the logarithms of how much more likely the words are than anywhere, 1 for a mean link of one with one
        sentence on the path; shape (b,).
    """
    found = np.zeros(len(judged[0]))
    for first in range(0, len(src.ends) - 1, STRETCH):
        here, taken = (
            slice(*np.searchsorted(links[0][:, 1], [first + 1, first + STRETCH + 1])) for links in (judged, path)
        )
        if here.start < here.stop:
            own, learnt = (judged[0][here], judged[1][here]), (path[0][taken], path[1][taken])
            found[here] = _judge_stretch(find_meetings(src, tgt, own), own, learnt)
    return found / _usual(judged, path, found)


def _judge_stretch(met: Meetings, judged: Runs, path: Runs) -> Floats:
    """See `judge_links`; not scaled."""
    src, tgt = (np.bincount(part.ids, minlength=part.size) / max(1, len(part.ids)) for part in (met.src, met.tgt))
    prior, src_unmet, tgt_unmet = _prior(met.pairs, met.nearness, src, tgt)
    counts = _count(met.rows, met.numbers, *_places(met, path), prior)
    times = _times(met.pairs, counts, prior, src, tgt, src_unmet, tgt_unmet)
    return np.asarray(_explain(met.rows, met.numbers, *_places(met, judged), times))


def _places(met: Meetings, links: Runs) -> Runs:
    """Words of links on either side, each from one to before another, shapes (b, 2)."""
    return met.src.ends[links[0] - met.src.first], met.tgt.ends[links[1] - met.tgt.first]


def _usual(judged: Runs, path: Runs, found: Floats) -> float:
    """The mean of the links of one with one sentence that are on the path; LEAST_USUAL where words say little."""
    partner = np.full(int(judged[0].max(initial=0)) + 1, -1)  # of each source sentence that the path links so
    single = (np.diff(path[0])[:, 0] == 1) & (np.diff(path[1])[:, 0] == 1)
    partner[path[0][single, 0]] = path[1][single, 0]
    alone = (np.diff(judged[0])[:, 0] == 1) & (np.diff(judged[1])[:, 0] == 1)
    chosen = found[alone & (partner[judged[0][:, 0]] == judged[1][:, 0])]
    return max(float(chosen.mean()), LEAST_USUAL) if len(chosen) else LEAST_USUAL


@njit(cache=True)
def _prior(
    pairs: np.ndarray, nearness: np.ndarray, src_shares: Floats, tgt_shares: Floats
) -> tuple[np.ndarray, Floats, Floats]:
    """What is known before any link: counts (w, 2), and those of all words that a word does not meet, (V,), (V')."""
    prior = np.empty((len(pairs), 2), np.float32)
    src_unmet, tgt_unmet = np.ones(len(src_shares)), np.ones(len(tgt_shares))
    src_sums, tgt_sums = np.zeros(len(src_shares)), np.zeros(len(tgt_shares))
    for pair in range(len(pairs)):
        word, other = pairs[pair, 0], pairs[pair, 1]
        prior[pair, 0], prior[pair, 1] = nearness[pair] * tgt_shares[other], nearness[pair] * src_shares[word]
        src_sums[word] += prior[pair, 0]
        tgt_sums[other] += prior[pair, 1]
        src_unmet[word] -= tgt_shares[other]
        tgt_unmet[other] -= src_shares[word]
    src_scales, tgt_scales = PRIOR_COUNT / (src_sums + src_unmet), PRIOR_COUNT / (tgt_sums + tgt_unmet)
    for pair in range(len(pairs)):
        prior[pair, 0] *= src_scales[pairs[pair, 0]]
        prior[pair, 1] *= tgt_scales[pairs[pair, 1]]
    return prior, src_unmet * src_scales, tgt_unmet * tgt_scales


@njit(cache=True)
def _count(rows: Ids, numbers: np.ndarray, src: Ids, tgt: Ids, prior: np.ndarray) -> np.ndarray:
    """Expectation: how often words of links translate words, (w, 2); each is shared among those of the other side."""
    counts = np.zeros_like(prior)
    for link in range(len(src)):
        first, other_first = src[link, 0], tgt[link, 0]
        rise, fall = _near_places(src[link, 1] - first)
        other_rise, other_fall = _near_places(tgt[link, 1] - other_first)
        own, others = np.zeros_like(rise), np.zeros_like(other_rise)  # sums of what is shared, of each word
        for k in range(len(rise)):
            start = rows[first + k] + other_first
            for place in range(len(other_rise)):
                pair = numbers[start + place]
                near = min(rise[k] * other_fall[place], fall[k] * other_rise[place])
                others[place] += near * prior[pair, 0]
                own[k] += near * prior[pair, 1]
        for k in range(len(rise)):
            start = rows[first + k] + other_first
            for place in range(len(other_rise)):
                pair = numbers[start + place]
                near = min(rise[k] * other_fall[place], fall[k] * other_rise[place])
                counts[pair, 0] += near * prior[pair, 0] / others[place]
                counts[pair, 1] += near * prior[pair, 1] / own[k]
    return counts


@njit(cache=True)
def _times(
    pairs: np.ndarray, counts: np.ndarray, prior: np.ndarray, src_shares: Floats, tgt_shares: Floats,
    src_unmet: Floats, tgt_unmet: Floats,
) -> np.ndarray:  # fmt: skip
    """Maximisation: how many times more likely than anywhere words are beside words, (w, 2)."""
    times = np.empty_like(prior)
    src_sums, tgt_sums = src_unmet.copy(), tgt_unmet.copy()
    for pair in range(len(pairs)):
        times[pair, 0] = max(counts[pair, 0] - DISCOUNT, 0) + prior[pair, 0]
        times[pair, 1] = max(counts[pair, 1] - DISCOUNT, 0) + prior[pair, 1]
        src_sums[pairs[pair, 0]] += times[pair, 0]
        tgt_sums[pairs[pair, 1]] += times[pair, 1]
    for pair in range(len(pairs)):
        word, other = pairs[pair, 0], pairs[pair, 1]
        times[pair, 0] /= src_sums[word] * tgt_shares[other]
        times[pair, 1] /= tgt_sums[other] * src_shares[word]
    return times


@njit(cache=True)
def _explain(rows: Ids, numbers: np.ndarray, src: Ids, tgt: Ids, times: np.ndarray) -> Floats:
    """Sums over the words of both sides of the logarithm of how much more likely they are by the other side's, (b,)."""
    found = np.zeros(len(src))
    for link in range(len(src)):
        first, other_first = src[link, 0], tgt[link, 0]
        rise, fall = _near_places(src[link, 1] - first)
        other_rise, other_fall = _near_places(tgt[link, 1] - other_first)
        sums, near_sums = np.zeros_like(other_rise), np.zeros_like(other_rise)
        for k in range(len(rise)):
            start, own, near_own = rows[first + k] + other_first, np.float32(0), np.float32(0)
            for place in range(len(other_rise)):
                pair = numbers[start + place]
                near = min(rise[k] * other_fall[place], fall[k] * other_rise[place])
                sums[place] += near * times[pair, 0]
                own += near * times[pair, 1]
                near_sums[place] += near
                near_own += near
            found[link] += np.log(1 - TRANSLATED + (TRANSLATED * own / near_own if near_own > 0 else 0.0))
        for place in range(len(other_rise)):
            share = sums[place] / near_sums[place] if near_sums[place] > 0 else 0.0
            found[link] += np.log(1 - TRANSLATED + TRANSLATED * share)
    return found


@njit(cache=True)
def _near_places(count: int) -> tuple[np.ndarray, np.ndarray]:
    """For words of a run of so many, by place from 0 to 1: exp(IN_PLACE * place) and what it is multiplied with for 1.

    The lower one of two words' products, one's rise with the other's fall, is exp(-IN_PLACE * distance).
    """
    places = (np.arange(count) + 0.5) / max(1, count)
    return np.exp(IN_PLACE * places).astype(np.float32), np.exp(-IN_PLACE * places).astype(np.float32)
