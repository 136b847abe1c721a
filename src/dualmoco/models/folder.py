"""A model folder as files: where a name leads, whether it is safe to open, the checksum of what decides its vectors."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.storage import file_sha256
from dualmoco.models.embedded import EMBEDDED, embedded_folder
from dualmoco.models.text_normalization import CARD, read_conversion

PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".pickle")
DECISIVE = (".safetensors", ".json", ".txt", ".model", ".spm", ".vocab", ".tiktoken")
"""Endings of the files that a model is opened from: weights, settings, vocabularies."""
RECORD, CALIBRATION = "dualmoco.json", "calibration.json"
HEAD = "nli"
"""Two files and a folder that may lie in a model folder without changing its vectors."""
LEGAL = ("LICENSE", "NOTICE")
"""What the names of other files begin with that a copy of a model must keep, besides its card."""
UNWANTED = ("onnx/*", "openvino/*")
PATIENCE = 5.0
"""Seconds to wait for the hub before only the cache is looked at."""


def model_folder(name: str) -> Path:
    """The folder that a name stands for: one of the package, itself, the model of a run, or what the hub gives.

    Args:
        name: An embedded model, a model folder, a run folder or a hub name.

    Returns:
        A folder on this machine.

    Raises:
        ModelError: A file, a folder that is not there, a run without a model yet, or a name that cannot be had.
    """
    if name in EMBEDDED:
        return embedded_folder(name)
    path = Path(name)
    if path.is_dir():
        is_run = (path / "config.yaml").is_file() and not (path / "modules.json").is_file()
        if is_run and not (path / "model").is_dir():
            raise ModelError(f"{name}: a run without a model yet; expected one that has been evaluated once")
        return path / "model" if is_run else path
    if path.is_file():
        raise ModelError(f"{name}: a file; expected a model folder such as runs/tiny/model, or words:{name}")
    if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
        raise ModelError(f"{name}: no such folder; expected a model folder such as runs/tiny/model, or a hub name")
    return fetch_model(name)


def portable_name(name: str) -> str:
    """The name of a model that stands for it in whatever folder a program runs: of a folder its whole path."""
    return str(Path(name).resolve()) if Path(name).exists() and name not in EMBEDDED else name


def fetch_model(name: str) -> Path:
    """The folder of a model on the hub, downloaded without code and pickles if the cache does not have it.

    Args:
        name: Such as sentence-transformers/LaBSE.

    Returns:
        A folder that holds its weights, settings and vocabularies.

    Raises:
        ModelError: No such model, or the hub cannot be reached and the cache does not have it.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    wanted = [f"*{ending}" for ending in DECISIVE]
    reason = ""
    try:
        HfApi().model_info(name, timeout=PATIENCE)  # snapshot_download itself would wait without limit
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
    except Exception:  # offline mode, or whatever the HTTP library raises without a network
        reason = "cannot reach the Hugging Face Hub, and the model is not cached"
    try:
        return Path(
            snapshot_download(
                name, allow_patterns=wanted, ignore_patterns=list(UNWANTED), local_files_only=bool(reason)
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        said = "neither a model folder nor a hub name that can be loaded from here"
        raise ModelError(f"{name}: {said}: {reason or str(error).strip().splitlines()[0]}") from None


def check_folder(folder: Path) -> None:
    """Refuses a model folder whose loading could run code.

    Args:
        folder: A local model folder.

    Raises:
        ModelError: No folder, Python files, module classes from outside sentence-transformers, remote-code maps, or
            weights that exist only in pickled form.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; expected a model folder such as runs/tiny/model")
    for code in folder.rglob("*.py"):
        raise ModelError(f"{code}: code in a model folder is never run; expected weights and JSON only")
    for config in folder.rglob("*.json"):
        for name in _foreign_code(config):
            raise ModelError(f"{config}: names the class {name}; expected only classes of sentence-transformers")
    for weights in folder.rglob("*"):
        if weights.suffix in PICKLED and not list(weights.parent.glob("*.safetensors")):
            raise ModelError(f"{weights}: pickled weights are never loaded; expected them as model.safetensors")


def folder_sha256(folder: Path) -> str:
    """The checksum of a model folder, wherever it lies.

    Args:
        folder: A local model folder.

    Returns:
        A checksum over names and contents of weights, settings and vocabularies, and over the text conversion of
        dualmoco's record; the rest of it, model cards, hidden files and an NLI head do not enter.

    Raises:
        ModelError: A record that cannot be read.
    """
    names = sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if _decides(file.relative_to(folder))
    )
    checksum = files_sha256((name, folder / name) for name in names if (folder / name).is_file())
    conversion = read_conversion(folder / RECORD).to_json()
    return hashlib.sha256(f"{checksum} {json.dumps(conversion)}".encode()).hexdigest() if conversion else checksum


def copy_model(folder: Path, out: Path) -> None:
    """Copies what a model is opened from, its record, its card and its licence; no pickles, no NLI head.

    Args:
        folder: A local model folder.
        out: The copy, which is not there yet.
    """

    def unwanted(place: str, names: list[str]) -> list[str]:
        inside = Path(place).relative_to(folder)
        return [name for name in names if not _is_copied(inside / name, is_folder=(folder / inside / name).is_dir())]

    shutil.copytree(folder, out, ignore=unwanted)


def _is_copied(name: Path, *, is_folder: bool) -> bool:
    """Whether a file or folder, by its name within a model folder, belongs into a copy."""
    if is_folder:
        return not name.name.startswith(".") and name.as_posix() != HEAD
    return _decides(name) or name.as_posix() in (RECORD, CARD) or name.name.startswith(LEGAL)


def check_place(out: Path, sources: Sequence[Path], kind: str, *, replace: bool) -> None:
    """Refuses to write a folder where something else is.

    Args:
        out: The folder to write.
        sources: Model folders it is made from, and names that are none.
        kind: What is written, for the error.
        replace: Whether what is there, unless it holds a model it is made from, may be replaced.

    Raises:
        ConfigError: There is something else.
    """
    if out.is_file():
        raise ConfigError(f"{out}: a file; expected a folder to write")
    if any(source.is_dir() and source.resolve().is_relative_to(out.resolve()) for source in sources):
        raise ConfigError(f"{out}: holds the model itself; expected another folder")
    if out.is_dir() and any(out.iterdir()) and not replace:
        raise ConfigError(f"{out}: a folder that is no {kind}; expected a new one, or --overwrite to replace it")


def files_sha256(files: Iterable[tuple[str, Path]]) -> str:
    """One checksum of several files.

    Args:
        files: Each file with the name it shall count under, in a fixed order.

    Returns:
        A checksum over names and contents.
    """
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{file_sha256(path)}  {name}\n".encode())
    return digest.hexdigest()


def _decides(name: Path) -> bool:
    """Whether a file, by its name within a model folder, can change the vectors."""
    if any(part.startswith(".") for part in name.parts) or name.parts[0] == HEAD:
        return False
    if name.as_posix() in (RECORD, CALIBRATION):
        return False
    return name.suffix in DECISIVE


def _foreign_code(config: Path) -> list[str]:
    """Classes a JSON file of a model folder would have imported from outside the libraries."""
    if config.name not in ("modules.json", "router_config.json", "config.json", "tokenizer_config.json"):
        return []
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        if isinstance(content, list):
            types = [str(module.get("type")) for module in content]
        else:
            types = [str(name) for name in (content.get("types") or {}).values()]
            types += [f"in auto_map: {name}" for name in content.get("auto_map") or {}]
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{config}: not a model's JSON file ({error}); save or download the model again") from None
    return [name for name in types if not name.startswith("sentence_transformers.")]
