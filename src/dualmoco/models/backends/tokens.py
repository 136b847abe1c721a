"""Sentences as padded token ids, in batches of similar length: the input of transformer back-ends.

On a CPU every core runs its own batch, because a batch that fits the cache of a core is small.
Shapes: n sentences, N of them in a batch, L tokens, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Ids, Vectors

WINDOW = 4096  # sentences that are tokenized and sorted by length together
CPU_BATCH_TOKENS = 1024
"""For PyTorch: more tokens do not fit the cache of a core, fewer make the matrix products too small."""
TOKEN_IDS, TOKEN_MASK, TOKEN_TYPES = "input_ids", "attention_mask", "token_type_ids"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Padding:
    """How the shorter sentences of a batch are filled up."""

    token_id: int
    type_id: int = 0
    left: bool = False


@dataclass(frozen=True)
class TokenSource:
    """A tokenizer and the inputs of its network."""

    tokenizer: Tokenizer  # without padding; truncates sentences to the network's length
    inputs: tuple[str, ...]  # some of TOKEN_IDS, TOKEN_MASK and TOKEN_TYPES
    padding: Padding
    prompt: str = ""  # text before every sentence

    def encode(
        self,
        texts: Sequence[str],
        batch_tokens: int,
        dimension: int,
        network: Callable[[Arrays], Vectors],
        workers: Executor | None = None,
    ) -> Vectors:
        """Runs a network, from arrays (N, L) to vectors (N, D), over n sentences sorted by length; returns (n, D)."""
        # Equal sentences of a window are run once. Each of the `workers` runs the network on a batch of its own.
        vectors: Vectors = np.empty((len(texts), dimension), dtype=np.float32)
        for start in range(0, len(texts), WINDOW):
            window = [self.prompt + text for text in texts[start : start + WINDOW]]
            place = {text: row for row, text in enumerate(dict.fromkeys(window))}
            found: Vectors = np.empty((len(place), dimension), dtype=np.float32)
            batches = list(self._padded(list(place), batch_tokens))
            made = (workers.map if workers else map)(network, [arrays for _, arrays in batches])
            for (rows, _), some in zip(batches, made, strict=True):
                found[rows] = some
            vectors[start : start + WINDOW] = found[[place[text] for text in window]]
        return vectors

    def batches(self, texts: Sequence[str], batch_tokens: int) -> Iterator[Arrays]:
        """Yields sentences as arrays (N, L), in batches of at most so many tokens."""
        for _, arrays in self._padded([self.prompt + text for text in texts], batch_tokens):
            yield arrays

    def _padded(self, texts: list[str], batch_tokens: int) -> Iterator[tuple[Ids, Arrays]]:
        encodings = self.tokenizer.encode_batch_fast(texts)
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        for rows in batch_by_length(lengths, batch_tokens):
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


def batch_by_length(lengths: Ids, batch_tokens: int) -> list[Ids]:
    """Splits sentences of the given lengths (n,) into batches of similar length: row numbers, shortest first."""
    order = np.argsort(lengths, kind="stable")
    batches, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end - start + 1) * lengths[order[end]] > batch_tokens:
            batches.append(order[start:end])
            start = end
    return batches


def check_length(given: Any, positions: int | None, place: Path | str) -> int:
    """The maximum length of a model in tokens, at most its positions; ModelError if `given` is not one."""
    if not isinstance(given, int | float) or not 1 <= given < math.inf:
        raise ModelError(f"{place}: model_max_length {given!r}; expected the most tokens of a sentence, at least 1")
    return int(given) if positions is None else min(int(given), positions)


def one_thread_workers() -> ThreadPoolExecutor | None:
    """As many workers of one thread each as PyTorch has threads; None if that is one."""
    import torch

    threads = torch.get_num_threads()
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) if threads > 1 else None
