"""Whether a run fits into the memory of its device, and with which settings it would.

Takes settings, encoders and the order of batches from `run.py`, which refuses what cannot fit before the first step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import psutil
import torch

from dualmoco.core.errors import RunError
from dualmoco.core.memory import peak_memory
from dualmoco.data.pairs import Split
from dualmoco.models.encoder import Encoder, Features
from dualmoco.models.shape import Shape, read_shape
from dualmoco.training.contrast import BLOCK_ROWS
from dualmoco.training.cost import Lengths, device_memory
from dualmoco.training.order import Curriculum
from dualmoco.training.recipe import TrainConfig

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
            config.optimizer.gradient_checkpointing, tried.optimizer.gradient_checkpointing,
        ),
        "contrast.queue_size": (config.contrast.queue_size, tried.contrast.queue_size),
    }  # fmt: skip
    return [f"{key}={str(new).lower()}" for key, (old, new) in values.items() if new != old]


def _halved(size: int) -> list[int]:
    return [size >> shift for shift in range(1, 12) if size >> shift >= BLOCK_ROWS]


def _micro_batches(batch: int, devices: int, now: int) -> list[int]:
    """Numbers of micro-batches from the present one on that cut a batch into equal parts of at least two pairs."""
    most = min(batch // (2 * devices), MOST_MICRO_BATCHES)
    return [now, *(number for number in range(now + 1, most + 1) if batch % (number * devices) == 0)]
