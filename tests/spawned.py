"""What a spawned process does for a test: it imports this module, not the test with all that the test imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualmoco.core.vectors import Vectors
from dualmoco.models.load import open_model
from dualmoco.models.model import Model


def encode(model: Model | Path, texts: Sequence[str]) -> Vectors:
    """Vectors of English sentences, from a model that came pickled or that is opened here."""
    return (open_model(model) if isinstance(model, Path) else model).encode(texts, lang="en", progress=False)
