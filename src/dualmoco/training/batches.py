"""The batches of each step: the choice of their pairs, in shuffled batches of similar length, and their tokens.

The rows of a step are a pure function of the seed, the step number and the steps at which the stages of a curriculum
began. So a run can resume at any step, and every process knows its share of a batch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from dualmoco.core.errors import DataError
from dualmoco.data.config import StageConfig
from dualmoco.data.pairs import Pairs, WeightedRows, stage_rows
from dualmoco.models.network import Features, TokenParts
from dualmoco.training.schedule import RunProgress

PREFETCH = 2  # steps whose batches are made in advance


class BatchOrder:
    """Which rows belong to which step: shuffled every epoch, then sorted by length within a bucket of batches."""

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        *,
        seed: int,
        bucket: int,  # batches whose rows are sorted by length together; 1 keeps batches random
        parts: Sequence[WeightedRows] | None = None,  # None takes each row once per epoch
    ) -> None:
        self.parts = [WeightedRows(np.arange(len(lengths)), 1.0)] if parts is None else parts
        self.epoch_rows = sum(round(part.weight * len(part.rows)) for part in self.parts)
        if self.epoch_rows < batch_size:
            raise DataError(f"{self.epoch_rows} training rows; expected at least one batch of {batch_size}")
        self.lengths, self.batch_size, self.seed, self.bucket = lengths, batch_size, seed, bucket
        self.batches_per_epoch = self.epoch_rows // batch_size
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    @classmethod
    def unsorted(cls, count: int, batch_size: int, *, seed: int) -> BatchOrder:
        """Random batches of `count` rows."""
        return cls(np.zeros(count), batch_size, seed=seed, bucket=1)

    def rows(self, step: int) -> np.ndarray:
        """The rows of a step, counted from 0; rows left over at the end of an epoch wait for the next shuffle."""
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
        """The rows of an epoch in random order, repeated by their weights, with fractions by random choice."""
        taken = []
        for rows, weight in self.parts:
            times, some = divmod(round(weight * len(rows)), len(rows))
            taken += [rows] * times
            if some:
                taken.append(generator.choice(rows, some, replace=False, shuffle=False))
        return generator.permutation(np.concatenate(taken))


class Curriculum:
    """The batches of all stages of a run, one stage after another; a run without a curriculum is one stage."""

    def __init__(self, orders: Sequence[BatchOrder], until: Sequence[float], batches_per_epoch: int) -> None:
        self.orders, self.until, self.batches_per_epoch = orders, until, batches_per_epoch
        self.progress = RunProgress()
        """Progress of the run, which owns the list of the stages' first steps."""

    @property
    def shares(self) -> list[float]:
        """The share of the schedule of each stage."""
        return [until - before for before, until in itertools.pairwise([0.0, *self.until])]

    def rows(self, step: int) -> np.ndarray:
        """The rows of a step, counted from 0."""
        stage = self.stage(step)
        return self.orders[stage].rows(step - self.progress.stage_starts[stage])

    def stage(self, step: int) -> int:
        """The stage of a step, both counted from 0."""
        return bisect_right(self.progress.stage_starts, step) - 1

    def advance(self, step: int, done: float) -> bool:
        """Begins the next stage if it is due, after the batches that `prefetch` has made; returns whether it began."""
        starts = self.progress.stage_starts
        begun = len(starts)
        while len(starts) < len(self.orders) and done >= self.until[len(starts) - 1]:
            starts.append(step + PREFETCH)
        return len(starts) > begun


def order_pairs(
    pairs: Pairs, batch_size: int, *, seed: int, bucket: int, frozen: str = "", stages: Sequence[StageConfig] = ()
) -> Curriculum:
    """Orders the training pairs by batches of similar length in bytes, not counting a frozen side."""
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
Made = TypeVar("Made")


class Batch(Protocol):
    """A micro-batch of any objective."""

    @property
    def pair_tokens(self) -> int:
        """Tokens of sentence pairs, including padding."""

    @property
    def tokens(self) -> int:
        """All tokens, including padding."""

    def to(self, device: torch.device) -> Any:
        """The batch on a device."""


