"""The sentences that tasks ask for, each encoded once. Shapes: n sentences, D dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats, Vectors, check_vectors
from dualmoco.evaluation.score import Score
from dualmoco.models.model import Identity, Model

Texts = Mapping[str, Iterable[str]]


class Sentences:
    """Distinct sentences of each language with their unit vectors."""

    def __init__(self, rows: Mapping[str, Mapping[str, int]], vectors: Mapping[str, Vectors]) -> None:
        self.rows, self.arrays = rows, dict(vectors)

    def vectors(self, texts: Sequence[str], lang: str) -> Vectors:
        """Unit vectors (n, D) of sentences that were asked for, repeated ones repeated."""
        rows = self.rows[lang]
        result: Vectors = self.arrays[lang][[rows[text] for text in texts]]
        return result

    def cosines(self, a: Sequence[str], b: Sequence[str], a_lang: str, b_lang: str) -> Floats:
        """Cosines (n,) of each sentence of `a` with the one beside it in `b`."""
        cosines: Floats = np.einsum("nd,nd->n", self.vectors(a, a_lang), self.vectors(b, b_lang), dtype=np.float64)
        return cosines

    def texts(self, lang: str) -> list[str]:
        """The distinct sentences of a language."""
        return list(self.rows.get(lang, ()))


def distinct_sentences(wanted: Iterable[Texts]) -> dict[str, dict[str, int]]:
    """Numbers the distinct sentences of each language in the order they are first asked for."""
    rows: dict[str, dict[str, int]] = {}
    for texts in wanted:
        for lang, side in texts.items():
            known = rows.setdefault(lang, {})
            for text in side:
                known.setdefault(text, len(known))
    return rows


def encode_distinct(model: Model, rows: Mapping[str, Mapping[str, int]]) -> dict[str, Vectors]:
    """Encodes every distinct sentence once, as the model gives it.

    Args:
        model: Any model.
        rows: Sentences of each language with their row numbers.

    Returns:
        Vectors (n, D) of each language.

    Raises:
        ModelError: The model lacks a language.
        DataError: Vectors with NaN, or of different dimensions.
    """
    dimensions = [model.backend(lang).dimension for lang in rows]  # of a missing language an error, before work
    arrays: dict[str, Vectors] = {}
    for lang, known in rows.items():
        texts = list(known)
        if not texts:
            raise DataError(f"no sentences of {lang} to encode; expected at least one")
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # like lengths waste no padding
        found = model.encode([texts[row] for row in order], lang=lang, normalize=False)
        check_vectors(found[:0], 0, f"{model.identity.name} ({lang})", dimensions[0])
        arrays[lang] = np.empty_like(found)
        arrays[lang][order] = found
    return arrays


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
class EvaluationResult:
    """What came of all tasks of one model: everything that tables and a page show."""

    identity: Identity
    scores: Sequence[Score]
    sentences: Sentences
    mined: Sequence[JudgedMining] = field(default_factory=list)
    parallel: Sequence[Parallel] = field(default_factory=list)
    about: str = ""
    """What the test sentences are, where they are not those of the published test sets."""
