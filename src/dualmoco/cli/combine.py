"""`dualmoco combine`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_verb, counted, print_json

if TYPE_CHECKING:
    from dualmoco.training.combine import Combined


def add(verbs: Any) -> None:
    """Describes the verb."""
    combine = add_verb(
        verbs,
        "combine",
        "several models side by side as one",
        "FOLDER is a model of every other verb; docs/hybrid.md has more.\n\n"
        "examples:\n"
        "  dualmoco combine runs/static-cpu runs/small-cpu --out hybrid\n"
        "  dualmoco combine runs/static-cpu runs/small-cpu --out hybrid --weights 1,0.7\n"
        "  dualmoco combine runs/static-cpu runs/small-cpu --out hybrid --pairs held-out.tsv",
    )
    combine.add_argument(
        "models", nargs="+", metavar="MODEL", help="two or more: model or run folder, hub name, or package:NAME"
    )
    combine.add_argument("--out", required=True, metavar="FOLDER", help="to write; an earlier hybrid is replaced")
    combine.add_argument("--weights", metavar="W,W", help="one a model, above 0; equal if not given")
    combine.add_argument(
        "--pairs", metavar="FILE", help="held-out pairs, in any format of prepare, that choose weights"
    )
    combine.add_argument("--src", default="en", metavar="LANG", help="source language of the pairs")
    combine.add_argument("--tgt", default="zh", metavar="LANG", help="target language of the pairs")
    combine.add_argument("--overwrite", action="store_true", help="replace FOLDER even if it is no hybrid")
    combine.add_argument("--json", action="store_true", help="print the result as JSON")
    combine.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Combines, and prints the weights and what was tried to find them."""
    from dataclasses import asdict

    from dualmoco.training.combine import combine

    done = combine(
        parsed.models,
        parsed.out,
        weights=parse_weights(parsed.weights),
        pairs=parsed.pairs,
        src_lang=parsed.src,
        tgt_lang=parsed.tgt,
        overwrite=parsed.overwrite,
    )
    if parsed.json:
        print_json(asdict(done))
    else:
        sys.stdout.write(describe(done, parsed.src, parsed.tgt))
    return 0


def parse_weights(given: str | None) -> list[float] | None:
    """Reads numbers between commas.

    Args:
        given: Such as `1,0.7`; None if the option was not used.

    Returns:
        The numbers.

    Raises:
        ConfigError: Something else.
    """
    from dualmoco.core.errors import ConfigError

    try:
        return None if given is None else [float(word) for word in given.split(",")]
    except ValueError:
        raise ConfigError(f"--weights {given}; expected numbers above 0 between commas, such as 1,0.7") from None


def describe(done: Combined, src: str, tgt: str) -> str:
    """The result for people: what was tried, as a table, and the weights."""
    from dualmoco.core.markdown import markdown_table

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
        lines += [f"retrieval accuracy on {counted(done.pairs, 'held-out pair')}:", ""]
        lines += [*markdown_table(["weights", f"{src}-{tgt}", f"{tgt}-{src}", "mean"], rows), ""]
    parts = ", ".join(f"{part.model} with weight {part.weight:g}" for part in done.parts)
    return "\n".join([*lines, f"{done.out}: {parts}"]) + "\n"
