"""What a training step minimises: dual momentum contrast, and the systems the paper compares it with.

Takes batches from `batching.py`, gives metrics (among them the loss) to `loop.py`. Every objective has the same
three calls a step: `begin_step`, `forward` for each micro-batch, `end_step` after the optimiser.

Shapes: N pairs in a micro-batch, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from dualmoco.core.errors import ConfigError
from dualmoco.models.network import Encoder
from dualmoco.training.batches import PairBatch
from dualmoco.training.config import ContrastConfig
from dualmoco.training.contrast import DualMomentumContrast, KeyBatch
from dualmoco.training.distributed import gather_rows, gather_with_gradient, process_rank
from dualmoco.training.infonce import is_false_negative

Metrics = dict[str, Tensor]


class Objective(nn.Module):
    """One way of training two encoders."""

    def begin_step(self, micro_batches: Sequence[Any]) -> list[Any]:
        """Prepares a step; what it returns for each micro-batch is handed to `forward`."""
        return [None] * len(micro_batches)

    def update_momentum(self, momentum: float) -> None:
        """Moves momentum encoders, if there are any, after the optimizer's step."""

    def end_step(self, prepared: Sequence[Any]) -> None:
        """Finishes a step."""

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """Metrics of the state between steps of `batch_size` pairs, for the log."""
        return {}


class DualMoco(Objective):
    """The paper's method: see `contrast.py`."""

    def __init__(self, src: Encoder, tgt: Encoder, config: ContrastConfig) -> None:
        super().__init__()
        self.batch_keys = config.batch_keys
        self.contrast = DualMomentumContrast(
            src,
            tgt,
            dimension=src.dimension,
            queue_size=config.queue_size,
            temperature=config.temperature,
            learn_temperature=config.learn_temperature,
            key_dropout=config.key_dropout,
        )

    def begin_step(self, micro_batches: Sequence[PairBatch]) -> list[KeyBatch]:
        """Encodes the keys of the whole step: they carry no gradient, so micro-batches see what one batch would."""
        keys = [self.contrast.encode_keys(part.src, part.tgt, part.src_ids, part.tgt_ids) for part in micro_batches]
        if self.batch_keys:
            self._enqueue(keys)
        return keys

    def forward(self, batch: PairBatch, keys: KeyBatch) -> Metrics:
        """Both directions of equation 2 for one micro-batch."""
        metrics: Metrics = self.contrast(batch.src, batch.tgt, keys)
        return metrics

    def update_momentum(self, momentum: float) -> None:
        """Equation 1 for both momentum encoders."""
        self.contrast.update_momentum(momentum)

    def end_step(self, prepared: Sequence[KeyBatch]) -> None:
        """Enqueues the keys unless `begin_step` has done so."""
        if not self.batch_keys:
            self._enqueue(prepared)

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """How full the queues are and how many steps ago their oldest row came."""
        filled = len(self.contrast.src_queue)
        return {
            "queue_fill": filled / len(self.contrast.src_queue.vectors),
            "queue_age": filled / batch_size,
            "temperature": self.contrast.log_temperature.exp().item(),
        }

    def _enqueue(self, keys: Sequence[KeyBatch]) -> None:
        """Keys of all micro-batches and processes in one order: all replicas of the queues stay equal."""
        joined = (gather_rows(torch.cat([getattr(part, name) for part in keys])) for name in ("src", "tgt", "ids"))
        self.contrast.enqueue(KeyBatch(*joined))


class InBatch(Objective):
    """Translation ranking against the other pairs of the batch, both ways, with LaBSE's additive margin."""

    def __init__(self, src: Encoder, tgt: Encoder, config: ContrastConfig) -> None:
        super().__init__()
        self.src_encoder, self.tgt_encoder, self.config = src, tgt, config

    def forward(self, batch: PairBatch, prepared: None) -> Metrics:
        """Cross-entropy over the pairs of one micro-batch, on all processes together."""
        src, tgt = self.src_encoder(batch.src), self.tgt_encoder(batch.tgt)  # (N, D) each
        src_to_tgt = self._rank(src, tgt, batch.src_ids, batch.tgt_ids)
        tgt_to_src = self._rank(tgt, src, batch.tgt_ids, batch.src_ids)
        return {"loss": src_to_tgt[0] + tgt_to_src[0], "accuracy": (src_to_tgt[1] + tgt_to_src[1]) / 2}

    def _rank(self, query: Tensor, key: Tensor, query_ids: Tensor, key_ids: Tensor) -> tuple[Tensor, Tensor]:
        """One direction."""
        config = self.config
        return rank_translations(query, key, query_ids, key_ids, temperature=config.temperature, margin=config.margin)


