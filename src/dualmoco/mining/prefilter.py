"""The prefilter: a fast model drops sentences that are unlikely to have a translation before a good model encodes them.

It copies the two texts and empties the lines of dropped sentences, so that all other lines keep their numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.storage import new_file
from dualmoco.embeddings.engine import Engine
from dualmoco.embeddings.unique_lines import EMPTY, TextFile
from dualmoco.mining.knn import MiningSettings, encode_sides, find_neighbors
from dualmoco.mining.margins import best_candidates
from dualmoco.mining.threshold import read_calibration
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.text.files import read_lines

logger = logging.getLogger(__name__)
APPROXIMATE_FROM = 50_000
"""From this many sentences per side, the prefilter searches approximately if FAISS is installed. Exact search would be
slow, and approximate search misses about as few partners as the floor."""


@dataclass(frozen=True)
class Prefilter:
    """A fast model, and the lowest score that the best partner of a sentence must have."""

    model: Model
    floor: float

    @property
    def origin(self) -> dict[str, object]:
        """The record of the prefilter, written next to the pairs."""
        return {"model": self.model.identity.name, "model_sha256": self.model.identity.sha256, "floor": self.floor}

    def apply(self, texts: Sequence[TextFile], settings: MiningSettings, work: Path, engine: Engine) -> list[TextFile]:
        """Copies both texts into `work` and empties the lines of sentences without a plausible partner."""
        stores = encode_sides(texts, self.model, settings, work, engine)
        if not settings.approximate and min(store.count for store in stores) >= APPROXIMATE_FROM:
            settings = replace(settings, approximate=find_spec("faiss") is not None)
        src_near, tgt_near, _ = find_neighbors(stores, settings, work, engine)
        copies = []
        for place, (near, other) in enumerate(((src_near, tgt_near), (tgt_near, src_near))):
            plausible = best_candidates(near, other.mean, settings.margin)[1] >= self.floor  # (n,) by row
            text = texts[place]
            if not plausible.any():
                raise DataError(
                    f"{text.path}: the prefilter finds no sentence with a plausible partner; expected some: are the "
                    "languages right? If they are, mine without the prefilter"
                )
            copy = work / f"plausible.{place}.txt"
            with new_file(copy) as stream:
                for row, line in zip(stores[place].lines.tolist(), read_lines(text.path), strict=True):
                    stream.write((f"{line}\n" if row != EMPTY and plausible[row] else "\n").encode("utf-8"))
            kept, total = f"{int(plausible.sum()):,}", f"{len(plausible):,}"
            logger.info("prefilter: kept %s of %s sentences in %s", kept, total, text.path)
            copies.append(TextFile(copy, text.lang, is_known=True))
        return copies


def make_prefilter(name: Model | str | Path, langs: tuple[str, str], settings: MiningSettings) -> Prefilter:
    """Opens a prefilter; ModelError if the model lacks a language or is not calibrated for both."""
    model = name if isinstance(name, Model) else open_model(name)
    found = read_calibration(model, (model.language(langs[0]), model.language(langs[1])), settings)
    if found is None:
        raise ModelError(
            f"{model.identity.name}: not calibrated for {' and '.join(langs)}, margin {settings.margin.value} and "
            f"{settings.k} neighbors; expected a calibrated model as prefilter: run dualmoco calibrate on it"
        )
    return Prefilter(model, found.floor)
