"""The encoders that a run starts from.

They are saved in the run folder, so that all processes and a resumed run start from the same encoders.
"""

from __future__ import annotations

import logging
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from dualmoco.core.errors import ConfigError, DataError, ModelError, RunError
from dualmoco.core.progress import working
from dualmoco.core.storage import new_folder, restore_folder, write_json
from dualmoco.data.manifest import read_prepared_manifest
from dualmoco.data.pairs import Pairs, Split
from dualmoco.models.backends.pytorch import run_in_torch
from dualmoco.models.build import build_encoders, set_trainable, start_projection
from dualmoco.models.config import Attention, EncoderConfig, EncoderKind, ProjectionInit
from dualmoco.models.folder import MODEL_RECORD, TEXT_KEY, check_folder, folder_sha256, read_conversion
from dualmoco.models.load import find_folder
from dualmoco.models.lora import add_adapter
from dualmoco.models.network import Encoder, is_static, open_routes, save_encoders
from dualmoco.models.text_normalization import NO_CONVERSION, TextConversion
from dualmoco.text.languages import Chinese, base_language
from dualmoco.training.config import TrainConfig
from dualmoco.training.distributed import wait_for_all

INITIAL = "initial"
TOKENIZER_SENTENCES = 2_000_000  # maximum pairs to train tokenizers on
TRAINS_TOKENIZER = {EncoderKind.bert, EncoderKind.static}
logger = logging.getLogger(__name__)


def check_named_models(config: TrainConfig, out: Path) -> None:
    """Finds the models that a recipe names, before the data is read; ModelError if one does not exist."""
    sides = [] if (out / "config.yaml").exists() else config.encoders  # a resumed run has its encoders
    names = [side.name for side in sides if side.kind == EncoderKind.pretrained]
    names += [side.entry_vectors for side in sides if side.kind == EncoderKind.static]
    for name in dict.fromkeys([*names, config.teacher]):
        folder = find_folder(name) if name else None
        if folder:
            check_folder(folder)


def teacher_digest(config: TrainConfig) -> str:
    """A hash of the teacher, if any: it is not in checkpoints, and it must not change during a run."""
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
                src, tgt, *others = config.encoders
                built = build_encoders(src, tgt, _tokenizer_texts(config, split), others=others)
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
    for side in config.encoders:
        set_attention(encoders[side.lang], side)
    for encoder in dict.fromkeys(encoders.values()):
        if config.optimizer.gradient_checkpointing:
            encoder.checkpoint_gradients()
    return encoders


def open_initial(config: TrainConfig, initial: Path) -> dict[str, Encoder]:
    """The first encoders of a run by language, as the recipe trains them."""
    encoders = open_routes(initial)
    for settings in config.encoders:
        if settings.kind == EncoderKind.shared:
            encoders[settings.lang] = encoders[config.src.lang]
            continue
        encoder = encoders[settings.lang]
        set_trainable(encoder, settings)
        set_dropout(encoder, settings)
        if settings.adapter.rank:
            torch.manual_seed(config.seed)  # every process and a resumed run start with the same adapter
            add_adapter(encoder, settings)
        freeze_unused(encoder)
    return encoders


def set_dropout(encoder: Encoder, config: EncoderConfig) -> None:
    """Sets the dropout of an encoder, and logs if it has none."""
    encoder.set_dropout(config.dropout)
    if config.dropout and not encoder.has_dropout:
        logger.warning("%s: dropout %s has no effect, because this model has no dropout", config.lang, config.dropout)


def set_attention(encoder: Encoder, config: EncoderConfig) -> None:
    """Sets the attention of an encoder; ModelError if it does not support it."""
    if config.attention != Attention.auto and is_static(encoder):
        raise ModelError(f"{config.lang}: attention {config.attention} of a static model; expected auto")
    try:
        encoder.set_attention(config.attention)
    except (ValueError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"{config.lang}: attention {config.attention}: {reason}; expected auto") from None


