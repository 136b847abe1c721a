"""Lexical scores of links: how well their words translate each other, according to IBM Model 1.

Translation probabilities are learned from the links of a preliminary path, separately for every few hundred sentences,
with one round of expectation and maximization. Texts are split into the tokens of the embedded static model that has
both languages. Its vectors give the prior: words with similar vectors are assumed to be translations. Without such a
model, texts are split into words, or into characters if they are written without spaces, and the prior is uniform.

Shapes: N sentences, k words of a text, V distinct words, D dimension, b links, w pairs of words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

import numpy as np
from numba import njit

from dualmoco.alignment.scoring import dots
from dualmoco.core.vectors import Floats, Ids, Vectors, unit_vectors
from dualmoco.models.backends.static import StaticBackend
from dualmoco.models.embedded import static_model
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.text.languages import WITHOUT_SPACES, base_language

SPACED_WORD = re.compile(r"\w+|[^\w\s]")
UNSPACED_WORD = re.compile(r"[a-z0-9]+|\S")
ALPHABET_LETTERS = re.compile("[A-Za-z0-9\u00c0-\u052f]{2}")

Spans = tuple[Ids, Ids]  # source and target spans of links, as first sentence and end (exclusive), shapes (b, 2)


@dataclass(frozen=True)
class Words:
    """The words of a text."""

    ids: Ids  # (k,) number of each word in the vocabulary
    ends: Ids  # (N + 1,) number of words before each sentence, then of all words
    vectors: Vectors | None  # (V, D) unit vectors by number; None if there are none


def split_words(sentences: tuple[Sequence[str], Sequence[str]], langs: tuple[str, str]) -> tuple[Words, Words]:
    """The words of the source and of the target; they have vectors if an embedded static model has both languages."""
    name = static_model(langs)
    split = partial(_model_tokens, name=name) if name else _plain_words
    return split(sentences[0], base_language(langs[0])), split(sentences[1], base_language(langs[1]))


def _model_tokens(sentences: Sequence[str], lang: str, name: str) -> Words:
    model = _token_model(name)
    backend, vectors = _token_table(lang, name)
    tokens = backend.words.tokens(model.conversion.apply(list(sentences), lang))
    return Words(tokens.ids, np.append(0, np.cumsum(tokens.lengths)), vectors)


@cache
def _token_model(name: str) -> Model:
    return open_model(name)


@cache
def _token_table(lang: str, name: str) -> tuple[StaticBackend, Vectors]:
    backend = _token_model(name).backend(lang)
    assert isinstance(backend, StaticBackend)
    return backend, unit_vectors(backend.table)


def _plain_words(sentences: Sequence[str], lang: str) -> Words:
    pattern = UNSPACED_WORD if lang in WITHOUT_SPACES else SPACED_WORD
    words = [pattern.findall(sentence.lower()) for sentence in sentences]
    number = {word: place for place, word in enumerate(dict.fromkeys(chain.from_iterable(words)))}
    ends = np.cumsum([0, *map(len, words)], dtype=np.int64)
    ids = np.fromiter(map(number.__getitem__, chain.from_iterable(words)), dtype=np.int64, count=int(ends[-1]))
    return Words(ids, ends, None)


LEXICON_SENTENCES = 500  # source sentences that share a lexicon
COUNT_DISCOUNT = 0.7  # subtracted from counts, because the scored link contributed to them
PRIOR_COUNT = 5.0  # weight of the prior, in words
VECTOR_SHARPNESS = 10.0  # the prior is proportional to exp(VECTOR_SHARPNESS * cosine)
POSITION_SHARPNESS = 3.0  # preference for words at the same relative position in both spans
TRANSLATED_SHARE = 0.5  # share of the words that have a translation in their link
MIN_USUAL_SCORE = 20.0  # lower limit of the scale: a lexicon that explains little has little weight


def lexical_scores(src: Words, tgt: Words, candidates: Spans, path: Spans) -> Floats:
    """Scores candidate links, ordered by the end of their source span, with a lexicon learned from a path's links.

    The score of a link is a sum over its words: the log ratio of a word's probability given the other side to its
    probability anywhere in the text. Scores (b,) are divided by the mean of the 1-1 links on the path.
    """
    scores = np.zeros(len(candidates[0]))
    for first in range(0, len(src.ends) - 1, LEXICON_SENTENCES):
        here, learned = (
            slice(*np.searchsorted(links[0][:, 1], [first + 1, first + LEXICON_SENTENCES + 1]))
            for links in (candidates, path)
        )
        if here.start < here.stop:
            own = candidates[0][here], candidates[1][here]
            scores[here] = _score_part(find_cooccurrences(src, tgt, own), own, (path[0][learned], path[1][learned]))
    return scores / _usual_score(candidates, path, scores)


def _score_part(met: Cooccurrences, candidates: Spans, path: Spans) -> Floats:
    """Lexical scores of the links in one part of the documents, before scaling."""
    shares = _word_shares(met.src), _word_shares(met.tgt)
    prior, rest = _prior_counts(met.pairs, met.similarity, shares)
    counts = _expected_counts(met.rows, met.numbers, *_word_spans(met, path), prior)
    ratios = _probability_ratios(met.pairs, counts, prior, shares, rest)
    return np.asarray(_sum_log_ratios(met.rows, met.numbers, *_word_spans(met, candidates), ratios))


def _word_shares(part: TextPart) -> Floats:
    return np.asarray(np.bincount(part.ids, minlength=len(part.distinct)) / max(1, len(part.ids)))


def _word_spans(met: Cooccurrences, links: Spans) -> Spans:
    """First word and end (exclusive) of each link's source and target, shapes (b, 2)."""
    return met.src.ends[links[0] - met.src.first], met.tgt.ends[links[1] - met.tgt.first]


