"""A run from a recipe to its result: everything that comes before the first step, then the training loop.

The run folder gets `config.yaml`, `data.json`, `log.jsonl`, `initial/`, `checkpoints/`, `model/` with the best model so
far, and `keys/` if an encoder is frozen.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from dualmoco.core.errors import ConfigError
from dualmoco.core.progress import showing
from dualmoco.core.storage import locked
from dualmoco.data.pairs import Split, load_pairs
from dualmoco.training.batches import Curriculum, order_pairs
from dualmoco.training.config import MixedPrecision, TrainConfig
from dualmoco.training.init_encoders import check_attention, check_named_models, start_encoders
from dualmoco.training.memory import check_memory
from dualmoco.training.objective import RunInputs
from dualmoco.training.objectives import objective_class
from dualmoco.training.recipe import check_config, load_config
from dualmoco.training.run_folder import check_run_folder, write_inputs
from dualmoco.training.trainer import Trainer, TrainResult

ACCELERATE_PRECISION = {MixedPrecision.fp32: "no", MixedPrecision.bf16: "bf16", MixedPrecision.fp16: "fp16"}
SLOW_START = timedelta(days=7)  # other processes wait this long for the first one
logger = logging.getLogger(__name__)


def train(
    recipe: str | Path | TrainConfig, *overrides: str, resume: bool = False, progress: bool = True
) -> TrainResult:
    """Trains two encoders as a recipe says.

    Args:
        recipe: A YAML file, or the settings themselves.
        overrides: Settings such as `contrast.queue_size=8192`, stronger than the file.
        resume: Continue from the last checkpoint in the run folder, if there is one; the schedule may be longer now.
        progress: Whether to show progress bars.

    Returns:
        How far training came and how well it did on held-out pairs.

    Raises:
        ConfigError: The recipe cannot be read, or a setting is invalid.
        DataError: The pairs cannot be read, or there are too few; the run folder has keys of another model or text.
        ModelError: A model cannot be loaded safely.
        RunError: The run folder holds another run or is in use, a checkpoint does not fit or cannot be written, the run
            does not fit into memory, or the loss is not a number.
    """
    with showing(progress):
        return _train(_settings(recipe, overrides), resume=resume)


def _settings(recipe: str | Path | TrainConfig, overrides: tuple[str, ...]) -> TrainConfig:
    if not isinstance(recipe, TrainConfig):
        return load_config(recipe, list(overrides))
    if overrides:
        raise ConfigError(f"{overrides[0]!r}: overrides are for recipe files; expected none with a TrainConfig")
    check_config(recipe)
    return recipe


def _train(config: TrainConfig, *, resume: bool) -> TrainResult:
    """Locks the run folder, reads the data, builds the encoders and trains them."""
    check_precision(config)
    check_attention(config)
    accelerator = start_accelerator(config)
    out = Path(config.out)
    check_division(config, accelerator.num_processes)
    check_run_folder(config, out, resume=resume)
    with locked(out) if accelerator.is_main_process else nullcontext():  # the first process locks for all
        check_run_folder(config, out, resume=resume)  # another run may have ended in it meanwhile
        if accelerator.is_main_process:
            check_named_models(config, out)
        with accelerator.main_process_first() if config.data.prepared else nullcontext():  # the first unpacks for all
            split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
        if accelerator.is_main_process:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in split.counts.items() if count)
            logger.info("pairs: %s", counts)
        return build_trainer(config, split, accelerator).run(resume=resume)


def start_accelerator(config: TrainConfig) -> Accelerator:
    """Sets up the device and the processes of a run."""
    # Queues are equal on all processes by construction; pretrained encoders often have a pooler that is not used.
    handlers = [
        DistributedDataParallelKwargs(
            broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
        )
    ]
    if objective_class(config).slow_start:
        handlers.append(InitProcessGroupKwargs(timeout=SLOW_START))
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision=ACCELERATE_PRECISION[config.optimizer.precision],
        kwargs_handlers=handlers,
    )


def check_precision(config: TrainConfig) -> None:
    """Refuses fp16 without a GPU, where it would be ignored."""
    if config.optimizer.precision == MixedPrecision.fp16 and not torch.accelerator.is_available():
        raise ConfigError("optimizer.precision is fp16, but PyTorch finds no GPU here; expected fp32 on a CPU")


def check_division(config: TrainConfig, processes: int) -> None:
    """Refuses a batch that cannot be split into equal micro-batches, because every pair must have the same weight."""
    micro_batches = processes * config.optimizer.accumulate
    for key, size in objective_class(config).batch_sizes(config).items():
        if size % micro_batches:
            raise ConfigError(
                f"{key} is {size}; expected a multiple of {micro_batches}: {processes} process(es) times "
                f"optimizer.accumulate={config.optimizer.accumulate}"
            )


def build_trainer(config: TrainConfig, split: Split, accelerator: Accelerator) -> Trainer:
    """Does everything between reading the pairs and the first step, and writes the inputs into the run folder."""
    objective, order = objective_class(config), order_of(config, split)
    files = objective.read_files(config)
    encoders = start_encoders(config, split, Path(config.out), accelerator)
    inputs = RunInputs(config, split, order, encoders, accelerator, files)
    check_memory(config, split, order, (inputs.src, inputs.tgt), accelerator.num_processes)
    built = objective(inputs.src, inputs.tgt, config)
    if accelerator.is_main_process:
        write_inputs(config, split, Path(config.out))  # from here on the folder holds this run, to be resumed
    return Trainer(inputs, built)


def order_of(config: TrainConfig, split: Split) -> Curriculum:
    """The order of a run's batches."""
    return order_pairs(
        split.train,
        config.optimizer.batch_size,
        seed=config.seed,
        bucket=config.data.bucket,
        frozen=config.frozen,
        stages=split.stages,
    )
