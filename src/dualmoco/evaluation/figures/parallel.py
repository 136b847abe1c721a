"""Parallel sentences in the plane: the paper's figure of how near translations are to each other.

Takes n sentence pairs and their vectors, gives a figure. Shapes: n pairs, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Vectors, check_vectors, unit_vectors
from dualmoco.evaluation.figures.canvas import BLUE, GREY, ORANGE, new_figure
from dualmoco.evaluation.figures.labels import place_labels, shorten, wrap

LABELLED = 40  # pairs; the sentences of more cannot be read
PERPLEXITY = 30.0
FRAME = np.array([1.0, 0.75])  # half of the width and of the height that points may fill
STRETCH = 1.4  # at most, of the wider axis against the other
ROUNDS = 100
LINE_POINTS = 8  # places on the line of a pair that labels keep off
SIDES = ((BLUE, "o", "#004c78"), (ORANGE, "^", "#8f3f00"))  # colour, marker, colour of the labels
Points = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def draw_parallel(
    src_texts: Sequence[str],
    tgt_texts: Sequence[str],
    src_vectors: Vectors,
    tgt_vectors: Vectors,
    *,
    languages: tuple[str, str],
    seed: int = 0,
) -> Figure:
    """Draws sentence pairs as joined points; the sentences are written beside them if there are few.

    Args:
        src_texts: n sentences.
        tgt_texts: Their translations.
        src_vectors: Shape (n, D).
        tgt_vectors: Shape (n, D).
        languages: Of the sources and of the targets.
        seed: Of t-SNE; matters little, for it starts from the principal components.

    Returns:
        The figure.

    Raises:
        DataError: Fewer than two pairs, or texts and vectors that do not fit each other.
    """
    count = len(src_texts)
    if len(tgt_texts) != count:
        raise DataError(f"{count} source and {len(tgt_texts)} target sentences; expected as many of both")
    src_vectors = check_vectors(src_vectors, count, "source vectors")
    points = lay_out(src_vectors, check_vectors(tgt_vectors, count, "target vectors"), seed=seed)  # (2n, 2)
    texts = [wrap(shorten(text)) for text in (*src_texts, *tgt_texts)] if count <= LABELLED else []
    scale = max(1.0, (len(texts) / 30) ** 0.4)
    title = f"{count} parallel sentences in {languages[0]} and {languages[1]}: t-SNE of their vectors"
    with new_figure(title, 11 * scale, 8 * scale, texts) as (figure, axes):
        axes.set(xticks=[], yticks=[], xlim=(-1.15, 1.15), ylim=(-0.86, 0.86))
        axes.spines[:].set_visible(True)
        pairs = points.reshape(2, count, 2)
        axes.plot(pairs[..., 0], pairs[..., 1], color=GREY, linewidth=1 if texts else 0.7, zorder=2)
        for side, lang, (color, marker, _) in zip(pairs, languages, SIDES, strict=True):
            axes.scatter(*side.T, s=26 if texts else 16, color=color, marker=marker, linewidth=0, zorder=3, label=lang)
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.3, handletextpad=0.1, columnspacing=1
        )
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        if texts:
            _write_sentences(axes, texts, points)
    return figure


def _write_sentences(axes: Any, texts: Sequence[str], points: Points) -> None:
    """Writes each of 2n sentences beside its point, away from that of its translation."""
    src, tgt = points.reshape(2, -1, 2)  # (n, 2) each
    lines = src + np.linspace(0, 1, LINE_POINTS)[:, None, None] * (tgt - src)  # (LINE_POINTS, n, 2)
    away = np.concatenate([src - tgt, tgt - src])
    colors = [color for *_, color in SIDES for _ in src]
    labels = [
        axes.text(*point, text, color=color, fontsize=9, ha="center", va="center", linespacing=1.15, zorder=4)
        for point, text, color in zip(points, texts, colors, strict=True)
    ]
    place_labels(axes, labels, points, away, lines.reshape(-1, 2))


def lay_out(src_vectors: Vectors, tgt_vectors: Vectors, *, seed: int = 0) -> Points:
    """Places of sentences in the plane, by t-SNE of their cosine distances.

    Args:
        src_vectors: Shape (n, D).
        tgt_vectors: Shape (n, D).
        seed: Of t-SNE; matters little, for it starts from the principal components.

    Returns:
        Places (2n, 2), the sources first: the longer axis across, about x in [-1, 1] and y in [-0.75, 0.75], and no two
        nearer than `least_distance`.

    Raises:
        DataError: Fewer than two pairs, or another number or dimension of targets.
    """
    if len(src_vectors) < 2:
        raise DataError(f"pairs to draw: {len(src_vectors)}; expected at least 2")
    tgt_vectors = check_vectors(tgt_vectors, len(src_vectors), "target vectors", src_vectors.shape[1])
    vectors = unit_vectors(np.concatenate([src_vectors, tgt_vectors]))  # (2n, D)
    spread = vectors.shape[1] > 1 and np.ptp(vectors, axis=0).any()
    places = TSNE(
        metric="cosine", init="pca" if spread else "random", perplexity=min(PERPLEXITY, (len(vectors) - 1) / 3),
        random_state=seed,
    ).fit_transform(vectors)  # fmt: skip
    points = np.asarray(places, dtype=np.float64)
    points -= points.mean(axis=0)
    points @= np.linalg.svd(points, full_matrices=False)[2].T
    return move_apart(_fit(points), least_distance(len(points)))


def least_distance(count: int) -> float:
    """How far apart so many points are kept; many have less room."""
    return min(0.035, 0.4 / math.sqrt(count))


def move_apart(points: Points, least: float) -> Points:
    """Moves points that are too close away from each other, as little as needed.

    Args:
        points: Shape (n, 2).
        least: The distance to keep.

    Returns:
        Places (n, 2); after ROUNDS of moving some may still be closer.
    """
    points = points.copy()
    angles = np.arange(len(points)) * 2.4  # directions for points that are at the same place
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(ROUNDS):
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


def _fit(points: Points) -> Points:
    """The points centred and scaled to FRAME, a round cloud a little wider."""
    low, high = points.min(axis=0), points.max(axis=0)
    extents = np.maximum((high - low) / 2, 1e-9) / FRAME  # (2,)
    result: Points = (points - (low + high) / 2) / np.maximum(extents, extents.max() / STRETCH)
    return result
