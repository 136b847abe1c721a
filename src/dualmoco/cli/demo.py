"""`dualmoco demo`."""

from __future__ import annotations

import argparse
from typing import Any

from dualmoco.cli.options import add_verb


def add(verbs: Any) -> None:
    """Describes the verb."""
    demo = add_verb(
        verbs, "demo", "train a tiny pair of encoders and try them",
        "example:\n  dualmoco demo --out runs/demo",
    )  # fmt: skip
    demo.add_argument("--recipe", default="recipes/tiny.yaml", help="settings of the demo")
    demo.add_argument("--out", default="runs/demo", help="run folder; an older demo there is replaced")
    demo.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's")
    demo.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Runs the demo."""
    from dualmoco.training.config import load_config

    config = load_config(parsed.recipe, [*parsed.overrides, f"out={parsed.out}"])

    from dualmoco.cli.demonstration import run_demo

    run_demo(config)
    return 0
