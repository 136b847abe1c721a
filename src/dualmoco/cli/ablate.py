"""`dualmoco ablate`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_verb, print_json

EXIT_TROUBLE = 1


def add(verbs: Any) -> None:
    """Describes the verb."""
    ablate = add_verb(
        verbs,
        "ablate",
        "train and score a recipe under several settings and seeds",
        "The same command again goes on where it was interrupted. Exit code 1: some runs failed.\n\n"
        "examples:\n"
        "  dualmoco ablate studies/temperature.yaml --data ~/data\n"
        "  dualmoco ablate studies/queue.yaml --data ~/data seeds=[0] out=studies/quick",
    )
    ablate.add_argument("study", metavar="STUDY.yaml", help="dualmoco/analysis/study.py names every key")
    ablate.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the study's")
    ablate.add_argument("--data", metavar="DIR", help="folder of corpora and test sets; DUALMOCO_DATA if not given")
    ablate.add_argument("--parallel", type=int, default=1, metavar="N", help="runs at a time, each with its own GPU")
    ablate.add_argument("--engine", default="local", help="local, or ray for a Ray cluster with a shared disk")
    ablate.add_argument("--address", metavar="HOST:PORT", help="of a running Ray cluster; a new local one if not given")
    ablate.add_argument("--fresh", action="store_true", help="throw away what the study folder holds")
    ablate.add_argument("--retry", action="store_true", help="try runs again that failed or diverged")
    ablate.add_argument("--json", action="store_true", help="print the rows as JSON")
    ablate.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Runs a study, and shows its table."""
    from dualmoco.analysis.study import read_study

    study = read_study(parsed.study, parsed.overrides, parsed.data)  # a wrong study is refused before torch is imported

    from dataclasses import asdict

    from dualmoco.analysis.ablate import ablate

    result = ablate(
        study,
        data=parsed.data,
        parallel=parsed.parallel,
        engine=parsed.engine,
        address=parsed.address,
        fresh=parsed.fresh,
        retry=parsed.retry,
    )
    if parsed.json:
        print_json([asdict(row) for row in result.rows])
    else:
        sys.stdout.write(f"{result}\nreport in {study.config.out}/report.html\n")
    return 0 if result.is_whole else EXIT_TROUBLE
