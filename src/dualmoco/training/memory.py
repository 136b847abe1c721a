"""The cost of a training step: operations and device memory, estimated from the shapes of the encoders.

`check_memory` refuses a run that cannot fit, and `dualmoco plan` prints the numbers. Only matrix products are counted,
with two operations for each multiplication and addition.

Shapes: N sentences of L tokens, D dimension, K rows in a queue.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch

from dualmoco.core.errors import RunError
from dualmoco.core.progress import peak_memory
from dualmoco.data.pairs import Split
from dualmoco.models.build import Shape, read_shape, shape_of
from dualmoco.models.config import ALL, HEAD, LAST, EncoderConfig, EncoderKind
from dualmoco.models.network import Encoder, TokenParts
from dualmoco.training.batches import Curriculum
from dualmoco.training.config import MixedPrecision, TrainConfig
from dualmoco.training.infonce import BLOCK_ROWS
from dualmoco.training.objective import FLOAT_BYTES
from dualmoco.training.objectives import objective_class

CUDA = "cuda"  # PyTorch's type of the GPUs that `dualmoco plan` knows
SAVED_FLOATS = (
    16.6  # activations of PyTorch's BERT for the backward pass, as rows of `width` numbers per token and layer
)
SAVED_BY_DROPOUT = 2.0  # more of these rows with dropout, in two masks of floats
SAVED_ATTENTIONS = 3  # also with dropout, L x L floats per head: probabilities, their mask, and the product of both
CUDA_SAVED_BY_DROPOUT = 0.5  # instead of both on CUDA: two masks of bytes, and attention in one kernel
CHECKPOINTED_FLOATS = 1.3  # these rows with gradient checkpointing
MIXED_SHARE = 0.63  # of these bytes with mixed precision
SURVEYED_SENTENCES = 20_000  # batches per stage whose tokens are counted
MOST_MICRO_BATCHES = 64
GPU_RESERVED = 600 * 2**20  # memory of the driver in bytes
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
GIB = 2**30


@dataclass(frozen=True)
class Lengths:
    """Tokens per sentence: with padding in an average step, and an upper bound for any part of the longest step."""

    src: float
    tgt: float
    longest_src: float
    longest_tgt: float


@dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    weights: float  # weights of both encoders
    momentum: float  # weights of the momentum encoders
    learning: float  # gradients and the state of AdamW
    queue: float  # both queues, or the negatives of a frozen encoder
    activations: float  # activations for the backward pass of the longest micro-batch, and their gradients
    scores: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return float(sum(astuple(self)))


@dataclass(frozen=True)
class StepCost:
    """Operations of one step on all devices together."""

    encoders: float
    scores: float

    @property
    def total(self) -> float:
        """The total."""
        return self.encoders + self.scores


def step_cost(config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths) -> StepCost:
    """Counts the operations of an average step for encoders of these shapes."""
    cost = objective_class(config).cost(config, shapes[0].dimension)
    batch, again = config.optimizer.batch_size, 1 if config.optimizer.gradient_checkpointing else 0
    encoders = 0.0
    for side, shape, tokens in zip((config.src, config.tgt), shapes, (lengths.src, lengths.tgt), strict=True):
        if not side.frozen:
            forward = shape.operations(tokens)
            backward = _learning_share(side, shape) + (1 if side.adapter.rank else _learning_share(side, shape))
            learning = (1 + again + backward) * forward  # gradients of all layers' inputs pass through an adapter
            encoders += cost.passes * batch * learning
            encoders += (cost.extra_forwards * cost.passes + cost.momentum_encoders) * batch * forward
    encoders += cost.more_src_sentences * 3 * shapes[0].operations(lengths.src)
    return StepCost(encoders, cost.operations)


def device_memory(
    config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths, devices: int = 1, kind: str = "cpu"
) -> Memory:
    """Estimates the memory that training needs on each of the devices, of one kind, that share a batch."""
    optimizer = config.optimizer
    cost = objective_class(config).cost(config, shapes[0].dimension, devices)
    rows, checkpointing = optimizer.micro_batch_size(devices), optimizer.gradient_checkpointing
    weights = learning = kept = 0.0
    longest = (lengths.longest_src, lengths.longest_tgt)
    for side, shape, tokens in zip((config.src, config.tgt), shapes, longest, strict=True):
        if side.kind != EncoderKind.shared:
            weights += shape.parameters
            learning += shape.parameters * _learning_share(side, shape)
        if not side.frozen:
            kept += (
                cost.passes * rows * saved_bytes(shape, tokens, side.dropout, checkpointing=checkpointing, kind=kind)
            )
            layer = 2 * shape.feed_forward + 4 * shape.width  # gradients of one layer, per token
            kept += cost.passes * rows * tokens * layer * FLOAT_BYTES
    others = [shape_of(language.encoder).parameters for language in config.languages]
    weights, learning = weights + sum(others), learning + sum(others)
    more = math.ceil(cost.more_src_sentences / (devices * optimizer.accumulate))
    kept += more * saved_bytes(shapes[0], lengths.longest_src, config.src.dropout, kind=kind)
    mixed = optimizer.precision != MixedPrecision.fp32
    return Memory(
        weights=FLOAT_BYTES * weights * (1.5 if mixed else 1.0),
        momentum=FLOAT_BYTES * learning if cost.momentum_encoders else 0.0,  # other weights are shared
        learning=3 * FLOAT_BYTES * learning,
        queue=cost.queue * (1 + len(others) / 2),  # two queues for the first pair of languages, and one for each other
        activations=kept * (MIXED_SHARE if mixed else 1.0),
        scores=cost.scores,
    )


def saved_bytes(
    shape: Shape, tokens: float, dropout: float, *, checkpointing: bool = False, kind: str = "cpu"
) -> float:
    """Bytes that one sentence needs for the backward pass on a kind of device.

    Attention is PyTorch's scaled_dot_product_attention. Its fused kernels keep their output, one log-sum-exp per head
    and token, and the state of the random numbers instead of a mask. CUDA is assumed to have such a kernel for every
    batch: the memory-efficient one supports padding masks and dropout, even on a V100. A CPU has one only without
    dropout; with dropout the attention of all heads is kept.
    """
    if checkpointing:
        return FLOAT_BYTES * tokens * shape.width * (CHECKPOINTED_FLOATS * shape.layers + SAVED_FLOATS)
    floats = SAVED_FLOATS
    if dropout and kind == CUDA:
        floats += CUDA_SAVED_BY_DROPOUT
    elif dropout:
        floats += SAVED_BY_DROPOUT + SAVED_ATTENTIONS * shape.heads * tokens / shape.width
    return FLOAT_BYTES * tokens * shape.width * floats * shape.layers + 4 * FLOAT_BYTES * shape.dimension


def _learning_share(side: EncoderConfig, shape: Shape) -> float:
    """The share of an encoder's weights that are trained."""
    if side.frozen:
        return 0.0
    if (side.trainable == ALL and not side.adapter.rank) or not shape.layers:
        return 1.0
    head = shape.width * side.projection
    if side.adapter.rank:
        sizes = shape.layers * (8 * shape.width + 2 * (shape.width + shape.feed_forward))  # inputs and outputs
        return (side.adapter.rank * sizes + head) / shape.parameters
    layers = 0 if side.trainable == HEAD else int(side.trainable.removeprefix(LAST))
    return (layers * shape.layer_parameters + head) / shape.parameters


