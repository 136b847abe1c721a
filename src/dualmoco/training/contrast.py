"""Dual momentum contrast: section 2 of the paper (Wang, Zhao and Liu, EMNLP 2021), and nothing else.

Takes token features and two encoders, gives a loss. Shapes: N pairs, D dimension, K rows of a queue, B of one block.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BLOCK_ROWS = 2048  # scores of so many rows stay in a CPU's cache


def info_nce(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    temperature: Tensor,
    query_ids: Tensor,
    queue_ids: Tensor,
    *,
    block_rows: int = BLOCK_ROWS,
) -> tuple[Tensor, Tensor, Tensor]:
    """InfoNCE of each query against its key and all rows of a queue, equation 2; at least fp32, also under autocast.

    Scored in blocks, so memory does not grow with K. The queue carries no gradient, which lets the query's,
    (softmax . rows - key) / temperature, be summed up in the same pass.

    Args:
        query: Unit vectors (N, D); they and the temperature receive gradients.
        key: Unit vectors (N, D), row i being the translation of query i.
        queue: Negatives (K, D); K may be 0.
        temperature: Positive scalar.
        query_ids: Ids (N, 2) of each query's text and of its translation.
        queue_ids: The same (K, 2) for the rows of the queue.
        block_rows: B; changes speed and memory, never the result.

    Returns:
        Losses (N,), whether each key beat all negatives (N,), and how many scores were masked as false negatives.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        vectors = query.to(dtype), key.to(dtype), queue, temperature.to(dtype)
        return _InfoNCE.apply(*vectors, query_ids, queue_ids, block_rows)  # type: ignore[no-any-return]


