"""Figures of the results, drawn from the tables on the pages and from the curves of benchmarks.accuracy: SVG files.

    python -m benchmarks.figures

A number stands in one place: the tables are those of docs/results/*.md, the curves those of docs/results/*.json. The
figures go to docs/figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.evaluation.canvas import COLORS, MARKERS, label_ends, new_figure, save_figure, wrap

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FIGURES = RESULTS.parent / "figures"
MEASURED = re.compile(r"(-?[\d.]+) ± ([\d.]+)")
NUMBER = re.compile(r"\d[\d,.]*")
BOTH_WAYS = re.compile(r"([\d.]+) / ([\d.]+)(?: \((\d+)\))?")  # two accuracies, and other minutes than the column's
ERROR_STYLE: dict[str, Any] = {"markersize": 5, "capsize": 3, "elinewidth": 1.2, "clip_on": False, "zorder": 3}
WIDTH = 7.4  # inches: as wide as a page of the site
GRID_POINTS = 60  # at which the curves of several seeds are averaged
LEAST_TICK_GAP = 0.12  # between labels on a logarithmic axis, as a share of it
NOTE_STYLE: dict[str, Any] = {"x": 0.01, "ha": "left", "color": "#666666", "fontsize": 8}
SEEDS_NOTE = "Points: mean of three seeds. Bars: one standard deviation in each direction."
COLUMNS = {
    "held-out": ("Held-out pairs", "translations found, %"),
    "STS wmean": ("English STS", "Spearman × 100"),
}
"""Columns that are drawn, with the title of their panels and their unit. Tatoeba follows the held-out pairs closely."""
Point = tuple[str, float, float]  # setting, mean, standard deviation
Panels = dict[str, dict[str, list[Point]]]  # points by column and line


@dataclass(frozen=True)
class StudyFigure:
    """A figure: the section of a page whose first tables it shows, and the words on it."""

    file: str
    page: str
    section: str
    title: str
    axis: str
    lines: tuple[str, ...] = ("",)  # a line for each of the first tables
    log: bool = False  # the axis of the settings
    across: bool = False  # the settings are columns of the table, and each row with measured cells is a line


STUDY_FIGURES = (
    StudyFigure("study-momentum", "study-temperature", "Momentum", "Momentum, 1,500 steps", "momentum"),
    StudyFigure(
        "study-temperature", "study-temperature", "Temperature", "Temperature of the loss", "temperature", log=True
    ),
    StudyFigure(
        "study-queue",
        "study-queue",
        "Size of the queue",
        "Size of the queue",
        "rows of the queue",
        ("1,000 steps", "3,000 steps"),
        log=True,
    ),
    StudyFigure("study-pooling", "study-start", "Pooling", "Pooling, from scratch", "pooling"),
    StudyFigure(
        "study-pairs", "study-start", "Number of pairs", "Size of the training set, 1,000 steps", "pairs", log=True
    ),
    StudyFigure("study-start", "study-start", "Pretrained or random start", "Where training starts", "start"),
    StudyFigure(
        "study-batch",
        "study-batch",
        "The queue against in-batch negatives, in equal minutes",
        "The queue and in-batch negatives after 1.5 minutes",
        "pairs per batch",
        log=True,
        across=True,
    ),
)


def main() -> None:
    """Draws all figures."""
    for wanted in STUDY_FIGURES:
        draw_study(wanted)
    draw_frozen()
    draw_accuracy("accuracy-small", "Held-out pairs: two small BERTs from scratch")


def read_tables(page: str, section: str) -> list[list[list[str]]]:
    """The cells of all tables between a heading and the next one, without the lines under their heads."""
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    text = re.split(r"^#+ ", text.partition(f"## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert tables, f"{page}: no table under {section}"
    split = [[[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()] for table in tables]
    return [[table[0], *table[2:]] for table in split]


def read_panels(wanted: StudyFigure) -> Panels:
    """Settings, means and standard deviations of a study."""
    tables = read_tables(wanted.page, wanted.section)
    if wanted.across:
        head, *rows = tables[0]
        measured = [row for row in rows if any(MEASURED.match(cell) for cell in row)]
        return {
            head[0]: {
                row[0]: [(name, *_measured(cell)) for name, cell in zip(head[1:], row[1:], strict=True)]
                for row in measured
            }
        }
    panels: Panels = {name: {} for name in COLUMNS}
    for line, (head, *rows) in zip(wanted.lines, tables, strict=False):
        for name, panel in panels.items():
            column = head.index(name)
            panel[line] = [(_setting(row[0]), *_measured(row[column])) for row in rows]
            if wanted.log:
                panel[line].sort(key=lambda point: _number(point[0]))
    return panels


def _measured(cell: str) -> tuple[float, float]:
    found = MEASURED.match(cell)
    assert found, f"{cell!r}; expected a mean and a standard deviation"
    return float(found[1]), float(found[2])


def _setting(cell: str) -> str:
    """The number in the name of a row, or its name."""
    found = NUMBER.search(cell)
    return found[0] if found else cell


def _number(setting: str) -> float:
    return float(setting.replace(",", ""))


def draw_study(wanted: StudyFigure) -> None:
    """Draws a panel for each column: lines over settings that are numbers, rows of points for settings with names."""
    panels = read_panels(wanted)
    highest = max(mean + spread for lines in panels.values() for points in lines.values() for _, mean, spread in points)
    named = not all(
        NUMBER.fullmatch(name) for lines in panels.values() for points in lines.values() for name, *_ in points
    )
    height = 1.9 if named else 2.7
    with new_figure(wanted.title, WIDTH, height, panels=(1, len(panels))) as (figure, plots):
        for axes, (column, lines) in zip(plots, panels.items(), strict=True):
            title, unit = COLUMNS[column]
            axes.set_title(title, fontsize=9)
            axes.tick_params(labelsize=8)
            if named:
                _draw_names(axes, lines, labels=axes is plots[0])
                axes.set(xlabel=unit, xlim=(0, 1.08 * highest))
            else:
                _draw_points(axes, wanted, lines)
                axes.set(xlabel=wanted.axis, ylabel=unit, ylim=(0, 1.08 * highest))
        if len(lines) > 1:
            label_ends(
                plots[-1],
                {
                    name: (_number(points[-1][0]), points[-1][1], COLORS[n])
                    for n, (name, points) in enumerate(lines.items())
                },
            )
        figure.supxlabel(SEEDS_NOTE, **NOTE_STYLE)
    save_figure(figure, FIGURES / f"{wanted.file}.svg")


def _draw_points(axes: Any, wanted: StudyFigure, lines: Mapping[str, Sequence[Point]]) -> None:
    """Draws lines with error bars over settings that are numbers."""
    settings = sorted({name for points in lines.values() for name, *_ in points}, key=_number)
    for number, points in enumerate(lines.values()):
        names, means, spreads = zip(*points, strict=True)
        places = [_number(name) if wanted.log else settings.index(name) for name in names]
        style = {**ERROR_STYLE, "color": COLORS[number], "marker": MARKERS[number], "linewidth": 1.6}
        axes.errorbar(places, means, yerr=spreads, **style)
    if not wanted.log:
        axes.set_xticks(range(len(settings)), settings)
        return
    axes.set_xscale("log")
    axes.minorticks_off()
    ticks = [settings[0]]
    least = LEAST_TICK_GAP * np.log(_number(settings[-1]) / _number(settings[0]))
    ticks += [name for before, name in pairwise(settings) if np.log(_number(name) / _number(before)) > least]
    axes.set_xticks([_number(name) for name in ticks], [f"{_number(name):,g}" for name in ticks])


def _draw_names(axes: Any, lines: Mapping[str, Sequence[Point]], *, labels: bool) -> None:
    """Draws a row for each named setting: a point with its error bar."""
    for number, points in enumerate(lines.values()):
        names, means, spreads = zip(*points, strict=True)
        places = range(len(names))
        style = {**ERROR_STYLE, "color": COLORS[number], "marker": MARKERS[number], "linewidth": 0}
        axes.errorbar(means, places, xerr=spreads, **style)
        axes.set_yticks(places, [wrap(name, 20) for name in names] if labels else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)


def draw_frozen() -> None:
    """Draws the accuracies of the page on freezing one side against minutes, the mean of both directions."""
    head, *rows = read_tables("frozen", "Measured")[0]
    ends: dict[str, tuple[float, float, str]] = {}
    with new_figure("Tatoeba zh-en, mean of both ways: one side frozen, or both trained", WIDTH, 3.4) as (figure, axes):
        for number, row in enumerate(rows):
            color = COLORS[number // 2]
            points = [
                (float(found[3] or _setting(column)), (float(found[1]) + float(found[2])) / 2)
                for column, cell in zip(head[1:], row[1:], strict=True)
                if (found := BOTH_WAYS.match(cell))
            ]
            style = "--" if "static" in row[0] else "-"
            axes.plot(*zip(*points, strict=True), style, color=color, marker=MARKERS[number], markersize=5)
            ends[row[0]] = (*points[-1], color)
        axes.set(
            xlabel="minutes of training on two cores",
            ylabel="translations found, %",
            xlim=(-0.3, 20.5),
        )
        axes.set_xticks(range(0, 21, 5))
        axes.set_yticks(range(80, 97, 4))
        label_ends(axes, ends)
        figure.supxlabel("One run each.", **NOTE_STYLE)
    save_figure(figure, FIGURES / "frozen.svg")


def draw_accuracy(name: str, title: str) -> None:
    """Draws the accuracy of systems against minutes: the mean of the seeds, and their range as a band."""
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    minutes = np.linspace(0, content["minutes"], GRID_POINTS)
    ends: dict[str, tuple[float, float, str]] = {}
    with new_figure(title, WIDTH, 3.8) as (figure, axes):
        for number, (system, curves) in enumerate(content["curves"].items()):
            color = COLORS[number]
            scores = [100 * np.interp(minutes, *np.transpose(curve)) for curve in curves]
            mean = np.mean(scores, axis=0)
            axes.plot(minutes, mean, color=color, linewidth=1.8)
            axes.fill_between(minutes, np.min(scores, axis=0), np.max(scores, axis=0), color=color, alpha=0.18, lw=0)
            ends[f"{wrap(system, 24)}, {mean[-1]:.1f}"] = (minutes[-1], mean[-1], color)
        axes.set(
            xlabel="minutes of CPU time on one thread",
            ylabel="translations found, %",
            xlim=(0, minutes[-1]),
            ylim=(0, None),
        )
        label_ends(axes, ends)
        seeds = max(map(len, content["curves"].values()))
        note = f"Lines: mean of {seeds} seeds. Bands: lowest and highest seed." if seeds > 1 else "One seed."
        figure.supxlabel(note, **NOTE_STYLE)
    save_figure(figure, FIGURES / f"{name}.svg")


if __name__ == "__main__":
    main()
