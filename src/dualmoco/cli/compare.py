"""`dualmoco compare`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_command, add_json, print_result

if TYPE_CHECKING:
    from dualmoco.evaluation.metrics import Compared
    from dualmoco.evaluation.report import Table


def add(commands: Any) -> None:
    """Declares the command."""
    compare = add_command(
        commands,
        "compare",
        run,
        "compare two evaluations, with p-values",
        "Differences are B minus A; p comes from a two-sided paired bootstrap over the test items.\n\n"
        "examples:\n"
        "  dualmoco evaluate en-zh --tasks tatoeba --data examples --out a.json\n"
        "  dualmoco evaluate en-zh-static --tasks tatoeba --data examples --out b.json\n"
        "  dualmoco compare a.json b.json",
    )
    compare.add_argument("a", metavar="A.json", help="scores of one model, from evaluate --out")
    compare.add_argument("b", metavar="B.json", help="scores of another model on the same test sets")
    compare.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap samples")
    compare.add_argument("--seed", type=int, default=0, help="random seed of the bootstrap")
    output = compare.add_argument_group("output")
    output.add_argument("--subsets", action="store_true", help="show STS subsets and Pearson too")
    add_json(output)


def run(parsed: argparse.Namespace) -> int:
    """Compares, and prints the differences."""
    from dataclasses import asdict
    from pathlib import Path

    from dualmoco.evaluation.metrics import compare

    compared = compare(parsed.a, parsed.b, resamples=parsed.resamples, seed=parsed.seed, subsets=parsed.subsets)
    return print_result(
        parsed,
        [
            {
                "task": row.a.task,
                "subset": row.a.subset,
                "protocol": row.a.protocol,
                "metric": row.a.metric,
                "a": row.a.value,
                "b": row.b.value,
                **(asdict(row.difference) if row.difference else {}),
            }
            for row in compared
        ],
        comparison_table(compared, Path(parsed.a).stem, Path(parsed.b).stem).as_text(),
    )


def comparison_table(compared: list[Compared], a: str, b: str) -> Table:
    """The differences as a table."""
    from dualmoco.evaluation.report import Table

    rows = []
    for row in compared:
        difference = row.difference
        shown = [f"{row.b.value - row.a.value:+.2f}", "", ""]
        if difference:
            shown[1:] = [f"[{difference.low:+.2f}, {difference.high:+.2f}]", f"{difference.p:.3f}"]
        name = ", ".join(part for part in (row.a.task, row.a.subset, row.a.protocol) if part)
        rows.append([name, row.a.metric, f"{row.a.value:.2f}", f"{row.b.value:.2f}", *shown])
    columns = ["score", "metric", a, b, "difference", "95 % interval", "p"]
    return Table(f"{b} against {a}", columns, rows)
