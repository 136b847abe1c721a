"""`dualmoco completion`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_command

FILE_WORDS = ("FILE", "SRC", "TGT", "BITEXT", "PATH", ".yaml", ".json")
FOLDER_WORDS = ("FOLDER", "DIR", "INDEX")


def add(commands: Any) -> None:
    """Declares the command."""
    completion = add_command(
        commands,
        "completion",
        "print a script that completes commands and options in a shell",
        "examples:\n"
        "  dualmoco completion bash > ~/.local/share/bash-completion/completions/dualmoco\n"
        '  dualmoco completion zsh > "${fpath[1]}/_dualmoco"\n'
        "  dualmoco completion fish > ~/.config/fish/completions/dualmoco.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to complete in")
    completion.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Prints the script."""
    import shtab

    from dualmoco.cli.main import build_parser, find_leaves

    parser = build_parser()
    for leaf in find_leaves(parser):
        for action in leaf._actions:
            kind = completed_kind(str(action.metavar))
            if kind and not action.choices:
                action.complete = getattr(shtab, kind)  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, parsed.shell) + "\n")
    return 0


def completed_kind(metavar: str) -> str | None:
    """Whether names of files or of folders complete an option or argument."""
    if any(word in metavar for word in FOLDER_WORDS):
        return "DIRECTORY"
    return "FILE" if any(word in metavar for word in FILE_WORDS) else None
