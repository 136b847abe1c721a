"""What a run will cost before it starts: `dualmoco plan`.

Takes a recipe; counts operations and memory by `training/cost.py`, times some steps on the device that is here by
`training/rehearsal.py`, and reckons hours on others from the table in `devices.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dualmoco.analysis.devices import DEVICES, HERE, LAUNCH_SECONDS, read_devices
from dualmoco.core.errors import ConfigError
from dualmoco.core.progress import showing
from dualmoco.evaluation.report.tables import Table
from dualmoco.models.recipe import Kind
from dualmoco.models.shape import Shape, read_shape, shape_of
from dualmoco.training.config import load_config
from dualmoco.training.cost import Lengths, Memory, StepCost, device_memory, step_cost
from dualmoco.training.fitting import GIB, GPU_RESERVED, advise, memory_here
from dualmoco.training.recipe import TrainConfig
from dualmoco.training.rehearsal import Rehearsal, rehearse

REHEARSAL_SECONDS = 20.0
GPUS = "v100,a100,h100"
LAYER_CALLS, STEP_CALLS = 60, 200  # of a GPU: of a layer, forward twice and backward; of the rest of a step


@dataclass(frozen=True)
class DevicePlan:
    """A run on some devices of one kind."""

    device: str
    count: int
    measured: bool  # on the spot; else by the table of devices
    steps: int
    hours: float | None  # from the first step on; None where the table cannot tell: static encoders
    needed: float  # bytes of each device
    room: float  # bytes that it has
    advice: str  # what to set where it does not fit, else empty

    def cells(self) -> list[str]:
        """As a row of a table."""
        name = f"{self.count} x {self.device}" if self.count > 1 else self.device
        time = ["?", "?"]
        if self.hours is not None:
            time = [f"{self.steps:,}", f"{self.hours:,.2f}" if self.hours < 10 else f"{self.hours:,.0f}"]
        memory = [f"{self.needed / GIB:.1f}", f"{self.room / GIB:.0f}"]
        return [name, *time, *memory, "measured" if self.measured else "reckoned"]


@dataclass(frozen=True)
class RunPlan:
    """What a recipe costs; printed, it is a page."""

    recipe: str
    pairs: int
    lengths: Lengths
    parameters: tuple[int, int]
    cost: StepCost
    memory: Memory
    batch_size: int
    step_seconds: float | None  # measured here
    start_seconds: float | None  # before the first step, measured here
    devices: list[DevicePlan]

    @property
    def fits(self) -> bool:
        """Whether the run fits on all devices of the plan."""
        return not any(device.advice for device in self.devices)

    def __str__(self) -> str:
        lengths, memory = self.lengths, vars(self.memory)
        rows = [device.cells() for device in self.devices]
        table = Table(f"Plan of {self.recipe}", ["", "steps", "hours", "GiB needed", "GiB there", ""], rows)
        parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in memory.items())
        lines = [
            f"encoders  {self.parameters[0] / 1e6:.1f} and {self.parameters[1] / 1e6:.1f} million weights",
            f"pairs     {self.pairs:,}; {lengths.src:.1f} and {lengths.tgt:.1f} tokens a sentence with padding, in the "
            f"longest batch {lengths.longest_src:.0f} and {lengths.longest_tgt:.0f}",
            f"a step    {self.batch_size:,} pairs, {self.cost.total / 1e9:,.1f} G operations, of them scores "
            f"{self.cost.scores / 1e9:,.1f}",
            f"memory    MiB of one device: {parts}",
        ]
        if self.start_seconds is not None:
            lines.append(f"start     {self.start_seconds:,.0f} seconds here before the first step")
        misfits = [f"{plan.device}: does not fit; {plan.advice}" for plan in self.devices if plan.advice]
        return "\n".join([table.as_text(), *lines, *misfits]) + "\n"


def plan(
    recipe: str | Path | TrainConfig, *overrides: str, devices: str = "", pairs: int = 0,
    tokens: Sequence[float] = (), seconds: float = REHEARSAL_SECONDS, progress: bool = True,
) -> RunPlan:  # fmt: skip
    """Counts what a recipe costs, and times some of its steps here.

    Args:
        recipe: A YAML file, or the settings themselves.
        overrides: Settings stronger than the file.
        devices: By commas: `here`, or GPUs of the table such as `4xv100`; if empty some GPUs and, with the data, here.
        pairs: Of the training set, for a plan without the data.
        tokens: Of a source and a target sentence, for a plan without the data.
        seconds: To spend on steps here.
        progress: Whether to show progress bars.

    Returns:
        Operations, memory and hours.

    Raises:
        ConfigError: A recipe that makes no sense, an unknown device, or `here` in a plan without the data.
        DataError: Pairs that cannot be read.
        ModelError: A model that cannot be opened.
    """
    config = recipe if isinstance(recipe, TrainConfig) else load_config(recipe, list(overrides))
    named = read_devices(devices or (GPUS if tokens else f"{HERE},{GPUS}"))
    rehearsal: Rehearsal | None = None
    if tokens:
        shapes, lengths = _shapes(config), _given_lengths(config, tokens)
        if pairs <= 0 or (HERE, 1) in named:
            raise ConfigError(
                f"--tokens with --pairs {pairs} and --devices {devices}: expected a number of pairs, and GPUs of the "
                "table: without the data nothing can be timed here"
            )
        epoch_steps = max(1, pairs // config.optimizer.batch_size)
    else:
        with showing(progress):
            rehearsal = rehearse(config, seconds if (HERE, 1) in named else 0.0)
        pairs, epoch_steps, lengths = rehearsal.pairs, rehearsal.epoch_steps, rehearsal.lengths
        shapes = read_shape(rehearsal.encoders[0]), read_shape(rehearsal.encoders[1])
    return RunPlan(
        recipe=config.out if isinstance(recipe, TrainConfig) else str(recipe),
        pairs=pairs,
        lengths=lengths,
        parameters=(shapes[0].parameters, shapes[1].parameters),
        cost=step_cost(config, shapes, lengths),
        memory=device_memory(config, shapes, lengths),
        batch_size=config.optimizer.batch_size,
        step_seconds=rehearsal.step_seconds(in_minutes=config.schedule.minutes > 0) if rehearsal else None,
        start_seconds=rehearsal.start_seconds if rehearsal else None,
        devices=[_on_device(config, shapes, lengths, epoch_steps, rehearsal, *device) for device in named],
    )


def _shapes(config: TrainConfig) -> tuple[Shape, Shape]:
    src = shape_of(config.src)
    return src, src if config.tgt.kind == Kind.shared else shape_of(config.tgt)


def _given_lengths(config: TrainConfig, tokens: Sequence[float]) -> Lengths:
    """Lengths of a mean sentence as they were given; the longest batch is taken to have twice as many."""
    if len(tokens) != 2 or min(tokens) <= 0:
        raise ConfigError(f"--tokens {','.join(map(str, tokens))}: expected two numbers above 0 such as 28,33")
    limits = config.src.max_tokens, config.tgt.max_tokens
    src, tgt = (min(count, limit) for count, limit in zip(tokens, limits, strict=True))
    return Lengths(src, tgt, min(2 * src, limits[0]), min(2 * tgt, limits[1]))


def _on_device(
    config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths, epoch_steps: int,
    rehearsal: Rehearsal | None, name: str, count: int,
) -> DevicePlan:  # fmt: skip
    """The run on some devices of one kind."""
    schedule = config.schedule
    steps = schedule.steps or math.ceil(schedule.epochs * epoch_steps)
    if name == HERE:
        assert rehearsal is not None
        room, used = memory_here(), rehearsal.used
        seconds = rehearsal.step_seconds(in_minutes=schedule.minutes > 0)
        seconds += rehearsal.evaluation_seconds / schedule.evaluate_every
        seconds += rehearsal.checkpoint_seconds / schedule.checkpoint_every
    else:
        device = DEVICES[name]
        room, used = device.memory, GPU_RESERVED
        cost = step_cost(config, shapes, lengths)
        seconds = max(
            cost.total / (count * device.speed(config.optimizer.precision)),
            LAUNCH_SECONDS * (STEP_CALLS + LAYER_CALLS * sum(shape.layers for shape in shapes)),
        )
    if schedule.minutes:
        steps = int(60 * schedule.minutes / seconds)
    hours = steps * seconds / 3600
    needed = used + device_memory(config, shapes, lengths, count).total
    if rehearsal and name == HERE:
        needed = max(needed, rehearsal.seen)
    known = name == HERE or any(shape.layers for shape in shapes)
    return DevicePlan(
        device=name, count=count, measured=name == HERE, steps=steps, hours=hours if known else None, needed=needed,
        room=room, advice=advise(config, shapes, lengths, count, room - used) if needed > room else "",
    )  # fmt: skip
