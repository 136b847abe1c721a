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
from dualmoco.evaluation.postprocessing import Postprocessing
from dualmoco.evaluation.score import Score
from dualmoco.evaluation.sentences import Sentences, Texts, distinct_sentences, encode_distinct
from dualmoco.evaluation.task import Mined, Parallel, Task
from dualmoco.models.identity import Identity, SentenceEncoder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fitting:
    """The unlabelled text that a post-processing is fitted to."""

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
    encoder: SentenceEncoder,
    tasks: Sequence[Task],
    postprocessing: Postprocessing | None = None,
    fitting: Fitting | None = None,
) -> Evaluation:
    """Scores an encoder on some tasks.

    Args:
        encoder: Any encoder; it is only asked for vectors.
        tasks: Test sets, already read.
        postprocessing: What is done to the vectors before they are compared.
        fitting: Text that the post-processing is fitted to; if None, the test sentences, without their labels.

    Returns:
        The scores, each signed, and what a report can draw.

    Raises:
        ModelError: The encoder lacks a language.
        DataError: Vectors that cannot be compared.
    """
    fitted: list[Texts] = [{fitting.lang: read_sentences(fitting.path)}] if postprocessing and fitting else []
    wanted = distinct_sentences(task.texts() for task in tasks)
    rows = distinct_sentences([*({lang: list(known) for lang, known in wanted.items()},), *fitted])
    arrays = encode_distinct(encoder, rows)
    identity = encoder.identity
    if postprocessing:
        name = _fit(postprocessing, arrays, fitting, fitted, rows)
        arrays = {lang: postprocessing.apply(array) for lang, array in arrays.items()}
        identity = replace(identity, postprocessing=name)
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
    postprocessing: Postprocessing, arrays: dict[str, Vectors], fitting: Fitting | None, fitted: Sequence[Texts],
    rows: dict[str, dict[str, int]],
) -> str:  # fmt: skip
    """Fits the post-processing; returns its name with what it was fitted to."""
    if fitting is None:
        count = sum(map(len, arrays.values()))
        logger.info(
            "fitting %s to the vectors of the %s test sentences, without labels", postprocessing.name, f"{count:,}"
        )
        postprocessing.fit(np.concatenate(list(arrays.values())))
        return f"{postprocessing.name} fitted to test sentences"
    known = rows[fitting.lang]
    postprocessing.fit(arrays[fitting.lang][[known[text] for text in dict.fromkeys(fitted[0][fitting.lang])]])
    return f"{postprocessing.name} fitted to {file_sha256(fitting.path)[:12]}"
