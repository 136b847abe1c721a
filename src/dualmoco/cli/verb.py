"""How a verb describes itself."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults as they are and examples as they are written."""


def add_verb(verbs: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    """Adds a verb.

    Args:
        verbs: The verbs there are.
        name: What the user types.
        text: What it does, in a few words.
        epilog: Examples.

    Returns:
        Its parser.
    """
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=Formatter
    )
    verb.add_argument("--quiet", action="store_true", help="no notes beside the progress bar")
    return verb


def print_json(content: Any) -> None:
    """Writes a result for machines to standard output."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")
