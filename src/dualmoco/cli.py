"""The command line: `dualmoco VERB ...`.

Results go to standard output, the rest to standard error. An error a user can repair is one line and exit code 2. Heavy
imports wait until a verb needs them, so help is instant.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dualmoco import __version__
from dualmoco.errors import DualmocoError

EXIT_ERROR = 2


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
    parser.add_argument("--version", action="version", version=f"dualmoco {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    train = _add_verb(
        verbs, "train", "train two encoders into one space",
        "examples:\n"
        "  dualmoco train recipes/tiny.yaml\n"
        "  dualmoco train recipes/static-cpu.yaml --data ~/data out=runs/first optimizer.lr=1e-3\n"
        "  torchrun --nproc-per-node 4 -m dualmoco train recipes/paper.yaml --resume",
    )  # fmt: skip
    train.add_argument("recipe", metavar="RECIPE.yaml", help="settings; dualmoco/config.py names every key")
    train.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint, if there is one")
    train.add_argument("--data", metavar="DIR", help="folder that data files are relative to, same as data.root=DIR")
    train.add_argument("--json", action="store_true", help="print the result as JSON")
    train.set_defaults(run=_train)
    demo = _add_verb(
        verbs, "demo", "train a tiny pair of encoders and try them",
        "example:\n  dualmoco demo --out runs/demo",
    )  # fmt: skip
    demo.add_argument("--recipe", default="recipes/tiny.yaml", help="settings of the demo")
    demo.add_argument("--out", default="runs/demo", help="run folder; an older demo there is replaced")
    demo.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's")
    demo.set_defaults(run=_demo)
    return parser


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults as they are and examples as they are written."""


def _add_verb(verbs: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=_Formatter
    )
    verb.add_argument("--quiet", action="store_true", help="no notes beside the progress bar")
    return verb


def _train(parsed: argparse.Namespace) -> int:
    from dualmoco.config import load_config

    overrides = ([f"data.root={parsed.data}"] if parsed.data else []) + parsed.overrides
    config = load_config(parsed.recipe, overrides)

    from dualmoco.training import train

    result = train(config, resume=parsed.resume)
    if int(os.environ.get("RANK", "0")) == 0:
        if parsed.json:
            sys.stdout.write(json.dumps(asdict(result)) + "\n")
        else:
            sys.stdout.write(
                f"{result.stop} at step {result.step} after {result.seconds / 60:.1f} minutes\n"
                f"held-out retrieval {100 * result.before.score:.1f} % before, {100 * result.best:.1f} % at step "
                f"{result.best_step}\nmodel in {result.out}/model\n"
            )
    return 128 + signal.Signals[result.stop] if result.stop.startswith("SIG") else 0


def _demo(parsed: argparse.Namespace) -> int:
    from dualmoco.config import load_config

    config = load_config(parsed.recipe, [*parsed.overrides, f"out={parsed.out}"])

    from dualmoco.demo import run_demo

    run_demo(config)
    return 0
