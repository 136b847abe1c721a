"""The words of a text, for the lexicon of a pair of documents.

Takes sentences of a language, gives `Words`. English and Chinese are cut into the tokens of the static model that comes
with dualmoco, which has vectors for them in one space; other languages into words, or characters where words are not
written apart, of which nothing is known beforehand. Shapes: N sentences, V distinct words, D dimension.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain

import numpy as np

from dualmoco.alignment.meetings import Words
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.languages import WITHOUT_SPACES, base_language
from dualmoco.models.backends.static import StaticBackend
from dualmoco.models.embedded import FAST_MODEL
from dualmoco.models.model import Model
from dualmoco.models.opening import open_model

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
