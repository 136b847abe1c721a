"""`dualmoco paraphrases`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import (
    add_command,
    add_language,
    add_mining,
    add_pairs_output,
    counted,
    mining_options,
    print_result,
)


def add(commands: Any) -> None:
    """Declares the command."""
    paraphrases = add_command(
        commands,
        "paraphrases",
        run,
        "find the sentences of one file that mean the same",
        "The same command resumes an interrupted job.\n\n"
        "examples:\n"
        "  dualmoco paraphrases examples/en.txt --out same.tsv",
    )
    paraphrases.add_argument("file", metavar="FILE", help="text, one sentence per line, plain or compressed")
    add_language(paraphrases, "FILE")
    add_pairs_output(paraphrases)
    add_mining(paraphrases)


def run(parsed: argparse.Namespace) -> int:
    """Mines one text against itself, and prints a summary."""
    from dualmoco.mining.mine import paraphrases

    found = paraphrases(parsed.file, model=parsed.model, lang=parsed.lang, out=parsed.out, **mining_options(parsed))
    return print_result(
        parsed, {"out": parsed.out, "pairs": len(found)}, f"{counted(len(found), 'pair')}: {parsed.out}\n"
    )
