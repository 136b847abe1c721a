"""A run from a recipe to its result: everything that comes before the first step, then the training loop.

The run folder gets `config.yaml`, `data.json`, `log.jsonl`, `initial/`, `checkpoints/`, `model/` with the best model so
far, and `keys/` if an encoder is frozen.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, ProjectConfiguration

from dualmoco.core.errors import ConfigError, RunError
from dualmoco.core.progress import showing
from dualmoco.core.storage import locked
from dualmoco.data.pairs import Split, load_pairs
from dualmoco.training.batches import Curriculum, order_pairs
from dualmoco.training.config import MatmulPrecision, MixedPrecision, TrainConfig
from dualmoco.training.distributed import connect_hosts, first_before_others, first_numbers, process_rank
from dualmoco.training.init_encoders import check_attention, check_named_models, compile_encoders, start_encoders
from dualmoco.training.memory import check_memory
from dualmoco.training.objective import RunInputs
from dualmoco.training.objectives import objective_class
from dualmoco.training.recipe import check_config, load_config
from dualmoco.training.run_folder import TRACKER_FOLDER, check_run_folder, check_trackers, write_inputs
from dualmoco.training.trainer import ScoreModel, Trainer, TrainResult

ACCELERATE_PRECISION = {MixedPrecision.fp32: "no", MixedPrecision.bf16: "bf16", MixedPrecision.fp16: "fp16"}
DIGITS = 15  # hexadecimal digits of a digest that are compared; they fit into 64 bits
CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
logger = logging.getLogger(__name__)


OpenTasks = Callable[[TrainConfig], ScoreModel]
"""Reads the test sets of `schedule.evaluate`."""


def train(
    recipe: str | Path | TrainConfig,
    *overrides: str,
    resume: bool = False,
    progress: bool = True,
    open_tasks: OpenTasks | None = None,
) -> TrainResult:
    """Trains two encoders as a recipe says.

    `dualmoco.train` is this function with `open_tasks` of `evaluation/training_scores.py`, because a folder imports
    only from folders before it, and evaluation comes after training.

    Args:
        recipe: A YAML file, or the settings themselves.
        overrides: Settings such as `contrast.queue_size=8192`, which take precedence over the file.
        resume: Whether to resume from the last checkpoint in the run folder, if any; the schedule may be longer.
        progress: Whether to show progress bars.
        open_tasks: Function that reads the test sets of `schedule.evaluate`, before any other work.

    Returns:
        The progress of training, and the scores on held-out pairs.

    Raises:
        ConfigError: The recipe cannot be read, or a setting is invalid.
        DataError: The pairs cannot be read, or there are too few; the run folder has keys of another model or text.
        ModelError: A model cannot be loaded safely.
        RunError: The run folder contains another run or is in use, a checkpoint does not fit or cannot be written, the
            run does not fit into memory, or the loss is not a number.
    """
    with showing(progress):
        config = _settings(recipe, overrides)
        if not config.schedule.evaluate:
            return _train(config, resume=resume)
        if open_tasks is None:
            raise ConfigError(
                f"schedule.evaluate is {config.schedule.evaluate}; expected none here: use dualmoco.train"
            )
        return _train(config, resume=resume, score_model=open_tasks(config))


def _settings(recipe: str | Path | TrainConfig, overrides: tuple[str, ...]) -> TrainConfig:
    if not isinstance(recipe, TrainConfig):
        return load_config(recipe, list(overrides))
    if overrides:
        raise ConfigError(f"{overrides[0]!r}: overrides are for recipe files; expected none with a TrainConfig")
    check_config(recipe)
    return recipe


def _train(config: TrainConfig, *, resume: bool, score_model: ScoreModel | None = None) -> TrainResult:
    """Locks the run folder, reads the data, builds the encoders and trains them."""
    check_precision(config)
    check_attention(config)
    accelerator = start_accelerator(config)
    out = Path(config.out)
    check_division(config, accelerator.num_processes)
    check_run_folder(config, out, resume=resume)
    lock = locked(out) if accelerator.is_main_process else nullcontext()  # the first process locks for all
    with arithmetic(config, accelerator.device), lock:
        check_run_folder(config, out, resume=resume)  # another run may have finished in it meanwhile
        if accelerator.is_main_process:
            check_named_models(config, out)
        prepared = [config.data.prepared, *(language.data.prepared for language in config.languages)]
        with first_before_others() if any(prepared) else nullcontext():  # the first process unpacks for all
            split = load_splits(config)
        check_same_pairs(split)
        _say("pairs: %s", ", ".join(f"{count:,} {reason}" for reason, count in split.counts.items() if count))
        return build_trainer(config, split, accelerator, score_model).run(resume=resume)


def load_splits(config: TrainConfig) -> Split:
    """The pairs of a run, with those of its further languages."""
    src, tgt, *langs = (encoder.lang for encoder in config.encoders)
    others = [
        load_pairs(language.data, langs=(src, lang), seed=config.seed)
        for lang, language in zip(langs, config.languages, strict=True)
    ]
    return replace(load_pairs(config.data, langs=(src, tgt), seed=config.seed), others=others)


def start_accelerator(config: TrainConfig) -> Accelerator:
    """Sets up the device, the processes and the trackers of a run; ConfigError if a tracker cannot be used."""
    check_trackers(config)
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision=ACCELERATE_PRECISION[config.optimizer.precision],
        # Queues are equal on all processes by construction, so buffers are not sent.
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=bool(config.languages),  # each step trains the encoders of two languages
            )
        ],
        log_with=config.schedule.trackers or None,
        project_config=ProjectConfiguration(logging_dir=str(Path(config.out) / TRACKER_FOLDER)),
    )
    connect_hosts()
    return accelerator


@contextmanager
def arithmetic(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Sets the precision of matrix products and determinism as in the recipe; restores both at the end."""
    matmul, is_cuda = torch.backends.cuda.matmul, device.type == "cuda"
    former = is_cuda and matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()
    if is_cuda:
        matmul.allow_tf32 = config.optimizer.matmul_precision == MatmulPrecision.tf32
        _say("matrix products in fp32, such as scores, are computed in %s", config.optimizer.matmul_precision)
    if config.deterministic:
        check_workspace(device)
        torch.use_deterministic_algorithms(True)
        _say("only deterministic algorithms are used")
    try:
        yield
    finally:
        if is_cuda:
            matmul.allow_tf32 = former[0]
        torch.use_deterministic_algorithms(former[1])


