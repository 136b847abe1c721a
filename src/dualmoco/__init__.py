"""dualmoco: two language-specific encoders in one embedding space, by dual momentum contrast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dualmoco.core.version import VERSION as __version__

if TYPE_CHECKING:
    from dualmoco.models.model import Model


__all__ = ["__version__", "load"]


def load(path: str | Path) -> Model:
    """Opens a trained model.

    Args:
        path: A model folder, such as `runs/demo/model`.

    Returns:
        The model, ready to encode.

    Raises:
        ModelError: Not a model folder, or one with pickled weights or code in it.
    """
    from dualmoco.models.model import Model

    return Model.load(path)
