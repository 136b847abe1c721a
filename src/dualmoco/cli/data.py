"""`dualmoco data`: the catalogue of corpora and test sets."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import Formatter, add_verb, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    data = add_verb(
        verbs,
        "data",
        "list and get the corpora and test sets of the paper",
        "examples:\n"
        "  dualmoco data list\n"
        "  dualmoco data get tatoeba-test un --to ~/data\n"
        "  dualmoco data get sts sick --to ~/data --from /mnt/mirror",
    )
    actions = data.add_subparsers(dest="action", required=True, metavar="list|get")
    listing = actions.add_parser("list", help="what there is", formatter_class=Formatter)
    listing.add_argument("--json", action="store_true", help="print the catalogue as JSON")
    listing.set_defaults(run=run_list)
    getting = actions.add_parser("get", help="download, or copy from a mirror", formatter_class=Formatter)
    getting.add_argument("names", nargs="+", metavar="NAME", help="of the catalogue")
    getting.add_argument("--to", default="data", metavar="DIR", help="data folder")
    getting.add_argument("--from", dest="mirror", metavar="DIR", help="another data folder to copy from")
    getting.set_defaults(run=run_get)


def run_list(parsed: argparse.Namespace) -> int:
    """Shows the catalogue."""
    from dataclasses import asdict

    from dualmoco.core.markdown import markdown_table
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
    """Gets entries, one after the other."""
    from pathlib import Path

    from dualmoco.data.corpora import get_corpus

    for name in parsed.names:
        files = get_corpus(name, Path(parsed.to), Path(parsed.mirror) if parsed.mirror else None)
        sys.stdout.write(f"{name}: {len(files)} files in {parsed.to}\n")
    return 0
