"""Natural language inference as a second task beside a contrastive one, or as the only one (appendix B).

Takes `NliBatch` from `batching.py`, gives metrics to `loop.py`. Shapes: N examples, D dimension.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualmoco.core.errors import ModelError
from dualmoco.core.storage import write_json
from dualmoco.data.nli import LABELS
from dualmoco.models.folder import NLI_FOLDER, WEIGHTS_FILE
from dualmoco.models.network import Encoder
from dualmoco.training.batches import NliBatch, PairBatch
from dualmoco.training.config import NliConfig, NliFeatures
from dualmoco.training.objectives import Metrics, Objective


class NliClassifier(nn.Sequential):
    """Two layers over what `NliFeatures` names of two sentence vectors (appendix B)."""

    def __init__(self, dimension: int, features: NliFeatures, hidden: int, dropout: float) -> None:
        self.dimension, self.features = dimension, features
        self.inputs = {NliFeatures.concat: 2, NliFeatures.sbert: 3, NliFeatures.infersent: 4}[features]
        super().__init__(
            nn.Linear(self.inputs * dimension, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, len(LABELS))
        )

    def compare(self, u: Tensor, v: Tensor) -> Tensor:
        """Scores (N, 3) of the labels for premises u (N, D) and hypotheses v (N, D)."""
        logits: Tensor = self(torch.cat([u, v, (u - v).abs(), u * v][: self.inputs], dim=1))
        return logits


class NliHead(nn.Module):
    """An encoder and the classifier over its vectors."""

    def __init__(self, encoder: Encoder, config: NliConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = NliClassifier(encoder.dimension, config.features, config.hidden, config.dropout)

    def forward(self, batch: NliBatch) -> Tensor:
        """Scores of the three labels, shape (N, 3)."""
        return self.classifier.compare(self.encoder(batch.premise), self.encoder(batch.hypothesis))


def save_classifier(classifier: NliClassifier, lang: str, model: Path) -> None:
    """Writes the classifier into its model's folder, beside what sentence-transformers reads.

    Args:
        classifier: The trained one.
        lang: The language of the encoder it was trained with.
        model: A model folder that is being written.
    """
    folder = model / NLI_FOLDER
    folder.mkdir()
    save_file(
        {name: value.cpu().contiguous() for name, value in classifier.state_dict().items()}, folder / WEIGHTS_FILE
    )
    hidden = classifier[0].out_features
    settings = {"lang": lang, "width": classifier.dimension, "features": classifier.features.value, "hidden": hidden}
    write_json(folder / "config.json", settings)


def load_classifier(model: Path) -> tuple[NliClassifier, str]:
    """Opens the classifier of a model.

    Args:
        model: A model folder.

    Returns:
        The classifier in evaluation mode, and the language of its encoder.

    Raises:
        ModelError: The model has none, or a damaged one.
    """
    folder = model / NLI_FOLDER
    if not folder.is_dir():
        raise ModelError(f"{model}: has no NLI head; expected a model trained with nli.train, see paper-nli.yaml")
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        features = NliFeatures(settings["features"])
        classifier = NliClassifier(settings["width"], features, settings["hidden"], dropout=0.0)
        classifier.load_state_dict(load_file(folder / WEIGHTS_FILE))
        return classifier.eval(), str(settings["lang"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: cannot be opened as an NLI head: {error}; save the model again") from None


class MultiTask(Objective):
    """Another objective plus alpha times NLI (appendix B), or NLI alone: SBERT-NLI and InferSent."""

    def __init__(self, base: Objective | None, head: NliHead, weight: float) -> None:
        super().__init__()
        self.base, self.head, self.weight = base, head, weight

    def begin_step(self, micro_batches: Sequence[Any]) -> list[Any]:
        """Prepares the base objective's step."""
        return self.base.begin_step(micro_batches) if self.base else [None] * len(micro_batches)

    def forward(self, batch: PairBatch, prepared: Any, nli: NliBatch) -> Metrics:
        """The weighted sum, with both losses and accuracies apart."""
        logits = self.head(nli)  # (N, 3)
        loss = cross_entropy(logits, nli.labels)
        metrics = {"nli_loss": loss.detach(), "nli_accuracy": (logits.argmax(dim=1) == nli.labels).float().mean()}
        if self.base is None:
            return {"loss": loss, "accuracy": metrics["nli_accuracy"], **metrics}
        base: Metrics = self.base(batch, prepared)
        return {**base, **metrics, "loss": base["loss"] + self.weight * loss}

    def update_momentum(self, momentum: float) -> None:
        """Moves the base objective's momentum encoders."""
        if self.base:
            self.base.update_momentum(momentum)

    def end_step(self, prepared: Sequence[Any]) -> None:
        """Finishes the base objective's step."""
        if self.base:
            self.base.end_step(prepared)

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """The base objective's metrics."""
        return self.base.state_metrics(batch_size) if self.base else {}
