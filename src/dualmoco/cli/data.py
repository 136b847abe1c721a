"""`dualmoco data`: the catalogue of corpora and test sets."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from dualmoco.cli.options import add_command, add_data, add_json, print_json


def add(commands: Any) -> None:
    """Declares the command."""
    summary = "list and download the corpora and test sets of the paper"
    data = commands.add_parser("data", help=summary, description=summary)
    actions = data.add_subparsers(dest="action", required=True, metavar="list|get")
    listing = add_command(actions, "list", run_list, "list the catalogue", "examples:\n  dualmoco data list")
    add_json(listing.add_argument_group("output"), "catalogue")
    getting = add_command(
        actions,
        "get",
        run_get,
        "download corpora and test sets, or copy them from a mirror",
        "examples:\n"
        "  dualmoco data get tatoeba-test --data data\n"
        "\nwith your own mirror:\n"
        "  dualmoco data get sts sick --data ~/data --from /mnt/mirror",
    )
    getting.add_argument("names", nargs="+", metavar="NAME", help="name from the catalogue")
    add_data(getting, "folder to download to", "$DUALMOCO_DATA, or data")
    getting.add_argument(
        "--from", dest="mirror", metavar="DIR", help="copy from this data folder instead of downloading"
    )


def run_list(parsed: argparse.Namespace) -> int:
    """Prints the catalogue."""
    from dataclasses import asdict

    from dualmoco.core.display import markdown_table
    from dualmoco.data.corpora import load_catalogue

    entries = list(load_catalogue().values())
    if parsed.json:
        print_json([asdict(entry) for entry in entries])
        return 0
    rows = [
        [entry.name, entry.kind, entry.languages, entry.pairs, entry.licence, entry.page or "mirror only"]
        for entry in entries
    ]
    table = markdown_table(["name", "kind", "languages", "pairs", "licence", "where"], rows, left=True)
    sys.stdout.write("\n".join(table) + "\n")
    return 0


def run_get(parsed: argparse.Namespace) -> int:
    """Downloads or copies each name."""
    from pathlib import Path

    from dualmoco.data.corpora import get_corpus

    folder = parsed.data or os.environ.get("DUALMOCO_DATA") or "data"
    for name in parsed.names:
        files = get_corpus(name, Path(folder), Path(parsed.mirror) if parsed.mirror else None)
        sys.stdout.write(f"{name}: {len(files)} files in {folder}\n")
    return 0
