"""`dualmoco mine`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_command,
    add_mining,
    add_on_error,
    add_pairs_output,
    add_recognized_languages,
    add_report,
    counted,
    describe_kept,
    describe_skipped,
    mining_options,
    pairs_output,
    print_json,
)

if TYPE_CHECKING:
    from dualmoco.mining.mine import MiningResult

KEPT_LINE_FROM = 100  # candidates; with fewer, the counts at other thresholds are not printed


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
        "  dualmoco mine - examples/zh.txt --out - < examples/en.txt\n"
        "\nwith your own files:\n"
        "  dualmoco mine en.txt.xz zh.txt.xz --out pairs.tsv.gz --prefilter en-zh-static --min-precision 0.95\n"
        "  dualmoco mine en.txt zh.txt --model runs/mine --out pairs.parquet --engine ray --address auto",
    )
    mine.add_argument("src_file", metavar="SRC", help="text, one sentence per line, plain or compressed")
    mine.add_argument("tgt_file", metavar="TGT", help="text in the other language")
    given = mine.add_argument_group("input")
    add_recognized_languages(given, "SRC", "TGT")
    known = given.add_mutually_exclusive_group()
    known.add_argument(
        "--gold", metavar="FILE", help="line<TAB>line (from 1) of all true pairs, to choose the threshold on"
    )
    known.add_argument(
        "--planted", metavar="FILE", help="source<TAB>target pairs to hide among the lines, to choose the threshold on"
    )
    add_on_error(given)
    add_pairs_output(mine)
    scoring = add_mining(mine, threshold="estimated for --min-precision, or stored in the model for small texts")
    scoring.add_argument(
        "--min-precision",
        type=float,
        metavar="P",
        help="take the lowest threshold with this precision (default: 0.9, or the best F1 with --gold and --planted)",
    )
    add_report(scoring)
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
    from dualmoco.text.files import standard_input

    with standard_input([parsed.src_file, parsed.tgt_file]) as files, pairs_output(parsed) as (out, summary):
        found = mine(
            *files,
            model=parsed.model,
            src_lang=parsed.src,
            tgt_lang=parsed.tgt,
            out=out,
            retrieval=parsed.retrieval,
            gold=parsed.gold,
            planted=parsed.planted,
            min_precision=parsed.min_precision,
            prefilter=parsed.prefilter,
            report=parsed.report,
            on_error=parsed.on_error,
            **mining_options(parsed),
        )
        if not parsed.json:
            summary.write(describe_mining(found, parsed.out))
    if parsed.json:
        own = found.model_calibration.describe(found.threshold) if found.model_calibration else None
        print_json(
            {
                "out": parsed.out,
                "pairs": len(found),
                "candidates": found.candidates,
                "threshold": found.threshold,
                "calibration": asdict(found.calibration) if found.calibration else None,
                "model_calibration": own,
                "kept_at": found.kept_at,
                "unreadable": found.unreadable,
                "recall": found.recall,
            }
        )
    return 0


def describe_mining(found: MiningResult, out: str) -> str:
    """The summary of a mining result that was written to `out`."""
    lines = [found.model_calibration.describe(found.threshold)] if found.model_calibration else []
    lines += [found.calibration.describe()] if found.calibration else []
    above = "" if found.threshold is None else f" that score at least {found.threshold:.4f}, of {found.candidates:,}"
    lines.append(f"{counted(len(found), 'pair')}{above}{describe_skipped(found.unreadable)}: {out}")
    if found.candidates >= KEPT_LINE_FROM:
        lines.append(describe_kept(found.kept_at))
    return "\n".join(lines) + "\n"
