"""Words that translate each other, learnt from links: against slow oracles, and on texts whose words are known."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest

from alignments import Step, random_units
from dualmoco.alignment import lexical as lexicon
from dualmoco.alignment.aligner import Side, align_sides
from dualmoco.alignment.anchors import find_anchors
from dualmoco.alignment.lexical import (
    COUNT_DISCOUNT,
    MIN_USUAL_SCORE,
    POSITION_SHARPNESS,
    PRIOR_COUNT,
    TRANSLATED_SHARE,
    VECTOR_SHARPNESS,
    Words,
    find_cooccurrences,
    lexical_scores,
    split_words,
)
from dualmoco.core.vectors import Ids, Vectors

Text = list[list[int]]


def as_words(text: Text, vectors: Vectors | None = None) -> Words:
    """A text whose sentences are lists of numbers."""
    ends = np.cumsum([0, *map(len, text)])
    return Words(np.array([word for sentence in text for word in sentence], dtype=np.int64), ends, vectors)


def random_text(generator: np.random.Generator, count: int, vocabulary: int) -> Text:
    """Sentences of up to six words; some have none."""
    return [generator.integers(0, vocabulary, generator.integers(0, 7)).tolist() for _ in range(count)]


class SlowLexicon:
    """Model 1 with dictionaries, one direction, as lexical.py describes it."""

    def __init__(self, given: Text, said: Text, links: list[tuple[Step, Step]], nearness: dict[Step, float]) -> None:
        words = [word for sentence in said for word in sentence]
        self.share = {word: count / len(words) for word, count in Counter(words).items()}
        known = sorted({word for sentence in given for word in sentence})
        prior: dict[int, dict[int, float]] = {}
        for word in known:
            near = {other: nearness[word, other] * self.share[other] for other in self.share}
            prior[word] = {other: PRIOR_COUNT * value / sum(near.values()) for other, value in near.items()}
        counts: dict[Step, float] = defaultdict(float)
        for own, others in links:
            here = [word for sentence in given[slice(*own)] for word in sentence]
            there = [word for sentence in said[slice(*others)] for word in sentence]
            for place, other in enumerate(there):
                shares = in_place(place, len(there), len(here))
                total = sum(share * prior[word][other] for word, share in zip(here, shares, strict=True))
                for word, share in zip(here, shares, strict=True):
                    counts[word, other] += share * prior[word][other] / total
        self.likely: dict[int, dict[int, float]] = {}
        for word in known:
            row = {other: max(counts[word, other] - COUNT_DISCOUNT, 0) + prior[word][other] for other in self.share}
            self.likely[word] = {other: value / sum(row.values()) for other, value in row.items()}

    def explain(self, here: list[int], said: list[int]) -> float:
        """How much more likely some words are beside others, as the sum of logarithms."""
        total = 0.0
        for place, word in enumerate(said):
            near = zip(here, in_place(place, len(said), len(here)), strict=True)
            times = sum(share * self.likely[one][word] / self.share[word] for one, share in near)
            total += math.log(1 - TRANSLATED_SHARE + TRANSLATED_SHARE * times)
        return total


def in_place(place: int, others: int, count: int) -> list[float]:
    """How much each of so many words counts for one at a place among the others: more the nearer, 1 together."""
    near = [math.exp(-POSITION_SHARPNESS * abs((k + 0.5) / count - (place + 0.5) / others)) for k in range(count)]
    return [value / sum(near) for value in near]


@pytest.mark.parametrize("with_vectors", [False, True])
@pytest.mark.parametrize(("seed", "far"), [(0, 99), (1, 99), (2, 1)])
def test_words_of_links_by_a_slow_model(seed: int, far: int, with_vectors: bool) -> None:
    """Runs of up to two sentences, both directions, 1 for a mean link of one with one on the path.

    Where only runs near each other are judged, words that never meet are as near as unrelated ones.
    """
    generator = np.random.default_rng(seed)
    src, tgt = random_text(generator, 12, 9), random_text(generator, 11, 8)
    vectors = (random_units(generator, 9, 6), random_units(generator, 8, 6)) if with_vectors else None
    links: list[tuple[Step, Step]] = [
        ((0, 1), (0, 1)),
        ((1, 3), (1, 2)),
        ((4, 5), (2, 4)),
        ((6, 7), (5, 6)),
        ((7, 9), (7, 9)),
    ]
    runs = [
        ((i - m, i), (j - n, j))
        for i, j, m, n in product(range(1, 13), range(1, 12), (1, 2), (1, 2))
        if m <= i and n <= j and abs(i - j) <= far
    ]
    met = {pair for a, b in runs for one in src[slice(*a)] for other in tgt[slice(*b)] for pair in product(one, other)}
    near = {
        (i, j): math.exp(VECTOR_SHARPNESS * float(vectors[0][i] @ vectors[1][j])) if vectors and (i, j) in met else 1.0
        for i, j in product(range(9), range(8))
    }
    to_tgt = SlowLexicon(src, tgt, links, near)
    to_src = SlowLexicon(tgt, src, [(b, a) for a, b in links], {(j, i): value for (i, j), value in near.items()})
    expected = []
    for a, b in runs:
        here = [[word for sentence in text[slice(*run)] for word in sentence] for text, run in ((src, a), (tgt, b))]
        expected.append(to_tgt.explain(here[0], here[1]) + to_src.explain(here[1], here[0]))
    single = [expected[runs.index(link)] for link in links if link[0][1] - link[0][0] == link[1][1] - link[1][0] == 1]
    usual = max(float(np.mean(single)), MIN_USUAL_SCORE)
    words = as_words(src, vectors and vectors[0]), as_words(tgt, vectors and vectors[1])
    found = lexical_scores(*words, _arrays(runs), _arrays(links))
    np.testing.assert_allclose(found * usual, expected, rtol=2e-3, atol=2e-3)


def _arrays(links: list[tuple[Step, Step]]) -> tuple[Ids, Ids]:
    src, tgt = (np.array([link[side] for link in links], dtype=np.int64).reshape(-1, 2) for side in (0, 1))
    return src, tgt


def test_words_meet_as_far_as_links_reach() -> None:
    """Every word of a sentence with all from the first to the last sentence of its links; each pair has one number."""
    generator = np.random.default_rng(7)
    src, tgt = random_text(generator, 9, 12), random_text(generator, 9, 15)
    runs: list[tuple[Step, Step]] = [((2, 3), (1, 2)), ((2, 4), (3, 5)), ((6, 7), (4, 6))]
    vectors = random_units(generator, 12, 5), random_units(generator, 15, 5)
    met = find_cooccurrences(as_words(src, vectors[0]), as_words(tgt, vectors[1]), _arrays(runs))
    reach = {2: (1, 5), 3: (3, 5), 6: (4, 6)}
    expected = {pair for i, (low, high) in reach.items() for j in range(low, high) for pair in product(src[i], tgt[j])}
    pairs = [(met.src.distinct[one], met.tgt.distinct[other]) for one, other in met.pairs]
    assert len(pairs) == len(expected) and set(pairs) == expected
    near = [math.exp(VECTOR_SHARPNESS * float(vectors[0][one] @ vectors[1][other])) for one, other in pairs]
    np.testing.assert_allclose(met.similarity, near, rtol=1e-4)
    for i, (low, high) in reach.items():
        for k in range(met.src.ends[i - 2], met.src.ends[i - 1]):
            for place in range(met.tgt.ends[low - 1], met.tgt.ends[high - 1]):
                pair = met.pairs[met.numbers[met.rows[k] + place]]
                assert pair.tolist() == [met.src.ids[k], met.tgt.ids[place]]


def test_long_texts_have_a_lexicon_a_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learnt in one stretch is not known in another; within one nothing changes."""
    generator = np.random.default_rng(5)
    text = [[int(word) for word in generator.integers(0, 30, 5)] for _ in range(40)]
    other = [[word + 100 for word in sentence] for sentence in text]
    links: list[tuple[Step, Step]] = [((i, i + 1), (i, i + 1)) for i in range(40)]
    src, tgt = as_words(text), as_words(other)
    whole = lexical_scores(src, tgt, _arrays(links), _arrays(links))
    monkeypatch.setattr(lexicon, "LEXICON_SENTENCES", 40)
    np.testing.assert_array_equal(lexical_scores(src, tgt, _arrays(links), _arrays(links)), whole)
    monkeypatch.setattr(lexicon, "LEXICON_SENTENCES", 20)
    halves = lexical_scores(src, tgt, _arrays(links), _arrays(links))
    first = lexical_scores(as_words(text[:20]), as_words(other[:20]), _arrays(links[:20]), _arrays(links[:20]))
    ratio = halves[:20] / first
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)


