"""The models that come with dualmoco: each name stands for a folder of the package, so nothing is downloaded.

Their weights are stored as int8 (`int8_format.py`); the card in each folder says what the model was trained on and how
good it is. The option parser of the command line imports this module, so it must not import numpy or PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path

from dualmoco.core.errors import ModelError

DEFAULT_MODEL = "en-zh"
FAST_MODEL = "en-zh-static"
EMBEDDED = (DEFAULT_MODEL, FAST_MODEL)
HOME = Path(__file__).parents[1] / "embedded"
CHECKSUMS = "checksums.json"  # the `folder_sha256` of each model


def embedded_folder(name: str) -> Path:
    """The folder of an embedded model; ModelError if its weights are not installed."""
    folder = HOME / name
    if not any(folder.rglob("*.safetensors")):
        raise ModelError(
            f"{name}: its weights are not in this installation of dualmoco ({folder}); install dualmoco from a "
            "complete copy of its repository, or give another model with --model FOLDER"
        )
    return folder


def check_embedded(name: str, sha256: str) -> None:
    """Refuses an embedded model whose `folder_sha256` is not the one that was shipped, with ModelError."""
    try:
        expected = str(json.loads((HOME / CHECKSUMS).read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{HOME / CHECKSUMS}: cannot be read ({error!r}); install dualmoco again") from None
    if sha256 != expected:
        raise ModelError(
            f"{name}: damaged, its checksum is {sha256[:12]}; expected {expected[:12]}: install dualmoco again"
        )
