"""A hybrid: several models side by side, so that word-exact and contextual vectors support each other.

Unit vectors u_i of the parts, each scaled by the square root of its share w_i / sum(w), stand one after the other. That
makes a unit vector again, and the cosine of two of them is the weighted mean of the parts' cosines. On disk a hybrid is
`hybrid.json` and one sub-folder a part, each an ordinary model folder. Shapes: n sentences, D dimension.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.storage import write_json
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.core.version import VERSION
from dualmoco.models.model import STATIC, Identity, Model

HYBRID = "hybrid.json"
HYBRID_FORMAT = "dualmoco-hybrid-1"
FEWEST_PARTS = 2


@dataclass(frozen=True)
class HybridPart:
    """One model of a hybrid."""

    folder: str
    """Its sub-folder."""
    weight: float
    """Above 0; only the ratio to the others' matters."""
    sha256: str
    """Of the model."""
    model: str
    """What it was made from."""


class HybridBackend:
    """Runs one language of all parts.

    Args:
        models: The parts.
        weights: One a part.
        lang: The language.
    """

    is_unit = True

    def __init__(self, models: Sequence[Model], weights: Sequence[float], lang: str) -> None:
        self.models, self.weights, self.lang = models, weights, lang
        backends = [model.backend(lang) for model in models]
        networks = dict.fromkeys(backend.name for backend in backends if backend.name != STATIC)
        self.name = "+".join(networks) or STATIC  # what runs the networks: a table stays a table beside any of them
        self.dimension = sum(backend.dimension for backend in backends)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, of unit length; zeros where all parts give zeros."""
        return join_vectors(
            [model.encode(texts, lang=self.lang, progress=False) for model in self.models], self.weights
        )


def join_vectors(parts: Sequence[Vectors], weights: Sequence[float]) -> Vectors:
    """The vectors of a hybrid.

    Args:
        parts: Unit vectors (n, D_i) of each part.
        weights: One a part.

    Returns:
        Unit vectors (n, D), D being the sum of all D_i; where a part has no direction the others alone decide.
    """
    scales = [math.sqrt(weight / sum(weights)) for weight in weights]
    joined: Vectors = np.concatenate([np.float32(scale) * part for scale, part in zip(scales, parts, strict=True)], 1)
    return unit_vectors(joined)


def assemble_hybrid(name: str, models: Sequence[Model], weights: Sequence[float]) -> Model:
    """Makes one model of several.

    Args:
        name: What to call it in results.
        models: The parts.
        weights: One a part.

    Returns:
        The hybrid, of the languages of its parts.

    Raises:
        ModelError: Parts of different languages.
    """
    made_of = [[model.identity.sha256, weight] for model, weight in zip(models, weights, strict=True)]
    sha256 = hashlib.sha256(json.dumps([HYBRID_FORMAT, made_of]).encode()).hexdigest()
    poolings = [model.identity.pooling for model in models]
    pooling = poolings[0] if len(set(poolings)) == 1 else " + ".join(poolings)
    languages = shared_languages(models)
    return Model(Identity(name, sha256, pooling), languages, lambda lang: HybridBackend(models, weights, lang))


def shared_languages(models: Sequence[Model]) -> list[str] | None:
    """The languages that all parts have.

    Args:
        models: The parts.

    Returns:
        The languages; None if every part takes text of any language.

    Raises:
        ModelError: Parts of different languages.
    """
    asked = [model for model in models if model.languages is not None]
    for model in asked[1:]:
        if set(model.languages or ()) != set(asked[0].languages or ()):
            given, expected = (", ".join(one.languages or ()) for one in (model, asked[0]))
            raise ModelError(
                f"{model.identity.name}: has the languages {given}; expected {expected}, those of "
                f"{asked[0].identity.name}, or a model for any language"
            )
    return list(asked[0].languages or ()) if asked else None


def check_weights(weights: Sequence[float], count: int) -> None:
    """Refuses weights that make no hybrid.

    Args:
        weights: As they were given.
        count: How many parts there are.

    Raises:
        ConfigError: One part only, another number of weights than of parts, or a weight of 0 or below.
    """
    if count < FEWEST_PARTS:
        raise ConfigError(f"{count} part(s) of a hybrid; expected at least {FEWEST_PARTS} models")
    if len(weights) != count:
        raise ConfigError(f"{len(weights)} weights for {count} parts; expected one a part")
    for weight in weights:
        if not 0 < weight < math.inf:
            raise ConfigError(f"weight {weight:g}; expected a number above 0: leave out a part that shall not count")


def is_hybrid(folder: Path) -> bool:
    """Whether a folder holds a hybrid, as far as its files' names say."""
    return (folder / HYBRID).is_file()


def write_hybrid(folder: Path, parts: Sequence[HybridPart], about: Mapping[str, Any]) -> None:
    """Makes a hybrid of a folder that holds its parts already.

    Args:
        folder: The folder.
        parts: What is in it.
        about: How the weights came about, for people.

    Raises:
        RunError: The disk is full or not writable.
    """
    content = {"format": HYBRID_FORMAT, "version": VERSION, "parts": [asdict(part) for part in parts], **about}
    write_json(folder / HYBRID, content)


def read_hybrid(folder: Path) -> list[HybridPart]:
    """The parts of a hybrid.

    Args:
        folder: Of `write_hybrid`.

    Returns:
        Its parts, each in a sub-folder that is there.

    Raises:
        ModelError: Not such a folder, a part that is missing or itself a hybrid, or weights that make no hybrid.
    """
    again = "combine the models again"
    try:
        content = json.loads((folder / HYBRID).read_text(encoding="utf-8"))
        parts = [HybridPart(**part) for part in content["parts"]]
        if content["format"] != HYBRID_FORMAT or any(Path(part.folder).name != part.folder for part in parts):
            raise ValueError(f"not of format {HYBRID_FORMAT}")
        check_weights([part.weight for part in parts], len(parts))
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise ModelError(f"{folder / HYBRID}: cannot be read as a hybrid ({error}); {again}") from None
    for part in parts:
        if not (folder / part.folder).is_dir():
            raise ModelError(f"{folder}: its part {part.folder} is missing; {again}")
        if is_hybrid(folder / part.folder):
            raise ModelError(f"{folder / part.folder}: a hybrid inside a hybrid; expected single models as parts")
    return parts


def check_part(part: HybridPart, found: Identity) -> None:
    """Refuses a part that is not what it was; ModelError names it."""
    if found.sha256 != part.sha256:
        raise ModelError(
            f"{found.name}: checksum {found.sha256[:12]}; expected {part.sha256[:12]}, the part changed since the "
            "hybrid was made: combine the models again"
        )
