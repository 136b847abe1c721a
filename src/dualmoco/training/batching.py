"""From sentences to batches: which rows each step sees, and their tokens.

Takes `Pairs` from `data/`, gives `PairBatch` to `loop.py`. The rows of a step are a pure function of the seed and
the number of the step, so a run resumes anywhere at once and every process knows its share.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from dualmoco.core.errors import DataError
from dualmoco.data.bitext import Pairs
from dualmoco.data.nli import NliExample
from dualmoco.models.encoder import Features

Tokenize = Callable[[list[str]], Features]
T = TypeVar("T")
PREFETCH = 2  # steps made ahead of the one in training


@dataclass(frozen=True)
class PairBatch:
    """Pairs as tokens: N sentences a side, their texts, and the ids (N,) of the texts."""

    src: Features
    tgt: Features
    src_ids: Tensor
    tgt_ids: Tensor
    src_texts: list[str]

    def to(self, device: torch.device) -> PairBatch:
        """The batch on a device."""
        ids = (self.src_ids.to(device), self.tgt_ids.to(device))
        return PairBatch(move_features(self.src, device), move_features(self.tgt, device), *ids, self.src_texts)


@dataclass(frozen=True)
class NliBatch:
    """NLI examples as tokens: N premises and hypotheses, and labels (N,)."""

    premise: Features
    hypothesis: Features
    labels: Tensor

    def to(self, device: torch.device) -> NliBatch:
        """The batch on a device."""
        premise, hypothesis = (move_features(side, device) for side in (self.premise, self.hypothesis))
        return NliBatch(premise, hypothesis, self.labels.to(device))


@dataclass(frozen=True)
class Share:
    """Which part of each batch a process computes, and in how many micro-batches."""

    rank: int = 0
    world: int = 1
    micro_batches: int = 1

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """This process's rows, contiguous so that gathering by rank restores the batch, in micro-batches."""
        mine = np.array_split(rows, self.world)[self.rank]
        return np.array_split(mine, self.micro_batches)


class BatchOrder:
    """Which rows belong to which step: shuffled every epoch, sorted by length inside a bucket of batches."""

    def __init__(self, lengths: np.ndarray, batch_size: int, *, seed: int, bucket: int) -> None:
        """Plans the steps.

        Args:
            lengths: How long each row is, in any unit, shape (rows,).
            batch_size: Rows of one step.
            seed: Of the shuffling.
            bucket: Batches whose rows are sorted by length before they are cut; 1 keeps them random.

        Raises:
            DataError: Fewer rows than one batch.
        """
        if len(lengths) < batch_size:
            raise DataError(f"{len(lengths)} training rows; expected at least one batch of {batch_size}")
        self.lengths, self.batch_size, self.seed, self.bucket = lengths, batch_size, seed, bucket
        self.batches_per_epoch = len(lengths) // batch_size
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    @classmethod
    def unsorted(cls, count: int, batch_size: int, *, seed: int) -> BatchOrder:
        """Plans random batches of `count` rows."""
        return cls(np.zeros(count), batch_size, seed=seed, bucket=1)

    def rows(self, step: int) -> np.ndarray:
        """The rows of a step, counted from 0; what is left over at an epoch's end waits for the next shuffle."""
        epoch, batch = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            self._permutation = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths))
            self._epoch = epoch
        bucket, place = divmod(batch, self.bucket)
        first = bucket * self.bucket
        count = min(self.bucket, self.batches_per_epoch - first)
        window = self._permutation[first * self.batch_size : (first + count) * self.batch_size]
        if self.bucket > 1:
            window = window[np.argsort(self.lengths[window], kind="stable")]
            place = int(np.random.default_rng([self.seed, epoch, bucket + 1]).permutation(count)[place])
        return window[place * self.batch_size : (place + 1) * self.batch_size]


def order_pairs(pairs: Pairs, batch_size: int, *, seed: int, bucket: int, frozen: str = "") -> BatchOrder:
    """Plans the steps over pairs.

    Args:
        pairs: The training pairs.
        batch_size: Pairs of a step.
        seed: Of the shuffles.
        bucket: Batches that are sorted by length together.
        frozen: The side that is not read in training, if there is one.

    Returns:
        The order; the length of a pair is the bytes of what is read of it.
    """
    read = [pc.binary_length(getattr(pairs, side)).to_numpy() for side in ("src", "tgt") if side != frozen]
    return BatchOrder(np.sum(read, axis=0), batch_size, seed=seed, bucket=bucket)


class PairLoader:
    """The micro-batches of each step's batch of pairs that this process computes."""

    def __init__(self, pairs: Pairs, order: BatchOrder, src: Tokenize, tgt: Tokenize, share: Share) -> None:
        self.pairs, self.order, self.src, self.tgt, self.share = pairs, order, src, tgt, share

    def step(self, step: int) -> list[PairBatch]:
        """This process's micro-batches of a step."""
        return [self._batch(rows) for rows in self.share.split(self.order.rows(step))]

    def _batch(self, rows: np.ndarray) -> PairBatch:
        src_texts, tgt_texts = self.pairs.texts(rows)
        src_ids, tgt_ids = (torch.from_numpy(ids[rows]) for ids in (self.pairs.src_ids, self.pairs.tgt_ids))
        return PairBatch(self.src(src_texts), self.tgt(tgt_texts), src_ids, tgt_ids, src_texts)


class NliLoader:
    """The micro-batches of each step's batch of NLI examples that this process computes."""

    def __init__(self, examples: list[NliExample], order: BatchOrder, tokenize: Tokenize, share: Share) -> None:
        self.examples, self.order, self.tokenize, self.share = examples, order, tokenize, share

    def step(self, step: int) -> list[NliBatch]:
        """This process's micro-batches of a step."""
        return [
            make_nli_batch([self.examples[row] for row in rows.tolist()], self.tokenize)
            for rows in self.share.split(self.order.rows(step))
        ]


def make_nli_batch(examples: list[NliExample], tokenize: Tokenize) -> NliBatch:
    """Tokenizes NLI examples."""
    return NliBatch(
        tokenize([example.premise for example in examples]),
        tokenize([example.hypothesis for example in examples]),
        torch.tensor([example.label for example in examples]),
    )


def prefetch(make: Callable[[int], T], start: int) -> Generator[T, None, None]:
    """Yields make(start), make(start + 1) and so on, each made in a thread while earlier ones are used."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = [pool.submit(make, step) for step in range(start, start + PREFETCH)]
        step = start + PREFETCH
        while True:
            ready = waiting.pop(0).result()
            waiting.append(pool.submit(make, step))
            step += 1
            yield ready


def move_features(features: Features, device: torch.device) -> Features:
    """Token features on a device."""
    return {name: value.to(device, non_blocking=True) for name, value in features.items()}
