"""The report of a study: means, standard deviations and p-values over seeds, a table, figures and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from dualmoco.analysis.study import DONE, RUNS_FOLDER, Axis, Study
from dualmoco.core import VERSION
from dualmoco.core.storage import write_json, write_text
from dualmoco.evaluation.canvas import COLORS, MARKERS, label_ends, new_figure, save_figure, to_svg
from dualmoco.evaluation.report import Table, main_scores
from dualmoco.training.run_folder import logged_metrics, read_log

HELDOUT_COLUMN = "held-out"
LOWEST_P = 0.01  # smaller p-values are shown as "< 0.01"
PANEL_HEIGHT, LABEL_HEIGHT = 1.9, 0.17  # minimum inches of a panel of `draw_curves`, and of the label of a row


@dataclass(frozen=True)
class SeedMean:
    """One metric of one row, over its seeds."""

    values: list[float]  # one per successful seed
    mean: float
    spread: float | None  # standard deviation over seeds; None for a single seed
    p: float | None  # p-value of the difference from the first row; None for the first row or too few seeds


@dataclass(frozen=True)
class RowResult:
    """One row of a study."""

    name: str
    value: float | None
    group: str
    metrics: dict[str, SeedMean]
    seconds: list[float]
    troubles: dict[str, str]  # reasons of runs that failed or diverged, by run name


@dataclass(frozen=True)
class StudyResult:
    """All rows of a study; printing it shows a table."""

    study: Study
    rows: list[RowResult]

    @property
    def is_whole(self) -> bool:
        """Whether every run succeeded."""
        return not any(row.troubles for row in self.rows)

    def table(self) -> Table:
        """Means, standard deviations over seeds and p-values."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.metrics))
        seeds = len(self.study.config.seeds)
        rows = []
        for row in self.rows:
            cells = [_cell(row.metrics.get(name)) for name in names]
            minutes = f"{np.mean(row.seconds) / 60:.1f}" if row.seconds else ""
            rows.append([row.name, *cells, minutes, f"{len(row.troubles)} of {seeds}" if row.troubles else ""])
        note = "1 seed; mean ± standard deviation; single seed: no variance estimate"
        if seeds > 1:
            note = f"{seeds} seeds; mean ± standard deviation; p against the first row, Welch's t-test over seeds"
        return Table(self.study.config.title, ["", *names, "minutes", "failed"], rows, note=note)

    def __str__(self) -> str:
        return self.table().as_text()


def gather(study: Study, results: Mapping[str, dict[str, Any]]) -> StudyResult:
    """Combines the results of the runs, by run name, into the rows of the study."""
    rows: list[RowResult] = []
    first: dict[str, list[float]] = {}
    for row in study.rows:
        runs = [(run, results[run.name]) for run in study.runs if run.row is row]
        good = [found for _, found in runs if found["status"] == DONE]
        values: dict[str, list[float]] = {}
        for found in good:
            for name, value in _column_values(found).items():
                values.setdefault(name, []).append(value)
        metrics = {name: _seed_mean(numbers, first.get(name)) for name, numbers in values.items()}
        troubles = {run.name: f"{found['status']}: {found['reason']}" for run, found in runs if found["status"] != DONE}
        rows.append(RowResult(row.name, row.value, row.group, metrics, [found["seconds"] for found in good], troubles))
        first = first or values
    return StudyResult(study, rows)


def _column_values(found: dict[str, Any]) -> dict[str, float]:
    """The numbers of a run that the table shows, in percent, by column."""
    return {HELDOUT_COLUMN: 100 * found["heldout"], **main_scores(found["scores"])}


def _seed_mean(values: Sequence[float], first: Sequence[float] | None) -> SeedMean:
    """Mean and standard deviation of a metric, and the p-value of its difference from the first row."""
    from scipy.stats import ttest_ind

    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    p = None
    if first is not None and len(first) > 1 and len(values) > 1 and np.ptp([*first, *values]) > 0:
        p = float(ttest_ind(first, values, equal_var=False).pvalue)
    return SeedMean([float(value) for value in values], float(np.mean(values)), spread, p)


def _cell(measured: SeedMean | None) -> str:
    if measured is None:
        return ""
    spread = f" ± {measured.spread:.1f}" if measured.spread is not None else ""
    if measured.p is None:
        return f"{measured.mean:.1f}{spread}"
    return f"{measured.mean:.1f}{spread} (p {f'{measured.p:.2f}' if measured.p >= LOWEST_P else f'< {LOWEST_P}'})"


