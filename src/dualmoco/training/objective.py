"""The interface of a loss: the properties that an objective declares, and the methods that the training loop calls.

The trainer, the memory estimate and the checks of a recipe know objectives only through this class. `objectives.py`
has those that come with the package, and docs/contributing/add-a-loss.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from accelerate import Accelerator
from torch import Tensor, nn

from dualmoco.core.config_loader import Rule
from dualmoco.core.progress import Progress
from dualmoco.data.pairs import Split
from dualmoco.models.network import Encoder
from dualmoco.training.batches import Curriculum, Loader, PairLoader, ShardSpec
from dualmoco.training.config import TrainConfig
from dualmoco.training.infonce import BLOCK_ROWS, GPU_BLOCK_BYTES

Metrics = dict[str, Tensor]
FLOAT_BYTES = 4


@dataclass(frozen=True)
class RunInputs:
    """The input for the batches of an objective."""

    config: TrainConfig
    split: Split
    order: Curriculum
    encoders: dict[str, Encoder]  # by language
    accelerator: Accelerator
    files: Any = None  # result of `Objective.read_files`
    other_orders: Sequence[Curriculum] = ()  # of the further languages

    @property
    def src(self) -> Encoder:
        """The encoder of the source language."""
        return self.encoders[self.config.src.lang]

    @property
    def tgt(self) -> Encoder:
        """The encoder of the target language."""
        return self.encoders[self.config.tgt.lang]

    @property
    def others(self) -> list[Encoder]:
        """The encoders of the further languages."""
        return [self.encoders[language.encoder.lang] for language in self.config.languages]

    @property
    def shard(self) -> ShardSpec:
        """The part of each batch that this process computes."""
        accelerator = self.accelerator
        return ShardSpec(accelerator.process_index, accelerator.num_processes, self.config.optimizer.accumulate)


@dataclass(frozen=True)
class ObjectiveCost:
    """The estimated cost of an objective, in addition to the weights of the encoders, for `dualmoco plan`."""

    passes: int = 1  # forward and backward passes of each encoder over its side of a batch
    extra_forwards: int = 0  # further passes of each encoder over its side, without gradients
    momentum_encoders: bool = False  # whether each encoder has a momentum encoder, which also encodes the batch
    operations: float = 0.0  # operations for the scores of one step, on all devices together
    queue: float = 0.0  # bytes of vectors that stay on each device
    scores: float = 0.0  # bytes of the scores of a micro-batch
    more_src_sentences: int = 0  # sentences that the source encoder reads in each step besides the pairs


def queue_cost(config: TrainConfig, dimension: int, devices: int, *, directions: int) -> ObjectiveCost:
    """The cost of one or two queues that are scored in blocks; two queues have momentum encoders."""
    batch, size = config.optimizer.batch_size, config.contrast.queue_size
    components = sum(config.contrast.prefixes(dimension))
    rows = config.optimizer.micro_batch_size(devices)
    return ObjectiveCost(
        momentum_encoders=directions == 2,
        operations=directions * 4.0 * batch * size * components,  # the logits, and their weighted sum of the rows
        queue=directions * size * (FLOAT_BYTES * dimension + 16),  # two ids per row
        scores=2 * min(FLOAT_BYTES * rows * size, max(GPU_BLOCK_BYTES, FLOAT_BYTES * rows * BLOCK_ROWS)),
    )


@dataclass(frozen=True)
class HeldoutTask:
    """A held-out score of the objective, in addition to retrieval."""

    measure: Callable[[Progress], float]  # function that scores the current encoders, from 0 to 1
    sentences: int  # number of sentences that `measure` encodes, for the progress bar
    decides: bool  # whether this score chooses the best model, instead of retrieval


class Objective(nn.Module):
    """A way to train two encoders; the constructor takes `(src: Encoder, tgt: Encoder, config: TrainConfig)`.

    Its parameters and buffers are the state of a run: they are moved to the device, optimized and saved in checkpoints.
    Only the constructor and `forward` are required.
    """

    options: ClassVar[dict[str, float]] = {}
    """Additional settings with their defaults; a recipe changes them under `options`."""
    frozen_variant: ClassVar[type[Objective] | None] = None
    """The class that replaces this one if an encoder is frozen; None if both encoders must be trained."""
    trains_prefixes: ClassVar[bool] = False
    """Whether it trains the shorter vectors of `contrast.dimensions`."""
    takes_languages: ClassVar[bool] = False
    """Whether it trains more than two languages; the constructor then takes their encoders as a fourth argument."""

    @classmethod
    def rules(cls, config: TrainConfig) -> list[Rule]:
        """The requirements on the settings."""
        return []

    @classmethod
    def cost(cls, config: TrainConfig, dimension: int, devices: int = 1) -> ObjectiveCost:
        """The cost of the objective; by default, that of scoring each sentence against the whole batch."""
        batch, rows = config.optimizer.batch_size, config.optimizer.micro_batch_size(devices)
        return ObjectiveCost(
            operations=12.0 * batch * batch * dimension, scores=8 * FLOAT_BYTES * rows * rows * devices
        )

    @classmethod
    def batch_sizes(cls, config: TrainConfig) -> dict[str, int]:
        """The settings, by key, that must be divisible by the number of micro-batches."""
        return {"optimizer.batch_size": config.optimizer.batch_size}

    @classmethod
    def read_files(cls, config: TrainConfig) -> Any:
        """Reads training data besides the pairs, before the encoders are built."""
        return None

    def make_loader(self, inputs: RunInputs) -> Loader:
        """Makes the source of batches; by default pairs of sentences with their tokens and ids."""
        mask = inputs.config.contrast.mask_repeats
        tokenizers = inputs.src.tokenize, inputs.tgt.tokenize
        return PairLoader(inputs.split.train, inputs.order, *tokenizers, inputs.shard, mask_repeats=mask)

    def make_heldout_task(self, inputs: RunInputs) -> HeldoutTask | None:
        """Makes the held-out score of the objective, if it has one."""
        return None

    def begin_step(self, micro_batches: Sequence[Any]) -> list[Any]:
        """Prepares an optimizer step; `forward` receives the item of its micro-batch."""
        return [None] * len(micro_batches)

    def forward(self, batch: Any, prepared: Any) -> Metrics:
        """The metrics of a micro-batch as scalars; `loss` is minimized, others such as `accuracy` are only logged."""
        raise NotImplementedError

    def update_momentum(self, momentum: float) -> None:
        """Moves momentum encoders, if there are any, after the optimizer step."""

    def end_step(self, prepared: Sequence[Any]) -> None:
        """Finishes an optimizer step."""

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """Metrics of the state between steps, for the log."""
        return {}

    def momentum_encoders(self) -> dict[str, nn.Module]:
        """The momentum encoders by language; none if the objective has none."""
        return {}

    def constant_modules(self) -> list[nn.Module]:
        """Modules that a resumed run opens again by name, so they are not in checkpoints."""
        return []

    def save_files(self, folder: Path) -> None:
        """Writes the parts of the model besides its encoders into a model folder."""
