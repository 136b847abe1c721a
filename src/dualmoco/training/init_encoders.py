"""The encoders that a run starts from.

They are saved in the run folder, so that all processes and a resumed run start from the same ones.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from dualmoco.core.errors import DataError, RunError
from dualmoco.core.progress import working
from dualmoco.core.storage import new_folder, restore_folder, write_json
from dualmoco.data.manifest import read_prepared_manifest
from dualmoco.data.pairs import Split
from dualmoco.models.backends.pytorch import run_in_torch
from dualmoco.models.build import build_encoders, set_trainable, start_projection
from dualmoco.models.config import EncoderConfig, EncoderKind, ProjectionInit
from dualmoco.models.folder import MODEL_RECORD, TEXT_KEY, check_folder, folder_sha256, read_conversion
from dualmoco.models.load import find_folder
from dualmoco.models.network import Encoder, open_routes, save_encoders
from dualmoco.models.text_normalization import NO_CONVERSION, TextConversion
from dualmoco.text.languages import Chinese, base_language
from dualmoco.training.config import TrainConfig
from dualmoco.training.distributed import wait_for_all

INITIAL = "initial"
TOKENIZER_SENTENCES = 2_000_000  # at most, to train tokenizers on
TRAINS_TOKENIZER = {EncoderKind.bert, EncoderKind.static}
logger = logging.getLogger(__name__)


def check_named_models(config: TrainConfig, out: Path) -> None:
    """Finds the models that a recipe names, before the data is read; ModelError if one does not exist."""
    sides = () if (out / "config.yaml").exists() else (config.src, config.tgt)  # a resumed run has its encoders
    names = [side.name for side in sides if side.kind == EncoderKind.pretrained]
    names += [side.entry_vectors for side in sides if side.kind == EncoderKind.static]
    for name in dict.fromkeys([*names, config.teacher]):
        folder = find_folder(name) if name else None
        if folder:
            check_folder(folder)


def teacher_digest(config: TrainConfig) -> str:
    """A hash of the teacher, if there is one: checkpoints do not hold it, and it must not change during a run."""
    folder = find_folder(config.teacher) if config.teacher else None
    return f"-{folder_sha256(folder)[:16]}" if folder else ""


def start_encoders(config: TrainConfig, split: Split, out: Path, accelerator: Accelerator) -> dict[str, Encoder]:
    """Builds the encoders by language on the first process when the run begins, then reads them from the folder."""
    initial = out / INITIAL
    if accelerator.is_main_process:
        restore_folder(initial)
        restore_folder(out / "model")
        if not initial.exists() or not (out / "config.yaml").exists():
            torch.manual_seed(config.seed)
            text = converted_text(config)
            with working("building encoders"):
                built = build_encoders(config.src, config.tgt, _tokenizer_texts(config, split))
                _start_projections(config, split, built)
            with new_folder(initial) as folder:
                save_encoders(built, folder)
                write_json(folder / MODEL_RECORD, {TEXT_KEY: text})
            if "chinese" in text:
                logger.warning(
                    "Chinese was converted to %s characters; the model converts what it encodes likewise, but in plain "
                    "sentence-transformers it cannot",
                    text["chinese"],
                )
    wait_for_all()
    if not initial.is_dir():
        raise RunError(
            f"{initial}: not found on {socket.gethostname()}, although the first process wrote it; expected a run "
            "folder that all nodes share: set out"
        )
    encoders = open_initial(config, initial)
    for encoder in dict.fromkeys(encoders.values()):
        if config.optimizer.gradient_checkpointing:
            encoder.checkpoint_gradients()
    return encoders


def open_initial(config: TrainConfig, initial: Path) -> dict[str, Encoder]:
    """The first encoders of a run by language, as the recipe trains them."""
    encoders = open_routes(initial)
    for settings in (config.src, config.tgt):
        if settings.kind == EncoderKind.shared:
            encoders[settings.lang] = encoders[config.src.lang]
            continue
        encoder = encoders[settings.lang]
        set_trainable(encoder, settings)
        freeze_unused(encoder)
        encoder.set_dropout(settings.dropout)
    return encoders


def freeze_unused(encoder: Encoder) -> None:
    """Freezes weights without influence on the vectors, such as BERT's pooler: DDP waits for all that learn."""
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    if weights:
        vector = encoder.eval()(encoder.tokenize(["a"]))
        gradients = torch.autograd.grad(vector.sum(), weights, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.requires_grad_(gradient is not None)


def compile_encoders(objective: nn.Module) -> None:
    """Compiles all encoders of an objective, those that it has copied too: a copy is not compiled."""
    for encoder in objective.modules():
        if isinstance(encoder, Encoder):
            encoder.layers.compile(dynamic=True)  # not the loop over the parts of a batch, whose number varies


def weight_groups(config: TrainConfig, encoders: dict[str, Encoder], objective: nn.Module) -> list[dict[str, Any]]:
    """The weights that learn, by learning rate and weight decay.

    Weights of no encoder, such as an NLI head, learn at the full rate. Weights of fewer than two dimensions (biases,
    normalization, a temperature) do not decay unless `decay_all` is set.
    """
    scales = {
        weight: side.lr_scale
        for side in (config.tgt, config.src)  # src decides for a shared encoder
        for weight in encoders[side.lang].parameters()
    }
    optimizer = config.optimizer
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for weight in objective.parameters():
        if weight.requires_grad:
            decay = optimizer.weight_decay if weight.ndim > 1 or optimizer.decay_all else 0.0
            groups.setdefault((scales.get(weight, 1.0), decay), []).append(weight)
    return [{"params": weights, "lr_scale": scale, "weight_decay": decay} for (scale, decay), weights in groups.items()]


def _start_projections(config: TrainConfig, split: Split, built: dict[str, Encoder]) -> None:
    """Initializes projections by ridge regression to the other side's vectors."""
    for side, other in ((config.src, config.tgt), (config.tgt, config.src)):
        if side.projection_init != ProjectionInit.ridge:
            continue
        rows = np.random.default_rng([config.seed, 4]).permutation(len(split.train))[: side.ridge_pairs]
        texts = dict(zip((config.src.lang, config.tgt.lang), split.train.texts(rows), strict=True))
        goals = run_in_torch(built[other.lang]).encode(texts[other.lang])
        start_projection(built[side.lang], texts[side.lang], goals, lang=side.lang)
        logger.info("%s: projection started by ridge regression on %s pairs", side.lang, f"{len(rows):,}")


def _tokenizer_texts(config: TrainConfig, split: Split) -> dict[str, list[str]]:
    """Sentences of each language to train tokenizers on, if the recipe trains any."""
    langs = (config.src.lang, config.tgt.lang)
    if config.src.kind not in TRAINS_TOKENIZER and config.tgt.kind not in TRAINS_TOKENIZER:
        return {lang: [] for lang in langs}
    rows = np.random.default_rng([config.seed, 3]).permutation(len(split.train))[:TOKENIZER_SENTENCES]
    logger.info("training tokenizers on %s pairs", f"{len(rows):,}")
    return dict(zip(langs, split.train.texts(rows), strict=True))


def converted_text(config: TrainConfig) -> dict[str, object]:
    """How prepared pairs or pretrained encoders convert text (see `TextConversion`); the saved model does the same."""
    chinese = Chinese.keep
    if config.data.prepared:
        manifest = read_prepared_manifest(Path(config.data.prepared))
        if "zh" in (base_language(manifest["src"]), base_language(manifest["tgt"])):
            chinese = Chinese(manifest["settings"]["clean"]["chinese"])
    bases = [_base_conversion(side) for side in (config.src, config.tgt)]
    for side, base in zip((config.src, config.tgt), bases, strict=True):
        if base.chinese not in (Chinese.keep, chinese):
            raise DataError(
                f"{side.name}: converts Chinese to {base.chinese} characters, the pairs were not converted so; "
                f"expected data.prepared, a folder made with clean.chinese={base.chinese}"
            )
    return TextConversion(chinese, any(base.nfkc for base in bases)).to_json()


def _base_conversion(side: EncoderConfig) -> TextConversion:
    """How the model that a side starts from converts its sentences."""
    folder = find_folder(side.name) if side.kind == EncoderKind.pretrained else None
    return read_conversion(folder).of(side.lang) if folder else NO_CONVERSION
