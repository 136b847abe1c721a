"""A fast model before a good one: sentences without a plausible partner are dropped before the good one encodes them.

Takes the two texts, gives copies in which hopeless lines are empty, so that all others keep their numbers.
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
"""Sentences a side from which the fast model looks for partners by inverted lists, if FAISS is installed: with exact
search it would be no longer fast, and the few partners that it misses are in the order of those below the floor."""


@dataclass(frozen=True)
class Prefilter:
    """A fast model, and the lowest best score of a sentence that the good one is to see."""

    model: Model
    floor: float

    @property
    def origin(self) -> dict[str, object]:
        """What pairs.json says about it."""
        return {"model": self.model.identity.name, "model_sha256": self.model.identity.sha256, "floor": self.floor}

    def apply(self, texts: Sequence[TextFile], settings: MiningSettings, work: Path, engine: Engine) -> list[TextFile]:
        """Empties the lines of sentences without a plausible partner; says how many are left.

        Args:
            texts: Of both sides.
            settings: How the fast model looks for neighbours.
            work: Folder for its vectors and neighbours, and for the copies.
            engine: Where it runs.

        Returns:
            Copies of the texts, line by line.

        Raises:
            DataError: No sentence is left on a side.
        """
        stores = encode_sides(texts, self.model, settings, work, engine)
        if not settings.approximate and min(store.count for store in stores) >= APPROXIMATE_FROM:
            settings = replace(settings, approximate=find_spec("faiss") is not None)
        forward, backward, _ = find_neighbors(stores, settings, work, engine)
        copies = []
        for place, (near, other) in enumerate(((forward, backward), (backward, forward))):
            plausible = best_candidates(near, other.mean, settings.margin)[1] >= self.floor  # (n,) by row
            if not plausible.any():
                raise DataError(
                    f"{texts[place].path}: the prefilter finds no sentence with a plausible partner; expected some: "
                    "are the languages right? Leave the prefilter out to be sure"
                )
            copy = work / f"plausible.{place}.txt"
            rows = stores[place].lines.tolist()
            with new_file(copy) as stream:
                for row, line in zip(rows, read_lines(texts[place].path), strict=True):
                    stream.write((f"{line}\n" if row != EMPTY and plausible[row] else "\n").encode("utf-8"))
            logger.info(
                "prefilter: %s of %s sentences are left of %s",
                f"{int(plausible.sum()):,}",
                f"{len(plausible):,}",
                texts[place].path,
            )
            copies.append(TextFile(copy, texts[place].lang, is_known=True))
        return copies


def make_prefilter(name: Model | str | Path, langs: tuple[str, str], settings: MiningSettings) -> Prefilter:
    """Opens a prefilter; ModelError if the model lacks a language or is not calibrated for both."""
    model = name if isinstance(name, Model) else open_model(name)
    for lang in langs:
        model.backend(lang)
    found = read_calibration(model, langs, settings)
    if found is None:
        raise ModelError(
            f"{model.identity.name}: not calibrated for {' and '.join(langs)}, margin {settings.margin.value} and "
            f"{settings.k} neighbors; expected a calibrated model as prefilter: run dualmoco calibrate on it"
        )
    return Prefilter(model, found.floor)
