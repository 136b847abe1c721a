"""`dualmoco calibrate`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_verb, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    calibrate = add_verb(
        verbs,
        "calibrate",
        "give a model the threshold that mining takes when none is named",
        "examples:\n"
        "  dualmoco calibrate runs/static-cpu --pairs prepared/en-zh/heldout-00000.parquet\n"
        "  dualmoco calibrate hybrid-de --pairs held-out.tsv --src en --tgt de",
    )
    calibrate.add_argument("model", metavar="MODEL", help="run or model folder, into which the threshold is written")
    calibrate.add_argument("--pairs", required=True, metavar="FILE", help="bitext that the model was not trained on")
    calibrate.add_argument("--src", default="en", metavar="LANG", help="language of the sources")
    calibrate.add_argument("--tgt", default="zh", metavar="LANG", help="language of the targets")
    calibrate.add_argument("--json", action="store_true", help="print the result as JSON")
    calibrate.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Calibrates, and says what was found."""
    from dataclasses import asdict

    from dualmoco.mining.threshold import calibrate_model

    found = calibrate_model(parsed.model, parsed.pairs, src_lang=parsed.src, tgt_lang=parsed.tgt)
    if parsed.json:
        print_json(asdict(found))
    else:
        sys.stdout.write(
            f"{found.describe()}\nas a prefilter it passes {100 * found.passing:.1f} % of unrelated sentences\n"
        )
    return 0
