"""The settings of a training run: one frozen dataclass per topic, with the rules for its values.

Defaults are the paper's (appendix A and B) where it gives a value. docs/reference/recipe-keys.md lists all keys; it
is generated from the comments here.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, cast

from dualmoco.core.config_loader import Rule
from dualmoco.core.errors import ConfigError
from dualmoco.data.config import DataConfig
from dualmoco.models.config import Attention, EncoderConfig, EncoderKind, ProjectionInit

SCHEDULE_LENGTHS = ("epochs", "steps", "minutes")
"""Keys of `schedule` that say how long to train; a run can be resumed with a higher one."""
LEAST_TEMPERATURE = 0.01  # lower bound of a learned temperature; as in CLIP, cosines are scaled by at most 100
FREE_SETTINGS = {
    "out": "",
    "data.root": "",
    "optimizer.accumulate": "the result changes by rounding and by random dropout",
    "optimizer.gradient_checkpointing": "",
    "schedule.evaluate": "",
    "schedule.checkpoint_every": "",
    "schedule.log_every": "",
    "schedule.keep": "",
    "schedule.trackers": "",
}
"""Settings that affect neither learning nor the choice of the best model, with a note on what else changes.

They are not part of a run's fingerprint, and a run can be resumed with other values. `schedule.evaluate_every` is not
among them, because it decides which models are compared.
"""


class MixedPrecision(StrEnum):
    """Arithmetic of the forward pass; bf16 and fp16 are meant for GPUs."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class MatmulPrecision(StrEnum):
    """How a GPU multiplies matrices of fp32; sums are fp32 in both cases."""

    fp32 = "fp32"
    tf32 = "tf32"  # inputs rounded to mantissas of 10 bits, on NVIDIA GPUs since Ampere


class NliFeatures(StrEnum):
    """What the NLI classifier sees of two sentence vectors u and v."""

    concat = "concat"  # u, v
    sbert = "sbert"  # u, v, |u-v|
    infersent = "infersent"  # u, v, |u-v|, u*v


