"""Sentences as padded token ids, in batches of similar length: the input of transformer back-ends.

On a CPU every core runs its own batch, because a batch that fits the cache of a core is small.
Shapes: n sentences, N of them in a batch, L tokens, D dimension.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.vectors import Ids, Vectors

WINDOW = 4096  # sentences that are tokenized and sorted by length together
CPU_BATCH_TOKENS = 1024
"""For PyTorch; more tokens do not fit the cache of a core, and fewer make the matrix products too small."""
TOKEN_IDS, TOKEN_MASK, TOKEN_TYPES = "input_ids", "attention_mask", "token_type_ids"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Padding:
    """How the shorter sentences of a batch are padded."""

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
    positions: int | None = None  # maximum tokens of the network; None if unlimited

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens after which a sentence is cut; None if unlimited."""
        return int(self.tokenizer.truncation["max_length"]) if self.tokenizer.truncation else None

    def limited(self, max_tokens: int) -> TokenSource:
        """A copy with another limit; ConfigError if the network cannot take that many tokens."""
        fewest = self.tokenizer.num_special_tokens_to_add(False) + 1
        most = self.positions or self.max_tokens
        if max_tokens < fewest or (most and max_tokens > most):
            known = f"from {fewest} to {most}, the positions of the model" if most else f"at least {fewest}"
            raise ConfigError(f"max_tokens {max_tokens}; expected {known}")
        tokenizer: Tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        tokenizer.enable_truncation(max_tokens, direction=(self.tokenizer.truncation or {}).get("direction", "right"))
        return replace(self, tokenizer=tokenizer)

    def batches(self, texts: Sequence[str], batch_tokens: int) -> Iterator[Arrays]:
        """Yields sentences as arrays (N, L), in batches of at most `batch_tokens` tokens."""
        encodings, lengths = self.tokenize([self.prompt + text for text in texts])
        for rows in batch_by_length(lengths, batch_tokens):
            yield self.pad([encodings[row] for row in rows])

    def tokenize(self, texts: list[str]) -> tuple[list[Encoding], Ids]:
        """The tokens of n sentences, with their lengths (n,)."""
        encodings = self.tokenizer.encode_batch_fast(texts)
        return encodings, np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))

    def pad(self, encodings: list[Encoding]) -> Arrays:
        """The inputs (N, L) of a network for a batch of N tokenized sentences."""
        columns = {
            TOKEN_IDS: ([one.ids for one in encodings], self.padding.token_id),
            TOKEN_MASK: ([[1] * len(one) for one in encodings], 0),
            TOKEN_TYPES: ([one.type_ids for one in encodings], self.padding.type_id),
        }
        return {name: self._pad_rows(*columns[name]) for name in self.inputs}

    def _pad_rows(self, rows: list[list[int]], filler: int) -> np.ndarray:
        longest = max(1, *map(len, rows))
        padded = np.full((len(rows), longest), filler, dtype=np.int64)  # (N, L)
        for line, row in zip(padded, rows, strict=True):
            line[slice(longest - len(row), None) if self.padding.left else slice(len(row))] = row
        return padded


class TokenBackend(ABC):
    """A back-end that runs a network on the tokens of sentences, several batches at once if it has workers.

    Args:
        source: Tokens of the network.
        dimension: D.
        batch_tokens: Maximum tokens per batch, including padding.
        make_workers: Makes the threads that each run a batch; None to run one batch after the other.
    """

    name: str
    is_unit = False

    def __init__(
        self, source: TokenSource, dimension: int, batch_tokens: int, make_workers: Callable[[], Executor | None]
    ) -> None:
        self.source, self.dimension, self.batch_tokens = source, dimension, batch_tokens
        self._make_workers = make_workers
        self.batch_size: int | None = None  # maximum sentences per batch
        self.cut = 0  # number of sentences cut so far
        self._workers: Executor | None = None
        self._process = 0  # process that made the workers

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens after which a sentence is cut; None if unlimited."""
        return self.source.max_tokens

    @property
    def positions(self) -> int | None:
        """Maximum tokens of the network; None if unlimited."""
        return self.source.positions

    def limited(self, max_tokens: int | None, batch_size: int | None) -> TokenBackend:
        """A copy of the network with other limits; None keeps the current limit."""
        other = copy(self)
        other.batch_size, other.cut = batch_size, 0
        if max_tokens is not None:
            other.source = self.source.limited(max_tokens)
        return other

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, as the network makes them."""
        vectors: Vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), WINDOW):
            window = [self.source.prompt + text for text in texts[start : start + WINDOW]]
            place = {text: row for row, text in enumerate(dict.fromkeys(window))}  # equal sentences are encoded once
            rows = [place[text] for text in window]
            encodings, lengths = self.source.tokenize(list(place))
            self._count_cut(encodings, lengths, rows)
            vectors[start : start + WINDOW] = self._run_batches(encodings, lengths)[rows]
        return vectors

    def _run_batches(self, encodings: list[Encoding], lengths: Ids) -> Vectors:
        """Vectors of tokenized sentences, in batches of similar length."""
        found: Vectors = np.empty((len(encodings), self.dimension), dtype=np.float32)
        batches = batch_by_length(lengths, self.batch_tokens, self.batch_size)
        workers = self._find_workers()

        def run(rows: Ids) -> Vectors:
            return self.run(self.source.pad([encodings[row] for row in rows]))

        for rows, some in zip(batches, (workers.map if workers else map)(run, batches), strict=True):
            found[rows] = some
        return found

    def _count_cut(self, encodings: list[Encoding], lengths: Ids, rows: list[int]) -> None:
        """Counts sentences that the tokenizer truncated."""
        if self.max_tokens is not None:
            full = np.flatnonzero(lengths >= self.max_tokens).tolist()
            cut = {row for row in full if encodings[row].overflowing}
            self.cut += sum(row in cut for row in rows) if cut else 0

    def _find_workers(self) -> Executor | None:
        """The workers of this process; threads do not survive a fork."""
        if self._process != os.getpid():
            self._workers, self._process = self._make_workers(), os.getpid()
        return self._workers

    @abstractmethod
    def run(self, arrays: Arrays) -> Vectors:
        """Vectors (N, D) of a padded batch (N, L)."""


def batch_by_length(lengths: Ids, batch_tokens: int, batch_size: int | None = None) -> list[Ids]:
    """Splits sentences with the given lengths (n,) into batches of similar length: row numbers, shortest first."""
    order = np.argsort(lengths, kind="stable")
    most = batch_size or len(order)
    batches, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or end - start == most or (end - start + 1) * lengths[order[end]] > batch_tokens:
            batches.append(order[start:end])
            start = end
    return batches


def check_length(given: Any, positions: int | None, place: Path | str) -> int:
    """The maximum length of a model in tokens, at most its positions; ModelError if `given` is not a valid length."""
    if not isinstance(given, int | float) or not 1 <= given < math.inf:
        raise ModelError(f"{place}: model_max_length {given!r}; expected the maximum number of tokens, at least 1")
    return int(given) if positions is None else min(int(given), positions)


def one_thread_workers() -> ThreadPoolExecutor | None:
    """One single-threaded worker per thread of PyTorch; None if PyTorch has only one thread."""
    import torch

    _survive_forks()
    threads = torch.get_num_threads()
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) if threads > 1 else None


@cache
def _survive_forks() -> None:
    """Lets PyTorch use one thread in forked processes, because OpenMP threads would deadlock there."""
    import torch

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
