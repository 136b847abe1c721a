"""`dualmoco mine`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_mining, add_verb, counted, mining_options, print_json

if TYPE_CHECKING:
    from dualmoco.mining.mine import MiningResult


def add(verbs: Any) -> None:
    """Describes the verb."""
    mine = add_verb(
        verbs,
        "mine",
        "find the parallel sentences of two text files",
        "examples:\n"
        "  dualmoco mine en.txt zh.txt --model runs/static-cpu --out pairs.tsv --threshold 0.1\n"
        "  dualmoco mine en.txt.xz zh.txt.xz --model runs/static-cpu --out pairs.tmx --planted known-pairs.tsv\n"
        "  dualmoco mine en.txt zh.txt --model hybrid --prefilter runs/static-cpu --out pairs.tsv\n"
        "  dualmoco mine en.txt zh.txt --model runs/static-cpu --out pairs.parquet --engine ray --address auto",
    )
    mine.add_argument("src_file", metavar="SRC", help="text in one language, one sentence a line")
    mine.add_argument("tgt_file", metavar="TGT", help="text in the other")
    mine.add_argument("--src", default="en", metavar="LANG", help="language of SRC")
    mine.add_argument("--tgt", default="zh", metavar="LANG", help="language of TGT")
    mine.add_argument("--out", required=True, metavar="FILE", help="pairs as .tsv, .parquet or .tmx")
    mine.add_argument("--retrieval", default="max", help="forward, backward, intersection or max")
    known = mine.add_mutually_exclusive_group()
    known.add_argument("--gold", metavar="FILE", help="line<TAB>line of true pairs, from 1, that choose the threshold")
    known.add_argument(
        "--planted", metavar="FILE", help="source<TAB>target to hide among the lines for the same purpose"
    )
    mine.add_argument(
        "--prefilter", metavar="MODEL", help="a fast, calibrated model that leaves out sentences without a partner"
    )
    add_mining(mine, "FILE.work")
    mine.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Mines, and says what was found."""
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
    """What was found, in words."""
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
