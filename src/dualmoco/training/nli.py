"""Natural language inference as a second task next to another objective, or as the only task (appendix B).

The source encoder reads the examples. Shapes: N examples, D dimension.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualmoco.core.config_loader import Rule
from dualmoco.core.errors import ModelError
from dualmoco.core.progress import Progress
from dualmoco.core.storage import write_json
from dualmoco.data.nli_examples import LABELS, NliExample, load_nli
from dualmoco.models.folder import NLI_FOLDER, WEIGHTS_FILE
from dualmoco.models.network import Encoder, TokenParts
from dualmoco.training.batches import Batch, BatchOrder, Loader, ShardSpec, Tokenize
from dualmoco.training.config import NliConfig, NliFeatures, TrainConfig
from dualmoco.training.objective import HeldoutTask, Metrics, Objective, ObjectiveCost, RunInputs

HELDOUT_EXAMPLES = 256  # examples per batch


@dataclass(frozen=True)
class NliBatch:
    """NLI examples as tokens: N premises and hypotheses, and labels (N,)."""

    premise: TokenParts
    hypothesis: TokenParts
    labels: Tensor
    pair_tokens: ClassVar[int] = 0

    @property
    def tokens(self) -> int:
        """Tokens of both sentences, including padding."""
        return self.premise.count + self.hypothesis.count

    def to(self, device: torch.device) -> NliBatch:
        """The batch on a device."""
        return NliBatch(self.premise.to(device), self.hypothesis.to(device), self.labels.to(device))


def make_nli_batch(examples: Sequence[NliExample], tokenize: Tokenize) -> NliBatch:
    """Tokenizes NLI examples."""
    return NliBatch(
        TokenParts.split(tokenize([example.premise for example in examples])),
        TokenParts.split(tokenize([example.hypothesis for example in examples])),
        torch.tensor([example.label for example in examples]),
    )


class NliLoader:
    """The micro-batches of NLI examples that this process computes."""

    def __init__(
        self, examples: Sequence[NliExample], batch_size: int, tokenize: Tokenize, shard: ShardSpec, *, seed: int
    ) -> None:
        self.examples, self.tokenize, self.shard = examples, tokenize, shard
        self.order = BatchOrder.unsorted(len(examples), batch_size, seed=seed)
        self.batches_per_epoch = self.order.batches_per_epoch

    def step(self, step: int) -> list[NliBatch]:
        """The micro-batches of a step."""
        parts = self.shard.split(self.order.rows(step))
        return [make_nli_batch([self.examples[row] for row in rows.tolist()], self.tokenize) for rows in parts]


class NliClassifier(nn.Sequential):
    """Two layers over the features of two sentence vectors."""

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
    """An encoder and the classifier on its vectors."""

    def __init__(self, encoder: Encoder, config: NliConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = NliClassifier(encoder.dimension, config.features, config.hidden, config.dropout)

    def forward(self, batch: NliBatch) -> Tensor:
        """Scores (N, 3) of the labels."""
        return self.classifier.compare(self.encoder(batch.premise), self.encoder(batch.hypothesis))


def load_classifier(model: Path) -> tuple[NliClassifier, str]:
    """Opens the classifier that `Nli.save_files` wrote, in evaluation mode, with the language of its encoder."""
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


@torch.inference_mode()
def nli_accuracy(examples: Sequence[NliExample], head: NliHead, progress: Progress) -> float:
    """The share of examples that are classified correctly; leaves the head in evaluation mode."""
    head.eval()
    device = next(head.parameters()).device
    right = 0
    for start in range(0, len(examples), HELDOUT_EXAMPLES):
        batch = make_nli_batch(examples[start : start + HELDOUT_EXAMPLES], head.encoder.tokenize).to(device)
        right += int((head(batch).argmax(dim=1) == batch.labels).sum())
        progress(2 * len(batch.labels))
    return right / len(examples)


class Nli(Objective):
    """Only NLI: SBERT-NLI and InferSent. Only the source encoder is trained, unless both languages share it."""

    is_alone: ClassVar[bool] = True

    def __init__(self, src: Encoder, tgt: Encoder, config: TrainConfig) -> None:
        super().__init__()
        if tgt is not src:
            tgt.requires_grad_(False)
        self.head, self.lang = NliHead(src, config.nli), config.src.lang

    @classmethod
    def rules(cls, config: TrainConfig) -> list[Rule]:
        """NLI files must be named, and pairs are not used."""
        expected = f"NLI files when objective is {config.objective}"
        stages = config.data.curriculum
        return [
            ("nli.train", config.nli.train, bool(config.nli.train), expected),
            ("data.curriculum", len(stages), not stages, f"no stages when objective is {config.objective}"),
            (
                "data.sampling",
                config.data.sampling,
                config.data.sampling == 1,
                f"1 when objective is {config.objective}",
            ),
        ]

    @classmethod
    def cost(cls, config: TrainConfig, dimension: int, devices: int = 1) -> ObjectiveCost:
        """Two sentences per example, and no pairs."""
        return ObjectiveCost(passes=0, more_src_sentences=2 * config.nli.batch_size)

    @classmethod
    def batch_sizes(cls, config: TrainConfig) -> dict[str, int]:
        """NLI examples are split among micro-batches too."""
        return {**super().batch_sizes(config), "nli.batch_size": config.nli.batch_size}

    @classmethod
    def read_files(cls, config: TrainConfig) -> tuple[list[NliExample], list[NliExample]]:
        """The training examples and the held-out ones."""
        nli = config.nli
        return load_nli(
            nli.train, root=config.data.root, heldout=nli.heldout, batch_size=nli.batch_size, seed=config.seed
        )

    def make_loader(self, inputs: RunInputs) -> Loader:
        """Batches of NLI examples."""
        return self.make_nli_loader(inputs)

    def make_nli_loader(self, inputs: RunInputs) -> NliLoader:
        """Batches of the training examples."""
        config, tokenize = inputs.config, self.head.encoder.tokenize
        return NliLoader(inputs.files[0], config.nli.batch_size, tokenize, inputs.shard, seed=config.seed)

    def make_heldout_task(self, inputs: RunInputs) -> HeldoutTask:
        """Accuracy on held-out examples, which chooses the best model if NLI is the only task."""
        examples = inputs.files[1]
        return HeldoutTask(partial(nli_accuracy, examples, self.head), 2 * len(examples), self.is_alone)

    def forward(self, batch: NliBatch, prepared: None) -> Metrics:
        """Cross-entropy over the three labels."""
        logits = self.head(batch)  # (N, 3)
        loss, accuracy = cross_entropy(logits, batch.labels), (logits.argmax(dim=1) == batch.labels).float().mean()
        return {"loss": loss, "accuracy": accuracy, "nli_loss": loss.detach(), "nli_accuracy": accuracy}

    def save_files(self, folder: Path) -> None:
        """Writes the classifier into a separate folder, next to the files of sentence-transformers."""
        (folder / NLI_FOLDER).mkdir()
        classifier = self.head.classifier
        weights = {name: value.cpu().contiguous() for name, value in classifier.state_dict().items()}
        save_file(weights, folder / NLI_FOLDER / WEIGHTS_FILE)
        settings = {
            "lang": self.lang,
            "width": classifier.dimension,
            "features": classifier.features.value,
            "hidden": classifier[0].out_features,
        }
        write_json(folder / NLI_FOLDER / "config.json", settings)


@dataclass(frozen=True)
class MultiTaskBatch:
    """A micro-batch of the other objective and one of NLI."""

    base: Batch
    nli: NliBatch

    @property
    def pair_tokens(self) -> int:
        """Tokens of sentence pairs, including padding."""
        return self.base.pair_tokens

    @property
    def tokens(self) -> int:
        """Tokens of both, including padding."""
        return self.base.tokens + self.nli.tokens

    def to(self, device: torch.device) -> MultiTaskBatch:
        """The batch on a device."""
        return MultiTaskBatch(self.base.to(device), self.nli.to(device))


@dataclass(frozen=True)
class MultiTaskLoader:
    """The batches of two loaders side by side; epochs are those of the first loader."""

    base: Loader
    nli: NliLoader

    @property
    def batches_per_epoch(self) -> int:
        """Steps of an epoch."""
        return self.base.batches_per_epoch

    def step(self, step: int) -> list[MultiTaskBatch]:
        """The micro-batches of a step."""
        return [MultiTaskBatch(*both) for both in zip(self.base.step(step), self.nli.step(step), strict=True)]


class MultiTask(Nli):
    """Another objective plus alpha times NLI (appendix B)."""

    is_alone = False
    base_class: ClassVar[type[Objective]]

    def __init__(self, src: Encoder, tgt: Encoder, config: TrainConfig) -> None:
        nn.Module.__init__(self)
        self.base = self.base_class(src, tgt, config)
        self.head, self.lang, self.weight = NliHead(src, config.nli), config.src.lang, config.nli.weight

    @classmethod
    def rules(cls, config: TrainConfig) -> list[Rule]:
        """The rules of the other objective, and an encoder to train."""
        expected = "false when nli.train names files: NLI trains this encoder"
        return [*cls.base_class.rules(config), ("src.frozen", True, not config.src.frozen, expected)]

    @classmethod
    def cost(cls, config: TrainConfig, dimension: int, devices: int = 1) -> ObjectiveCost:
        """The other objective's cost, and two sentences per NLI example."""
        base = cls.base_class.cost(config, dimension, devices)
        return replace(base, more_src_sentences=base.more_src_sentences + 2 * config.nli.batch_size)

    def make_loader(self, inputs: RunInputs) -> Loader:
        """Batches of both tasks."""
        return MultiTaskLoader(self.base.make_loader(inputs), self.make_nli_loader(inputs))

    def begin_step(self, micro_batches: Sequence[MultiTaskBatch]) -> list[Any]:
        """Prepares the other objective's step."""
        return self.base.begin_step([batch.base for batch in micro_batches])

    def forward(self, batch: MultiTaskBatch, prepared: Any) -> Metrics:  # type: ignore[override]
        """The weighted sum, and the metrics of both tasks."""
        nli = super().forward(batch.nli, None)
        base: Metrics = self.base(batch.base, prepared)
        loss = base["loss"] + self.weight * nli["loss"]
        return {**base, "nli_loss": nli["nli_loss"], "nli_accuracy": nli["nli_accuracy"], "loss": loss}

    def update_momentum(self, momentum: float) -> None:
        """Moves the other objective's momentum encoders."""
        self.base.update_momentum(momentum)

    def end_step(self, prepared: Sequence[Any]) -> None:
        """Finishes the other objective's step."""
        self.base.end_step(prepared)

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """The other objective's state."""
        return self.base.state_metrics(batch_size)

    def momentum_encoders(self) -> dict[str, nn.Module]:
        """Same as in the other objective."""
        return self.base.momentum_encoders()

    def constant_modules(self) -> list[nn.Module]:
        """Same as in the other objective."""
        return self.base.constant_modules()

    def save_files(self, folder: Path) -> None:
        """Writes the files that both tasks add to the model."""
        super().save_files(folder)
        self.base.save_files(folder)


def with_nli(objective: type[Objective]) -> type[Objective]:
    """The class that trains NLI next to an objective; an NLI objective is not changed."""
    if issubclass(objective, Nli):
        return objective
    own = {"base_class": objective, "options": objective.options, "trains_prefixes": objective.trains_prefixes}
    return type("MultiTask", (MultiTask,), own)
