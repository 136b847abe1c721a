"""What a step of training costs: operations, and memory of a device, by the shapes of the encoders.

Takes settings and the lengths of batches, gives numbers to `fitting.py` and to `dualmoco plan`. Counted are products of
matrices, two operations for each multiplication and addition.
Shapes: N sentences of L tokens, D dimension, K rows of a queue.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import psutil
import torch

from dualmoco.core.errors import RunError
from dualmoco.core.progress import peak_memory
from dualmoco.data.pairs import Split
from dualmoco.models.build import Shape, read_shape
from dualmoco.models.config import ALL, HEAD, LAST, EncoderConfig, EncoderKind
from dualmoco.models.network import Encoder, Features
from dualmoco.training.batches import Curriculum
from dualmoco.training.config import MixedPrecision, ObjectiveName, TrainConfig
from dualmoco.training.infonce import BLOCK_ROWS

FLOAT = 4  # bytes
SAVED_FLOATS = 16.6  # kept for the backward pass: width-sized rows a token and layer, as PyTorch's BERT keeps them ...
SAVED_BY_DROPOUT = 2.0  # ... and more of them with dropout, besides the attention of all heads three times
CHECKPOINTED_FLOATS = 1.3  # the same with gradient checkpointing
MIXED_SHARE = 0.63  # of those bytes with mixed precision


@dataclass(frozen=True)
class Lengths:
    """Tokens of a sentence in its batch, padding included: of a mean step, and of the longest one."""

    src: float
    tgt: float
    longest_src: float
    longest_tgt: float


@dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    weights: float  # of both encoders
    momentum: float  # of the encoders that follow them
    learning: float  # gradients and what AdamW remembers
    queue: float  # both queues, or negatives of a frozen side
    activations: float  # kept for the backward pass of the longest micro-batch, and worked on
    scores: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.momentum + self.learning + self.queue + self.activations + self.scores


@dataclass(frozen=True)
class StepCost:
    """Operations of one step over all devices."""

    encoders: float
    scores: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.encoders + self.scores


def step_cost(config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths) -> StepCost:
    """Counts the operations of a mean step.

    Args:
        config: The settings.
        shapes: Of the encoders of both sides.
        lengths: Of their sentences.

    Returns:
        Operations of the encoders, forward and backward, and of the scores.
    """
    batch, contrast = config.optimizer.batch_size, config.contrast
    again = 1 if config.optimizer.gradient_checkpointing else 0
    encoders = 0.0
    for side, shape, tokens in zip(_sides(config), shapes, (lengths.src, lengths.tgt), strict=True):
        forward = shape.operations(tokens)
        learns = (1 + again + 2 * _learning_share(side, shape)) * forward
        if not side.frozen:
            encoders += batch * learns
            encoders += batch * forward if _has_momentum(config) else 0.0
            encoders += batch * learns if config.objective == ObjectiveName.simcse else 0.0
    if config.nli.train:
        number = 0 if config.nli.side == "src" else 1
        tokens = (lengths.src, lengths.tgt)[number]
        encoders += 2 * config.nli.batch_size * 3 * shapes[number].operations(tokens)
    dimension = shapes[0].dimension
    if config.objective == ObjectiveName.dual_moco:
        directions = 1 if config.frozen else 2
        scores = directions * 2 * 2.0 * batch * contrast.queue_size * dimension  # logits, and their pull on the query
    else:
        scores = 2 * 3 * 2.0 * batch * batch * dimension
    return StepCost(encoders, scores)


def device_memory(config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths, devices: int = 1) -> Memory:
    """Counts the memory that training takes on each of some devices.

    Args:
        config: The settings.
        shapes: Of the encoders of both sides.
        lengths: Of their sentences.
        devices: That share a batch.

    Returns:
        Bytes, by what they are for.
    """
    contrast, optimizer = config.contrast, config.optimizer
    sides = _sides(config)
    own = [shape.parameters for shape, side in zip(shapes, sides, strict=True) if side.kind != EncoderKind.shared]
    learning = sum(
        shape.parameters * _learning_share(side, shape)
        for side, shape in zip(sides, shapes, strict=True)
        if side.kind != EncoderKind.shared and not side.frozen
    )
    mixed = optimizer.precision != MixedPrecision.fp32
    rows = math.ceil(optimizer.batch_size / (devices * optimizer.accumulate))  # N
    kept = 0.0
    for side, shape, tokens in zip(sides, shapes, (lengths.longest_src, lengths.longest_tgt), strict=True):
        if not side.frozen:
            kept += rows * saved_bytes(shape, tokens, side.dropout, checkpointing=optimizer.gradient_checkpointing)
            kept += rows * tokens * (2 * shape.feed_forward + 4 * shape.width) * FLOAT  # gradients of one layer
    if config.objective == ObjectiveName.simcse:
        kept *= 2
    if config.nli.train:
        number = 0 if config.nli.side == "src" else 1
        examples = math.ceil(config.nli.batch_size / (devices * optimizer.accumulate))
        tokens = (lengths.longest_src, lengths.longest_tgt)[number]
        kept += 2 * examples * saved_bytes(shapes[number], tokens, sides[number].dropout)
    dimension = shapes[0].dimension
    queue, scores = 0.0, 8 * FLOAT * rows * rows * devices
    if config.objective == ObjectiveName.dual_moco:
        queue = (1 if config.frozen else 2) * contrast.queue_size * (FLOAT * dimension + 16)
        scores = 2 * FLOAT * rows * min(BLOCK_ROWS, contrast.queue_size)
    return Memory(
        weights=FLOAT * sum(own) * (1.5 if mixed else 1.0),
        momentum=FLOAT * sum(own) if _has_momentum(config) else 0.0,
        learning=(12 + (FLOAT if devices > 1 else 0)) * learning,
        queue=queue,
        activations=kept * (MIXED_SHARE if mixed else 1.0),
        scores=scores,
    )


def saved_bytes(shape: Shape, tokens: float, dropout: float, *, checkpointing: bool = False) -> float:
    """Bytes that one sentence of so many tokens keeps for the backward pass."""
    if checkpointing:
        return FLOAT * tokens * shape.width * (CHECKPOINTED_FLOATS * shape.layers + SAVED_FLOATS)
    floats = SAVED_FLOATS
    if dropout:
        floats += SAVED_BY_DROPOUT + 3 * shape.heads * tokens / shape.width
    return FLOAT * tokens * shape.width * floats * shape.layers + 4 * FLOAT * shape.dimension


def _sides(config: TrainConfig) -> tuple[EncoderConfig, EncoderConfig]:
    return config.src, config.tgt


def _has_momentum(config: TrainConfig) -> bool:
    return config.objective == ObjectiveName.dual_moco and not config.frozen


def _learning_share(side: EncoderConfig, shape: Shape) -> float:
    """Of a side's weights that learn."""
    if side.frozen:
        return 0.0
    if side.trainable == ALL or not shape.layers:
        return 1.0
    head = shape.width * side.projection
    layers = 0 if side.trainable == HEAD else int(side.trainable.removeprefix(LAST))
    return (layers * shape.layer_parameters + head) / shape.parameters


