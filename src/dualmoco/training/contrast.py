"""Dual momentum contrast: section 2 of the paper (Wang, Zhao and Liu, EMNLP 2021), and nothing else.

Takes token features and two encoders, gives a loss to `training.py`. Shapes: N pairs in a batch, D width of a vector,
K rows of a queue, B rows of one block of it.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Features = dict[str, Tensor]
BLOCK_ROWS = 2048


def info_nce(
    query: Tensor, key: Tensor, queue: Tensor, temperature: Tensor, query_ids: Tensor, queue_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """InfoNCE of each query against its key and all rows of a queue, equation 2.

    Scored in blocks, so memory does not grow with K. The queue carries no gradient, which lets the query's,
    (softmax . rows - key) / temperature, be summed up in the same pass.

    Args:
        query: Unit vectors (N, D); they and the temperature receive gradients.
        key: Unit vectors (N, D), row i being the translation of query i.
        queue: Negatives (K, D); K may be 0.
        temperature: Positive scalar.
        query_ids: Ids (N, 2) of each query's text and of its translation.
        queue_ids: The same (K, 2) for the rows of the queue.

    Returns:
        Losses (N,), whether each key beat all negatives (N,), and how many scores were masked as false negatives.
    """
    return _InfoNCE.apply(query, key, queue, temperature, query_ids, queue_ids)  # type: ignore[no-any-return]


class _InfoNCE(torch.autograd.Function):
    """Log-sum-exp over blocks with a running peak; `info_nce` says what goes in and out."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, queue: Tensor, temperature: Tensor, query_ids: Tensor, queue_ids: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        scaled = query / temperature  # (N, D)
        positive = (scaled * key).sum(dim=1)  # (N,)
        peak, total, pull = positive, torch.ones_like(positive), key  # max logit, sum of exp, sum of exp * row
        hardest, masked = torch.full_like(positive, -math.inf), query_ids.new_zeros(())
        for start in range(0, len(queue), BLOCK_ROWS):
            rows = queue[start : start + BLOCK_ROWS]  # (B, D)
            logits = (scaled @ rows.T).to(rows.dtype)  # (N, B)
            shared = torch.isin(queue_ids[start : start + BLOCK_ROWS], query_ids).any(dim=1)  # (B,) texts of this batch
            columns = shared.nonzero().squeeze(1)  # mostly none
            if len(columns):
                false = is_false_negative(query_ids, queue_ids[start + columns])  # (N, columns)
                logits[:, columns] = logits[:, columns].masked_fill(false, -math.inf)
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
        return peak + total.log() - positive, correct, masked

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        query, gradient, temperature = ctx.saved_tensors
        gradient = gradient * grads[0][:, None]  # (N, D)
        return gradient, None, None, -(query * gradient).sum() / temperature, None, None


def is_false_negative(query_ids: Tensor, row_ids: Tensor) -> Tensor:
    """Tells (N, B) which rows with ids (B, 2) are the translation, the text or a retranslation of a query (N, 2)."""
    text, translation = query_ids[:, :1], query_ids[:, 1:]  # (N, 1) each
    return (row_ids[:, 0] == translation) | (row_ids[:, 0] == text) | (row_ids[:, 1] == text)