class Loader(Protocol):
    """Makes the micro-batches that this process computes."""

    @property
    def batches_per_epoch(self) -> int:
        """Steps of an epoch."""

    def step(self, step: int) -> Sequence[Batch]:
        """The micro-batches of a step, counted from 0."""


@dataclass(frozen=True)
class PairBatch:
    """N pairs: the tokens, text ids (N,) and texts of both sides."""

    src: TokenParts
    tgt: TokenParts
    src_ids: Tensor
    tgt_ids: Tensor
    src_texts: list[str]
    tgt_texts: list[str]
    language: int = 0  # of the target side: 0 for tgt, then the further languages of the run

    @property
    def pair_tokens(self) -> int:
        """Tokens of both sides, including padding."""
        return self.src.count + self.tgt.count

    tokens = pair_tokens

    def to(self, device: torch.device) -> PairBatch:
        """The batch on a device."""
        return PairBatch(
            self.src.to(device),
            self.tgt.to(device),
            self.src_ids.to(device),
            self.tgt_ids.to(device),
            self.src_texts,
            self.tgt_texts,
            self.language,
        )


@dataclass(frozen=True)
class ShardSpec:
    """Which part of each batch a process computes, and in how many micro-batches."""

    rank: int = 0
    world: int = 1
    micro_batches: int = 1

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows of each micro-batch; processes have contiguous parts, so gathering by rank restores the batch."""
        mine = np.array_split(rows, self.world)[self.rank]
        return np.array_split(mine, self.micro_batches)


class PairLoader:
    """The micro-batches of sentence pairs that this process computes."""

    def __init__(
        self,
        pairs: Pairs,
        order: Curriculum,
        src: Tokenize,
        tgt: Tokenize,
        shard: ShardSpec,
        *,
        mask_repeats: bool = True,  # equal texts have equal ids; otherwise every pair has its own ids
        language: int = 0,
    ) -> None:
        self.pairs, self.order, self.src, self.tgt, self.shard = pairs, order, src, tgt, shard
        self.mask_repeats, self.batches_per_epoch, self.language = mask_repeats, order.batches_per_epoch, language

    def step(self, step: int) -> list[PairBatch]:
        """The micro-batches of a step."""
        return [self._batch(rows) for rows in self.shard.split(self.order.rows(step))]

    def _batch(self, rows: np.ndarray) -> PairBatch:
        src_texts, tgt_texts = self.pairs.texts(rows)
        ids = (self.pairs.src_ids[rows], self.pairs.tgt_ids[rows]) if self.mask_repeats else (2 * rows, 2 * rows + 1)
        src_ids, tgt_ids = map(torch.from_numpy, ids)
        src, tgt = TokenParts.split(self.src(src_texts)), TokenParts.split(self.tgt(tgt_texts))
        return PairBatch(src, tgt, src_ids, tgt_ids, src_texts, tgt_texts, self.language)


class LanguageLoader:
    """The micro-batches of several languages, one language per step, in proportion to their shares."""

    def __init__(self, loaders: Sequence[PairLoader], shares: Sequence[float]) -> None:
        self.loaders, self.shares = loaders, np.array(shares)
        self.batches_per_epoch = sum(loader.batches_per_epoch for loader in loaders)
        self._taken: list[tuple[int, int]] = []  # for each step: the loader, and the number of its step

    def step(self, step: int) -> list[PairBatch]:
        """The micro-batches of a step."""
        counts = np.bincount([loader for loader, _ in self._taken], minlength=len(self.loaders))
        while len(self._taken) <= step:
            wanted = int(np.argmin((counts + 1) / self.shares))  # the loader whose next step is due first
            self._taken.append((wanted, int(counts[wanted])))
            counts[wanted] += 1
        loader, own_step = self._taken[step]
        return self.loaders[loader].step(own_step)


def prefetch(make: Callable[[int], Made], start: int) -> Generator[Made, None, None]:
    """Yields make(start), make(start + 1) and so on, each made in a thread while earlier ones are used."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = [pool.submit(make, step) for step in range(start, start + PREFETCH)]
        for step in itertools.count(start + PREFETCH):
            ready = waiting.pop(0).result()
            waiting.append(pool.submit(make, step))
            yield ready
