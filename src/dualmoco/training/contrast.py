"""Dual momentum contrast: section 2 of the paper (Wang, Zhao and Liu, EMNLP 2021), in its order and notation.

Two encoders turn token features into unit vectors. Each has a momentum encoder (equation 1) that fills a queue of
negatives for the other language. The loss is InfoNCE (equation 2) in both directions (equation 3).

Shapes: N pairs, D dimension, K rows in a queue.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualmoco.training.infonce import blockwise_info_nce, is_false_negative


@torch.no_grad()
def update_momentum(encoder: nn.Module, momentum_encoder: nn.Module, momentum: float) -> None:
    """Equation 1: moves a momentum encoder towards its base encoder; a momentum of 0 copies it."""
    both = zip(momentum_encoder.parameters(), encoder.parameters(), strict=True)
    moving = [(own, base) for own, base in both if own is not base]  # frozen weights are shared
    if moving:
        torch._foreach_lerp_([own for own, _ in moving], [base for _, base in moving], 1 - momentum)


def info_nce(
    query: Tensor, key: Tensor, queue: Tensor, temperature: Tensor, query_ids: Tensor, queue_ids: Tensor
) -> Tensor:
    """Equation 2 as the paper writes it: cross-entropy of the translation among K + 1 candidates, without false ones.

    It keeps all N * K scores in memory, so it is only the reference for tests. Training uses `blockwise_info_nce`,
    which agrees with it up to rounding; its docstring describes the arguments. Returns the losses (N,).
    """
    positive = (query * key).sum(dim=1, keepdim=True) / temperature  # (N, 1)
    negatives = query @ queue.T / temperature  # (N, K)
    negatives = negatives.masked_fill(is_false_negative(query_ids, queue_ids), -math.inf)
    logits = torch.cat([positive, negatives], dim=1)  # (N, 1 + K)
    labels = torch.zeros(len(query), dtype=torch.long, device=query.device)  # the translation comes first
    return cross_entropy(logits, labels, reduction="none")


class Queue(nn.Module):
    """The last K keys of one language with the ids of their texts; starts empty and wraps around."""

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.full = False  # known on the host, so that the length of the queue is not read from the device
        self.vectors = nn.Buffer(torch.zeros(size, dimension))  # (K, D)
        self.ids = nn.Buffer(torch.zeros(size, 2, dtype=torch.long))  # (K, 2): text, its translation
        self.pushed = nn.Buffer(torch.zeros((), dtype=torch.long))  # rows ever enqueued

    def __len__(self) -> int:
        self.full = self.full or int(self.pushed) >= len(self.vectors)
        return len(self.vectors) if self.full else int(self.pushed)

    @torch.no_grad()
    def enqueue(self, vectors: Tensor, ids: Tensor) -> None:
        """Replaces the oldest rows with vectors (N, D) and their ids (N, 2)."""
        size = len(self.vectors)
        rows = (self.pushed + torch.arange(len(vectors), device=vectors.device))[-size:] % size
        self.vectors[rows], self.ids[rows] = vectors[-size:].to(self.vectors.dtype), ids[-size:]
        self.pushed.add_(len(vectors))


@dataclass(frozen=True)
class KeyBatch:
    """The vectors (N, D) that the momentum encoders give a batch, and the ids (N, 2) of its src and tgt texts."""

    src: Tensor
    tgt: Tensor
    ids: Tensor


class DualMomentumContrast(nn.Module):
    """Two encoders (or one for both languages), each with its momentum encoder and its queue."""

    def __init__(
        self,
        src_encoder: nn.Module,
        tgt_encoder: nn.Module,
        *,
        dimension: int,
        queue_size: int,
        temperature: float,
        learn_temperature: bool = False,
        key_dropout: bool = False,
        dimensions: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.src_encoder, self.tgt_encoder, self.key_dropout = src_encoder, tgt_encoder, key_dropout
        self.dimensions = dimensions  # of the prefixes that are contrasted, the full one first; () for it alone
        encoders = nn.ModuleList([src_encoder, tgt_encoder])
        shared = {id(weight): weight for weight in encoders.parameters() if not weight.requires_grad}
        copies = copy.deepcopy(encoders, shared).requires_grad_(False).train(key_dropout)
        self.src_momentum_encoder, self.tgt_momentum_encoder = copies
        self.src_queue, self.tgt_queue = Queue(queue_size, dimension), Queue(queue_size, dimension)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)), requires_grad=learn_temperature)

    def with_target(self, tgt_encoder: nn.Module) -> DualMomentumContrast:
        """The contrast of the same source language with another language; both share the state of the source."""
        size, dimension = self.src_queue.vectors.shape
        other = DualMomentumContrast(
            self.src_encoder,
            tgt_encoder,
            dimension=dimension,
            queue_size=size,
            temperature=1.0,  # replaced by the shared module
            key_dropout=self.key_dropout,
            dimensions=self.dimensions,
        )
        other.src_momentum_encoder, other.src_queue = self.src_momentum_encoder, self.src_queue
        other.log_temperature = self.log_temperature
        return other

    def train(self, mode: bool = True) -> DualMomentumContrast:
        """Sets training mode; the momentum encoders use dropout only with `key_dropout`."""
        super().train(mode)
        nn.ModuleList([self.src_momentum_encoder, self.tgt_momentum_encoder]).train(mode and self.key_dropout)
        return self

    @torch.no_grad()
    def encode_keys(self, src: Any, tgt: Any, src_ids: Tensor, tgt_ids: Tensor) -> KeyBatch:
        """Encodes a batch, in any form that the encoders accept, with text ids (N,), using the momentum encoders."""
        ids = torch.stack([src_ids, tgt_ids], dim=1)  # (N, 2)
        return KeyBatch(self.src_momentum_encoder(src), self.tgt_momentum_encoder(tgt), ids)

    def forward(self, src: Any, tgt: Any, keys: KeyBatch) -> dict[str, Tensor]:
        """Equation 3, the sum of both directions, and averages of both that show whether training is healthy."""
        x, y = self.src_encoder(src), self.tgt_encoder(tgt)  # (N, D) each
        src_to_tgt = self._contrast(x, keys.tgt, keys.ids, self.tgt_queue)  # L(x, y)
        tgt_to_src = self._contrast(y, keys.src, keys.ids.flip(1), self.src_queue)  # L(y, x)
        loss, accuracy, masked = (there + back for there, back in zip(src_to_tgt, tgt_to_src, strict=True))
        with torch.no_grad():
            drift = 1 - ((x * keys.src).sum(dim=1) + (y * keys.tgt).sum(dim=1)).mean() / 2
            spread = (x.var(dim=0, correction=0).sum() + y.var(dim=0, correction=0).sum()).sqrt() / math.sqrt(2)
        return {
            "loss": loss,
            "accuracy": accuracy / 2,  # share of queries closer to their translation than to any negative
            "drift": drift,  # 1 - cosine between base and momentum encoder on the same sentence
            "spread": spread,  # spread of the queries: 0 if they collapse, 1 if they point in all directions
            "masked": masked / 2,  # share of scores masked as false negatives
        }

    def _contrast(self, query: Tensor, key: Tensor, ids: Tensor, queue: Queue) -> tuple[Tensor, Tensor, Tensor]:
        """One direction: mean loss, accuracy, and the share of masked scores."""
        rows, row_ids = queue.vectors[: len(queue)], queue.ids[: len(queue)]
        losses, correct, masked = blockwise_info_nce(
            query, key, rows, self.log_temperature.exp(), ids, row_ids, dimensions=self.dimensions
        )
        return losses.mean(), correct.float().mean(), masked / (len(query) * max(1, len(rows)))

    def enqueue(self, keys: KeyBatch) -> None:
        """Adds the keys of one optimizer step, from all processes, to both queues."""
        self.src_queue.enqueue(keys.src, keys.ids)
        self.tgt_queue.enqueue(keys.tgt, keys.ids.flip(1))

    def update_momentum(self, momentum: float) -> None:
        """Equation 1 for both momentum encoders, once per optimizer step."""
        update_momentum(self.src_encoder, self.src_momentum_encoder, momentum)
        if self.tgt_encoder is not self.src_encoder:
            update_momentum(self.tgt_encoder, self.tgt_momentum_encoder, momentum)
