"""The command line: `dualmoco COMMAND ...`.

Results go to standard output, everything else to standard error. Heavy imports wait until a command needs them, so help
is instant. `docs/commands.md` describes what all commands share.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from dualmoco.cli import (
    ablate,
    align,
    calibrate,
    combine,
    compare,
    data,
    demo,
    encode,
    evaluate,
    export,
    inspect,
    mine,
    paraphrases,
    plan,
    prepare,
    score,
    search,
    similarity,
    train,
    visualize,
)
from dualmoco.cli.completion import SHELLS, PrintCompletion
from dualmoco.cli.options import EXIT_USAGE
from dualmoco.cli.parser import CommandParser, find_leaves
from dualmoco.core import VERSION
from dualmoco.core.errors import DualmocoError, missing_package

COMMAND_EXTRAS = {
    "data": "data",
    "prepare": "data",
    "inspect": "data",
    "train": "train",
    "evaluate": "eval",
    "compare": "eval",
    "visualize": "eval",
    "ablate": "all",
    "align": "align",
    "plan": "all",
    "demo": "all",
}
"""The extra that a command needs besides the base installation."""
COMMANDS = (
    data,
    prepare,
    inspect,
    plan,
    train,
    evaluate,
    compare,
    ablate,
    visualize,
    encode,
    similarity,
    search,
    mine,
    align,
    score,
    paraphrases,
    calibrate,
    combine,
    export,
    demo,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The words after the program's name; those of the process if None.

    Returns:
        The exit status, as listed in `docs/commands.md`.
    """
    parsed = argparse.Namespace(command="", verbose=False)
    try:
        parsed = build_parser().parse_args(arguments, parsed)
        return run_command(parsed)
    except DualmocoError as error:
        return report_error(error, show_traceback=parsed.verbose)
    except ModuleNotFoundError as error:
        if parsed.command not in COMMAND_EXTRAS or (error.name or "").startswith("dualmoco"):
            raise
        missing = missing_package(error.name, COMMAND_EXTRAS[parsed.command], parsed.command)
        return report_error(missing, show_traceback=parsed.verbose)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def run_command(parsed: argparse.Namespace) -> int:
    """Runs a parsed command with the log level and the progress bars that were asked for."""
    from dualmoco.core.progress import showing

    level = logging.DEBUG if parsed.verbose else logging.WARNING if parsed.quiet else logging.INFO
    form = "%(asctime)s %(name)s: %(message)s" if parsed.verbose else "%(message)s"
    logging.basicConfig(level=logging.INFO if parsed.verbose else logging.WARNING, format=form, stream=sys.stderr)
    logging.getLogger("dualmoco").setLevel(level)
    with showing(not parsed.quiet):
        return int(parsed.run(parsed))


def report_error(error: DualmocoError, *, show_traceback: bool) -> int:
    """Prints an error as one line, or with its traceback."""
    if show_traceback:
        traceback.print_exc()
    sys.stderr.write(f"dualmoco: {error}\n")
    return EXIT_USAGE


def build_parser() -> CommandParser:
    """Builds the parser of all commands."""
    parser = CommandParser(
        prog="dualmoco",
        description="Cross-lingual sentence encoders by dual momentum contrast.",
        epilog="`dualmoco COMMAND --help` has examples; docs/commands.md explains what all commands share.",
    )
    parser.add_argument("--version", action="version", version=f"dualmoco {VERSION}", help="show the version and exit")
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        help=f"print a completion script for {', '.join(SHELLS)} and exit",
    )
    add_general(parser, default=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add(commands)
    for leaf in find_leaves(parser):
        general = leaf.add_argument_group("general")
        general.add_argument("-h", "--help", action="help", help="show this help and exit")
        add_general(general, default=argparse.SUPPRESS)
        for action in leaf._actions:
            complete_help(action)
        leaf.usage = short_usage(leaf)
    return parser


def add_general(group: argparse._ActionsContainer, default: bool | str) -> None:
    """Adds the options that are taken before and after the command's name."""
    for name, text in (("--quiet", "hide notes and progress bars"), ("--verbose", "show debug notes and tracebacks")):
        group.add_argument(name, action="store_true", default=default, help=text)


def complete_help(action: argparse.Action) -> None:
    """Adds choices and the default to the help of an option."""
    notes = []
    if action.choices:
        notes.append(f"choices: {', '.join(map(str, action.choices))}")
        action.metavar = action.metavar or action.dest.upper()
    if action.nargs != 0 and action.default not in (None, "", [], argparse.SUPPRESS):
        notes.append("default: %(default)s")
    if notes:
        action.help = f"{action.help} ({'; '.join(notes)})"


def short_usage(parser: CommandParser) -> str:
    """The arguments and the required options of a command."""
    words = [parser.prog]
    for action in parser._actions:
        name = str(action.metavar or action.dest)
        if not action.option_strings:
            forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]", "2": f"{name} {name}"}
            words.append(forms.get(str(action.nargs), name))
        elif action.required:
            words.append(f"{action.option_strings[0]} {name}")
    return " ".join([*words, "[options]"])
