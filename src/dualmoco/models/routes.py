"""A model folder with one encoder per language, as files: compares encoders and copies them from folder to folder.

Files are copied unchanged, so the vectors of a copied language are bit-identical. Nothing here needs PyTorch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from dualmoco.core.errors import ModelError
from dualmoco.core.storage import read_json, write_json, write_text
from dualmoco.models.backends.onnx_runtime import is_onnx_folder
from dualmoco.models.backends.st_format import ROUTER, read_tensors
from dualmoco.models.folder import (
    INT8_FILE,
    MODEL_RECORD,
    MODULES_FILE,
    ROUTER_FILE,
    TEXT_KEY,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    read_conversion,
    read_model_record,
)
from dualmoco.models.hybrid import is_hybrid
from dualmoco.models.int8_format import load_tensors, pack_tensors
from dualmoco.models.load import find_folder, open_model
from dualmoco.models.model import INT8, Model
from dualmoco.models.text_normalization import TextConversion
from dualmoco.text.languages import Chinese, base_language


def open_languages(name: str | Path) -> tuple[Model, Path]:
    """Opens a model that has one encoder per language, to add languages; ModelError for any other kind of model."""
    name = str(name)
    folder = find_folder(name)
    if folder is None:
        raise ModelError(f"{name}: not a network; expected a model with one encoder per language, such as en-zh-static")
    if is_hybrid(folder):
        raise ModelError(
            f"{name}: a hybrid; expected a single model such as en-zh-static: add languages to its parts, then combine"
        )
    if is_onnx_folder(folder):
        raise ModelError(f"{name}: an ONNX export; expected the model it was made from")
    model = open_model(name)
    if model.languages is None or not _is_router(folder):
        raise ModelError(
            f"{name}: one encoder for any language; expected one encoder per language, such as en-zh-static "
            "(recipes/join-language.yaml trains a language against any encoder)"
        )
    if any(model.backend(lang).name == INT8 for lang in model.languages):
        raise ModelError(f"{name}: packed transformers; expected the model before it was packed, or a static model")
    return model, folder


def _is_router(folder: Path) -> bool:
    modules = read_json(folder / MODULES_FILE)
    return len(modules) == 1 and str(modules[0]["type"]).endswith(f".{ROUTER}") and not modules[0]["path"]


def read_routes(folder: Path) -> dict[str, list[str]]:
    """The names of each language's layers, which are folders inside the model folder."""
    return {lang: list(names) for lang, names in read_json(folder / ROUTER_FILE)["structure"].items()}


def add_routes(folder: Path, source: Path, langs: Iterable[str]) -> list[Path]:
    """Copies the encoders of some languages of another model into a model folder; returns the folders of new layers."""
    router, other = read_json(folder / ROUTER_FILE), read_json(source / ROUTER_FILE)
    added = []
    for lang in langs:
        for name in other["structure"][lang]:
            if name in router["types"] and _same_layer(folder / name, source / name):
                continue  # languages that share an encoder
            if name in router["types"]:
                raise ModelError(
                    f"{source}: its layer {name} differs from that layer of the model it is added to; rename it"
                )
            shutil.copytree(source / name, folder / name)
            router["types"][name] = other["types"][name]
            added.append(folder / name)
        router["structure"][lang] = other["structure"][lang]
    write_json(folder / ROUTER_FILE, router)
    return added


def pack_layers(layers: Iterable[Path]) -> None:
    """Stores weights of layers as int8 with one scale per row, and tokenizers without indentation, in place."""
    for layer in layers:
        weights, tokenizer = layer / WEIGHTS_FILE, layer / TOKENIZER_FILE
        if weights.is_file():
            save_file(pack_tensors(load_tensors(weights)), layer / INT8_FILE)
            weights.unlink()
        if tokenizer.is_file():
            write_text(tokenizer, json.dumps(read_json(tokenizer), ensure_ascii=False, separators=(",", ":")))


def same_encoder(first: Path, second: Path, lang: str) -> bool:
    """Whether two models encode a language with equal layers, however the weights are stored."""
    layers = read_routes(first)[lang], read_routes(second)[lang]
    return len(layers[0]) == len(layers[1]) and all(
        _same_layer(first / one, second / other) for one, other in zip(*layers, strict=True)
    )


def _same_layer(first: Path, second: Path) -> bool:
    """Whether two layers have equal weights, settings and vocabularies."""
    settings = [_read_settings(layer) for layer in (first, second)]
    if settings[0] != settings[1]:
        return False
    tensors = [read_tensors(layer) if _has_weights(layer) else {} for layer in (first, second)]
    return tensors[0].keys() == tensors[1].keys() and all(
        np.array_equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items()
    )


def _has_weights(layer: Path) -> bool:
    return (layer / INT8_FILE).is_file() or (layer / WEIGHTS_FILE).is_file()


def _read_settings(layer: Path) -> dict[str, Any]:
    """The contents of a layer's files, except for weights; tokenizers without truncation and padding."""
    found: dict[str, Any] = {}
    for file in sorted(layer.rglob("*")):
        if file.is_file() and file.name not in (INT8_FILE, WEIGHTS_FILE):
            found[file.relative_to(layer).as_posix()] = read_json(file) if file.suffix == ".json" else file.read_bytes()
    if isinstance(tokenizer := found.get(TOKENIZER_FILE), dict):
        found[TOKENIZER_FILE] = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
    return found


def merge_conversions(folders: Iterable[Path]) -> TextConversion:
    """The text conversion of a model with the languages of several folders; ModelError if the folders disagree."""
    found = {folder: read_conversion(folder) for folder in folders}
    normalizing = {conversion.nfkc for conversion in found.values()}
    converting = {
        conversion.chinese
        for folder, conversion in found.items()
        if any(base_language(lang) == "zh" for lang in read_routes(folder))
    }
    if len(normalizing) > 1 or len(converting) > 1:
        shown = "; ".join(f"{folder}: {json.dumps(conversion.to_json())}" for folder, conversion in found.items())
        raise ModelError(f"models that convert text differently ({shown}); expected the same conversion in all of them")
    return TextConversion(next(iter(converting), Chinese.keep), next(iter(normalizing)))


def write_model_record(folder: Path, conversion: TextConversion, about: dict[str, Any]) -> None:
    """Writes the text conversion of a model, and other provenance, into its record."""
    write_json(folder / MODEL_RECORD, {**read_model_record(folder), TEXT_KEY: conversion.to_json(), **about})
