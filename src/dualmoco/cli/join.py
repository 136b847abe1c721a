"""`dualmoco join`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    MODEL_HELP,
    add_command,
    add_format,
    add_json,
    add_on_error,
    add_overwrite,
    add_recognized_languages,
    counted,
    pair_files,
    parse_columns,
    print_result,
)

if TYPE_CHECKING:
    from dualmoco.training.join import Joined


def add(commands: Any) -> None:
    """Declares the command."""
    join = add_command(
        commands,
        "join",
        run,
        "add a language to a model, from a bitext with one of its languages",
        "The other languages keep their vectors. The same command resumes after an interruption;\n"
        "see docs/guides/languages.md.\n\n"
        "with your own files:\n"
        "  dualmoco join en-zh-static en-fr.tsv --src en --tgt fr --out model-fr\n"
        "  dualmoco join model-fr en-de.tmx --src en --tgt de --out model-fr-de --exclude 'tests/*.txt'\n"
        "  dualmoco join en-zh-static news.en news.fr --format aligned --src en --tgt fr --out model-fr --minutes 10",
    )
    join.add_argument("model", metavar="MODEL", help=f"model with one encoder per language: {MODEL_HELP}")
    join.add_argument(
        "pairs", nargs="+", metavar="BITEXT", help="bitext files of the new language and a language of MODEL"
    )
    given = join.add_argument_group("input")
    add_recognized_languages(given, "the first side", "the second side")
    add_format(given)
    given.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="test sets to exclude")
    add_on_error(given)
    training = join.add_argument_group("training")
    training.add_argument("--minutes", type=float, default=5.0, metavar="N", help="training time in minutes")
    training.add_argument(
        "--vocabulary", type=int, default=22_000, metavar="N", help="number of token vectors of the new language"
    )
    output = join.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="FOLDER", help="write the model to FOLDER")
    add_overwrite(output, "replace FOLDER if it exists")
    add_json(output)


def run(parsed: argparse.Namespace) -> int:
    """Adds the language, and prints its accuracy."""
    from dataclasses import asdict

    from dualmoco.training.join import join

    files = pair_files(parsed.pairs, parsed.format)
    done = join(
        parsed.model,
        [src for src, _ in files],
        parsed.out,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        tgt_files=[tgt for _, tgt in files if tgt],
        format="auto" if parsed.format == "aligned" else parsed.format,
        columns=parse_columns(parsed.columns) or (),
        exclude=parsed.exclude,
        minutes=parsed.minutes,
        vocabulary=parsed.vocabulary,
        on_error=parsed.on_error,
        overwrite=parsed.overwrite,
    )
    return print_result(parsed, asdict(done), describe_joined(done))


def describe_joined(done: Joined) -> str:
    """A summary of the new model in three lines."""
    accuracy = f"{100 * done.to_known:.1f} % and {100 * done.from_known:.1f} %"
    return (
        f"{done.out}: {', '.join(done.languages)} in one space, {done.bytes / 1e6:.1f} MB\n"
        f"{done.lang}: {counted(done.pairs, 'training pair')}, {counted(done.steps, 'step')} in {done.minutes:.1f} "
        f"minutes; finds {accuracy} of {done.heldout:,} held-out translations, from and to {done.lang}\n"
        f"threshold {done.threshold:.4f}: precision {100 * done.precision:.1f} %, recall {100 * done.recall:.1f} % "
        "if 3 % of the lines have a translation\n"
    )
