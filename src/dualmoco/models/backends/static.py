"""The static back-end: means of token vectors by a sparse product, without PyTorch.

Shapes: V tokens, n sentences, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.sparse import csr_array
from tokenizers import Tokenizer

from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.tokens import WINDOW
from dualmoco.models.backends.wordcache import WordCache
from dualmoco.models.model import STATIC


@dataclass(frozen=True)
class StaticTable:
    """An encoder that averages token vectors, its projections multiplied in."""

    tokenizer: Tokenizer
    """Without padding."""
    vectors: Vectors
    """Of the tokens, shape (V + 1, D); the last row is for a sentence without tokens."""
    normalize: bool
    """Whether the encoder brings its vectors to unit length."""


class StaticBackend:
    """A table of token vectors.

    Args:
        table: The table.
        prompt: Put before every sentence.
    """

    name = STATIC

    def __init__(self, table: StaticTable, prompt: str = "") -> None:
        self.table, self.is_unit, self.prompt = table.vectors, table.normalize, prompt
        self.words = WordCache(table.tokenizer)
        self.dimension = int(table.vectors.shape[1])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order; zeros where the model gives zeros."""
        windows = [self._window(texts[start : start + WINDOW]) for start in range(0, len(texts), WINDOW)]
        if len(windows) == 1:
            return windows[0]
        return np.concatenate([np.empty((0, self.dimension), dtype=np.float32), *windows])

    def _window(self, texts: Sequence[str]) -> Vectors:
        """Vectors of some sentences, equal ones averaged only once."""
        prompted = [self.prompt + text for text in texts] if self.prompt else list(texts)
        place = {text: row for row, text in enumerate(dict.fromkeys(prompted))}
        found = self._averages(list(place))
        return found if len(place) == len(prompted) else found[[place[text] for text in prompted]]

    def _averages(self, texts: list[str]) -> Vectors:
        """Means of token vectors; for unit vectors their sums, which point the same way, do as well."""
        nothing = [len(self.table) - 1]
        rows = [ids or nothing for ids in self.words.tokens(texts)]
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        tokens = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=ends[-1])
        counts = csr_array((np.ones(len(tokens), dtype=np.float32), tokens, ends), shape=(len(rows), len(self.table)))
        sums: Vectors = counts @ self.table
        if self.is_unit:
            return unit_vectors(sums)
        means: Vectors = sums / np.diff(ends).astype(np.float32)[:, None]
        return means
