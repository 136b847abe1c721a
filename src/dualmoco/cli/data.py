"""`dualmoco data`: the catalogue of corpora and test sets."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_command, add_data, add_json, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from dualmoco.data.corpora import CorpusEntry


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
        "  dualmoco data get eval --data data\n"
        "  dualmoco data get tatoeba-test --data data\n"
        "\nwith your own mirror:\n"
        "  dualmoco data get sts sick --data ~/data --from /mnt/mirror",
    )
    getting.add_argument("names", nargs="+", metavar="NAME", help="name from the catalogue; eval for the test sets")
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
        [entry.name, entry.kind, entry.languages, entry.pairs, entry.licence, describe_origin(entry)]
        for entry in entries
    ]
    table = markdown_table(["name", "kind", "languages", "pairs", "licence", "where"], rows, left=True)
    sys.stdout.write("\n".join(table) + "\n")
    return 0


def describe_origin(entry: CorpusEntry) -> str:
    """Where a corpus can be had."""
    return entry.page or ("its parts" if entry.parts else "mirror only")


def run_get(parsed: argparse.Namespace) -> int:
    """Downloads or copies each name; what cannot be fetched does not stop the others."""
    from pathlib import Path

    from dualmoco.core.errors import DataError
    from dualmoco.data.corpora import find_entries, get_corpus

    folder = Path(parsed.data or os.environ.get("DUALMOCO_DATA") or "data")
    entries = [entry for name in parsed.names for entry in find_entries(name)]
    failed = []
    for entry in entries:
        try:
            files = get_corpus(entry.name, folder, Path(parsed.mirror) if parsed.mirror else None)
        except DataError as error:
            if len(entries) == 1:
                raise
            failed.append(entry.name)
            sys.stderr.write(f"dualmoco: {entry.name}: {error}\n")
        else:
            sys.stdout.write(describe_files(entry, files, folder))
    if failed:
        raise DataError(f"not fetched: {', '.join(failed)}; the other names are complete; run again to resume")
    return 0


def describe_files(entry: CorpusEntry, files: list[Path], folder: Path) -> str:
    """Number, size and licence of the files of a corpus, and the checksum of their archive."""
    from dualmoco.core.storage import file_sha256

    size = sum(file.stat().st_size for file in files) / 1e6
    lines = [f"{entry.name}: {len(files)} files in {folder}, {size:.1f} MB; licence: {entry.licence}"]
    archive = entry.archive(folder)
    if archive and archive.is_file():
        known = "as in the catalogue" if archive.name in entry.sha256 else "not in the catalogue"
        lines.append(f"  {archive}: {archive.stat().st_size:,} bytes, sha256 {file_sha256(archive)} ({known})")
    return "".join(f"{line}\n" for line in lines)
