"""The figures of a study: its rows with their spread over seeds, and curves of the logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dualmoco.analysis.results import RowResult, StudyResult
from dualmoco.analysis.study import Axis, Study
from dualmoco.evaluation.figures.canvas import COLORS, new_figure
from dualmoco.training.log import read_log

MARKERS = "osD^v<>p"


def draw_rows(result: StudyResult) -> Figure:
    """Draws every metric over the rows, a bar of one standard deviation around each mean.

    Args:
        result: Of a study.

    Returns:
        The figure; its axis is the value of the last key that is varied, linear or logarithmic, a line for each
        combination of the others, or the rows' names.
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
                shown.sort(key=lambda one: one[1].value or 0.0)  # a line goes from left to right
            shift = 0.08 * (number - (len(metrics) - 1) / 2) if named else 0.0
            places = [place + shift if named else row.value for place, row in shown]
            means = [row.metrics[metric].mean for _, row in shown]
            spreads = [row.metrics[metric].spread or 0.0 for _, row in shown]
            axes.errorbar(
                places, means, yerr=spreads, label=f"{metric}, {group}" if group else metric,
                color=COLORS[(groups.index(group) if len(groups) > 1 else number) % len(COLORS)],
                marker=MARKERS[metrics.index(metric) % len(MARKERS)], markersize=5, capsize=3,
                linewidth=0 if named else 1.4, elinewidth=1.2,
            )  # fmt: skip
        _place_rows(axes, rows, config.axis, list(config.vary)[-1] if config.vary else "")
        axes.set_ylabel("percent")
        figure.legend(loc="outside lower center", ncols=2 if len(groups) > 1 else min(5, max(1, len(metrics))))
    return figure


def _place_rows(axes: Any, rows: list[RowResult], axis: Axis, key: str) -> None:
    """Names the rows under the axis, at their values where it is one of numbers."""
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
    """Draws metrics of the logs over the steps, a line for each row: the run of its first seed.

    Args:
        study: Whose runs they are, and which metrics.
        runs: Folder of the run folders.

    Returns:
        The figure, a panel for each metric.
    """
    names = study.config.curves
    with new_figure("", 4.2 * len(names) + 1, 3.8, [row.name for row in study.rows]) as (figure, axes):
        axes.remove()
        for metric, panel in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
            for number, row in enumerate(study.rows):
                run = next(run for run in study.runs if run.row is row)
                lines = [line for line in read_log(runs / run.name / "log.jsonl") if metric in line]
                steps, values = [line["step"] for line in lines], [float(line[metric]) for line in lines]
                panel.plot(steps, values, color=COLORS[number % len(COLORS)], linewidth=1.2, label=row.name)
            panel.set(xlabel="step", title=metric)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(5, max(1, len(labels))))
    return figure