def _say(message: str, *values: object) -> None:
    """Logs a message only on the first process."""
    if process_rank() == 0:
        logger.info(message, *values)


def check_workspace(device: torch.device) -> None:
    """Refuses a GPU whose matrix products depend on the order of its streams."""
    given = os.environ.get(CUBLAS_WORKSPACE, "")
    if device.type == "cuda" and given not in DETERMINISTIC_WORKSPACES:
        raise ConfigError(
            f"deterministic is true, but the environment variable {CUBLAS_WORKSPACE} is {given!r}; expected "
            f"{' or '.join(DETERMINISTIC_WORKSPACES)}: set it before the command"
        )


def check_same_pairs(split: Split) -> None:
    """Refuses processes that read pairs other than those of the first process, for example from another node's disk."""
    own = torch.tensor([[int(digest[:DIGITS], 16)] for digest in split.digest().split("-")])
    if not torch.equal(first_numbers(own.clone()), own):
        raise RunError(
            f"process {process_rank()} on {socket.gethostname()} read other training pairs than the first process; "
            "expected the same files on all nodes"
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


def build_trainer(
    config: TrainConfig, split: Split, accelerator: Accelerator, score_model: ScoreModel | None = None
) -> Trainer:
    """Prepares the first step after the pairs were read, and writes the inputs into the run folder."""
    objective, (order, *other_orders) = objective_class(config), orders_of(config, split)
    files = objective.read_files(config)
    encoders = start_encoders(config, split, Path(config.out), accelerator)
    inputs = RunInputs(config, split, order, encoders, accelerator, files, other_orders)
    check_memory(config, split, order, (inputs.src, inputs.tgt), accelerator.num_processes)
    more = [inputs.others] if config.languages else []
    built = objective(inputs.src, inputs.tgt, config, *more)
    if config.optimizer.compile:
        compile_encoders(built)
    if accelerator.is_main_process:
        write_inputs(config, split, Path(config.out))  # from here on the folder contains this run, which can be resumed
    return Trainer(inputs, built, score_model)


def orders_of(config: TrainConfig, split: Split) -> list[Curriculum]:
    """The orders of a run's batches: of the target language, then of the further ones."""
    data = [config.data, *(language.data for language in config.languages)]
    return [
        order_pairs(
            part.train,
            config.optimizer.batch_size,
            seed=config.seed,
            bucket=own.bucket,
            frozen=config.frozen,
            stages=part.stages,
        )
        for own, part in zip(data, (split, *split.others), strict=True)
    ]
