"""Thresholds of highest F1: for one mining job, from known pairs, and for a model, from held-out pairs.

`calibrate` judges mined pairs by gold pairs, or by pairs planted in the texts. `calibrate_model` stores a threshold in
the model's folder, which mining uses by default. Shapes: p pairs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.progress import showing
from dualmoco.core.stats import draw_counts, percentile_interval
from dualmoco.core.storage import read_json, write_json
from dualmoco.core.vectors import Floats, Ids
from dualmoco.embeddings.engine import LocalEngine
from dualmoco.embeddings.unique_lines import EMPTY
from dualmoco.mining.io import Bitext, Problems, as_text_file, read_bitext
from dualmoco.mining.knn import MiningSettings, encode_sides, find_neighbors
from dualmoco.mining.margins import ScoredPairs, best_candidates, select_pairs
from dualmoco.models.embedded import EMBEDDED
from dualmoco.models.folder import CALIBRATION_FILE
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, Model

THRESHOLD_RESAMPLES = 200
FEWEST_HELD_OUT = 300  # pairs to calibrate a model on
FLOOR_RECALL = 0.98  # share of the pairs found that score above the floor of a prefilter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Threshold:
    """A lowest score, and the quality of the pairs above it on the known pairs it was chosen by."""

    value: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Calibration:
    """A threshold with its 95 % bootstrap interval, and the number of known pairs."""

    threshold: Threshold
    low: float
    high: float
    known: int

    def to_json(self) -> dict[str, Any]:
        """The calibration as it is written next to the pairs."""
        return {**asdict(self.threshold), "low": self.low, "high": self.high, "known_pairs": self.known}


def best_threshold(scores: Floats, correct: np.ndarray, gold: int) -> Threshold:
    """The F1-best threshold, halfway between two descending scores (p,); infinity, with F1 0, if no pair is correct."""
    hits = np.cumsum(correct)  # (p,)
    last = np.append(scores[1:] < scores[:-1], True)[: len(scores)]  # equal scores are accepted together
    f1 = np.where(last, 2 * hits / (np.arange(1, len(hits) + 1) + gold), 0.0)
    if not len(f1) or f1.max() == 0:
        return Threshold(np.inf, 0.0, 0.0, 0.0)
    place = int(f1.argmax())
    following = scores[place + 1] if place + 1 < len(scores) else scores[place]
    value = float(scores[place] + following) / 2 if np.isfinite(following) else float(scores[place])
    return Threshold(value, float(hits[place] / (place + 1)), float(hits[place] / gold), float(f1[place]))


def calibrate(pairs: ScoredPairs, known: dict[int, int], left_out: int = 0, seed: int = 0) -> Calibration:
    """Chooses the threshold of highest F1 on known pairs, the target row of each source row.

    A mined pair is judged if one of its sentences belongs to a known pair. `left_out` known pairs were not mined
    because a prefilter left a sentence out.
    """
    targets = {target: source for source, target in known.items()}
    src, tgt = pairs.src.tolist(), pairs.tgt.tolist()
    owner = np.array([a if a in known else targets.get(b, -1) for a, b in zip(src, tgt, strict=True)])
    judged = np.flatnonzero(owner >= 0)
    correct = np.array([known.get(src[place]) == tgt[place] for place in judged], dtype=bool)
    if not correct.any():
        raise DataError(f"none of {len(known):,} known pairs was mined; expected some: are the languages right?")
    scores, owners = pairs.scores[judged], owner[judged]
    chosen = best_threshold(scores, correct, len(known) + left_out)
    values = _resampled(scores, correct, owners, np.array(sorted(known)), seed)
    return Calibration(chosen, *percentile_interval(values), len(known) + left_out)


def _resampled(scores: Floats, correct: np.ndarray, owners: Ids, sources: Ids, seed: int) -> Floats:
    """Best thresholds of resampled known pairs; resamples without a threshold are left out."""
    places = np.searchsorted(sources, owners)
    values = []
    for counts in draw_counts([len(sources)], THRESHOLD_RESAMPLES, seed):
        for drawn in counts:
            weights = drawn[places]
            repeated, right = np.repeat(scores, weights), np.repeat(correct, weights)
            values.append(best_threshold(repeated, right, len(sources)).value)
    found: Floats = np.array(values)
    return found[np.isfinite(found)]


@dataclass(frozen=True)
class ModelCalibration:
    """The threshold of a model for two languages and one margin, and its quality on held-out pairs."""

    langs: tuple[str, str]
    margin: str
    neighbors: int
    threshold: float
    precision: float
    recall: float
    f1: float
    pairs: int  # number of held-out pairs
    unrelated: int  # number of sentences per side without a translation
    floor: float  # score that 98 % of the held-out pairs found by the model exceed
    passing: float  # share of unrelated sentences whose best score is above the floor

    def describe(self) -> str:
        """The threshold and its quality, in words."""
        return (
            f"threshold {self.threshold:.4f} is the model's own: precision {100 * self.precision:.1f} %, recall "
            f"{100 * self.recall:.1f} % on {self.pairs:,} held-out pairs among {self.unrelated:,} unrelated sentences"
        )


def calibrate_model(
    name: str | Path,
    pairs: Bitext,
    *,
    src_lang: str = "en",
    tgt_lang: str = "zh",
    backend: str = AUTO,
    progress: bool = True,
) -> ModelCalibration:
    """Chooses the default threshold of a model and writes it into the model's folder.

    One third of the pairs is mined among the sources of the second third and the targets of the last third, which are
    not translations of each other. The margin is the default of mining.

    Args:
        name: Folder of a model or of a training run.
        pairs: Bitext that the model was not trained on.
        src_lang: Language of the sources.
        tgt_lang: Language of the targets.
        backend: Back-end that runs the model: auto, torch, static, int8, onnx or onnx-int8.
        progress: Whether to show progress bars.

    Raises:
        DataError: The bitext cannot be read, or has too few pairs.
        ModelError: The model cannot be opened, lacks a language, or is not a folder.
        RunError: The folder is not writable.
    """
    with showing(progress):
        model = open_model(name, backend)
        if model.folder is None or str(name) in EMBEDDED or not Path(name).is_dir():
            raise ModelError(f"{name}: not a model folder; expected a folder to write the threshold into")
        rows = read_bitext(pairs, (src_lang, tgt_lang), None, "auto", Problems(pairs, skip=False))
        texts = list(dict.fromkeys((row.src.strip(), row.tgt.strip()) for row in rows))
        if len(texts) < FEWEST_HELD_OUT:
            raise DataError(f"{len(texts)} different pairs; expected at least {FEWEST_HELD_OUT} to calibrate on")
        found = _calibrate(model, texts, (src_lang, tgt_lang), MiningSettings())
        write_json(
            model.folder / CALIBRATION_FILE, {"model_sha256": model.identity.sha256, "calibration": asdict(found)}
        )
        return found


def read_calibration(model: Model, langs: tuple[str, str], settings: MiningSettings) -> ModelCalibration | None:
    """The calibration of a model; None if it has none for these languages and this margin, or the model has changed."""
    path = model.folder / CALIBRATION_FILE if model.folder else None
    if path is None or not path.is_file():
        return None
    try:
        content = read_json(path)
        found = ModelCalibration(**content["calibration"] | {"langs": tuple(content["calibration"]["langs"])})
        if content["model_sha256"] != model.identity.sha256:
            raise ValueError("it belongs to another model")
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: not used (%s); run dualmoco calibrate again", path, error)
        return None
    fits = set(found.langs) == set(langs) and (found.margin, found.neighbors) == (settings.margin.value, settings.k)
    return found if fits else None


def _calibrate(
    model: Model, texts: Sequence[tuple[str, str]], langs: tuple[str, str], settings: MiningSettings
) -> ModelCalibration:
    order = np.random.default_rng(0).permutation(len(texts))
    known, *unrelated = np.array_split(order, 3)
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as folder:
        work = Path(folder)
        sides = []
        for side, lang in enumerate(langs):
            lines = [texts[row][side] for part in (known, unrelated[side]) for row in part.tolist()]
            sides.append(as_text_file(lines, lang, work / f"{side}.txt"))
        stores = encode_sides(sides, model, settings, work, LocalEngine())
        src_near, tgt_near, _ = find_neighbors(stores, settings, work, LocalEngine())
    hidden = [store.lines[: len(known)] for store in stores]
    pairs = select_pairs(src_near, tgt_near, settings.margin, settings.retrieval)
    partners = np.full(stores[0].count, EMPTY)
    partners[hidden[0]] = hidden[1]
    correct = partners[pairs.src] == pairs.tgt
    threshold = best_threshold(pairs.scores, correct, len(known))
    if not correct.any():
        raise DataError(f"none of {len(known):,} held-out pairs was found; expected some: are the languages right?")
    floor = float(np.quantile(pairs.scores[correct], 1 - FLOOR_RECALL))
    best = [
        best_candidates(near, other.mean, settings.margin)[1]
        for near, other in ((src_near, tgt_near), (tgt_near, src_near))
    ]
    others = np.concatenate([scores[store.lines[len(known) :]] for scores, store in zip(best, stores, strict=True)])
    return ModelCalibration(
        langs,
        settings.margin.value,
        settings.k,
        round(threshold.value, 4),
        round(threshold.precision, 4),
        round(threshold.recall, 4),
        round(threshold.f1, 4),
        len(known),
        len(unrelated[0]),
        round(floor, 4),
        round(float((others >= floor).mean()), 4),
    )
