"""dualmoco: two language-specific encoders in one embedding space, by dual momentum contrast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dualmoco.core.version import VERSION as __version__

if TYPE_CHECKING:
    from dualmoco.models.model import Model


__all__ = ["__version__", "load"]


def load(
    name: str | Path, backend: str = "auto", *, pooling: str = "auto", prompt: str = "", compute: str = "fp32"
) -> Model:
    """Opens a model.

    Args:
        name: A model or run folder such as `runs/static-cpu`, a hub name, a folder of `dualmoco export`,
            `package:NAME`, `words:FILE` or `embeddings:FOLDER`.
        backend: What runs it: auto, torch, static, onnx or onnx-int8.
        pooling: auto for the model's own; mean, max, cls or first-last to overrule it.
        prompt: Put before every sentence; empty for the one that the model names, if any.
        compute: What a network computes in, whatever its weights are stored in: fp32, or on a GPU fp16 or bf16.

    Returns:
        The model, ready to encode.

    Raises:
        ConfigError: An unknown back-end, pooling or precision.
        ModelError: A name that stands for no model, or a model that cannot be loaded safely.
    """
    from dualmoco.models.opening import open_model

    return open_model(name, backend, pooling=pooling, prompt=prompt, compute=compute)