def _usual_score(candidates: Spans, path: Spans, scores: Floats) -> float:
    """Mean score of the 1-1 links on the path, at least MIN_USUAL_SCORE."""
    partner = np.full(int(candidates[0].max(initial=0)) + 1, -1)  # target sentence of each 1-1 linked source sentence
    on_path, single = ((np.diff(links[0]) == 1)[:, 0] & (np.diff(links[1]) == 1)[:, 0] for links in (path, candidates))
    partner[path[0][on_path, 0]] = path[1][on_path, 0]
    chosen = scores[single & (partner[candidates[0][:, 0]] == candidates[1][:, 0])]
    return max(float(chosen.mean()), MIN_USUAL_SCORE) if len(chosen) else MIN_USUAL_SCORE


@dataclass(frozen=True)
class TextPart:
    """The words of consecutive sentences, numbered by first appearance."""

    first: int  # number of the first sentence
    ids: np.ndarray  # (k,), int32 because there are millions of pairs
    ends: Ids  # (N + 1,)
    distinct: Ids  # (V,) numbers of the words in the whole text


@dataclass(frozen=True)
class Cooccurrences:
    """Distinct pairs of a source and a target word that occur in the same link, ordered by source word."""

    src: TextPart
    tgt: TextPart
    pairs: np.ndarray  # (w, 2)
    similarity: np.ndarray  # (w,) exp of the scaled cosine; 1 if words have no vectors
    rows: Ids  # (k,) the k-th source and the j-th target word are pair number numbers[rows[k] + j]
    numbers: np.ndarray  # one entry per source word and target word within its reach


def find_cooccurrences(src: Words, tgt: Words, links: Spans) -> Cooccurrences:
    """The pairs of words that occur in at least one of some links."""
    one, other = _take_part(src, links[0]), _take_part(tgt, links[1])
    low, high = _reach(links[0] - one.first, links[1] - other.first, len(one.ends) - 1)
    if src.vectors is None or tgt.vectors is None:  # vectors of dimension 0 have products of 0, hence a uniform prior
        vectors = [np.zeros((len(part.distinct), 0), dtype=np.float32) for part in (one, other)]
    else:
        vectors = [src.vectors[one.distinct], tgt.vectors[other.distinct]]
    return Cooccurrences(one, other, *_pair_words((one.ids, one.ends), (other.ids, other.ends), (low, high), *vectors))


