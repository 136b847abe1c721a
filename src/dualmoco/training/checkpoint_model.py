"""Exports models, and encoders or momentum encoders of a checkpoint, as a model.

A checkpoint contains the tensors of its encoders by name; their architecture and tokenizers are in `initial/` of the
run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualmoco.core import VERSION
from dualmoco.core.errors import ConfigError, RunError, require
from dualmoco.core.storage import new_folder, read_json, write_json
from dualmoco.models.card import CardSubject, write_card
from dualmoco.models.export import (
    EXPORT_FORMAT,
    SENTENCE_TRANSFORMERS,
    Exported,
    check_export,
    export_folder,
    export_model,
)
from dualmoco.models.folder import (
    MODEL_RECORD,
    TEXT_KEY,
    WEIGHTS_FILE,
    folder_sha256,
    is_checkpoint,
    read_conversion,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dualmoco.models.network import Encoder

CHECKPOINT_EXAMPLE = "RUN/checkpoints/step-00000500"


def export_encoders(
    model: str, lang: str | None, to: str, out: str | Path, *, momentum: bool = False, overwrite: bool = False
) -> Exported:
    """Writes one language of a model, or the encoders of a checkpoint.

    Args:
        model: A model or run folder, a hybrid, a hub name, `package:NAME` of a network, or a checkpoint in its run
            folder, such as `runs/tiny/checkpoints/step-00000400`.
        lang: Language; None for all languages of a checkpoint as one sentence-transformers folder.
        to: sentence-transformers, onnx or onnx-int8.
        out: Folder to write; an earlier export is replaced.
        momentum: Whether to export the momentum encoders of a checkpoint.
        overwrite: Whether to replace any folder there.

    Returns:
        A summary of the export.

    Raises:
        ConfigError: The target is unknown, the language is missing, or the folder contains other files.
        ModelError: The model cannot be exported, or the export does not return the vectors of the model.
        RunError: The folder cannot be written, or the checkpoint is not one of its run.
    """
    out = Path(out)
    if not is_checkpoint(Path(model)):
        if momentum:
            raise ConfigError(
                f"{model}: not a checkpoint; expected a checkpoint for --momentum, such as {CHECKPOINT_EXAMPLE}"
            )
        if lang is None:
            raise ConfigError(
                f"{model}: no language; expected --lang LANG: only checkpoints are exported with all languages"
            )
        return export_model(model, lang, to, out, overwrite=overwrite)
    check_export(model, to, out, overwrite=overwrite)
    if lang is None and to != SENTENCE_TRANSFORMERS:
        raise ConfigError(
            f"--to {to} without --lang; expected a language: only {SENTENCE_TRANSFORMERS} supports several"
        )
    require("accelerate", "train", "The export of a checkpoint")
    checkpoint = Path(model)
    if lang is None:
        with new_folder(out) as place:
            langs, cosine = write_checkpoint(checkpoint, place, momentum=momentum)
            size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        return Exported(str(out), to, ", ".join(langs), model, folder_sha256(out), cosine, size)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".checkpoint-") as whole:
        write_checkpoint(checkpoint, Path(whole), momentum=momentum)
        return export_folder(model, Path(whole), lang, to, out)


def write_checkpoint(checkpoint: Path, folder: Path, *, momentum: bool) -> tuple[list[str], float]:
    """Writes the encoders of a checkpoint into an empty folder, opens it, and compares the vectors of both.

    Returns:
        The languages, and the lowest cosine between vectors of the checkpoint and of the folder.

    Raises:
        ConfigError: The checkpoint has no momentum encoders.
        ModelError: The folder does not return the checkpoint's vectors.
        RunError: The checkpoint is damaged, or not in its run folder.
    """
    from dualmoco.models.backends.pytorch import check_agreement, reference_vectors, run_in_torch
    from dualmoco.models.network import open_routes, save_encoders
    from dualmoco.training.init_encoders import INITIAL

    encoders, record = _open_checkpoint(checkpoint, momentum=momentum)
    conversion = read_conversion(checkpoint.parents[1] / INITIAL)
    expected = {lang: reference_vectors(encoder) for lang, encoder in encoders.items()}
    save_encoders(encoders, folder)
    opened = open_routes(folder)
    cosine = min(
        check_agreement(SENTENCE_TRANSFORMERS, run_in_torch(opened[lang]).encode, expected[lang]) for lang in encoders
    )
    about = {"format": EXPORT_FORMAT, "version": VERSION, "lowest_cosine": cosine, TEXT_KEY: conversion.to_json()}
    write_json(folder / MODEL_RECORD, about | record)
    run, dimension = checkpoint.resolve().parents[1], next(iter(encoders.values())).dimension
    write_card(CardSubject(folder, run.name, list(encoders), dimension), conversion)
    return list(encoders), cosine


def _open_checkpoint(checkpoint: Path, *, momentum: bool) -> tuple[dict[str, Encoder], dict[str, Any]]:
    """The encoders of a checkpoint by language, and their settings."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from dualmoco.core.config_loader import read_recipe
    from dualmoco.training.checkpoint import MOMENTUM, TRAINED, check_tensors, copy_tensors, module_tensors
    from dualmoco.training.config import TrainConfig
    from dualmoco.training.init_encoders import INITIAL, open_initial
    from dualmoco.training.run_folder import trained_dimensions

    run = checkpoint.resolve().parents[1]
    if not (run / "config.yaml").is_file():
        raise RunError(f"{checkpoint}: {run} is not a run folder; expected a checkpoint where training wrote it")
    config = read_recipe(TrainConfig, run / "config.yaml", extra="train")
    encoders = open_initial(config, run / INITIAL)
    try:
        state = read_json(checkpoint / "state.json")
        names = {kind: dict(state["encoders"][kind]) for kind in (TRAINED, MOMENTUM)}
        record = {"step": state["progress"]["step"], "signature": state["signature"], "momentum": momentum}
        weights = load_file(checkpoint / WEIGHTS_FILE)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"{checkpoint}: damaged, or of another version ({error}); expected another checkpoint") from None
    if momentum and not names[MOMENTUM]:
        raise ConfigError(f"{checkpoint}: has no momentum encoders; expected no --momentum")
    for lang, name in names[TRAINED].items():  # a frozen encoder is not part of a checkpoint
        own, given = module_tensors(encoders[lang]), _tensors_of(name, weights)
        if momentum:  # frozen weights may be stored once for both encoders
            still = [key for key in given if key in own and not own[key].requires_grad]
            given = {key: given[key] for key in still} | _tensors_of(names[MOMENTUM][lang], weights)
        check_tensors(own, given, checkpoint, "export another checkpoint")
        copy_tensors(own, given)
    return encoders, record | trained_dimensions(config, encoders) | {"settings": config.to_dict()}


def _tensors_of(module: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one module, by their names in it."""
    prefix = f"{module}."
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
