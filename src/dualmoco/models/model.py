"""A trained model in use: sentences of either language in, unit vectors and similarities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.encoder import Encoder, encode_texts
from dualmoco.models.saved import load_encoders


class Model:
    """Encoders of several languages that share a space."""

    def __init__(self, encoders: Mapping[str, Encoder]) -> None:
        self.encoders = dict(encoders)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Opens a model folder; see `dualmoco.load`."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls({lang: encoder.to(device) for lang, encoder in load_encoders(path).items()})

    @property
    def languages(self) -> list[str]:
        """The languages that `encode` takes."""
        return list(self.encoders)

    def encode(self, sentences: str | Sequence[str], *, lang: str, batch_size: int = 64) -> Vectors:
        """Encodes sentences of one language.

        Args:
            sentences: One sentence or several.
            lang: Their language, one of `languages`.
            batch_size: Sentences encoded at once.

        Returns:
            Unit vectors of shape (n, D), one row a sentence.

        Raises:
            ModelError: The model does not have the language.
        """
        if lang not in self.encoders:
            raise ModelError(f"language {lang!r} is not in this model; expected one of {', '.join(self.encoders)}")
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        vectors: Vectors = encode_texts(self.encoders[lang], texts, batch_size).numpy()
        return vectors

    def similarity(self, a: Vectors, b: Vectors) -> Vectors:
        """Cosine similarities of all rows of `a` (n, D) with all rows of `b` (m, D), shape (n, m)."""
        return np.asarray(a @ b.T)
