"""The pages about the commands, from the parser of the command line: part of `make reference`."""

from __future__ import annotations

import argparse
import inspect
import re
import signal
from collections.abc import Iterator

from dualmoco.cli import options
from dualmoco.cli.main import COMMAND_EXTRAS, build_parser
from dualmoco.cli.parser import CommandParser, find_leaves

SIGNALS = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGPIPE: "the reader of standard output went away",
    signal.SIGTERM: "terminated; `train` saves a checkpoint first",
}
CODE_LINE = re.compile(r"^ +")


def leaves() -> dict[str, CommandParser]:
    """The parser of every command by its name, such as `search build`."""
    return {leaf.command: leaf for leaf in find_leaves(build_parser())}


def file_name(command: str) -> str:
    """The name of a command's page."""
    return f"{command.replace(' ', '-')}.md"


def in_cell(text: str) -> str:
    """Text for a cell of a table; placeholders such as <TAB> and `|` are escaped."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "&#124;")


def sentence(text: str) -> str:
    """A help text as a sentence."""
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def command_table() -> str:
    """One row per command: its name with a link, and what it does."""
    rows = [
        f"| [`{name}`](commands/{file_name(name)}) | {in_cell(leaf.description or '')} | {_extra(name)} |"
        for name, leaf in sorted(leaves().items())
    ]
    return "\n".join(["| Command | What it does | Extra |", "|---|---|---|", *rows])


def _extra(name: str) -> str:
    extra = COMMAND_EXTRAS.get(name.partition(" ")[0])
    return f"`{extra}`" if extra else ""


def command_page(name: str) -> str:
    """The page of one command: usage, options by group, notes and examples."""
    leaf = leaves()[name]
    parts = [f"# {name}", "", sentence(leaf.description or ""), "", "```text", leaf.usage or "", "```", ""]
    if _extra(name):
        parts += [f"This command needs `pip install 'dualmoco[{COMMAND_EXTRAS[name.partition(' ')[0]]}]'`.", ""]
    for group in leaf._action_groups:
        rows = [_row(leaf, action) for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if rows:
            title = "Arguments" if group.title == "positional arguments" else (group.title or "").capitalize()
            parts += [f"## {title}", "", "| Option | Meaning |", "|---|---|", *rows, ""]
    return "\n".join([*parts, *notes(leaf.epilog or "")])


def _row(leaf: CommandParser, action: argparse.Action) -> str:
    formatter = leaf._get_formatter()
    value = "" if action.nargs == 0 else formatter._format_args(action, str(action.metavar or action.dest.upper()))
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    if names and value:
        names = f"{names} `{value}`"
    return f"| {in_cell(names or f'`{value}`')} | {in_cell(formatter._expand_help(action))} |"


def notes(epilog: str) -> Iterator[str]:
    """The lines of a page from what `--help` shows after the options; indented lines are commands."""
    for block in filter(None, epilog.strip().split("\n\n")):
        lines = block.splitlines()
        code = [CODE_LINE.sub("", line) for line in lines if CODE_LINE.match(line)]
        text = " ".join(line for line in lines if not CODE_LINE.match(line))
        if code:
            yield from (f"## {text.rstrip(':').capitalize()}", "", "```sh", *code, "```", "")
        else:
            linked = re.sub(r"docs/([\w/-]+\.md)", r"[\1](../../\1)", text)
            yield from ("## Notes", "", linked, "")


def status_table() -> str:
    """The exit statuses, from the constants of `cli/options.py` and their docstrings, and from the signals."""
    source = inspect.getsource(options)
    found = re.findall(r'^EXIT_\w+ = (\d+)\n"""(.+)"""', source, flags=re.MULTILINE)
    rows = [("0", "The command succeeded."), *found]
    rows += [(str(128 + number), f"{sentence(words)[:-1]} ({number.name}).") for number, words in SIGNALS.items()]
    cells = [f"| {status} | {in_cell(meaning)} |" for status, meaning in rows]
    return "\n".join(["| Status | Meaning |", "|---|---|", *cells])
