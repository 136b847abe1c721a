"""`dualmoco score`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import (
    add_bitext,
    add_command,
    add_mining,
    add_on_error,
    add_pairs_output,
    counted,
    mining_options,
    parse_columns,
    print_json,
)


def add(commands: Any) -> None:
    """Declares the command."""
    score = add_command(
        commands,
        "score",
        run,
        "score the pairs of a bitext by margin, to filter it",
        "The same command resumes an interrupted job.\n\n"
        "examples:\n"
        "  dualmoco score examples/pairs.tsv --out scored.tsv\n"
        "\nwith your own files:\n"
        "  dualmoco score news.en news.zh --threshold 0.05 --out clean.parquet",
    )
    given = add_bitext(score)
    add_on_error(given)
    add_pairs_output(score)
    add_mining(score)


def run(parsed: argparse.Namespace) -> int:
    """Scores, and prints quantiles of the scores."""
    from dualmoco.mining.score import score

    found = score(
        parsed.bitext,
        model=parsed.model,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        out=parsed.out,
        tgt_file=parsed.tgt_file,
        format=parsed.format,
        columns=parse_columns(parsed.columns),
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
