"""The settings of a training run read and checked: unknown keys, wrong types and values without sense are errors."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

from dualmoco.core.errors import ConfigError
from dualmoco.core.recipes import read_recipe
from dualmoco.models.recipe import ALL, HEAD, LAST, Kind, PoolingMode, ProjectionInit
from dualmoco.training.recipe import ObjectiveName, TrainConfig

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
        ("src.kind", config.src.kind, config.src.kind != Kind.shared, "pretrained, bert or static"),
        ("seed", config.seed, config.seed >= 0, "at least 0"),
        ("contrast.queue_size", contrast.queue_size, contrast.queue_size > 0, "at least 1"),
        ("contrast.temperature", contrast.temperature, 0 < contrast.temperature < math.inf,
         "above 0, for example 0.04"),
        ("contrast.momentum", contrast.momentum, 0 <= contrast.momentum < 1, "from 0 to below 1, for example 0.999"),
        ("contrast.momentum_start", contrast.momentum_start, not ramped or 0 <= contrast.momentum_start < 1,
         "from 0 to below 1 when momentum_ramp is set"),
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
        ("data.train", data.train, bool(data.train) + bool(data.src_files) + bool(data.prepared) == 1,
         "TSV files, or src_files and tgt_files, or prepared, and only one of them"),
        ("data.tgt_files", data.tgt_files, len(data.src_files) == len(data.tgt_files), "as many files as src_files"),
        ("data.columns", data.columns, len(data.columns) == 2 and min(data.columns) >= 0, "two column numbers from 0"),
        ("data.heldout", data.heldout, data.heldout > 1, "at least 2"),
        ("data.bucket", data.bucket, data.bucket > 0, "at least 1"),
        ("data.max_pairs", data.max_pairs, data.max_pairs >= 0, "at least 0"),
        ("nli.heldout", config.nli.heldout, config.nli.heldout > 0, "at least 1"),
        ("nli.batch_size", config.nli.batch_size, config.nli.batch_size > 0, "at least 1"),
        ("nli.dropout", config.nli.dropout, 0 <= config.nli.dropout < 1, "from 0 to below 1"),
        ("nli.side", config.nli.side, config.nli.side in ("src", "tgt"), "src or tgt"),
        ("nli.train", config.nli.train, config.objective != ObjectiveName.nli or bool(config.nli.train),
         "NLI files when objective is nli"),
        ("dropout", 0.0, config.objective != ObjectiveName.simcse or config.src.dropout * config.tgt.dropout > 0,
         "src.dropout and tgt.dropout above 0 when objective is simcse"),
        ("teacher", config.teacher, config.objective != ObjectiveName.distill or bool(config.teacher),
         "a model folder or hub name when objective is distill"),
    ]  # fmt: skip
    for side, encoder in (("src", config.src), ("tgt", config.tgt)):
        named = encoder.kind != Kind.pretrained or bool(encoder.name)
        bert = encoder.kind == Kind.bert
        rules += [
            (f"{side}.lang", encoder.lang, encoder.lang not in ("True", "False"), 'a language name; quote it as "no"'),
            (f"{side}.projection", encoder.projection, encoder.projection >= 0, "at least 0"),
            (f"{side}.pooling", encoder.pooling.value, encoder.kind != Kind.static or encoder.pooling in AVERAGES,
             f"auto or mean when {side}.kind is static: it averages"),
            (f"{side}.layers", encoder.layers, encoder.layers > 0, "at least 1"),
            (f"{side}.heads", encoder.heads, not bert or (encoder.heads > 0 and encoder.width % encoder.heads == 0),
             f"a divisor of {side}.width={encoder.width}"),
            (f"{side}.max_piece_length", encoder.max_piece_length, encoder.max_piece_length > 1, "at least 2"),
            (f"{side}.entry_vectors", encoder.entry_vectors, not encoder.entry_vectors or encoder.kind == Kind.static,
             f"nothing unless {side}.kind is static"),
            (f"{side}.name", encoder.name, named, "a model folder or hub name such as bert-base-uncased"),
            (f"{side}.dropout", encoder.dropout, 0 <= encoder.dropout < 1, "from 0 to below 1"),
            (f"{side}.lr_scale", encoder.lr_scale, 0 < encoder.lr_scale <= 1, "above 0, at most 1; frozen=true for 0"),
            (f"{side}.max_tokens", encoder.max_tokens, encoder.max_tokens > 2, "at least 3"),
            (f"{side}.width", encoder.width, encoder.width > 0, "at least 1"),
            (f"{side}.vocab_size", encoder.vocab_size, encoder.vocab_size > 10, "at least 11"),
        ]  # fmt: skip
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
        ("contrast.hard_negatives", config.contrast.hard_negatives,
         config.contrast.hard_negatives == 0 or (config.contrast.hard_negatives > 0 and bool(config.frozen)),
         "0, or more where src.frozen or tgt.frozen is true: they are keys that do not change"),
        ("contrast.mask_repeats", False, config.contrast.mask_repeats or not config.frozen,
         f"true when {config.frozen}.frozen is true"),
        ("contrast.key_dropout", True, not (config.frozen and config.contrast.key_dropout),
         f"false when {config.frozen}.frozen is true: it has no momentum encoder"),
        ("nli.side", config.nli.side, not config.nli.train or config.nli.side != config.frozen,
         f"the other side when {config.frozen}.frozen is true: NLI would move it"),
    ]  # fmt: skip
    for side, encoder in (("src", config.src), ("tgt", config.tgt)):
        shared, frozen, trainable = config.tgt.kind == Kind.shared, encoder.frozen, encoder.trainable
        ridge = encoder.projection_init == ProjectionInit.ridge
        last = re.fullmatch(rf"{LAST}[1-9]\d*", trainable) is not None
        layers = encoder.layers if encoder.kind == Kind.bert else math.inf
        rules += [
            (f"{side}.frozen", frozen, not (frozen and shared), "false when tgt.kind is shared: it is one encoder"),
            (f"{side}.frozen", frozen, not frozen or config.objective == ObjectiveName.dual_moco,
             f"false when objective is {config.objective.value}, which moves it; dual-moco can do without"),
            (f"{side}.kind", encoder.kind.value, not frozen or encoder.kind == Kind.pretrained,
             f"pretrained when {side}.frozen is true: a side from scratch must learn"),
            (f"{side}.projection", encoder.projection, not (frozen and encoder.projection),
             f"0 when {side}.frozen is true: a new layer must learn"),
            (f"{side}.trainable", trainable, trainable in (ALL, HEAD) or last, "all, head or last:N such as last:2"),
            (f"{side}.trainable", trainable, trainable == ALL or not frozen, f"all when {side}.frozen is true"),
            (f"{side}.lr_scale", encoder.lr_scale, encoder.lr_scale == 1 or encoder.kind != Kind.shared,
             "1 when tgt.kind is shared: src.lr_scale is for both"),
            (f"{side}.trainable", trainable, trainable == ALL or encoder.kind != Kind.shared,
             "all when tgt.kind is shared: src.trainable is for both"),
            (f"{side}.trainable", trainable, not last or encoder.kind != Kind.static,
             f"all or head when {side}.kind is static: it has no transformer layers"),
            (f"{side}.trainable", trainable, not last or int(trainable.removeprefix(LAST)) <= layers,
             f"at most last:{layers}, the number of {side}.layers"),
            (f"{side}.projection", encoder.projection, not ridge or encoder.projection > 0,
             f"a dimension when {side}.projection_init is ridge"),
            (f"{side}.projection_init", "ridge", not (ridge and shared), "random when tgt.kind is shared"),
            (f"{side}.ridge_pairs", encoder.ridge_pairs, encoder.ridge_pairs > 0, "at least 1"),
        ]  # fmt: skip
    return rules


def _curriculum_rules(config: TrainConfig) -> list[Rule]:
    """What must hold of the stages of a curriculum."""
    stages = config.data.curriculum
    until = [stage.until for stage in stages]
    rising = all(0 < before < after for before, after in itertools.pairwise(until))
    rules: list[Rule] = [
        ("data.curriculum", len(stages), not stages or config.objective != ObjectiveName.nli,
         "no stages when objective is nli: it takes no pairs"),
        ("data.curriculum", f"until {', '.join(map(str, until))}", not stages or (rising and until[-1] == 1),
         "shares of the schedule that rise from above 0 to 1, that of the last stage"),
    ]  # fmt: skip
    for number, stage in enumerate(stages):
        key = f"data.curriculum[{number}]"
        rules.append((f"{key}.max_chars", stage.max_chars, stage.max_chars >= 0, "at least 0; 0 is no limit"))
        for corpus, weight in stage.weights.items():
            rules.append((f"{key}.weights.{corpus}", weight, 0 <= weight < math.inf, "at least 0; 0 leaves it out"))
    return rules
