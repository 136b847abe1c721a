"""From rows to batches: the tokens of each step's sentences, made ahead of it.

Takes `Pairs` from `data/` and which rows belong to a step from `order.py`, gives `PairBatch` to `loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dualmoco.data.bitext import Pairs
from dualmoco.data.nli import NliExample
from dualmoco.models.encoder import Features
from dualmoco.training.order import PREFETCH, BatchOrder, Curriculum

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
class Share:
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
        self, pairs: Pairs, order: Curriculum, src: Tokenize, tgt: Tokenize, share: Share, *, mask_repeats: bool = True
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
