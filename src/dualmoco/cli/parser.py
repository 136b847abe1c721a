"""The argument parser: accepts options anywhere, suggests corrections, and knows the old spellings of options.

Every error is one line and raises `UsageError`; the command line then exits with status 2.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from dualmoco.core.errors import DualmocoError

NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)(e-?\d+)?")
OLD_SPELLINGS: dict[str, dict[str, str]] = {
    "ablate": {"--fresh": "--overwrite"},
    "align": {"--format": "--to"},
    "data get": {"--to": "--data"},
    "evaluate": {
        "--json FILE": "--out FILE",
        "--markdown": "--out",
        "--html": "--out",
        "--pairs": "--langs",
        "--lang-pairs": "--langs",
    },
    "inspect": {"--aligned": "--format aligned"},
    "plan": {"--pairs": "--pair-count"},
    "prepare": {"--aligned": "--format aligned"},
    "score": {"--tgt-file": "the second argument"},
    "search query": {"--nprobe": "--probes"},
    "similarity": {"--files": ""},
    "train": {"--resume": ""},
    "visualize": {"--tgt-file": "the second argument"},
}
"""Options of version 0.1 by command, and their replacements; an empty replacement means no longer needed."""


class UsageError(DualmocoError):
    """An option or argument that the command does not accept."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose options may come before, between and after the arguments."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    @property
    def command(self) -> str:
        """The name of the command, such as `search build`."""
        return self.prog.partition(" ")[2]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses a command line; every word must be known."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:
            words = self._options_first(replace_old_spellings(self.command, words))
        else:
            for word in takewhile(is_option, words):
                self._find_action(word)
        parsed, rest = super().parse_known_args(words, namespace)
        if rest:
            self._refuse(rest[0])
        return parsed, rest

    def _options_first(self, words: Sequence[str]) -> list[str]:
        """Puts options before arguments, because argparse takes only the first group of arguments."""
        options: list[str] = []
        arguments: list[str] = []
        rest = deque(words)
        while rest:
            word = rest.popleft()
            if word == "--":
                arguments += rest
                break
            if not is_option(word):
                arguments.append(word)
                continue
            options.append(word)
            name, has_value, _ = word.partition("=")
            action = self._find_action(name)
            is_optional = action.nargs == argparse.OPTIONAL
            if rest and action.nargs != 0 and not has_value and not (is_optional and is_option(rest[0])):
                options.append(rest.popleft())
        return [*options, "--", *arguments] if arguments else options

    def _find_action(self, option: str) -> argparse.Action:
        return self._option_string_actions.get(option) or self._refuse(option)

    def _refuse(self, word: str) -> NoReturn:
        if is_option(word):
            self.error(f"unknown option {word}{did_you_mean(word, self._option_string_actions)}")
        self.error(f"unexpected argument {word!r}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is not one of the choices."""
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {value!r}{did_you_mean(value, action.choices)}")
        name = action.option_strings[0] if action.option_strings else action.dest
        expected = ", ".join(map(str, action.choices))
        raise UsageError(f"{name} {value}; expected one of {expected}{did_you_mean(str(value), action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Raises the error, and says how to get help."""
        raise UsageError(f"{message}; see {self.prog} --help")


def find_leaves(parser: CommandParser) -> Iterator[CommandParser]:
    """Yields the parsers of commands, such as `train` and `search build`."""
    choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not choices:
        yield parser
    for parsers in choices:
        for child in dict(parsers or {}).values():
            yield from find_leaves(child)


def is_option(word: str) -> bool:
    """Whether a word is an option, not a value, a negative number or `-`."""
    return word.startswith("-") and word != "-" and not NUMBER.fullmatch(word)


def did_you_mean(word: str, known: Iterable[Any]) -> str:
    """The most similar known word, as a question; empty if none is similar."""
    names = {str(name).lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f" (did you mean {names[near[0]]}?)" if near else ""


def hint(text: str) -> None:
    """Tells the user about a new spelling."""
    sys.stderr.write(f"dualmoco: {text}\n")


def replace_old_spellings(command: str, words: Sequence[str]) -> list[str]:
    """Replaces options of version 0.1 by the current ones, with one hint for each.

    Args:
        command: Name of the command, such as `search query`.
        words: Words after the command.

    Returns:
        The words in their current spelling.
    """
    table = OLD_SPELLINGS.get(command, {})
    result: list[str] = []
    second: list[str] = []  # values of options that became arguments
    rest = deque(words)
    while rest:
        word = rest.popleft()
        name, has_value, value = word.partition("=")
        if name == "--json" and "--json FILE" in table and (has_value or (rest and names_json_file(rest[0]))):
            hint("--json FILE is now --out FILE, and --json alone prints to standard output")
            value = value or rest.popleft()
            result += ["--json"] if value == "-" else ["--out", value]
        elif name not in table:
            result.append(word)
        elif table[name].startswith("--"):
            hint(f"{name} is now {table[name]}")
            result += [*table[name].split(), *([value] if has_value else [])]
        else:
            hint(f"{name} is now {table[name]}" if table[name] else f"{name} is no longer needed")
            second += [value] if has_value else [rest.popleft()] if table[name] and rest else []
    return result + second


def names_json_file(word: str) -> bool:
    """Whether a word after `evaluate --json` is the file to write, as in version 0.1, and not the model."""
    return word == "-" or word.endswith(".json")