def _take_part(words: Words, spans: Ids) -> TextPart:
    first, last = int(spans[:, 0].min()), int(spans[:, 1].max())
    ends = words.ends[first : last + 1]
    ids = words.ids[ends[0] : ends[-1]]
    new, distinct = _renumber(ids, int(ids.max(initial=-1)) + 1)
    return TextPart(first, new, ends - ends[0], distinct)


@njit(cache=True)
def _renumber(ids: Ids, most: int) -> tuple[np.ndarray, Ids]:
    """Numbers of words (k,), all below `most`, by first appearance; and the old number of each, (V,)."""
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
    """The first target sentence and end (exclusive) of all links (b, 2) of each source sentence, shapes (N,)."""
    low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for link in range(len(src)):
        for sentence in range(src[link, 0], src[link, 1]):
            if high[sentence] == 0:
                low[sentence] = tgt[link, 0]
            low[sentence] = min(low[sentence], tgt[link, 0])
            high[sentence] = max(high[sentence], tgt[link, 1])
    return low, high


@njit(cache=True)
def _pair_words(
    src: tuple[np.ndarray, Ids],
    tgt: tuple[np.ndarray, Ids],
    reach: tuple[Ids, Ids],
    vectors: np.ndarray,
    other_vectors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, Ids, np.ndarray]:
    """The last four fields of `Cooccurrences`; handles all occurrences of a source word together."""
    (ids, ends), (other_ids, other_ends), (low, high) = src, tgt, reach
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
        near[pair] = np.exp(np.float32(VECTOR_SHARPNESS) * near[pair])
    return pairs[:count].copy(), near[:count].copy(), rows, numbers


# In arrays of shape (w, 2), column 0 is about target words given source words, column 1 about the opposite direction.


@njit(cache=True)
def _prior_counts(
    pairs: np.ndarray, similarity: np.ndarray, shares: tuple[Floats, Floats]
) -> tuple[np.ndarray, tuple[Floats, Floats]]:
    """Prior counts of pairs, (w, 2), and those of all words that each source or target word does not meet, (V,)."""
    src_shares, tgt_shares = shares
    prior = np.empty((len(pairs), 2), np.float32)
    src_rest, tgt_rest = np.ones(len(src_shares)), np.ones(len(tgt_shares))
    src_sums, tgt_sums = np.zeros(len(src_shares)), np.zeros(len(tgt_shares))
    for pair in range(len(pairs)):
        word, other = pairs[pair, 0], pairs[pair, 1]
        prior[pair, 0], prior[pair, 1] = similarity[pair] * tgt_shares[other], similarity[pair] * src_shares[word]
        src_sums[word] += prior[pair, 0]
        tgt_sums[other] += prior[pair, 1]
        src_rest[word] -= tgt_shares[other]
        tgt_rest[other] -= src_shares[word]
    src_scales, tgt_scales = PRIOR_COUNT / (src_sums + src_rest), PRIOR_COUNT / (tgt_sums + tgt_rest)
    for pair in range(len(pairs)):
        prior[pair, 0] *= src_scales[pairs[pair, 0]]
        prior[pair, 1] *= tgt_scales[pairs[pair, 1]]
    return prior, (src_rest * src_scales, tgt_rest * tgt_scales)


