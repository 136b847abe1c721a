"""The ways to run a network of ours or of sentence-transformers: PyTorch, a table of token vectors, ONNX.

A way other than PyTorch is used only after it has agreed with the network itself on a fixed set of sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.parity_check import SENTENCES, check_agreement
from dualmoco.models.backends.pytorch import TorchBackend, encode_by_itself, token_source
from dualmoco.models.config import FIRST_LAST, PoolingMode
from dualmoco.models.embedded import DEFAULT_MODEL, EMBEDDED, check_embedded
from dualmoco.models.folder import RECORD, check_folder, folder_sha256, model_folder, portable_name
from dualmoco.models.hybrid import HybridPart, assemble_hybrid, check_part, is_hybrid, read_hybrid
from dualmoco.models.int8_format import is_packed
from dualmoco.models.model import (
    ANY_LANGUAGE,
    AUTO,
    BACKENDS,
    BF16,
    FP16,
    FP32,
    INT8,
    ONNX,
    ONNX_INT8,
    PRECISIONS,
    STATIC,
    TORCH,
    Backend,
    Identity,
    Model,
    assemble_model,
)
from dualmoco.models.network import Encoder, static_table
from dualmoco.models.text_normalization import read_conversion

if TYPE_CHECKING:
    from dualmoco.models.backends.static import StaticFolder


CHECK_BATCH = 8
TORCH_TYPES = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}


def run_network(
    encoder: Encoder, name: str = AUTO, *, prompt: str = "", compute: str = FP32, threads: int | None = None
) -> Backend:
    """Makes what runs the network of one language.

    Args:
        encoder: The network.
        name: One of BACKENDS.
        prompt: Put before every sentence.
        compute: One of PRECISIONS; other than fp32 for PyTorch on a GPU alone.
        threads: Of onnxruntime.

    Returns:
        The back-end, checked.

    Raises:
        ConfigError: An unknown way, or a precision that it does not compute in.
        ModelError: A way that does not fit the network, or whose vectors are not the network's.
    """
    if name == INT8:
        raise ModelError("back-end int8 is for packed BERT models; expected one, or back-end auto")
    if name not in BACKENDS:
        raise ConfigError(f"back-end {name!r}; expected one of {', '.join(BACKENDS)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if compute != FP32 and (device == "cpu" or name not in (AUTO, TORCH)):
        raise ConfigError(f"compute {compute} with back-end {name} on a {device}; expected {FP32}, or torch on a GPU")
    made = _other_than_torch(encoder, name, prompt, threads) if compute == FP32 else None
    if made is None:
        return TorchBackend(encoder.to(device, TORCH_TYPES[compute]), prompt)
    check_agreement(made.name, made.encode, reference_vectors(encoder, prompt))
    return made


def _other_than_torch(encoder: Encoder, name: str, prompt: str, threads: int | None) -> Backend | None:
    if name in (AUTO, STATIC):
        return _static(encoder, name, prompt)
    return _onnx(encoder, name, prompt, threads) if name in (ONNX, ONNX_INT8) else None


def reference_vectors(encoder: Encoder, prompt: str = "", sentences: Sequence[str] = SENTENCES) -> Vectors:
    """The vectors of the sentences that back-ends are checked with, as the network itself makes them."""
    return encode_by_itself(encoder, [prompt + text for text in sentences], CHECK_BATCH)


def _static(encoder: Encoder, name: str, prompt: str) -> Backend | None:
    from dualmoco.models.backends.static import StaticBackend, StaticTable

    found = static_table(encoder)
    if found is None and name == STATIC:
        raise ModelError("back-end static: the model is no table of token vectors; expected one, or --backend torch")
    return StaticBackend(StaticTable(found[0], found[1].numpy(), found[2]), prompt) if found else None


def _onnx(encoder: Encoder, name: str, prompt: str, threads: int | None) -> Backend:
    from dualmoco.models.backends.onnx_export import make_graph
    from dualmoco.models.backends.onnx_runtime import OnnxBackend

    source = token_source(encoder, prompt)
    if source is None:
        raise ModelError(f"back-end {name}: the model is no transformer of plain text; expected one, or use auto")
    return OnnxBackend(name, make_graph(name, encoder, source), source, threads)


PREFIXES = ("package", "words", "embeddings")
POOLINGS = (*(mode.value for mode in PoolingMode), FIRST_LAST)


@dataclass(frozen=True)
class _Settings:
    """How a model shall run; see `open_model`."""

    backend: str
    pooling: str
    prompt: str
    compute: str
    threads: int | None
    part: HybridPart | None = None
    """Of a hybrid, if it is one: then the back-end is for networks, and a table of token vectors stays one."""


def open_model(
    name: str | Path = DEFAULT_MODEL,
    backend: str = AUTO,
    *,
    pooling: str = AUTO,
    prompt: str = "",
    compute: str = FP32,
    threads: int | None = None,
) -> Model:
    """Opens a model; nothing in its folder is ever run.

    Args:
        name: `en-zh` or `en-zh-static`, which come with dualmoco; a model folder, a run folder, a hub name or a folder
            of `dualmoco export`; `package:NAME`, an installed package; `words:FILE` or `words:en=FILE,zh=FILE`,
            averaged word vectors; `embeddings:FOLDER`, vectors made elsewhere.
        backend: What runs it: torch, static, int8, onnx, onnx-int8, or auto: static for an average of token vectors,
            int8 for a packed BERT, torch for other networks, and what the folder holds for an export; in a hybrid for
            the parts that are networks.
        pooling: `auto` for the model's own, or mean where it has none; mean, max, cls or first-last to overrule it.
        prompt: Put before every sentence, for example "query: "; empty for the one that the model names, if any.
        compute: What a network computes in, whatever its weights are stored in: fp32, or on a GPU fp16 or bf16.
        threads: CPU threads of PyTorch, for the whole process, or of onnxruntime; the libraries' choice if None.

    Returns:
        The model.

    Raises:
        ConfigError: An unknown back-end, pooling or precision, or one that the model does not take.
        ModelError: A name that stands for no model, or a model that cannot be loaded safely or run so.
        DataError: A file of vectors that cannot be read as such.
    """
    name = str(name)
    prefix, rest = split_name(name)
    _check("back-end", backend, (*BACKENDS, prefix) if prefix else BACKENDS)
    _check("pooling", pooling, POOLINGS)
    _check("compute", compute, PRECISIONS)
    settings = _Settings(backend, pooling, prompt, compute, threads)
    folder = find_folder(name)
    if folder and name in EMBEDDED:
        check_embedded(name, folder_sha256(folder))
    model = _open_baseline(name, prefix, rest, settings) if folder is None else _open_folder(folder, name, settings)
    model.folder = folder
    model.reopen = partial(open_model, portable_name(name), backend, pooling=pooling, prompt=prompt, compute=compute)
    return model


def split_name(name: str) -> tuple[str, str]:
    """What stands before the colon of a name, and the rest.

    Args:
        name: Of a model, as in `open_model`.

    Returns:
        One of PREFIXES and the rest; two empty strings if the name is a folder's or a hub name.

    Raises:
        ModelError: An unknown prefix.
    """
    prefix, _, rest = name.partition(":")
    if not rest or Path(name).exists():
        return "", ""
    if prefix not in PREFIXES:
        known = ", ".join(f"{known}:" for known in PREFIXES)
        raise ModelError(f"{name}: no such folder, and {prefix}: is no prefix; expected one of {known} or a hub name")
    return prefix, rest


def find_folder(name: str) -> Path | None:
    """The folder of a network, fetched from the hub if need be.

    Args:
        name: Of a model, as in `open_model`.

    Returns:
        A folder on this machine; None if the name stands for a model that is no network.

    Raises:
        ModelError: A name that stands for no model.
    """
    prefix, rest = split_name(name)
    if not prefix:
        return model_folder(name)
    if prefix != "package":
        return None
    from dualmoco.models.external import network_folder

    return network_folder(rest)


def _open_baseline(name: str, prefix: str, rest: str, settings: _Settings) -> Model:
    """A model that is no network."""
    _refuse_settings(name, settings)
    if prefix == "package":
        from dualmoco.models.external import open_package as open_it
    elif prefix == "words":
        from dualmoco.models.word_vectors import open_words as open_it
    else:
        from dualmoco.models.external import open_precomputed as open_it
    return _check_own_backend(open_it(rest), settings.backend)


def _open_folder(folder: Path, title: str, settings: _Settings) -> Model:
    """A model folder: a hybrid, an export to ONNX, else tables without PyTorch, else any network."""
    from dualmoco.models.backends.onnx_runtime import is_onnx_folder, open_onnx_folder

    if is_hybrid(folder):
        _refuse_settings(title, settings)
        return _open_hybrid(folder, title, settings)
    if is_onnx_folder(folder):
        _refuse_settings(title, settings)
        opened = open_onnx_folder(folder, title, settings.threads)
        if settings.part:
            check_part(settings.part, opened.identity)
        return _check_own_backend(opened, settings.backend)
    check_folder(folder)
    identity = Identity(title, folder_sha256(folder))
    if settings.part:
        check_part(settings.part, identity)
    may_be_tables = settings.backend in (AUTO, STATIC) or settings.part is not None
    if may_be_tables and settings.pooling == AUTO and settings.compute == FP32:
        from dualmoco.models.backends.static import read_static_folder

        found = read_static_folder(folder)
        if found:
            return _open_tables(folder, found, identity, settings)
    return _open_int8(folder, identity, settings) or _open_network(folder, identity, settings)


def _open_hybrid(folder: Path, title: str, settings: _Settings) -> Model:
    parts = read_hybrid(folder)
    models = [
        _open_folder(folder / part.folder, f"{title}/{part.folder}", replace(settings, part=part)) for part in parts
    ]
    return assemble_hybrid(title, models, [part.weight for part in parts])


def _open_tables(folder: Path, found: StaticFolder, identity: Identity, settings: _Settings) -> Model:
    from dualmoco.models.backends.static import StaticBackend

    prompt = settings.prompt or found.prompt
    return assemble_model(
        identity.pooled("own", prompt),
        found.tables,
        lambda table: StaticBackend(table, prompt),
        read_conversion(folder / RECORD),
    )


def _open_int8(folder: Path, identity: Identity, settings: _Settings) -> Model | None:
    """A packed network as it is stored, if it is one and nothing else was asked for."""
    if settings.backend not in (AUTO, INT8) or (settings.pooling, settings.compute) != (AUTO, FP32):
        return None
    if is_packed(folder):
        from dualmoco.models.backends.int8 import read_int8_folder, suits_machine
        from dualmoco.models.backends.pytorch import set_threads

        wanted = settings.backend == INT8 or suits_machine()
        found = read_int8_folder(folder, settings.prompt) if wanted else None
        if found:
            set_threads(settings.threads)
            prompt = next(iter(found.values())).source.prompt
            return assemble_model(
                identity.pooled("own", prompt), found, lambda encoder: encoder.run(), read_conversion(folder / RECORD)
            )
    if settings.backend == INT8:
        raise ModelError(f"{identity.name}: back-end int8 is for packed BERT models; expected one, or back-end auto")
    return None


def _open_network(folder: Path, identity: Identity, settings: _Settings) -> Model:
    from dualmoco.models.backends.pytorch import set_threads
    from dualmoco.models.network import is_static, open_network

    opened = open_network(folder, None if settings.pooling == AUTO else settings.pooling)
    prompt = settings.prompt or opened.prompt
    set_threads(settings.threads)

    def run(encoder: Encoder) -> Backend:
        name = AUTO if settings.part and is_static(encoder) else settings.backend
        return run_network(encoder, name, prompt=prompt, compute=settings.compute, threads=settings.threads)

    identity = identity.pooled(opened.pooling, prompt)
    return assemble_model(identity, opened.encoders, run, read_conversion(folder / RECORD))


def _check(setting: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{setting} {value!r}; expected one of {', '.join(known)}")


def _refuse_settings(name: str, settings: _Settings) -> None:
    """For models that have no pooling, prompt or precision to choose."""
    if (settings.pooling, settings.prompt, settings.compute) != (AUTO, "", FP32):
        raise ConfigError(
            f"{name}: takes neither pooling nor prompt nor compute; expected pooling auto, no prompt, compute {FP32}"
        )


def _check_own_backend(model: Model, backend: str) -> Model:
    """The model, if the back-end asked for is the one it has."""
    lang = model.languages[0] if model.languages else ANY_LANGUAGE
    own = model.backend(lang).name
    if backend not in (AUTO, own):
        raise ConfigError(f"{model.identity.name}: back-end {backend!r}; expected {own}, the only one it has, or auto")
    return model
