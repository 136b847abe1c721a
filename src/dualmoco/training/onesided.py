"""The contrast with one side frozen: the encoder of the other learns to meet its keys.

That of `contrast.py` in one direction. Keys of a frozen encoder never age: they come from the store of
`keys.py`, and so do the negatives, any rows of it in place of the last ones; there is no momentum encoder and no queue
to keep. Takes `Pairs` and keys, gives batches and metrics to `loop.py`.

Shapes: N pairs in a micro-batch, D dimension, K negatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dualmoco.data.bitext import Pairs
from dualmoco.models.encoder import Encoder, Features
from dualmoco.training.batching import Share, Tokenize, move_features
from dualmoco.training.contrast import info_nce
from dualmoco.training.hard import HardNegatives
from dualmoco.training.keys import FrozenKeys
from dualmoco.training.objectives import Metrics, Objective, block_rows
from dualmoco.training.order import Curriculum
from dualmoco.training.recipe import ContrastConfig, TrainConfig


@dataclass(frozen=True)
class OneSidedBatch:
    """Sentences of the side that learns as tokens, the keys of their translations, and negatives."""

    features: Features
    keys: Tensor  # (N, D)
    ids: Tensor  # (N, 2): of a sentence, of its translation
    negatives: Tensor  # (K, D)
    negative_ids: Tensor  # (K, 2): of a negative's sentence, of its translation

    def to(self, device: torch.device) -> OneSidedBatch:
        """The batch on a device."""
        rest = (self.keys, self.ids, self.negatives, self.negative_ids)
        moved = (tensor.to(device, non_blocking=True) for tensor in rest)
        return OneSidedBatch(move_features(self.features, device), *moved)


class OneSidedLoader:
    """The micro-batches of each step that this process computes; all of a step have the same negatives.

    Args:
        config: The settings, one side of which is frozen.
        pairs: The training pairs.
        order: Of their batches.
        keys: Of the frozen side.
        tokenize: Of the other side.
        share: Of this process.
        hard: Negatives close to each pair's key, if they are to be beside the random ones.
    """

    def __init__(
        self, config: TrainConfig, pairs: Pairs, order: Curriculum, keys: FrozenKeys, tokenize: Tokenize, share: Share,
        hard: HardNegatives | None = None,
    ) -> None:  # fmt: skip
        self.sentences = pairs.tgt if config.frozen == "src" else pairs.src
        self.contrast, self.seed = config.contrast, config.seed
        self.order, self.keys, self.tokenize, self.share, self.hard = order, keys, tokenize, share, hard

    def step(self, step: int) -> list[OneSidedBatch]:
        """This process's micro-batches of a step."""
        rows = self.order.rows(step)
        negatives = self.keys.take(self.negative_rows(step, rows))
        return [self._batch(part, *negatives) for part in self.share.split(rows)]

    def negative_rows(self, step: int, rows: np.ndarray) -> np.ndarray:
        """Pairs (K,) whose keys are the negatives of a step: random, by seed and step; with `batch_keys` its own first.

        Hard negatives come with them, if there are any.

        Args:
            step: From 0.
            rows: Of the step's batch.

        Returns:
            Rows of the pairs: `queue_size` of them, or all there are; hard ones besides.
        """
        own = rows[: self.contrast.queue_size if self.contrast.batch_keys else 0]
        count = min(self.contrast.queue_size - len(own), len(self.keys))
        generator = np.random.default_rng([self.seed, step, 0, 1])  # `BatchOrder` seeds with three numbers at most
        drawn = generator.choice(len(self.keys), count, replace=False, shuffle=False)
        parts = [own, np.sort(drawn)]  # in the order of the disk
        if self.hard is not None:
            parts.append(np.setdiff1d(self.hard.of(rows), np.concatenate(parts)))  # each key counts once
        return np.concatenate(parts)

    def _batch(self, rows: np.ndarray, negatives: Tensor, negative_ids: Tensor) -> OneSidedBatch:
        keys, ids = self.keys.take(rows)
        features = self.tokenize(self.sentences.take(rows).to_pylist())
        return OneSidedBatch(features, keys, ids.flip(1), negatives, negative_ids)


class OneSidedMoco(Objective):
    """InfoNCE of one side's sentences against the keys of a frozen side."""

    def __init__(self, encoder: Encoder, config: ContrastConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(config.temperature)), requires_grad=config.learn_temperature
        )

    def forward(self, batch: OneSidedBatch, prepared: None) -> Metrics:
        """Equation 2 for one micro-batch."""
        query = self.encoder(batch.features)  # (N, D)
        losses, correct, masked = info_nce(
            query, batch.keys, batch.negatives, self.log_temperature.exp(), batch.ids, batch.negative_ids,
            block_rows=block_rows(len(query), query.device),
        )  # fmt: skip
        with torch.no_grad():
            spread = query.var(dim=0, correction=0).sum().sqrt()  # 0 collapsed, 1 in all directions
        share = masked / (len(query) * len(batch.negatives))
        return {"loss": losses.mean(), "accuracy": correct.float().mean(), "spread": spread, "masked": share}

    def health(self, batch_size: int) -> dict[str, float]:
        """The temperature, which may be learnt."""
        return {"temperature": self.log_temperature.exp().item()}
