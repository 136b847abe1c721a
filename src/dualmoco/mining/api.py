"""What people call: parallel sentences of two texts, scores of a bitext, paraphrases of a text.

Takes files or sentences, a model or its name, and settings as plain words; gives pairs, in a file if one is named. The
commands of the same names are thin over these.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from dualmoco.core.config_loader import VectorPrecision, parse_choice, parse_size
from dualmoco.core.errors import ConfigError
from dualmoco.core.progress import showing
from dualmoco.core.storage import locked
from dualmoco.data.readers.formats import check_format
from dualmoco.embeddings.engine import Engine
from dualmoco.embeddings.ray_engine import open_engine
from dualmoco.mining.io import Bitext, Problems, Texts, as_text_file, check_pairs_path, read_bitext, read_known
from dualmoco.mining.knn import PROBES, MineSettings
from dualmoco.mining.margins import Margin, Retrieval
from dualmoco.mining.mine import Narrowing, mine_files
from dualmoco.mining.paraphrases import mine_paraphrases
from dualmoco.mining.prefilter import make_prefilter
from dualmoco.mining.results import MiningResult
from dualmoco.mining.score import score_pairs
from dualmoco.mining.threshold import ModelCalibration, read_calibration
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, Model


class MiningOptions(TypedDict, total=False):
    """Settings that mining, scoring and paraphrases share."""

    threshold: float | None  # lowest score to accept; the model's own if None, all pairs if it carries none
    margin: str  # distance (default), ratio or absolute
    neighbors: int  # in each mean; 3
    approximate: bool  # compare only sentences of inverted lists close by, which needs FAISS
    probes: int  # inverted lists that a sentence visits on average; 14
    memory: str | int  # for candidates, such as "500M" or "4G"; "1G"
    precision: str  # of stored vectors: fp32 (default), fp16 or int8
    shard_rows: int  # sentences in a file of vectors; 65,536
    work: str | Path | None  # folder for vectors and neighbours, kept; beside the output, and removed, if None
    keep: bool  # keep the work folder even so
    engine: str | Engine  # local (default), ray, or an engine that is open
    address: str | None  # of a running Ray cluster; a new local one if None
    backend: str  # of a model given by its name: auto (default), torch, static, int8, onnx or onnx-int8
    progress: bool  # whether to show progress bars; True


def mine(
    src: Texts,
    tgt: Texts,
    *,
    model: Model | str | Path = DEFAULT_MODEL,
    src_lang: str = "en",
    tgt_lang: str = "zh",
    out: str | Path | None = None,
    retrieval: str = "max",
    gold: str | Path | Sequence[tuple[int, int]] | None = None,
    planted: str | Path | Sequence[tuple[str, str]] | None = None,
    prefilter: Model | str | Path | None = None,
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Finds the parallel sentences of two texts.

    Args:
        src: One text.
        tgt: The other.
        model: What encodes both, or its name.
        src_lang: Language of `src`.
        tgt_lang: Language of `tgt`.
        out: File for the pairs, .tsv, .parquet or .tmx; None to have them only here.
        retrieval: Which candidates become pairs: forward, backward, intersection or max.
        gold: True pairs as line numbers from 1, or a file of them, which choose the threshold.
        planted: Pairs of sentences, or a file of them, hidden among the lines for the same purpose.
        prefilter: A fast model, or its name, that leaves out sentences without a plausible partner beforehand; it must
            be calibrated.
        options: See `MiningOptions`.

    Returns:
        The pairs, by descending score.

    Raises:
        ConfigError: A setting that cannot be.
        DataError: Text that cannot be read or mined, or a work folder of something else.
        ModelError: A model that cannot be opened, or lacks a language.
    """
    settings = mine_settings(retrieval, options)
    known = read_known(gold, planted)
    if settings.threshold is not None and (gold is not None or planted is not None):
        raise ConfigError("a threshold together with gold or planted pairs; expected one of them")
    with _prepared(out, model, options) as (opened, engine, file, work):
        langs = (src_lang, tgt_lang)
        own = None if known.gold or known.planted else _own_threshold(opened, langs, settings)
        settings = replace(settings, threshold=own.threshold) if own else settings
        narrow = _narrow(prefilter, langs, settings, work / "prefilter", engine) if prefilter else None
        texts = as_text_file(src, src_lang, work / "given.src.txt"), as_text_file(tgt, tgt_lang, work / "given.tgt.txt")
        found = mine_files(*texts, opened, settings, file, work, engine, known, narrow)
        return _result(replace(found, model_calibration=own), out)


