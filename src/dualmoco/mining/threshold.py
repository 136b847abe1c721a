"""A threshold of highest F1, from pairs known to be translations: gold ones, or some planted among the others.

Takes `ScoredPairs` and the known pairs, gives the threshold with its interval by bootstrap. Of planted pairs both
sentences are known, so every mined pair with one of them is right or wrong. Shapes: p pairs.
"""

from __future__ import annotations

import json
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
from dualmoco.core.storage import write_json, write_text
from dualmoco.core.vectors import Floats, Ids
from dualmoco.embeddings.encode import encode_file
from dualmoco.embeddings.engine import LocalEngine
from dualmoco.embeddings.unique_lines import EMPTY, TextFile
from dualmoco.mining.io import Bitext, Problems, read_bitext
from dualmoco.mining.knn import MiningSettings, find_neighbors
from dualmoco.mining.margins import ScoredPairs, best_candidates, select_pairs
from dualmoco.models.embedded import EMBEDDED
from dualmoco.models.folder import CALIBRATION_FILE
from dualmoco.models.load import open_model
from dualmoco.models.model import Model

RESAMPLES = 200


@dataclass(frozen=True)
class Threshold:
    """A lowest score, and how well the pairs from it on agree with the gold it was chosen by."""

    value: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Calibration:
    """The threshold, how good it is on known pairs, and how much it varies when they are drawn again."""

    threshold: Threshold
    low: float
    high: float
    known: int

    def to_json(self) -> dict[str, Any]:
        """For manifests."""
        return {**asdict(self.threshold), "low": self.low, "high": self.high, "known_pairs": self.known}


def best_threshold(scores: Floats, correct: np.ndarray, gold: int) -> Threshold:
    """The lowest score to accept so that F1 against gold pairs is highest.

    Args:
        scores: Of the pairs, descending, shape (p,).
        correct: Whether each is a gold pair, shape (p,).
        gold: How many gold pairs there are, found or not.

    Returns:
        A threshold halfway between two scores; infinity, with F1 0, if no pair is right.
    """
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
    """Chooses the threshold of highest F1 on known pairs.

    Args:
        pairs: Mined pairs by descending score.
        known: For source rows whose translation is known, the target row.
        left_out: Known pairs that could not be mined, since a sentence was left out before.
        seed: Of the resamples.

    Returns:
        The threshold with its 95 % interval by bootstrap over known pairs.

    Raises:
        DataError: No known pair was mined at any score.
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
    """Best thresholds over resamples of the known pairs, those without one left out."""
    places = np.searchsorted(sources, owners)
    values = []
    for counts in draw_counts([len(sources)], RESAMPLES, seed):
        for drawn in counts:
            weights = drawn[places]
            repeated, right = np.repeat(scores, weights), np.repeat(correct, weights)
            values.append(best_threshold(repeated, right, len(sources)).value)
    found: Floats = np.array(values)
    return found[np.isfinite(found)]


FEWEST = 300
"""Pairs to calibrate on: a third stays together, of the others only one side is taken."""
FLOOR_RECALL = 0.98
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelCalibration:
    """What scores of a model mean, for two languages and one way of scoring."""

    langs: tuple[str, str]
    margin: str
    neighbors: int
    threshold: float
    """Of highest F1."""
    precision: float
    recall: float
    f1: float
    pairs: int
    """Held-out pairs among the sentences."""
    unrelated: int
    """Sentences of each side whose translation was not there."""
    floor: float
    """Of the held-out pairs that the model finds at all, 98 % score above it."""
    passing: float
    """Share of unrelated sentences whose best score is above the floor."""

    def describe(self) -> str:
        """The threshold and what it stands for, in words."""
        return (
            f"threshold {self.threshold:.4f} is the model's own: precision {100 * self.precision:.1f} %, recall "
            f"{100 * self.recall:.1f} % on {self.pairs:,} held-out pairs among {self.unrelated:,} unrelated sentences"
        )


def calibrate_model(
    name: str | Path, pairs: Bitext, *, src_lang: str = "en", tgt_lang: str = "zh", progress: bool = True
) -> ModelCalibration:
    """Chooses the threshold of a model and writes it into its folder.

    A third of the pairs is hidden among the sources of the second third and the targets of the last, which have no
    translation there. Scores are those of mining with its default margin.

    Args:
        name: A model folder or run.
        pairs: A bitext that the model was not trained on.
        src_lang: Language of the sources.
        tgt_lang: Language of the targets.
        progress: Whether to show progress bars.

    Returns:
        What was found.

    Raises:
        DataError: A bitext that cannot be read, or too few pairs.
        ModelError: A model that cannot be opened, lacks a language, or is not a folder.
        RunError: The folder cannot be written.
    """
    with showing(progress):
        model = open_model(name)
        if model.folder is None or str(name) in EMBEDDED or not Path(name).is_dir():
            raise ModelError(f"{name}: not a model folder; expected one, which the threshold is written into")
        rows = read_bitext(pairs, (src_lang, tgt_lang), None, "auto", Problems(pairs, skip=False))
        texts = list(dict.fromkeys((row.src.strip(), row.tgt.strip()) for row in rows))
        if len(texts) < FEWEST:
            raise DataError(f"{len(texts)} different pairs; expected at least {FEWEST} to calibrate on")
        found = _calibrate(model, texts, (src_lang, tgt_lang), MiningSettings())
        write_json(
            model.folder / CALIBRATION_FILE, {"model_sha256": model.identity.sha256, "calibration": asdict(found)}
        )
        return found


def read_calibration(model: Model, langs: tuple[str, str], settings: MiningSettings) -> ModelCalibration | None:
    """What scores mean for a model, if it carries that.

    Args:
        model: The model.
        langs: Of the two sides, in any order.
        settings: How pairs are scored.

    Returns:
        The calibration; None if there is none for these languages and this margin, or if the model changed since.
    """
    path = model.folder / CALIBRATION_FILE if model.folder else None
    if path is None or not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = ModelCalibration(**content["calibration"] | {"langs": tuple(content["calibration"]["langs"])})
        if content["model_sha256"] != model.identity.sha256:
            raise ValueError("of another model")
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
        stores = []
        for side, lang in enumerate(langs):
            lines = [texts[row][side] for part in (known, unrelated[side]) for row in part.tolist()]
            write_text(work / f"{side}.txt", "".join(f"{line}\n" for line in lines))
            text = TextFile(work / f"{side}.txt", lang)
            stores.append(encode_file(text, work / str(side), model, settings.form))
        forward, backward, _ = find_neighbors(stores, settings, work, LocalEngine())
    hidden = [store.lines[: len(known)] for store in stores]
    pairs = select_pairs(forward, backward, settings.margin, settings.retrieval)
    partners = np.full(stores[0].count, EMPTY)
    partners[hidden[0]] = hidden[1]
    correct = partners[pairs.src] == pairs.tgt
    threshold = best_threshold(pairs.scores, correct, len(known))
    if not correct.any():
        raise DataError(f"none of {len(known):,} held-out pairs was found; expected some: are the languages right?")
    floor = float(np.quantile(pairs.scores[correct], 1 - FLOOR_RECALL))
    best = [
        best_candidates(near, other.mean, settings.margin)[1]
        for near, other in ((forward, backward), (backward, forward))
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
