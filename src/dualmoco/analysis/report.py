"""The report of a study: a table, figures, and one HTML page that needs nothing else.

Takes a `StudyResult`; writes `results.json`, `table.md`, `figure.png`, `curves.png` and `report.html`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from dualmoco.analysis.figures import draw_curves, draw_rows
from dualmoco.analysis.results import StudyResult
from dualmoco.analysis.study import RUNS
from dualmoco.core.storage import write_json, write_text
from dualmoco.core.version import VERSION
from dualmoco.evaluation.figures.canvas import save_figure, to_svg


def write_report(result: StudyResult, out: Path) -> None:
    """Writes what came of a study, for machines and for people; RunError if the disk is full or not writable."""
    write_json(out / "results.json", {"title": result.study.config.title, "rows": [asdict(row) for row in result.rows]})
    write_text(out / "table.md", result.table().as_markdown())
    figures = [draw_rows(result)]
    save_figure(figures[0], out / "figure.png")
    if result.study.config.curves:
        figures.append(draw_curves(result.study, out / RUNS))
        save_figure(figures[1], out / "curves.png")
    write_text(out / "report.html", study_page(result, figures))


def study_page(result: StudyResult, figures: Sequence[Figure]) -> str:
    """The table, the figures, what failed and every run's settings.

    Args:
        result: Of a study.
        figures: Drawn of it.

    Returns:
        HTML.
    """
    environment = Environment(
        loader=PackageLoader("dualmoco.analysis", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        study=result.study, table=result.table(), figures=[to_svg(figure) for figure in figures],
        troubles={name: reason for row in result.rows for name, reason in row.troubles.items()}, version=VERSION,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )  # fmt: skip