def score(
    pairs: Bitext,
    *,
    model: Model | str | Path = DEFAULT_MODEL,
    src_lang: str = "en",
    tgt_lang: str = "zh",
    out: str | Path | None = None,
    tgt_file: str | Path | None = None,
    form: str = "auto",
    on_error: str = "stop",
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Scores the pairs of a bitext against the other sentences of its two sides, to filter it.

    Args:
        pairs: The bitext.
        model: What encodes both sides, or its name.
        src_lang: Language of the sources.
        tgt_lang: Language of the targets.
        out: File for the pairs above the threshold, .tsv, .parquet or .tmx; None to have them only here.
        tgt_file: The translations, if `pairs` is a file of source lines alone.
        form: Format of the file, if its extension does not say.
        on_error: What happens at a line that cannot be read: stop, or skip it.
        options: See `MiningOptions`.

    Returns:
        The accepted pairs in their order, and quantiles of all scores.

    Raises:
        ConfigError: A setting that cannot be.
        DataError: A bitext that cannot be read, no pair, or a pair with an empty side.
        ModelError: A model that cannot be opened, or lacks a language.
    """
    if on_error not in ("stop", "skip"):
        raise ConfigError(f"on_error {on_error}; expected stop or skip")
    check_format(form)
    settings = mine_settings(Retrieval.max.value, options)
    with _prepared(out, model, options) as (opened, engine, file, work):
        own = _own_threshold(opened, (src_lang, tgt_lang), settings)
        settings = replace(settings, threshold=own.threshold) if own else settings
        problems = Problems(pairs, skip=on_error == "skip")
        rows = read_bitext(pairs, (src_lang, tgt_lang), tgt_file, form, problems)
        found = score_pairs(rows, (src_lang, tgt_lang), opened, settings, file, work, engine, report=problems.report)
        return _result(replace(found, unreadable=problems.count, model_calibration=own), out)


def paraphrases(
    text: Texts,
    *,
    model: Model | str | Path = DEFAULT_MODEL,
    lang: str = "en",
    out: str | Path | None = None,
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Finds the sentences of one text that say the same.

    Args:
        text: The text.
        model: What encodes it, or its name.
        lang: Its language.
        out: File for the pairs, .tsv, .parquet or .tmx; None to have them only here.
        options: See `MiningOptions`.

    Returns:
        The pairs by descending score, the earlier line first.

    Raises:
        ConfigError: A setting that cannot be.
        DataError: Fewer than two different sentences.
        ModelError: A model that cannot be opened, or lacks the language.
    """
    settings = mine_settings(Retrieval.max.value, options)
    with _prepared(out, model, options) as (opened, engine, file, work):
        given = as_text_file(text, lang, work / "given.txt")
        return _result(mine_paraphrases(given, opened, settings, file, work, engine), out)


def _own_threshold(model: Model, langs: tuple[str, str], settings: MineSettings) -> ModelCalibration | None:
    """What the model carries, where no threshold was given."""
    return read_calibration(model, langs, settings) if settings.threshold is None else None


def _narrow(
    model: Model | str | Path, langs: tuple[str, str], settings: MineSettings, work: Path, engine: Engine
) -> Narrowing:
    """What leaves out sentences without a plausible partner."""
    prefilter = make_prefilter(model if isinstance(model, Model) else open_model(model), langs, settings)
    identity = prefilter.model.identity
    origin = {"model": identity.name, "model_sha256": identity.sha256, "floor": prefilter.floor}
    return Narrowing(lambda texts: prefilter.apply(texts, settings, work, engine), origin)


def mine_settings(retrieval: str, options: MiningOptions) -> MineSettings:
    """Settings of mining from plain words; ConfigError for one that cannot be, or if FAISS is needed and missing."""
    defaults = MineSettings()
    settings = MineSettings(
        parse_choice(VectorPrecision, options.get("precision", defaults.precision), "precision"),
        parse_choice(Margin, options.get("margin", defaults.margin), "margin"),
        options.get("neighbors", defaults.k),
        parse_choice(Retrieval, retrieval, "retrieval"),
        options.get("threshold"),
        options.get("approximate", False),
        options.get("probes", PROBES),
        parse_size(options.get("memory", defaults.memory), "memory"),
        options.get("shard_rows", defaults.shard_rows),
    )
    counts = {"neighbors": settings.k, "probes": settings.probes, "shard_rows": settings.shard_rows}
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name} {count}; expected at least 1")
    if settings.approximate:
        from dualmoco.search.ivf import require_faiss

        require_faiss()
    return settings


@contextmanager
def _prepared(
    out: str | Path | None, model: Model | str | Path, options: MiningOptions
) -> Iterator[tuple[Model, Engine, Path, Path]]:
    """Gives the model, the engine, the file to write and a folder to work in, which is removed unless it was named.

    The folder stays when the block fails, so that the same call resumes; without an output everything is temporary.
    """
    if out is not None:
        check_pairs_path(Path(out))
    opened = model if isinstance(model, Model) else open_model(model, options.get("backend", AUTO))
    engine = open_engine(options.get("engine", "local"), options.get("address"))
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as temporary, showing(options.get("progress", True)):
        file = Path(out) if out is not None else Path(temporary) / "pairs.tsv"
        named = options.get("work")
        work = Path(named) if named else file.with_name(f"{file.name}.work")
        with locked(work):
            yield opened, engine, file, work
        if not named and not options.get("keep"):
            shutil.rmtree(work)


def _result(found: MiningResult, out: str | Path | None) -> MiningResult:
    """What was found, with the pairs in memory if their file is temporary."""
    return found if out is not None else replace(found, out=None, pairs=list(found))
