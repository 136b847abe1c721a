"""Tokens by way of words: those of the tokenizer, whatever the text holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends import static as wordcache
from dualmoco.models.backends.static import TokenRuns, WordCache, splits_at_spaces, sum_rows
from dualmoco.models.tokenizer import train_tokenizer

PAIRS = generate_pairs(200, seed=3)
TOKENIZER = train_tokenizer([*(src for src, _ in PAIRS), "Thé ﬁ a 3, b."], 300, 16, special_tokens=False)


def by_sentence(tokens: TokenRuns) -> list[list[int]]:
    """Token ids of each sentence."""
    return [ids.tolist() for ids in np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])]


@pytest.mark.parametrize("lengths", [[0], [0, 0, 3], [1, 2, 0, 700, 1], [2] * 1300, []], ids=str)
def test_sums_are_those_of_each_sentence_alone(lengths: list[int]) -> None:
    """Sums are added token by token, whatever the other sentences are; without tokens they are the last row."""
    generator = np.random.default_rng(0)
    table = generator.standard_normal((50, 6)).astype(np.float32)
    rows = [generator.integers(49, size=length).tolist() for length in lengths]
    found = sum_rows(table, TokenRuns.of(rows))
    assert found.shape == (len(rows), 6)
    for row, ids in zip(found, rows, strict=True):
        total = table[ids[0]].copy() if ids else table[-1]
        for token in ids[1:]:
            total += table[token]
        np.testing.assert_array_equal(row, total)


@settings(max_examples=60, deadline=None)
@given(
    texts=some.lists(
        some.text(alphabet=" abTh3,.[UNK]ñéÅ\u0308\u0301\u00a8\u00a0\u3000ﬁ我가İΣ\t", max_size=90), min_size=1
    )
)
def test_tokens_by_words_are_the_tokenizer_s(texts: list[str]) -> None:
    """Spaces, marks that combine and special tokens in the text change nothing."""
    cache = WordCache(TOKENIZER)
    assert cache.by_words
    found = by_sentence(cache.tokens([*texts, *["a b"] * 400]))
    assert found == [one.ids for one in TOKENIZER.encode_batch([*texts, *["a b"] * 400], add_special_tokens=False)]
    assert set(cache.known) >= {word for text in texts for word in text.split(" ")}


def test_words_are_forgotten_and_unspaced_text_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has a limit, and text of words never seen before goes past it."""
    monkeypatch.setattr(wordcache, "MOST_WORDS", 3)
    cache = WordCache(TOKENIZER)
    cache.tokens(["one two three four"] * 20)
    assert len(cache.known) == 4
    cache.tokens(["five"] * 20)
    assert set(cache.known) == {"five"}
    unspaced = ["我们走", "你好吗"]
    assert by_sentence(cache.tokens(unspaced)) == [one.ids for one in TOKENIZER.encode_batch(unspaced)]
    assert set(cache.known) == {"five"}


def test_a_tokenizer_that_sees_spaces_is_asked_as_usual() -> None:
    """Marks for spaces, replacements and tokens with spaces inside forbid looking words up."""
    assert splits_at_spaces(TOKENIZER)
    for change in (
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel()},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.Whitespace()])},
        {"normalizer": normalizers.Replace(" ", "_")},
    ):
        other: Any = Tokenizer.from_str(TOKENIZER.to_str())
        for name, part in change.items():
            setattr(other, name, part)
        assert not splits_at_spaces(other)
    spaced = Tokenizer.from_str(TOKENIZER.to_str())
    spaced.add_tokens(["New York"])
    assert not splits_at_spaces(spaced)
