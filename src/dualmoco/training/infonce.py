"""InfoNCE over a queue in blocks: the loss of equation 2 in memory that does not grow with the queue.

`contrast.info_nce` is the same loss in six lines and the reference in the tests. Training always uses the kernel here,
because the two round differently, and choosing between them by size would change trained weights.

Shapes: N queries, D dimension, K rows in the queue, B rows per block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dualmoco.training.config import LEAST_TEMPERATURE

BLOCK_ROWS = 2048  # on a CPU, so that the scores of one block stay in its cache
GPU_BLOCK_BYTES = 64 * 2**20  # size of the scores of one block on a GPU, enough to keep it busy
SCORE_BYTES = 4


def is_false_negative(query_ids: Tensor, row_ids: Tensor) -> Tensor:
    """Which rows (N, B) are the translation, the text or a second translation of a query.

    Args:
        query_ids: Ids (N, 2) of each query's text and of its translation.
        row_ids: Ids (B, 2) of each row's text and of its translation.
    """
    text, translation = query_ids[:, :1], query_ids[:, 1:]  # (N, 1) each
    return (row_ids[:, 0] == translation) | (row_ids[:, 0] == text) | (row_ids[:, 1] == text)


def unit_prefix(vectors: Tensor, dimension: int) -> Tensor:
    """The first `dimension` components of vectors (n, D), scaled to unit length; all D are returned as they are."""
    return vectors if dimension == vectors.shape[1] else normalize(vectors[:, :dimension], dim=1)


@torch.no_grad()
def limit_temperature(log_temperature: Tensor) -> None:
    """Keeps a learned temperature at LEAST_TEMPERATURE or above."""
    if log_temperature.requires_grad:
        log_temperature.clamp_(min=math.log(LEAST_TEMPERATURE))


def blockwise_info_nce(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    temperature: Tensor,
    query_ids: Tensor,
    queue_ids: Tensor,
    *,
    dimensions: Sequence[int] = (),
    block_rows: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes equation 2 for each query, in fp32 or better even under autocast.

    The queue carries no gradient. The gradient of the query, (softmax . rows - key) / temperature, is therefore summed
    up in the same pass as the loss.

    Args:
        query: Unit vectors (N, D); they and the temperature receive gradients.
        key: Unit vectors (N, D); row i is the translation of query i.
        queue: Negatives (K, D); K may be 0.
        temperature: Positive scalar.
        query_ids: Ids (N, 2) of each query's text and of its translation.
        queue_ids: Ids (K, 2) of each row's text and of its translation.
        dimensions: D, then fewer components. The loss is the mean over prefixes of the vectors with these numbers of
            components, each scaled to unit length (Matryoshka representation learning: Kusupati et al., 2022). If
            empty, only D.
        block_rows: B, which changes speed and memory but not the result; 0 chooses it by device.

    Returns:
        Losses (N,); of the whole vectors, whether each key beat all negatives (N,), and how many scores were masked as
        false negatives.
    """
    size = block_rows or choose_block_rows(len(query), query.device)
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        query, key, temperature = query.to(dtype), key.to(dtype), temperature.to(dtype)
        prefixes = [(unit_prefix(query, d), unit_prefix(key, d)) for d in dimensions or (query.shape[1],)]
        found = [_BlockwiseInfoNCE.apply(*both, queue, temperature, query_ids, queue_ids, size) for both in prefixes]
    _, correct, masked = found[0]
    return torch.stack([losses for losses, *_ in found]).mean(dim=0), correct, masked


def choose_block_rows(queries: int, device: torch.device) -> int:
    """B for a number of queries, limited by the cache of a CPU or by GPU_BLOCK_BYTES."""
    return BLOCK_ROWS if device.type == "cpu" else max(BLOCK_ROWS, GPU_BLOCK_BYTES // (SCORE_BYTES * queries))


class _BlockwiseInfoNCE(torch.autograd.Function):
    """Log-sum-exp over blocks with a running maximum."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, queue, temperature, query_ids, queue_ids, size = inputs
        scaled = query / temperature  # (N, D)
        positive = (scaled * key).sum(dim=1)  # (N,)
        running_max, total = positive, torch.ones_like(positive)  # largest logit, sum of exp(logit - running_max)
        weighted_sum = key  # (N, D): sum of exp(logit - running_max) * row
        hardest, masked = torch.full_like(positive, -math.inf), query_ids.new_zeros(())
        blocks = _rows_with_batch_texts(query_ids, queue_ids, size)
        for start, suspects in zip(range(0, len(queue), size), blocks, strict=False):
            rows = unit_prefix(queue[start : start + size].to(query.dtype), query.shape[1])  # (B, D)
            logits = scaled @ rows.T  # (N, B)
            if len(suspects):
                false = is_false_negative(query_ids, queue_ids[suspects])  # (N, len(suspects))
                logits[:, suspects - start] = logits[:, suspects - start].masked_fill(false, -math.inf)
                masked = masked + false.sum()
            block_max = logits.amax(dim=1)  # (N,)
            hardest = torch.maximum(hardest, block_max)
            old_max, running_max = running_max, torch.maximum(running_max, block_max)
            shrink = (old_max - running_max).exp()  # (N,)
            weights = logits.sub_(running_max[:, None]).exp_()  # (N, B)
            total = total * shrink + weights.sum(dim=1)
            weighted_sum = weighted_sum * shrink[:, None] + weights @ rows
        gradient = (weighted_sum / total[:, None] - key) / temperature  # (N, D)
        ctx.save_for_backward(query, gradient, temperature)
        correct = positive > hardest
        ctx.mark_non_differentiable(correct, masked)
        return running_max - positive + total.log(), correct, masked

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        query, gradient, temperature = ctx.saved_tensors
        gradient = gradient * grads[0][:, None]  # (N, D)
        return gradient, None, None, -(query * gradient).sum() / temperature, None, None, None


def _rows_with_batch_texts(query_ids: Tensor, queue_ids: Tensor, size: int) -> tuple[Tensor, ...]:
    """For each block, its rows that share a text with the batch, usually none; the host waits for the device here."""
    texts = query_ids.flatten().sort().values  # (2 N,)
    found = [(texts[torch.searchsorted(texts, ids, right=True) - 1] == ids).any(1) for ids in queue_ids.split(1 << 17)]
    shared = torch.cat(found).nonzero().squeeze(1)
    if not len(shared):
        return (shared,) * math.ceil(len(queue_ids) / size)
    starts = torch.arange(size, max(size, len(queue_ids)), size, device=shared.device)  # of all blocks but the first
    return shared.tensor_split(torch.searchsorted(shared, starts).tolist())
