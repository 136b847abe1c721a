"""The settings of a training run: one frozen dataclass a topic, filled from a YAML recipe by `config.py`.

Defaults are the paper's (appendix A and B) where it gives a value.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from dualmoco.core.config_loader import VectorPrecision, read_recipe
from dualmoco.core.errors import ConfigError
from dualmoco.data.config import DataConfig
from dualmoco.models.config import ALL, HEAD, LAST, EncoderConfig, EncoderKind, PoolingMode, ProjectionInit


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


AVERAGES = (PoolingMode.auto, PoolingMode.mean)
Rule = tuple[str, Any, bool, str]  # a key, its value, whether that is allowed, what is expected


def load_config(recipe: str | Path, overrides: list[str] | None = None) -> TrainConfig:
    """Reads a recipe.

    Args:
        recipe: A YAML file.
        overrides: Settings such as `contrast.queue_size=8192`, stronger than the recipe.

    Returns:
        The settings, checked.

    Raises:
        ConfigError: An unreadable file, an unknown key, a wrong type or a value that makes no sense.
    """
    settings = read_recipe(TrainConfig, recipe, overrides, extra="train")
    check_config(settings)
    return settings


def check_config(config: TrainConfig) -> None:
    """Refuses settings that no run can use.

    Args:
        config: The settings to check.

    Raises:
        ConfigError: Names the key, its value and what it must be.
    """
    contrast, optimizer, schedule, data = config.contrast, config.optimizer, config.schedule, config.data
    ramped = contrast.momentum_ramp > 0
    limits = [limit for limit in (schedule.epochs, schedule.steps, schedule.minutes) if limit > 0]
    rules: list[Rule] = [
        ("out", config.out, bool(config.out), "a folder for the run"),
        ("src.lang", config.src.lang, bool(config.src.lang), "a language name such as en"),
        ("tgt.lang", config.tgt.lang, bool(config.tgt.lang), "a language name such as zh"),
        ("tgt.lang", config.tgt.lang, config.tgt.lang != config.src.lang, "another language than src.lang"),
        ("src.kind", config.src.kind, config.src.kind != EncoderKind.shared, "pretrained, bert or static"),
        ("seed", config.seed, config.seed >= 0, "at least 0"),
        ("contrast.queue_size", contrast.queue_size, contrast.queue_size > 0, "at least 1"),
        (
            "contrast.temperature",
            contrast.temperature,
            0 < contrast.temperature < math.inf,
            "above 0, for example 0.04",
        ),
        ("contrast.momentum", contrast.momentum, 0 <= contrast.momentum < 1, "from 0 to below 1, for example 0.999"),
        (
            "contrast.momentum_start",
            contrast.momentum_start,
            not ramped or 0 <= contrast.momentum_start < 1,
            "from 0 to below 1 when momentum_ramp is set",
        ),
        ("optimizer.lr", optimizer.lr, optimizer.lr > 0, "above 0"),
        ("optimizer.warmup_steps", optimizer.warmup_steps, optimizer.warmup_steps >= 0, "at least 0"),
        ("optimizer.weight_decay", optimizer.weight_decay, optimizer.weight_decay >= 0, "at least 0"),
        ("optimizer.batch_size", optimizer.batch_size, optimizer.batch_size > 1, "at least 2"),
        ("optimizer.accumulate", optimizer.accumulate, optimizer.accumulate > 0, "at least 1"),
        ("optimizer.clip", optimizer.clip, optimizer.clip > 0, "above 0"),
        ("schedule", limits, len(limits) == 1, "exactly one of epochs, steps and minutes above 0"),
        ("schedule.evaluate_every", schedule.evaluate_every, schedule.evaluate_every > 0, "at least 1"),
        ("schedule.checkpoint_every", schedule.checkpoint_every, schedule.checkpoint_every > 0, "at least 1"),
        ("schedule.log_every", schedule.log_every, schedule.log_every > 0, "at least 1"),
        ("schedule.keep", schedule.keep, schedule.keep > 0, "at least 1"),
        (
            "data.train",
            data.train,
            bool(data.train) + bool(data.src_files) + bool(data.prepared) == 1,
            "TSV files, or src_files and tgt_files, or prepared, and only one of them",
        ),
        ("data.tgt_files", data.tgt_files, len(data.src_files) == len(data.tgt_files), "as many files as src_files"),
        ("data.columns", data.columns, len(data.columns) == 2 and min(data.columns) >= 0, "two column numbers from 0"),
        ("data.heldout", data.heldout, data.heldout > 1, "at least 2"),
        ("data.bucket", data.bucket, data.bucket > 0, "at least 1"),
        ("data.max_pairs", data.max_pairs, data.max_pairs >= 0, "at least 0"),
        ("nli.heldout", config.nli.heldout, config.nli.heldout > 0, "at least 1"),
        ("nli.batch_size", config.nli.batch_size, config.nli.batch_size > 0, "at least 1"),
        ("nli.dropout", config.nli.dropout, 0 <= config.nli.dropout < 1, "from 0 to below 1"),
        ("nli.side", config.nli.side, config.nli.side in ("src", "tgt"), "src or tgt"),
        (
            "nli.train",
            config.nli.train,
            config.objective != ObjectiveName.nli or bool(config.nli.train),
            "NLI files when objective is nli",
        ),
        (
            "dropout",
            0.0,
            config.objective != ObjectiveName.simcse or config.src.dropout * config.tgt.dropout > 0,
            "src.dropout and tgt.dropout above 0 when objective is simcse",
        ),
        (
            "teacher",
            config.teacher,
            config.objective != ObjectiveName.distill or bool(config.teacher),
            "a model folder or hub name when objective is distill",
        ),
    ]
    for side, encoder in (("src", config.src), ("tgt", config.tgt)):
        named = encoder.kind != EncoderKind.pretrained or bool(encoder.name)
        bert = encoder.kind == EncoderKind.bert
        rules += [
            (f"{side}.lang", encoder.lang, encoder.lang not in ("True", "False"), 'a language name; quote it as "no"'),
            (f"{side}.projection", encoder.projection, encoder.projection >= 0, "at least 0"),
            (
                f"{side}.pooling",
                encoder.pooling.value,
                encoder.kind != EncoderKind.static or encoder.pooling in AVERAGES,
                f"auto or mean when {side}.kind is static: it averages",
            ),
            (f"{side}.layers", encoder.layers, encoder.layers > 0, "at least 1"),
            (
                f"{side}.heads",
                encoder.heads,
                not bert or (encoder.heads > 0 and encoder.width % encoder.heads == 0),
                f"a divisor of {side}.width={encoder.width}",
            ),
            (f"{side}.max_piece_length", encoder.max_piece_length, encoder.max_piece_length > 1, "at least 2"),
            (
                f"{side}.entry_vectors",
                encoder.entry_vectors,
                not encoder.entry_vectors or encoder.kind == EncoderKind.static,
                f"nothing unless {side}.kind is static",
            ),
            (f"{side}.name", encoder.name, named, "a model folder or hub name such as bert-base-uncased"),
            (f"{side}.dropout", encoder.dropout, 0 <= encoder.dropout < 1, "from 0 to below 1"),
            (f"{side}.lr_scale", encoder.lr_scale, 0 < encoder.lr_scale <= 1, "above 0, at most 1; frozen=true for 0"),
            (f"{side}.max_tokens", encoder.max_tokens, encoder.max_tokens > 2, "at least 3"),
            (f"{side}.width", encoder.width, encoder.width > 0, "at least 1"),
            (f"{side}.vocab_size", encoder.vocab_size, encoder.vocab_size > 10, "at least 11"),
        ]
    rules += _tower_rules(config) + _curriculum_rules(config)
    for key, value, holds, expected in rules:
        if not holds:
            raise ConfigError(f"{key} is {value!r}; expected {expected}")


def _tower_rules(config: TrainConfig) -> list[Rule]:
    """What must hold of `frozen`, `trainable` and `projection_init`."""
    both = config.src.frozen and config.tgt.frozen
    regressed = [side.projection_init == ProjectionInit.ridge for side in (config.src, config.tgt)]
    rules: list[Rule] = [
        ("tgt.frozen", True, not both, "false when src.frozen is true: one side must learn"),
        ("tgt.projection_init", "ridge", not all(regressed), "random when src.projection_init is ridge"),
        (
            "contrast.hard_negatives",
            config.contrast.hard_negatives,
            config.contrast.hard_negatives == 0 or (config.contrast.hard_negatives > 0 and bool(config.frozen)),
            "0, or more where src.frozen or tgt.frozen is true: they are keys that do not change",
        ),
        (
            "contrast.mask_repeats",
            False,
            config.contrast.mask_repeats or not config.frozen,
            f"true when {config.frozen}.frozen is true",
        ),
        (
            "contrast.key_dropout",
            True,
            not (config.frozen and config.contrast.key_dropout),
            f"false when {config.frozen}.frozen is true: it has no momentum encoder",
        ),
        (
            "nli.side",
            config.nli.side,
            not config.nli.train or config.nli.side != config.frozen,
            f"the other side when {config.frozen}.frozen is true: NLI would move it",
        ),
    ]
    for side, encoder in (("src", config.src), ("tgt", config.tgt)):
        shared, frozen, trainable = config.tgt.kind == EncoderKind.shared, encoder.frozen, encoder.trainable
        ridge = encoder.projection_init == ProjectionInit.ridge
        last = re.fullmatch(rf"{LAST}[1-9]\d*", trainable) is not None
        layers = encoder.layers if encoder.kind == EncoderKind.bert else math.inf
        rules += [
            (f"{side}.frozen", frozen, not (frozen and shared), "false when tgt.kind is shared: it is one encoder"),
            (
                f"{side}.frozen",
                frozen,
                not frozen or config.objective == ObjectiveName.dual_moco,
                f"false when objective is {config.objective.value}, which moves it; dual-moco can do without",
            ),
            (
                f"{side}.kind",
                encoder.kind.value,
                not frozen or encoder.kind == EncoderKind.pretrained,
                f"pretrained when {side}.frozen is true: a side from scratch must learn",
            ),
            (
                f"{side}.projection",
                encoder.projection,
                not (frozen and encoder.projection),
                f"0 when {side}.frozen is true: a new layer must learn",
            ),
            (f"{side}.trainable", trainable, trainable in (ALL, HEAD) or last, "all, head or last:N such as last:2"),
            (f"{side}.trainable", trainable, trainable == ALL or not frozen, f"all when {side}.frozen is true"),
            (
                f"{side}.lr_scale",
                encoder.lr_scale,
                encoder.lr_scale == 1 or encoder.kind != EncoderKind.shared,
                "1 when tgt.kind is shared: src.lr_scale is for both",
            ),
            (
                f"{side}.trainable",
                trainable,
                trainable == ALL or encoder.kind != EncoderKind.shared,
                "all when tgt.kind is shared: src.trainable is for both",
            ),
            (
                f"{side}.trainable",
                trainable,
                not last or encoder.kind != EncoderKind.static,
                f"all or head when {side}.kind is static: it has no transformer layers",
            ),
            (
                f"{side}.trainable",
                trainable,
                not last or int(trainable.removeprefix(LAST)) <= layers,
                f"at most last:{layers}, the number of {side}.layers",
            ),
            (
                f"{side}.projection",
                encoder.projection,
                not ridge or encoder.projection > 0,
                f"a dimension when {side}.projection_init is ridge",
            ),
            (f"{side}.projection_init", "ridge", not (ridge and shared), "random when tgt.kind is shared"),
            (f"{side}.ridge_pairs", encoder.ridge_pairs, encoder.ridge_pairs > 0, "at least 1"),
        ]
    return rules


def _curriculum_rules(config: TrainConfig) -> list[Rule]:
    """What must hold of the stages of a curriculum."""
    stages = config.data.curriculum
    until = [stage.until for stage in stages]
    rising = all(0 < before < after for before, after in itertools.pairwise(until))
    rules: list[Rule] = [
        (
            "data.curriculum",
            len(stages),
            not stages or config.objective != ObjectiveName.nli,
            "no stages when objective is nli: it takes no pairs",
        ),
        (
            "data.curriculum",
            f"until {', '.join(map(str, until))}",
            not stages or (rising and until[-1] == 1),
            "shares of the schedule that rise from above 0 to 1, that of the last stage",
        ),
    ]
    for number, stage in enumerate(stages):
        key = f"data.curriculum[{number}]"
        rules.append((f"{key}.max_chars", stage.max_chars, stage.max_chars >= 0, "at least 0; 0 is no limit"))
        for corpus, weight in stage.weights.items():
            rules.append((f"{key}.weights.{corpus}", weight, 0 <= weight < math.inf, "at least 0; 0 leaves it out"))
    return rules
