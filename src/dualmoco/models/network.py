"""A neural model as evaluation takes it: opened from a folder or hub name, its vectors as the model makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.encoder import Encoder, encode_texts
from dualmoco.models.folder import folder_sha256
from dualmoco.models.hub import fetch_model
from dualmoco.models.identity import Identity, check_language
from dualmoco.models.saved import OpenedModel, open_model

BATCH_SIZE = 64


class NetworkEncoder:
    """One network for any language, or one for each."""

    def __init__(self, opened: OpenedModel, identity: Identity, prompt: str = "") -> None:
        self.identity = identity
        self.prompt = prompt
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for encoder in _networks(opened):
            encoder.to(device)
        self.encoders = opened.encoders

    @property
    def languages(self) -> Sequence[str] | None:
        """The languages of a model with one network a language; None for a single network."""
        return list(self.encoders) if isinstance(self.encoders, dict) else None

    def encode(self, texts: Sequence[str], *, lang: str) -> Vectors:
        """Encodes sentences of one language.

        Args:
            texts: The sentences.
            lang: Their language.

        Returns:
            Vectors (n, D), of unit length only if the model makes them so.

        Raises:
            ModelError: The model does not have the language.
        """
        check_language(self, lang)
        encoder = self.encoders[lang] if isinstance(self.encoders, dict) else self.encoders
        vectors: Vectors = encode_texts(encoder, [self.prompt + text for text in texts], BATCH_SIZE).numpy()
        return vectors


def open_network(name: str, pooling: str | None = None, *, prompt: str = "", title: str = "") -> NetworkEncoder:
    """Opens a model of dualmoco, sentence-transformers or transformers.

    Args:
        name: Folder, run folder or hub name.
        pooling: mean, max or cls in place of the model's own.
        prompt: Put before every sentence; empty for the one that the model names, if any.
        title: What to call it in results; empty for its name.

    Returns:
        The encoder, on the GPU if there is one.

    Raises:
        ModelError: No such folder, or a model that cannot be loaded safely or in this way.
    """
    folder = _model_folder(name)
    opened = open_model(str(folder), pooling)
    prompt = prompt or opened.prompt
    described = f"{opened.pooling}, prompt {prompt!r}" if prompt else opened.pooling
    return NetworkEncoder(opened, Identity(title or name, folder_sha256(folder), described), prompt)


def _networks(opened: OpenedModel) -> list[Encoder]:
    return list(opened.encoders.values()) if isinstance(opened.encoders, dict) else [opened.encoders]


def _model_folder(name: str) -> Path:
    """The folder that a name stands for: itself, the model in a run's, or what the hub gives."""
    path = Path(name)
    if path.is_dir():
        return path / "model" if (path / "config.yaml").is_file() and (path / "model").is_dir() else path
    if path.is_file():
        raise ModelError(f"{name}: a file; expected a model folder such as runs/demo/model, or words:{name}")
    if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
        raise ModelError(f"{name}: no such folder; expected a model folder such as runs/demo/model, or a hub name")
    return fetch_model(name)
