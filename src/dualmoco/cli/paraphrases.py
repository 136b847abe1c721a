"""`dualmoco paraphrases`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import (
    add_command,
    add_language,
    add_mining,
    add_on_error,
    add_pairs_output,
    counted,
    describe_skipped,
    mining_options,
    pairs_output,
    print_json,
)


def add(commands: Any) -> None:
    """Declares the command."""
    paraphrases = add_command(
        commands,
        "paraphrases",
        run,
        "find sentences of one file that mean the same",
        "The same command resumes an interrupted job.\n\n"
        "examples:\n"
        "  dualmoco paraphrases examples/en.txt --out same.tsv",
    )
    paraphrases.add_argument("file", metavar="FILE", help="text, one sentence per line, plain or compressed")
    add_language(paraphrases, "FILE")
    add_on_error(paraphrases)
    add_pairs_output(paraphrases)
    add_mining(paraphrases, threshold="the model's own threshold")


def run(parsed: argparse.Namespace) -> int:
    """Mines one text against itself, and prints a summary."""
    from dualmoco.mining.mine import paraphrases
    from dualmoco.text.files import standard_input

    with standard_input([parsed.file]) as (file,), pairs_output(parsed) as (out, summary):
        found = paraphrases(
            file, model=parsed.model, lang=parsed.lang, out=out, on_error=parsed.on_error, **mining_options(parsed)
        )
        if not parsed.json:
            above = "" if found.threshold is None else f" that score at least {found.threshold:.4f}"
            pairs = f"{counted(len(found), 'pair')}{above}{describe_skipped(found.unreadable)}"
            summary.write(f"{pairs}: {parsed.out}\n")
    if parsed.json:
        print_json({"out": parsed.out, "pairs": len(found), "threshold": found.threshold})
    return 0
