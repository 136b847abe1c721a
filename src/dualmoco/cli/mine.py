"""`dualmoco mine`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_command,
    add_mining,
    add_pairs_output,
    add_recognized_languages,
    counted,
    mining_options,
    print_json,
)

if TYPE_CHECKING:
    from dualmoco.mining.mine import MiningResult


def add(commands: Any) -> None:
    """Declares the command."""
    mine = add_command(
        commands,
        "mine",
        run,
        "find the parallel sentences of two text files",
        "The same command resumes an interrupted job.\n\n"
        "examples:\n"
        "  dualmoco mine examples/en.txt examples/zh.txt --out pairs.tsv\n"
        "  dualmoco mine examples/en.txt examples/zh.txt --out pairs.tmx --planted examples/pairs.tsv\n"
        "\nwith your own files:\n"
        "  dualmoco mine en.txt.xz zh.txt.xz --out pairs.tsv --prefilter en-zh-static\n"
        "  dualmoco mine en.txt zh.txt --model runs/mine --out pairs.parquet --engine ray --address auto",
    )
    mine.add_argument("src_file", metavar="SRC", help="text, one sentence per line, plain or compressed")
    mine.add_argument("tgt_file", metavar="TGT", help="text in the other language")
    given = mine.add_argument_group("input")
    add_recognized_languages(given, "SRC", "TGT")
    known = given.add_mutually_exclusive_group()
    known.add_argument("--gold", metavar="FILE", help="line<TAB>line of true pairs, from 1, to choose the threshold on")
    known.add_argument("--planted", metavar="FILE", help="source<TAB>target to hide among the lines for that purpose")
    add_pairs_output(mine)
    scoring = add_mining(mine)
    scoring.add_argument(
        "--retrieval",
        default="max",
        choices=("forward", "backward", "intersection", "max"),
        help="which candidates become pairs",
    )
    scoring.add_argument(
        "--prefilter",
        metavar="MODEL",
        help="fast, calibrated model that drops sentences unlikely to have a translation",
    )


def run(parsed: argparse.Namespace) -> int:
    """Mines, and prints a summary."""
    from dataclasses import asdict

    from dualmoco.mining.mine import mine

    found = mine(
        parsed.src_file,
        parsed.tgt_file,
        model=parsed.model,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        out=parsed.out,
        retrieval=parsed.retrieval,
        gold=parsed.gold,
        planted=parsed.planted,
        prefilter=parsed.prefilter,
        **mining_options(parsed),
    )
    if parsed.json:
        calibration = asdict(found.calibration) if found.calibration else None
        print_json(
            {
                "out": parsed.out,
                "pairs": len(found),
                "candidates": found.candidates,
                "threshold": found.threshold,
                "calibration": calibration,
                "recall": found.recall,
            }
        )
    else:
        sys.stdout.write(describe_mining(found))
    return 0


def describe_mining(found: MiningResult) -> str:
    """The summary of a mining result."""
    lines = [found.model_calibration.describe()] if found.model_calibration else []
    if found.calibration:
        chosen = found.calibration.threshold
        lines.append(
            f"threshold {chosen.value:.4f} [{found.calibration.low:.4f}, {found.calibration.high:.4f}] from "
            f"{counted(found.calibration.known, 'known pair')}: precision {100 * chosen.precision:.1f} %, recall "
            f"{100 * chosen.recall:.1f} %, F1 {100 * chosen.f1:.1f} %"
        )
    above = "" if found.threshold is None else f" that score at least {found.threshold:.4f}, of {found.candidates:,}"
    return "\n".join([*lines, f"{counted(len(found), 'pair')}{above}: {found.out}"]) + "\n"
