"""Plans a training run: operations, memory and hours, here or on other devices, before the first step.

Operations and memory come from `training/memory.py`, which counts them from the shapes of the encoders and the lengths
of real batches. Hours on this machine are measured by a dry run: some steps on a sample of the pairs, with full queues,
in a temporary folder. Hours on other devices are estimated from the datasheet peak (NVIDIA, dense products) and an
assumed utilization, which for mixed precision is that of the paper's run: 15 hours on four V100s (docs/guides/plan.md).
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize

from dualmoco.core.errors import ConfigError
from dualmoco.core.progress import counting, showing
from dualmoco.evaluation.report import Table
from dualmoco.models.build import Shape, read_shape, shape_of
from dualmoco.models.config import EncoderKind
from dualmoco.models.network import Encoder
from dualmoco.training.batches import Batch, prefetch
from dualmoco.training.config import MixedPrecision, TrainConfig
from dualmoco.training.contrast import Queue
from dualmoco.training.init_encoders import TOKENIZER_SENTENCES, TRAINS_TOKENIZER
from dualmoco.training.memory import (
    CUDA,
    GIB,
    GPU_RESERVED,
    Lengths,
    Memory,
    StepCost,
    advise,
    device_memory,
    kind_here,
    memory_here,
    peak_here,
    step_cost,
    survey_lengths,
    used_here,
    whole_run,
)
from dualmoco.training.recipe import load_config
from dualmoco.training.run import build_trainer, load_splits, orders_of, start_accelerator
from dualmoco.training.schedule import RunProgress
from dualmoco.training.trainer import Trainer

MIXED_EFFICIENCY, FP32_EFFICIENCY = 0.13, 0.5
LAUNCH_SECONDS = 2e-5  # assumed launch overhead of a GPU kernel, which limits small encoders
TERA = 1e12
LAYER_CALLS, STEP_CALLS = 60, 200  # GPU kernels per layer (two forward passes and one backward), and per step
HERE = "here"
PLAN_COLUMNS = ("steps", "hours", "GiB needed", "GiB there", "")
DEFAULT_GPUS = "v100,a100,h100"
DRY_RUN_SECONDS = 20.0
SAMPLE_BATCHES = 64  # batches of pairs in the sample of a dry run
MIN_TIMED_STEPS = 4  # steps per stage; the first one is a warm-up
TOKENIZER_SAMPLE = 100_000  # pairs in the sample if tokenizers are trained, because that takes memory
STRING_BYTES = 120  # approximate size of a sentence as a Python string
STAGE_STEPS = 10**9  # each stage numbers its steps from a multiple of this


@dataclass(frozen=True)
class Device:
    """One kind of GPU."""

    fp32: float  # peak operations per second
    mixed: float
    memory: float  # bytes

    def speed(self, precision: MixedPrecision) -> float:
        """Estimated operations per second of training."""
        if precision == MixedPrecision.fp32:
            return FP32_EFFICIENCY * self.fp32
        return MIXED_EFFICIENCY * self.mixed


DEVICES = {
    "v100": Device(15.7 * TERA, 125 * TERA, 32 * GIB),
    "t4": Device(8.1 * TERA, 65 * TERA, 16 * GIB),
    "a10": Device(31.2 * TERA, 125 * TERA, 24 * GIB),
    "l4": Device(30.3 * TERA, 121 * TERA, 24 * GIB),
    "rtx3090": Device(35.6 * TERA, 71 * TERA, 24 * GIB),
    "rtx4090": Device(82.6 * TERA, 165 * TERA, 24 * GIB),
    "a100": Device(19.5 * TERA, 312 * TERA, 40 * GIB),
    "h100": Device(67 * TERA, 989 * TERA, 80 * GIB),
}


def read_devices(names: str) -> list[tuple[str, int]]:
    """Names and counts of the devices in a list such as `here,4xv100,a100`; ConfigError if a name is unknown."""
    found = []
    for word in names.split(","):
        match = re.fullmatch(r"(?:([1-9]\d*)x)?(\w+)", word.strip().lower())
        if not match or match[2] not in (HERE, *DEVICES) or (match[2] == HERE and match[1]):
            raise ConfigError(
                f"{word.strip()!r}: unknown device; expected here, or one of {', '.join(DEVICES)}, with a count as in "
                "4xv100"
            )
        found.append((match[2], int(match[1] or 1)))
    return found


@dataclass(frozen=True)
class StageTime:
    """Measured time of one stage of the curriculum."""

    share: float  # of the schedule
    step_seconds: float  # of an average step
    lengths: Lengths


@dataclass(frozen=True)
class DryRunResult:
    """Measurements of a dry run."""

    pairs: int
    stages: list[StageTime]
    start_seconds: float  # before the first step: reading, building, frozen keys, first evaluation
    evaluation_seconds: float
    checkpoint_seconds: float
    epoch_steps: int
    used: float  # bytes in use after reading the pairs, before building the encoders
    seen: float  # peak bytes
    encoders: tuple[Encoder, Encoder]

    def step_seconds(self, *, in_minutes: bool) -> float:
        """Seconds of an average step of the run, whose stages are shares of its steps or of its minutes."""
        if in_minutes:
            return 1 / sum(stage.share / stage.step_seconds for stage in self.stages)
        return sum(stage.share * stage.step_seconds for stage in self.stages)

    @property
    def lengths(self) -> Lengths:
        """Sentence lengths of the whole run."""
        return whole_run([stage.lengths for stage in self.stages], [stage.share for stage in self.stages])


def dry_run(config: TrainConfig, seconds: float) -> DryRunResult:
    """Measures the start, an evaluation, a checkpoint and, for about `seconds`, steps of every stage."""
    clock, before = Clock(), peak_here()
    split = load_splits(config)
    order, used, reading = orders_of(config, split)[0], used_here(), clock.lap()
    size = max(SAMPLE_BATCHES * config.optimizer.batch_size, config.contrast.queue_size if config.frozen else 0)
    if _trains_tokenizers(config):
        size = max(size, TOKENIZER_SAMPLE)
    with tempfile.TemporaryDirectory(prefix="dualmoco-plan-") as folder:
        config = replace(config, out=folder)
        rows = np.sort(np.random.default_rng([config.seed, 5]).permutation(len(split.train))[:size])
        sample = replace(split, train=split.train.take(rows))
        clock.lap()
        trainer = build_trainer(config, sample, start_accelerator(config))
        built = clock.lap()
        trainer.heldout.score()
        evaluation = clock.lap()
        timed = _time_steps(trainer, seconds)
        reads_pairs = any(step.pair_tokens for step in timed)
        clock.lap()
        trainer.checkpoint(RunProgress())
        checkpoint = clock.lap()
        src, tgt = (trainer.encoders[side.lang] for side in (config.src, config.tgt))
        stages = []
        for number, share in enumerate(order.shares):
            lengths = survey_lengths(order, split, (src, tgt), number)
            own = [step for step in timed if step.stage == number]
            per_token = sum(step.seconds for step in own) / sum(step.tokens for step in own)
            tokens = fmean(step.tokens - step.pair_tokens for step in own)
            tokens += _pair_tokens(config, lengths) if reads_pairs else 0.0
            stages.append(StageTime(share, per_token * tokens, lengths))
    more = len(split.train) - len(sample.train)
    if config.frozen:  # all its sentences are encoded before the first step
        built += 0.5 * more * evaluation / len(split.heldout)
    seen = peak_here() if peak_here() > before else used_here()  # otherwise the peak is from earlier work
    if _trains_tokenizers(config):  # the sentences outside the sample, as Python strings
        seen += 2.0 * STRING_BYTES * min(more, TOKENIZER_SENTENCES)
    epoch_steps = order.batches_per_epoch if reads_pairs else trainer.schedule.epoch_steps
    return DryRunResult(
        pairs=len(split.train),
        stages=stages,
        start_seconds=reading + built + evaluation,
        evaluation_seconds=evaluation,
        checkpoint_seconds=checkpoint,
        epoch_steps=epoch_steps,
        used=used,
        seen=seen,
        encoders=(src, tgt),
    )


class Clock:
    """A stopwatch with laps."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the previous lap."""
        before, self.last = self.last, time.monotonic()
        return self.last - before


