"""Finds parallel sentences in two texts (`mine`), and sentences of one text that mean the same (`paraphrases`).

Both functions take files or sentences, a model or its name, and named options. The steps are: encode the texts
(embeddings/), find nearest neighbours (knn.py), score and select pairs (margins.py), choose a threshold (threshold.py),
and write the pairs (io.py). The commands of the same names call these functions.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.config_loader import VectorPrecision, check_options, parse_choice, parse_size
from dualmoco.core.display import data_frame, html_table
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.progress import showing
from dualmoco.core.storage import check_replaceable, locked, write_text
from dualmoco.core.vectors import Ids
from dualmoco.data.config import OnError
from dualmoco.embeddings.encode import encode_file, resolve_texts
from dualmoco.embeddings.engine import Engine, open_engine
from dualmoco.embeddings.store import Store
from dualmoco.embeddings.unique_lines import EMPTY, TextFile, readable_copy
from dualmoco.mining.io import (
    GoldPairs,
    MinedPair,
    PairTable,
    Texts,
    as_text_file,
    check_pairs_path,
    read_gold_pairs,
    read_mined,
    sentences_at,
    write_pairs,
)
from dualmoco.mining.knn import MiningSettings, encode_sides, find_neighbors
from dualmoco.mining.margins import Margin, Retrieval, ScoredPairs, margin_scores, select_pairs
from dualmoco.mining.precision import FEWEST_SCORES
from dualmoco.mining.prefilter import make_prefilter
from dualmoco.mining.score_report import check_report, kept_at, report_page, sampled_pairs
from dualmoco.mining.threshold import (
    BorrowedCalibration,
    Calibration,
    ModelCalibration,
    PlantedRows,
    borrow_calibration,
    distinct_pairs,
    judge_by_gold,
    judge_by_planted,
    judge_by_scores,
    read_calibration,
)
from dualmoco.models.embedded import default_model
from dualmoco.models.load import as_model
from dualmoco.models.model import AUTO, Model
from dualmoco.search.exact import COSINE_PLACES, Neighbors
from dualmoco.search.ivf import require_faiss
from dualmoco.text.files import read_lines

logger = logging.getLogger(__name__)


class MiningOptions(TypedDict, total=False):
    """Options that `mine`, `score` and `paraphrases` share."""

    threshold: float | None  # lowest score to accept; if None, the model's own, or no threshold if it has none
    margin: str  # distance (default), ratio or absolute
    neighbors: int  # neighbours per mean; 3
    approximate: bool  # search only the nearest inverted lists (needs FAISS)
    probes: int  # inverted lists searched per sentence, on average; 14
    memory: str | int  # memory for candidates, such as "500M" or "4G"; "1G"
    precision: str  # precision of stored vectors: fp32 (default), fp16 or int8
    shard_rows: int  # sentences per file of vectors; 65,536
    work: str | Path | None  # folder for vectors and neighbours, which is kept; if None, a folder next to the output
    keep: bool  # keep the work folder even if `work` is None
    engine: str | Engine  # local (default), ray, or an open engine
    address: str | None  # address of a running Ray cluster; None starts a local one
    backend: str  # back-end of a model given by name: auto (default), torch, static, int8, onnx or onnx-int8
    dimension: int | None  # number of leading components to keep, for a model given by name; None: all
    calibration: str | Path | None  # output of `calibrate` to use instead of the file in the model's folder
    overwrite: bool  # replace existing outputs, even if they were edited; False
    progress: bool  # show progress bars; True


@dataclass(frozen=True, repr=False)
class MiningResult:
    """Pairs of sentences, by descending score (or from `score`, in the order of the bitext)."""

    out: Path | None
    """File of pairs; None if no file was requested."""
    pairs: list[MinedPair] | None
    """The pairs, if there is no file."""
    count: int
    """Number of accepted pairs."""
    candidates: int
    """Number of scored pairs."""
    threshold: float | None
    calibration: Calibration | None = None
    recall: float | None = None
    """Recall of approximate neighbours, measured on a sample."""
    quantiles: tuple[float, ...] = ()
    """The 5, 25, 50, 75 and 95 % quantiles of all scores of a bitext."""
    unreadable: int = 0
    """Number of skipped lines."""
    model_calibration: ModelCalibration | None = None
    """Calibration of the model, if the threshold is the model's own."""
    kept_at: tuple[tuple[float, int], ...] = ()
    """Some thresholds, and the number of pairs or candidates that reach each."""
    untranslated: int = 0
    """Number of pairs of a bitext that are not translated."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[MinedPair]:
        if self.pairs is not None:
            return iter(self.pairs)
        assert self.out is not None
        return read_mined(self.out)

    def __repr__(self) -> str:
        threshold = "no threshold" if self.threshold is None else f"threshold {self.threshold:.4f}"
        place = f": {self.out}" if self.out else ""
        return f"<MiningResult {len(self):,} pairs of {self.candidates:,} candidates, {threshold}{place}>"

    def _repr_html_(self) -> str:
        rows = ((f"{pair.score:.4f}", pair.src, pair.tgt) for pair in self)
        return html_table(repr(self)[1:-1], ("score", "src", "tgt"), rows, len(self))

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per pair; ConfigError if pandas is not installed."""
        return data_frame(MinedPair._fields, self)


