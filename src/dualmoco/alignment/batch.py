"""Many pairs of documents, one output file each: resumed where it stopped, in this process or on a Ray cluster.

Takes pairs of files from folders.py, gives an `Outcome` each. A pair whose output is there, made of the same texts by
the same model and settings, is not aligned again; one that cannot be aligned is reported, and the others go on.
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
    """What decides all alignments of a batch."""

    langs: tuple[str | None, str | None]
    align: AlignSettings
    min_confidence: float = 0.0
    page: bool = False
    """Whether each pair gets a page too, beside its output."""


@dataclass(frozen=True)
class Outcome:
    """What came of one pair of documents."""

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
    """Aligns pairs of documents.

    Args:
        pairs: Documents and their output files.
        out: Folder of all outputs, for the summary.
        model: What encodes them.
        settings: What decides.
        engine: Where it runs.

    Returns:
        One outcome a pair, in their order; also in `documents.json`.

    Raises:
        RunError: The disk is full or not writable, or another process is at work in the folder.
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
    """The work of an engine: two documents to a file of links."""

    model: Model
    settings: BatchSettings

    @property
    def wants_gpu(self) -> bool:
        """PyTorch alone runs on GPUs."""
        languages = self.model.languages or [lang for lang in self.settings.langs if lang]
        return any(self.model.backend(lang).name == TORCH for lang in languages)

    def open(self) -> Callable[[DocumentPair, Progress], Outcome]:
        """What aligns one pair."""
        return self._align

    def size(self, piece: DocumentPair) -> int:
        """Every pair counts one."""
        return 1

    def opener(self) -> Callable[[], Callable[[DocumentPair, Progress], Outcome]]:
        """Opens the model by name in another process."""
        return partial(_open_aligning, model_opener(self.model), self.settings)

    def key(self, pair: DocumentPair) -> str:
        """What decides the output of a pair."""
        decides = [
            VERSION,
            self.model.identity.sha256,
            asdict(self.settings),
            file_sha256(pair.src),
            file_sha256(pair.tgt),
        ]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def finished(self, pair: DocumentPair) -> Outcome | None:
        """What came of a pair whose outputs are there already, made of the same; None if they are to be made."""
        note = pair.out.with_name(f"{pair.out.name}.json")
        try:
            made = json.loads(note.read_text(encoding="utf-8"))
            whole = pair.out.is_file() and (not self.settings.page or pair.page.is_file())
            if not whole or made["key"] != self.key(pair):
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
