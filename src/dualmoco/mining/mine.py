"""Finds parallel sentences in two texts (`mine`), and sentences of one text that mean the same (`paraphrases`).

Both functions take files or sentences, a model or its name, and options in plain words. The steps are: encode the texts
(embeddings/), find nearest neighbours (knn.py), score and select pairs (margins.py), choose a threshold (threshold.py),
and write the pairs (io.py). The commands of the same names call these functions.
"""

from __future__ import annotations

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
from dualmoco.embeddings.encode import encode_file, resolve_text
from dualmoco.embeddings.engine import Engine, open_engine
from dualmoco.embeddings.store import Store
from dualmoco.embeddings.unique_lines import TextFile
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
from dualmoco.mining.prefilter import make_prefilter
from dualmoco.mining.threshold import Calibration, ModelCalibration, calibrate, read_calibration
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, Model
from dualmoco.search.exact import COSINE_PLACES, Neighbors
from dualmoco.search.ivf import require_faiss
from dualmoco.text.files import read_lines


class MiningOptions(TypedDict, total=False):
    """Options that `mine`, `score` and `paraphrases` share."""

    threshold: float | None  # lowest score to accept; if None, the model's own, or no threshold if it has none
    margin: str  # distance (default), ratio or absolute
    neighbors: int  # neighbours per mean; 3
    approximate: bool  # compare a sentence only with the nearest inverted lists, which needs FAISS
    probes: int  # inverted lists that a sentence visits on average; 14
    memory: str | int  # memory for candidates, such as "500M" or "4G"; "1G"
    precision: str  # precision of stored vectors: fp32 (default), fp16 or int8
    shard_rows: int  # sentences per file of vectors; 65,536
    work: str | Path | None  # folder for vectors and neighbours, which is kept; if None, a folder next to the output
    keep: bool  # keep the work folder even if `work` is None
    engine: str | Engine  # local (default), ray, or an engine that is already open
    address: str | None  # address of a running Ray cluster; None starts a local one
    backend: str  # back-end of a model given by name: auto (default), torch, static, int8, onnx or onnx-int8
    overwrite: bool  # replace an output that was edited or that something else wrote; False
    progress: bool  # show progress bars; True


