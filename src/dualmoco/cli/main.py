"""The command line: `dualmoco COMMAND ...`.

Results go to standard output, everything else to standard error. Heavy imports wait until a command needs them, so help
is instant. `docs/reference/commands.md` describes what all commands share.
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
    join,
    merge,
    mine,
    paraphrases,
    plan,
    prepare,
    push,
    score,
    search,
    serve,
    similarity,
    train,
    visualize,
)
from dualmoco.cli.completion import SHELLS, PrintCompletion
from dualmoco.cli.options import EXIT_INTERNAL, EXIT_USAGE
from dualmoco.cli.parser import CommandParser, UsageError, find_leaves
from dualmoco.core import VERSION
from dualmoco.core.config_loader import MAX_REASON
from dualmoco.core.errors import DualmocoError, missing_package
from dualmoco.core.signals import Terminated, exiting_on_sigterm

COMMAND_EXTRAS = {
    "data": "data",
    "prepare": "data",
    "inspect": "data",
    "train": "train",
    "join": "all",
    "evaluate": "eval",
    "compare": "eval",
    "visualize": "eval",
    "ablate": "all",
    "align": "align",
    "plan": "all",
    "demo": "all",
    "export": "onnx",
    "push": "torch",
    "serve": "serve",
}
"""The extra that a command needs besides the base installation."""
COMMANDS = (
    data,
    prepare,
    inspect,
    plan,
    train,
    join,
    merge,
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
    push,
    serve,
    demo,
)


RESUME = "run the same command again to resume"
AGAIN = "run the same command again"
WORK_IS_KEPT = f"finished work is kept in {{work}}; {RESUME}"
UNCHANGED = f"nothing was written; {AGAIN}"
INTERRUPTION_HINTS = {
    "train": f"the last checkpoint is kept in the run folder; {RESUME}",
    "ablate": f"results and checkpoints are kept in the study folder; {RESUME}",
    "encode": f"finished shards are kept in {{out}}; {RESUME}",
    "join": WORK_IS_KEPT,
    "mine": WORK_IS_KEPT,
    "score": WORK_IS_KEPT,
    "paraphrases": WORK_IS_KEPT,
    "search build": f"finished vectors are kept next to {{folder}}; {RESUME}",
    "search add": f"{{folder}} is unchanged and finished vectors are kept in it; {RESUME}",
    "align": f"finished documents are kept; {RESUME}",
    "data get": f"finished downloads are kept; {RESUME}",
    "demo": f"finished files are kept in {{out}}; {AGAIN} to start over",
    "prepare": f"nothing was written, and an earlier result is unchanged; {AGAIN}",
}
"""What an interrupted command keeps and how to resume it; all other commands write nothing until they finish."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Command-line arguments (default: those of the process).

    Returns:
        The exit status, as listed in `docs/reference/commands.md`.
    """
    parsed = argparse.Namespace(command="", verbose=False, leaf="")
    try:
        with exiting_on_sigterm():
            words = check_unicode(sys.argv[1:] if arguments is None else arguments)
            parsed = build_parser().parse_args(words, parsed)
            return run_command(parsed)
    except (KeyboardInterrupt, Terminated) as error:
        return report_interruption(parsed, signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        return report_error(error, parsed)


def check_unicode(words: Sequence[str]) -> Sequence[str]:
    """Refuses arguments that cannot be printed or written to a file: bytes that are not UTF-8."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode("utf-8", "backslashreplace").decode()
            raise UsageError(f"argument {shown}: not valid UTF-8; expected UTF-8 text: rename the file") from None
    return words


def run_command(parsed: argparse.Namespace) -> int:
    """Runs a parsed command with the requested log level and progress bars."""
    from dualmoco.core.progress import showing

    level = logging.DEBUG if parsed.verbose else logging.WARNING if parsed.quiet else logging.INFO
    form = "%(asctime)s %(name)s: %(message)s" if parsed.verbose else "%(message)s"
    logging.basicConfig(level=logging.INFO if parsed.verbose else logging.WARNING, format=form, stream=sys.stderr)
    logging.getLogger("dualmoco").setLevel(level)
    with showing(not parsed.quiet):
        status = int(parsed.run(parsed))
    if status in (128 + signal.SIGINT, 128 + signal.SIGTERM):  # the command caught the signal and saved its work
        report_interruption(parsed, signal.Signals(status - 128))
    return status


def report_interruption(parsed: argparse.Namespace, number: signal.Signals) -> int:
    """Prints in one line what is kept and how to resume, and returns the exit status of the signal."""
    signal_name = "terminated" if number == signal.SIGTERM else "interrupted"
    out, folder = getattr(parsed, "out", None), getattr(parsed, "folder", None)
    work = getattr(parsed, "work", None) or f"{out}.work"
    kept = INTERRUPTION_HINTS.get(parsed.leaf, UNCHANGED).format(out=out, work=work, folder=folder)
    if int(os.environ.get("RANK", "0")) == 0:
        start = "\n" if sys.stderr.isatty() else ""  # the terminal shows ^C first
        sys.stderr.write(f"{start}dualmoco: {signal_name}: {kept}\n")
    return 128 + number


def report_error(error: Exception, parsed: argparse.Namespace) -> int:
    """Prints an error as one line (with `--debug`, after its traceback), and returns the exit status."""
    if parsed.verbose:
        traceback.print_exc()
    message, status = describe_error(error, parsed.command)
    sys.stderr.write(f"dualmoco: {message}\n")
    return status


def describe_error(error: Exception, command: str) -> tuple[str, int]:
    """The message and the exit status of an error: a user error, or an internal error of dualmoco."""
    if isinstance(error, ModuleNotFoundError) and command in COMMAND_EXTRAS and not _is_own(error.name or ""):
        error = missing_package(error.name, COMMAND_EXTRAS[command], command)
    if isinstance(error, DualmocoError):
        return str(error), EXIT_USAGE
    if isinstance(error, OSError) and error.strerror:
        return ": ".join([*([str(error.filename)] if error.filename else []), error.strerror]), EXIT_USAGE
    if isinstance(error, MemoryError):
        return "out of memory; expected a machine with more memory, or smaller inputs", EXIT_USAGE
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]
    return f"internal error: {reason}; run with --debug for the traceback, and report it", EXIT_INTERNAL


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "dualmoco"


def build_parser() -> CommandParser:
    """Builds the parser of all commands."""
    parser = CommandParser(
        prog="dualmoco",
        description="Cross-lingual sentence encoders by dual momentum contrast.",
        epilog="`dualmoco COMMAND --help` has examples; docs/reference/commands.md explains what all commands share.",
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
        leaf.set_defaults(leaf=leaf.command)
    return parser


def add_general(group: argparse._ActionsContainer, default: bool | str) -> None:
    """Adds the options that are accepted before and after the command's name."""
    group.add_argument("--quiet", action="store_true", default=default, help="hide notes and progress bars")
    group.add_argument(
        "--verbose", "--debug", action="store_true", default=default, help="show debug notes and tracebacks"
    )


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