def draw_rows(result: StudyResult) -> Figure:
    """Draws the mean and standard deviation of every metric.

    The horizontal axis is the value of the last varied key, with one line per combination of the other keys, or the
    names of the rows.
    """
    config = result.study.config
    rows = [row for row in result.rows if row.metrics]
    named = config.axis == Axis.names
    groups = [""] if named else list(dict.fromkeys(row.group for row in rows))
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    lines = [(group, metric) for group in groups for metric in metrics]
    width = max(6.5, 1.1 * len(rows)) if named else 7.0
    with new_figure(config.title, width, 4.4, [row.name for row in rows]) as (figure, axes):
        for number, (group, metric) in enumerate(lines):
            shown = [
                (place, row) for place, row in enumerate(rows) if metric in row.metrics and group in ("", row.group)
            ]
            if not named:
                shown.sort(key=lambda one: one[1].value or 0.0)  # lines go from left to right
            shift = 0.08 * (number - (len(metrics) - 1) / 2) if named else 0.0
            places = [place + shift if named else row.value for place, row in shown]
            means = [row.metrics[metric].mean for _, row in shown]
            spreads = [row.metrics[metric].spread or 0.0 for _, row in shown]
            axes.errorbar(
                places,
                means,
                yerr=spreads,
                label=f"{metric}, {group}" if group else metric,
                color=COLORS[(groups.index(group) if len(groups) > 1 else number) % len(COLORS)],
                marker=MARKERS[metrics.index(metric) % len(MARKERS)],
                markersize=5,
                capsize=3,
                linewidth=0 if named else 1.4,
                elinewidth=1.2,
            )
        _place_rows(axes, rows, config.axis, list(config.vary)[-1] if config.vary else "")
        seeds = len(config.seeds)
        spread = f"\nmean of {seeds} seeds; bars: one standard deviation" if seeds > 1 else ""
        axes.set_ylabel(f"percent; correlations × 100{spread}")
        figure.legend(loc="outside lower center", ncols=2 if len(groups) > 1 else min(5, max(1, len(metrics))))
    return figure


def _place_rows(axes: Any, rows: list[RowResult], axis: Axis, key: str) -> None:
    """Sets the ticks of the horizontal axis: names of rows, or values of the varied key."""
    if axis == Axis.names:
        tilted = {"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if len(rows) > 4 else {"ha": "center"}
        axes.set_xticks(range(len(rows)), [row.name for row in rows], **tilted)
        axes.grid(False, axis="x")
        return
    values = sorted({row.value for row in rows if row.value is not None})
    if axis == Axis.log:
        axes.set_xscale("symlog" if 0 in values else "log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(key)


def draw_curves(study: Study, runs: Path) -> Figure:
    """Draws logged metrics over the steps, one panel per metric and one line per row (the run of its first seed)."""
    metrics, rows = study.config.curves, study.rows
    height = len(metrics) * max(PANEL_HEIGHT, LABEL_HEIGHT * len(rows))
    with new_figure("", 7.0, height, [row.name for row in rows], panels=(len(metrics), 1)) as (figure, panels):
        for metric, panel in zip(metrics, panels, strict=True):
            ends: dict[str, tuple[float, float, str]] = {}
            for number, row in enumerate(rows):
                run = next(run for run in study.runs if run.row is row)
                lines = [(line["step"], logged_metrics(line)) for line in read_log(runs / run.name / "log.jsonl")]
                points = [(step, found[metric]) for step, found in lines if metric in found]
                if points:
                    color = COLORS[number % len(COLORS)]
                    panel.plot(*zip(*points, strict=True), color=color, linewidth=1.2)
                    ends[row.name] = (*points[-1], color)
            panel.set_title(metric, fontsize=9)
            panel.margins(x=0)
            label_ends(panel, ends)
        panels[-1].set_xlabel("step")
    return figure


def write_report(result: StudyResult, out: Path) -> None:
    """Writes results.json, table.md, the figures and report.html; RunError if a file cannot be written."""
    write_json(out / "results.json", {"title": result.study.config.title, "rows": [asdict(row) for row in result.rows]})
    write_text(out / "table.md", result.table().as_markdown())
    figures = [draw_rows(result)]
    save_figure(figures[0], out / "figure.png")
    if result.study.config.curves:
        figures.append(draw_curves(result.study, out / RUNS_FOLDER))
        save_figure(figures[1], out / "curves.png")
    write_text(out / "report.html", study_page(result, figures))


def study_page(result: StudyResult, figures: Sequence[Figure]) -> str:
    """HTML with the table, the figures, failed runs and the settings of every run."""
    environment = Environment(
        loader=PackageLoader("dualmoco.analysis", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        study=result.study,
        table=result.table(),
        figures=[to_svg(figure) for figure in figures],
        troubles={name: reason for row in result.rows for name, reason in row.troubles.items()},
        version=VERSION,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
