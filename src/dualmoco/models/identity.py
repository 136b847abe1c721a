"""What evaluation asks of an encoder, whoever made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors


@dataclass(frozen=True)
class Identity:
    """Which encoder made a number."""

    name: str
    sha256: str
    """Of everything that decides its vectors: weights, vocabulary, settings."""
    pooling: str = "own"
    """How token vectors become a sentence vector; `own` if the model says so itself."""
    postprocessing: str = "none"
    """What was done to the vectors afterwards."""


class SentenceEncoder(Protocol):
    """Anything that turns sentences into vectors."""

    @property
    def identity(self) -> Identity:
        """Its name and checksum."""

    @property
    def languages(self) -> Sequence[str] | None:
        """The languages it knows apart and must be asked by; None if one encoder takes text of any language."""

    def encode(self, texts: Sequence[str], *, lang: str) -> Vectors:
        """Vectors (n, D) of n sentences of one language, not necessarily of unit length."""


def check_language(encoder: SentenceEncoder, lang: str) -> None:
    """Refuses a language that an encoder does not have.

    Args:
        encoder: Any encoder.
        lang: The language of some sentences.

    Raises:
        ModelError: The encoder must be asked by language and does not have this one.
    """
    if encoder.languages is not None and lang not in encoder.languages:
        known = ", ".join(encoder.languages)
        raise ModelError(f"{encoder.identity.name}: has no language {lang!r}; expected one of {known}")