@dataclass(frozen=True, repr=False)
class MiningResult:
    """Pairs of sentences; iterating yields them by descending score (those of `score` in the order of the bitext)."""

    out: Path | None
    """File of pairs; None if no file was asked for."""
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
    """5, 25, 50, 75 and 95 % quantiles of all scores of a bitext."""
    unreadable: int = 0
    """Number of skipped lines of a bitext."""
    model_calibration: ModelCalibration | None = None
    """Calibration of the model, if the threshold is the model's own."""

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
    model: Model | str | Path = DEFAULT_MODEL,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    out: str | Path | None = None,
    retrieval: str = "max",
    gold: str | Path | Sequence[tuple[int, int]] | None = None,
    planted: str | Path | Sequence[tuple[str, str]] | None = None,
    prefilter: Model | str | Path | None = None,
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Finds the parallel sentences of two texts.

    Args:
        src: Source text.
        tgt: Target text.
        model: Model that encodes both texts, or its name.
        src_lang: Language of `src`; recognised if None.
        tgt_lang: Language of `tgt`; recognised if None.
        out: File to write the pairs to, .tsv, .parquet or .tmx; None to keep them in memory.
        retrieval: Which candidates become pairs: forward, backward, intersection or max.
        gold: Pairs of line numbers, from 1, that are translations, or a file of them; they choose the threshold.
        planted: Pairs of sentences, or a file of them, that are hidden in the texts to choose the threshold.
        prefilter: Fast, calibrated model, or its name; sentences that have no plausible partner according to this model
            are left out.
        **options: See `MiningOptions`.

    Returns:
        The pairs, by descending score.

    Raises:
        ConfigError: An option value is invalid.
        DataError: A text cannot be read or mined, or the work folder belongs to other texts.
        ModelError: A model cannot be opened, or lacks a language.
    """
    settings = parse_settings(options, retrieval)
    known = read_gold_pairs(gold, planted)
    if settings.threshold is not None and (gold is not None or planted is not None):
        raise ConfigError("a threshold together with gold or planted pairs; expected one of them")
    with mining_job(out, model, options, (src, tgt, gold, planted)) as job:
        given = as_text_file(src, src_lang or "", job.work / "given.src.txt")
        texts = [resolve_text(given, job.model, "" if isinstance(src, str | Path) else "src")]
        given = as_text_file(tgt, tgt_lang or "", job.work / "given.tgt.txt")
        texts += [resolve_text(given, job.model, "" if isinstance(tgt, str | Path) else "tgt")]
        langs = texts[0].lang, texts[1].lang
        own = None if known.gold or known.planted else model_threshold(job.model, langs, settings)
        settings = replace(settings, threshold=own.threshold) if own else settings
        fast = make_prefilter(prefilter, langs, settings) if prefilter else None
        texts = _plant(texts, known.planted, job.work)
        texts = fast.apply(texts, settings, job.work / "prefilter", job.engine) if fast else texts
        stores = encode_sides(texts, job.model, settings, job.work, job.engine)
        src_near, tgt_near, recall = find_neighbors(stores, settings, job.work, job.engine)
        pairs = select_pairs(src_near, tgt_near, settings.margin, settings.retrieval)
        calibration = _calibrate(pairs, stores, known)
        threshold = calibration.threshold.value if calibration else settings.threshold
        src_store, tgt_store = stores
        src_lines, tgt_lines = src_store.first_lines(), tgt_store.first_lines()
        kept = pairs.above(threshold)
        if known.planted:
            count = len(known.planted)
            own_src, own_tgt = src_lines < len(src_store.lines) - count, tgt_lines < len(tgt_store.lines) - count
            kept = kept.take(own_src[kept.src] & own_tgt[kept.tgt])
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
            "model": job.model.identity.name,
            "model_sha256": src_store.key.model_sha256,
            "backend": src_store.key.backend,
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
            "approximate_recall": recall,
            "prefilter": fast.origin if fast else None,
        }
        sides = sentences_at(texts[0].path, table.src_lines), sentences_at(texts[1].path, table.tgt_lines)
        write_pairs(job.file, table, sides, langs, origin)
        found = MiningResult(job.file, None, len(kept), len(pairs), threshold, calibration, recall)
        return job.result(replace(found, model_calibration=own))


def paraphrases(
    text: Texts,
    *,
    model: Model | str | Path = DEFAULT_MODEL,
    lang: str | None = None,
    out: str | Path | None = None,
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Finds pairs of sentences in one text that mean the same.

    Args:
        text: The text; equal lines are one sentence.
        model: Model that encodes the text, or its name.
        lang: Language of the text; recognised if None.
        out: File to write the pairs to, .tsv, .parquet or .tmx; None to keep them in memory.
        **options: See `MiningOptions`.

    Returns:
        The pairs by descending score, the earlier line first.

    Raises:
        ConfigError: An option value is invalid.
        DataError: The text has fewer than two different sentences.
        ModelError: The model cannot be opened, or lacks the language.
    """
    settings = parse_settings(options)
    with mining_job(out, model, options, (text,)) as job:
        given = as_text_file(text, lang or "", job.work / "given.txt")
        file = resolve_text(given, job.model, "" if isinstance(text, str | Path) else "text")
        store = encode_file(file, job.work / "src", job.model, settings.form, job.engine)
        if store.count < 2:
            raise DataError(f"{file.path}: {store.count} sentence; expected at least two that differ")
        wider = replace(settings, k=settings.k + 1)
        found, _, recall = find_neighbors([store, store], wider, job.work, job.engine)
        near = without_self(found, settings.k)
        pairs = _paraphrase_pairs(near, settings.margin).above(settings.threshold)
        means, lines = near.mean.round(COSINE_PLACES), store.first_lines() + 1
        table = PairTable(pairs.scores, means[pairs.src], means[pairs.tgt], lines[pairs.src], lines[pairs.tgt])
        origin = {
            "tool": "dualmoco paraphrases",
            "version": VERSION,
            "pairs": len(pairs),
            "model": job.model.identity.name,
            "model_sha256": store.key.model_sha256,
            "backend": store.key.backend,
            "lang": file.lang,
            "text_sha256": store.key.text_sha256,
            "margin": settings.margin.value,
            "k": settings.k,
            "threshold": settings.threshold,
            "approximate_recall": recall,
        }
        sides = sentences_at(file.path, table.src_lines), sentences_at(file.path, table.tgt_lines)
        write_pairs(job.file, table, sides, (file.lang, file.lang), origin)
        return job.result(MiningResult(job.file, None, len(pairs), len(pairs), settings.threshold, recall=recall))


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
    """What a call of `mine`, `score` or `paraphrases` works with."""

    model: Model
    engine: Engine
    file: Path  # file of pairs, in a temporary folder if `is_temporary`
    work: Path
    is_temporary: bool

    def result(self, found: MiningResult) -> MiningResult:
        """The result, with the pairs in memory if their file is temporary."""
        return replace(found, out=None, pairs=list(found)) if self.is_temporary else found