def check_memory(
    config: TrainConfig, split: Split, order: Curriculum, encoders: tuple[Encoder, Encoder], devices: int
) -> None:
    """Refuses a run that cannot fit into the memory of this machine's devices, and suggests settings that would fit."""
    shapes = read_shape(encoders[0]), read_shape(encoders[1])
    longest = float(config.src.max_tokens), float(config.tgt.max_tokens)
    room, kind = memory_here() - used_here(), kind_here()
    if device_memory(config, shapes, Lengths(*longest, *longest), devices, kind).total <= room:
        return
    stages = [survey_lengths(order, split, encoders, stage) for stage in range(len(order.orders))]
    lengths = whole_run(stages, order.shares)
    needed = device_memory(config, shapes, lengths, devices, kind).total
    if needed > room:
        raise RunError(
            f"{config.out}: needs about {needed / GIB:.1f} GiB on each device, which has {room / GIB:.1f} GiB free; "
            + advise(config, shapes, lengths, devices, room, kind)
        )


def kind_here() -> str:
    """The type of this machine's device, as PyTorch names it."""
    device = torch.accelerator.current_accelerator()  # version of the build, even without a GPU in the machine
    return device.type if device and torch.accelerator.is_available() else "cpu"


def memory_here() -> float:
    """Bytes of this machine's GPU, or this process's share of the memory of the machine or container."""
    if torch.accelerator.is_available():
        return float(torch.accelerator.get_memory_info()[1])
    limits = [float(psutil.virtual_memory().total)]
    for path in map(Path, CGROUP_LIMITS):
        if path.is_file() and (limit := path.read_text(encoding="ascii").strip()).isdigit():
            limits.append(float(limit))
    return min(limits) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of torchrun on this machine


