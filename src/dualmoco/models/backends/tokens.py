"""Sentences as padded token ids in batches of like length: what transformer back-ends run on.

Takes the `tokenizers` tokenizer of a model, gives arrays of ids and gathers the vectors made of them. Shapes: n
sentences, N in a batch, L tokens, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from dualmoco.core.vectors import Ids, Vectors

WINDOW = 4096
"""Sentences tokenized and sorted by length at once."""
TOKEN_IDS, TOKEN_MASK, TOKEN_TYPES = "input_ids", "attention_mask", "token_type_ids"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Padding:
    """How a batch is filled up to its longest sentence."""

    token_id: int
    type_id: int = 0
    left: bool = False


@dataclass(frozen=True)
class TokenSource:
    """A tokenizer and what the network behind it wants to see."""

    tokenizer: Tokenizer
    """Without padding; cuts sentences to the network's length."""
    inputs: tuple[str, ...]
    """Some of TOKEN_IDS, TOKEN_MASK and TOKEN_TYPES."""
    padding: Padding
    prompt: str = ""
    """Put before every sentence."""

    def encode(
        self,
        texts: Sequence[str],
        budget: int,
        dimension: int,
        network: Callable[[Arrays], Vectors],
        workers: Executor | None = None,
    ) -> Vectors:
        """Runs a network over sentences, like lengths together; equal sentences of a window only once.

        Args:
            texts: n sentences.
            budget: Tokens in a batch, padding counted; a longer sentence is a batch by itself.
            dimension: D.
            network: From arrays (N, L), named as in `inputs`, to vectors (N, D).
            workers: Threads that each run the network on a batch of their own; this one alone if None.

        Returns:
            Vectors (n, D) in the order of the sentences.
        """
        vectors: Vectors = np.empty((len(texts), dimension), dtype=np.float32)
        for start in range(0, len(texts), WINDOW):
            window = [self.prompt + text for text in texts[start : start + WINDOW]]
            place = {text: row for row, text in enumerate(dict.fromkeys(window))}
            found: Vectors = np.empty((len(place), dimension), dtype=np.float32)
            batches = list(self._padded(list(place), budget))
            made = (workers.map if workers else map)(network, [arrays for _, arrays in batches])
            for (rows, _), some in zip(batches, made, strict=True):
                found[rows] = some
            vectors[start : start + WINDOW] = found[[place[text] for text in window]]
        return vectors

    def batches(self, texts: Sequence[str], budget: int) -> Iterator[Arrays]:
        """Yields sentences as arrays (N, L), in batches of at most so many tokens."""
        for _, arrays in self._padded([self.prompt + text for text in texts], budget):
            yield arrays

    def _padded(self, texts: list[str], budget: int) -> Iterator[tuple[Ids, Arrays]]:
        encodings = self.tokenizer.encode_batch_fast(texts)
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        for rows in batch_by_length(lengths, budget):
            chosen = [encodings[row] for row in rows]
            columns = {
                TOKEN_IDS: ([one.ids for one in chosen], self.padding.token_id),
                TOKEN_MASK: ([[1] * len(one) for one in chosen], 0),
                TOKEN_TYPES: ([one.type_ids for one in chosen], self.padding.type_id),
            }
            yield rows, {name: self._pad(*columns[name]) for name in self.inputs}

    def _pad(self, rows: list[list[int]], filler: int) -> np.ndarray:
        longest = max(1, *map(len, rows))
        padded = np.full((len(rows), longest), filler, dtype=np.int64)  # (N, L)
        for line, row in zip(padded, rows, strict=True):
            line[slice(longest - len(row), None) if self.padding.left else slice(len(row))] = row
        return padded


def batch_by_length(lengths: Ids, budget: int) -> list[Ids]:
    """Splits sentences into batches of like length.

    Args:
        lengths: Tokens of each sentence, shape (n,).
        budget: Tokens in a batch, padding counted.

    Returns:
        Row numbers of each batch, the shortest sentences first.
    """
    order = np.argsort(lengths, kind="stable")
    batches, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end - start + 1) * lengths[order[end]] > budget:
            batches.append(order[start:end])
            start = end
    return batches
