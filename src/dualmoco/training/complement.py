"""Training beside a fixed model: what is compared is the hybrid that both will make.

Encoders that are to stand beside another model, such as a table of token vectors, need not learn what it knows already.
Wrapped here they give objectives the vectors of the hybrid, of which only their own part learns. Takes a model and
encoders from `run.py`, gives encoders to `objectives.py`. Shapes: N sentences, F dimension of the fixed model, D of the
encoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.encoder import Encoder, Features
from dualmoco.models.hybrid import assemble_hybrid, join_vectors
from dualmoco.models.model import Model
from dualmoco.models.opening import open_model
from dualmoco.training.recipe import TrainConfig

FIXED = "fixed_vectors"
"""The feature of a batch that holds the fixed model's vectors of its sentences, (N, F)."""


@dataclass(frozen=True)
class FixedModel:
    """The model that encoders learn to complement; copies of an encoder share it."""

    model: Model
    weight: float  # beside 1 for the encoder

    def __deepcopy__(self, memo: dict[int, Any]) -> FixedModel:
        return self

    def encode(self, texts: Sequence[str], lang: str) -> Vectors:
        """Its unit vectors (N, F) of sentences of a language."""
        return self.model.encode(texts, lang=lang, progress=False)

    def join(self, fixed: Vectors, learning: Vectors) -> Vectors:
        """Vectors (N, F + D) of the hybrid, of its own and an encoder's."""
        return join_vectors([fixed, learning], [self.weight, 1.0])

    def beside(self, model: Model) -> Model:
        """The hybrid of it and a model of the encoders."""
        return assemble_hybrid(model.identity.name, [self.model, model], [self.weight, 1.0])


class Complement(Encoder):
    """An encoder of one language beside a fixed model: vectors (N, F + D) of unit length, the last D of which learn."""

    def __init__(self, encoder: Encoder, fixed: FixedModel, lang: str) -> None:
        super().__init__([encoder])
        self.fixed, self.lang = fixed, lang

    def forward(self, features: Features) -> Tensor:
        """Joins what `tokenize` found with what the encoder makes of the other features, as `join_vectors` does."""
        own: Tensor = self.layers[0]({name: value for name, value in features.items() if name != FIXED})  # (N, D)
        total = self.fixed.weight + 1
        parts = [features[FIXED].to(own.dtype) * math.sqrt(self.fixed.weight / total), own * math.sqrt(1 / total)]
        return normalize(torch.cat(parts, dim=1))

    def tokenize(self, texts: list[str]) -> Features:
        """The encoder's tokens, and the fixed model's vectors."""
        encoder: Any = self.layers[0]
        return {**encoder.tokenize(texts), FIXED: torch.from_numpy(self.fixed.encode(texts, self.lang))}

    @property
    def dimension(self) -> int:
        """F + D."""
        encoder: Any = self.layers[0]
        return int(encoder.dimension) + self.fixed.model.backend(self.lang).dimension


def beside(fixed: FixedModel | None, encoders: Mapping[str, Encoder]) -> dict[str, Encoder]:
    """What is compared in training, by language: each encoder beside the fixed model, or alone if there is none."""
    return {lang: Complement(encoder, fixed, lang) if fixed else encoder for lang, encoder in encoders.items()}


def open_complement(config: TrainConfig) -> FixedModel | None:
    """Opens the model that a recipe names under `complement`.

    Args:
        config: The settings.

    Returns:
        The model; None if there is none.

    Raises:
        ModelError: A model that cannot be opened, or that lacks a language of the recipe.
    """
    if not config.complement.model:
        return None
    return FixedModel(open_for_both("complement.model", config.complement.model, config), config.complement.weight)


def open_for_both(key: str, name: str, config: TrainConfig) -> Model:
    """Opens a model that a recipe names for both of its languages.

    Args:
        key: Of the recipe, for the message.
        name: Of the model.
        config: The settings.

    Returns:
        The model.

    Raises:
        ModelError: A model that cannot be opened, or that lacks a language of the recipe.
    """
    model = open_model(name)
    for lang in (config.src.lang, config.tgt.lang):
        if model.languages is not None and lang not in model.languages:
            raise ModelError(
                f"{key} {name}: has the languages {', '.join(model.languages)}; expected "
                f"{config.src.lang} and {config.tgt.lang}, those of the encoders, or a model for any language"
            )
    return model
