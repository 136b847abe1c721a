"""`dualmoco plan`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import EXIT_PARTIAL, add_command, add_data, add_json, add_recipe, print_json, read_overrides

if TYPE_CHECKING:
    from dualmoco.analysis.plan import RunPlan
    from dualmoco.analysis.study_plan import StudyPlan


def add(commands: Any) -> None:
    """Declares the command."""
    plan = add_command(
        commands,
        "plan",
        run,
        "estimate the operations, memory and hours of a training run, or of the runs of a study",
        "Steps are timed on this machine; other GPUs are estimated. Exit status 1 means that a run does not fit.\n\n"
        "examples:\n"
        "  dualmoco plan recipes/tiny.yaml --seconds 5\n"
        "  dualmoco plan recipes/paper.yaml --devices 4xv100,a100 --pair-count 5000000 --tokens 28,33\n"
        "  dualmoco plan examples/study.yaml --devices here --seconds 2",
    )
    add_recipe(plan)
    given = plan.add_argument_group("input")
    add_data(given, "folder that data files are relative to", "data.root of the recipe")
    given.add_argument("--pair-count", type=int, metavar="N", help="number of training pairs, to plan without the data")
    given.add_argument("--tokens", metavar="SRC,TGT", help="tokens per sentence, to plan without the data")
    devices = plan.add_argument_group("devices")
    devices.add_argument(
        "--devices", metavar="LIST", help="devices such as here,4xv100 (default: this machine and some GPUs)"
    )
    devices.add_argument("--seconds", type=float, default=20.0, help="seconds to spend on timing steps on this machine")
    add_json(plan.add_argument_group("output"), "plan")


def run(parsed: argparse.Namespace) -> int:
    """Plans, and prints the estimate."""
    from dataclasses import asdict

    result = _plan(parsed)
    if parsed.json:
        print_json(asdict(result))
    else:
        sys.stdout.write(str(result))
    return 0 if result.fits else EXIT_PARTIAL


def _plan(parsed: argparse.Namespace) -> RunPlan | StudyPlan:
    """The plan of a recipe or study, which is checked before torch is imported."""
    from dualmoco.analysis.study import is_study, read_study
    from dualmoco.core.errors import ConfigError
    from dualmoco.training.recipe import load_config

    study = read_study(parsed.recipe, parsed.overrides, parsed.data) if is_study(parsed.recipe) else None
    config = None if study else load_config(parsed.recipe, read_overrides(parsed))
    try:
        tokens = [float(word) for word in (parsed.tokens or "").split(",") if word]
    except ValueError:
        raise ConfigError(f"--tokens {parsed.tokens}: expected two numbers such as 28,33") from None

    from dualmoco.analysis.plan import plan
    from dualmoco.analysis.study_plan import plan_study

    devices, pairs = parsed.devices or "", parsed.pair_count or 0
    if config:
        return plan(config, devices=devices, pairs=pairs, tokens=tokens, seconds=parsed.seconds)
    assert study
    return plan_study(study, devices=devices, pairs=pairs, tokens=tokens, seconds=parsed.seconds)
