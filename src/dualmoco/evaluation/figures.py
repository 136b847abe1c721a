"""Figures of an evaluation: mined pairs, t-SNE of parallel sentences, similarity matrices and STS scores.

Every function returns a matplotlib figure in the style of `canvas.py`. Shapes: p mined pairs by descending score,
n sentence pairs, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import islice
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter
from matplotlib.transforms import blended_transform_factory
from sklearn.manifold import TSNE

from dualmoco.core.config_loader import parse_choice
from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.progress import showing
from dualmoco.core.storage import check_replaceable
from dualmoco.core.vectors import Floats, Vectors, check_vectors, unit_vectors
from dualmoco.data.config import OnError
from dualmoco.data.pairs import SentencePair
from dualmoco.data.readers.base import SkippedLines, Source
from dualmoco.data.readers.formats import check_format, read_pairs
from dualmoco.evaluation.canvas import BLUE, COLORS, GREY, MARKERS, ORANGE, new_figure, place_labels, shorten, wrap
from dualmoco.models.load import GivenText, open_for
from dualmoco.models.model import AUTO, Model

Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Points = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
ScoresByName = Mapping[str, Mapping[str, float]]

HISTOGRAM_BINS = 60
LOG_AXIS_RATIO = 20  # if one kind of pair is this many times more frequent, the count axis is logarithmic
F1_LEVELS = (0.2, 0.4, 0.6, 0.8, 0.9)  # drawn as lines
LABELLED_PAIRS = 40  # more sentences would not be readable
TSNE_PERPLEXITY = 30.0
TSNE_FRAME = np.array([1.0, 0.75])  # half of the width and of the height that points may fill
TSNE_STRETCH = 1.4  # maximum stretch of one axis relative to the other
MOVE_APART_ROUNDS = 100
LINE_POINTS = 8  # points on the line of a pair that labels avoid
SIDE_STYLES = ((BLUE, "o", "#004c78"), (ORANGE, "^", "#8f3f00"))  # colour, marker, colour of the labels
MATRIX_NUMBERS = 400  # more numbers would not be readable
MATRIX_LABELS = 60  # sentences per side; no labels above that
MATRIX_LABEL_WIDTH = 32  # in Latin letters
BAR_HATCHES = ("", "///", "...")  # distinguish models beyond the number of colours
BAR_GROUP_WIDTH = 0.84  # of the bars of one data set; the rest is the gap to the next one
BAR_NUMBERS = 64  # more numbers would not be readable


def draw_margins(scores: Floats, correct: Flags, threshold: float) -> Figure:
    """Draws a histogram of the scores of true and false pairs.

    Args:
        scores: Descending scores (p,); infinite ones are left out.
        correct: Whether each pair is in the gold, shape (p,).
        threshold: Lowest accepted score, drawn as a line if it is finite.

    Raises:
        DataError: No finite score, unsorted scores, or a different number of flags.
    """
    scores, correct = _check_pairs(scores, correct)
    finite = np.isfinite(scores)
    if not finite.any():
        raise DataError(f"{len(scores)} scores, none of them finite; expected some to draw")
    edges = np.histogram_bin_edges(scores[finite], bins=HISTOGRAM_BINS)
    title = f"Margin scores of {finite.sum():,} mined pairs"
    with new_figure(title, 8, 4.5) as (figure, axes):
        for flag, name, color in ((False, "false", ORANGE), (True, "true", BLUE)):
            chosen = scores[finite & (correct == flag)]
            label = f"{name} pairs ({len(chosen):,})"
            axes.hist(chosen, edges, histtype="stepfilled", facecolor=color, edgecolor=color, alpha=0.55, label=label)
        if np.isfinite(threshold):
            axes.axvline(threshold, color="#222222", linewidth=1.2, linestyle="--", label=f"threshold {threshold:.4g}")
        true, false = int(correct.sum()), int((~correct).sum())
        if max(true, false) > LOG_AXIS_RATIO * min(true, false) > 0:
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(xlabel="margin score", ylabel="pairs")
        axes.legend()
    return figure


def draw_precision_recall(scores: Floats, correct: Flags, gold: int, threshold: float) -> Figure:
    """Draws precision against recall for every threshold; arguments as in `precision_recall`.

    The chosen threshold, the lowest accepted score, is marked if it accepts any pair.
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
    """Precision and recall for each distinct score as the threshold, from the highest down.

    Args:
        scores: Descending scores (p,).
        correct: Whether each pair is in the gold, shape (p,).
        gold: Number of gold pairs, found or not.

    Raises:
        DataError: No pair, unsorted scores, a different number of flags, or more true pairs than gold pairs.
    """
    scores, correct = _check_pairs(scores, correct)
    hits = np.cumsum(correct)
    if gold < max(int(hits[-1]), 1):
        raise DataError(f"{hits[-1]} true pairs but {gold} gold pairs; expected at least as many gold ones, and one")
    last = np.append(scores[1:] < scores[:-1], True)  # equal scores are accepted together
    return (hits / np.arange(1, len(hits) + 1))[last], (hits / gold)[last]


