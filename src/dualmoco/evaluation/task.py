"""What an evaluation task is: it lists the sentences it needs, then scores the model's vectors of them.

`evaluate.py` collects the sentences of all tasks, encodes each distinct one once, and hands the vectors back to the
tasks as `Sentences`. `EvaluationResult` has everything that tables and the report page show. The modules `bucc`,
`sts`, `retrieval` and so on define the tasks; `tasks.py` lists them by name. Shapes: n sentences, D dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats, Vectors, check_vectors
from dualmoco.evaluation.metrics import Score
from dualmoco.models.model import Identity, Model
from dualmoco.text.files import read_lines

TextsByLanguage = Mapping[str, Iterable[str]]


class Sentences:
    """Distinct sentences of each language with their unit vectors."""

    def __init__(self, rows: Mapping[str, Mapping[str, int]], vectors: Mapping[str, Vectors]) -> None:
        self.rows, self.arrays = rows, dict(vectors)

    def vectors(self, texts: Sequence[str], lang: str) -> Vectors:
        """Unit vectors (n, D) of sentences that a task asked for; the texts may repeat."""
        rows = self.rows[lang]
        result: Vectors = self.arrays[lang][[rows[text] for text in texts]]
        return result

    def cosines(self, a: Sequence[str], b: Sequence[str], a_lang: str, b_lang: str) -> Floats:
        """Cosines (n,) of the i-th sentence of `a` with the i-th sentence of `b`."""
        cosines: Floats = np.einsum("nd,nd->n", self.vectors(a, a_lang), self.vectors(b, b_lang), dtype=np.float64)
        return cosines

    def texts(self, lang: str) -> list[str]:
        """The distinct sentences of a language."""
        return list(self.rows.get(lang, ()))


@dataclass(frozen=True)
class JudgedMining:
    """Pairs mined in one corpus, compared with its gold pairs. Shapes: p pairs by descending score."""

    scores: Floats  # (p,)
    correct: np.ndarray  # (p,) bool
    src_ids: Sequence[str]
    tgt_ids: Sequence[str]
    gold: Sequence[tuple[str, str]]
    threshold: float


@dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations, for figures and examples."""

    name: str  # name of the test set
    src_lang: str
    tgt_lang: str
    src: Sequence[str]
    tgt: Sequence[str]


@dataclass(frozen=True)
class TaskResult:
    """The scores of one task, and the data for a report."""

    scores: Sequence[Score]
    mined: JudgedMining | None = None
    parallel: ParallelText | None = None


class Task(Protocol):
    """A test set and how models are scored on it; its data are read and checked when it is created."""

    def texts(self) -> Mapping[str, Sequence[str]]:
        """The sentences it needs, by language."""

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Scores the model whose vectors are given."""


@dataclass(frozen=True)
class EvaluationResult:
    """The results of all tasks for one model; `Evaluation` in evaluate.py adds tables and files."""

    identity: Identity
    scores: Sequence[Score]
    sentences: Sentences
    mined: Sequence[JudgedMining] = field(default_factory=list)
    parallel: Sequence[ParallelText] = field(default_factory=list)
    about: str = ""  # description of the test sentences if they are not those of the published test sets
    peers: Sequence[EvaluationResult] = field(default_factory=list)  # results of other models on the same tasks


def distinct_sentences(wanted: Iterable[TextsByLanguage]) -> dict[str, dict[str, int]]:
    """Numbers the distinct sentences of each language in order of their first occurrence."""
    rows: dict[str, dict[str, int]] = {}
    for texts in wanted:
        for lang, side in texts.items():
            known = rows.setdefault(lang, {})
            for text in side:
                known.setdefault(text, len(known))
    return rows


def encode_distinct(model: Model, rows: Mapping[str, Mapping[str, int]]) -> dict[str, Vectors]:
    """Encodes the sentences of each language, given with their row numbers; vectors (n, D) are not normalized."""
    for lang in rows:
        model.backend(lang)  # fails for a missing language before any work
    arrays: dict[str, Vectors] = {}
    for lang, known in rows.items():
        texts = list(known)
        if not texts:
            raise DataError(f"no sentences of {lang} to encode; expected at least one")
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # similar lengths waste little padding
        found = model.encode_as([texts[row] for row in order], lang, normalize=False)
        check_vectors(found[:0], 0, f"{model.identity.name} ({lang})", model.dimension)
        arrays[lang] = np.empty_like(found)
        arrays[lang][order] = found
    return arrays


def require_path(path: Path, what: str) -> Path:
    """The path, if it exists; otherwise DataError says what was expected there."""
    if not path.exists():
        raise DataError(f"{path}: not found; expected {what} there: give the folder that contains eval/ with --data")
    return path


def read_sentences(path: Path) -> list[str]:
    """The lines of a file, one sentence per line; DataError if a line or the whole file is empty."""
    lines = list(read_lines(path))
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path}:{number}: empty line; expected a sentence on every line")
    if not lines:
        raise DataError(f"{path}: empty; expected one sentence per line")
    return lines
