"""`dualmoco push`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import add_command, add_json, print_result


def add(commands: Any) -> None:
    """Declares the command."""
    command = add_command(
        commands,
        "push",
        run,
        "upload a model to the Hugging Face Hub",
        "Afterwards every command takes the name of the repository as a model. The token is read from\n"
        "HF_TOKEN, or was stored by `hf auth login`. docs/guides/hub.md has more.\n\n"
        "examples:\n"
        "  dualmoco push many-static me/many-static --dry-run\n"
        "\nwith your own model:\n"
        "  dualmoco push runs/mine me/en-zh-mine --private",
    )
    command.add_argument("model", metavar="MODEL", help="model or run folder, or a model that comes with dualmoco")
    command.add_argument("repo", metavar="REPO", help="repository OWNER/NAME; created if it does not exist")
    command.add_argument("--private", action="store_true", help="create a repository that only its owner sees")
    command.add_argument("--dry-run", action="store_true", help="list the files that would be uploaded")
    add_json(command)


def run(parsed: argparse.Namespace) -> int:
    """Uploads, and prints the files and the address of the commit."""
    from dataclasses import asdict

    from dualmoco.models.hub import push

    done = push(parsed.model, parsed.repo, private=parsed.private, dry_run=parsed.dry_run)
    lines = [f"{size:>13,}  {path}\n" for path, size in done.files.items()] if parsed.dry_run else []
    said = "would be uploaded" if parsed.dry_run else f"uploaded: {done.url}"
    summary = f"{done.repo}: {len(done.files)} files of {done.model}, {done.bytes / 1e6:,.1f} MB, {said}\n"
    return print_result(parsed, asdict(done), "".join(lines) + summary)