@njit(cache=True)
def _expected_counts(rows: Ids, numbers: np.ndarray, src: Ids, tgt: Ids, prior: np.ndarray) -> np.ndarray:
    """Expectation: how often words translate each other in links, (w, 2)."""
    counts = np.zeros_like(prior)
    for link in range(len(src)):
        first, other_first = src[link, 0], tgt[link, 0]
        rise, fall = _position_weights(src[link, 1] - first)
        other_rise, other_fall = _position_weights(tgt[link, 1] - other_first)
        sums, other_sums = np.zeros_like(rise), np.zeros_like(other_rise)  # by which each word's shares are divided
        for k in range(len(rise)):
            start = rows[first + k] + other_first
            for place in range(len(other_rise)):
                pair = numbers[start + place]
                near = min(rise[k] * other_fall[place], fall[k] * other_rise[place])
                other_sums[place] += near * prior[pair, 0]
                sums[k] += near * prior[pair, 1]
        for k in range(len(rise)):
            start = rows[first + k] + other_first
            for place in range(len(other_rise)):
                pair = numbers[start + place]
                near = min(rise[k] * other_fall[place], fall[k] * other_rise[place])
                counts[pair, 0] += near * prior[pair, 0] / other_sums[place]
                counts[pair, 1] += near * prior[pair, 1] / sums[k]
    return counts


@njit(cache=True)
def _probability_ratios(
    pairs: np.ndarray, counts: np.ndarray, prior: np.ndarray, shares: tuple[Floats, Floats], rest: tuple[Floats, Floats]
) -> np.ndarray:
    """Maximization: probability of a word given the other word, divided by its share of the text, (w, 2)."""
    ratios, (src_shares, tgt_shares) = np.empty_like(prior), shares
    src_sums, tgt_sums = rest[0].copy(), rest[1].copy()
    for pair in range(len(pairs)):
        ratios[pair, 0] = max(counts[pair, 0] - COUNT_DISCOUNT, 0) + prior[pair, 0]
        ratios[pair, 1] = max(counts[pair, 1] - COUNT_DISCOUNT, 0) + prior[pair, 1]
        src_sums[pairs[pair, 0]] += ratios[pair, 0]
        tgt_sums[pairs[pair, 1]] += ratios[pair, 1]
    for pair in range(len(pairs)):
        word, other = pairs[pair, 0], pairs[pair, 1]
        ratios[pair, 0] /= src_sums[word] * tgt_shares[other]
        ratios[pair, 1] /= tgt_sums[other] * src_shares[word]
    return ratios


@njit(cache=True)
def _sum_log_ratios(rows: Ids, numbers: np.ndarray, src: Ids, tgt: Ids, ratios: np.ndarray) -> Floats:
    """Sums over the words of both sides of each link of the log of their probability ratio, (b,)."""
    scores = np.zeros(len(src))
    for link in range(len(src)):
        first, other_first = src[link, 0], tgt[link, 0]
        rise, fall = _position_weights(src[link, 1] - first)
        other_rise, other_fall = _position_weights(tgt[link, 1] - other_first)
        other_sums, other_weights = np.zeros_like(other_rise), np.zeros_like(other_rise)
        for k in range(len(rise)):
            start, total, weight = rows[first + k] + other_first, np.float32(0), np.float32(0)
            for place in range(len(other_rise)):
                pair = numbers[start + place]
                near = min(rise[k] * other_fall[place], fall[k] * other_rise[place])
                other_sums[place] += near * ratios[pair, 0]
                total += near * ratios[pair, 1]
                other_weights[place] += near
                weight += near
            mean = TRANSLATED_SHARE * total / weight if weight > 0 else 0.0
            scores[link] += np.log(1 - TRANSLATED_SHARE + mean)
        for place in range(len(other_rise)):
            mean = other_sums[place] / other_weights[place] if other_weights[place] > 0 else 0.0
            scores[link] += np.log(1 - TRANSLATED_SHARE + TRANSLATED_SHARE * mean)
    return scores