def mine(
    src: Texts,
    tgt: Texts,
    *,
    model: Model | str | Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    out: str | Path | None = None,
    retrieval: str = "max",
    gold: str | Path | Sequence[tuple[int, int]] | None = None,
    planted: str | Path | Sequence[tuple[str, str]] | None = None,
    min_precision: float | None = None,
    prefilter: Model | str | Path | None = None,
    report: str | Path | None = None,
    on_error: str = "stop",
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Finds the parallel sentences of two texts.

    Args:
        src: Source text.
        tgt: Target text.
        model: Model that encodes both texts, or its name; chosen by the languages if None.
        src_lang: Language of `src`; recognised if None.
        tgt_lang: Language of `tgt`; recognised if None.
        out: File to write the pairs to, .tsv, .csv, .jsonl or .tmx, also followed by .gz, or .parquet; None to keep
            them in memory.
        retrieval: Which candidates become pairs: forward, backward, intersection or max.
        gold: Pairs of line numbers (from 1) of all translations in the texts, or a file of them, to choose the
            threshold with the highest F1.
        planted: Pairs of sentences, or a file of them, to hide in the texts, half of them without their partners, to
            choose the threshold with the highest F1.
        min_precision: Minimum precision of the threshold, measured on gold pairs or otherwise estimated (default: 0.9
            if the model is calibrated and there are at least 200 candidates).
        prefilter: Fast, calibrated model, or its name, that drops sentences without a plausible partner.
        report: File (.html) for a page with a histogram of all scores and samples of the candidates.
        on_error: What to do with a line that is not UTF-8: stop, or skip.
        **options: See `MiningOptions`.

    Returns:
        The pairs, by descending score.

    Raises:
        ConfigError: An option value is invalid.
        DataError: A text cannot be read or mined, or the work folder belongs to other texts.
        ModelError: A model cannot be opened, or lacks a language.
    """
    settings = parse_settings(options, retrieval)
    parse_choice(OnError, on_error, "on_error")
    known = read_gold_pairs(gold, planted)
    if settings.threshold is not None and (gold is not None or planted is not None or min_precision is not None):
        raise ConfigError("a threshold was given together with known pairs or a precision; expected only one of them")
    if min_precision is not None and not 0 < min_precision <= 1:
        raise ConfigError(f"min_precision {min_precision}; expected more than 0 and at most 1")
    with mining_job(out, model, options, (src, tgt, gold, planted), report) as job:
        given = (src, src_lang, "src"), (tgt, tgt_lang, "tgt")
        opened, texts, unreadable = job.open_texts(given, on_error)
        langs = texts[0].lang, texts[1].lang
        own = usual_calibration(opened, langs, settings, options)
        is_calibrated = own is not None and not isinstance(own, BorrowedCalibration)
        if min_precision is not None and not (is_calibrated or known.gold or known.planted):
            raise ConfigError(
                f"min_precision: {opened.identity.name} is not calibrated for these languages and this margin; "
                "expected gold or planted pairs, or run dualmoco calibrate"
            )
        fast = make_prefilter(prefilter, langs, settings) if prefilter else None
        planting = Planting(known.planted)
        texts = planting.apply(texts, job.work)
        texts = fast.apply(texts, settings, job.work / "prefilter", job.engine) if fast else texts
        stores = encode_sides(texts, opened, settings, job.work, job.engine)
        src_near, tgt_near, recall = find_neighbors(stores, settings, job.work, job.engine)
        pairs = select_pairs(src_near, tgt_near, settings.margin, settings.retrieval)
        is_judged = own is not None and own.is_judged(settings.margin)
        estimating = None if fast or is_judged else own  # a prefilter drops wrong pairs that the estimate needs
        calibration = _calibrate(pairs, stores, known, planting, estimating, min_precision)
        if calibration:
            threshold: float | None = calibration.threshold.value
        else:
            threshold = own.threshold_for(min_precision) if own else settings.threshold
        src_store, tgt_store = stores
        src_lines, tgt_lines = src_store.first_lines(), tgt_store.first_lines()
        kept = pairs.above(threshold)
        if known.planted:
            is_own = [first < len(store.lines) - count for first, store, count in planting.sides(stores)]
            kept = kept.take(is_own[0][kept.src] & is_own[1][kept.tgt])
        table = PairTable(
            kept.scores,
            src_near.mean[kept.src].round(COSINE_PLACES),
            tgt_near.mean[kept.tgt].round(COSINE_PLACES),
            src_lines[kept.src] + 1,
            tgt_lines[kept.tgt] + 1,
        )
        origin = {
            "tool": "dualmoco mine",
            "version": VERSION,
            "pairs": len(kept),
            "model": opened.identity.name,
            "model_sha256": src_store.key.model_sha256,
            "backend": src_store.key.backend,
            "dimension": src_store.dimension,
            "precision": src_store.key.precision,
            "src_lang": langs[0],
            "tgt_lang": langs[1],
            "src_text_sha256": src_store.key.text_sha256,
            "tgt_text_sha256": tgt_store.key.text_sha256,
            "src_sentences": src_store.count,
            "tgt_sentences": tgt_store.count,
            "margin": settings.margin.value,
            "k": settings.k,
            "retrieval": settings.retrieval.value,
            "threshold": threshold,
            "calibration": calibration.to_json() if calibration else None,
            "model_calibration": own.describe(threshold) if own and not calibration else None,
            "approximate_recall": recall,
            "prefilter": fast.origin if fast else None,
        }
        sides = sentences_at(texts[0].path, table.src_lines), sentences_at(texts[1].path, table.tgt_lines)
        pages = {}
        if report:

            def sampled(rows: Ids) -> list[list[str]]:
                lines = src_lines[pairs.src[rows]] + 1, tgt_lines[pairs.tgt[rows]] + 1
                return [sentences_at(text.path, side) for text, side in zip(texts, lines, strict=True)]

            samples = sampled_pairs(pairs.scores, sampled)
            pages[Path(report)] = report_page(pairs.scores, threshold, settings.margin, samples, origin)
        write_pairs(job.file, table, sides, langs, origin, pages=pages)
        found = MiningResult(job.file, None, len(kept), len(pairs), threshold, calibration, recall)
        found = replace(found, kept_at=kept_at(pairs.scores, settings.margin))
        found = replace(found, unreadable=unreadable, model_calibration=None if calibration else own)
        return job.result(found)


def paraphrases(
    text: Texts,
    *,
    model: Model | str | Path | None = None,
    lang: str | None = None,
    out: str | Path | None = None,
    on_error: str = "stop",
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Finds pairs of sentences in one text that mean the same.

    Args:
        text: The text; equal lines count as one sentence.
        model: Model that encodes the text, or its name; chosen by the language if None.
        lang: Language of the text; recognised if None.
        out: File to write the pairs to, see `PAIRS_ENDINGS`; None to keep them in memory.
        on_error: What to do with a line that is not UTF-8: stop, or skip.
        **options: See `MiningOptions`.

    Returns:
        The pairs by descending score, the earlier line first.

    Raises:
        ConfigError: An option value is invalid.
        DataError: The text has fewer than two different sentences.
        ModelError: The model cannot be opened, or lacks the language.
    """
    settings = parse_settings(options)
    parse_choice(OnError, on_error, "on_error")
    with mining_job(out, model, options, (text,)) as job:
        opened, (file,), unreadable = job.open_texts([(text, lang, "text")], on_error)
        own = _paraphrase_calibration(opened, file.lang, settings, options)
        threshold = own.threshold if own else settings.threshold
        store = encode_file(file, job.work / "src", opened, settings.form, job.engine)
        if store.count < 2:
            raise DataError(f"{file.path}: {store.count} sentence; expected at least two different sentences")
        wider = replace(settings, k=settings.k + 1)
        found, _, recall = find_neighbors([store, store], wider, job.work, job.engine)
        near = without_self(found, settings.k)
        candidates = _paraphrase_pairs(near, settings.margin)
        pairs = candidates.above(threshold)
        means, lines = near.mean.round(COSINE_PLACES), store.first_lines() + 1
        table = PairTable(pairs.scores, means[pairs.src], means[pairs.tgt], lines[pairs.src], lines[pairs.tgt])
        origin = {
            "tool": "dualmoco paraphrases",
            "version": VERSION,
            "pairs": len(pairs),
            "model": opened.identity.name,
            "model_sha256": store.key.model_sha256,
            "backend": store.key.backend,
            "dimension": store.dimension,
            "lang": file.lang,
            "text_sha256": store.key.text_sha256,
            "margin": settings.margin.value,
            "k": settings.k,
            "threshold": threshold,
            "approximate_recall": recall,
        }
        sides = sentences_at(file.path, table.src_lines), sentences_at(file.path, table.tgt_lines)
        write_pairs(job.file, table, sides, (file.lang, file.lang), origin)
        made = MiningResult(job.file, None, len(pairs), len(candidates), threshold, recall=recall)
        return job.result(replace(made, unreadable=unreadable))


def _paraphrase_calibration(
    model: Model, lang: str, settings: MiningSettings, options: MiningOptions
) -> ModelCalibration | None:
    """The calibration of a model for this language and any other language."""
    others = [other for other in model.languages or [] if other != model.language(lang)]
    found = (model_calibration(model, (lang, other), settings, options) for other in others)
    return next((calibration for calibration in found if calibration), None)


def parse_settings(options: MiningOptions, retrieval: str = Retrieval.max.value) -> MiningSettings:
    """Checks the options; ConfigError if one is invalid, or if FAISS is needed and not installed."""
    check_options(options, MiningOptions)
    defaults = MiningSettings()
    settings = MiningSettings(
        parse_choice(VectorPrecision, options.get("precision", defaults.precision), "precision"),
        parse_choice(Margin, options.get("margin", defaults.margin), "margin"),
        options.get("neighbors", defaults.k),
        parse_choice(Retrieval, retrieval, "retrieval"),
        options.get("threshold"),
        options.get("approximate", False),
        options.get("probes", defaults.probes),
        parse_size(options.get("memory", defaults.memory), "memory"),
        options.get("shard_rows", defaults.shard_rows),
    )
    counts = {"neighbors": settings.k, "probes": settings.probes, "shard_rows": settings.shard_rows}
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name} {count}; expected at least 1")
    if settings.approximate:
        require_faiss()
    return settings


