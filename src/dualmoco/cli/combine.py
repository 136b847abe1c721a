"""`dualmoco combine`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_command,
    add_json,
    add_languages,
    add_on_error,
    add_overwrite,
    counted,
    describe_skipped,
    print_result,
)

if TYPE_CHECKING:
    from dualmoco.training.combine import Combined


def add(commands: Any) -> None:
    """Declares the command."""
    combine = add_command(
        commands,
        "combine",
        run,
        "combine several models into a hybrid",
        "Every command accepts the result as its model; docs/explanation/hybrids.md explains how it works.\n\n"
        "examples:\n"
        "  dualmoco train recipes/tiny.yaml\n"
        "  dualmoco combine en-zh-static runs/tiny --out hybrid --weights 1,0.2\n"
        "  dualmoco combine en-zh-static runs/tiny --out hybrid --pairs examples/pairs.tsv",
    )
    combine.add_argument(
        "models", nargs="+", metavar="MODEL", help="two or more model or run folders, hub names or package:NAME"
    )
    weighting = combine.add_argument_group("input")
    weighting.add_argument("--weights", metavar="W,W", help="one weight above 0 per model (default: equal weights)")
    weighting.add_argument("--pairs", metavar="FILE", help="held-out bitext to choose the weights on")
    add_languages(weighting)
    add_on_error(weighting)
    output = combine.add_argument_group("output")
    output.add_argument(
        "--out", required=True, metavar="FOLDER", help="write the model to FOLDER, replacing an earlier hybrid"
    )
    add_overwrite(output, "replace FOLDER even if it is not a hybrid")
    add_json(output)


def run(parsed: argparse.Namespace) -> int:
    """Combines, and prints the weights and how they were chosen."""
    from dataclasses import asdict

    from dualmoco.training.combine import combine

    done = combine(
        parsed.models,
        parsed.out,
        weights=parse_weights(parsed.weights),
        pairs=parsed.pairs,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        on_error=parsed.on_error,
        overwrite=parsed.overwrite,
    )
    return print_result(parsed, asdict(done), describe(done, parsed.src, parsed.tgt))


def parse_weights(given: str | None) -> list[float] | None:
    """The numbers of `--weights`, such as `1,0.7`; ConfigError for anything else."""
    from dualmoco.core.errors import ConfigError

    try:
        return None if given is None else [float(word) for word in given.split(",")]
    except ValueError:
        raise ConfigError(f"--weights {given}; expected numbers above 0, separated by commas, such as 1,0.7") from None


def describe(done: Combined, src: str, tgt: str) -> str:
    """The chosen weights, after a table of the weights that were tried."""
    from dualmoco.core.display import markdown_table

    lines = []
    if done.trials:
        rows = [
            [
                ", ".join(f"{weight:g}" for weight in trial.weights),
                f"{100 * trial.src_to_tgt:.2f}",
                f"{100 * trial.tgt_to_src:.2f}",
                f"{100 * trial.score:.2f}",
            ]
            for trial in done.trials
        ]
        skipped = describe_skipped(done.unreadable)
        lines += [f"retrieval accuracy on {counted(done.pairs, 'held-out pair')}{skipped}:", ""]
        lines += [*markdown_table(["weights", f"{src}-{tgt}", f"{tgt}-{src}", "mean"], rows), ""]
    parts = ", ".join(f"{part.model} with weight {part.weight:g}" for part in done.parts)
    return "\n".join([*lines, f"{done.out}: {parts}"]) + "\n"