@contextmanager
def mining_job(
    out: str | Path | None, model: Model | str | Path, options: MiningOptions, inputs: Sequence[object]
) -> Iterator[MiningJob]:
    """Opens the model and the engine, and locks the work folder.

    The work folder is removed at the end unless it was named. It stays if the block fails, so that the same call
    resumes; without an output file, everything is temporary.
    """
    if out is not None:
        check_pairs_path(Path(out))
        check_replaceable([Path(out)], inputs, overwrite=options.get("overwrite", False), has_record=True)
    opened = model if isinstance(model, Model) else open_model(model, options.get("backend", AUTO))
    engine = open_engine(options.get("engine", "local"), options.get("address"))
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as temporary, showing(options.get("progress", True)):
        file = Path(out) if out is not None else Path(temporary) / "pairs.tsv"
        named = options.get("work")
        work = Path(named) if named else file.with_name(f"{file.name}.work")
        with locked(work):
            yield MiningJob(opened, engine, file, work, is_temporary=out is None)
        if not named and not options.get("keep"):
            shutil.rmtree(work)


def model_threshold(model: Model, langs: tuple[str, str], settings: MiningSettings) -> ModelCalibration | None:
    """The calibration of a model, which gives the threshold if none was given."""
    own = model.language(langs[0]), model.language(langs[1])
    return read_calibration(model, own, settings) if settings.threshold is None else None


def _plant(texts: list[TextFile], planted: Sequence[tuple[str, str]], work: Path) -> list[TextFile]:
    """Copies of both texts with the planted sentences at their ends, or the texts themselves if nothing is planted."""
    if not planted:
        return texts
    copies = []
    for side, text in enumerate(texts):
        path = work / f"planted.{side}.txt"
        lines = [*read_lines(text.path), *(pair[side] for pair in planted)]
        write_text(path, "".join(f"{line}\n" for line in lines))
        copies.append(replace(text, path=path))
    return copies


def _calibrate(pairs: ScoredPairs, stores: Sequence[Store], known: GoldPairs) -> Calibration | None:
    """The threshold that the known pairs choose; None if there are none.

    Pairs with a sentence that occurs several times are not used, because the line they mean is ambiguous.
    """
    src, tgt = stores[0].lines, stores[1].lines
    for a, b in known.gold:
        if not (1 <= a <= len(src) and 1 <= b <= len(tgt)):
            raise DataError(f"gold pair {a}, {b}; expected lines from 1 to {len(src):,} and from 1 to {len(tgt):,}")
    lines = [(a - 1, b - 1) for a, b in known.gold]
    lines += [(len(src) - number, len(tgt) - number) for number in range(len(known.planted), 0, -1)]
    counts = [np.bincount(side[side >= 0]) for side in (src, tgt)]
    rows = [(int(src[a]), int(tgt[b])) for a, b in lines if src[a] >= 0 and tgt[b] >= 0]
    unique = {a: b for a, b in rows if counts[0][a] == 1 and counts[1][b] == 1}
    return calibrate(pairs, unique, left_out=len(lines) - len(rows)) if unique else None


def without_self(near: Neighbors, k: int) -> Neighbors:
    """The k nearest other rows, from k + 1 nearest rows that include the row itself, unless ties pushed it out."""
    own = np.arange(len(near.ids))[:, None]
    others = np.argsort(near.ids == own, axis=1, kind="stable")[:, : min(k, near.ids.shape[1] - 1)]  # itself last
    return Neighbors(np.take_along_axis(near.ids, others, axis=1), np.take_along_axis(near.scores, others, axis=1))


def _paraphrase_pairs(near: Neighbors, margin: Margin) -> ScoredPairs:
    """Every row with each of its neighbours, each pair once, by descending score."""
    src = np.repeat(np.arange(len(near.ids)), near.ids.shape[1])
    tgt, cosines = near.ids.ravel(), near.scores.ravel()
    scores = margin_scores(cosines, near.mean[src], near.mean[tgt], margin)
    low, high = np.minimum(src, tgt), np.maximum(src, tgt)
    _, first = np.unique(low * len(near.ids) + high, return_index=True)
    return ScoredPairs.sorted(low[first], high[first], scores[first])