def _draw_levels(axes: Any) -> None:
    """Draws lines of equal F1: precision = F1 * recall / (2 * recall - F1)."""
    for level in F1_LEVELS:
        recall = np.linspace(level / (2 - level), 1, 100)
        axes.plot(recall, level * recall / (2 * recall - level), color=GREY, linewidth=0.7, linestyle=":", zorder=2)
        axes.text(1.02, level / (2 - level), f" F1 {100 * level:.0f}", color=GREY, fontsize=8, va="center")


def _mark(axes: Any, chosen: tuple[float, float, float], threshold: float) -> None:
    recall, precision, f1 = chosen
    text = f"threshold {threshold:.4g}\nP {100 * precision:.1f}   R {100 * recall:.1f}   F1 {100 * f1:.1f}"
    axes.plot([recall], [precision], "o", color=ORANGE, markersize=8, zorder=4)
    axes.annotate(
        text,
        (recall, precision),
        xytext=(-14, -18 if precision > 0.3 else 18),
        textcoords="offset points",
        ha="right" if recall > 0.4 else "left",
        va="top" if precision > 0.3 else "bottom",
        zorder=5,
        bbox={"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "#d0d0d0", "linewidth": 0.7},
    )


def _check_pairs(scores: Floats, correct: Flags) -> tuple[Floats, Flags]:
    scores, correct = np.asarray(scores, dtype=np.float64), np.asarray(correct, dtype=np.bool_)
    if scores.ndim != 1 or not len(scores) or scores.shape != correct.shape:
        raise DataError(f"scores {scores.shape} and flags {correct.shape}; expected one of each per pair")
    if not (scores[:-1] >= scores[1:]).all():
        raise DataError("scores that rise or are not numbers; expected scores sorted from the highest down")
    return scores, correct


def draw_parallel(
    src_texts: Sequence[str],
    tgt_texts: Sequence[str],
    src_vectors: Vectors,
    tgt_vectors: Vectors,
    *,
    languages: tuple[str, str],
    seed: int = 0,
) -> Figure:
    """Draws a t-SNE of sentence pairs as joined points, labelled with the sentences if there are few.

    Args:
        src_texts: Sentences.
        tgt_texts: Their translations.
        src_vectors: Vectors (n, D) of the sentences.
        tgt_vectors: Vectors (n, D) of the translations.
        languages: Source and target language.
        seed: Random seed of t-SNE; it matters little, because t-SNE starts from the principal components.

    Raises:
        DataError: Fewer than two pairs, or different numbers of texts and vectors.
    """
    count = len(src_texts)
    if len(tgt_texts) != count:
        raise DataError(f"{count} source and {len(tgt_texts)} target sentences; expected as many of both")
    src_vectors = check_vectors(src_vectors, count, "source vectors")
    points = lay_out(src_vectors, check_vectors(tgt_vectors, count, "target vectors"), seed=seed)  # (2n, 2)
    texts = [wrap(shorten(text)) for text in (*src_texts, *tgt_texts)] if count <= LABELLED_PAIRS else []
    scale = max(1.0, (len(texts) / 30) ** 0.4)
    title = f"{count} parallel sentences in {languages[0]} and {languages[1]}: t-SNE of their vectors"
    with new_figure(title, 11 * scale, 8 * scale, texts) as (figure, axes):
        axes.set(xticks=[], yticks=[], xlim=(-1.15, 1.15), ylim=(-0.86, 0.86))
        axes.spines[:].set_visible(True)
        pairs = points.reshape(2, count, 2)
        axes.plot(pairs[..., 0], pairs[..., 1], color=GREY, linewidth=1 if texts else 0.7, zorder=2)
        for side, lang, (color, marker, _) in zip(pairs, languages, SIDE_STYLES, strict=True):
            axes.scatter(*side.T, s=26 if texts else 16, color=color, marker=marker, linewidth=0, zorder=3, label=lang)
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.3, handletextpad=0.1, columnspacing=1
        )
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        if texts:
            _label_points(axes, texts, points)
    return figure