@dataclass(frozen=True)
class MiningJob:
    """The state of a call of `mine`, `score` or `paraphrases`."""

    model: Model | None  # None for the default model of the languages
    engine: Engine
    file: Path  # file of pairs, in a temporary folder if `is_temporary`
    work: Path
    is_temporary: bool
    backend: str
    dimension: int | None

    def check_languages(self, langs: Sequence[str]) -> None:
        """ModelError if the model lacks a language."""
        if self.model is None:
            default_model(langs)
            return
        for lang in langs:
            self.model.language(lang)

    def open_texts(
        self, given: Sequence[tuple[Texts, str | None, str]], on_error: str
    ) -> tuple[Model, list[TextFile], int]:
        """The model, the texts with their languages, and the number of lines that were skipped.

        `given` has texts, their languages if known, and names for messages and files.
        """
        texts, names, skipped = list[TextFile](), list[str](), 0
        for content, lang, name in given:
            text = as_text_file(content, lang or "", self.work / f"given.{name}.txt")
            if on_error == "skip":
                text, count = readable_copy(text, self.work / f"readable.{name}.txt")
                skipped += count
            texts.append(text)
            names.append("" if isinstance(content, str | Path) else name)
        return *self.resolve(texts, names), skipped

    def resolve(self, texts: Sequence[TextFile], names: Sequence[str]) -> tuple[Model, list[TextFile]]:
        """The model, and the texts with their languages; see `resolve_texts`."""
        return resolve_texts(self.model, texts, names, self.backend, self.dimension)

    def result(self, found: MiningResult) -> MiningResult:
        """The result, with the pairs in memory if their file is temporary."""
        return replace(found, out=None, pairs=list(found)) if self.is_temporary else found


