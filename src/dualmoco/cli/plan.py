"""`dualmoco plan`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_verb, print_json

EXIT_MISFIT = 1


def add(verbs: Any) -> None:
    """Describes the verb."""
    plan = add_verb(
        verbs,
        "plan",
        "operations, memory and hours of a training run, before it starts",
        "Steps are timed on this machine; GPUs that are not here are estimated. Exit code 1: it does not fit.\n\n"
        "examples:\n"
        "  dualmoco plan recipes/small-cpu.yaml --data ~/data\n"
        "  dualmoco plan recipes/paper.yaml --devices 4xv100,a100 --pairs 5000000 --tokens 28,33",
    )
    plan.add_argument("recipe", metavar="RECIPE.yaml", help="as `dualmoco train` takes it")
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's")
    plan.add_argument("--data", metavar="DIR", help="folder that data files are relative to, same as data.root=DIR")
    plan.add_argument(
        "--devices", default="", metavar="LIST", help="by commas, such as here,4xv100; if not given here and some GPUs"
    )
    plan.add_argument("--seconds", type=float, default=20.0, help="to spend on steps here")
    plan.add_argument("--pairs", type=int, default=0, metavar="N", help="training pairs, for a plan without the data")
    plan.add_argument("--tokens", default="", metavar="SRC,TGT", help="of a sentence, for a plan without the data")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Plans, and shows the page."""
    from dataclasses import asdict

    from dualmoco.core.errors import ConfigError
    from dualmoco.training.recipe import load_config

    overrides = ([f"data.root={parsed.data}"] if parsed.data else []) + parsed.overrides
    config = load_config(parsed.recipe, overrides)  # a wrong recipe is refused before torch is imported
    try:
        tokens = [float(word) for word in parsed.tokens.split(",") if word]
    except ValueError:
        raise ConfigError(f"--tokens {parsed.tokens}: expected two numbers such as 28,33") from None

    from dualmoco.analysis.plan import plan

    result = plan(config, devices=parsed.devices, pairs=parsed.pairs, tokens=tokens, seconds=parsed.seconds)
    if parsed.json:
        print_json(asdict(result))
    else:
        sys.stdout.write(str(result))
    return 0 if result.fits else EXIT_MISFIT