@njit(cache=True)
def _position_weights(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Exp and its inverse of the scaled relative position, from 0 to 1, of each word of a span.

    The smaller product of one word's first weight with the other's second is exp(-POSITION_SHARPNESS * distance).
    """
    places = (np.arange(count) + 0.5) / max(1, count)
    rise, fall = np.exp(POSITION_SHARPNESS * places), np.exp(-POSITION_SHARPNESS * places)
    return rise.astype(np.float32), fall.astype(np.float32)


# Words of a link that translate each other, for display

TRANSLATION_RATIO = 3.0  # minimum ratio of a word's probability given the other word to its probability anywhere
CharacterSpan = tuple[int, int]


def translated_words(
    texts: Sequence[tuple[str, str]], langs: tuple[str, str], chosen: int
) -> list[tuple[CharacterSpan, CharacterSpan]]:
    """Which words of a link translate each other, as spans of characters in its source and in its target.

    Two words do if each is the other's most likely translation in the link. Probabilities are learned from all links.

    Args:
        texts: Source and target of some links; links around the chosen one are enough.
        langs: Languages of both sides.
        chosen: Number of the link.
    """
    src, tgt = split_words(([src for src, _ in texts], [tgt for _, tgt in texts]), langs)
    places = np.arange(len(texts), dtype=np.int64)
    spans = np.stack([places, places + 1], axis=1)
    name = static_model(langs)
    offsets = [_word_offsets(text, base_language(lang), name) for text, lang in zip(texts[chosen], langs, strict=True)]
    counts = [int(words.ends[chosen + 1] - words.ends[chosen]) for words in (src, tgt)]
    if not all(counts) or [len(found) for found in offsets] != counts:
        return []  # the conversion of the text changed its length
    met = find_cooccurrences(src, tgt, (spans, spans))
    shares = _word_shares(met.src), _word_shares(met.tgt)
    prior, rest = _prior_counts(met.pairs, met.similarity, shares)
    expected = _expected_counts(met.rows, met.numbers, *_word_spans(met, (spans, spans)), prior)
    ratios = _probability_ratios(met.pairs, expected, prior, shares, rest)
    first, other = int(met.src.ends[chosen]), int(met.tgt.ends[chosen])
    numbers = met.numbers[met.rows[first : first + counts[0], None] + other + np.arange(counts[1])]
    table = np.sqrt(ratios[numbers].prod(axis=2))  # (k, j)
    one, two = table.argmax(axis=1), table.argmax(axis=0)
    found = [(k, int(j)) for k, j in enumerate(one) if two[j] == k and table[k, j] >= TRANSLATION_RATIO]
    pairs = [tuple(_whole_word(texts[chosen][side], offsets[side][pair[side]]) for side in (0, 1)) for pair in found]
    return [(src_span, tgt_span) for src_span, tgt_span in dict.fromkeys(pairs) if src_span and tgt_span]


def _word_offsets(text: str, lang: str, name: str | None) -> list[CharacterSpan]:
    """Positions of the words of `split_words` in a text, whose words are the tokens of a model if it has a name."""
    if name is None:
        pattern = UNSPACED_WORD if lang in WITHOUT_SPACES else SPACED_WORD
        return [match.span() for match in pattern.finditer(text.lower())]
    converted = _token_model(name).conversion.apply([text], lang)[0]
    if len(converted) != len(text):
        return []
    encoding = _token_table(lang, name)[0].words.tokenizer.encode(converted, add_special_tokens=False)
    return [(int(start), int(end)) for start, end in encoding.offsets]


def _whole_word(text: str, span: CharacterSpan) -> CharacterSpan | None:
    """The word of letters with spaces around it that a span is part of; None if the span has no letters."""
    start, end = span
    if not any(map(str.isalnum, text[start:end])):
        return None
    while start and text[start - 1].isalnum() and ALPHABET_LETTERS.match(text[start - 1 : start + 1]):
        start -= 1
    while end < len(text) and text[end].isalnum() and ALPHABET_LETTERS.match(text[end - 1 : end + 1]):
        end += 1
    return start, end
