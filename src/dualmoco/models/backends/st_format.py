"""The layout of a sentence-transformers folder, read without that library: layers by language, settings, tensors.

The back-ends that use this support some kinds of models in every detail. For all others the functions raise
`UnknownLayoutError`, and sentence-transformers itself opens the model. Shapes: E inputs, D outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open
from tokenizers import Tokenizer

from dualmoco.core.errors import ModelError
from dualmoco.models.folder import INT8_FILE, MODULES_FILE, PROMPTS_FILE, ROUTER_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from dualmoco.models.int8_format import check_finite, read_packed
from dualmoco.models.model import ANY_LANGUAGE

TRANSFORMER, TABLE, POOLING = "Transformer", "StaticEmbedding", "Pooling"
DENSE, DROPOUT, NORMALIZE, ROUTER = "Dense", "Dropout", "Normalize", "Router"
IDENTITY = "torch.nn.modules.linear.Identity"
SENTENCE_VECTORS = "sentence_embedding"
NUMPY_FLOATS = {"F16", "F32", "F64"}  # types of safetensors that numpy has
BFLOAT16 = "BF16"


class UnknownLayoutError(Exception):
    """Something that only sentence-transformers can open."""


LAYOUT_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, UnknownLayoutError)
"""Errors that reading a folder of unknown layout can raise."""


class Layer(NamedTuple):
    """One module of an encoder: its class name without the import path, which varies, and its folder."""

    kind: str
    folder: Path


def read_layout(folder: Path) -> dict[str, tuple[Layer, ...]]:
    """The layers of each encoder by language, or of a single encoder under ANY_LANGUAGE, without dropout."""
    # UnknownLayoutError if a router does more than choose by language.
    modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
    layers = [_layer(module["type"], folder / module["path"]) for module in modules]
    if [layer.kind for layer in layers] != [ROUTER]:
        return {ANY_LANGUAGE: _without_dropout(layers)}
    place = layers[0].folder
    config = json.loads((place / ROUTER_FILE).read_text(encoding="utf-8"))
    if config["parameters"].get("default_route") or config["parameters"].get("route_mappings"):
        raise UnknownLayoutError
    return {
        lang: _without_dropout([_layer(config["types"][name], place / name) for name in names])
        for lang, names in config["structure"].items()
    }


def _layer(module: str, folder: Path) -> Layer:
    return Layer(module.rpartition(".")[2], folder)


def _without_dropout(layers: list[Layer]) -> tuple[Layer, ...]:
    return tuple(layer for layer in layers if layer.kind != DROPOUT)


def read_settings(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The settings of a layer; empty if it has no settings file."""
    path = folder / name
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def read_prompt(folder: Path, lang: str) -> str:
    """The text that a model expects before every sentence of a language (or ANY_LANGUAGE)."""
    config = read_settings(folder, PROMPTS_FILE)
    return choose_prompt(config.get("prompts") or {}, config.get("default_prompt_name"), lang)


def choose_prompt(prompts: Mapping[str, str | None], default: str | None, lang: str) -> str:
    """The prompt with the name of a route, as for tasks in sentence-transformers; otherwise the default prompt."""
    return str(prompts.get(lang if lang and lang in prompts else default or "") or "")


def pop_normalize(layers: list[Layer]) -> bool:
    """Removes normalization to unit length from the end of an encoder; False if there is none."""
    if not layers or layers[-1].kind != NORMALIZE:
        return False
    if not _keeps_names(read_settings(layers.pop().folder)):
        raise UnknownLayoutError
    return True


def check_projection(folder: Path) -> None:
    """Raises UnknownLayoutError for a dense layer that does more than multiply sentence vectors by a matrix."""
    config = read_settings(folder)
    if config["activation_function"] != IDENTITY or config.get("use_residual") or not _keeps_names(config):
        raise UnknownLayoutError


def read_projection(folder: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The matrix (D, E) of a dense layer and its bias (D,) or None."""
    check_projection(folder)
    tensors = read_tensors(folder)
    matrix, bias = tensors["linear.weight"], tensors.get("linear.bias")
    if matrix.ndim != 2 or 0 in matrix.shape or (bias is not None and bias.shape != matrix.shape[:1]):
        shapes = ", ".join(f"{name} {tensor.shape}" for name, tensor in tensors.items())
        raise ModelError(f"{folder}: {shapes}; expected linear.weight (D, E) and linear.bias (D,) or none")
    return matrix, bias


def _keeps_names(config: dict[str, Any]) -> bool:
    """Whether a layer transforms sentence vectors."""
    return all(config.get(key) in (None, SENTENCE_VECTORS) for key in ("module_input_name", "module_output_name"))


def read_tensors(folder: Path, *, spare: int = 0) -> dict[str, np.ndarray]:
    """All tensors of a layer in fp32, however they are stored; `spare` rows of zeros are appended to matrices."""
    if (folder / INT8_FILE).is_file():
        return read_packed(folder / INT8_FILE, spare=spare)
    path = folder / WEIGHTS_FILE
    with safe_open(path, framework="np") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        if set(kinds.values()) == {BFLOAT16}:
            tensors = _read_bfloat16(path)
        elif set(kinds.values()) <= NUMPY_FLOATS:
            tensors = {name: file.get_tensor(name).astype(np.float32) for name in kinds}
        else:
            raise UnknownLayoutError
    check_finite(tensors, path)
    if not spare:
        return tensors
    return {name: np.pad(one, ((0, spare), (0, 0))) if one.ndim == 2 else one for name, one in tensors.items()}


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a layer; ModelError if its file is damaged."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise UnknownLayoutError
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises no more specific error
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"{path}: cannot be read as a tokenizer ({reason}); save or download it again") from error
    return tokenizer


def _read_bfloat16(path: Path) -> dict[str, np.ndarray]:
    """Tensors in bf16, which numpy lacks; a bf16 is the upper half of an fp32."""
    read: Any = deserialize  # has no types
    return {
        name: (np.frombuffer(tensor["data"], dtype="<u2").astype(np.uint32) << 16)
        .view(np.float32)
        .reshape(tensor["shape"])
        for name, tensor in read(path.read_bytes())
    }