def used_here() -> float:
    """Bytes that are in use before training begins: by the driver of a GPU, or by this process."""
    return float(GPU_RESERVED if torch.accelerator.is_available() else psutil.Process().memory_info().rss)


def peak_here() -> float:
    """Peak memory of this process on its device, in bytes."""
    if torch.accelerator.is_available():
        return float(GPU_RESERVED + torch.accelerator.max_memory_reserved())
    return float(peak_memory())


def survey_lengths(order: Curriculum, split: Split, encoders: tuple[Encoder, Encoder], stage: int) -> Lengths:
    """Counts tokens in a sample of a stage's batches; the longest batch counts as fully padded."""
    own = order.orders[stage]
    count = max(1, min(own.batches_per_epoch, SURVEYED_SENTENCES // own.batch_size))
    lengths, longest = [], []
    for step in np.linspace(0, own.batches_per_epoch - 1, count).astype(int).tolist():
        texts = split.train.texts(own.rows(step))
        features = [encoder.tokenize(side) for encoder, side in zip(encoders, texts, strict=True)]
        lengths.append([TokenParts.split(side).count / own.batch_size for side in features])
        longest.append([TokenParts([side], None).count / own.batch_size for side in features])
    return Lengths(*np.mean(lengths, axis=0).tolist(), *np.max(longest, axis=0).tolist())


def whole_run(stages: Sequence[Lengths], shares: Sequence[float]) -> Lengths:
    """The lengths of a whole run, from the shares of its stages."""
    return Lengths(
        sum(share * stage.src for share, stage in zip(shares, stages, strict=True)),
        sum(share * stage.tgt for share, stage in zip(shares, stages, strict=True)),
        max(stage.longest_src for stage in stages),
        max(stage.longest_tgt for stage in stages),
    )


def advise(
    config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths, devices: int, room: float, kind: str
) -> str:
    """Advice on settings that make a run fit into `room` bytes per device of a kind."""
    settings = fitting_settings(config, shapes, lengths, devices, room, kind)
    return f"it would fit with {' '.join(settings)}" if settings else "no setting makes it fit: use smaller encoders"


def fitting_settings(
    config: TrainConfig, shapes: tuple[Shape, Shape], lengths: Lengths, devices: int, room: float, kind: str = "cpu"
) -> list[str]:
    """Overrides that fit into `room` bytes per device, or none; a smaller queue is last, because it changes results."""
    optimizer, size = config.optimizer, config.contrast.queue_size
    most = min(optimizer.batch_size // (2 * devices), MOST_MICRO_BATCHES)  # at least two pairs per micro-batch
    more = [n for n in range(optimizer.accumulate + 1, most + 1) if optimizer.batch_size % (n * devices) == 0]
    halves = [size >> shift for shift in range(1, 12) if size >> shift >= BLOCK_ROWS]
    for queue_size in (size, *halves):
        for checkpointing in (optimizer.gradient_checkpointing, True):
            for accumulate in (optimizer.accumulate, *more):
                tried = replace(
                    config,
                    optimizer=replace(optimizer, accumulate=accumulate, gradient_checkpointing=checkpointing),
                    contrast=replace(config.contrast, queue_size=queue_size),
                )
                if device_memory(tried, shapes, lengths, devices, kind).total <= room:
                    changes = {
                        "optimizer.accumulate": (optimizer.accumulate, accumulate),
                        "optimizer.gradient_checkpointing": (optimizer.gradient_checkpointing, checkpointing),
                        "contrast.queue_size": (size, queue_size),
                    }
                    return [f"{key}={str(new).lower()}" for key, (old, new) in changes.items() if new != old]
    return []