def rank_translations(
    query: Tensor, key: Tensor, query_ids: Tensor, key_ids: Tensor, *, temperature: float, margin: float = 0.0
) -> tuple[Tensor, Tensor]:
    """In-batch InfoNCE with gradients on both sides; keys of all processes are candidates.

    Args:
        query: Unit vectors of shape (N, D).
        key: Unit vectors of shape (N, D), row i being the translation of query i.
        query_ids: Text ids of the queries, shape (N,).
        key_ids: Text ids of the keys, shape (N,).
        temperature: Positive.
        margin: Taken off the positives' scores.

    Returns:
        The mean loss and the share of queries whose translation is nearest, scalars.
    """
    first = process_rank() * len(query)
    ids = torch.stack([query_ids, key_ids], dim=1)  # (N, 2)
    scores = query @ gather_with_gradient(key).T  # (N, world * N)
    labels = torch.arange(first, first + len(query), device=query.device)
    positive = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, labels[:, None], True)
    scores = scores - margin * positive
    false = is_false_negative(ids, gather_rows(ids.flip(1))) & ~positive
    logits = (scores / temperature).masked_fill(false, torch.finfo(scores.dtype).min)
    return cross_entropy(logits, labels), (logits.argmax(dim=1) == labels).float().mean()


class Distill(Objective):
    """SBERT-p (Reimers and Gurevych, 2020): both encoders copy a teacher's vectors of the source sentences."""

    def __init__(self, src: Encoder, tgt: Encoder, teacher: Encoder) -> None:
        super().__init__()
        if teacher.dimension != src.dimension:
            raise ConfigError(
                f"the teacher's vectors have dimension {teacher.dimension}, the encoders' {src.dimension}; expected "
                f"the same: set src.projection={teacher.dimension} and tgt.projection={teacher.dimension}"
            )
        self.src_encoder, self.tgt_encoder = src, tgt
        self.teacher = teacher.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Distill:
        """Sets training mode; the teacher never trains."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: PairBatch, prepared: None) -> Metrics:
        """Squared distance of both students' unit vectors from the teacher's, summed over D."""
        src, tgt = self.src_encoder(batch.src), self.tgt_encoder(batch.tgt)  # (N, D) each
        with torch.no_grad():
            features = self.teacher.tokenize(batch.src_texts)
            goal = self.teacher({name: value.to(src.device) for name, value in features.items()})  # (N, D)
        loss = (mse_loss(src, goal) + mse_loss(tgt, goal)) * goal.shape[1]
        labels = torch.arange(len(src), device=src.device)
        return {"loss": loss, "accuracy": ((src @ tgt.T).argmax(dim=1) == labels).float().mean()}


class SimCse(Objective):
    """Unsupervised SimCSE (Gao et al., 2021) in each language: a sentence against itself under other dropout."""

    def __init__(self, src: Encoder, tgt: Encoder, config: ContrastConfig) -> None:
        super().__init__()
        self.src_encoder, self.tgt_encoder = src, tgt
        self.temperature = config.temperature

    def forward(self, batch: PairBatch, prepared: None) -> Metrics:
        """Cross-entropy over the sentences of one micro-batch, in both languages."""
        losses, accuracies = zip(
            self._views(self.src_encoder, batch.src, batch.src_ids),
            self._views(self.tgt_encoder, batch.tgt, batch.tgt_ids),
            strict=True,
        )
        return {"loss": torch.stack(losses).sum(), "accuracy": torch.stack(accuracies).mean()}

    def _views(self, encoder: Encoder, features: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
        return rank_translations(encoder(features), encoder(features), ids, ids, temperature=self.temperature)
