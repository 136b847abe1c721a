"""`dualmoco ablate`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import (
    EXIT_PARTIAL,
    add_command,
    add_data,
    add_engine,
    add_json,
    add_overwrite,
    add_recipe,
    print_json,
)


def add(commands: Any) -> None:
    """Declares the command."""
    ablate = add_command(
        commands,
        "ablate",
        run,
        "train and score a recipe under several settings and seeds",
        "The same command resumes an interrupted study. Exit status 1 means that some runs failed.\n\n"
        "examples:\n"
        "  dualmoco ablate examples/study.yaml\n"
        "  dualmoco ablate examples/study.yaml seeds=[0,1] out=runs/two-seeds --parallel 2",
    )
    add_recipe(ablate, "STUDY")
    add_data(ablate.add_argument_group("input"), "folder of corpora and test sets")
    output = ablate.add_argument_group("output")
    add_overwrite(output, "delete the contents of the study folder and start again")
    add_json(output, "rows of the table")
    running = ablate.add_argument_group("running")
    running.add_argument("--parallel", type=int, default=1, metavar="N", help="runs at a time, each with its own GPUs")
    running.add_argument(
        "--processes", type=int, default=1, metavar="N", help="processes per run, each with its own GPU"
    )
    running.add_argument("--retry", action="store_true", help="repeat runs that failed or diverged")
    add_engine(ablate)


def run(parsed: argparse.Namespace) -> int:
    """Runs a study and prints its table."""
    from dualmoco.analysis.study import read_study

    study = read_study(parsed.study, parsed.overrides, parsed.data)  # check the study before importing torch

    from dataclasses import asdict

    from dualmoco.analysis.ablate import ablate

    result = ablate(
        study,
        data=parsed.data,
        parallel=parsed.parallel,
        processes=parsed.processes,
        engine=parsed.engine,
        address=parsed.address,
        overwrite=parsed.overwrite,
        retry=parsed.retry,
    )
    if parsed.json:
        print_json([asdict(row) for row in result.rows])
    else:
        sys.stdout.write(f"{result}\nreport in {study.config.out}/report.html\n")
    return 0 if result.is_whole else EXIT_PARTIAL
