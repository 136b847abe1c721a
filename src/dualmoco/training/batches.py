"""Which pairs each step sees: shuffled, in batches of like length, stage by stage of a curriculum.

Takes `Pairs` from `data/`, gives rows to `batching.py`. The rows of a step are a pure function of the seed, the number
of the step and the steps at which stages began, so a run resumes anywhere at once and every process knows its share.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from dualmoco.core.errors import DataError
from dualmoco.data.config import StageConfig
from dualmoco.data.nli import NliExample
from dualmoco.data.pairs import Pairs, WeightedRows, stage_rows
from dualmoco.models.network import Features
from dualmoco.training.schedule import RunProgress

PREFETCH = 2  # steps whose batches are made ahead of the one in training


class BatchOrder:
    """Which rows belong to which step: shuffled every epoch, sorted by length inside a bucket of batches."""

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        *,
        seed: int,
        bucket: int,
        parts: Sequence[WeightedRows] | None = None,
    ) -> None:
        """Plans the steps.

        Args:
            lengths: How long each row is, in any unit, shape (rows,).
            batch_size: Rows of one step.
            seed: Of the shuffling.
            bucket: Batches whose rows are sorted by length before they are cut; 1 keeps them random.
            parts: The rows to take and how often; None for each once in an epoch.

        Raises:
            DataError: Fewer rows than one batch.
        """
        self.parts = [WeightedRows(np.arange(len(lengths)), 1.0)] if parts is None else parts
        self.epoch_rows = sum(round(part.weight * len(part.rows)) for part in self.parts)
        if self.epoch_rows < batch_size:
            raise DataError(f"{self.epoch_rows} training rows; expected at least one batch of {batch_size}")
        self.lengths, self.batch_size, self.seed, self.bucket = lengths, batch_size, seed, bucket
        self.batches_per_epoch = self.epoch_rows // batch_size
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    @classmethod
    def unsorted(cls, count: int, batch_size: int, *, seed: int) -> BatchOrder:
        """Plans random batches of `count` rows."""
        return cls(np.zeros(count), batch_size, seed=seed, bucket=1)

    def rows(self, step: int) -> np.ndarray:
        """The rows of a step, counted from 0; what is left over at an epoch's end waits for the next shuffle."""
        epoch, batch = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            self._permutation = self._shuffle(np.random.default_rng([self.seed, epoch]))
            self._epoch = epoch
        bucket, place = divmod(batch, self.bucket)
        first = bucket * self.bucket
        count = min(self.bucket, self.batches_per_epoch - first)
        window = self._permutation[first * self.batch_size : (first + count) * self.batch_size]
        if self.bucket > 1:
            window = window[np.argsort(self.lengths[window], kind="stable")]
            place = int(np.random.default_rng([self.seed, epoch, bucket + 1]).permutation(count)[place])
        return window[place * self.batch_size : (place + 1) * self.batch_size]

    def _shuffle(self, generator: np.random.Generator) -> np.ndarray:
        """The rows of an epoch in random order: each as often as its weight says, the fraction of it by lot."""
        taken = []
        for rows, weight in self.parts:
            times, some = divmod(round(weight * len(rows)), len(rows))
            taken += [rows] * times
            if some:
                taken.append(generator.choice(rows, some, replace=False, shuffle=False))
        return generator.permutation(np.concatenate(taken))


class Curriculum:
    """The orders of a run's stages, one after the other; one stage if the recipe names none.

    Args:
        orders: Of each stage.
        until: Up to which share of the schedule each lasts.
        batches_per_epoch: Steps in which as many pairs are seen as there are.
    """

    def __init__(self, orders: Sequence[BatchOrder], until: Sequence[float], batches_per_epoch: int) -> None:
        self.orders, self.until, self.batches_per_epoch = orders, until, batches_per_epoch
        self.progress = RunProgress()
        """Of the run that follows this order; owns the first step of each stage that has begun or is about to."""

    @property
    def shares(self) -> list[float]:
        """The share of the schedule that each stage has."""
        return [until - before for before, until in itertools.pairwise([0.0, *self.until])]

    def rows(self, step: int) -> np.ndarray:
        """The rows of a step, counted from 0."""
        stage = self.stage(step)
        return self.orders[stage].rows(step - self.progress.stage_starts[stage])

    def stage(self, step: int) -> int:
        """The stage of a step, both counted from 0."""
        return bisect_right(self.progress.stage_starts, step) - 1

    def advance(self, step: int, done: float) -> bool:
        """Lets the next stage begin when its time has come, at the first step whose batch is not made yet.

        Args:
            step: How many are done.
            done: The share of the schedule that is behind them.

        Returns:
            Whether one begins.
        """
        starts = self.progress.stage_starts
        begun = len(starts)
        while len(starts) < len(self.orders) and done >= self.until[len(starts) - 1]:
            starts.append(step + PREFETCH)
        return len(starts) > begun