SURVEYED_SENTENCES = 20_000  # of each stage, whose tokens are counted
MOST_MICRO_BATCHES = 64
GPU_RESERVED = 600 * 2**20  # bytes that the driver takes
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
GIB = 2**30


def check_memory(
    config: TrainConfig, split: Split, order: Curriculum, encoders: tuple[Encoder, Encoder], devices: int
) -> None:
    """Refuses a run that cannot fit into the memory that is here.

    Args:
        config: The settings.
        split: The pairs.
        order: Of their batches.
        encoders: Of both sides.
        devices: That share a batch.

    Raises:
        RunError: Says what is needed, what there is, and which settings would fit.
    """
    shapes = read_shape(encoders[0]), read_shape(encoders[1])
    longest = float(config.src.max_tokens), float(config.tgt.max_tokens)
    room = memory_here() - used_here()
    if device_memory(config, shapes, Lengths(*longest, *longest), devices).total <= room:
        return
    stages = [survey_lengths(order, split, encoders, stage) for stage in range(len(order.orders))]
    lengths = whole_run(stages, order.shares)
    needed = device_memory(config, shapes, lengths, devices).total
    if needed > room:
        raise RunError(
            f"{config.out}: needs about {needed / GIB:.1f} GiB on each device, which has {room / GIB:.1f} GiB free; "
            + advise(config, shapes, lengths, devices, room)
        )


def advise(config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths, devices: int, room: float) -> str:
    """What to set so that a run fits into so many bytes of each device."""
    settings = fitting_settings(config, shapes, lengths, devices, room)
    return f"it would fit with {' '.join(settings)}" if settings else "no setting makes it fit: take smaller encoders"


