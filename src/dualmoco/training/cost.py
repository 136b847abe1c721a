"""What a step of training costs: operations, and memory of a device, by the shapes of the encoders.

Takes settings and the lengths of batches, gives numbers to `fitting.py` and to `dualmoco plan`. Counted are products of
matrices, two operations for each multiplication and addition.
Shapes: N sentences of L tokens, D dimension, K rows of a queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dualmoco.models.recipe import ALL, HEAD, LAST, EncoderConfig, Kind
from dualmoco.models.shape import Shape
from dualmoco.training.contrast import BLOCK_ROWS
from dualmoco.training.recipe import MixedPrecision, ObjectiveName, TrainConfig

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
    own = [shape.parameters for shape, side in zip(shapes, sides, strict=True) if side.kind != Kind.shared]
    learning = sum(
        shape.parameters * _learning_share(side, shape)
        for side, shape in zip(sides, shapes, strict=True)
        if side.kind != Kind.shared and not side.frozen
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
