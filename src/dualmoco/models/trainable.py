"""Which weights of an encoder learn: all, none, those after pooling, or the last transformer layers as well."""

from __future__ import annotations

from typing import Any

from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

from dualmoco.core.errors import ModelError
from dualmoco.models.encoder import Encoder
from dualmoco.models.recipe import ALL, HEAD, LAST, EncoderConfig


def set_trainable(encoder: Encoder, config: EncoderConfig) -> None:
    """Leaves to training what a recipe's `frozen` and `trainable` leave to it, and fixes the other weights.

    Args:
        encoder: All of whose weights learn so far.
        config: Of that encoder.

    Raises:
        ModelError: More layers than there are, layers of an encoder that has none, or nothing that could learn.
    """
    if config.frozen:
        encoder.requires_grad_(False).eval()
        return
    if config.trainable == ALL:
        return
    learning = _head(encoder)
    if config.trainable != HEAD:
        learning += _last_layers(encoder, config)
    encoder.requires_grad_(False)
    for module in learning:
        module.requires_grad_(True)
    if encoder.is_frozen:
        raise ModelError(
            f"{config.lang}: trainable {config.trainable} of a model without weights after pooling; expected some: "
            "set projection, or trainable to all"
        )


def _head(encoder: Encoder) -> list[nn.Module]:
    """The layers after pooling; a static encoder's table pools by itself."""
    layers = list(encoder.layers)
    pooling = max((place for place, layer in enumerate(layers) if isinstance(layer, Pooling)), default=0)
    return layers[pooling + 1 :]


def _last_layers(encoder: Encoder, config: EncoderConfig) -> list[nn.Module]:
    """The transformer layers that `last:N` names."""
    first: Any = encoder.layers[0]
    wanted = int(config.trainable.removeprefix(LAST))
    count = first.model.config.num_hidden_layers if isinstance(first, Transformer) else 0
    lists = (module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count)
    layers = next(lists, nn.ModuleList())
    if wanted > len(layers):
        most = f"at most {LAST}{len(layers)}, or all" if len(layers) else "all or head"
        raise ModelError(
            f"{config.lang}: trainable {config.trainable} of a model with {len(layers)} transformer layers; "
            f"expected {most}"
        )
    return list(layers)[len(layers) - wanted :]