def memory_here() -> float:
    """Bytes of the device that is here: a GPU's, or a process's share of those that this machine or container has."""
    if torch.accelerator.is_available():
        return float(torch.accelerator.get_memory_info()[1])
    limits = [float(psutil.virtual_memory().total)]
    for path in map(Path, CGROUP_LIMITS):
        if path.is_file() and (limit := path.read_text(encoding="ascii").strip()).isdigit():
            limits.append(float(limit))
    return min(limits) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of torchrun on this machine


def used_here() -> float:
    """Bytes that are taken before training begins: by the driver of a GPU, or by this process."""
    return float(GPU_RESERVED if torch.accelerator.is_available() else psutil.Process().memory_info().rss)


def peak_here() -> float:
    """Peak memory of this process on its device, in bytes."""
    if torch.accelerator.is_available():
        return float(GPU_RESERVED + torch.accelerator.max_memory_reserved())
    return float(peak_memory())


def survey_lengths(order: Curriculum, split: Split, encoders: tuple[Encoder, Encoder], stage: int) -> Lengths:
    """Counts the tokens of sentences in some batches of a stage, padding included.

    Args:
        order: Of the run's batches.
        split: The pairs.
        encoders: Of both sides.
        stage: From 0.

    Returns:
        Tokens of a sentence, of static encoders without padding.
    """
    own = order.orders[stage]
    count = max(1, min(own.batches_per_epoch, SURVEYED_SENTENCES // own.batch_size))
    steps = np.linspace(0, own.batches_per_epoch - 1, count).astype(int).tolist()
    found: list[tuple[float, float]] = []
    for step in steps:
        rows = own.rows(step)
        texts = split.train.texts(rows)
        sides = zip(encoders, texts, strict=True)
        src, tgt = (count_tokens(encoder.tokenize(side)) / len(rows) for encoder, side in sides)
        found.append((src, tgt))
    src_lengths, tgt_lengths = zip(*found, strict=True)
    return Lengths(fmean(src_lengths), fmean(tgt_lengths), max(src_lengths), max(tgt_lengths))


def whole_run(stages: Sequence[Lengths], shares: Sequence[float]) -> Lengths:
    """Of a run whose stages have these shares of it: the mean of the means, and the longest batches."""
    return Lengths(
        sum(share * stage.src for share, stage in zip(shares, stages, strict=True)),
        sum(share * stage.tgt for share, stage in zip(shares, stages, strict=True)),
        max(stage.longest_src for stage in stages),
        max(stage.longest_tgt for stage in stages),
    )


def count_tokens(features: Features) -> int:
    """Tokens of a batch, padding included."""
    return features["input_ids"].numel()


def fitting_settings(
    config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths, devices: int, room: float
) -> list[str]:
    """Looks for settings with which a run fits.

    Args:
        config: The settings that do not.
        shapes: Of the encoders of both sides.
        lengths: Of their sentences.
        devices: That share a batch.
        room: Bytes that each device has.

    Returns:
        What to set, such as `optimizer.accumulate=4`: first what changes no result, a smaller queue last. Empty if
        nothing helps.
    """
    batch = config.optimizer.batch_size
    for queue_size in (config.contrast.queue_size, *_halved(config.contrast.queue_size)):
        for checkpointing in (config.optimizer.gradient_checkpointing, True):
            for accumulate in _micro_batches(batch, devices, config.optimizer.accumulate):
                optimizer = replace(config.optimizer, accumulate=accumulate, gradient_checkpointing=checkpointing)
                tried = replace(config, optimizer=optimizer, contrast=replace(config.contrast, queue_size=queue_size))
                if device_memory(tried, shapes, lengths, devices).total <= room:
                    return _changes(config, tried)
    return []


def _changes(config: TrainConfig, tried: TrainConfig) -> list[str]:
    values = {
        "optimizer.accumulate": (config.optimizer.accumulate, tried.optimizer.accumulate),
        "optimizer.gradient_checkpointing": (
            config.optimizer.gradient_checkpointing,
            tried.optimizer.gradient_checkpointing,
        ),
        "contrast.queue_size": (config.contrast.queue_size, tried.contrast.queue_size),
    }
    return [f"{key}={str(new).lower()}" for key, (old, new) in values.items() if new != old]


def _halved(size: int) -> list[int]:
    return [size >> shift for shift in range(1, 12) if size >> shift >= BLOCK_ROWS]


def _micro_batches(batch: int, devices: int, now: int) -> list[int]:
    """Numbers of micro-batches from the present one on that cut a batch into equal parts of at least two pairs."""
    most = min(batch // (2 * devices), MOST_MICRO_BATCHES)
    return [now, *(number for number in range(now + 1, most + 1) if batch % (number * devices) == 0)]
