"""`dualmoco score`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_mining, add_verb, counted, mining_options, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    score = add_verb(
        verbs,
        "score",
        "margin scores of an existing bitext, to filter it",
        "examples:\n"
        "  dualmoco score crawled.tmx --model runs/static-cpu --out scored.tsv\n"
        "  dualmoco score crawled.tsv.xz --model runs/static-cpu --threshold 0.05 --out clean.parquet",
    )
    score.add_argument("bitext", metavar="BITEXT", help="pairs in any format of prepare, or its result")
    score.add_argument("--tgt-file", metavar="FILE", help="the translations, if BITEXT holds only the source lines")
    score.add_argument("--src", default="en", metavar="LANG", help="source language")
    score.add_argument("--tgt", default="zh", metavar="LANG", help="target language")
    score.add_argument("--format", default="auto", metavar="NAME", help="of BITEXT, if its extension does not say")
    score.add_argument("--on-error", default="stop", help="at a line that cannot be read: stop, or skip it")
    score.add_argument("--out", required=True, metavar="FILE", help="pairs as .tsv, .parquet or .tmx, in their order")
    add_mining(score, "FILE.work")
    score.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Scores, and says how the scores are spread."""
    from dualmoco.mining.score import score

    found = score(
        parsed.bitext,
        model=parsed.model,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        out=parsed.out,
        tgt_file=parsed.tgt_file,
        form=parsed.format,
        on_error=parsed.on_error,
        **mining_options(parsed),
    )
    if parsed.json:
        print_json(
            {
                "out": parsed.out,
                "pairs": found.candidates,
                "kept": len(found),
                "quantiles": found.quantiles,
                "unreadable": found.unreadable,
            }
        )
    else:
        spread = ", ".join(f"{value:.3f}" for value in found.quantiles)
        left_out = f"; {counted(found.unreadable, 'unreadable line')} left out" if found.unreadable else ""
        own = f"{found.model_calibration.describe()}\n" if found.model_calibration else ""
        sys.stdout.write(
            f"{own}{counted(found.candidates, 'pair')} scored{left_out}; 5, 25, 50, 75, 95 %: {spread}\n"
            f"{counted(len(found), 'pair')} kept: {parsed.out}\n"
        )
    return 0
