"""Figures of the studies, drawn from the tables on the pages, so that a number stands in one place: SVG files.

    python -m benchmarks.figures

The pages are docs/results/study-*.md; the figures go to docs/figures. Points are means over seeds, bars are one
standard deviation in each direction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.evaluation.canvas import COLORS, new_figure, save_figure

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FIGURES = RESULTS.parent / "figures"
MEASURED = re.compile(r"(-?[\d.]+) ± ([\d.]+)")
MARKERS = "osD^"
LOWEST_LABEL = 4.0  # so that it does not cover the axis
NAMES = {
    "held-out": "held-out retrieval",
    "Tatoeba zh-en": "Tatoeba zh-en",
    "STS wmean": "English STS",
}
"""Columns that are drawn, and their labels."""


@dataclass(frozen=True)
class StudyFigure:
    """A figure: the section of a page whose first table it shows, and the words on it."""

    file: str
    page: str
    section: str
    title: str
    axis: str
    across: bool = False  # the settings are columns of the table, and each row is a line


STUDY_FIGURES = (
    StudyFigure("study-momentum", "study-temperature", "Momentum", "Momentum of the key encoders", "momentum"),
    StudyFigure("study-temperature", "study-temperature", "Temperature", "Temperature of the loss", "temperature"),
    StudyFigure(
        "study-queue", "study-queue", "Size of the queue", "Size of the queue, 1,000 steps", "rows of the queue"
    ),
    StudyFigure("study-pooling", "study-start", "Pooling", "Pooling, from scratch", "pooling"),
    StudyFigure("study-pairs", "study-start", "Number of pairs", "Size of the training set, 1,000 steps", "pairs"),
    StudyFigure("study-start", "study-start", "Pretrained or random start", "Where training starts", "start"),
    StudyFigure(
        "study-batch",
        "study-batch",
        "The queue against in-batch negatives, in equal minutes",
        "Held-out retrieval after 1.5 minutes",
        "pairs per batch",
        across=True,
    ),
)


def main() -> None:
    """Draws all figures."""
    for wanted in STUDY_FIGURES:
        labels, lines = read_lines(wanted)
        with new_figure(wanted.title, 6.4, 3.6) as (figure, axes):
            draw(axes, wanted, labels, lines)
        save_figure(figure, FIGURES / f"{wanted.file}.svg")


def read_lines(wanted: StudyFigure) -> tuple[list[str], dict[str, list[tuple[float, float]]]]:
    """The settings, and for each line its means and standard deviations, from the first table of a section."""
    text = (RESULTS / f"{wanted.page}.md").read_text(encoding="utf-8")
    section = text.partition(f"## {wanted.section}\n")[2]
    table = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    assert table, f"{wanted.page}: no table under {wanted.section}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()]
    head, rows = cells[0], [row for row in cells[2:] if any(MEASURED.match(cell) for cell in row)]
    if wanted.across:
        return head[1:], {row[0]: [_measured(cell) for cell in row[1:]] for row in rows}
    lines = {NAMES[name]: [_measured(row[column]) for row in rows] for column, name in enumerate(head) if name in NAMES}
    return [row[0].split()[-1] if " " in row[0] and "," not in row[0] else row[0] for row in rows], lines


def _measured(cell: str) -> tuple[float, float]:
    found = MEASURED.match(cell)
    assert found, f"{cell!r}; expected a mean and a standard deviation"
    return float(found[1]), float(found[2])


def draw(axes: Any, wanted: StudyFigure, labels: list[str], lines: dict[str, list[tuple[float, float]]]) -> None:
    """Draws lines with error bars, each labelled at its right end."""
    places = np.arange(len(labels))
    ends = {name: points[-1][0] for name, points in lines.items()}
    heights = spread_out(ends, gap=6.0)
    for number, (name, points) in enumerate(lines.items()):
        means, spreads = zip(*points, strict=True)
        color = COLORS[number]
        axes.errorbar(places, means, yerr=spreads, color=color, marker=MARKERS[number], capsize=3, linewidth=1.6)
        axes.annotate(name, (places[-1] + 0.12, heights[name]), color=color, va="center", annotation_clip=False)
    axes.set_xticks(places, labels)
    axes.set_xlim(-0.3, len(labels) - 1 + 0.45 * (len(labels) - 1) + 0.3)
    axes.set_ylim(0, 100)
    axes.set_xlabel(wanted.axis, loc="left")
    has_sts = NAMES["STS wmean"] in lines
    axes.set_ylabel("accuracy in %; STS: correlation x 100" if has_sts else "accuracy in %")
    axes.text(0, 96, "mean of three seeds, ± one standard deviation", color="#666666", fontsize=8, va="top")


def spread_out(heights: dict[str, float], *, gap: float) -> dict[str, float]:
    """Heights of labels, moved up where they would overlap."""
    placed: dict[str, float] = {}
    lowest = LOWEST_LABEL - gap
    for name in sorted(heights, key=heights.__getitem__):
        lowest = max(heights[name], lowest + gap)
        placed[name] = lowest
    return placed


if __name__ == "__main__":
    main()
