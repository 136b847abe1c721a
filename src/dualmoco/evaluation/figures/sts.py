"""STS scores as bars: models side by side, or the subsets of one model. Scores are Spearman correlations times 100."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan

from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from dualmoco.core.errors import DataError
from dualmoco.evaluation.figures.canvas import BLUE, COLORS, GREY, new_figure

HATCHES = ("", "///", "...")  # tell apart models beyond the number of colours
GROUP_WIDTH = 0.84  # of the bars of one data set; the rest is the gap to the next
WRITTEN = 64  # bars; the values of more cannot be read
Scores = Mapping[str, Mapping[str, float]]


def draw_sts(rows: Scores, title: str) -> Figure:
    """Draws the scores of several models on several data sets.

    Args:
        rows: For each model the score of each data set; a model may lack some.
        title: Above the figure.

    Returns:
        The figure: a group of bars for each data set, in the order they are first named.

    Raises:
        DataError: No score at all.
    """
    names = list(dict.fromkeys(name for scores in rows.values() for name in scores))
    lowest = _lowest(rows)
    width = GROUP_WIDTH / len(rows)
    size = max(7.0, 1.6 + len(names) * max(0.9, 0.34 * len(rows)))
    with new_figure(title, size, 4.8, [*rows, *names]) as (figure, axes):
        for number, (model, scores) in enumerate(rows.items()):
            places = [place + width * (number - (len(rows) - 1) / 2) for place in range(len(names))]
            values = [scores.get(name, nan) for name in names]
            hatch = HATCHES[number // len(COLORS) % len(HATCHES)]
            bars = axes.bar(
                places, values, 0.92 * width, color=COLORS[number % len(COLORS)], label=model, hatch=hatch,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
            if len(rows) * len(names) <= WRITTEN:
                texts = [f"{value:.1f}" if isfinite(value) else "" for value in values]
                axes.bar_label(bars, texts, fontsize=7.5, padding=2, color="#444444")
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", length=0)
        axes.grid(False, axis="x")
        axes.set(ylabel="Spearman correlation x 100", ylim=(lowest, 100))
        figure.legend(loc="outside lower center", ncols=min(len(rows), max(2, int(size / 2))))
    return figure


def draw_subsets(values: Scores, title: str = "STS by subset") -> Figure:
    """Draws the scores of one model on every subset, grouped by year.

    Args:
        values: For each year the score of each subset.
        title: Above the figure.

    Returns:
        The figure: a bar for each subset, the years from the top down.

    Raises:
        DataError: No score at all.
    """
    lowest = _lowest(values)
    values = {year: subsets for year, subsets in values.items() if subsets}
    names = [name for subsets in values.values() for name in subsets]
    with new_figure(title, 7.5, 1.4 + 0.27 * (len(names) + len(values)), [*values, *names]) as (figure, axes):
        beside = blended_transform_factory(axes.transAxes, axes.transData)
        place, places = 0.0, []
        for year, subsets in values.items():
            rows = [place + step for step in range(len(subsets))]
            bars = axes.barh(rows, list(subsets.values()), 0.78, color=BLUE)
            axes.bar_label(bars, [f"{score:.1f}" if isfinite(score) else "" for score in subsets.values()], padding=3)
            axes.text(1.06, (place + rows[-1]) / 2, year, transform=beside, va="center", fontweight="bold")
            axes.plot([1.04, 1.04], [place - 0.4, rows[-1] + 0.4], color=GREY, transform=beside, clip_on=False)
            places += rows
            place = rows[-1] + 1.9
        axes.set_yticks(places, names)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.set(xlabel="Spearman correlation x 100", xlim=(lowest, 100), ylim=(place - 1.2, -0.7))
    return figure


def _lowest(rows: Scores) -> float:
    """Where the axis of scores begins: at 0, or a little below the lowest negative score."""
    finite = [score for scores in rows.values() for score in scores.values() if isfinite(score)]
    if not finite:
        raise DataError("no score to draw; expected at least one finite number")
    return min(0.0, min(finite) - 5) if min(finite) < 0 else 0.0
