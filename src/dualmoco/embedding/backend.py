"""What encodes one language's sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dualmoco.evaluation.encoder import check_language
from dualmoco.evaluation.opening import open_encoder
from dualmoco.vectors import Vectors, unit_vectors


class Backend(Protocol):
    """Turns sentences of one language into unit vectors."""

    name: str
    sha256: str
    width: int

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D)."""


class EncoderBackend:
    """Any encoder that evaluation takes."""

    def __init__(self, model: str, lang: str) -> None:
        self.encoder, self.lang, self.name = open_encoder(model), lang, "torch"
        check_language(self.encoder, lang)
        self.sha256 = self.encoder.identity.sha256
        self.width = self.encoder.encode(["a"], lang=lang).shape[1]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D)."""
        return unit_vectors(self.encoder.encode(texts, lang=self.lang))


def open_backend(model: str, lang: str, name: str = "auto", *, threads: int | None = None) -> Backend:
    """Opens a back-end."""
    return EncoderBackend(model, lang)