def _trains_tokenizers(config: TrainConfig) -> bool:
    return bool(TRAINS_TOKENIZER & {config.src.kind, config.tgt.kind})


def _pair_tokens(config: TrainConfig, lengths: Lengths) -> float:
    """Average number of tokens of the pairs of a step."""
    sides = {"src": lengths.src, "tgt": lengths.tgt}
    return config.optimizer.batch_size * sum(length for side, length in sides.items() if side != config.frozen)


class TimedStep(NamedTuple):
    """One step of a dry run."""

    stage: int
    seconds: float
    pair_tokens: int
    tokens: int


def _time_steps(trainer: Trainer, seconds: float) -> list[TimedStep]:
    """Times steps of all stages in turn; the first step of each stage is a warm-up and is not counted."""
    stages = trainer.order.orders
    trainer.order.progress = RunProgress(stage_starts=[number * STAGE_STEPS for number in range(len(stages))])
    for module in trainer.objective.modules():
        if isinstance(module, Queue):
            _fill_queue(module)
    generator, progress = np.random.default_rng(trainer.config.seed), RunProgress()
    timed: list[TimedStep] = []

    def draw(number: int) -> tuple[int, list[Batch]]:
        stage = number % len(stages)
        step = stage * STAGE_STEPS + int(generator.integers(stages[stage].batches_per_epoch))
        return stage, trainer.batches(step)

    began, shown = time.monotonic(), 0
    with counting("dry run", round(seconds), " s") as advance, closing(prefetch(draw, 0)) as batches:
        while len(timed) < MIN_TIMED_STEPS * len(stages) or time.monotonic() - began < seconds:
            before = time.monotonic()
            stage, micro_batches = next(batches)
            trainer.step(micro_batches, progress)
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()  # a step returns before the GPU has finished it
            taken = time.monotonic() - before
            progress.step += 1
            pair_tokens = sum(batch.pair_tokens for batch in micro_batches)
            timed.append(TimedStep(stage, taken, pair_tokens, sum(batch.tokens for batch in micro_batches)))
            advance(int(time.monotonic() - began) - shown)
            shown = int(time.monotonic() - began)
    return timed[len(stages) :]


