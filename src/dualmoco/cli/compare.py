"""`dualmoco compare`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_verb, print_json

if TYPE_CHECKING:
    from dualmoco.evaluation.report import Table
    from dualmoco.evaluation.score import Compared


def add(verbs: Any) -> None:
    """Describes the verb."""
    compare = add_verb(
        verbs,
        "compare",
        "set two evaluations side by side, with p-values",
        "Differences are B minus A; p is the two-sided paired bootstrap over the test items.\n\n"
        "example:\n  dualmoco compare ours.json theirs.json",
    )
    compare.add_argument("a", metavar="A.json", help="scores of one model, by evaluate --json")
    compare.add_argument("b", metavar="B.json", help="scores of another on the same test sets")
    compare.add_argument("--resamples", type=int, default=1000, help="draws of the test items")
    compare.add_argument("--seed", type=int, default=0, help="of the draws")
    compare.add_argument("--subsets", action="store_true", help="show STS subsets and Pearson too")
    compare.add_argument("--json", action="store_true", help="print the result as JSON")
    compare.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Compares, and shows the differences."""
    from dataclasses import asdict
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.evaluation.score import compare_scores, read_scores

    if parsed.resamples < 1:
        raise ConfigError(f"--resamples {parsed.resamples}; expected at least 1")
    a, b = read_scores(Path(parsed.a)), read_scores(Path(parsed.b))
    if not parsed.subsets:
        a = [score for score in a if score.protocol != "subset" and score.metric != "pearson"]
    compared = compare_scores(a, b, parsed.resamples, parsed.seed)
    if parsed.json:
        print_json(
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
            ]
        )
    else:
        sys.stdout.write(comparison_table(compared, Path(parsed.a).stem, Path(parsed.b).stem).as_text())
    return 0


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
