"""A hybrid: several models combined, so that lexical and contextual vectors complement each other.

The vector of a hybrid is the concatenation of the unit vectors u_i of its parts, each scaled by the square root of its
share w_i / sum(w). This is again a unit vector, and the cosine of two of them is the weighted mean of the parts'
cosines. On disk a hybrid is a folder with `hybrid.json` and one model folder per part. A part may also be an embedded
model or an installed package, which is named and not copied. A language that only some parts have is encoded by those
parts alone. Shapes: n sentences, D dimension.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.storage import write_json
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.embedded import EMBEDDED, embedded_folder
from dualmoco.models.folder import HYBRID_FILE
from dualmoco.models.model import NO_LIMITS, STATIC, EncodeLimits, Identity, LimitedBackend, Model

HYBRID_FORMAT = "dualmoco-hybrid-1"
FEWEST_PARTS = 2
PACKAGE_PREFIX = "package:"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HybridPart:
    """One model of a hybrid."""

    folder: str  # a folder inside the hybrid's, or the name of an embedded model or package:NAME
    weight: float  # above 0; only the ratio to the other weights matters
    sha256: str  # checksum of the model
    model: str  # name of the model that was copied

    @property
    def is_package(self) -> bool:
        """Whether it is an installed package, which has no folder."""
        return self.folder.startswith(PACKAGE_PREFIX)


class HybridBackend:
    """Runs one language of all parts."""

    is_unit = is_joined = True

    def __init__(
        self, models: Sequence[Model], weights: Sequence[float], lang: str, limits: EncodeLimits = NO_LIMITS
    ) -> None:
        self.models, self.weights, self.lang = models, weights, lang
        self.parts = [model if model.has_language(lang) else None for model in models]
        backends = [model.backend(lang) for model in self.parts if model]
        networks = dict.fromkeys(backend.name for backend in backends if backend.name != STATIC)
        self.name = (
            "+".join(networks) or STATIC
        )  # the back-ends of network parts; the back-end of static parts is always static
        self.dimensions = [model.dimension for model in models]
        self.dimension = sum(self.dimensions)
        self.limits = [self._part_limits(model, limits) for model in self.parts]

    def _part_limits(self, model: Model | None, limits: EncodeLimits) -> EncodeLimits:
        """The limits of a part, without a token limit if the part has none."""
        backend = model.backend(self.lang) if model else None
        has_limit = isinstance(backend, LimitedBackend) and backend.max_tokens is not None
        return limits if has_limit else replace(limits, max_tokens=None)

    @property
    def _networks(self) -> list[LimitedBackend]:
        running = zip(self.parts, self.limits, strict=True)
        backends = [model.backend(self.lang, limits) for model, limits in running if model]
        return [backend for backend in backends if isinstance(backend, LimitedBackend)]

    @property
    def cut(self) -> int:
        """Number of sentences cut so far, by the part that cut most."""
        return max((network.cut for network in self._networks), default=0)

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens after which a part cuts a sentence; None if unlimited."""
        return min((network.max_tokens for network in self._networks if network.max_tokens), default=None)

    @property
    def positions(self) -> int | None:
        """Maximum tokens that all networks can take; None if unlimited."""
        return min((network.positions for network in self._networks if network.positions), default=None)

    def limited(self, max_tokens: int | None, batch_size: int | None) -> HybridBackend:
        """A copy with other limits for the parts that are networks."""
        return HybridBackend(self.models, self.weights, self.lang, EncodeLimits(max_tokens, batch_size))

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D) of sentences in their order; zeros where all parts return zeros."""
        parts = [
            model.encode_as(texts, self.lang, progress=False, limits=limits)
            if model
            else np.zeros((len(texts), dimension), dtype=np.float32)
            for model, limits, dimension in zip(self.parts, self.limits, self.dimensions, strict=True)
        ]
        return join_vectors(parts, self.weights)


def join_vectors(parts: Sequence[Vectors], weights: Sequence[float]) -> Vectors:
    """Joins unit vectors (n, D_i) of weighted parts to unit vectors (n, sum of D_i); zero vectors are ignored."""
    scales = [math.sqrt(weight / sum(weights)) for weight in weights]
    joined: Vectors = np.concatenate([np.float32(scale) * part for scale, part in zip(scales, parts, strict=True)], 1)
    return unit_vectors(joined)


def assemble_hybrid(name: str, models: Sequence[Model], weights: Sequence[float]) -> Model:
    """Combines several models into one, with one weight per model; ModelError if their languages differ."""
    made_of = [[model.identity.sha256, weight] for model, weight in zip(models, weights, strict=True)]
    sha256 = hashlib.sha256(json.dumps([HYBRID_FORMAT, made_of]).encode()).hexdigest()
    poolings = [model.identity.pooling for model in models]
    pooling = poolings[0] if len(set(poolings)) == 1 else " + ".join(poolings)
    languages = shared_languages(models)
    for model in models:
        model.warned_of_cuts = True  # the hybrid warns instead

    def open_backend(lang: str) -> HybridBackend:
        alone = " and ".join(model.identity.name for model in models if model.has_language(lang))
        lacking = " and ".join(model.identity.name for model in models if not model.has_language(lang))
        if lacking:
            logger.warning("%s: %s is encoded by %s alone, because %s lacks it", name, lang, alone, lacking)
        return HybridBackend(models, weights, lang)

    takes_others = any(model.languages is None for model in models)
    return Model(Identity(name, sha256, pooling), languages, open_backend, takes_others=takes_others)


def shared_languages(models: Sequence[Model]) -> list[str] | None:
    """The languages of the parts; None if every part accepts any language, ModelError if they differ."""
    asked = [model for model in models if model.languages is not None]
    for model in asked[1:]:
        if set(model.languages or ()) != set(asked[0].languages or ()):
            given, expected = (", ".join(one.languages or ()) for one in (model, asked[0]))
            raise ModelError(
                f"{model.identity.name}: has the languages {given}; expected {expected}, the languages of "
                f"{asked[0].identity.name}, or a model for any language"
            )
    return list(asked[0].languages or ()) if asked else None


def check_weights(weights: Sequence[float], count: int) -> None:
    """ConfigError if the weights do not fit `count` parts."""
    if count < FEWEST_PARTS:
        raise ConfigError(f"{count} part(s) of a hybrid; expected at least {FEWEST_PARTS} models")
    if len(weights) != count:
        raise ConfigError(f"{len(weights)} weights for {count} parts; expected one per part")
    for weight in weights:
        if not 0 < weight < math.inf:
            raise ConfigError(f"weight {weight:g}; expected a number above 0: remove parts that should not count")


def is_hybrid(folder: Path) -> bool:
    """Whether a folder holds a hybrid, judged by the names of its files."""
    return (folder / HYBRID_FILE).is_file()


def find_part_folder(hybrid: Path, part: HybridPart) -> Path:
    """The folder of a part: inside the hybrid, or the folder of an embedded model."""
    inside = hybrid / part.folder
    return embedded_folder(part.folder) if part.folder in EMBEDDED and not inside.is_dir() else inside


def write_hybrid(folder: Path, parts: Sequence[HybridPart], about: Mapping[str, Any]) -> None:
    """Writes `hybrid.json` into a folder with the parts; `about` says how the weights were chosen."""
    content = {"format": HYBRID_FORMAT, "version": VERSION, "parts": [asdict(part) for part in parts], **about}
    write_json(folder / HYBRID_FILE, content)


def read_hybrid(folder: Path) -> list[HybridPart]:
    """Reads the parts of a hybrid; ModelError if one is missing or itself a hybrid, or the weights are invalid."""
    try:
        content = json.loads((folder / HYBRID_FILE).read_text(encoding="utf-8"))
        parts = [HybridPart(**part) for part in content["parts"]]
        if content["format"] != HYBRID_FORMAT:
            raise ValueError(f"not of format {HYBRID_FORMAT}")
        for part in parts:
            if part.folder in ("", "..") or Path(part.folder).name != part.folder:
                raise ValueError(
                    f"part {part.folder!r}; expected a folder inside, one of {', '.join(EMBEDDED)}, or package:NAME"
                )
        check_weights([part.weight for part in parts], len(parts))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        raise ModelError(
            f"{folder / HYBRID_FILE}: cannot be read as a hybrid ({error}); combine the models again"
        ) from None
    for part in parts:
        _check_place(folder, part)
    return parts


def _check_place(folder: Path, part: HybridPart) -> None:
    """ModelError if a part is missing, a link or itself a hybrid."""
    if part.is_package:
        return
    place = find_part_folder(folder, part)
    if not place.is_dir():
        raise ModelError(f"{folder}: its part {part.folder} is missing; combine the models again")
    if (folder / part.folder).is_symlink():
        raise ModelError(f"{place}: a link to {place.resolve()}; expected the part itself inside the hybrid")
    if is_hybrid(place):
        raise ModelError(f"{place}: a hybrid inside a hybrid; expected single models as parts")


def check_part(part: HybridPart, found: Identity) -> None:
    """ModelError if a part has changed since the hybrid was made."""
    if found.sha256 != part.sha256:
        raise ModelError(
            f"{found.name}: checksum {found.sha256[:12]}; expected {part.sha256[:12]}, the part changed since the "
            "hybrid was made: combine the models again"
        )
