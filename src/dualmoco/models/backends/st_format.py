"""The layout of a sentence-transformers folder, read without that library: layers by language, their settings, tensors.

For back-ends that know a kind of model to the last detail; what they do not know is an `UnknownLayoutError`, and left
to sentence-transformers itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from dualmoco.models.int8_format import PACKED, WHOLE, read_packed
from dualmoco.models.model import ANY_LANGUAGE

DENSE, DROPOUT, UNIT, ROUTER = "Dense", "Dropout", "Normalize", "Router"
IDENTITY = "torch.nn.modules.linear.Identity"
EMBEDDING = "sentence_embedding"
READABLE = {"F16", "F32", "F64"}  # types of numbers that numpy has
BFLOAT16 = "BF16"


class UnknownLayoutError(Exception):
    """Something that only sentence-transformers can open."""


LAYOUT_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, UnknownLayoutError)
"""What reading a folder of unknown layout may end in."""


class Layer(NamedTuple):
    """One module of an encoder: its class, whichever of the library's import paths names it, and its folder."""

    kind: str
    folder: Path


def read_layout(folder: Path) -> dict[str, tuple[Layer, ...]]:
    """The layers of each encoder, dropout left out.

    Args:
        folder: A sentence-transformers folder.

    Returns:
        By language, equal for languages that share an encoder; or of one encoder alone under ANY_LANGUAGE.

    Raises:
        UnknownLayoutError: A router that does more than choose by language.
    """
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    layers = tuple(Layer(_kind(module["type"]), folder / module["path"]) for module in modules)
    if [layer.kind for layer in layers] != [ROUTER]:
        return {ANY_LANGUAGE: _without_dropout(layers)}
    place = layers[0].folder
    config = json.loads((place / "router_config.json").read_text(encoding="utf-8"))
    if config["parameters"].get("default_route") or config["parameters"].get("route_mappings"):
        raise UnknownLayoutError
    return {
        lang: _without_dropout(tuple(Layer(_kind(config["types"][name]), place / name) for name in names))
        for lang, names in config["structure"].items()
    }


def read_settings(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The settings of a layer; none if it has no such file."""
    path = folder / name
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def read_prompt(folder: Path) -> str:
    """What a model wants before every sentence."""
    config = read_settings(folder, "config_sentence_transformers.json")
    return str((config.get("prompts") or {}).get(config.get("default_prompt_name") or "") or "")


def read_projection(folder: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The matrix (D, E) and bias (D,), or None, of a dense layer that does no more than multiply."""
    check_projection(folder)
    tensors = read_tensors(folder)
    return tensors["linear.weight"], tensors.get("linear.bias")


def check_projection(folder: Path) -> None:
    """Refuses a dense layer that does more than multiply: UnknownLayoutError."""
    config = read_settings(folder)
    if config["activation_function"] != IDENTITY or config.get("use_residual") or not keeps_names(config):
        raise UnknownLayoutError


def keeps_names(config: dict[str, Any]) -> bool:
    """Whether a layer takes sentence vectors and puts its own in their place."""
    return all(config.get(key) in (None, EMBEDDING) for key in ("module_input_name", "module_output_name"))


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder in fp32, whatever they are stored in."""
    if (folder / PACKED).is_file():
        return read_packed(folder / PACKED)
    path = folder / WHOLE
    with safe_open(path, framework="np") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        if set(kinds.values()) == {BFLOAT16}:
            return _read_bfloat16(path)
        if not set(kinds.values()) <= READABLE:
            raise UnknownLayoutError
        return {name: file.get_tensor(name).astype(np.float32) for name in kinds}


def _read_bfloat16(path: Path) -> dict[str, np.ndarray]:
    """Tensors in bf16, which numpy lacks: a bf16 is the upper half of an fp32."""
    read: Any = deserialize  # has no types
    return {
        name: (np.frombuffer(tensor["data"], dtype="<u2").astype(np.uint32) << 16)
        .view(np.float32)
        .reshape(tensor["shape"])
        for name, tensor in read(path.read_bytes())
    }


def _kind(module: str) -> str:
    return module.rpartition(".")[2]


def _without_dropout(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(layer for layer in layers if layer.kind != DROPOUT)
