"""`dualmoco calibrate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dualmoco.cli.options import (
    add_backend,
    add_command,
    add_dimension,
    add_json,
    add_languages,
    add_on_error,
    add_overwrite,
    print_result,
)

JOURNAL_FILE = "journal.jsonl"  # in the folder of a review


def add(commands: Any) -> None:
    """Declares the command."""
    calibrate = add_command(
        commands,
        "calibrate",
        run,
        "choose and store a model's default thresholds",
        "mine and score use the stored thresholds unless --threshold is given.\n\n"
        "examples:\n"
        "  cp -r src/dualmoco/embedded/en-zh-static my-model\n"
        "  dualmoco calibrate my-model --pairs src/dualmoco/data/demo/sentences.tsv\n"
        "  dualmoco calibrate en-zh-static --pairs src/dualmoco/data/demo/sentences.tsv --out mine.json\n"
        "  dualmoco mine examples/en.txt examples/zh.txt --model en-zh-static --calibration mine.json --out pairs.tsv\n"
        "\nwith the judgements of a review in dualmoco serve:\n"
        "  dualmoco calibrate en-zh-static --judged reviews/news/journal.jsonl --mined news.tsv --out news.json",
    )
    calibrate.add_argument("model", metavar="MODEL", help="run or model folder to write the thresholds to")
    given = calibrate.add_argument_group("input")
    kinds = given.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--pairs", metavar="FILE", help="bitext that the model was not trained on")
    kinds.add_argument(
        "--judged", metavar="FILE", help="judged pairs: the journal of a review, or a table with a verdict column"
    )
    given.add_argument("--mined", metavar="FILE", help="output of mine or score that the judged pairs were drawn from")
    given.add_argument(
        "--min-precision",
        type=float,
        default=0.9,
        metavar="P",
        help="minimum precision of a threshold chosen with --judged",
    )
    add_languages(given)
    add_on_error(given)
    opened = calibrate.add_argument_group("model")
    add_backend(opened)
    add_dimension(opened)
    output = calibrate.add_argument_group("output")
    output.add_argument("--out", metavar="FILE", help="write the thresholds to FILE (default: into the model's folder)")
    add_overwrite(output)
    add_json(output)


def _read_journal(judged: str | None) -> str | list[dict[str, Any]] | None:
    """The judgements in a journal; if the file is a table, its name."""
    if judged is None or Path(judged).name != JOURNAL_FILE:
        return judged
    from dualmoco.core.errors import DataError
    from dualmoco.server.journal import Journal, replay

    if not Path(judged).is_file():
        raise DataError(f"{judged}: no such file; expected the journal of a review")
    return [event for event in replay(Journal(Path(judged)).events()) if event["type"] == "judge"]


def run(parsed: argparse.Namespace) -> int:
    """Calibrates, and prints the threshold."""
    from dataclasses import asdict

    from dualmoco.mining.threshold import calibrate_model

    found = calibrate_model(
        parsed.model,
        parsed.pairs,
        judged=_read_journal(parsed.judged),
        mined=parsed.mined,
        min_precision=parsed.min_precision,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        out=parsed.out,
        backend=parsed.backend,
        dimension=parsed.dimension,
        on_error=parsed.on_error,
        overwrite=parsed.overwrite,
    )
    passing = f"as a prefilter it passes {100 * found.passing:.1f} % of unrelated sentences"
    return print_result(parsed, asdict(found), f"{found.describe()}\n{found.describe_cosine()}\n{passing}\n")