def _fill_queue(queue: Queue) -> None:
    """Fills a queue with random unit vectors whose ids do not belong to any sentence."""
    size, dimension = queue.vectors.shape
    ids = -1 - torch.arange(2 * size, device=queue.ids.device).reshape(size, 2)
    queue.enqueue(normalize(torch.randn(size, dimension, device=queue.vectors.device)), ids)


@dataclass(frozen=True)
class DevicePlan:
    """A run on one or more devices of one kind."""

    device: str
    count: int
    measured: bool  # whether the hours were measured by a dry run, not estimated from DEVICES
    steps: int
    hours: float | None  # from the first step on; None if unknown (static encoders on a GPU)
    memory: Memory  # estimated, of each device
    needed: float  # bytes per device, with what the driver or the process uses before
    room: float  # bytes that a device has
    advice: str  # settings to change if the run does not fit, otherwise empty

    @property
    def name(self) -> str:
        """The kind of device, with its number if there are several."""
        return f"{self.count} x {self.device}" if self.count > 1 else self.device

    def cells(self) -> list[str]:
        """A row of the table."""
        time = ["?", "?"]
        if self.hours is not None:
            time = [f"{self.steps:,}", f"{self.hours:,.2f}" if self.hours < 10 else f"{self.hours:,.0f}"]
        memory = [f"{self.needed / GIB:.1f}", f"{self.room / GIB:.0f}"]
        return [self.name, *time, *memory, "measured" if self.measured else "estimated"]


@dataclass(frozen=True)
class RunPlan:
    """The cost of a recipe; printing it shows a table and details."""

    recipe: str
    pairs: int
    lengths: Lengths
    parameters: tuple[int, int]
    cost: StepCost
    batch_size: int
    step_seconds: float | None  # measured here
    start_seconds: float | None  # before the first step, measured here
    devices: list[DevicePlan]

    @property
    def fits(self) -> bool:
        """Whether the run fits into the memory of all devices."""
        return not any(device.advice for device in self.devices)

    def __str__(self) -> str:
        lengths, first = self.lengths, self.devices[0]
        rows = [device.cells() for device in self.devices]
        table = Table(f"Plan of {self.recipe}", ["", *PLAN_COLUMNS], rows)
        parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in vars(first.memory).items())
        lines = [
            f"encoders  {self.parameters[0] / 1e6:.1f} and {self.parameters[1] / 1e6:.1f} million weights",
            f"pairs     {self.pairs:,}; {lengths.src:.1f} and {lengths.tgt:.1f} tokens per sentence with padding, "
            f"in the longest batch {lengths.longest_src:.0f} and {lengths.longest_tgt:.0f}",
            f"a step    {self.batch_size:,} pairs, {self.cost.total / 1e9:,.1f} G operations, of them scores "
            f"{self.cost.scores / 1e9:,.1f}",
            f"memory    MiB on each device of {first.name}: {parts}",
        ]
        if self.start_seconds is not None:
            lines.append(f"start     {self.start_seconds:,.0f} seconds here before the first step")
        misfits = [f"{plan.name}: does not fit; {plan.advice}" for plan in self.devices if plan.advice]
        return "\n".join([table.as_text(), *lines, *misfits]) + "\n"


