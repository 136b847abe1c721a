"""The models that come with dualmoco: names that stand for a folder of the package, so nothing is downloaded.

Their weights are int8 rows (`packing.py`); what each was trained on and how good it is stands in the card beside them.
"""

from __future__ import annotations

import json
from pathlib import Path

from dualmoco.core.errors import ModelError

DEFAULT_MODEL = "en-zh"
FAST_MODEL = "en-zh-static"
EMBEDDED = (DEFAULT_MODEL, FAST_MODEL)
HOME = Path(__file__).parents[1] / "embedded"
CHECKSUMS = "checksums.json"
"""For each model the checksum of its folder."""


def embedded_folder(name: str) -> Path:
    """The folder of an embedded model.

    Args:
        name: One of EMBEDDED.

    Returns:
        A folder that holds weights.

    Raises:
        ModelError: Not installed.
    """
    folder = HOME / name
    if not any(folder.rglob("*.safetensors")):
        raise ModelError(
            f"{name}: its weights are not in this installation of dualmoco ({folder}); expected them there: install "
            "dualmoco from a whole copy of its repository, or name another model, --model FOLDER"
        )
    return folder


def check_embedded(name: str, sha256: str) -> None:
    """Refuses an embedded model that is not what was shipped.

    Args:
        name: One of EMBEDDED.
        sha256: Of its folder as it is.

    Raises:
        ModelError: Damaged, or no checksum to compare with.
    """
    try:
        expected = str(json.loads((HOME / CHECKSUMS).read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{HOME / CHECKSUMS}: cannot be read ({error!r}); install dualmoco again") from None
    if sha256 != expected:
        raise ModelError(
            f"{name}: damaged, its checksum is {sha256[:12]}; expected {expected[:12]}: install dualmoco again"
        )
