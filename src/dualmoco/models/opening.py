"""Any model by one name: a folder, a run, a hub name, an export, or `package:`, `words:` and `embeddings:`.

The one opener of models. Nothing heavy is imported before it is needed: a static model opens without PyTorch.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.models.folder import check_folder, folder_sha256, model_folder
from dualmoco.models.model import AUTO, BACKENDS, STATIC, Backend, Identity, Model
from dualmoco.models.recipe import FIRST_LAST, PoolingMode

if TYPE_CHECKING:
    from dualmoco.models.backends.static_folder import StaticFolder

POOLINGS = (AUTO, *(mode.value for mode in PoolingMode), FIRST_LAST)
PREFIXES = ("package", "words", "embeddings")


def open_model(
    name: str | Path, backend: str = AUTO, *, pooling: str = AUTO, prompt: str = "", threads: int | None = None
) -> Model:
    """Opens a model; nothing in its folder is ever run.

    Args:
        name: A model folder, a run folder, a hub name or a folder of `dualmoco export`; `package:NAME`, an installed
            package; `words:FILE` or `words:en=FILE,zh=FILE`, averaged word vectors; `embeddings:FOLDER`, vectors made
            elsewhere.
        backend: What runs it: torch, static, onnx, onnx-int8, or auto: static for an average of token vectors, torch
            for other networks, and what the folder holds for an export.
        pooling: `auto` for the model's own, or mean where it has none; mean, max, cls or first-last to overrule it.
        prompt: Put before every sentence, for example "query: "; empty for the one that the model names, if any.
        threads: CPU threads of PyTorch, for the whole process, or of onnxruntime; the libraries' choice if None.

    Returns:
        The model.

    Raises:
        ConfigError: An unknown back-end or pooling, or one that the model does not take.
        ModelError: A name that stands for no model, or a model that cannot be loaded safely or run so.
        DataError: A file of vectors that cannot be read as such.
    """
    name = str(name)
    if backend not in BACKENDS:
        raise ConfigError(f"back-end {backend!r}; expected one of {', '.join(BACKENDS)}")
    if pooling not in POOLINGS:
        raise ConfigError(f"pooling {pooling!r}: expected one of {', '.join(POOLINGS)}")
    prefix, _, rest = name.partition(":")
    if _is_network(prefix, rest, name):
        model = open_folder(*find_folder(name), backend, pooling=pooling, prompt=prompt, threads=threads)
    else:
        _refuse_settings(name, pooling, prompt)
        model = _only(_open_prefixed(prefix, rest), backend)
    place = str(Path(name).resolve()) if Path(name).exists() else name
    model.reopen = partial(open_model, place, backend, pooling=pooling, prompt=prompt)
    return model


def open_folder(
    folder: Path, title: str, backend: str, *, pooling: str = AUTO, prompt: str = "", threads: int | None = None
) -> Model:
    """Opens a model folder that is on this machine.

    Args:
        folder: Of dualmoco, sentence-transformers or transformers, or an export to ONNX.
        title: What to call it in results.
        backend: As in `open_model`.
        pooling: As in `open_model`.
        prompt: As in `open_model`.
        threads: As in `open_model`.

    Returns:
        The model.

    Raises:
        ConfigError: A back-end or pooling that the model does not take.
        ModelError: A model that cannot be loaded safely or run so.
    """
    from dualmoco.models.backends.onnx_folder import is_onnx_folder, open_onnx_folder

    if is_onnx_folder(folder):
        _refuse_settings(title, pooling, prompt)
        return _only(open_onnx_folder(folder, title, threads), backend)
    check_folder(folder)
    sha256 = folder_sha256(folder)
    if backend in (AUTO, STATIC) and pooling == AUTO:
        from dualmoco.models.backends.static_folder import read_static_folder

        found = read_static_folder(folder)
        if found:
            prompt = prompt or found.prompt
            return _open_tables(found, Identity(title, sha256, _describe("own", prompt)), prompt)
    return _open_network(folder, title, sha256, backend, pooling, prompt, threads)


def _open_tables(found: StaticFolder, identity: Identity, prompt: str) -> Model:
    from dualmoco.models.backends.static import StaticBackend

    tables = found.tables
    if isinstance(tables, dict):
        return Model(identity, list(tables), lambda lang: StaticBackend(tables[lang], prompt))
    return Model(identity, None, lambda lang: StaticBackend(tables, prompt))


def _open_network(
    folder: Path, title: str, sha256: str, backend: str, pooling: str, prompt: str, threads: int | None
) -> Model:
    from dualmoco.models.network import open_network
    from dualmoco.models.running import run_network, set_threads

    opened = open_network(folder, None if pooling == AUTO else pooling)
    prompt = prompt or opened.prompt
    encoders = opened.encoders
    set_threads(threads)

    def open_backend(lang: str) -> Backend:
        encoder = encoders[lang] if isinstance(encoders, dict) else encoders
        return run_network(encoder, backend, prompt=prompt, threads=threads)

    identity = Identity(title, sha256, _describe(opened.pooling, prompt))
    return Model(identity, list(encoders) if isinstance(encoders, dict) else None, open_backend)


def find_folder(name: str) -> tuple[Path, str]:
    """The folder of a network.

    Args:
        name: A model folder, a run folder, a hub name, or `package:NAME` of a network.

    Returns:
        The folder, and what to call the model.

    Raises:
        ModelError: A name that stands for no network.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or Path(name).exists():
        return model_folder(name), name
    from dualmoco.models.baselines.packages import network_folder

    folder = network_folder(rest) if prefix == "package" else None
    if folder is None:
        raise ModelError(f"{name}: no network; expected a model folder, a hub name or package:NAME of one")
    return folder, name


def _open_prefixed(prefix: str, rest: str) -> Model:
    """A model that is no network."""
    if prefix == "package":
        from dualmoco.models.baselines.packages import open_package

        return open_package(rest)
    if prefix == "words":
        from dualmoco.models.baselines.wordvectors import open_words

        return open_words(rest)
    from dualmoco.models.baselines.precomputed import open_precomputed

    return open_precomputed(rest)


def _is_network(prefix: str, rest: str, name: str) -> bool:
    """Whether a name stands for a model folder; ModelError if it stands for nothing."""
    if Path(name).exists() or not rest:
        return True
    if prefix not in PREFIXES:
        known = ", ".join(f"{known}:" for known in PREFIXES)
        raise ModelError(f"{name}: no such folder, and {prefix}: is no prefix; expected one of {known} or a hub name")
    if prefix != "package":
        return False
    from dualmoco.models.baselines.packages import network_folder

    return network_folder(rest) is not None


def _refuse_settings(name: str, pooling: str, prompt: str) -> None:
    if pooling != AUTO or prompt:
        raise ConfigError(f"{name}: takes neither pooling nor prompt; expected pooling auto and no prompt")


def _only(model: Model, backend: str) -> Model:
    """The model, if the back-end asked for is the one it has."""
    lang = model.languages[0] if model.languages else ""
    own = model.backend(lang).name
    if backend not in (AUTO, own):
        raise ConfigError(f"{model.identity.name}: back-end {backend!r}; expected {own}, the only one it has, or auto")
    return model


def _describe(pooling: str, prompt: str) -> str:
    return f"{pooling}, prompt {prompt!r}" if prompt else pooling
