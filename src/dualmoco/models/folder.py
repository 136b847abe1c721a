"""A model folder as files: whether it is safe to open, and the checksum of what decides its vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from dualmoco.core.errors import ModelError
from dualmoco.core.storage import file_sha256

PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".pickle")
DECISIVE = (".safetensors", ".json", ".txt", ".model", ".spm", ".vocab", ".tiktoken")
"""Endings of the files that a model is opened from: weights, settings, vocabularies."""
RECORD = "dualmoco.json"
HEAD = "nli"
"""A record and a folder that may lie in a model folder without changing its vectors."""


def check_folder(folder: Path) -> None:
    """Refuses a model folder whose loading could run code.

    Args:
        folder: A local model folder.

    Raises:
        ModelError: Python files, module classes from outside sentence-transformers, remote-code maps, or weights that
            exist only in pickled form.
    """
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
        A checksum over names and contents of weights, settings and vocabularies; model cards, hidden files,
        dualmoco's record and an NLI head do not enter.
    """
    names = sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if _decides(file.relative_to(folder))
    )
    return files_sha256((name, folder / name) for name in names if (folder / name).is_file())


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
    if any(part.startswith(".") for part in name.parts) or name.parts[0] == HEAD or name.as_posix() == RECORD:
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
