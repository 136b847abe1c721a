"""LoRA adapters through peft: small matrices that are trained instead of a transformer's weights.

The weights themselves do not change, so a momentum encoder shares them with its base encoder. In a saved model the
adapter is added to the weights, so the model needs neither peft nor this module.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from sentence_transformers.base.modules import Transformer
from torch import nn
from transformers.pytorch_utils import Conv1D

from dualmoco.core.errors import ModelError, require
from dualmoco.models.config import EncoderConfig

MOST_NAMED = 8  # layers listed in a message
Network = TypeVar("Network", bound=nn.Module)


def add_adapter(encoder: nn.Module, config: EncoderConfig) -> None:
    """Freezes the transformer of an encoder and adds a trainable adapter; layers after pooling stay trainable."""
    first = _first_layer(encoder)
    if not isinstance(first, Transformer):
        raise ModelError(f"{config.lang}: adapter.rank {config.adapter.rank} of a static model; expected 0")
    peft = require("peft", "train", f"{config.lang}: an adapter")
    linear = [name for name, layer in first.model.named_modules() if isinstance(layer, nn.Linear | Conv1D)]
    settings = peft.LoraConfig(
        r=config.adapter.rank,
        lora_alpha=config.adapter.alpha,
        lora_dropout=config.adapter.dropout,
        target_modules=config.adapter.target_modules or [name for name in linear if "pooler" not in name],  # unused
    )
    try:
        peft.inject_adapter_in_model(settings, first.model)
    except ValueError:
        names = list(dict.fromkeys(name.rpartition(".")[2] for name in linear))[:MOST_NAMED]
        raise ModelError(
            f"{config.lang}: adapter.target_modules {', '.join(config.adapter.target_modules)} not found; expected "
            f"some of {', '.join(names)}, or none for all"
        ) from None


def merge_adapter(encoder: Network) -> Network:
    """A copy of an encoder with its adapter added to the weights; the encoder itself if it has no adapter."""
    if not any(hasattr(module, "get_base_layer") for module in encoder.modules()):
        return encoder
    merged = copy.deepcopy(encoder)
    first = _first_layer(merged)
    for name, layer in list(first.model.named_modules()):
        if hasattr(layer, "get_base_layer"):
            layer.merge()
            parent, _, child = name.rpartition(".")
            setattr(first.model.get_submodule(parent), child, layer.get_base_layer())
    del first.model.peft_config
    return merged


def _first_layer(encoder: nn.Module) -> Any:
    return next(encoder.get_submodule("layers").children())
