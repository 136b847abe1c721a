"""The words of a text, for the lexicon of a pair of documents.

Takes sentences of a language, gives `Words`. English and Chinese are cut into the tokens of the static model that comes
with dualmoco, which has vectors for them in one space; other languages into words, or characters where words are not
written apart, of which nothing is known beforehand. Shapes: N sentences, V distinct words, D dimension.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
from numba import njit

from dualmoco.alignment.scoring import dots
from dualmoco.core.vectors import Floats, Ids, Vectors, unit_vectors
from dualmoco.models.backends.static import StaticBackend
from dualmoco.models.embedded import FAST_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.text.languages import WITHOUT_SPACES, base_language

TOKEN_LANGUAGES = {"en", "zh"}
"""Of FAST_MODEL."""
WORD = re.compile(r"\w+|[^\w\s]")
CHARACTER = re.compile(r"[a-z0-9]+|\S")


def cut_words(sentences: tuple[Sequence[str], Sequence[str]], langs: tuple[str, str]) -> tuple[Words, Words]:
    """The words of two texts.

    Args:
        sentences: Of both.
        langs: Their languages.

    Returns:
        The words of both, with vectors of one space if the embedded model has both languages.
    """
    src, tgt = map(base_language, langs)
    if {src, tgt} <= TOKEN_LANGUAGES:
        return _tokens(sentences[0], src), _tokens(sentences[1], tgt)
    return _plain_words(sentences[0], src), _plain_words(sentences[1], tgt)


@cache
def _token_model() -> Model:
    return open_model(FAST_MODEL)


def _token_table(lang: str) -> StaticBackend:
    backend = _token_model().backend(lang)
    assert isinstance(backend, StaticBackend)
    return backend


@cache
def _token_vectors(lang: str) -> Vectors:
    return unit_vectors(_token_table(lang).table)


def _tokens(sentences: Sequence[str], lang: str) -> Words:
    converted = _token_model().conversion.apply(list(sentences), lang)
    return _words(_token_table(lang).words.tokens(converted), _token_vectors(lang))


def _plain_words(sentences: Sequence[str], lang: str) -> Words:
    pattern = CHARACTER if lang in WITHOUT_SPACES else WORD
    cut = [pattern.findall(sentence.lower()) for sentence in sentences]
    number = {word: place for place, word in enumerate(dict.fromkeys(chain.from_iterable(cut)))}
    return _words([[number[word] for word in words] for words in cut], None)


def _words(cut: Sequence[Sequence[int]], vectors: Vectors | None) -> Words:
    ends = np.cumsum([0, *map(len, cut)], dtype=np.int64)
    ids = np.fromiter(chain.from_iterable(cut), dtype=np.int64, count=int(ends[-1]))
    return Words(ids, ends, vectors)


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
class Cooccurrences:
    """Pairs of words that meet, by source word."""

    src: Part
    tgt: Part
    pairs: np.ndarray  # (w, 2)
    nearness: np.ndarray  # (w,) above 0; 1 where nothing is known of words
    rows: Ids  # (k,) the pair of source word k and target word j has the number numbers[rows[k] + j]
    numbers: np.ndarray  # (sum of what each source word meets,)


def find_meetings(src: Words, tgt: Words, links: Runs) -> Cooccurrences:
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
    return Cooccurrences(one, other, *_meet(one.ids, one.ends, other.ids, other.ends, low, high, *vectors))


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
    ids: np.ndarray,
    ends: Ids,
    other_ids: np.ndarray,
    other_ends: Ids,
    low: Ids,
    high: Ids,
    vectors: np.ndarray,
    other_vectors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, Ids, np.ndarray]:
    """The pairs, their nearness, rows and numbers of `Cooccurrences`; takes all places of a source word together."""
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


def _judge_stretch(met: Cooccurrences, judged: Runs, path: Runs) -> Floats:
    """See `judge_links`; not scaled."""
    src, tgt = (np.bincount(part.ids, minlength=part.size) / max(1, len(part.ids)) for part in (met.src, met.tgt))
    prior, src_unmet, tgt_unmet = _prior(met.pairs, met.nearness, src, tgt)
    counts = _count(met.rows, met.numbers, *_places(met, path), prior)
    times = _times(met.pairs, counts, prior, src, tgt, src_unmet, tgt_unmet)
    return np.asarray(_explain(met.rows, met.numbers, *_places(met, judged), times))


def _places(met: Cooccurrences, links: Runs) -> Runs:
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
    pairs: np.ndarray,
    counts: np.ndarray,
    prior: np.ndarray,
    src_shares: Floats,
    tgt_shares: Floats,
    src_unmet: Floats,
    tgt_unmet: Floats,
) -> np.ndarray:
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
