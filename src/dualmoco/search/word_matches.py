"""Words of two sentences that translate each other, by the word vectors of a static model.

Two words match if each is the most similar word to the other one in its sentence, and their cosine is high. Words match
only if their vectors are similar, so a hit that is not a translation has few matches. Shapes: w words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.static import StaticBackend
from dualmoco.models.embedded import FAST_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.text.languages import WITHOUT_SPACES, base_language, find_language

LEAST_WORD_COSINE = 0.5
Span = tuple[int, int]
"""First character of a word and end (exclusive)."""


@dataclass(frozen=True)
class SplitSentence:
    """The words of a sentence, without punctuation."""

    spans: list[Span]
    vectors: Vectors  # (w, D) of unit length


@dataclass(frozen=True)
class WordMatch:
    """A word of one sentence and its translation, or the same word, in the other."""

    word: Span
    other: Span
    cosine: float


class WordMatcher:
    """Splits sentences into words with vectors.

    Args:
        model: A model whose word vectors are used if its encoders are static; otherwise those of the embedded model.
    """

    def __init__(self, model: Model) -> None:
        is_static = model.languages and all(isinstance(model.backend(lang), StaticBackend) for lang in model.languages)
        self.model = model if is_static else open_model(FAST_MODEL)

    def split(self, text: str, lang: str) -> SplitSentence | None:
        """The words of a sentence; None if there are no word vectors for its language."""
        known = find_language(lang, self.model.languages or [])
        backend = self.model.backend(known) if known else None
        if not isinstance(backend, StaticBackend) or not known:
            return None
        converted = self.model.conversion.apply([text], known)[0]
        if len(converted) != len(text):  # conversion of a phrase moved characters to other places
            converted = text
        tokens = backend.words.tokenizer.encode(converted, add_special_tokens=False)
        spans: list[Span] = []
        sums: list[np.ndarray] = []
        before = None
        for token, span, word in zip(tokens.ids, tokens.offsets, tokens.word_ids, strict=True):
            piece = converted[slice(*span)]
            if not any(map(str.isalnum, piece)):
                before = None
                continue
            if word == before and (piece.isascii() or base_language(known) not in WITHOUT_SPACES):
                spans[-1] = spans[-1][0], span[1]
                sums[-1] = sums[-1] + backend.table[token]
            else:
                spans.append(span)
                sums.append(backend.table[token])
            before = word
        vectors = np.stack(sums) if sums else np.empty((0, backend.dimension), dtype=np.float32)
        return SplitSentence(spans, unit_vectors(vectors))


def match_words(sentence: SplitSentence, other: SplitSentence) -> list[WordMatch]:
    """The words of a sentence that match a word of another sentence, in order."""
    if not sentence.spans or not other.spans:
        return []
    cosines = sentence.vectors @ other.vectors.T  # (w, words of the other)
    best, best_across = cosines.argmax(axis=1), cosines.argmax(axis=0)
    return [
        WordMatch(sentence.spans[word], other.spans[best[word]], round(float(cosines[word, best[word]]), 3))
        for word in range(len(sentence.spans))
        if best_across[best[word]] == word and cosines[word, best[word]] >= LEAST_WORD_COSINE
    ]
