"""`dualmoco train`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_command, add_data, add_json, add_recipe, print_json, read_overrides

if TYPE_CHECKING:
    from dualmoco.training.trainer import TrainResult


def add(commands: Any) -> None:
    """Declares the command."""
    train = add_command(
        commands,
        "train",
        run,
        "train two encoders into one space",
        "The same command resumes an interrupted run. docs/guides/training.md lists the keys of a recipe.\n\n"
        "examples:\n"
        "  dualmoco train recipes/tiny.yaml\n"
        "\nwith your own files:\n"
        "  dualmoco train recipes/static-cpu.yaml --data ~/data out=runs/first optimizer.lr=1e-3\n"
        "  torchrun --nproc-per-node 4 -m dualmoco train recipes/paper.yaml",
    )
    add_recipe(train)
    add_data(train.add_argument_group("input"), "folder that data files are relative to", "data.root of the recipe")
    add_json(train.add_argument_group("output"))


def run(parsed: argparse.Namespace) -> int:
    """Trains, or resumes training, and prints the result."""
    from dualmoco.training.recipe import load_config

    config = load_config(parsed.recipe, read_overrides(parsed))  # check the recipe before importing torch

    from dualmoco.evaluation.training_scores import train_and_score

    result = train_and_score(config, resume=True)
    if int(os.environ.get("RANK", "0")) == 0:
        if parsed.json:
            print_json(asdict(result))
        else:
            sys.stdout.write(_describe(result))
    return 128 + signal.Signals[result.stop] if result.stop.startswith("SIG") else 0


def _describe(result: TrainResult) -> str:
    """A summary of the result in three lines."""
    before = f"held-out retrieval {100 * result.before.score:.1f} % before"
    if result.best is None:
        after = "not evaluated since\nno model yet; run the same command again to resume"
    else:
        after = f"{100 * result.best:.1f} % at step {result.best_step}\nmodel in {result.out}/model"
    return f"{result.stop} at step {result.step} after {result.seconds / 60:.1f} minutes\n{before}, {after}\n"
