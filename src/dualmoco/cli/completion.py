"""Shell completion: `dualmoco --print-completion SHELL`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.parser import CommandParser, find_leaves

SHELLS = ("bash", "zsh", "fish")
FOLDER_WORDS = ("FOLDER", "DIR", "INDEX")
FILE_WORDS = ("FILE", "SRC", "TGT", "BITEXT", "PATH", ".yaml", ".json")


class PrintCompletion(argparse.Action):
    """Prints a script that completes commands, options, choices and file names."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Prints the script and exits."""
        sys.stdout.write(completion_script(parser, values) + "\n")
        parser.exit()


def completion_script(parser: CommandParser, shell: str) -> str:
    """The completion script of a shell."""
    import shtab

    kinds = ((FOLDER_WORDS, shtab.DIRECTORY), (FILE_WORDS, shtab.FILE))
    for leaf in find_leaves(parser):
        for action in leaf._actions:
            found = [kind for words, kind in kinds if any(word in str(action.metavar) for word in words)]
            if found and not action.choices:
                action.complete = found[0]  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)