class Queue(nn.Module):
    """The last K keys of one language and their text ids; starts empty, takes any number of rows, wraps around."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Buffer(torch.zeros(size, width))  # (K, D)
        self.ids = nn.Buffer(torch.zeros(size, 2, dtype=torch.long))  # (K, 2): text, its translation
        self.pushed = nn.Buffer(torch.zeros((), dtype=torch.long))  # rows ever enqueued

    def __len__(self) -> int:
        return min(int(self.pushed), len(self.vectors))

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


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks; just the rows on a single process."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return rows
    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, rows.contiguous())
    return torch.cat(gathered)


@dataclass(frozen=True)
class Keys:
    """What the momentum encoders make of a batch: unit vectors (N, D) a side, and ids (N, 2) of src and tgt texts."""

    src: Tensor
    tgt: Tensor
    ids: Tensor


@dataclass(frozen=True)
class ContrastResult:
    """The loss of a batch, and averages over both directions that tell whether training is healthy."""

    loss: Tensor
    accuracy: Tensor  # share of queries closer to their translation than to any negative
    drift: Tensor  # 1 - cosine between base and momentum encoder on the same sentence
    spread: Tensor  # how far the queries lie apart: 0 collapsed, 1 in all directions
    masked: Tensor  # share of scores masked as false negatives


class DualMomentumContrast(nn.Module):
    """Two encoders of features into unit vectors (N, D), or one twice; a momentum encoder and a queue for each."""

    def __init__(
        self, src_encoder: nn.Module, tgt_encoder: nn.Module, *, width: int, queue_size: int, temperature: float,
        learn_temperature: bool = False, key_dropout: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.src_encoder, self.tgt_encoder, self.key_dropout = src_encoder, tgt_encoder, key_dropout
        slow = copy.deepcopy(nn.ModuleList([src_encoder, tgt_encoder])).requires_grad_(False).train(key_dropout)
        self.src_momentum_encoder, self.tgt_momentum_encoder = slow
        self.src_queue, self.tgt_queue = Queue(queue_size, width), Queue(queue_size, width)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)), requires_grad=learn_temperature)

    def train(self, mode: bool = True) -> DualMomentumContrast:
        """Sets training mode; the momentum encoders follow only if `key_dropout` is on."""
        super().train(mode)
        self.src_momentum_encoder.train(mode and self.key_dropout)
        self.tgt_momentum_encoder.train(mode and self.key_dropout)
        return self

    @torch.no_grad()
    def encode_keys(self, src: Features, tgt: Features, src_ids: Tensor, tgt_ids: Tensor) -> Keys:
        """Encodes a batch, with text ids (N,) a side, by the momentum encoders."""
        ids = torch.stack([src_ids, tgt_ids], dim=1)  # (N, 2)
        return Keys(self.src_momentum_encoder(src), self.tgt_momentum_encoder(tgt), ids)

    def forward(self, src: Features, tgt: Features, keys: Keys) -> ContrastResult:
        """The sum of both directions, equation 3, for pairs whose keys were encoded beforehand."""
        x, y = self.src_encoder(src), self.tgt_encoder(tgt)  # (N, D) each
        forward = self._contrast(x, keys.tgt, keys.ids, self.tgt_queue)  # L(x, y)
        backward = self._contrast(y, keys.src, keys.ids.flip(1), self.src_queue)  # L(y, x)
        loss, accuracy, masked = (there + back for there, back in zip(forward, backward, strict=True))
        with torch.no_grad():
            drift = 1 - ((x * keys.src).sum(dim=1) + (y * keys.tgt).sum(dim=1)).mean() / 2
            spread = (x.var(dim=0, correction=0).sum() + y.var(dim=0, correction=0).sum()).sqrt() / math.sqrt(2)
        return ContrastResult(loss, accuracy / 2, drift, spread, masked / 2)

    def _contrast(self, query: Tensor, key: Tensor, query_ids: Tensor, queue: Queue) -> tuple[Tensor, Tensor, Tensor]:
        rows, ids = queue.vectors[: len(queue)], queue.ids[: len(queue)]
        losses, correct, masked = info_nce(query, key, rows, self.log_temperature.exp(), query_ids, ids)
        return losses.mean(), correct.float().mean(), masked / (len(query) * max(1, len(rows)))

    def enqueue(self, keys: Keys) -> None:
        """Puts the keys of one optimiser step, from all processes, into both queues: all replicas get the same."""
        ids = gather_rows(keys.ids)  # (world * N, 2)
        self.src_queue.enqueue(gather_rows(keys.src), ids)
        self.tgt_queue.enqueue(gather_rows(keys.tgt), ids.flip(1))

    def update_momentum(self, momentum: float) -> None:
        """Moves the momentum encoders, once per optimiser step."""
        update_momentum(self.src_encoder, self.src_momentum_encoder, momentum)
        if self.tgt_encoder is not self.src_encoder:
            update_momentum(self.tgt_encoder, self.tgt_momentum_encoder, momentum)
