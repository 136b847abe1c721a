"""Adds a language to a model: a bitext of one of its languages and a new language in, the extended model out.

The pairs are prepared, a table of token vectors is trained against the frozen encoder of the known language, and the
table is stored as int8 next to copies of the existing encoders. Unfinished work is in the folder OUT.work, from which
the same call resumes.
"""

from __future__ import annotations

import itertools
import logging
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualmoco.core.errors import ConfigError, DataError, ModelError, RunError
from dualmoco.core.progress import showing
from dualmoco.core.signals import Terminated, exiting_on_sigterm
from dualmoco.core.storage import locked, new_folder, read_json, write_json, write_text
from dualmoco.data.config import DataConfig, PrepareConfig
from dualmoco.data.manifest import is_prepared, read_prepared_manifest
from dualmoco.data.prepare import prepare, prepare_settings
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs
from dualmoco.mining.io import Problems, read_bitext
from dualmoco.mining.threshold import FEWEST_HELD_OUT, calibrate_model, copy_calibrations, distinct_pairs
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.folder import MODEL_CARD, copy_model, portable_name, read_conversion
from dualmoco.models.load import open_model
from dualmoco.models.model import STATIC, Model, warn_of_language
from dualmoco.models.routes import add_routes, merge_conversions, open_languages, pack_layers, write_model_record
from dualmoco.search.exact import nearest_both_ways
from dualmoco.text.files import find_files
from dualmoco.text.languages import (
    SCRIPTS,
    WITHOUT_SPACES,
    Chinese,
    apparent_language,
    base_language,
    find_language,
    recognize_language,
)
from dualmoco.training.config import ContrastConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from dualmoco.training.merge import JoinedLanguage, check_new_folder, joined_record, language_card, read_joined
from dualmoco.training.run import train
from dualmoco.training.trainer import TrainResult

DEFAULT_MINUTES = 5.0
DEFAULT_VOCABULARY = 22_000
LONGEST_PIECE, LONGEST_PIECE_WITHOUT_SPACES = 16, 4  # characters of a vocabulary entry
CONTRAST = ContrastConfig(queue_size=8192, temperature=0.07)
OPTIMIZER = OptimizerConfig(lr=2e-2, warmup_steps=100, weight_decay=0.0, batch_size=512)
FEWEST_PAIRS = 1000  # minimum pairs of a bitext
FEWEST_TOKENS = 1000  # minimum tokens of a vocabulary
MOST_HELD_OUT_PAIRS, HELD_OUT_SHARE = 2000, 0.1
COUNTED_PAIRS = 20_000  # pairs read before the work starts, to recognise languages
WORK_RECORD = "join.json"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Joined:
    """A summary of the new model."""

    out: str
    lang: str  # the new language
    languages: list[str]  # all languages of the model
    pairs: int  # trained on
    heldout: int  # pairs held out
    to_known: float  # share of the held-out sentences whose nearest neighbour is their translation
    from_known: float  # the same in the other direction
    threshold: float  # default threshold of `mine`
    precision: float  # precision above the threshold, if 3 % of the lines have a translation
    recall: float
    steps: int
    minutes: float
    bytes: int  # size of the model
    sha256: str  # checksum of the model


@dataclass(frozen=True)
class _Job:
    """A model, the language that joins it, and the settings."""

    base: Model
    folder: Path  # of the base
    name: str  # of the base, in any working directory
    langs: tuple[str, str]  # of both sides of the bitext
    known: str  # the one of them that the base has
    prepare: PrepareConfig
    minutes: float
    vocabulary: int
    out: Path
    work: Path

    @property
    def new(self) -> str:
        """The language that joins."""
        return self.langs[1] if self.known == self.langs[0] else self.langs[0]

    def record(self) -> dict[str, Any]:
        """The settings that must be the same when the work is resumed."""
        corpora, exclude = self.prepare.corpora, self.prepare.exclude.files
        files = [name for corpus in corpora for name in (*corpus.files, *corpus.tgt_files)]
        return {
            "model": self.base.identity.sha256,
            "languages": list(self.langs),
            "minutes": self.minutes,
            "vocabulary": self.vocabulary,
            "pairs": [_describe(path) for path in find_files(files, ".", folders=True)],
            "format": [[corpus.format, *corpus.columns] for corpus in corpora],
            "exclude": [_describe(path) for path in find_files(exclude, ".")],
        }