@dataclass(frozen=True)
class ContrastConfig:
    """The paper's section 2."""

    queue_size: int = 409_600  # negatives; with a frozen encoder, random keys per step
    temperature: float = 0.04  # divides the cosines
    learn_temperature: bool = False  # train the temperature, which stays at least 0.01
    momentum: float = 0.999  # momentum in equation 1; 0 copies the encoders (the paper's "w/o momentum")
    batch_keys: bool = False  # use the keys of the current batch as negatives too
    key_dropout: bool = False  # dropout in the momentum encoders
    mask_repeats: bool = True  # mask negatives that equal a text of the pair
    hard_negatives: int = 0  # frozen encoder: nearest keys of each pair to add to the random ones
    margin: float = 0.0  # in-batch: LaBSE's additive margin
    dimensions: list[int] = field(default_factory=list)  # shorter vectors to train as well, such as [256, 64]

    def rules(self) -> list[Rule]:
        """The requirements on these settings."""
        temperature, momentum, dimensions = self.temperature, self.momentum, self.dimensions
        descends = all(map(int.__gt__, dimensions, [*dimensions[1:], 0]))
        return [
            ("contrast.queue_size", self.queue_size, self.queue_size > 0, "at least 1"),
            ("contrast.temperature", temperature, 0 < temperature < math.inf, "above 0, for example 0.04"),
            (
                "contrast.temperature",
                temperature,
                not self.learn_temperature or temperature >= LEAST_TEMPERATURE,
                f"at least {LEAST_TEMPERATURE} when contrast.learn_temperature is true",
            ),
            ("contrast.momentum", momentum, 0 <= momentum < 1, "from 0 to below 1, for example 0.999"),
            ("contrast.dimensions", dimensions, descends, "numbers above 0 from high to low, for example [256, 64]"),
        ]

    def prefixes(self, dimension: int) -> list[int]:
        """The dimensions to train, starting with that of the encoders; ConfigError if one is larger."""
        shorter = [number for number in self.dimensions if number != dimension]
        if shorter and shorter[0] > dimension:
            raise ConfigError(
                f"contrast.dimensions is {self.dimensions}; expected at most {dimension}, the dimension of the encoders"
            )
        return [dimension, *shorter]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with warm-up and cosine decay."""

    lr: float = 4e-5  # peak learning rate
    warmup_steps: int = 400  # steps of linear warm-up
    weight_decay: float = 1e-4  # weight decay of AdamW, for matrices and token vectors
    decay_all: bool = False  # weight decay also for biases, LayerNorm and a learned temperature
    clip: float = 10.0  # maximum norm of the gradient
    batch_size: int = 1024  # pairs per step, over all processes
    accumulate: int = 1  # micro-batches per step and process
    gradient_checkpointing: bool = False  # recompute activations in the backward pass to save memory
    precision: MixedPrecision = MixedPrecision.fp32  # precision of the forward pass
    matmul_precision: MatmulPrecision = (
        MatmulPrecision.tf32
    )  # precision of matrix products in fp32, such as scores, on NVIDIA GPUs
    compile: bool = False  # torch.compile the encoders

    def micro_batch_size(self, devices: int) -> int:
        """Pairs that each device computes at a time."""
        return math.ceil(self.batch_size / (devices * self.accumulate))

    def rules(self) -> list[Rule]:
        """The requirements on these settings."""
        return [
            ("optimizer.lr", self.lr, self.lr > 0, "above 0"),
            ("optimizer.warmup_steps", self.warmup_steps, self.warmup_steps >= 0, "at least 0"),
            ("optimizer.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0"),
            ("optimizer.batch_size", self.batch_size, self.batch_size > 1, "at least 2"),
            ("optimizer.accumulate", self.accumulate, self.accumulate > 0, "at least 1"),
            ("optimizer.clip", self.clip, self.clip > 0, "above 0"),
        ]


@dataclass(frozen=True)
class ScheduleConfig:
    """How long to train (exactly one of epochs, steps and minutes), and intervals in steps."""

    epochs: float = 0.0  # passes over the training pairs
    steps: int = 0  # optimizer steps
    minutes: float = 0.0  # minutes of training, without interruptions
    evaluate_every: int = 500  # steps between held-out scores
    evaluate: list[str] = field(
        default_factory=list
    )  # tasks of `dualmoco evaluate` to score and log at each evaluation
    checkpoint_every: int = 500  # steps between checkpoints
    log_every: int = 10  # steps between lines of the log
    patience: int = 0  # stop after this many evaluations without improvement; 0: never
    keep: int = 2  # number of checkpoints to keep
    trackers: list[str] = field(default_factory=list)  # trackers of accelerate to log to: tensorboard, wandb ...

    def rules(self) -> list[Rule]:
        """The requirements on these settings."""
        limits = [limit for limit in (self.epochs, self.steps, self.minutes) if limit > 0]
        return [
            ("schedule", limits, len(limits) == 1, "exactly one of epochs, steps and minutes above 0"),
            ("schedule.evaluate_every", self.evaluate_every, self.evaluate_every > 0, "at least 1"),
            ("schedule.checkpoint_every", self.checkpoint_every, self.checkpoint_every > 0, "at least 1"),
            ("schedule.log_every", self.log_every, self.log_every > 0, "at least 1"),
            ("schedule.keep", self.keep, self.keep > 0, "at least 1"),
        ]


@dataclass(frozen=True)
class NliConfig:
    """Natural language inference (appendix B), which the source encoder reads."""

    train: list[str] = field(default_factory=list)  # SNLI or MNLI jsonl, or TSV of premise, hypothesis, label
    heldout: int = 2000  # examples held out to measure accuracy
    features: NliFeatures = NliFeatures.infersent  # features of two sentence vectors for the classifier
    hidden: int = 256  # width of the classifier
    dropout: float = 0.1  # dropout in the classifier
    batch_size: int = 128  # examples per step, over all processes
    weight: float = 0.1  # weight of the NLI loss: alpha

    def rules(self) -> list[Rule]:
        """The requirements on these settings."""
        return [
            ("nli.heldout", self.heldout, self.heldout > 0, "at least 1"),
            ("nli.batch_size", self.batch_size, self.batch_size > 0, "at least 1"),
            ("nli.dropout", self.dropout, 0 <= self.dropout < 1, "from 0 to below 1"),
        ]


@dataclass(frozen=True)
class LanguageConfig:
    """A further language of a run, which is trained with the source language."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    share: float = 1.0  # batches of this language for each batch of the target language

    def rules(self, key: str) -> list[Rule]:
        """The requirements on the settings of the language `key`, such as languages[0]."""
        kind, stages = self.encoder.kind, len(self.data.curriculum)
        one_of_three = "pretrained, bert or static"
        return [
            (f"{key}.encoder.kind", kind.value, kind != EncoderKind.shared, one_of_three),
            (f"{key}.encoder.frozen", True, not self.encoder.frozen, "false: only src or tgt can be frozen"),
            (f"{key}.share", self.share, 0 < self.share < math.inf, "above 0"),
            (f"{key}.data.curriculum", stages, stages < 2, "at most one stage when a run has several languages"),
            *((f"{key}.{rule[0]}", *rule[1:]) for rule in self.data.rules()),
            *self.encoder.rules(f"{key}.encoder"),
        ]


