"""Thresholds: for one mining job, from gold pairs, planted pairs or only the scores, and for a model.

The precision of a threshold is the precision of the written pairs. With gold pairs it is measured. Otherwise it is
estimated from the scores of all candidates, see `precision`, and planted pairs improve the estimate. `calibrate_model`
stores the known scores for the estimate, and a threshold for small texts, in the model's folder. Shapes: p pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.config_loader import parse_choice
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import counting, showing
from dualmoco.core.stats import binomial_interval
from dualmoco.core.storage import check_replaceable, read_json, write_json
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.data.config import OnError
from dualmoco.mining.io import Bitext, Problems, read_bitext
from dualmoco.mining.judgements import Judgements, read_judged
from dualmoco.mining.knn import MiningSettings
from dualmoco.mining.margins import Margin, ScoredPairs, best_candidates, select_pairs
from dualmoco.mining.pair_columns import read_pair_columns
from dualmoco.mining.precision import KnownScores, fit_mixture, precision_interval
from dualmoco.models.embedded import EMBEDDED
from dualmoco.models.folder import CALIBRATION_FILE, MODEL_RECORD
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, Model
from dualmoco.search.exact import COSINE_PLACES, nearest_both_ways

DEFAULT_PRECISION = 0.9  # default precision of the written pairs
CALIBRATED_SHARE = 0.03  # share of lines with a translation that a model's threshold is chosen for
CALIBRATION_ROUNDS = 10
FEWEST_HELD_OUT = 300  # minimum pairs to calibrate a model on
MOST_HELD_OUT = 30_000
PRECISION_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98)
KNOWN_QUANTILES = np.arange(1, 100) / 100
FLOOR_RECALL = 0.98  # share of found pairs that score above the floor of a prefilter
WRONG_PASSING = 0.01  # share of random pairs that the cosine threshold of a bitext accepts
RANDOM_PARTNERS = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Threshold:
    """A lowest score, and the quality of the pairs above it."""

    value: float
    precision: float
    recall: float
    f1: float


def best_threshold(scores: Floats, correct: np.ndarray, gold: float) -> Threshold:
    """The F1-best threshold of descending scores (p,); infinity, with F1 0, if no pair is correct.

    Args:
        scores: Descending scores (p,).
        correct: Whether each pair is correct, or the probability of it (p,).
        gold: Number of correct pairs, found or not.
    """
    hits = np.cumsum(correct)  # (p,)
    f1 = np.where(_ends(scores), 2 * hits / (np.arange(1, len(hits) + 1) + gold), 0.0)
    if not len(f1) or f1.max() == 0:
        return Threshold(np.inf, 0.0, 0.0, 0.0)
    return _threshold_at(int(f1.argmax()), scores, hits, gold)


def precise_threshold(scores: Floats, correct: np.ndarray, gold: float, precision: float) -> Threshold:
    """The lowest threshold with at least this precision; above all scores if there is none. See `best_threshold`."""
    hits = np.cumsum(correct)
    enough = np.flatnonzero(_ends(scores) & (hits >= precision * np.arange(1, len(hits) + 1)))
    if not len(enough):
        highest = float(scores[0]) if len(scores) else 0.0
        return Threshold(highest + 10.0**-COSINE_PLACES, 0.0, 0.0, 0.0)
    return _threshold_at(int(enough[-1]), scores, hits, gold)


def _ends(scores: Floats) -> np.ndarray:
    """Possible positions of a threshold: equal scores are accepted together."""
    return np.append(scores[1:] < scores[:-1], True)[: len(scores)]


def _threshold_at(place: int, scores: Floats, hits: Floats, gold: float) -> Threshold:
    """The threshold halfway between a score and the next lower one."""
    following = scores[place + 1] if place + 1 < len(scores) else scores[place]
    value = float(scores[place] + following) / 2 if np.isfinite(following) else float(scores[place])
    precision, recall = float(hits[place] / (place + 1)), float(hits[place] / gold)
    return Threshold(value, precision, recall, float(2 * hits[place] / (place + 1 + gold)))


@dataclass(frozen=True)
class Calibration:
    """The threshold of one mining job, with the 95 % interval of its precision."""

    threshold: Threshold
    low: float
    high: float
    basis: str  # how it was chosen: gold, planted or scores
    known: int  # number of gold or planted pairs
    translations: float  # number of translations in the texts, estimated unless there are gold pairs
    lines: int  # number of sentences of the shorter text

    def to_json(self) -> dict[str, Any]:
        """The record of the calibration, written next to the pairs."""
        found = {**asdict(self.threshold), "precision_low": self.low, "precision_high": self.high}
        return {**found, "basis": self.basis, "known_pairs": self.known, "translations": round(self.translations, 1)}

    def describe(self) -> str:
        """The threshold and its quality, in words."""
        chosen, share = self.threshold, f"{100 * self.translations / self.lines:.1f} % of the lines have a translation"
        if not chosen.precision:
            return f"no threshold reaches the requested precision; about {share}"
        precision = f"precision {100 * chosen.precision:.1f} % [{100 * self.low:.0f}, {100 * self.high:.0f}]"
        recall = f"recall {100 * chosen.recall:.1f} %, F1 {100 * chosen.f1:.1f} %"
        if self.basis == "gold":
            basis = f"measured with {self.known:,} gold pairs"
            return f"threshold {chosen.value:.4f}: {precision}, {recall}, {basis}"
        if self.basis == "planted":
            basis = f"estimated from all scores and {self.known:,} planted pairs, half of them without their partners"
            return f"threshold {chosen.value:.4f}: {precision}, {recall}, {basis}; about {share}"
        return f"threshold {chosen.value:.4f}: {precision}, estimated from all scores; about {share}"


def judge_by_gold(
    pairs: ScoredPairs, gold: set[tuple[int, int]], lines: int, *, left_out: int = 0, precision: float | None = None
) -> Calibration:
    """Chooses the threshold by gold pairs of rows, which are all translations of the texts.

    Every mined pair that is not gold is wrong. `left_out` gold pairs were not mined because a prefilter dropped a
    sentence. The threshold has the highest F1, or at least the requested precision.
    """
    correct = np.array([pair in gold for pair in zip(pairs.src.tolist(), pairs.tgt.tolist(), strict=True)], dtype=bool)
    if not correct.any():
        raise DataError(f"none of {len(gold):,} gold pairs was mined; expected some: are the languages right?")
    total = len(gold) + left_out
    chosen = _choose(pairs.scores, correct, total, precision)
    accepted = int((pairs.scores >= chosen.value).sum())
    interval = binomial_interval(round(chosen.precision * accepted), accepted)
    return Calibration(chosen, *interval, "gold", total, total, lines)


@dataclass(frozen=True)
class PlantedRows:
    """Rows of sentences that were planted in the texts: pairs, and sentences without their partners."""

    partners: dict[int, int]  # target row of each source row
    src: frozenset[int]  # all planted rows
    tgt: frozenset[int]
    count: int  # number of planted pairs


def judge_by_planted(
    pairs: ScoredPairs, planted: PlantedRows, lines: int, stored: KnownScores | None, *, precision: float | None = None
) -> Calibration:
    """Chooses the threshold by planted sentences, whose pairs are known to be right or wrong; see `judge_by_scores`.

    Recall is measured on the planted pairs.
    """
    src, tgt = pairs.src.tolist(), pairs.tgt.tolist()
    right = np.array([planted.partners.get(a, -1) == b for a, b in zip(src, tgt, strict=True)], dtype=bool)
    touching = [(a in planted.src) + (b in planted.tgt) for a, b in zip(src, tgt, strict=True)]
    touched, half = np.array(touching) > 0, np.array(touching) == 1
    if not right.any():
        raise DataError(
            f"none of {len(planted.partners):,} planted pairs was mined; expected some: are the languages right?"
        )
    known = KnownScores(pairs.scores[right], pairs.scores[half])
    if not known.is_enough and stored is not None:
        known = KnownScores(
            *(np.concatenate(sides) for sides in ((known.right, stored.right), (known.wrong, stored.wrong)))
        )
    if not known.is_enough:
        raise DataError(
            f"{len(known.right)} planted pairs were found and {len(known.wrong)} planted lines mispaired; expected at "
            "least 10 each: plant more pairs, 100 or more"
        )
    own = pairs.take(~touched)
    if not len(own):
        raise DataError("no pairs between lines of the texts; expected some besides the planted ones")
    alone, known = known.wrong, _without_accidents(own.scores, known)
    accidental = _accidental_share(own.scores, known, alone)
    recalls = right.sum() / len(planted.partners)
    found = _judge(own.scores, known, precision, lines, accidental=accidental, found=float(recalls))
    recall = float((pairs.scores[right] >= found.threshold.value).sum() / len(planted.partners))
    chosen = found.threshold
    f1 = 2 * chosen.precision * recall / max(chosen.precision + recall, 1e-9)
    return replace(found, threshold=replace(chosen, recall=recall, f1=f1), basis="planted", known=planted.count)


def _without_accidents(scores: Floats, known: KnownScores) -> KnownScores:
    """Known scores without wrong pairs that are probably right: accidental translations."""
    wrong = np.sort(known.wrong)[::-1]
    rest = KnownScores(known.right, wrong[fit_mixture(scores, known).probabilities(wrong) < 0.5])
    return rest if rest.is_enough else known


def _accidental_share(scores: Floats, known: KnownScores, alone: Floats) -> float:
    """Share of the lines without a partner, of these scores, that have a translation in the other text by accident."""
    mixture = fit_mixture(scores, known)
    probabilities = mixture.probabilities(scores)
    wrong = 1 - probabilities
    expected = float(wrong @ probabilities / max(wrong.sum(), 1e-9))  # odds of a wrong pair
    observed = float(mixture.probabilities(np.sort(alone)[::-1]).mean())
    return max(0.0, observed - expected)


def judge_by_scores(
    pairs: ScoredPairs, stored: KnownScores, lines: int, *, precision: float | None = None
) -> Calibration:
    """Chooses the threshold by the scores of all candidates, starting from the scores that are stored in the model."""
    return _judge(pairs.scores, stored, precision or DEFAULT_PRECISION, lines)


def _judge(
    scores: Floats,
    known: KnownScores,
    precision: float | None,
    lines: int,
    *,
    accidental: float = 0.0,
    found: float = 1.0,
) -> Calibration:
    """A threshold by estimated probabilities; `found` is the share of translations that are candidates."""
    mixture = fit_mixture(scores, known)
    probabilities = mixture.probabilities(scores)
    right = float(probabilities.sum())
    scale = max(0.0, 1 - accidental * (len(scores) - right) / right) if right else 1.0
    total = max(scale * right / found, 1e-9)
    chosen = _choose(scores, scale * probabilities, total, precision)
    accepted = int((scores >= chosen.value).sum())
    interval = precision_interval(scores, known, mixture, accepted, scale) if accepted else (0.0, 0.0)
    return Calibration(chosen, *interval, "scores", 0, total, lines)


def _choose(scores: Floats, correct: np.ndarray, gold: float, precision: float | None) -> Threshold:
    if precision is None:
        return best_threshold(scores, correct, gold)
    return precise_threshold(scores, correct, gold, precision)


@dataclass(frozen=True)
class ModelCalibration:
    """Thresholds of a model for two languages and one margin, and known scores, measured on held-out pairs."""

    langs: tuple[str, str]
    margin: str
    neighbors: int
    share: float  # share of lines with a translation that the threshold is chosen for
    threshold: float
    precision: float  # precision of all pairs above the threshold
    recall: float
    pairs: int  # number of held-out pairs
    levels: tuple[tuple[float, float], ...]  # precisions, and the lowest threshold for each
    floor: float  # score that 98 % of the held-out pairs found by the model exceed
    passing: float  # share of unrelated sentences whose best score is above the floor
    right: tuple[float, ...]  # percentiles of the scores of right pairs
    wrong: tuple[float, ...]  # percentiles of the scores of wrong pairs
    cosine: float  # threshold of the cosine, for the pairs of a bitext
    cosine_kept: float  # share of held-out pairs above it
    cosine_passed: float  # share of random pairs above it
    judged: int = 0  # number of judged pairs that chose the threshold of `judged_margin`; 0 for held-out pairs
    judged_margin: str = ""
    judged_precision: tuple[float, float, float] = (0.0, 0.0, 1.0)  # estimate and 95 % interval

    @property
    def known(self) -> KnownScores:
        """The scores that an estimate starts from."""
        return KnownScores(np.array(self.right), np.array(self.wrong))

    def replaced_by(self, other: ModelCalibration) -> bool:
        """Whether another calibration is for the same languages and margin."""
        mine, others = (({*one.langs}, one.margin, one.neighbors) for one in (self, other))
        return mine == others

    def threshold_for(self, precision: float | None) -> float:
        """The stored threshold for at least this precision; None for the default one."""
        if precision is None:
            return self.threshold
        fitting = [threshold for level, threshold in self.levels if level >= precision]
        return fitting[0] if fitting else self.levels[-1][1]

    def describe(self, threshold: float | None = None) -> str:
        """The default threshold, or another one of `levels`, and its quality, in words."""
        if self.is_judged(self.margin) and threshold in (None, self.threshold):
            return f"threshold {self.threshold:.4f} {self._describe_judged()}"
        if threshold in (None, self.threshold):
            threshold, quality = self.threshold, f"{100 * self.precision:.1f} %, recall {100 * self.recall:.1f} %"
        else:
            quality = f"{100 * next(level for level, value in self.levels if value == threshold):.1f} %"
        return (
            f"threshold {threshold:.4f} is the model's own: precision {quality} if {100 * self.share:.0f} % of the "
            f"lines have a translation, measured on {self.pairs:,} held-out pairs"
        )

    def is_judged(self, margin: str) -> bool:
        """Whether the threshold of a margin was chosen by judged pairs."""
        return self.judged > 0 and self.judged_margin == margin

    def _describe_judged(self) -> str:
        precision, low, high = (100 * value for value in self.judged_precision)
        return (
            f"was chosen by {self.judged:,} judged pairs: precision {precision:.1f} % [{low:.0f}, {high:.0f}] of the "
            "pairs that it keeps of the job they were drawn from"
        )

    def describe_cosine(self) -> str:
        """The threshold for the pairs of a bitext and its quality, in words."""
        if self.is_judged(Margin.absolute):
            return f"cosine {self.cosine:.4f} {self._describe_judged()}"
        return (
            f"cosine {self.cosine:.4f} is the model's own threshold: {100 * self.cosine_kept:.1f} % of held-out pairs "
            f"and {100 * self.cosine_passed:.1f} % of random pairs reach it"
        )


@dataclass(frozen=True)
class BorrowedCalibration(ModelCalibration):
    """The calibration of another pair of languages, for a pair that has none."""

    wanted: tuple[str, str] = ("", "")  # the pair without a calibration

    def describe(self, threshold: float | None = None) -> str:
        """The threshold, and that its quality is unknown, in words."""
        return f"threshold {self.threshold if threshold is None else threshold:.4f} {self._origin()}"

    def describe_cosine(self) -> str:
        """The threshold for the pairs of a bitext, and that its quality is unknown, in words."""
        return f"cosine {self.cosine:.4f} {self._origin()}"

    def _origin(self) -> str:
        known, wanted = ("-".join(langs) for langs in (self.langs, self.wanted))
        return (
            f"is that of {known}, because the model is not calibrated for {wanted}: check a sample, or run dualmoco "
            "calibrate with held-out pairs"
        )


def borrow_calibration(model: Model, langs: tuple[str, str], settings: MiningSettings) -> BorrowedCalibration | None:
    """The strictest calibration of a model for one of two languages and a third one; None if there is none."""
    if langs[0] == langs[1]:
        return None
    wanted = settings.margin.value, settings.k
    related = [
        one for one in list_calibrations(model) if {*one.langs} & {*langs} and (one.margin, one.neighbors) == wanted
    ]
    if not related:
        return None
    strictest = max(related, key=lambda one: one.threshold)
    return BorrowedCalibration(**vars(strictest), wanted=langs)


def calibrate_model(
    name: str | Path,
    pairs: Bitext | None = None,
    *,
    judged: str | Path | Iterable[Mapping[str, Any]] | None = None,
    mined: str | Path | None = None,
    min_precision: float = DEFAULT_PRECISION,
    src_lang: str = "en",
    tgt_lang: str = "zh",
    out: str | Path | None = None,
    backend: str = AUTO,
    dimension: int | None = None,
    on_error: str = "stop",
    overwrite: bool = False,
    progress: bool = True,
) -> ModelCalibration:
    """Chooses the default thresholds of a model on held-out or judged pairs and writes them into the model's folder.

    With held-out pairs, 3 % of the lines are given their translations and the others none, ten times, and the pairs are
    mined. The margin is the default of mining. With judged pairs, the threshold of the job that they were drawn from is
    replaced by the lowest one with the requested precision; everything else stays the same.

    Args:
        name: Folder of a model or of a training run, or the name of an embedded model.
        pairs: Bitext that the model was not trained on.
        judged: Judged pairs, in place of `pairs`: a table with the columns score, src, tgt and verdict (accept or
            reject), or the events of a review.
        mined: Output of `mine` or `score` that the judged pairs were drawn from.
        min_precision: Minimum precision of a threshold chosen by judged pairs.
        src_lang: Language of the sources.
        tgt_lang: Language of the targets.
        out: File to write to, for `mine --calibration`. By default `calibration.json` in the folder of the model, or
            `NAME.calibration.json` in the current folder for an embedded model.
        backend: Back-end that runs the model: auto, torch, static, int8, onnx or onnx-int8.
        dimension: Number of leading components that the model keeps (default: all). The thresholds are only for this
            dimension, and `out` must be given.
        on_error: What to do with unreadable lines: stop, or skip.
        overwrite: Whether to replace `out` even if it was edited.
        progress: Whether to show progress bars.

    Raises:
        ConfigError: The model does not have the dimension, or `out` is missing.
        DataError: The bitext cannot be read, has too few pairs, or was used to train the model.
        ModelError: The model cannot be opened, lacks a language, or is not a folder.
        RunError: The folder is not writable.
    """
    with showing(progress):
        if dimension is not None and out is None:
            raise ConfigError(
                f"dimension {dimension} without out; expected a file for its thresholds (--out FILE), because those in "
                "the model's folder are for whole vectors"
            )
        if (pairs is None) == (judged is None) or (judged is None) != (mined is None):
            raise ConfigError("expected either held-out pairs, or judged pairs and the mined file they were drawn from")
        model = open_model(name, backend, dimension=dimension)
        path = _calibration_path(model, name, out)
        if out is not None or str(name) in EMBEDDED:
            own = not path.exists() or _is_calibration(path)
            check_replaceable([path], [pairs, judged, mined], overwrite=overwrite or own)
        if judged is not None and mined is not None:
            judgements = Judgements(read_pair_columns(Path(mined)))
            judgements.replay(read_judged(Path(judged)) if isinstance(judged, str | Path) else judged)
            found = calibrate_by_judgements(model, judgements, min_precision)
            others = [one for one in _known_calibrations(path, model) if not one.replaced_by(found)]
            write_calibrations(path, model, [*others, found])
            return found
        assert pairs is not None
        if isinstance(pairs, str | Path) and model.folder:
            _refuse_training_pairs(Path(pairs), model.folder)
        problems = Problems(pairs, skip=parse_choice(OnError, on_error, "on_error") == OnError.skip)
        rows = read_bitext(pairs, (src_lang, tgt_lang), None, "auto", problems)
        texts = distinct_pairs((row.src.strip(), row.tgt.strip()) for row in rows)
        if problems.count:
            logger.warning("%s: skipped %d unreadable lines", pairs, problems.count)
        if len(texts) < FEWEST_HELD_OUT:
            raise DataError(f"{len(texts)} different pairs; expected at least {FEWEST_HELD_OUT} to calibrate on")
        langs = model.language(src_lang), model.language(tgt_lang)
        sides = [model.encode([pair[side] for pair in texts], lang=lang) for side, lang in enumerate(langs)]
        found = _calibrate(sides[0], sides[1], langs)
        others = [one for one in _known_calibrations(path, model) if not one.replaced_by(found)]
        write_calibrations(path, model, [*others, found])
        return found


def calibrate_by_judgements(model: Model, judgements: Judgements, precision: float) -> ModelCalibration:
    """The calibration of a model with the lowest threshold that reaches a precision according to judged pairs.

    Raises:
        DataError: There is no record of how the judged file was made, another model or margin made it, or no threshold
            reaches the precision.
    """
    pairs, made = judgements.pairs, judgements.pairs.origin
    if not {"model_sha256", "margin"} <= made.keys():
        raise DataError(f"{pairs.path.name}: no record of how it was made; expected {pairs.path.name}.json next to it")
    if made["model_sha256"] != model.identity.sha256:
        raise DataError(f"{pairs.path.name}: made by {made.get('model')}; expected pairs of {model.identity.name}")
    margin, langs = str(made["margin"]), (model.language(pairs.langs[0]), model.language(pairs.langs[1]))
    known = [
        one for one in list_calibrations(model) if {*one.langs} == {*langs} and one.neighbors == MiningSettings().k
    ]
    if not known or margin not in (known[0].margin, Margin.absolute):
        raise DataError(
            f"{model.identity.name} is not calibrated for {langs[0]}, {langs[1]} and margin {margin}; run dualmoco "
            "calibrate with held-out pairs first"
        )
    chosen = judgements.threshold_for(precision)
    if chosen is None or chosen.precision.value is None:
        raise DataError(
            f"{pairs.path.name}: no threshold reaches a precision of {100 * precision:g} % by "
            f"{judgements.judged_count:,} judged pairs; judge more pairs in random order, or lower the precision"
        )
    share = chosen.precision
    quality = (round(chosen.precision.value, 4), round(share.low, 4), round(share.high, 4))
    found = replace(known[0], judged=judgements.judged_count, judged_margin=margin, judged_precision=quality)
    if margin == Margin.absolute:
        return replace(found, cosine=chosen.threshold)
    levels = [(level, judgements.threshold_for(level)) for level in PRECISION_LEVELS if level != precision]
    reached = [(level, one.threshold) for level, one in levels if one] + [(precision, chosen.threshold)]
    return replace(found, threshold=chosen.threshold, precision=quality[0], levels=tuple(sorted(reached)))


def _calibration_path(model: Model, name: str | Path, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    if str(name) in EMBEDDED:
        return Path(f"{name}.calibration.json")
    if model.folder is None or not Path(name).is_dir():
        raise ModelError(f"{name}: not a model folder; expected a folder to write to, or out=FILE (--out FILE)")
    return model.folder / CALIBRATION_FILE


def _is_calibration(path: Path) -> bool:
    try:
        return "calibrations" in read_json(path)
    except (OSError, ValueError, TypeError):
        return False


def _refuse_training_pairs(pairs: Path, folder: Path) -> None:
    """DataError if the pairs are a file or folder that the model was trained on, according to its record."""
    try:
        data = read_json(folder / MODEL_RECORD)["settings"]["data"]
        prepared = [data["prepared"]] if data.get("prepared") else []
        trained = [Path(data.get("root") or ".") / str(name) for name in [*data["train"], *prepared]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for path in trained:
        shards = [path, *path.glob("train-*.parquet")] if path.is_dir() else [path]
        if any(shard.exists() and pairs.exists() and shard.samefile(pairs) for shard in shards):
            raise DataError(f"{pairs}: the model was trained on these pairs; expected held-out pairs")


def distinct_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """At most MOST_HELD_OUT pairs without shared sentences."""
    seen: tuple[set[str], set[str]] = set(), set()
    found = []
    for src, tgt in pairs:
        if src and tgt and src not in seen[0] and tgt not in seen[1]:
            seen[0].add(src)
            seen[1].add(tgt)
            found.append((src, tgt))
            if len(found) == MOST_HELD_OUT:
                break
    return found


def read_calibration(
    model: Model, langs: tuple[str, str], settings: MiningSettings, file: str | Path | None = None
) -> ModelCalibration | None:
    """The calibration of a model, from its folder or a file; None if it has none for these languages and this margin.

    If the calibration belongs to another model, it is ignored with a warning, or for a file, a DataError is raised.
    """
    path = Path(file) if file else model.folder / CALIBRATION_FILE if model.folder else None
    if path is None or not (file or path.is_file()):
        return None
    try:
        found = _read_calibrations(path, model)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if file:
            raise DataError(
                f"{path}: not a calibration of {model.identity.name} ({error}); run dualmoco calibrate"
            ) from None
        again = f"--dimension {model.identity.dimension}" if model.identity.dimension else "again"
        logger.warning("%s: not used (%s); run dualmoco calibrate %s", path, error, again)
        return None
    wanted = set(langs), settings.margin.value, settings.k
    return next((one for one in found if (set(one.langs), one.margin, one.neighbors) == wanted), None)


def write_calibrations(path: Path, model: Model, calibrations: Sequence[ModelCalibration]) -> None:
    """Writes the calibrations of a model, one for each pair of languages."""
    content = {"model_sha256": model.identity.sha256, "calibrations": [asdict(one) for one in calibrations]}
    write_json(path, content)


def copy_calibrations(models: Iterable[Model], new: Model) -> None:
    """Copies the calibrations of older models to a model with the same encoders; the first one for a pair is used."""
    found: list[ModelCalibration] = []
    for model in models:
        known = list_calibrations(model)
        found += [one for one in known if not any(one.replaced_by(other) for other in found)]
    if found and new.folder:
        write_calibrations(new.folder / CALIBRATION_FILE, new, found)


def list_calibrations(model: Model) -> list[ModelCalibration]:
    """All calibrations in the folder of a model."""
    return _known_calibrations(model.folder / CALIBRATION_FILE, model) if model.folder else []


def _read_calibrations(path: Path, model: Model) -> list[ModelCalibration]:
    """The calibrations of a file; an exception if it has other content or belongs to another model."""
    content = read_json(path)
    found = [_parse_calibration(one) for one in content["calibrations"]]
    if content["model_sha256"] != model.identity.sha256:
        raise ValueError("it belongs to another model or dimension")
    return found


def _known_calibrations(path: Path, model: Model) -> list[ModelCalibration]:
    """The calibrations of a file; none if the file does not exist or belongs to another model."""
    try:
        return _read_calibrations(path, model)
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _parse_calibration(content: dict[str, Any]) -> ModelCalibration:
    names = ("langs", "right", "wrong", "judged_precision")
    tuples: dict[str, Any] = {name: tuple(content[name]) for name in names if name in content}
    levels = tuple((float(level), float(threshold)) for level, threshold in content["levels"])
    found = ModelCalibration(**{**content, **tuples, "levels": levels})
    if not found.known.is_enough or not levels:
        raise ValueError("scores are missing")
    return found


def _calibrate(src: Vectors, tgt: Vectors, langs: tuple[str, str]) -> ModelCalibration:
    """Mines the pairs of rows of src (n, D) and tgt (n, D) among lines without a translation."""
    margin, k = MiningSettings().margin, MiningSettings().k
    generator = np.random.default_rng(0)
    known = max(1, round(len(src) / (1 + 2 * (1 - CALIBRATED_SHARE) / CALIBRATED_SHARE)))
    unrelated = (len(src) - known) // 2
    scores, correct, best = [], [], []
    with counting("calibrating", CALIBRATION_ROUNDS, " rounds") as progress:
        for _ in range(CALIBRATION_ROUNDS):
            order = generator.permutation(len(src))
            shared, others = order[:known], order[known : known + 2 * unrelated].reshape(2, -1)
            sides = src[np.append(shared, others[0])], tgt[np.append(shared, others[1])]
            near = nearest_both_ways(*sides, k)
            pairs = select_pairs(*near, margin)
            scores.append(pairs.scores)
            correct.append((pairs.src == pairs.tgt) & (pairs.src < known))
            for own, other in ((near[0], near[1]), (near[1], near[0])):
                best.append(best_candidates(own, other.mean, margin)[1][known:])
            progress(1)
    all_scores, all_correct = np.concatenate(scores), np.concatenate(correct)
    order = np.argsort(-all_scores, kind="stable")
    all_scores, all_correct = all_scores[order], all_correct[order]
    if not all_correct.any():
        raise DataError(f"none of {len(src):,} held-out pairs was found; expected some: are the languages right?")
    gold = CALIBRATION_ROUNDS * known
    chosen = precise_threshold(all_scores, all_correct, gold, DEFAULT_PRECISION)
    levels = [(level, precise_threshold(all_scores, all_correct, gold, level).value) for level in PRECISION_LEVELS]
    floor = float(np.quantile(all_scores[all_correct], 1 - FLOOR_RECALL))
    right, wrong = (
        np.quantile(all_scores[chosen_ones], KNOWN_QUANTILES) for chosen_ones in (all_correct, ~all_correct)
    )
    cosine, kept, passed = _cosine_threshold(src, tgt, generator)
    return ModelCalibration(
        langs,
        margin.value,
        k,
        CALIBRATED_SHARE,
        round(chosen.value, 4),
        round(chosen.precision, 4),
        round(chosen.recall, 4),
        len(src),
        tuple((level, round(value, 4)) for level, value in levels),
        round(floor, 4),
        round(float((np.concatenate(best) >= floor).mean()), 4),
        tuple(right.round(4).tolist()),
        tuple(wrong.round(4).tolist()),
        cosine,
        kept,
        passed,
    )


def _cosine_threshold(src: Vectors, tgt: Vectors, generator: np.random.Generator) -> tuple[float, float, float]:
    """The cosine that 1 % of random pairs reach, and the shares of pairs of rows and of random pairs that reach it."""
    shifts: Ids = generator.integers(1, len(src), RANDOM_PARTNERS)
    right = np.einsum("nd,nd->n", src, tgt)
    wrong = np.concatenate([np.einsum("nd,nd->n", src, np.roll(tgt, shift, axis=0)) for shift in shifts.tolist()])
    threshold = round(float(np.quantile(wrong, 1 - WRONG_PASSING)), 4)
    return threshold, round(float((right >= threshold).mean()), 4), round(float((wrong >= threshold).mean()), 4)
