"""What a task of the evaluation is, and what comes of tasks: scores, and what a report can draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dualmoco.core.vectors import Floats
from dualmoco.evaluation.score import Score
from dualmoco.evaluation.sentences import Sentences
from dualmoco.models.model import Identity


@dataclass(frozen=True)
class JudgedMining:
    """Pairs mined in one corpus, judged by its gold; shapes: p pairs by descending score."""

    scores: Floats  # (p,)
    correct: np.ndarray  # (p,) bool
    src_ids: Sequence[str]
    tgt_ids: Sequence[str]
    gold: Sequence[tuple[str, str]]
    threshold: float


@dataclass(frozen=True)
class Parallel:
    """Translations of each other, to be shown."""

    name: str
    """Of the test set they are from."""
    src_lang: str
    tgt_lang: str
    src: Sequence[str]
    tgt: Sequence[str]


@dataclass(frozen=True)
class Result:
    """A task's scores, and what a report can draw of it."""

    scores: Sequence[Score]
    mined: JudgedMining | None = None
    parallel: Parallel | None = None


class Task(Protocol):
    """A test set and how models are scored on it. Its data are read and checked when it is made."""

    def texts(self) -> Mapping[str, Sequence[str]]:
        """The sentences it needs, by language."""

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Scores the model whose vectors are given."""


@dataclass(frozen=True)
class Findings:
    """What came of all tasks of one model: everything that tables and a page show."""

    identity: Identity
    scores: Sequence[Score]
    sentences: Sentences
    mined: Sequence[JudgedMining] = field(default_factory=list)
    parallel: Sequence[Parallel] = field(default_factory=list)
    about: str = ""
    """What the test sentences are, where they are not those of the published test sets."""