def _describe(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def join(
    model: str | Path,
    pairs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    tgt_files: Sequence[str | Path] = (),
    format: str = "auto",
    columns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    minutes: float = DEFAULT_MINUTES,
    vocabulary: int = DEFAULT_VOCABULARY,
    on_error: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Joined:
    """Adds a language to a model; the vectors of the other languages do not change.

    Args:
        model: A model with one encoder per language, such as `en-zh-static` or a folder that this function wrote.
        pairs: One or more bitext files of the new language and a language of the model.
        out: Folder to write; unfinished work is in OUT.work, and the same call resumes it.
        src_lang: Language of the first side; recognised if None.
        tgt_lang: Language of the second side; recognised if None.
        tgt_files: Second sides of line-aligned files, one per file in `pairs`.
        format: Format of the files (default: by extension).
        columns: Columns of both sides, by name or number.
        exclude: Test files, or globs, whose sentences must not be in the training pairs.
        minutes: Training time in minutes.
        vocabulary: Number of token vectors of the new language; each takes one byte per dimension of the model.
        on_error: What to do with unreadable lines: stop (default) or skip.
        overwrite: Whether to replace an existing folder.
        progress: Whether to show progress bars.

    Returns:
        A summary of the model, with its accuracy on held-out pairs.

    Raises:
        ConfigError: A setting is invalid, or the folder exists.
        DataError: A file cannot be read, or there are too few pairs.
        ModelError: The model cannot be opened, is of another kind, or has both or neither of the languages.
        RunError: The work folder belongs to another call or is in use, or the disk is full.
    """
    if not 0 < minutes < math.inf:
        raise ConfigError(f"{minutes:g} minutes of training; expected a number above 0")
    if vocabulary < FEWEST_TOKENS:
        raise ConfigError(f"a vocabulary of {vocabulary}; expected at least {FEWEST_TOKENS:,}, for example 22000")
    out = Path(out)
    check_new_folder(out, [Path(model)], overwrite=overwrite)
    base, folder = open_languages(model)
    files = [pairs] if isinstance(pairs, str | Path) else list(pairs)
    named = {"tgt_files": tgt_files, "format": format, "columns": columns, "exclude": exclude, "on_error": on_error}
    given = prepare_settings(files, src=src_lang or "en", tgt=tgt_lang or "zh", out=out, **named)  # type: ignore[arg-type]
    sample = list(itertools.islice(_read_sample(given), COUNTED_PAIRS))
    if len(sample) < FEWEST_PAIRS:
        raise DataError(
            f"{files[0]}: {len(sample):,} pairs; expected at least {FEWEST_PAIRS:,} to learn a language from"
        )
    langs, known = _find_languages(base, sample, (src_lang, tgt_lang))
    work = out.with_name(f"{out.name}.work")
    settings = [f"heldout={_held_out(len(sample))}", *_cleaning(langs, folder)]
    if len(sample) < COUNTED_PAIRS:
        settings.append("workers=1")  # starting processes would take longer
    chosen = prepare_settings(files, settings, src=langs[0], tgt=langs[1], out=work / "prepared", **named)  # type: ignore[arg-type]
    job = _Job(base, folder, portable_name(str(model)), langs, known, chosen, float(minutes), vocabulary, out, work)
    with showing(progress), exiting_on_sigterm():
        with locked(work):
            done = _join(job)
        shutil.rmtree(work)
    return done


def _read_sample(config: PrepareConfig) -> Iterator[tuple[str, str]]:
    """Yields the readable pairs of all files."""
    for corpus in config.corpora:
        columns = (corpus.columns[0], corpus.columns[1]) if corpus.columns else None
        tgt_files = find_files(corpus.tgt_files, config.root)
        for number, file in enumerate(find_files(corpus.files, config.root, folders=True)):
            source = Source(file, config.src, config.tgt, columns, tgt_files[number] if tgt_files else None)
            rows = read_pairs(source, corpus.format, report=lambda line, what: None)
            yield from ((row.src, row.tgt) for row in rows)


def _find_languages(
    base: Model, sample: Sequence[tuple[str, str]], given: tuple[str | None, str | None]
) -> tuple[tuple[str, str], str]:
    """The languages of both sides, and the one of them that the model has; ModelError unless it is exactly one."""
    own, found = base.languages or [], []
    for side, lang in enumerate(given):
        texts = [pair[side] for pair in sample]
        code = lang or recognize_language(texts, None)
        if not code:
            raise ConfigError(f"side {side + 1} of the pairs: language not recognised; give it with --src and --tgt")
        if lang and (looks := apparent_language(texts, lang)):
            warn_of_language(f"side {side + 1} of the pairs", looks, lang)
        found.append(find_language(code, own) or code)
    name, known = base.identity.name, [lang for lang in found if lang in own]
    if len(known) == 2:
        raise ModelError(
            f"{name}: already has {' and '.join(dict.fromkeys(known))}; expected pairs of one of its languages "
            f"({', '.join(own)}) with a new one"
        )
    if not known:
        raise ModelError(
            f"{name}: has {', '.join(own)}, and the pairs are {' and '.join(found)}; expected one of its languages "
            "on one side: give them with --src and --tgt if they are wrong"
        )
    return (found[0], found[1]), known[0]


def _held_out(pairs: int) -> int:
    """The number of pairs to hold out: more than calibration needs, because it uses only distinct sentences."""
    return min(MOST_HELD_OUT_PAIRS, max(FEWEST_HELD_OUT + FEWEST_HELD_OUT // 4, round(HELD_OUT_SHARE * pairs)))


def _cleaning(langs: tuple[str, str], folder: Path) -> list[str]:
    """Settings of `prepare`: Chinese in the script of the model, and no check of scripts if one is unknown."""
    bases = [base_language(lang) for lang in langs]
    chinese = read_conversion(folder).chinese
    settings = []
    if "zh" in bases:
        settings.append(f"clean.chinese={Chinese.simplified if chinese == Chinese.keep else chinese}")
    if not all(lang in SCRIPTS for lang in bases):
        settings.append("clean.min_script=0")
    return settings


def _join(job: _Job) -> Joined:
    """Runs the remaining steps."""
    _check_work(job)
    if not is_prepared(job.work / "prepared"):
        prepare(job.prepare)
    shard = job.work / "prepared" / "heldout-00000.parquet"
    rows = read_bitext(shard, job.langs, None, "auto", Problems(shard, skip=False))
    heldout = distinct_pairs((row.src, row.tgt) for row in rows)
    if len(heldout) < FEWEST_HELD_OUT:
        raise DataError(
            f"{len(heldout)} different pairs held out; expected at least {FEWEST_HELD_OUT} to measure and calibrate "
            "with: give more pairs"
        )
    config = _recipe(job)
    result = train(config, resume=True)
    if result.stop.startswith("SIG"):
        raise KeyboardInterrupt if result.stop == "SIGINT" else Terminated
    return _assemble(job, heldout, result)


def _check_work(job: _Job) -> None:
    """Writes the record of the work; RunError if it was started with other settings, except for fewer minutes."""
    path, record = job.work / WORK_RECORD, job.record()
    old = read_json(path) if path.is_file() else record
    for key, value in record.items():
        if old[key] != value and not (key == "minutes" and old[key] < value):
            raise RunError(
                f"{job.work}: was started with other {key}; give the same command to resume, or remove the folder"
            )
    write_json(path, record)


def _recipe(job: _Job) -> TrainConfig:
    """The training run: the encoder of the known language is frozen, and a new table learns to match it."""
    longest = LONGEST_PIECE_WITHOUT_SPACES if base_language(job.new) in WITHOUT_SPACES else LONGEST_PIECE
    sides = {
        job.known: EncoderConfig(job.known, EncoderKind.pretrained, name=job.name, frozen=True),
        job.new: EncoderConfig(
            job.new,
            EncoderKind.static,
            width=job.base.dimension,
            vocab_size=job.vocabulary,
            max_piece_length=longest,
            dropout=0.0,
        ),
    }
    return TrainConfig(
        out=str(job.work / "run"),
        src=sides[job.langs[0]],
        tgt=sides[job.langs[1]],
        data=DataConfig(prepared=str(job.work / "prepared"), heldout=MOST_HELD_OUT_PAIRS),
        contrast=CONTRAST,
        optimizer=OPTIMIZER,
        schedule=_schedule(job.minutes),
    )


def _schedule(minutes: float) -> ScheduleConfig:
    return ScheduleConfig(minutes=minutes, evaluate_every=500, checkpoint_every=500, log_every=50)


def _assemble(job: _Job, heldout: Sequence[tuple[str, str]], result: TrainResult) -> Joined:
    """Writes the model: the files of the base, the new table, thresholds and a card."""
    trained = job.work / "run" / "model"
    conversion = merge_conversions([job.folder, trained])
    manifest = read_prepared_manifest(job.work / "prepared")
    with new_folder(job.out) as folder:
        folder.rmdir()
        copy_model(job.folder, folder)
        added = add_routes(folder, trained, [job.new])
        if all(job.base.backend(lang).name == STATIC for lang in job.base.languages or ()):
            pack_layers(added)
        write_model_record(folder, conversion, {})
        to_known, from_known = _accuracy(open_model(folder), job, heldout)
        new = JoinedLanguage(
            job.new,
            job.known,
            job.base.identity.name,
            job.base.identity.sha256,
            {corpus["name"]: corpus["train"] for corpus in manifest["corpora"]},
            manifest["test_sentences"],
            len(heldout),
            round(to_known, 4),
            round(from_known, 4),
            result.step,
            round(result.seconds / 60, 2),
        )
        write_model_record(folder, conversion, joined_record(read_joined(job.folder), new))
        model = open_model(folder)
        copy_calibrations([job.base], model)
        found = calibrate_model(folder, heldout, src_lang=job.langs[0], tgt_lang=job.langs[1])
        write_text(folder / MODEL_CARD, language_card(job.out.name, folder, model, job.folder))
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Joined(
        str(job.out),
        job.new,
        list(model.languages or ()),
        sum(new.corpora.values()),
        new.heldout,
        new.to_known,
        new.from_known,
        found.threshold,
        found.precision,
        found.recall,
        new.steps,
        new.minutes,
        size,
        model.identity.sha256,
    )


def _accuracy(model: Model, job: _Job, heldout: Sequence[tuple[str, str]]) -> tuple[float, float]:
    """Retrieval accuracy of held-out translations, from and to the new language."""
    vectors = {lang: model.encode([pair[side] for pair in heldout], lang=lang) for side, lang in enumerate(job.langs)}
    near = nearest_both_ways(vectors[job.new], vectors[job.known], 1)
    return float(near[0].found_translations.mean()), float(near[1].found_translations.mean())
