"""Aligns many pairs of documents, in this process or on a Ray cluster, with one output file per pair.

A pair whose output was made from the same texts with the same model and settings is not aligned again, so an
interrupted batch resumes. A pair that cannot be aligned is reported, and the others are still aligned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack, cast

from dualmoco.alignment.documents import read_text
from dualmoco.alignment.output import ALIGNMENT_ENDINGS, aligned_pairs, count_links
from dualmoco.alignment.pairing import DocumentPair, pairs_by_content, pairs_by_name, pairs_of_list
from dualmoco.alignment.pipeline import (
    AlignOptions,
    AlignSettings,
    align_settings,
    align_texts,
    check_outputs,
    keep_confident,
    write_outputs,
)
from dualmoco.core.config_loader import check_options
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import Progress, counting, showing
from dualmoco.core.storage import file_sha256, locked, write_json
from dualmoco.core.version import VERSION
from dualmoco.embeddings.encode import model_opener
from dualmoco.embeddings.engine import Engine
from dualmoco.embeddings.ray_engine import open_engine
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, TORCH, Model

SUMMARY = "documents.json"


@dataclass(frozen=True)
class BatchSettings:
    """Settings of all alignments of a batch."""

    langs: tuple[str | None, str | None]
    align: AlignSettings
    min_confidence: float = 0.0
    page: bool = False  # whether to write an HTML page for each pair, next to its output


@dataclass(frozen=True)
class Outcome:
    """The result for one pair of documents."""

    src: str
    tgt: str
    out: str
    links: int = 0
    linked: int = 0
    mean_score: float | None = None
    error: str = ""  # why there is no output


class BatchOptions(AlignOptions, total=False):
    """Options of `align_folders` and `align_list`: those of `align`, and these."""

    model: Model | str | Path  # a model, or its name; en-zh
    src_lang: str | None  # language of the source documents; guessed if None
    tgt_lang: str | None  # language of the target documents; guessed if None
    to: str  # format of the outputs: tsv (default), tmx, parquet or xml
    pages: bool  # write an HTML page next to each output; False
    engine: str | Engine  # local (default), ray, or an engine that is already open
    address: str | None  # address of a running Ray cluster; None starts a local one


def align_folders(
    src: str | Path, tgt: str | Path, out: str | Path, *, match: bool = False, **options: Unpack[BatchOptions]
) -> list[Outcome]:
    """Aligns the documents of two folders, with one output file per pair of documents; resumes if interrupted.

    Args:
        src: Folder of source documents.
        tgt: Folder of their translations.
        out: Folder for the outputs and their summary, `documents.json`.
        match: Pair documents by their content instead of their names.
        **options: See `BatchOptions`.

    Returns:
        One outcome per pair; a pair that cannot be aligned has its `error`.

    Raises:
        ConfigError: An option is invalid, or `out` is a file.
        DataError: A folder has no documents, or none of them have a partner.
        ModelError: The model cannot be opened, or lacks a language.
    """

    def find_pairs(batch: BatchSettings, model: Model, ending: str) -> list[DocumentPair]:
        if match:
            return pairs_by_content(Path(src), Path(tgt), batch.langs, model, batch.align, Path(out), ending)
        known = model.languages or ["en", "zh"]
        sides = [[lang] if lang else known for lang in batch.langs]
        names = [(one, other) for one in sides[0] for other in sides[1] if one != other]
        return pairs_by_name(Path(src), Path(tgt), names or [(sides[0][0], sides[1][0])], Path(out), ending)

    return _align_pairs(find_pairs, Path(out), options)


def align_list(pairs: str | Path, out: str | Path, **options: Unpack[BatchOptions]) -> list[Outcome]:
    """Aligns the documents that a tab-separated list names: source, target and, optionally, output name.

    Args:
        pairs: File with one pair of documents per line.
        out: Folder for the outputs and their summary, `documents.json`.
        **options: See `BatchOptions`.

    Returns:
        One outcome per pair; a pair that cannot be aligned has its `error`.

    Raises:
        ConfigError: An option is invalid, or `out` is a file.
        DataError: The list cannot be read.
        ModelError: The model cannot be opened, or lacks a language.
    """
    return _align_pairs(lambda batch, model, ending: pairs_of_list(Path(pairs), Path(out), ending), Path(out), options)


def _align_pairs(
    find_pairs: Callable[[BatchSettings, Model, str], list[DocumentPair]], out: Path, options: BatchOptions
) -> list[Outcome]:
    check_options(options, BatchOptions)
    ending = f".{options.get('to', 'tsv')}"
    if out.is_file() or out.suffix in ALIGNMENT_ENDINGS:
        raise ConfigError(f"{out}: a file; expected a folder for several documents")
    check_outputs(out / f"name{ending}", None)
    own = cast(AlignOptions, {name: value for name, value in options.items() if name in AlignOptions.__annotations__})
    langs = options.get("src_lang"), options.get("tgt_lang")
    settings = align_settings(own)
    batch = BatchSettings(langs, settings, options.get("min_confidence", 0.0), options.get("pages", False))
    given = options.get("model", DEFAULT_MODEL)
    model = given if isinstance(given, Model) else open_model(given, options.get("backend", AUTO))
    engine = open_engine(options.get("engine", "local"), options.get("address"))
    with showing(options.get("progress", True)):
        return align_batch(find_pairs(batch, model, ending), out, model, batch, engine)


def align_batch(
    pairs: Sequence[DocumentPair], out: Path, model: Model, settings: BatchSettings, engine: Engine
) -> list[Outcome]:
    """Aligns pairs of documents and writes `documents.json` to the folder `out`, which is locked meanwhile."""
    work = Aligning(model, settings)
    with locked(out), counting("aligning", len(pairs), " documents") as progress:
        done = {number: outcome for number, pair in enumerate(pairs) if (outcome := work.finished(pair))}
        progress(len(done))
        left = [(number, pair) for number, pair in enumerate(pairs) if number not in done]
        done.update(engine.run(work, left, progress))
        outcomes = [done[number] for number in range(len(pairs))]
        write_json(out / SUMMARY, [asdict(outcome) for outcome in outcomes])
    return outcomes


@dataclass(frozen=True)
class Aligning:
    """The work of an engine: aligns two documents and writes their links."""

    model: Model
    settings: BatchSettings

    @property
    def wants_gpu(self) -> bool:
        """Whether a model runs in PyTorch, the only back-end that uses GPUs."""
        languages = self.model.languages or [lang for lang in self.settings.langs if lang]
        return any(self.model.backend(lang).name == TORCH for lang in languages)

    def open(self) -> Callable[[DocumentPair, Progress], Outcome]:
        """The function that aligns one pair."""
        return self._align

    def size(self, piece: DocumentPair) -> int:
        """Each pair counts as one."""
        return 1

    def opener(self) -> Callable[[], Callable[[DocumentPair, Progress], Outcome]]:
        """Opens the model by name in another process."""
        return partial(_open_aligning, model_opener(self.model), self.settings)

    def key(self, pair: DocumentPair) -> str:
        """Hash of everything that the output of a pair depends on."""
        checksums = file_sha256(pair.src), file_sha256(pair.tgt)
        inputs = [VERSION, self.model.identity.sha256, asdict(self.settings), *checksums]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()

    def finished(self, pair: DocumentPair) -> Outcome | None:
        """The outcome of a pair whose outputs exist and are up to date; None otherwise."""
        note = pair.out.with_name(f"{pair.out.name}.json")
        try:
            made = json.loads(note.read_text(encoding="utf-8"))
            is_complete = pair.out.is_file() and (not self.settings.page or pair.page.is_file())
            if not is_complete or made["key"] != self.key(pair):
                return None
            return Outcome(*pair.names, made["links"], made["linked"], made["mean_score"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _align(self, pair: DocumentPair, progress: Progress) -> Outcome:
        try:
            with showing(False):
                texts = read_text(pair.src), read_text(pair.tgt)
                made = align_texts(*texts, self.settings.langs, self.model, self.settings.align)
        except (ConfigError, DataError, ModelError) as error:
            progress(1)
            return Outcome(*pair.names, error=str(error))
        kept = keep_confident(made, self.settings.min_confidence)
        kept = replace(kept, origin={**kept.origin, "key": self.key(pair)})
        write_outputs(kept, pair.out, pair.page if self.settings.page else None)
        counts = count_links(aligned_pairs(kept))
        progress(1)
        return Outcome(*pair.names, counts.links, counts.linked, counts.mean_score)


def _open_aligning(
    open_model: Callable[[], Model], settings: BatchSettings
) -> Callable[[DocumentPair, Progress], Outcome]:
    return Aligning(open_model(), settings).open()