def plan(
    recipe: str | Path | TrainConfig,
    *overrides: str,
    devices: str = "",
    pairs: int = 0,
    tokens: Sequence[float] = (),
    seconds: float = DRY_RUN_SECONDS,
    progress: bool = True,
) -> RunPlan:
    """Estimates the cost of a recipe, and times some of its steps on this machine.

    Args:
        recipe: A YAML file, or a config.
        overrides: Settings that replace those of the file.
        devices: Comma-separated list of `here` and known GPUs such as `4xv100` (default: some GPUs and, if the data are
            available, `here`).
        pairs: Number of training pairs, to plan without the data.
        tokens: Average tokens of a source and a target sentence, to plan without the data.
        seconds: Seconds to spend on steps of the dry run.
        progress: Whether to show progress bars.

    Returns:
        Operations, memory and hours.

    Raises:
        ConfigError: The recipe is invalid, a device is unknown, or `here` is given without the data.
        DataError: The pairs cannot be read.
        ModelError: A model cannot be opened.
    """
    config = recipe if isinstance(recipe, TrainConfig) else load_config(recipe, list(overrides))
    named = read_devices(devices or (DEFAULT_GPUS if tokens else f"{HERE},{DEFAULT_GPUS}"))
    timing: DryRunResult | None = None
    if tokens:
        shapes, lengths = _shapes(config), _given_lengths(config, tokens)
        if pairs <= 0 or (HERE, 1) in named:
            raise ConfigError(
                f"--tokens with --pair-count {pairs} and --devices {devices}: expected a number of pairs and only "
                "GPUs: nothing can be timed here without the data"
            )
        epoch_steps = max(1, pairs // config.optimizer.batch_size)
    else:
        with showing(progress):
            timing = dry_run(config, seconds if (HERE, 1) in named else 0.0)
        pairs, epoch_steps, lengths = timing.pairs, timing.epoch_steps, timing.lengths
        shapes = read_shape(timing.encoders[0]), read_shape(timing.encoders[1])
    return RunPlan(
        recipe=config.out if isinstance(recipe, TrainConfig) else str(recipe),
        pairs=pairs,
        lengths=lengths,
        parameters=(shapes[0].parameters, shapes[1].parameters),
        cost=step_cost(config, shapes, lengths),
        batch_size=config.optimizer.batch_size,
        step_seconds=timing.step_seconds(in_minutes=config.schedule.minutes > 0) if timing else None,
        start_seconds=timing.start_seconds if timing else None,
        devices=[_on_device(config, shapes, lengths, epoch_steps, timing, *device) for device in named],
    )


def _shapes(config: TrainConfig) -> tuple[Shape, Shape]:
    src = shape_of(config.src)
    return src, src if config.tgt.kind == EncoderKind.shared else shape_of(config.tgt)


def _given_lengths(config: TrainConfig, tokens: Sequence[float]) -> Lengths:
    """The given average lengths; the longest batch is assumed to have twice as many tokens."""
    if len(tokens) != 2 or min(tokens) <= 0:
        raise ConfigError(f"--tokens {','.join(map(str, tokens))}: expected two numbers above 0 such as 28,33")
    limits = config.src.max_tokens, config.tgt.max_tokens
    src, tgt = (min(count, limit) for count, limit in zip(tokens, limits, strict=True))
    return Lengths(src, tgt, min(2 * src, limits[0]), min(2 * tgt, limits[1]))


def _on_device(
    config: TrainConfig,
    shapes: tuple[Shape, Shape],
    lengths: Lengths,
    epoch_steps: int,
    timing: DryRunResult | None,
    name: str,
    count: int,
) -> DevicePlan:
    """The plan for `count` devices of one kind."""
    schedule = config.schedule
    steps = schedule.steps or math.ceil(schedule.epochs * epoch_steps)
    if name == HERE:
        assert timing is not None
        room, used, kind = memory_here(), timing.used, kind_here()
        seconds = timing.step_seconds(in_minutes=schedule.minutes > 0)
        seconds += timing.evaluation_seconds / schedule.evaluate_every
        seconds += timing.checkpoint_seconds / schedule.checkpoint_every
    else:
        device = DEVICES[name]
        room, used, kind = device.memory, GPU_RESERVED, CUDA
        cost = step_cost(config, shapes, lengths)
        seconds = max(
            cost.total / (count * device.speed(config.optimizer.precision)),
            LAUNCH_SECONDS * (STEP_CALLS + LAYER_CALLS * sum(shape.layers for shape in shapes)),
        )
    if schedule.minutes:
        steps = int(60 * schedule.minutes / seconds)
    hours = steps * seconds / 3600
    memory = device_memory(config, shapes, lengths, count, kind)
    needed = used + memory.total
    if timing and name == HERE:
        needed = max(needed, timing.seen)
    known = name == HERE or any(shape.layers for shape in shapes)
    return DevicePlan(
        device=name,
        count=count,
        measured=name == HERE,
        steps=steps,
        hours=hours if known else None,
        memory=memory,
        needed=needed,
        room=room,
        advice=advise(config, shapes, lengths, count, room - used, kind) if needed > room else "",
    )
