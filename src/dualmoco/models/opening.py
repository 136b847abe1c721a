"""Any model by one name: a folder, a run, a hub name, an export, or `package:`, `words:` and `embeddings:`.

The one opener of models. Nothing heavy is imported before it is needed: a static model opens without PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.models.folder import check_folder, folder_sha256, model_folder
from dualmoco.models.model import (
    ANY_LANGUAGE,
    AUTO,
    BACKENDS,
    COMPUTES,
    FP32,
    STATIC,
    Backend,
    Identity,
    Model,
    assemble_model,
)
from dualmoco.models.recipe import FIRST_LAST, PoolingMode

if TYPE_CHECKING:
    from dualmoco.models.encoder import Encoder

POOLINGS = (*(mode.value for mode in PoolingMode), FIRST_LAST)


def open_model(
    name: str | Path, backend: str = AUTO, *, pooling: str = AUTO, prompt: str = "", compute: str = FP32,
    threads: int | None = None,
) -> Model:  # fmt: skip
    """Opens a model; nothing in its folder is ever run.

    Args:
        name: A model folder, a run folder, a hub name or a folder of `dualmoco export`; `package:NAME`, an installed
            package; `words:FILE` or `words:en=FILE,zh=FILE`, averaged word vectors; `embeddings:FOLDER`, vectors made
            elsewhere.
        backend: What runs it: torch, static, onnx, onnx-int8, or auto: static for an average of token vectors, torch
            for other networks, and what the folder holds for an export.
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
    _check("compute", compute, COMPUTES)
    folder = find_folder(name)
    if folder is not None:
        model = open_folder(folder, name, backend, pooling=pooling, prompt=prompt, compute=compute, threads=threads)
    else:
        _refuse_settings(name, pooling, prompt, compute)
        model = _only(OPENERS[prefix](rest), backend)
    place = str(Path(name).resolve()) if Path(name).exists() else name
    model.reopen = partial(open_model, place, backend, pooling=pooling, prompt=prompt, compute=compute)
    return model


def split_name(name: str) -> tuple[str, str]:
    """What stands before the colon of a name, and the rest.

    Args:
        name: Of a model, as in `open_model`.

    Returns:
        One of `OPENERS` and the rest; two empty strings if the name is a folder's or a hub name.

    Raises:
        ModelError: An unknown prefix.
    """
    prefix, _, rest = name.partition(":")
    if not rest or Path(name).exists():
        return "", ""
    if prefix not in OPENERS:
        known = ", ".join(f"{known}:" for known in OPENERS)
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
    from dualmoco.models.baselines.packages import network_folder

    return network_folder(rest)


def open_folder(
    folder: Path, title: str, backend: str, *, pooling: str = AUTO, prompt: str = "", compute: str = FP32,
    threads: int | None = None,
) -> Model:  # fmt: skip
    """Opens a model folder that is on this machine.

    Args:
        folder: Of dualmoco, sentence-transformers or transformers, or an export to ONNX.
        title: What to call it in results.
        backend: As in `open_model`.
        pooling: As in `open_model`.
        prompt: As in `open_model`.
        compute: As in `open_model`.
        threads: As in `open_model`.

    Returns:
        The model.

    Raises:
        ConfigError: A back-end or pooling that the model does not take.
        ModelError: A model that cannot be loaded safely or run so.
    """
    from dualmoco.models.backends.onnx_folder import is_onnx_folder, open_onnx_folder

    if is_onnx_folder(folder):
        _refuse_settings(title, pooling, prompt, compute)
        return _only(open_onnx_folder(folder, title, threads), backend)
    check_folder(folder)
    sha256 = folder_sha256(folder)

    def identity(pooling: str, prompt: str) -> Identity:
        return Identity(title, sha256, f"{pooling}, prompt {prompt!r}" if prompt else pooling)

    if backend in (AUTO, STATIC) and pooling == AUTO and compute == FP32:
        from dualmoco.models.backends.static import StaticBackend
        from dualmoco.models.backends.static_folder import read_static_folder

        found = read_static_folder(folder)
        if found:
            before = prompt or found.prompt
            return assemble_model(identity("own", before), found.tables, lambda table: StaticBackend(table, before))
    return _open_network(folder, identity, backend, pooling=pooling, prompt=prompt, compute=compute, threads=threads)


def _open_network(
    folder: Path, identity: Callable[[str, str], Identity], backend: str, *, pooling: str, prompt: str, compute: str,
    threads: int | None,
) -> Model:  # fmt: skip
    """A model of any other kind, with PyTorch."""
    from dualmoco.models.network import open_network
    from dualmoco.models.running import run_network, set_threads

    opened = open_network(folder, None if pooling == AUTO else pooling)
    prompt = prompt or opened.prompt
    set_threads(threads)

    def run(encoder: Encoder) -> Backend:
        return run_network(encoder, backend, prompt=prompt, compute=compute, threads=threads)

    return assemble_model(identity(opened.pooling, prompt), opened.encoders, run)


def _open_package(name: str) -> Model:
    from dualmoco.models.baselines.packages import open_package

    return open_package(name)


def _open_words(files: str) -> Model:
    from dualmoco.models.baselines.wordvectors import open_words

    return open_words(files)


def _open_embeddings(folder: str) -> Model:
    from dualmoco.models.baselines.precomputed import open_precomputed

    return open_precomputed(folder)


OPENERS: dict[str, Callable[[str], Model]] = {
    "package": _open_package,
    "words": _open_words,
    "embeddings": _open_embeddings,
}
"""What opens a model that is no network, by the prefix of its name."""


def _check(setting: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{setting} {value!r}; expected one of {', '.join(known)}")


def _refuse_settings(name: str, pooling: str, prompt: str, compute: str) -> None:
    if pooling != AUTO or prompt or compute != FP32:
        raise ConfigError(
            f"{name}: takes neither pooling nor prompt nor compute; expected pooling auto, no prompt, compute {FP32}"
        )


def _only(model: Model, backend: str) -> Model:
    """The model, if the back-end asked for is the one it has."""
    lang = model.languages[0] if model.languages else ANY_LANGUAGE
    own = model.backend(lang).name
    if backend not in (AUTO, own):
        raise ConfigError(f"{model.identity.name}: back-end {backend!r}; expected {own}, the only one it has, or auto")
    return model