@contextmanager
def mining_job(
    out: str | Path | None,
    model: Model | str | Path | None,
    options: MiningOptions,
    inputs: Sequence[object],
    report: str | Path | None = None,
) -> Iterator[MiningJob]:
    """Opens the model, if given, and the engine, and locks the work folder.

    The work folder is removed at the end unless it was given. It stays if the block fails, so that the same call
    resumes. Without an output file, everything is temporary.
    """
    check_report(report)
    if out is not None:
        check_pairs_path(Path(out))
    outputs = [Path(name) for name in (out, report) if name is not None]
    check_replaceable(outputs, inputs, overwrite=options.get("overwrite", False), has_record=out is not None)
    run = options.get("backend", AUTO), options.get("dimension")
    opened = None if model is None else as_model(model, *run)
    engine = open_engine(options.get("engine", "local"), options.get("address"))
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as temporary, showing(options.get("progress", True)):
        file = Path(out) if out is not None else Path(temporary) / "pairs.tsv"
        named = options.get("work")
        work = Path(named) if named else file.with_name(f"{file.name}.work")
        with locked(work):
            yield MiningJob(opened, engine, file, work, out is None, *run)
        if not named and not options.get("keep"):
            shutil.rmtree(work)


def model_calibration(
    model: Model, langs: tuple[str, str], settings: MiningSettings, options: MiningOptions
) -> ModelCalibration | None:
    """The calibration of a model for these languages; None if there is none, or a threshold was given."""
    known = model.language(langs[0]), model.language(langs[1])
    return read_calibration(model, known, settings, options.get("calibration")) if settings.threshold is None else None


