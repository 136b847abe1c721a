"""The command line: `dualmoco VERB ...`.

Results go to standard output, the rest to standard error. An error a user can repair is one line and exit code 2. Heavy
imports wait until a verb needs them, so help is instant.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

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
from dualmoco.core.errors import DualmocoError, missing_package
from dualmoco.core.version import VERSION

EXIT_ERROR = 2
EXTRAS = {
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
"""What must be installed besides the base for some verbs."""
VERBS = (
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
        arguments: Words after the program's name; those of the process if None.

    Returns:
        The exit code: 0, 2 for a user's error, 128 and the signal's number after an interruption.
    """
    parsed = build_parser().parse_args(arguments)
    level = logging.WARNING if parsed.quiet else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("dualmoco").setLevel(level)
    try:
        return int(parsed.run(parsed))
    except DualmocoError as error:
        sys.stderr.write(f"dualmoco: {error}\n")
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        if parsed.verb not in EXTRAS or (error.name or "").startswith("dualmoco"):
            raise
        sys.stderr.write(f"dualmoco: {missing_package(error.name, EXTRAS[parsed.verb], parsed.verb)}\n")
        return EXIT_ERROR
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


class _Parser(argparse.ArgumentParser):
    """Takes key=value words anywhere, also after an option."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = self.parse_known_args(args, namespace)
        unknown = [word for word in rest if word.startswith("-") or "=" not in word or "overrides" not in parsed]
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        if rest:
            parsed.overrides += rest
        return parsed


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(prog="dualmoco", description="Cross-lingual sentence encoders by dual momentum contrast.")
    parser.add_argument("--version", action="version", version=f"dualmoco {VERSION}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add(verbs)
    return parser