def _label_points(axes: Any, texts: Sequence[str], points: Points) -> None:
    """Labels each of 2n points with its sentence, on the side away from the translation."""
    src, tgt = points.reshape(2, -1, 2)  # (n, 2) each
    lines = src + np.linspace(0, 1, LINE_POINTS)[:, None, None] * (tgt - src)  # (LINE_POINTS, n, 2)
    away = np.concatenate([src - tgt, tgt - src])
    colors = [color for *_, color in SIDE_STYLES for _ in src]
    labels = [
        axes.text(*point, text, color=color, fontsize=9, ha="center", va="center", linespacing=1.15, zorder=4)
        for point, text, color in zip(points, texts, colors, strict=True)
    ]
    place_labels(axes, labels, points, away, lines.reshape(-1, 2))


def lay_out(src_vectors: Vectors, tgt_vectors: Vectors, *, seed: int = 0) -> Points:
    """Coordinates of sentences in the plane, by t-SNE of their cosine distances.

    Args:
        src_vectors: Shape (n, D).
        tgt_vectors: Shape (n, D).
        seed: Random seed of t-SNE.

    Returns:
        Coordinates (2n, 2), the sources first: the longer axis is horizontal, x is about in [-1, 1] and y in
        [-0.75, 0.75], and no two points are nearer than `least_distance`.

    Raises:
        DataError: Fewer than two pairs, or a different number or dimension of targets.
    """
    if len(src_vectors) < 2:
        raise DataError(f"pairs to draw: {len(src_vectors)}; expected at least 2")
    tgt_vectors = check_vectors(tgt_vectors, len(src_vectors), "target vectors", src_vectors.shape[1])
    vectors = unit_vectors(np.concatenate([src_vectors, tgt_vectors]))  # (2n, D)
    spread = vectors.shape[1] > 1 and np.ptp(vectors, axis=0).any()
    places = TSNE(
        metric="cosine",
        init="pca" if spread else "random",
        perplexity=min(TSNE_PERPLEXITY, (len(vectors) - 1) / 3),
        random_state=seed,
    ).fit_transform(vectors)
    points = np.asarray(places, dtype=np.float64)
    points -= points.mean(axis=0)
    points @= np.linalg.svd(points, full_matrices=False)[2].T
    return move_apart(_scale_to_frame(points), least_distance(len(points)))


def least_distance(count: int) -> float:
    """Minimum distance between points; it shrinks with their number."""
    return min(0.035, 0.4 / math.sqrt(count))


def move_apart(points: Points, least: float) -> Points:
    """Moves points (n, 2) that are closer than `least` apart, as little as needed and in a limited number of rounds."""
    points = points.copy()
    angles = np.arange(len(points)) * 2.4  # directions for points at the same place
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(MOVE_APART_ROUNDS):
        apart = points[:, None] - points  # (n, n, 2)
        distances = np.linalg.norm(apart, axis=2)
        close = np.triu(distances < least, k=1)
        if not close.any():
            break
        for i, j in np.argwhere(close):
            way = apart[i, j] / distances[i, j] if distances[i, j] > 1e-9 else ways[j]
            push = 0.51 * (least - distances[i, j]) * way
            points[i] += push
            points[j] -= push
    return points


def _scale_to_frame(points: Points) -> Points:
    """Centres the points and scales them to TSNE_FRAME, a round cloud a little wider."""
    low, high = points.min(axis=0), points.max(axis=0)
    extents = np.maximum((high - low) / 2, 1e-9) / TSNE_FRAME  # (2,)
    result: Points = (points - (low + high) / 2) / np.maximum(extents, extents.max() / TSNE_STRETCH)
    return result


