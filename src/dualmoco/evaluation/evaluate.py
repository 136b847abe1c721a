"""An evaluation from encoder to scores: every distinct sentence of every task is encoded once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.testfiles import read_sentences
from dualmoco.evaluation.postprocessing import Treatment
from dualmoco.evaluation.score import Score
from dualmoco.evaluation.sentences import Sentences, Texts, distinct_sentences, encode_distinct
from dualmoco.evaluation.task import Mined, Parallel, Task
from dualmoco.models.model import Identity, Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fitting:
    """The unlabelled text that a treatment is fitted to."""

    path: Path
    lang: str


@dataclass(frozen=True)
class Evaluation:
    """All that a report needs."""

    identity: Identity
    scores: Sequence[Score]
    sentences: Sentences
    mined: Sequence[Mined] = field(default_factory=list)
    parallel: Sequence[Parallel] = field(default_factory=list)


def evaluate(
    model: Model, tasks: Sequence[Task], treatment: Treatment | None = None, fitting: Fitting | None = None
) -> Evaluation:
    """Scores a model on some tasks.

    Args:
        model: Any model; it is only asked for vectors.
        tasks: Test sets, already read.
        treatment: What is done to the vectors before they are compared.
        fitting: Text that the treatment is fitted to; if None, the test sentences, without their labels.

    Returns:
        The scores, each signed, and what a report can draw.

    Raises:
        ModelError: The model lacks a language.
        DataError: Vectors that cannot be compared.
    """
    fitted: list[Texts] = [{fitting.lang: read_sentences(fitting.path)}] if treatment and fitting else []
    wanted = distinct_sentences(task.texts() for task in tasks)
    rows = distinct_sentences([*({lang: list(known) for lang, known in wanted.items()},), *fitted])
    arrays = encode_distinct(model, rows)
    identity = model.identity
    if treatment:
        name = _fit(treatment, arrays, fitting, fitted, rows)
        arrays = {lang: treatment.apply(array) for lang, array in arrays.items()}
        identity = replace(identity, treatment=name)
    tested = {lang: unit_vectors(arrays[lang][: len(known)]) for lang, known in wanted.items()}
    sentences = Sentences(wanted, tested)
    results = [task.score(sentences, identity) for task in tasks]
    return Evaluation(
        identity,
        [score for result in results for score in result.scores],
        sentences,
        [result.mined for result in results if result.mined],
        [result.parallel for result in results if result.parallel],
    )


def _fit(
    treatment: Treatment, arrays: dict[str, Vectors], fitting: Fitting | None, fitted: Sequence[Texts],
    rows: dict[str, dict[str, int]],
) -> str:  # fmt: skip
    """Fits the treatment; returns its name with what it was fitted to."""
    if fitting is None:
        count = sum(map(len, arrays.values()))
        logger.info("fitting %s to the vectors of the %s test sentences, without labels", treatment.name, f"{count:,}")
        treatment.fit(np.concatenate(list(arrays.values())))
        return f"{treatment.name} fitted to test sentences"
    known = rows[fitting.lang]
    treatment.fit(arrays[fitting.lang][[known[text] for text in dict.fromkeys(fitted[0][fitting.lang])]])
    return f"{treatment.name} fitted to {file_sha256(fitting.path)[:12]}"
