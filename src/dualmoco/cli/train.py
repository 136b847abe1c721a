"""`dualmoco train`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_verb, print_json

if TYPE_CHECKING:
    from dualmoco.training.trainer import TrainResult


def add(verbs: Any) -> None:
    """Describes the verb."""
    train = add_verb(
        verbs,
        "train",
        "train two encoders into one space",
        "examples:\n"
        "  dualmoco train recipes/tiny.yaml\n"
        "  dualmoco train recipes/static-cpu.yaml --data ~/data out=runs/first optimizer.lr=1e-3\n"
        "  torchrun --nproc-per-node 4 -m dualmoco train recipes/paper.yaml --resume",
    )
    train.add_argument("recipe", metavar="RECIPE.yaml", help="settings; dualmoco/training/config.py names every key")
    train.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's")
    train.add_argument("--resume", action="store_true", help="continue from the last checkpoint, if there is one")
    train.add_argument("--data", metavar="DIR", help="folder that data files are relative to, same as data.root=DIR")
    train.add_argument("--json", action="store_true", help="print the result as JSON")
    train.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Trains, and prints what came of it."""
    from dualmoco.training.recipe import load_config

    overrides = ([f"data.root={parsed.data}"] if parsed.data else []) + parsed.overrides
    config = load_config(parsed.recipe, overrides)  # a wrong recipe is refused before torch is imported

    from dualmoco.training.run import train

    result = train(config, resume=parsed.resume)
    if int(os.environ.get("RANK", "0")) == 0:
        if parsed.json:
            print_json(asdict(result))
        else:
            sys.stdout.write(_describe(result))
    return 128 + signal.Signals[result.stop] if result.stop.startswith("SIG") else 0


def _describe(result: TrainResult) -> str:
    """The result in three lines."""
    before = f"held-out retrieval {100 * result.before.score:.1f} % before"
    if result.best is None:
        after = "not evaluated since\nno model yet; add --resume to continue"
    else:
        after = f"{100 * result.best:.1f} % at step {result.best_step}\nmodel in {result.out}/model"
    return f"{result.stop} at step {result.step} after {result.seconds / 60:.1f} minutes\n{before}, {after}\n"
