"""Evaluates a model on some tasks: each distinct sentence of all tasks is encoded once, then every task is scored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualmoco.core.display import data_frame, html_table
from dualmoco.core.errors import ModelError, require
from dualmoco.core.progress import showing
from dualmoco.core.storage import file_sha256, write_json, write_text
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.evaluation.metrics import Score
from dualmoco.evaluation.report import Table, evaluation_tables, markdown_report
from dualmoco.evaluation.task import (
    EvaluationResult,
    Sentences,
    Task,
    distinct_sentences,
    encode_distinct,
    read_sentences,
)
from dualmoco.evaluation.tasks import ALL_PAIRS, read_tasks
from dualmoco.models.embedded import all_languages, default_model
from dualmoco.models.folder import model_folder
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.text.languages import base_language

if TYPE_CHECKING:
    from dualmoco.evaluation.postprocessing import Postprocessing

logger = logging.getLogger(__name__)


class Evaluation(EvaluationResult):
    """The scores of one model; printing it shows tables next to the paper's rows."""

    def __str__(self) -> str:
        return "\n".join(table.as_text() for table in self.tables())

    def __repr__(self) -> str:
        return f"<Evaluation of {self.identity.name}: {len(self.scores)} scores>"

    def _repr_html_(self) -> str:
        return "\n".join(html_table(table.title, table.columns, table.rows) for table in self.tables())

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per score; ConfigError if pandas is not installed."""
        columns = ("task", "subset", "protocol", "metric", "value", "low", "high", "n", "signature")
        return data_frame(columns, ([getattr(score, column) for column in columns] for score in self.all_scores))

    def tables(self) -> list[Table]:
        """Tables of the scores, those of the paper first."""
        return evaluation_tables(self)

    @property
    def all_scores(self) -> list[Score]:
        """The scores of the model, then those of the peers."""
        return [*self.scores, *(score for peer in self.peers for score in peer.scores)]

    def to_json(self, path: str | Path) -> None:
        """Writes the scores as JSON, also for `dualmoco compare`; RunError if the file cannot be written."""
        write_json(Path(path), [score.to_json() for score in self.all_scores])

    def to_markdown(self) -> str:
        """The tables and signatures as Markdown."""
        return markdown_report(self)

    def to_html(self, path: str | Path) -> None:
        """Writes one page with tables, plots, examples and signatures.

        Args:
            path: The HTML file to write.

        Raises:
            ConfigError: A package for drawing is not installed.
            RunError: The disk is full or not writable; `path` is then unchanged.
        """
        require_page_packages()
        from dualmoco.evaluation.page import evaluation_page

        write_text(Path(path), evaluation_page(self))


def require_page_packages() -> None:
    """Raises ConfigError, which says what to install, if a report page could not be drawn."""
    for module in ("jinja2", "matplotlib", "sklearn"):
        require(module, "eval", "A report page")


def evaluate(
    model: Model | str | Path | None = None,
    tasks: str | Sequence[str] | Sequence[Task] = "paper",
    postprocessing: Postprocessing | str | None = None,
    fitting: TextFile | None = None,
    *,
    data: str | Path | None = None,
    pairs: str = "zh-en",
    about: str = "",
    peers: Sequence[Model | str | Path] = (),
    progress: bool = True,
) -> Evaluation:
    """Scores a model on some tasks.

    Args:
        model: A model, or its name; chosen by the languages of `pairs` if None.
        tasks: Task names, separated by commas or in a list, such as `tatoeba,sts`; `paper` means the tasks of the
            paper. Or tasks from `read_tasks`.
        postprocessing: Transformation of the vectors before they are compared, such as `whitening:256`.
        fitting: Text to fit the post-processing to; if None, the test sentences, without their labels.
        data: Folder that contains eval/, or eval/ itself (default: DUALMOCO_DATA). For tasks by name.
        pairs: Language pairs of the cross-lingual tasks, separated by commas; `all` for every available pair of the
            model's languages. For tasks by name.
        about: Description of the test sentences, if they are not those of the published test sets.
        peers: Other models, or their names, to compare with on the tasks whose languages they have.
        progress: Whether to show progress bars.

    Returns:
        The signed scores, and the data for a report.

    Raises:
        ConfigError: A task or post-processing is unknown, or the folder of data does not exist.
        ModelError: The model cannot be opened, or lacks a language.
        DataError: Test data are missing or damaged, or vectors cannot be compared.
    """
    if isinstance(postprocessing, str):
        require("torch", "torch", "Post-processing")
        from dualmoco.evaluation.postprocessing import parse_postprocessing

        postprocessing = parse_postprocessing(postprocessing)
    if model is None:
        model = default_model(evaluated_languages(pairs))
    names = tasks if isinstance(tasks, str) else [task for task in tasks if isinstance(task, str)]
    name = model.identity.name if isinstance(model, Model) else str(model)
    folder = model_folder(name) if Path(name).is_dir() else None
    ready = [task for task in tasks if not isinstance(task, str)]
    with showing(progress):
        if names and pairs == ALL_PAIRS:  # scores of the model
            model = model if isinstance(model, Model) else open_model(model)
            ready += read_tasks(names, data, pairs, model=folder, languages=model.languages)
        elif names:
            ready += read_tasks(names, data, pairs, model=folder)
        opened = model if isinstance(model, Model) else open_model(model)
        found = _evaluate(opened, ready, postprocessing, fitting, about)
        others = (peer if isinstance(peer, Model) else open_model(peer) for peer in peers)
        return replace(found, peers=[_evaluate_peer(peer, ready, about) for peer in others])


def evaluated_languages(pairs: str) -> list[str]:
    """The languages of language pairs such as `de-en,ja-zh`; for `all`, those of the default models."""
    if pairs == ALL_PAIRS:
        return all_languages()
    return [base_language(code) for pair in pairs.split(",") for code in pair.split("-")]


def _evaluate_peer(model: Model, tasks: Sequence[Task], about: str) -> Evaluation:
    """Scores a model on the tasks whose languages it has."""
    possible = [task for task in tasks if all(map(model.has_language, task.texts()))]
    if not possible:
        raise ModelError(f"{model.identity.name}: does not have the languages of any task; expected a model that has")
    return _evaluate(model, possible, None, None, about)


def _evaluate(
    model: Model, tasks: Sequence[Task], postprocessing: Postprocessing | None, fitting: TextFile | None, about: str
) -> Evaluation:
    fitted = {fitting.lang: read_sentences(fitting.path)} if postprocessing and fitting else {}
    wanted = distinct_sentences(task.texts() for task in tasks)
    rows = distinct_sentences([wanted, fitted])
    arrays = encode_distinct(model, rows)
    identity = model.identity
    if postprocessing:
        name = _fit_postprocessing(postprocessing, arrays, fitting, fitted, rows)
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
        about,
    )


def _fit_postprocessing(
    postprocessing: Postprocessing,
    arrays: dict[str, Vectors],
    fitting: TextFile | None,
    fitted: dict[str, list[str]],
    rows: dict[str, dict[str, int]],
) -> str:
    """Fits the post-processing; returns its name and the data it was fitted to, for signatures."""
    if fitting is None:
        count = sum(map(len, arrays.values()))
        logger.info("fitting %s to %s test sentences, without their labels", postprocessing.name, f"{count:,}")
        postprocessing.fit(np.concatenate(list(arrays.values())))
        return f"{postprocessing.name} fitted to test sentences"
    known = rows[fitting.lang]
    postprocessing.fit(arrays[fitting.lang][[known[text] for text in dict.fromkeys(fitted[fitting.lang])]])
    return f"{postprocessing.name} fitted to {file_sha256(fitting.path)[:12]}"
