"""Natural language inference as a second task beside a contrastive one, or as the only one (appendix B).

Takes `NliBatch` from `batching.py`, gives figures to `training.py`. Shapes: N examples, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualmoco.batching import NliBatch, PairBatch
from dualmoco.config import NliConfig, NliFeatures
from dualmoco.corpus.nli import LABELS
from dualmoco.encoders import Encoder
from dualmoco.objectives import Figures, Objective


class NliHead(nn.Module):
    """The classifier of appendix B: two layers over what `NliFeatures` names of two sentence vectors."""

    def __init__(self, encoder: Encoder, config: NliConfig) -> None:
        super().__init__()
        self.encoder, self.features = encoder, config.features
        inputs = {NliFeatures.concat: 2, NliFeatures.sbert: 3, NliFeatures.infersent: 4}[config.features]
        self.classifier = nn.Sequential(
            nn.Linear(inputs * encoder.width, config.hidden), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(config.hidden, len(LABELS)),
        )  # fmt: skip

    def forward(self, batch: NliBatch) -> Tensor:
        """Scores of the three labels, shape (N, 3)."""
        u, v = self.encoder(batch.premise), self.encoder(batch.hypothesis)  # (N, D) each
        parts = [u, v, (u - v).abs(), u * v][: self.classifier[0].in_features // u.shape[1]]
        logits: Tensor = self.classifier(torch.cat(parts, dim=1))
        return logits


class WithNli(Objective):
    """Another objective plus alpha times NLI (appendix B), or NLI alone: SBERT-NLI and InferSent."""

    def __init__(self, base: Objective | None, head: NliHead, weight: float) -> None:
        super().__init__()
        self.base, self.head, self.weight = base, head, weight

    def begin_step(self, pieces: Sequence[Any]) -> list[Any]:
        """Prepares the base objective's step."""
        return self.base.begin_step(pieces) if self.base else [None] * len(pieces)

    def forward(self, batch: PairBatch, prepared: Any, nli: NliBatch) -> Figures:
        """The weighted sum, with both losses and accuracies apart."""
        logits = self.head(nli)  # (N, 3)
        loss = cross_entropy(logits, nli.labels)
        figures = {"nli_loss": loss.detach(), "nli_accuracy": (logits.argmax(dim=1) == nli.labels).float().mean()}
        if self.base is None:
            return {"loss": loss, "accuracy": figures["nli_accuracy"], **figures}
        base: Figures = self.base(batch, prepared)
        return {**base, **figures, "loss": base["loss"] + self.weight * loss}

    def end_step(self, prepared: Sequence[Any], momentum: float) -> None:
        """Finishes the base objective's step."""
        if self.base:
            self.base.end_step(prepared, momentum)

    def health(self, batch_size: int) -> dict[str, float]:
        """The base objective's figures."""
        return self.base.health(batch_size) if self.base else {}