def order_pairs(
    pairs: Pairs, batch_size: int, *, seed: int, bucket: int, frozen: str = "", stages: Sequence[StageConfig] = ()
) -> Curriculum:
    """Plans the steps over pairs.

    Args:
        pairs: The training pairs.
        batch_size: Pairs of a step.
        seed: Of the shuffles.
        bucket: Batches that are sorted by length together.
        frozen: The side that is not read in training, if there is one.
        stages: Of the curriculum, if there is one.

    Returns:
        The order; the length of a pair is the bytes of what is read of it.

    Raises:
        DataError: Fewer pairs than one batch, in all or in a stage, or weights of an unknown corpus.
    """
    read = [pc.binary_length(getattr(pairs, side)).to_numpy() for side in ("src", "tgt") if side != frozen]
    lengths = np.sum(read, axis=0)
    if not stages:
        order = BatchOrder(lengths, batch_size, seed=seed, bucket=bucket)
        return Curriculum([order], [1.0], order.batches_per_epoch)
    orders = []
    for number in range(len(stages)):
        parts = stage_rows(pairs, stages, number)
        own_seed = int(np.random.SeedSequence([seed, 0, 0, 0, number]).generate_state(1)[0])
        try:
            orders.append(BatchOrder(lengths, batch_size, seed=own_seed, bucket=bucket, parts=parts))
        except DataError as error:
            raise DataError(f"data.curriculum[{number}] leaves {error}: raise its max_chars or weights") from None
    return Curriculum(orders, [stage.until for stage in stages], max(1, len(pairs) // batch_size))


Tokenize = Callable[[list[str]], Features]
T = TypeVar("T")


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
class ShardSpec:
    """Which part of each batch a process computes, and in how many micro-batches."""

    rank: int = 0
    world: int = 1
    micro_batches: int = 1

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """This process's rows, contiguous so that gathering by rank restores the batch, in micro-batches."""
        mine = np.array_split(rows, self.world)[self.rank]
        return np.array_split(mine, self.micro_batches)


class PairLoader:
    """The micro-batches of each step's batch of pairs that this process computes.

    Args:
        pairs: The training pairs.
        order: Of their batches.
        src: Makes tokens of source sentences.
        tgt: Makes tokens of target sentences.
        share: Of this process.
        mask_repeats: Whether texts have one id wherever they stand; else one a pair, so only the pair itself is known.
    """

    def __init__(
        self,
        pairs: Pairs,
        order: Curriculum,
        src: Tokenize,
        tgt: Tokenize,
        share: ShardSpec,
        *,
        mask_repeats: bool = True,
    ) -> None:
        self.pairs, self.order, self.src, self.tgt, self.share = pairs, order, src, tgt, share
        self.mask_repeats = mask_repeats

    def step(self, step: int) -> list[PairBatch]:
        """This process's micro-batches of a step."""
        return [self._batch(rows) for rows in self.share.split(self.order.rows(step))]

    def _batch(self, rows: np.ndarray) -> PairBatch:
        src_texts, tgt_texts = self.pairs.texts(rows)
        ids = (self.pairs.src_ids[rows], self.pairs.tgt_ids[rows]) if self.mask_repeats else (2 * rows, 2 * rows + 1)
        src_ids, tgt_ids = map(torch.from_numpy, ids)
        return PairBatch(self.src(src_texts), self.tgt(tgt_texts), src_ids, tgt_ids, src_texts)


class NliLoader:
    """The micro-batches of each step's batch of NLI examples that this process computes."""

    def __init__(self, examples: list[NliExample], order: BatchOrder, tokenize: Tokenize, share: ShardSpec) -> None:
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