def draw_similarities(src_texts: Sequence[str], tgt_texts: Sequence[str], similarities: Floats) -> Figure:
    """Draws the matrix of cosines (n, m) of n source with m target sentences, with labels and numbers if there are few.

    Raises:
        DataError: A wrong or empty shape, or values that are not finite.
    """
    values = np.asarray(similarities, dtype=np.float64)
    shape = (len(src_texts), len(tgt_texts))
    if values.shape != shape or not values.size:
        raise DataError(f"similarities of shape {values.shape}; expected {shape}, one for every pair of sentences")
    if not np.isfinite(values).all():
        raise DataError("similarities with NaN or infinity; expected finite numbers")
    sides = [[shorten(text, MATRIX_LABEL_WIDTH) for text in texts] for texts in (src_texts, tgt_texts)]
    names = [side if len(side) <= MATRIX_LABELS else [] for side in sides]
    height, width = (0.4 * count + 2.6 if count <= MATRIX_LABELS else 8.0 for count in shape)
    title = f"Cosine similarity of {shape[0]} and {shape[1]} sentences"
    with new_figure(title, max(width + 2.4, 5.5), max(height, 3.5), [*names[0], *names[1]]) as (figure, axes):
        image = axes.imshow(values, cmap="Blues", vmin=0.0, vmax=1.0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_yticks(range(len(names[0])), names[0])
        axes.set_xticks(range(len(names[1])), names[1], rotation=40, ha="right", rotation_mode="anchor")
        if values.size <= MATRIX_NUMBERS:
            _write_values(axes, image)
        bar = figure.colorbar(
            image, ax=axes, shrink=0.8, pad=0.02, label="cosine", extend="min" if values.min() < 0 else "neither"
        )
        bar.outline.set_visible(False)
    return figure


def _write_values(axes: Any, image: Any) -> None:
    """Writes each value into its cell, in white if the cell is dark."""
    values = np.asarray(image.get_array())
    dark = image.norm(values) > 0.6
    for (row, column), value in np.ndenumerate(values):
        color = "white" if dark[row, column] else "#333333"
        axes.text(column, row, f"{round(value, 2) + 0.0:.2f}", ha="center", va="center", fontsize=7.5, color=color)


def draw_sts(rows: ScoresByName, title: str) -> Figure:
    """Draws the scores of models by data set, one group of bars per data set; a model may lack some of them."""
    names = list(dict.fromkeys(name for scores in rows.values() for name in scores))
    lowest = _lowest(rows)
    width = BAR_GROUP_WIDTH / len(rows)
    size = max(7.0, 1.6 + len(names) * max(0.9, 0.34 * len(rows)))
    with new_figure(title, size, 4.8, [*rows, *names]) as (figure, axes):
        for number, (model, scores) in enumerate(rows.items()):
            places = [place + width * (number - (len(rows) - 1) / 2) for place in range(len(names))]
            values = [scores.get(name, nan) for name in names]
            hatch = BAR_HATCHES[number // len(COLORS) % len(BAR_HATCHES)]
            bars = axes.bar(
                places,
                values,
                0.92 * width,
                color=COLORS[number % len(COLORS)],
                label=model,
                hatch=hatch,
                edgecolor="white",
                linewidth=0,
            )
            if len(rows) * len(names) <= BAR_NUMBERS:
                texts = [f"{value:.1f}" if isfinite(value) else "" for value in values]
                axes.bar_label(bars, texts, fontsize=7.5, padding=2, color="#444444")
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", length=0)
        axes.grid(False, axis="x")
        axes.set(ylabel="Spearman correlation x 100", ylim=(lowest, 100))
        figure.legend(loc="outside lower center", ncols=min(len(rows), max(2, int(size / 2))))
    return figure


def draw_languages(rows: ScoresByName, title: str) -> Figure:
    """Draws the accuracy of models by language as points, in the order of the first model; one may lack some."""
    names = next(iter(rows.values())).keys()
    values = [score for scores in rows.values() for score in scores.values()]
    with new_figure(title, 7.5, 1.6 + 0.3 * len(names), [*rows, *names]) as (figure, axes):
        for number, (model, scores) in enumerate(rows.items()):
            shown = [(place, scores[name]) for place, name in enumerate(names) if name in scores]
            places, points = zip(*shown, strict=True)
            style = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}
            axes.scatter(points, places, s=52, label=model, zorder=3 + len(rows) - number, **style)
        axes.set_yticks(range(len(names)), list(names))
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel="accuracy x 100", xlim=(min(values) - 1, 100.5), ylim=(len(names) - 0.4, -0.6))
        figure.legend(loc="outside lower center", ncols=min(len(rows), 3))
    return figure


def draw_subsets(
    values: ScoresByName, title: str = "STS by subset", label: str = "Spearman correlation x 100"
) -> Figure:
    """Draws the scores of one model by year and subset, one bar per subset, the years from the top down."""
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
        axes.set(xlabel=label, xlim=(lowest, 100), ylim=(place - 1.2, -0.7))
    return figure


def _lowest(rows: ScoresByName) -> float:
    """Start of the score axis: 0, or a little below the lowest negative score; DataError without finite scores."""
    finite = [score for scores in rows.values() for score in scores.values() if isfinite(score)]
    if not finite:
        raise DataError("no score to draw; expected at least one finite number")
    return min(0.0, min(finite) - 5) if min(finite) < 0 else 0.0