@dataclass(frozen=True)
class TrainConfig:
    """Everything that `dualmoco train` needs to know."""

    out: str = ""  # the run folder
    seed: int = 0  # random seed
    deterministic: bool = False  # use only deterministic algorithms, which GPUs do not by default
    objective: str = "dual-moco"  # what is minimized: dual-moco, in-batch, distill, nli, simcse or a registered name
    options: dict[str, float] = field(default_factory=dict)  # settings of a registered objective
    teacher: str = ""  # distill: model whose vectors of src sentences are learned
    src: EncoderConfig = field(default_factory=EncoderConfig)
    tgt: EncoderConfig = field(default_factory=EncoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    contrast: ContrastConfig = field(default_factory=ContrastConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    nli: NliConfig = field(default_factory=NliConfig)
    languages: list[LanguageConfig] = field(default_factory=list)  # more languages, each with pairs of src and itself

    @property
    def encoders(self) -> list[EncoderConfig]:
        """The encoders of src, tgt and all further languages."""
        return [self.src, self.tgt, *(language.encoder for language in self.languages)]

    @property
    def frozen(self) -> str:
        """The side whose encoder is frozen, src or tgt; empty if both are trained."""
        return "src" if self.src.frozen else "tgt" if self.tgt.frozen else ""

    @property
    def language_pair(self) -> str:
        """Both languages as in the names of test sets, such as zh-en, with English last."""
        return "-".join(sorted((self.src.lang, self.tgt.lang), key=lambda lang: lang == "en"))

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON types."""
        return cast("dict[str, Any]", json.loads(json.dumps(asdict(self))))

    def fingerprint(self, *, with_length: bool = True) -> str:
        """A short hash of all settings that can change the result, optionally without the length of the schedule."""
        settings = self.to_dict()
        lengths = [] if with_length else [f"schedule.{name}" for name in SCHEDULE_LENGTHS]
        for key in [*FREE_SETTINGS, *lengths]:
            topic, _, name = key.rpartition(".")
            (settings[topic] if topic else settings)[name] = None
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    def rules(self) -> list[Rule]:
        """The requirements on these settings, on those of each topic, and on combinations of topics."""
        src, tgt, hard, precision = self.src, self.tgt, self.contrast.hard_negatives, self.optimizer.precision
        shared = tgt.kind == EncoderKind.shared
        hard_fits = hard == 0 or (hard > 0 and bool(self.frozen))
        both_ridge = src.projection_init == tgt.projection_init == ProjectionInit.ridge
        rules: list[Rule] = [
            ("out", self.out, bool(self.out), "a folder for the run"),
            ("tgt.lang", tgt.lang, tgt.lang != src.lang or not tgt.lang, "another language than src.lang"),
            ("src.kind", src.kind.value, src.kind != EncoderKind.shared, "pretrained, bert or static"),
            ("seed", self.seed, self.seed >= 0, "at least 0"),
            (
                "tgt.frozen",
                True,
                not (src.frozen and tgt.frozen),
                "false when src.frozen is true: one side must be trained",
            ),
            ("tgt.projection_init", "ridge", not both_ridge, "random when src.projection_init is ridge"),
            ("contrast.hard_negatives", hard, hard_fits, "0, or more if src.frozen or tgt.frozen is true"),
        ]
        langs = [encoder.lang for encoder in self.encoders]
        repeated = [lang for number, lang in enumerate(langs) if number > 1 and lang in langs[:number]]
        alone = not self.languages or not (self.frozen or shared)
        rules += [
            ("languages", repeated, not repeated, "each language once"),
            ("languages", langs[2:], alone, "none when src or tgt is frozen or shared"),
            (
                "data.curriculum",
                len(self.data.curriculum),
                not self.languages or len(self.data.curriculum) < 2,
                "at most one stage when a run has several languages",
            ),
        ]
        for number, language in enumerate(self.languages):
            rules += language.rules(f"languages[{number}]")
        largest = max(self.contrast.dimensions, default=0)
        for topic in (self.contrast, self.optimizer, self.schedule, self.data, self.nli):
            rules += topic.rules()
        for name, side in (("src", src), ("tgt", tgt)):
            is_half = precision != MixedPrecision.fp32 or side.attention != Attention.flash_attention_2
            ridge, learns = side.projection_init == ProjectionInit.ridge, not (side.frozen and shared)
            known = side.projection or (side.width if side.kind in (EncoderKind.bert, EncoderKind.static) else largest)
            rules += [
                (
                    "contrast.dimensions",
                    self.contrast.dimensions,
                    largest <= known,
                    f"at most {known}, the dimension of {name}",
                ),
                (f"{name}.frozen", True, learns, "false when tgt.kind is shared: it is one encoder"),
                (f"{name}.projection_init", "ridge", not (ridge and shared), "random when tgt.kind is shared"),
                (
                    "optimizer.precision",
                    precision.value,
                    is_half,
                    f"bf16 or fp16 for {name}.attention={side.attention}",
                ),
                *side.rules(name),
            ]
        return rules
