"""A run folder: what it holds before the first step, and whether a run may use it.

Takes the settings, gives `training.py` encoders and an objective. The encoders a run starts from are saved in
`initial/`, so that every process and every later sitting has the same tokenizers.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from omegaconf import DictConfig, OmegaConf

from dualmoco.core.errors import ConfigError, RunError
from dualmoco.core.storage import new_folder, restore_folder, write_json, write_text
from dualmoco.data.pairs import Split
from dualmoco.models.building import build_encoders, load_teacher
from dualmoco.models.encoder import Encoder
from dualmoco.models.network import open_routes, save_encoders
from dualmoco.models.recipe import Kind
from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.config import ObjectiveName, TrainConfig
from dualmoco.training.nli import NliHead, WithNli
from dualmoco.training.objectives import Distill, DualMoco, InBatch, Objective, SimCse

TOKENIZER_SENTENCES = 2_000_000
UNBORN = ("initial", ".initial.partial", "data.json")  # what a run killed before its first step leaves behind
logger = logging.getLogger(__name__)


def check_division(config: TrainConfig, processes: int) -> None:
    """Refuses batches that cannot be cut into equal pieces: every pair must weigh the same.

    Args:
        config: The settings.
        processes: How many share a batch.

    Raises:
        ConfigError: A batch size that is no multiple of the number of pieces.
    """
    pieces = processes * config.optimizer.accumulate
    sizes = {"optimizer.batch_size": config.optimizer.batch_size}
    if config.nli.train:
        sizes["nli.batch_size"] = config.nli.batch_size
    for key, size in sizes.items():
        if size % pieces:
            raise ConfigError(
                f"{key} is {size}; expected a multiple of {pieces}: {processes} process(es) times "
                f"optimizer.accumulate={config.optimizer.accumulate}"
            )


def check_run_folder(config: TrainConfig, out: Path, *, resume: bool) -> None:
    """Refuses a folder that belongs to something else.

    Args:
        config: The settings of this run.
        out: Its folder.
        resume: Whether the run is to go on.

    Raises:
        RunError: The folder holds a run and `resume` is off, holds a run of other settings, or holds other files.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out}: is a file; expected a folder for the run: choose another with out=FOLDER")
    settings = out / "config.yaml"
    if not settings.is_file():
        if any(child.name not in UNBORN for child in out.iterdir()):
            raise RunError(f"{out}: holds files but no run; choose another with out=FOLDER")
        return
    if not resume:
        raise RunError(f"{out}: already holds a run; add --resume to go on with it, or choose another with out=FOLDER")
    old, new = (_flatten(OmegaConf.create(text)) for text in (settings.read_text(encoding="utf-8"), _yaml(config)))
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    changed = [key for key in changed if key not in ("out", "data.root")]
    if changed:
        key = changed[0]
        raise RunError(
            f"{out}: was started with {key}={old.get(key)}, now {key}={new.get(key)}; resume with the settings of "
            f"{settings}, or start another run with out=FOLDER"
        )


def write_inputs(config: TrainConfig, split: Split, out: Path) -> None:
    """Writes the settings and what became of the data, unless an earlier sitting did."""
    if not (out / "config.yaml").exists():
        write_json(out / "data.json", {"counts": split.counts, "digest": split.train.digest()})
        write_text(out / "config.yaml", _yaml(config))


def start_encoders(config: TrainConfig, split: Split, out: Path, accelerator: Accelerator) -> dict[str, Encoder]:
    """The encoders the run starts from: built by the first process of the first sitting, then read from the folder."""
    initial = out / "initial"
    if accelerator.is_main_process:
        restore_folder(initial)
        restore_folder(out / "model")
        if not initial.exists() or not (out / "config.yaml").exists():
            logger.info(
                "building the encoders; tokenizers are trained on up to %s sentences", f"{TOKENIZER_SENTENCES:,}"
            )
            torch.manual_seed(config.seed)
            rows = np.random.default_rng([config.seed, 3]).permutation(len(split.train))[:TOKENIZER_SENTENCES]
            src_texts, tgt_texts = split.train.texts(rows)
            built = build_encoders(config.src, config.tgt, {config.src.lang: src_texts, config.tgt.lang: tgt_texts})
            with new_folder(initial) as folder:
                save_encoders(built, folder)
    accelerator.wait_for_everyone()
    encoders = open_routes(initial)
    for settings in (config.src, config.tgt):
        if settings.kind == Kind.shared:
            encoders[settings.lang] = encoders[config.src.lang]
            continue
        encoder = encoders[settings.lang]
        encoder.set_dropout(settings.dropout)
        if config.optimizer.gradient_checkpointing:
            encoder.checkpoint_gradients()
        if config.optimizer.compile:
            encoder.compile(dynamic=True)
    return encoders


def build_objective(config: TrainConfig, src: Encoder, tgt: Encoder) -> Objective:
    """Makes what a recipe's `objective` names, with NLI beside it if the recipe names NLI files.

    Args:
        config: The settings.
        src: The source language's encoder.
        tgt: The target language's.

    Returns:
        The objective, which holds the encoders.
    """
    base: Objective | None = None
    match config.objective:
        case ObjectiveName.dual_moco:
            base = DualMoco(src, tgt, config.contrast)
        case ObjectiveName.in_batch:
            base = InBatch(src, tgt, config.contrast)
        case ObjectiveName.simcse:
            base = SimCse(src, tgt, config.contrast)
        case ObjectiveName.distill:
            base = Distill(src, tgt, load_teacher(config.teacher, config.src))
        case ObjectiveName.nli:
            (tgt if config.nli.side == "src" else src).requires_grad_(False)
    if not config.nli.train:
        assert base is not None
        return base
    return WithNli(base, NliHead(src if config.nli.side == "src" else tgt, config.nli), config.nli.weight)


def last_checkpoint(out: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    checkpoints = list_checkpoints(out / "checkpoints")
    return checkpoints[-1] if checkpoints else None


def _yaml(config: TrainConfig) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(config.to_dict()))


def _flatten(settings: Any, prefix: str = "") -> dict[str, str]:
    """Settings by their dotted keys, for example `contrast.momentum`."""
    if not isinstance(settings, DictConfig):
        return {prefix: str(settings)}
    return {
        key: value
        for name, child in settings.items()
        for key, value in _flatten(child, f"{prefix}.{name!s}" if prefix else str(name)).items()
    }