@dataclass(frozen=True)
class Visualization:
    """The pairs of a figure and their cosines."""

    out: Path
    pairs: list[SentencePair]
    cosines: list[float]
    unreadable: int = 0  # lines that were left out


def visualize(
    pairs: str | Path,
    out: str | Path = "parallel.png",
    *,
    model: Model | str | Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    tgt_file: str | Path | None = None,
    format: str = "auto",
    columns: tuple[str, str] | None = None,
    count: int = 15,
    first: bool = False,
    seed: int = 0,
    pooling: str = AUTO,
    backend: str = AUTO,
    dimension: int | None = None,
    on_error: str = OnError.skip,
    overwrite: bool = False,
    progress: bool = True,
) -> Visualization:
    """Draws sentences and their translations in the plane.

    Args:
        pairs: Bitext in any format of `prepare`, or a folder written by it.
        out: Figure to write: .png, .svg or .html.
        model: Model that encodes the sentences, or its name; chosen by the languages if None.
        src_lang: Source language; recognised if None, and en in the names of columns and TMX segments.
        tgt_lang: Target language; recognised if None, and zh in the names of columns and TMX segments.
        tgt_file: Target side, if `pairs` is a line-aligned source file.
        format: Format of `pairs`, if its extension does not say.
        columns: Source and target column, by name or number.
        count: Pairs to draw; up to 40 show their sentences.
        first: Draw the first pairs instead of random ones.
        seed: Random seed of the choice and of the layout.
        pooling: Pooling of a model given by name, if it does not say.
        backend: Back-end of a model given by name.
        dimension: Number of leading components that a model given by name keeps; all if None.
        on_error: What to do with a line that cannot be read: skip it with a warning, or stop.
        overwrite: Replace a file at `out`.
        progress: Show progress bars.

    Returns:
        The pairs that were drawn, and the cosine of each.

    Raises:
        ConfigError: An option value is invalid, or a package that draws is not installed.
        DataError: The bitext cannot be read, or has fewer than two pairs.
        ModelError: The model cannot be opened, or lacks a language.
    """
    for module in ("matplotlib", "sklearn"):
        require(module, "eval", "A figure")
    from dualmoco.evaluation.canvas import check_figure_path, save_figure

    check_figure_path(Path(out))
    check_replaceable([Path(out)], (pairs, tgt_file), overwrite=overwrite)
    check_format(format)
    if count < 2:
        raise ConfigError(f"count {count}; expected at least 2 pairs")
    source = Source(Path(pairs), src_lang or "en", tgt_lang or "zh", columns, Path(tgt_file) if tgt_file else None)
    skipped = SkippedLines(skip=parse_choice(OnError, on_error, "on_error") == OnError.skip)
    chosen = choose_pairs(source, format, count, None if first else seed, skipped)
    texts = [pair[0] for pair in chosen], [pair[1] for pair in chosen]
    given = [GivenText(src_lang, texts[0], "sources"), GivenText(tgt_lang, texts[1], "targets")]
    opened, languages = open_for(model, given, backend, dimension, pooling=pooling)
    with showing(progress):
        src, tgt = (opened.encode(side, lang=lang) for side, lang in zip(texts, languages, strict=True))  # (n, D) each
    save_figure(draw_parallel(*texts, src, tgt, languages=(languages[0], languages[1]), seed=seed), Path(out))
    cosines = np.einsum("nd,nd->n", src, tgt, dtype=np.float64).round(6).tolist()
    return Visualization(Path(out), chosen, cosines, skipped.count)


def choose_pairs(
    source: Source, form: str, count: int, seed: int | None, skipped: SkippedLines | None = None
) -> list[SentencePair]:
    """Chooses pairs with text on both sides, in the order of the file; the first ones if `seed` is None."""
    skipped = skipped or SkippedLines(skip=True)
    rows = read_pairs(source, form, report=partial(skipped.report, source.path))
    filled = ((row.src, row.tgt) for row in rows if row.src.strip() and row.tgt.strip())
    chosen: list[tuple[float, int, SentencePair]]  # a random number, place, pair
    if seed is None:
        chosen = [(0.0, place, pair) for place, pair in enumerate(islice(filled, count))]
    else:
        random = np.random.default_rng(seed)
        chosen = nsmallest(count, ((random.random(), place, pair) for place, pair in enumerate(filled)))
    if len(chosen) < 2:
        raise DataError(f"{source.path}: pairs with text on both sides: {len(chosen)}; expected at least 2")
    return [pair for _, _, pair in sorted(chosen, key=lambda item: item[1])]
