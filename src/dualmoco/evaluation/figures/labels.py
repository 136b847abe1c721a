"""Sentences as labels: shortened, wrapped, and placed so that none covers another.

Takes texts of any script and the places they belong to. A cell is the width of a Latin letter; a Chinese character
takes two. Boxes are rows of left, bottom, right, top in pixels. Shapes: k labels.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from unicodedata import combining, east_asian_width

import numpy as np

from dualmoco.evaluation.figures.canvas import GREY

logger = logging.getLogger(__name__)

ELLIPSIS = "…"
WIDE = "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\U00020000-\U0003fffd"
CLOSING = "、。，．：；？！）］｝」』》〉”’…"
PIECE = re.compile(rf"(?:[{WIDE}]|[^\s{WIDE}]+)[{CLOSING}]*\s*")  # what a line may end after
GAP = 3.0  # pixels kept free around a label, a point and a line
MARGIN = 6.0  # pixels between a label and the frame
LEADER = 12.0  # pixels from which on a line joins a label to its point
DIRECTIONS, RINGS = 24, 60  # places tried for a label that lies on another
Boxes = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def width_in_cells(text: str) -> int:
    """How many Latin letters a text is as wide as."""
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def shorten(text: str, cells: int = 44) -> str:
    """A text on one line and no wider than some cells, cut between words or Chinese characters."""
    text = " ".join(text.split())
    if width_in_cells(text) <= cells:
        return text
    kept = ""
    for piece in PIECE.findall(text):
        if width_in_cells((kept + piece).rstrip()) >= cells:
            break
        kept += piece
    if not kept:  # one long word
        kept = "".join(
            char for char, end in zip(text, accumulate(map(width_in_cells, text)), strict=True) if end < cells
        )
    return kept.rstrip(f" .,;:-{CLOSING}") + ELLIPSIS


def wrap(text: str, cells: int = 26) -> str:
    """A text on one line, or on two of about the same width if it is wider than some cells."""
    pieces = PIECE.findall(text)
    if width_in_cells(text) <= cells or len(pieces) < 2:
        return text
    breaks = [("".join(pieces[:end]).rstrip(), "".join(pieces[end:])) for end in range(1, len(pieces))]
    return "\n".join(min(breaks, key=lambda lines: max(map(width_in_cells, lines))))


def place_labels(axes: Any, labels: Sequence[Any], points: Boxes, ways: Boxes, obstacles: Boxes) -> None:
    """Puts labels beside their points, inside the axes, and off each other.

    A label for which there is no such place is hidden, and a warning says so.

    Args:
        axes: With its final limits and size.
        labels: k matplotlib texts on it.
        points: Where each belongs, in data coordinates, shape (k, 2).
        ways: In which direction of its point each would best be, shape (k, 2).
        obstacles: Places that no label may cover, these points among them, shape (any, 2).
    """
    to_data = axes.transData.inverted()
    anchors, covered = axes.transData.transform(points), axes.transData.transform(obstacles)
    room = np.array(axes.get_window_extent().extents) + MARGIN * np.array([1, 1, -1, -1])
    placed = separate(_beside(label_boxes(labels), anchors, ways), anchors, covered, room)
    hidden = int(np.isnan(placed).any(axis=1).sum())
    if hidden:
        logger.warning("no room for %d of %d sentences; draw fewer", hidden, len(labels))
    for label, box, anchor, point in zip(labels, placed, anchors, points, strict=True):
        if np.isnan(box).any():
            label.set_visible(False)
            continue
        label.set_position(to_data.transform((box[:2] + box[2:]) / 2))
        nearest = anchor.clip(box[:2], box[2:])
        if np.linalg.norm(nearest - anchor) >= LEADER:
            (end_x, end_y), (start_x, start_y) = to_data.transform(nearest), point
            axes.plot([start_x, end_x], [start_y, end_y], color=GREY, linewidth=0.5, alpha=0.7, zorder=1.5)


def _beside(boxes: Boxes, anchors: Boxes, ways: Boxes) -> Boxes:
    """Boxes (k, 4) that just leave their points free, in the given directions."""
    half = (boxes[:, 2:] - boxes[:, :2]) / 2
    steps = (half + 2 * GAP) / np.maximum(np.abs(ways), 1e-9)  # (k, 2) how far until the point is free in x, in y
    centers = anchors + steps.min(axis=1, keepdims=True) * ways
    moved: Boxes = np.concatenate([centers - half, centers + half], axis=1)
    return moved


def label_boxes(labels: Sequence[Any]) -> Boxes:
    """Where labels are drawn, shape (k, 4)."""
    return np.array([label.get_window_extent().extents for label in labels]).reshape(-1, 4)


def separate(boxes: Boxes, anchors: Boxes, obstacles: Boxes, room: Boxes) -> Boxes:
    """Finds new places for boxes that lie on others, on obstacles or outside.

    Args:
        boxes: Shape (k, 4).
        anchors: The points they belong to, shape (k, 2).
        obstacles: Points that no box may cover, shape (any, 2).
        room: Left, bottom, right and top that no box may cross, shape (4,).

    Returns:
        The boxes (k, 4), each at its place or the free one nearest to its point; NaN where nothing is free.
    """
    pad = np.array([-GAP, -GAP, GAP, GAP])
    dots = np.concatenate([obstacles, obstacles], axis=1)  # (any, 4)
    placed = boxes.copy()
    for number, box in enumerate(boxes):
        others = np.concatenate([np.delete(placed, number, axis=0), dots]) + pad
        for candidate in _candidates(box, anchors[number]):
            inside = (candidate[:2] >= room[:2]).all() and (candidate[2:] <= room[2:]).all()
            if inside and not _meets(candidate, others):
                placed[number] = candidate
                break
        else:
            placed[number] = np.nan
    return placed


def _candidates(box: Boxes, anchor: Boxes) -> Boxes:
    """The box where it is, then centred on ever wider rings around its point, shape (1 + rings * directions, 4)."""
    half = (box[2:] - box[:2]) / 2
    angles = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # (directions, 2)
    rings = np.arange(1, RINGS + 1)[:, None, None] * np.array([1.0, 0.5]) * half.max() / 4
    centers = (anchor + rings * directions).reshape(-1, 2)
    return np.concatenate([box[None], np.concatenate([centers - half, centers + half], axis=1)])


def _meets(box: Boxes, others: Boxes) -> bool:
    return bool(((others[:, :2] < box[2:]) & (box[:2] < others[:, 2:])).all(axis=1).any())