class _InfoNCE(torch.autograd.Function):
    """Log-sum-exp over blocks with a running peak; `info_nce` says what goes in and out."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, queue, temperature, query_ids, queue_ids, size = inputs
        scaled = query / temperature  # (N, D)
        positive = (scaled * key).sum(dim=1)  # (N,)
        peak, total, pull = positive, torch.ones_like(positive), key  # max logit, sum of exp, sum of exp * row
        hardest, masked = torch.full_like(positive, -math.inf), query_ids.new_zeros(())
        for start, shared in zip(range(0, len(queue), size), _shared_rows(query_ids, queue_ids, size), strict=False):
            rows = queue[start : start + size].to(query.dtype)  # (B, D)
            logits = scaled @ rows.T  # (N, B)
            if len(shared):
                false = is_false_negative(query_ids, queue_ids[shared])  # (N, len(shared))
                logits[:, shared - start] = logits[:, shared - start].masked_fill(false, -math.inf)
                masked = masked + false.sum()
            block_peak = logits.amax(dim=1)  # (N,)
            hardest = torch.maximum(hardest, block_peak)
            old_peak, peak = peak, torch.maximum(peak, block_peak)
            shrink = (old_peak - peak).exp()  # (N,)
            weights = logits.sub_(peak[:, None]).exp_()  # (N, B)
            total = total * shrink + weights.sum(dim=1)
            pull = pull * shrink[:, None] + weights @ rows  # (N, D)
        gradient = (pull / total[:, None] - key) / temperature  # (N, D)
        ctx.save_for_backward(query, gradient, temperature)
        correct = positive > hardest
        ctx.mark_non_differentiable(correct, masked)
        return peak - positive + total.log(), correct, masked

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        query, gradient, temperature = ctx.saved_tensors
        gradient = gradient * grads[0][:, None]  # (N, D)
        return gradient, None, None, -(query * gradient).sum() / temperature, None, None, None


def _shared_rows(query_ids: Tensor, queue_ids: Tensor, size: int) -> tuple[Tensor, ...]:
    """Rows of each block of a queue that have a text of the batch, mostly none; the host waits for the device here."""
    texts = query_ids.flatten().sort().values  # (2 N,)
    found = [(texts[torch.searchsorted(texts, ids, right=True) - 1] == ids).any(1) for ids in queue_ids.split(1 << 17)]
    shared = torch.cat(found).nonzero().squeeze(1)
    starts = torch.arange(size, max(size, len(queue_ids)), size, device=shared.device)  # of all blocks but the first
    return shared.tensor_split(torch.searchsorted(shared, starts).tolist())


def is_false_negative(query_ids: Tensor, row_ids: Tensor) -> Tensor:
    """Which rows, (N, B), with ids (B, 2) are the translation, the text or a retranslation of a query (N, 2)."""
    text, translation = query_ids[:, :1], query_ids[:, 1:]  # (N, 1) each
    return (row_ids[:, 0] == translation) | (row_ids[:, 0] == text) | (row_ids[:, 1] == text)


class Queue(nn.Module):
    """The last K keys of one language and their text ids; starts empty, takes any number of rows, wraps around."""

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.full = False  # known to the host: once full, its length is not read from the device any more
        self.vectors = nn.Buffer(torch.zeros(size, dimension))  # (K, D)
        self.ids = nn.Buffer(torch.zeros(size, 2, dtype=torch.long))  # (K, 2): text, its translation
        self.pushed = nn.Buffer(torch.zeros((), dtype=torch.long))  # rows ever enqueued

    def __len__(self) -> int:
        self.full = self.full or int(self.pushed) >= len(self.vectors)
        return len(self.vectors) if self.full else int(self.pushed)

    @torch.no_grad()
    def enqueue(self, vectors: Tensor, ids: Tensor) -> None:
        """Replaces the oldest rows by vectors (N, D) with their ids (N, 2)."""
        size = len(self.vectors)
        rows = (self.pushed + torch.arange(len(vectors), device=vectors.device))[-size:] % size
        self.vectors[rows], self.ids[rows] = vectors[-size:].to(self.vectors.dtype), ids[-size:]
        self.pushed.add_(len(vectors))


@torch.no_grad()
def update_momentum(encoder: nn.Module, momentum_encoder: nn.Module, momentum: float) -> None:
    """Moves a momentum encoder towards its base encoder, equation 1; a momentum of 0 copies it."""
    for base, slow in zip(encoder.parameters(), momentum_encoder.parameters(), strict=True):
        slow.lerp_(base, 1 - momentum)


@dataclass(frozen=True)
class KeyBatch:
    """What the momentum encoders make of a batch: unit vectors (N, D) a side, and ids (N, 2) of src and tgt texts."""

    src: Tensor
    tgt: Tensor
    ids: Tensor


@dataclass(frozen=True)
class ContrastResult:
    """The loss of a batch, and averages over both directions that show whether training is healthy."""

    loss: Tensor
    accuracy: Tensor  # share of queries closer to their translation than to any negative
    drift: Tensor  # 1 - cosine between base and momentum encoder on the same sentence
    spread: Tensor  # how far the queries lie apart: 0 collapsed, 1 in all directions
    masked: Tensor  # share of scores masked as false negatives


class DualMomentumContrast(nn.Module):
    """Two encoders of features into unit vectors (N, D), or one twice; a momentum encoder and a queue for each."""

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
    ) -> None:
        super().__init__()
        self.src_encoder, self.tgt_encoder, self.key_dropout = src_encoder, tgt_encoder, key_dropout
        slow = copy.deepcopy(nn.ModuleList([src_encoder, tgt_encoder])).requires_grad_(False).train(key_dropout)
        self.src_momentum_encoder, self.tgt_momentum_encoder = slow
        self.src_queue, self.tgt_queue = Queue(queue_size, dimension), Queue(queue_size, dimension)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)), requires_grad=learn_temperature)

    def train(self, mode: bool = True) -> DualMomentumContrast:
        """Sets training mode; the momentum encoders follow only if `key_dropout` is on."""
        super().train(mode)
        nn.ModuleList([self.src_momentum_encoder, self.tgt_momentum_encoder]).train(mode and self.key_dropout)
        return self

    @torch.no_grad()
    def encode_keys(self, src: dict[str, Tensor], tgt: dict[str, Tensor], src_ids: Tensor, tgt_ids: Tensor) -> KeyBatch:
        """Encodes a batch, with text ids (N,) a side, by the momentum encoders."""
        return KeyBatch(
            self.src_momentum_encoder(src), self.tgt_momentum_encoder(tgt), torch.stack([src_ids, tgt_ids], 1)
        )

    def forward(
        self, src: dict[str, Tensor], tgt: dict[str, Tensor], keys: KeyBatch, block_rows: int = BLOCK_ROWS
    ) -> ContrastResult:
        """The sum of both directions, equation 3, for pairs whose keys were encoded beforehand."""
        x, y = self.src_encoder(src), self.tgt_encoder(tgt)  # (N, D) each
        forward = self._contrast(x, keys.tgt, keys.ids, self.tgt_queue, block_rows)  # L(x, y)
        backward = self._contrast(y, keys.src, keys.ids.flip(1), self.src_queue, block_rows)  # L(y, x)
        loss, accuracy, masked = (there + back for there, back in zip(forward, backward, strict=True))
        with torch.no_grad():
            drift = 1 - ((x * keys.src).sum(dim=1) + (y * keys.tgt).sum(dim=1)).mean() / 2
            spread = (x.var(dim=0, correction=0).sum() + y.var(dim=0, correction=0).sum()).sqrt() / math.sqrt(2)
        return ContrastResult(loss, accuracy / 2, drift, spread, masked / 2)

    def _contrast(self, query: Tensor, key: Tensor, ids: Tensor, queue: Queue, size: int) -> tuple[Tensor, ...]:
        rows, row_ids = queue.vectors[: len(queue)], queue.ids[: len(queue)]
        losses, correct, masked = info_nce(query, key, rows, self.log_temperature.exp(), ids, row_ids, block_rows=size)
        return losses.mean(), correct.float().mean(), masked / (len(query) * max(1, len(rows)))

    def enqueue(self, keys: KeyBatch) -> None:
        """Puts the keys of one optimiser step, those of all processes, into both queues."""
        self.src_queue.enqueue(keys.src, keys.ids)
        self.tgt_queue.enqueue(keys.tgt, keys.ids.flip(1))

    def update_momentum(self, momentum: float) -> None:
        """Moves the momentum encoders, once per optimiser step."""
        update_momentum(self.src_encoder, self.src_momentum_encoder, momentum)
        if self.tgt_encoder is not self.src_encoder:
            update_momentum(self.tgt_encoder, self.tgt_momentum_encoder, momentum)