def test_no_links_and_no_words() -> None:
    """A path without links, and sentences without words, are judged all the same."""
    src, tgt = as_words([[1], [], [2, 3]]), as_words([[], [5], [5, 6]])
    runs = _arrays([((0, 1), (0, 1)), ((1, 2), (1, 2)), ((2, 3), (2, 3))])
    none = np.empty((0, 2), dtype=np.int64)
    assert np.isfinite(lexical_scores(src, tgt, runs, (none, none))).all()
    assert np.isfinite(lexical_scores(src, tgt, runs, runs)).all()


def test_words_decide_where_vectors_cannot() -> None:
    """A sentence between two that are as near by their vectors goes to the one whose words it shares.

    Every third source sentence is translated in two, the other halves of which have a name that recurs: vectors of
    those halves lie between both neighbours, words say which link they belong to.
    """
    generator = np.random.default_rng(1)
    count = 240
    meanings = random_units(generator, count, 48)
    names = generator.integers(0, 25, count)
    src_text, tgt_text, tgt_vectors, expected = [], [], [], []
    for number in range(count):
        src_text.append([100 + int(generator.integers(0, 400)), int(names[number])])
        tgt_vectors.append(meanings[number])
        tgt_text.append([200 + int(generator.integers(0, 400))])
        if (
            number % 3 == 1 and number + 1 < count
        ):  # the name stands in a sentence of its own, which could be the next one's
            tgt_vectors.append(meanings[number] + meanings[number + 1])
            tgt_text.append([1000 + int(names[number])])
            expected.append((1, 2))
        else:
            tgt_text[-1].append(1000 + int(names[number]))
            expected.append((1, 1))
    tgt_units = np.array([vector / np.linalg.norm(vector) for vector in tgt_vectors], dtype=np.float32)
    anchors = find_anchors(meanings, tgt_units)
    right = {}
    for with_words in (False, True):
        words = (as_words(src_text), as_words(tgt_text)) if with_words else (None, None)
        src = Side(meanings, np.full(count, 20.0), None, words[0])
        tgt = Side(tgt_units, np.full(len(tgt_units), 20.0 * count / len(tgt_units)), None, words[1])
        links = align_sides(src, tgt, anchors)
        made = list(zip(links.src.tolist(), links.tgt.tolist(), strict=True))
        ends = np.cumsum(expected, axis=0)
        gold = [([a - m, a], [b - n, b]) for (a, b), (m, n) in zip(ends.tolist(), expected, strict=True)]
        right[with_words] = np.mean([link in made for link in gold])
    assert right[True] > 0.95 > 0.85 > right[False]