def usual_calibration(
    model: Model, langs: tuple[str, str], settings: MiningSettings, options: MiningOptions
) -> ModelCalibration | None:
    """The calibration of a model for two languages, or else a borrowed one; None if a threshold was given."""
    own = model_calibration(model, langs, settings, options)
    if own or settings.threshold is not None or options.get("calibration"):
        return own
    borrowed = borrow_calibration(model, (model.language(langs[0]), model.language(langs[1])), settings)
    if borrowed:
        name, known = model.identity.name, "-".join(borrowed.langs)
        logger.info("%s: not calibrated for %s, so the thresholds start from those of %s", name, "-".join(langs), known)
    return borrowed


class Planting:
    """Pairs to plant in the texts: every second pair is complete, the others are one sentence without its partner."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        distinct = distinct_pairs((src.strip(), tgt.strip()) for src, tgt in pairs)
        self.src = [src for number, (src, _) in enumerate(distinct) if number % 4 != 3]
        self.tgt = [tgt for number, (_, tgt) in enumerate(distinct) if number % 4 != 1]
        self.whole = [pair for number, pair in enumerate(distinct) if number % 2 == 0]
        self.count = len(distinct)

    def apply(self, texts: list[TextFile], work: Path) -> list[TextFile]:
        """Copies of both texts with the planted sentences at their ends; the texts themselves if there are none."""
        if not self.count:
            return texts
        copies = []
        for name, text, planted in zip(("src", "tgt"), texts, (self.src, self.tgt), strict=True):
            path = work / f"planted.{name}.txt"
            write_text(path, "".join(f"{line}\n" for line in [*read_lines(text.path), *planted]))
            copies.append(replace(text, path=path))
        return copies

    def sides(self, stores: Sequence[Store]) -> list[tuple[Ids, Store, int]]:
        """For each side the first line of each sentence, from 0, the store, and the number of planted lines."""
        counts = len(self.src), len(self.tgt)
        return [(store.first_lines(), store, count) for store, count in zip(stores, counts, strict=True)]

    def rows(self, stores: Sequence[Store]) -> PlantedRows:
        """Rows of the planted sentences that the texts do not already contain."""
        found: list[dict[str, int]] = []
        for (first, store, count), texts in zip(self.sides(stores), (self.src, self.tgt), strict=True):
            start = len(store.lines) - count
            rows = zip(texts, store.lines[start:].tolist(), strict=True)
            found.append({text: row for text, row in rows if row != EMPTY and first[row] >= start})
        partners = {found[0][src]: found[1][tgt] for src, tgt in self.whole if src in found[0] and tgt in found[1]}
        return PlantedRows(partners, frozenset(found[0].values()), frozenset(found[1].values()), self.count)


def _calibrate(
    pairs: ScoredPairs,
    stores: Sequence[Store],
    known: GoldPairs,
    planting: Planting,
    own: ModelCalibration | None,
    precision: float | None,
) -> Calibration | None:
    """The threshold from gold or planted pairs, or from the scores of a calibrated model; None if too few."""
    lines = min(store.count for store in stores)
    if known.planted:
        stored = own.known if own else None
        return judge_by_planted(pairs, planting.rows(stores), lines, stored, precision=precision)
    if known.gold:
        rows, left_out = _gold_rows(known.gold, stores)
        return judge_by_gold(pairs, rows, lines, left_out=left_out, precision=precision)
    if own and len(pairs) >= FEWEST_SCORES:
        return judge_by_scores(pairs, own.known, lines, precision=precision)
    return None


def _gold_rows(gold: Sequence[tuple[int, int]], stores: Sequence[Store]) -> tuple[set[tuple[int, int]], int]:
    """Pairs of rows, and the number of pairs with a dropped or empty line."""
    src, tgt = stores[0].lines, stores[1].lines
    for a, b in gold:
        if not (1 <= a <= len(src) and 1 <= b <= len(tgt)):
            raise DataError(f"gold pair {a}, {b}; expected lines from 1 to {len(src):,} and from 1 to {len(tgt):,}")
    rows = [(int(src[a - 1]), int(tgt[b - 1])) for a, b in gold]
    known = {pair for pair in rows if EMPTY not in pair}
    return known, sum(EMPTY in pair for pair in rows)


def without_self(near: Neighbors, k: int) -> Neighbors:
    """The k nearest other rows, from k + 1 nearest rows that include the row itself, unless ties pushed it out."""
    own = np.arange(len(near.ids))[:, None]
    others = np.argsort(near.ids == own, axis=1, kind="stable")[
        :, : min(k, near.ids.shape[1] - 1)
    ]  # the row itself last
    return Neighbors(np.take_along_axis(near.ids, others, axis=1), np.take_along_axis(near.scores, others, axis=1))


def _paraphrase_pairs(near: Neighbors, margin: Margin) -> ScoredPairs:
    """Every row with each of its neighbours, each pair once, by descending score."""
    src = np.repeat(np.arange(len(near.ids)), near.ids.shape[1])
    tgt, cosines = near.ids.ravel(), near.scores.ravel()
    scores = margin_scores(cosines, near.mean[src], near.mean[tgt], margin)
    low, high = np.minimum(src, tgt), np.maximum(src, tgt)
    _, first = np.unique(low * len(near.ids) + high, return_index=True)
    return ScoredPairs.sorted(low[first], high[first], scores[first])
