"""The static back-end: means of token vectors by a sparse product, without PyTorch. Shapes: n sentences, D width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from scipy.sparse import csr_array
from tokenizers import Tokenizer

from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.tokens import WINDOW
from dualmoco.models.backends.wordcache import WordCache


class StaticBackend:
    """A table of token vectors.

    Args:
        tokenizer: Without padding.
        table: Token vectors (V + 1, D); the last row is for a sentence without tokens.
        sha256: The model's checksum.
        prompt: Put before every sentence.
    """

    name = "static"

    def __init__(self, tokenizer: Tokenizer, table: Vectors, sha256: str, prompt: str = "") -> None:
        self.words, self.table, self.sha256, self.prompt = WordCache(tokenizer), table, sha256, prompt
        self.width = table.shape[1]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D) of sentences in their order; zeros where the model gives zeros."""
        vectors: Vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for start in range(0, len(texts), WINDOW):
            window = [self.prompt + text for text in texts[start : start + WINDOW]]
            place = {text: row for row, text in enumerate(dict.fromkeys(window))}
            found = unit_vectors(self._sums(list(place)))
            vectors[start : start + WINDOW] = found[[place[text] for text in window]]
        return vectors

    def _sums(self, texts: list[str]) -> Vectors:
        """Sums of token vectors, which point where their means do."""
        nothing = [len(self.table) - 1]
        rows = [ids or nothing for ids in self.words.tokens(texts)]
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        tokens = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=ends[-1])
        counts = csr_array((np.ones(len(tokens), dtype=np.float32), tokens, ends), shape=(len(rows), len(self.table)))
        sums: Vectors = counts @ self.table
        return sums
