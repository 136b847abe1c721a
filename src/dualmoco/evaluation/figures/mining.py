"""Mined pairs: how well their scores tell true from false ones, and what each threshold would give.

Takes scores of p pairs, descending, and whether each is a gold pair; gives figures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats
from dualmoco.evaluation.figures.canvas import BLUE, GREY, ORANGE, new_figure

BINS = 60
UNEQUAL = 20  # how many times more of one kind make the count axis logarithmic
LEVELS = (0.2, 0.4, 0.6, 0.8, 0.9)  # of F1, drawn as lines
Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def draw_margins(scores: Floats, correct: Flags, threshold: float) -> Figure:
    """Draws how often true and false pairs have which score.

    Args:
        scores: Descending, shape (p,); infinite ones are left out.
        correct: Whether each is a gold pair, shape (p,).
        threshold: The lowest score accepted, drawn as a line if it is finite.

    Returns:
        The figure.

    Raises:
        DataError: No finite score, scores that are not sorted, or another number of flags.
    """
    scores, correct = _check(scores, correct)
    finite = np.isfinite(scores)
    if not finite.any():
        raise DataError(f"{len(scores)} scores, none of them finite; expected some to draw")
    edges = np.histogram_bin_edges(scores[finite], bins=BINS)
    title = f"Margin scores of {finite.sum():,} mined pairs"
    with new_figure(title, 8, 4.5) as (figure, axes):
        for flag, name, color in ((False, "false", ORANGE), (True, "true", BLUE)):
            chosen = scores[finite & (correct == flag)]
            label = f"{name} pairs ({len(chosen):,})"
            axes.hist(chosen, edges, histtype="stepfilled", facecolor=color, edgecolor=color, alpha=0.55, label=label)
        if np.isfinite(threshold):
            axes.axvline(threshold, color="#222222", linewidth=1.2, linestyle="--", label=f"threshold {threshold:.4g}")
        true, false = int(correct.sum()), int((~correct).sum())
        if max(true, false) > UNEQUAL * min(true, false) > 0:
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(xlabel="margin score", ylabel="pairs")
        axes.legend()
    return figure


def draw_precision_recall(scores: Floats, correct: Flags, gold: int, threshold: float) -> Figure:
    """Draws precision against recall for every threshold, and marks one.

    Args:
        scores: Descending, shape (p,).
        correct: Whether each is a gold pair, shape (p,).
        gold: How many gold pairs there are, found or not.
        threshold: The lowest score accepted; marked if it accepts any pair.

    Returns:
        The figure.

    Raises:
        DataError: No pair, scores that are not sorted, another number of flags, or more true pairs than gold ones.
    """
    precision, recall = precision_recall(scores, correct, gold)
    accepted = int((np.asarray(scores) >= threshold).sum())
    with new_figure(f"Precision and recall of mined pairs ({gold:,} gold pairs)", 6.4, 5.6) as (figure, axes):
        _draw_levels(axes)
        axes.plot(recall, precision, color=BLUE, linewidth=1.8, zorder=3)
        if accepted:
            hits = int(np.asarray(correct)[:accepted].sum())
            chosen = (hits / gold, hits / accepted, 2 * hits / (accepted + gold))
            _mark(axes, chosen, threshold)
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    return figure


def precision_recall(scores: Floats, correct: Flags, gold: int) -> tuple[Floats, Floats]:
    """Precision and recall of the pairs from each distinct score on.

    Args:
        scores: Descending, shape (p,).
        correct: Whether each is a gold pair, shape (p,).
        gold: How many gold pairs there are, found or not.

    Returns:
        Two arrays, a value for every distinct score, from the highest on.

    Raises:
        DataError: No pair, scores that are not sorted, another number of flags, or more true pairs than gold ones.
    """
    scores, correct = _check(scores, correct)
    hits = np.cumsum(correct)
    if gold < max(int(hits[-1]), 1):
        raise DataError(f"{hits[-1]} true pairs but {gold} gold pairs; expected at least as many gold ones, and one")
    last = np.append(scores[1:] < scores[:-1], True)  # equal scores are accepted together
    return (hits / np.arange(1, len(hits) + 1))[last], (hits / gold)[last]


def _draw_levels(axes: Any) -> None:
    """Draws the lines on which F1 is the same: precision = F1 * recall / (2 * recall - F1)."""
    for level in LEVELS:
        recall = np.linspace(level / (2 - level), 1, 100)
        axes.plot(recall, level * recall / (2 * recall - level), color=GREY, linewidth=0.7, linestyle=":", zorder=2)
        axes.text(1.02, level / (2 - level), f" F1 {100 * level:.0f}", color=GREY, fontsize=8, va="center")


def _mark(axes: Any, chosen: tuple[float, float, float], threshold: float) -> None:
    recall, precision, f1 = chosen
    text = f"threshold {threshold:.4g}\nP {100 * precision:.1f}   R {100 * recall:.1f}   F1 {100 * f1:.1f}"
    axes.plot([recall], [precision], "o", color=ORANGE, markersize=8, zorder=4)
    axes.annotate(
        text, (recall, precision), xytext=(-14, -18 if precision > 0.3 else 18), textcoords="offset points",
        ha="right" if recall > 0.4 else "left", va="top" if precision > 0.3 else "bottom", zorder=5,
        bbox={"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "#d0d0d0", "linewidth": 0.7},
    )  # fmt: skip


def _check(scores: Floats, correct: Flags) -> tuple[Floats, Flags]:
    scores, correct = np.asarray(scores, dtype=np.float64), np.asarray(correct, dtype=np.bool_)
    if scores.ndim != 1 or not len(scores) or scores.shape != correct.shape:
        raise DataError(f"scores {scores.shape} and flags {correct.shape}; expected one of each for every pair")
    if not (scores[:-1] >= scores[1:]).all():
        raise DataError("scores that rise or are not numbers; expected them sorted, the highest first")
    return scores, correct
