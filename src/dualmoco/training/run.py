"""A run from a recipe to its result: everything before the first step, then the loop.

Takes a recipe, gives a folder with `config.yaml`, `data.json`, `log.jsonl`, `checkpoints/` and `model/`, the best model
so far, and `keys/` if a side is frozen.
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
from dualmoco.data.nli import NliExample, load_nli
from dualmoco.data.pairs import Split, load_pairs
from dualmoco.models.build import load_teacher
from dualmoco.models.network import Encoder
from dualmoco.training.batches import Curriculum, order_pairs
from dualmoco.training.config import MixedPrecision, ObjectiveName, TrainConfig, check_config, load_config
from dualmoco.training.frozen import (
    FrozenKeys,
    HardNegatives,
    OneSidedMoco,
    encode_keys,
    find_hard_negatives,
    open_hard_negatives,
    open_keys,
)
from dualmoco.training.init_encoders import start_encoders
from dualmoco.training.memory import check_memory
from dualmoco.training.nli import MultiTask, NliHead
from dualmoco.training.objectives import Distill, DualMoco, InBatch, Objective, SimCse
from dualmoco.training.run_folder import check_run_folder, write_inputs
from dualmoco.training.trainer import TrainData, Trainer, TrainResult

MIXED = {MixedPrecision.fp32: "no", MixedPrecision.bf16: "bf16", MixedPrecision.fp16: "fp16"}  # accelerate's names
KEYS_WAIT = timedelta(days=7)  # that other processes wait while the first encodes keys
logger = logging.getLogger(__name__)


def train(
    recipe: str | Path | TrainConfig, *overrides: str, resume: bool = False, progress: bool = True
) -> TrainResult:
    """Trains two encoders as a recipe says.

    Args:
        recipe: A YAML file, or the settings themselves.
        overrides: Settings such as `contrast.queue_size=8192`, stronger than the file.
        resume: Continue from the last checkpoint in the run folder, if there is one.
        progress: Whether to show progress bars.

    Returns:
        How far training came and how well it did on held-out pairs.

    Raises:
        ConfigError: A recipe that cannot be read or makes no sense.
        DataError: Pairs that cannot be read, or too few of them; keys of another model or text in the run folder.
        ModelError: A model that cannot be loaded safely.
        RunError: The run folder holds another run or is in use, a checkpoint does not fit or cannot be written, or the
            loss is not a number.
    """
    with showing(progress):
        return _train(_settings(recipe, overrides), resume=resume)


def _train(config: TrainConfig, *, resume: bool) -> TrainResult:
    """Locks the run folder, reads the data, builds the encoders and trains them."""
    accelerator = start_accelerator(config)
    out = Path(config.out)
    check_division(config, accelerator.num_processes)
    check_run_folder(config, out, resume=resume)
    with locked(out) if accelerator.is_main_process else nullcontext():  # the first process locks for all
        check_run_folder(config, out, resume=resume)  # another run may have ended in it meanwhile
        with accelerator.main_process_first() if config.data.prepared else nullcontext():  # the first unpacks for all
            split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
        if accelerator.is_main_process:
            _report_data(split)
        return build_trainer(config, split, accelerator).run(resume=resume)


def start_accelerator(config: TrainConfig) -> Accelerator:
    """Makes the devices and processes of a run ready."""
    # Queues are equal on all processes by construction; pretrained encoders often carry a pooler that is not used.
    handlers = [DistributedDataParallelKwargs(broadcast_buffers=False, find_unused_parameters=True)]
    if config.frozen:
        handlers.append(InitProcessGroupKwargs(timeout=KEYS_WAIT))
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision=MIXED[config.optimizer.precision],
        kwargs_handlers=handlers,
    )


def build_trainer(config: TrainConfig, split: Split, accelerator: Accelerator) -> Trainer:
    """Does all that comes between the pairs and the first step.

    Args:
        config: The settings.
        split: The pairs.
        accelerator: Of this process.

    Returns:
        The trainer; in the run folder are the encoders that it starts from, its inputs, and keys if a side is frozen.

    Raises:
        DataError: NLI files that cannot be read; keys of another model or text in the run folder.
        ModelError: A model that cannot be loaded safely.
        RunError: The run folder cannot be written, or a run that does not fit into the memory of its device.
    """
    out = Path(config.out)
    order = order_of(config, split)
    nli = _load_nli(config)
    encoders = start_encoders(config, split, out, accelerator)
    sides = encoders[config.src.lang], encoders[config.tgt.lang]
    check_memory(config, split, order, sides, accelerator.num_processes)
    objective = build_objective(config, encoders)
    if accelerator.is_main_process:
        write_inputs(config, split, out)  # from here on the folder holds this run, to be resumed
    data = TrainData(split, order, *nli, *_load_keys(config, split, out, accelerator))
    return Trainer(config, accelerator, encoders, objective, data)


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


def _settings(recipe: str | Path | TrainConfig, overrides: tuple[str, ...]) -> TrainConfig:
    """The settings of a run, checked."""
    if not isinstance(recipe, TrainConfig):
        return load_config(recipe, list(overrides))
    if overrides:
        raise ConfigError(f"{overrides[0]!r}: overrides are for recipe files; expected none beside a TrainConfig")
    check_config(recipe)
    return recipe


def _report_data(split: Split) -> None:
    """Logs what was read and dropped."""
    logger.info("pairs: %s", ", ".join(f"{count:,} {reason}" for reason, count in split.counts.items() if count))


def _load_nli(config: TrainConfig) -> tuple[list[NliExample], list[NliExample]]:
    """Training and held-out NLI examples, none without NLI files."""
    if not config.nli.train:
        return [], []
    settings = config.nli
    return load_nli(
        settings.train,
        root=config.data.root,
        heldout=settings.heldout,
        batch_size=settings.batch_size,
        seed=config.seed,
    )


def _load_keys(
    config: TrainConfig, split: Split, out: Path, accelerator: Accelerator
) -> tuple[FrozenKeys | None, HardNegatives | None]:
    """The keys of the frozen side, if there is one, and the hard negatives: made by the first process, read by all."""
    if not config.frozen:
        return None, None
    hard = config.contrast.hard_negatives
    if accelerator.is_main_process:
        encode_keys(config, split.train, out)
        if hard:
            find_hard_negatives(open_keys(config, split.train, out), hard, out)
    accelerator.wait_for_everyone()
    keys = open_keys(config, split.train, out)
    return keys, open_hard_negatives(keys, out) if hard else None


def check_division(config: TrainConfig, processes: int) -> None:
    """Refuses batches that cannot be cut into equal micro-batches: every pair must weigh the same.

    Args:
        config: The settings.
        processes: How many share a batch.

    Raises:
        ConfigError: A batch size that is not a multiple of the number of micro-batches.
    """
    micro_batches = processes * config.optimizer.accumulate
    sizes = {"optimizer.batch_size": config.optimizer.batch_size}
    if config.nli.train:
        sizes["nli.batch_size"] = config.nli.batch_size
    for key, size in sizes.items():
        if size % micro_batches:
            raise ConfigError(
                f"{key} is {size}; expected a multiple of {micro_batches}: {processes} process(es) times "
                f"optimizer.accumulate={config.optimizer.accumulate}"
            )


def build_objective(config: TrainConfig, encoders: dict[str, Encoder]) -> Objective:
    """Makes what a recipe's `objective` names, with NLI beside it if the recipe names NLI files.

    Args:
        config: The settings.
        encoders: By language.

    Returns:
        The objective, which holds the encoders.
    """
    base: Objective | None = None
    src, tgt = (encoders[side.lang] for side in (config.src, config.tgt))
    match config.objective:
        case ObjectiveName.dual_moco:
            base = _dual_moco(config, src, tgt)
        case ObjectiveName.in_batch:
            base = InBatch(src, tgt, config.contrast)
        case ObjectiveName.simcse:
            base = SimCse(src, tgt, config.contrast)
        case ObjectiveName.distill:
            base = Distill(src, tgt, load_teacher(config.teacher, config.src))
        case ObjectiveName.nli:
            if src is not tgt:  # the other side's encoder gets no gradient; a shared one is the one to train
                (tgt if config.nli.side == "src" else src).requires_grad_(False)
    if not config.nli.train:
        assert base is not None
        return base
    reader = src if config.nli.side == "src" else tgt
    return MultiTask(base, NliHead(reader, config.nli), config.nli.weight)


def _dual_moco(config: TrainConfig, src: Encoder, tgt: Encoder) -> Objective:
    """Both directions; or the one in which the other side learns, where one is frozen."""
    if config.frozen:
        return OneSidedMoco(tgt if config.frozen == "src" else src, config.contrast)
    return DualMoco(src, tgt, config.contrast)
