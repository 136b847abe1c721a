from __future__ import annotations

import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmoco.core.errors import DataError
from dualmoco.data import decontamination
from dualmoco.data.decontamination import Exclusion, hash_ngrams, read_test_sets
from dualmoco.data.text_column import TextColumn, sentence_ids
from dualmoco.text.characters import normalize

pytestmark = pytest.mark.usefixtures("character_tables")


def jaccard_by_hand(one: str, other: str, ngram: int) -> float:
    bags = []
    for text in (normalize(one), normalize(other)):
        bags.append(Counter(text[start : start + ngram] for start in range(len(text) - ngram + 1)))
    shared = sum(min(bags[0][gram], bags[1][gram]) for gram in bags[0])
    total = sum(bags[0].values()) + sum(bags[1].values()) - shared
    return shared / total if total else 0.0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(st.sampled_from("abcA 漢汉."), max_size=12), max_size=6),
    st.lists(st.text(st.sampled_from("abcA 漢汉."), max_size=12), max_size=6),
    st.sampled_from([0.3, 0.5, 0.75, 0.8, 1.0]),
    st.integers(1, 4),
)
def test_similar_is_exact(tests: list[str], sentences: list[str], similarity: float, ngram: int) -> None:
    exclusion = Exclusion(tests, similarity=similarity, ngram=ngram)
    expected = [
        any(jaccard_by_hand(sentence, test, ngram) >= similarity - 1e-9 for test in tests) for sentence in sentences
    ]
    assert exclusion.similar(TextColumn.from_texts(sentences).fold()).tolist() == expected


@pytest.mark.parametrize("bits", [4, 20])
def test_similar_is_exact_on_edited_sentences(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """The number of buckets, many n-grams to each or hardly one, changes nothing."""
    monkeypatch.setattr(decontamination, "LEAST_BITS", bits)
    monkeypatch.setattr(decontamination, "MOST_BITS", bits)
    generator = random.Random(0)
    words = [chr(0x4E00 + number) for number in range(40)]
    tests = ["".join(generator.choices(words, k=20)) for _ in range(50)]
    sentences = []
    for _ in range(300):
        letters = list(generator.choice(tests))
        for _ in range(generator.randrange(6)):
            letters[generator.randrange(len(letters))] = generator.choice(words)
        sentences.append("".join(letters))
    found = Exclusion(tests, similarity=0.7, ngram=2).similar(TextColumn.from_texts(sentences).fold())
    expected = [any(jaccard_by_hand(s, t, 2) >= 0.7 - 1e-9 for t in tests) for s in sentences]
    assert found.tolist() == expected
    assert 20 < found.sum() < 280


@pytest.mark.parametrize("variant", ["HELLO, world!!", "Ｈｅｌｌｏ　ｗｏｒｌｄ", "hello world"])
def test_equal_after_normalisation(variant: str) -> None:
    exclusion = Exclusion(["Hello, world", "漢語課"], similarity=0, ngram=4)
    assert exclusion.equal(sentence_ids([variant, "汉语课。", "other"])).tolist() == [True, True, False]
    assert not exclusion.similar(TextColumn.from_texts([variant]).fold()).any()
    assert len(exclusion) == 2


def test_other_processes_map_the_index(tmp_path: Path) -> None:
    exclusion = Exclusion([f"sentence number {number} of many" for number in range(100)], similarity=0.8, ngram=4)
    exclusion.share(tmp_path)
    sent = pickle.dumps(exclusion)
    assert len(sent) < 1000
    other = pickle.loads(sent)
    side = TextColumn.from_texts(
        ["Sentence number 7 of many!", "sentence number 77 of manly", "something else altogether"]
    )
    assert other.equal(side.ids()).tolist() == [True, False, False]
    assert other.similar(side.fold()).tolist() == exclusion.similar(side.fold()).tolist() == [True, True, False]


def test_nothing_to_exclude() -> None:
    exclusion = Exclusion([], similarity=0.8, ngram=4)
    side = TextColumn.from_texts(["some sentence", ""])
    assert not exclusion.equal(side.ids()).any()
    assert not exclusion.similar(side.fold()).any()


def test_ngrams_do_not_cross_rows() -> None:
    grams, counts = hash_ngrams(TextColumn.from_texts(["abc", "", "ab", "abcd"]), 3)
    assert counts.tolist() == [1, 0, 0, 2]
    assert len(np.unique(grams)) == 2
    assert grams[0] == grams[1]


def test_read_test_sets(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ttwo\n\nthree\n", encoding="utf-8")
    sentences, files = read_test_sets([tmp_path / "a.txt"], tmp_path)
    assert sentences == ["one", "two", "three"]
    assert (files[0].path, files[0].sentences, len(files[0].sha256)) == ("a.txt", 3, 64)
    with pytest.raises(DataError, match=r"absent\.txt"):
        read_test_sets([tmp_path / "absent.txt"], tmp_path)