def test_english_and_chinese_have_tokens_with_vectors() -> None:
    """Words of both are near in the space of the embedded model; traditional characters are read too."""
    english, chinese = split_words((["The water.", ""], ["水", "學習"]), ("en", "zh-CN"))
    assert english.ends.tolist()[0] == 0 and english.ends[-1] == english.ends[1] == len(english.ids)
    assert english.vectors is not None and chinese.vectors is not None
    cosines = english.vectors[english.ids] @ chinese.vectors[chinese.ids[: chinese.ends[1]]].T
    assert cosines.max() > 0.5
    simplified = split_words((["x"], ["学习"]), ("en", "zh"))[1]
    assert chinese.ids[chinese.ends[1] :].tolist() == simplified.ids.tolist()


@pytest.mark.parametrize(
    ("texts", "langs"),
    [
        ((["Hund"], ["chien"]), ("de", "fr")),
        ((["犬"], ["perro"]), ("ja", "es")),
        ((["dog"], ["собака"]), ("en", "ru")),
        ((["狗"], ["Hund"]), ("zh-TW", "de")),
    ],
)
def test_words_of_many_languages_have_vectors(texts: tuple[list[str], list[str]], langs: tuple[str, str]) -> None:
    """The table of many languages is used where the table of English and Chinese lacks one of them."""
    src, tgt = split_words(texts, langs)
    assert src.vectors is not None and tgt.vectors is not None
    assert (src.vectors[src.ids] @ tgt.vectors[tgt.ids].T).max() > 0.5


def test_other_languages_have_words_or_characters() -> None:
    """Split at spaces and punctuation, or into characters; no embedded model has both languages, so no vectors."""
    swedish, japanese = split_words((["Den hund, den hund!", "Hund"], ["犬だ。OK", "犬"]), ("sv", "ja"))
    assert swedish.vectors is None and japanese.vectors is None
    assert swedish.ids.tolist() == [0, 1, 2, 0, 1, 3, 1] and swedish.ends.tolist() == [0, 6, 7]
    assert japanese.ids.tolist() == [0, 1, 2, 3, 0] and japanese.ends.tolist() == [0, 4, 5]
    mixed = split_words((["The dog"], ["Hunden"]), ("en", "sv"))
    assert mixed[0].vectors is None
