"""Static models read from their folder without PyTorch: tables and projections in safetensors, tokenizers in JSON.

Only what is known to the last detail is read here: averages of token vectors, projections without activation, dropout,
unit length, one route a language. Anything else is left to sentence-transformers itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open
from tokenizers import Tokenizer

from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.static import StaticTable
from dualmoco.models.model import ANY_LANGUAGE
from dualmoco.models.packing import PACKED, WHOLE, read_packed

TABLE, DENSE, DROPOUT, UNIT, ROUTER = "StaticEmbedding", "Dense", "Dropout", "Normalize", "Router"
IDENTITY = "torch.nn.modules.linear.Identity"
EMBEDDING = "sentence_embedding"
READABLE = {"F16", "F32", "F64"}  # types of numbers that numpy has
BFLOAT16 = "BF16"


@dataclass(frozen=True)
class StaticFolder:
    """The tables of a model, and what it wants before every sentence."""

    tables: dict[str, StaticTable]
    """One for each language, the same for languages that share it; or one alone under ANY_LANGUAGE."""
    prompt: str


class _UnknownError(Exception):
    """Something that only sentence-transformers can open."""


def read_static_folder(folder: Path) -> StaticFolder | None:
    """Reads a model all of whose encoders are static.

    Args:
        folder: A sentence-transformers folder.

    Returns:
        Its tables; None if the folder holds anything else, or anything that is not known here.
    """
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = [_kind(module["type"]) for module in modules]
        if kinds == [ROUTER]:
            tables = _read_routes(folder / modules[0]["path"])
        else:
            places = [folder / module["path"] for module in modules]
            tables = {ANY_LANGUAGE: _read_table(list(zip(kinds, places, strict=True)))}
        return StaticFolder(tables, _read_prompt(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, _UnknownError):
        return None  # sentence-transformers opens it, or says what is wrong with it


def _read_routes(folder: Path) -> dict[str, StaticTable]:
    config = json.loads((folder / "router_config.json").read_text(encoding="utf-8"))
    if config["parameters"].get("default_route") or config["parameters"].get("route_mappings"):
        raise _UnknownError
    routes = {lang: tuple(names) for lang, names in config["structure"].items()}
    tables = {
        names: _read_table([(_kind(config["types"][name]), folder / name) for name in names])
        for names in dict.fromkeys(routes.values())
    }
    return {lang: tables[names] for lang, names in routes.items()}


def _read_table(layers: Sequence[tuple[str, Path]]) -> StaticTable:
    """The table of one encoder, with the projections behind it multiplied in."""
    (first, folder), *rest = [layer for layer in layers if layer[0] != DROPOUT]
    if first != TABLE:
        raise _UnknownError
    normalize = bool(rest) and rest[-1][0] == UNIT
    if normalize and not _keeps_names(_config(rest.pop()[1])):
        raise _UnknownError
    weight = _read_embedding(folder)
    vectors = np.concatenate([weight, np.zeros((1, weight.shape[1]), dtype=np.float32)])
    for kind, place in rest:
        if kind != DENSE:
            raise _UnknownError
        vectors = _project(vectors, place)
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return StaticTable(tokenizer, np.ascontiguousarray(vectors), normalize)


def _read_embedding(folder: Path) -> Vectors:
    tensors = _read_tensors(folder)
    if set(tensors) != {"embedding.weight"}:
        raise _UnknownError
    return tensors["embedding.weight"]


def _project(vectors: Vectors, folder: Path) -> Vectors:
    config, tensors = _config(folder), _read_tensors(folder)
    if config["activation_function"] != IDENTITY or config.get("use_residual") or not _keeps_names(config):
        raise _UnknownError
    projected: Vectors = vectors @ tensors["linear.weight"].T
    return projected + tensors["linear.bias"] if config["bias"] else projected


def _keeps_names(config: dict[str, Any]) -> bool:
    """Whether a layer takes sentence vectors and puts its own in their place."""
    return all(config.get(key) in (None, EMBEDDING) for key in ("module_input_name", "module_output_name"))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder in fp32, whatever they are stored in."""
    if (folder / PACKED).is_file():
        return read_packed(folder / PACKED)
    path = folder / WHOLE
    with safe_open(path, framework="np") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        if set(kinds.values()) == {BFLOAT16}:
            return _read_bfloat16(path)
        if not set(kinds.values()) <= READABLE:
            raise _UnknownError
        return {name: file.get_tensor(name).astype(np.float32) for name in kinds}


def _read_bfloat16(path: Path) -> dict[str, np.ndarray]:
    """Tensors in bf16, which numpy lacks: a bf16 is the upper half of an fp32."""
    read: Any = deserialize  # has no types
    return {
        name: (np.frombuffer(tensor["data"], dtype="<u2").astype(np.uint32) << 16)
        .view(np.float32).reshape(tensor["shape"])
        for name, tensor in read(path.read_bytes())
    }  # fmt: skip


def _read_prompt(folder: Path) -> str:
    path = folder / "config_sentence_transformers.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return str((config.get("prompts") or {}).get(config.get("default_prompt_name") or "") or "")


def _kind(module: str) -> str:
    """The class of a module, whichever of the library's import paths names it."""
    return module.rpartition(".")[2]
