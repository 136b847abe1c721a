"""Losses that compare all pairs of a batch, computed in micro-batches with the gradients of the whole batch.

With several micro-batches, each is encoded twice (GradCache: Gao et al., 2021). The first pass keeps only the vectors,
which determine the loss of the whole batch and its gradient with respect to each vector. The second pass repeats the
same dropout and propagates these gradients through the encoder. It needs only the memory of one micro-batch.

Shapes: N pairs in a micro-batch, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dualmoco.training.batches import PairBatch
from dualmoco.training.config import TrainConfig
from dualmoco.training.objective import FLOAT_BYTES, Metrics, Objective, ObjectiveCost


@dataclass(frozen=True)
class CachedGradients:
    """Input of the second pass over a micro-batch."""

    gradients: list[Tensor]  # (N, D) each: gradient of the loss for the vectors of this micro-batch, times their number
    metrics: Metrics  # metrics of the whole batch
    random: tuple[Tensor, ...]  # state of the random numbers before the first pass


class WholeBatchObjective(Objective):
    """An objective whose loss compares every pair with all others of the batch, across micro-batches."""

    @classmethod
    def cost(cls, config: TrainConfig, dimension: int, devices: int = 1) -> ObjectiveCost:
        """Scores of the whole batch, and one more pass if there are several micro-batches."""
        batch, dimensions = config.optimizer.batch_size, config.contrast.prefixes(dimension)
        return ObjectiveCost(
            extra_forwards=int(config.optimizer.accumulate > 1),
            operations=12.0 * batch * batch * sum(dimensions),
            scores=8 * FLOAT_BYTES * math.ceil(batch / devices) * batch * len(dimensions),
        )

    def encode_batch(self, batch: PairBatch) -> list[Tensor]:
        """The vectors (N, D) for `compare`."""
        raise NotImplementedError

    def compare(self, vectors: Sequence[Tensor], src_ids: Tensor, tgt_ids: Tensor) -> Metrics:
        """The metrics of the batch."""
        raise NotImplementedError

    def begin_step(self, micro_batches: Sequence[PairBatch]) -> list[CachedGradients | None]:
        """Computes the gradients for all vectors of the batch if it has several micro-batches."""
        if len(micro_batches) == 1:
            return [None]
        states, encoded = [], []
        with torch.no_grad():
            for batch in micro_batches:
                states.append(_random_state(batch.src_ids.device))
                encoded.append(self.encode_batch(batch))
        whole = [torch.cat(parts).float().requires_grad_() for parts in zip(*encoded, strict=True)]
        src_ids, tgt_ids = (
            torch.cat([getattr(batch, name) for batch in micro_batches]) for name in ("src_ids", "tgt_ids")
        )
        metrics = self.compare(whole, src_ids, tgt_ids)
        found = torch.autograd.grad(metrics["loss"], whole)
        sizes, count = [len(batch.src_ids) for batch in micro_batches], len(micro_batches)  # the trainer divides by it
        parts = zip(*((count * gradient).split(sizes) for gradient in found), strict=True)
        known = {name: value.detach() for name, value in metrics.items()}
        return [CachedGradients(list(part), known, state) for part, state in zip(parts, states, strict=True)]

    def forward(self, batch: PairBatch, prepared: CachedGradients | None) -> Metrics:
        """The metrics of the batch; the gradient of `loss` is this micro-batch's share of the gradient."""
        if prepared is None:
            return self.compare(self.encode_batch(batch), batch.src_ids, batch.tgt_ids)
        with _repeated_random(prepared.random, batch.src_ids.device):
            vectors = self.encode_batch(batch)
        share = sum((own.float() * gradient).sum() for own, gradient in zip(vectors, prepared.gradients, strict=True))
        assert isinstance(share, Tensor)
        return {**prepared.metrics, "loss": prepared.metrics["loss"] + share - share.detach()}


def _random_state(device: torch.device) -> tuple[Tensor, ...]:
    """The state of the random numbers of the CPU and of another device."""
    cpu = torch.get_rng_state()
    return (cpu,) if device.type == "cpu" else (cpu, torch.get_device_module(device).get_rng_state(device))


@contextmanager
def _repeated_random(state: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Draws random numbers from an earlier state inside the block, then restores the current state."""
    present = _random_state(device)
    _set_random_state(state, device)
    try:
        yield
    finally:
        _set_random_state(present, device)


def _set_random_state(state: tuple[Tensor, ...], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state[1], device)
