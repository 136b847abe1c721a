"""Similarities of sentences as a heat map: n sources down, m targets across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats
from dualmoco.evaluation.figures.canvas import new_figure
from dualmoco.evaluation.figures.labels import shorten

SHOWN_VALUES = 400  # cells; the numbers in more cannot be read
NAMED = 60  # sentences of a side; more have no labels
CELLS = 32  # width of a label, in Latin letters
COLOR_MAP = "Blues"


def draw_similarities(src_texts: Sequence[str], tgt_texts: Sequence[str], similarities: Floats) -> Figure:
    """Draws the similarity of every source with every target.

    Args:
        src_texts: n sentences.
        tgt_texts: m sentences.
        similarities: Cosines, shape (n, m).

    Returns:
        The figure; with the sentences and the values if there are few.

    Raises:
        DataError: Another shape, nothing in it, or values that are not finite.
    """
    values = np.asarray(similarities, dtype=np.float64)
    shape = (len(src_texts), len(tgt_texts))
    if values.shape != shape or not values.size:
        raise DataError(f"similarities of shape {values.shape}; expected {shape}, one for every pair of sentences")
    if not np.isfinite(values).all():
        raise DataError("similarities with NaN or infinity; expected finite numbers")
    sides = [[shorten(text, CELLS) for text in texts] for texts in (src_texts, tgt_texts)]
    names = [side if len(side) <= NAMED else [] for side in sides]
    height, width = (0.4 * count + 2.6 if count <= NAMED else 8.0 for count in shape)
    title = f"Cosine similarity of {shape[0]} and {shape[1]} sentences"
    with new_figure(title, max(width + 2.4, 5.5), max(height, 3.5), [*names[0], *names[1]]) as (figure, axes):
        image = axes.imshow(values, cmap=COLOR_MAP, vmin=0.0, vmax=1.0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_yticks(range(len(names[0])), names[0])
        axes.set_xticks(range(len(names[1])), names[1], rotation=40, ha="right", rotation_mode="anchor")
        if values.size <= SHOWN_VALUES:
            _write_values(axes, image)
        bar = figure.colorbar(
            image, ax=axes, shrink=0.8, pad=0.02, label="cosine", extend="min" if values.min() < 0 else "neither"
        )
        bar.outline.set_visible(False)
    return figure


def _write_values(axes: Any, image: Any) -> None:
    """Writes each value into its cell, in white where the cell is dark."""
    values = np.asarray(image.get_array())
    dark = image.norm(values) > 0.6
    for (row, column), value in np.ndenumerate(values):
        color = "white" if dark[row, column] else "#333333"
        axes.text(column, row, f"{round(value, 2) + 0.0:.2f}", ha="center", va="center", fontsize=7.5, color=color)
