"""The settings of a training run: one frozen dataclass a topic, filled from a YAML recipe by `config.py`.

Defaults are the paper's (appendix A and B) where it gives a value.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, cast

from dualmoco.core.options import VectorPrecision
from dualmoco.data.recipe import DataConfig
from dualmoco.models.recipe import EncoderConfig


class ObjectiveName(StrEnum):
    """What is minimised."""

    dual_moco = "dual-moco"
    in_batch = "in-batch"
    distill = "distill"
    nli = "nli"
    simcse = "simcse"


class MixedPrecision(StrEnum):
    """Arithmetic of the forward pass; bf16 and fp16 are meant for GPUs."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class NliFeatures(StrEnum):
    """What the NLI classifier sees of two sentence vectors u and v."""

    concat = "concat"  # u, v
    sbert = "sbert"  # u, v, |u-v|
    infersent = "infersent"  # u, v, |u-v|, u*v


@dataclass(frozen=True)
class ContrastConfig:
    """The paper's section 2."""

    queue_size: int = 409_600  # negatives; of a frozen side so many random keys
    temperature: float = 0.04
    learn_temperature: bool = False
    momentum: float = 0.999  # 0 shares the parameters: the paper's "w/o momentum"
    momentum_start: float = -1.0  # ramp linearly from here ...
    momentum_ramp: int = 0  # ... over this many steps; 0: no ramp
    batch_keys: bool = False  # score against the current batch's keys as well
    key_dropout: bool = False  # dropout in the momentum encoders
    mask_repeats: bool = True  # a text of the pair that stands again among the negatives is none; false to measure that
    key_precision: VectorPrecision = VectorPrecision.fp16  # of a frozen side's keys on disk
    hard_negatives: int = 0  # of a frozen side: so many keys close to each pair's own, beside the random ones
    margin: float = 0.0  # in-batch only: LaBSE's additive margin


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with warm-up and cosine decay."""

    lr: float = 4e-5  # peak
    warmup_steps: int = 400
    weight_decay: float = 1e-4
    clip: float = 10.0  # largest norm of the gradient
    batch_size: int = 1024  # pairs in one step, over all processes
    accumulate: int = 1  # micro-batches that a process's share of the batch is computed in
    gradient_checkpointing: bool = False
    precision: MixedPrecision = MixedPrecision.fp32
    compile: bool = False  # torch.compile the encoders


@dataclass(frozen=True)
class ScheduleConfig:
    """How long to train (exactly one of epochs, steps, minutes) and what to do on the way, in steps."""

    epochs: float = 0.0
    steps: int = 0
    minutes: float = 0.0
    evaluate_every: int = 500
    checkpoint_every: int = 500
    log_every: int = 10
    patience: int = 0  # stop after this many evaluations without a better score; 0: never
    keep: int = 2  # checkpoints
    tensorboard: bool = False


@dataclass(frozen=True)
class NliConfig:
    """Natural language inference beside the contrast (appendix B), or alone."""

    train: list[str] = field(default_factory=list)  # SNLI/MNLI jsonl or premise, hypothesis, label TSV; empty: no NLI
    heldout: int = 2000
    side: str = "src"  # whose encoder reads it: src or tgt
    features: NliFeatures = NliFeatures.infersent
    hidden: int = 256
    dropout: float = 0.1
    batch_size: int = 128
    weight: float = 0.1  # alpha


@dataclass(frozen=True)
class TrainConfig:
    """Everything `dualmoco train` needs to know."""

    out: str = ""  # the run folder
    seed: int = 0
    objective: ObjectiveName = ObjectiveName.dual_moco
    teacher: str = ""  # distill: the model to copy, which reads src
    src: EncoderConfig = field(default_factory=EncoderConfig)
    tgt: EncoderConfig = field(default_factory=EncoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    contrast: ContrastConfig = field(default_factory=ContrastConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    nli: NliConfig = field(default_factory=NliConfig)

    @property
    def frozen(self) -> str:
        """The side that stays as it is, src or tgt; empty if both learn."""
        return "src" if self.src.frozen else "tgt" if self.tgt.frozen else ""

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON types."""
        return cast("dict[str, Any]", json.loads(json.dumps(asdict(self))))

    def fingerprint(self) -> str:
        """A short hash of every setting but the places of the run and of the data."""
        settings = self.to_dict() | {"out": ""}
        settings["data"]["root"] = ""
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
