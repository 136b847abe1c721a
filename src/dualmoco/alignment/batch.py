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

from dualmoco.alignment.documents import read_text
from dualmoco.alignment.output import aligned_pairs, count_links
from dualmoco.alignment.pairing import DocumentPair
from dualmoco.alignment.pipeline import AlignSettings, align_texts, keep_confident, write_outputs
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import Progress, counting, showing
from dualmoco.core.storage import file_sha256, locked, write_json
from dualmoco.core.version import VERSION
from dualmoco.embeddings.encode import model_opener
from dualmoco.embeddings.engine import Engine
from dualmoco.models.model import TORCH, Model

SUMMARY = "documents.json"


@dataclass(frozen=True)
class BatchSettings:
    """Settings of all alignments of a batch."""

    langs: tuple[str | None, str | None]
    align: AlignSettings
    min_confidence: float = 0.0
    page: bool = False
    """Whether to write an HTML page for each pair, next to its output."""


@dataclass(frozen=True)
class Outcome:
    """The result for one pair of documents."""

    src: str
    tgt: str
    out: str
    links: int = 0
    linked: int = 0
    mean_score: float | None = None
    error: str = ""
    """Why there is no output."""


def align_batch(
    pairs: Sequence[DocumentPair], out: Path, model: Model, settings: BatchSettings, engine: Engine
) -> list[Outcome]:
    """Aligns pairs of documents and writes `documents.json` to the folder `out`; returns one outcome per pair.

    Raises:
        RunError: The disk is full or not writable, or another process is writing to the folder.
    """
    work = Aligning(model, settings)
    with locked(out), counting("aligning", len(pairs), " documents") as progress:
        done = {number: outcome for number, pair in enumerate(pairs) if (outcome := work.finished(pair))}
        progress(len(done))
        left = [(number, pair) for number, pair in enumerate(pairs) if number not in done]
        for number, outcome in engine.run(work, left, progress):
            done[number] = outcome
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
