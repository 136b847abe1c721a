"""`dualmoco merge`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import add_command, add_json, add_overwrite, print_result


def add(commands: Any) -> None:
    """Declares the command."""
    merge = add_command(
        commands,
        "merge",
        run,
        "merge the languages of several models that share a space into one model",
        "Models made by dualmoco join share a space if they were joined to the same model. For models of\n"
        "different spaces, use dualmoco combine.\n\n"
        "with your own models:\n"
        "  dualmoco merge model-fr model-de --out model-fr-de",
    )
    merge.add_argument("models", nargs="+", metavar="MODEL", help="two or more models with one encoder per language")
    output = merge.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="FOLDER", help="write the model to FOLDER")
    add_overwrite(output, "replace FOLDER if it exists")
    add_json(output)


def run(parsed: argparse.Namespace) -> int:
    """Merges, and prints the languages."""
    from dataclasses import asdict

    from dualmoco.training.merge import merge

    done = merge(parsed.models, parsed.out, overwrite=parsed.overwrite)
    return print_result(parsed, asdict(done), f"{done.out}: {', '.join(done.languages)} in one space\n")
