"""Tokens of sentences by way of their words: a word that was seen before is looked up, not cut again.

Holds for tokenizers that treat what stands between two spaces by itself. For others, and for text without spaces, the
tokenizer is asked as usual; the tokens are the same either way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "Lowercase", "StripAccents"}
SPACE_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
LOCAL_SPLITTERS = SPACE_SPLITTERS | {"Digits", "Punctuation"}
MOST_WORDS = 500_000
NEW_SHARE = 0.25
"""Of a block's words: with more that were never seen, looking up is no gain."""


class WordCache:
    """The tokens of words.

    Args:
        tokenizer: Without padding.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.by_words = splits_at_spaces(tokenizer)
        self.longest = tokenizer.truncation["max_length"] if tokenizer.truncation else None
        self.known: dict[str, list[int]] = {}

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """The token ids of sentences, without special tokens around them.

        Args:
            texts: A block of sentences, some hundreds at least for the sake of speed.

        Returns:
            The ids of each, as the tokenizer gives them.
        """
        words = [text.split(" ") for text in texts] if self.by_words else []
        if not self._learn(words):
            return self._cut(texts)
        known = self.known
        found = [list(chain.from_iterable([known[word] for word in sentence])) for sentence in words]
        if self.longest is not None:
            long = [place for place, ids in enumerate(found) if len(ids) >= self.longest]
            for place, ids in zip(long, self._cut([texts[place] for place in long]), strict=True):
                found[place] = ids
        return found

    def _learn(self, words: list[list[str]]) -> bool:
        """Takes up the words of some sentences, unless too many are new."""
        if len(self.known) > MOST_WORDS:
            self.known.clear()
        new = list(set(chain.from_iterable(words)) - self.known.keys())
        if len(new) > NEW_SHARE * sum(map(len, words)) or not words:
            return False
        self.known.update(zip(new, self._cut(new), strict=True))
        return True

    def _cut(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def splits_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether a text's tokens are those of its words, one after the other.

    Args:
        tokenizer: Any tokenizer.

    Returns:
        False unless every part of it is known to look at no more than what stands between two spaces.
    """
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    normalizers = _kinds(parts["normalizer"], "normalizers")
    splitters = _kinds(parts["pre_tokenizer"], "pretokenizers")
    return (
        set(normalizers) <= LOCAL_NORMALIZERS
        and bool(SPACE_SPLITTERS.intersection(splitters[:1]))
        and set(splitters) <= LOCAL_SPLITTERS
        and not parts["model"].get("dropout")
        and not any(" " in token["content"] or token["lstrip"] or token["rstrip"] for token in parts["added_tokens"])
    )


def _kinds(part: dict[str, Any] | None, inner: str) -> list[str]:
    if part is None:
        return []
    return [str(one["type"]) for one in (part[inner] if part["type"] == "Sequence" else [part])]