def check_attention(config: TrainConfig) -> None:
    """Refuses flash attention without a CUDA GPU or its package, before the data are read."""
    for name, side in (("src", config.src), ("tgt", config.tgt)):
        if side.attention != Attention.flash_attention_2:
            continue
        if not torch.cuda.is_available():
            raise ConfigError(
                f"{name}.attention is {side.attention}, and PyTorch finds no CUDA GPU; expected auto, sdpa or eager"
            )
        if find_spec("flash_attn") is None:
            raise ConfigError(
                f"{name}.attention is {side.attention}, and flash-attn is not installed; pip install flash-attn, or "
                "use auto or sdpa"
            )


def freeze_unused(encoder: Encoder) -> None:
    """Freezes weights without effect on the vectors, such as BERT's pooler, because DDP waits for their gradients."""
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    if weights:
        vector = encoder.eval()(encoder.tokenize(["a"]))
        gradients = torch.autograd.grad(vector.sum(), weights, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.requires_grad_(gradient is not None)


def compile_encoders(objective: nn.Module) -> None:
    """Compiles all encoders of an objective, including its copies, because copying loses compilation."""
    for encoder in objective.modules():
        if isinstance(encoder, Encoder):
            encoder.layers.compile(dynamic=True)  # not the loop over the parts of a batch, because their number varies


def weight_groups(config: TrainConfig, encoders: dict[str, Encoder], objective: nn.Module) -> list[dict[str, Any]]:
    """The trained weights, by learning rate and weight decay.

    Weights outside the encoders, such as an NLI head, have the full learning rate. Weights of fewer than two dimensions
    (biases, normalization, a temperature) have no decay unless `decay_all` is set.
    """
    scales = {
        weight: side.lr_scale
        for side in reversed(config.encoders)  # a shared encoder uses the settings of src
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
    if not any(side.kind in TRAINS_TOKENIZER for side in config.encoders):
        return {side.lang: [] for side in config.encoders}
    drawn = [_draw_texts(part.train, config.seed) for part in (split, *split.others)]
    logger.info("training tokenizers on %s pairs", f"{sum(len(src) for src, _ in drawn):,}")
    src = [text for texts, _ in drawn for text in texts[: TOKENIZER_SENTENCES // len(drawn)]]
    if len(drawn) > 1:  # merges are learned from the first sentences
        src = [src[row] for row in np.random.default_rng([config.seed, 6]).permutation(len(src))]
    return dict(zip((side.lang for side in config.encoders), [src, *(tgt for _, tgt in drawn)], strict=True))


def _draw_texts(pairs: Pairs, seed: int) -> tuple[list[str], list[str]]:
    """Random pairs, in random order."""
    return pairs.texts(np.random.default_rng([seed, 3]).permutation(len(pairs))[:TOKENIZER_SENTENCES])


def converted_text(config: TrainConfig) -> dict[str, object]:
    """The text conversion of prepared pairs or pretrained encoders, which the saved model applies too."""
    chinese = Chinese.keep
    for folder in filter(None, (data.prepared for data in (config.data, *(more.data for more in config.languages)))):
        manifest = read_prepared_manifest(Path(folder))
        if "zh" in (base_language(manifest["src"]), base_language(manifest["tgt"])):
            chinese = Chinese(manifest["settings"]["clean"]["chinese"])
    bases = [_base_conversion(side) for side in config.encoders]
    for side, base in zip(config.encoders, bases, strict=True):
        if base.chinese not in (Chinese.keep, chinese):
            raise DataError(
                f"{side.name}: converts Chinese to {base.chinese} characters, the pairs were not converted so; "
                f"expected data.prepared, a folder made with clean.chinese={base.chinese}"
            )
    return TextConversion(chinese, any(base.nfkc for base in bases)).to_json()


def _base_conversion(side: EncoderConfig) -> TextConversion:
    """The text conversion of the model that a side starts from."""
    folder = find_folder(side.name) if side.kind == EncoderKind.pretrained else None
    return read_conversion(folder).of(side.lang) if folder else NO_CONVERSION
