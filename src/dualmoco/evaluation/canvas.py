"""The sheet every figure is drawn on: one style, fonts for the sentences, files.

Takes a title, a size and the texts to draw; gives a matplotlib `Figure`, and SVG, PNG or HTML of it. Nothing here
changes matplotlib's global settings for longer than the drawing takes.
"""

from __future__ import annotations

import html
import importlib.util
import io
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from unicodedata import combining, east_asian_width

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from dualmoco.core.errors import ConfigError
from dualmoco.core.storage import write_bytes, write_text

logger = logging.getLogger(__name__)

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#8c8c8c"
COLORS = (BLUE, ORANGE, GREEN, "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b", "#b8a900")  # after Okabe and Ito
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": "#222222",
    "text.parse_math": False,  # a sentence with two dollar signs is not a formula
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": "#b0b0b0",
    "axes.labelcolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.7,
    "xtick.color": "#b0b0b0",
    "ytick.color": "#b0b0b0",
    "xtick.labelcolor": "#444444",
    "ytick.labelcolor": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 9,
}
WRITING: dict[Any, Any] = {  # what matplotlib looks up only when a figure is written
    "text.hinting": "no_hinting",  # letters are as wide, in proportion, at every resolution
    "svg.fonttype": "path",
    "svg.hashsalt": "dualmoco",
}
LATIN = "DejaVu Sans"  # comes with matplotlib
CJK_FAMILIES = (
    "Noto Sans CJK",
    "Noto Sans SC",
    "Noto Sans TC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Source Han Sans",
    "WenQuanYi",
    "PingFang",
    "Hiragino",
    "Heiti",
    "Microsoft YaHei",
    "Microsoft JhengHei",
    "SimHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Apple SD Gothic",
    "Arial Unicode",
    "Droid Sans Fallback",
    "Nanum",
    "IPA",
    "Unifont",
)
BUNDLE = ("zhplot", "fonts/NotoSansSC-Regular.ttf")  # used only as a font: the package is never imported
EXTENSIONS = (".png", ".svg", ".html")
PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>
<style>body {{ margin: 2em; background: white; }} svg {{ max-width: 100%; height: auto; }}</style></head>
<body>
{svg}</body>
</html>
"""


@contextmanager
def new_figure(title: str, width: float, height: float, texts: Iterable[str] = ()) -> Iterator[tuple[Figure, Any]]:
    """Gives a figure to draw on, in the project's style.

    Args:
        title: Stands above the axes, at the left.
        width: In inches.
        height: In inches.
        texts: Everything else that will be written and may need a font beyond matplotlib's own.

    Yields:
        The figure and its axes.
    """
    families = find_families([title, *texts])
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**STYLE, **WRITING, "font.family": families})
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title)
        yield figure, axes
        figure.draw_without_rendering()  # ticks take their style now, not when the figure is written
        figure.set_layout_engine("none")  # the places found are kept in every file


def find_families(texts: Iterable[str]) -> list[str]:
    """Font families that together can write some texts.

    Args:
        texts: Of any language.

    Returns:
        matplotlib's own font, then as few others as needed; a warning names characters that no font has.
    """
    missing = {ord(char) for text in texts for char in text if char.isprintable()}
    missing -= _glyphs(font_manager.findfont(LATIN))
    families = [LATIN]
    fonts = _cjk_fonts() if missing else {}
    while missing and fonts:
        best = max(fonts, key=lambda family: len(missing & _glyphs(fonts[family])))
        found = missing & _glyphs(fonts.pop(best))
        if not found:
            break
        families.append(best)
        missing -= found
    if missing:
        shown = "".join(map(chr, sorted(missing)[:10]))
        logger.warning(
            "no font for %d characters such as %s; install Noto Sans CJK, or pip install %s",
            len(missing),
            shown,
            BUNDLE[0],
        )
    return families


def _cjk_fonts() -> dict[str, str]:
    """Files of the fonts for Chinese, Japanese and Korean by family: the system's first, then the bundled one."""
    fonts = {font.name: font.fname for font in font_manager.fontManager.ttflist if font.name.startswith(CJK_FAMILIES)}
    spec = importlib.util.find_spec(BUNDLE[0])
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / BUNDLE[1]
        if path.is_file() and (family := str(FT2Font(str(path)).family_name)) not in fonts:
            font_manager.fontManager.addfont(path)
            fonts[family] = str(path)
    return fonts


@cache
def _glyphs(path: str) -> frozenset[int]:
    return frozenset(FT2Font(path).get_charmap())


def to_svg(figure: Figure) -> str:
    """A figure as SVG that needs no fonts; equal figures give equal text."""
    stream = io.StringIO()
    with matplotlib.rc_context(WRITING):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """A figure as PNG, so many pixels an inch."""
    stream = io.BytesIO()
    with matplotlib.rc_context(WRITING):
        figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def to_html(figure: Figure) -> str:
    """A figure as one page that needs no other file."""
    svg = to_svg(figure)
    title = figure.axes[0].get_title(loc="left") if figure.axes else "figure"
    return PAGE.format(title=html.escape(title), svg=svg[svg.index("<svg") :])


def check_figure_path(path: Path) -> None:
    """Refuses a place where no figure can be written.

    Args:
        path: Where it shall be.

    Raises:
        ConfigError: A folder, or an extension that names no format.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; expected the name of a file such as {path / 'figure.png'}")
    if path.suffix.lower() not in EXTENSIONS:
        raise ConfigError(f"{path}: extension {path.suffix or 'missing'}; expected one of {' '.join(EXTENSIONS)}")


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format its extension names.

    Args:
        figure: What was drawn.
        path: Ends in .png, .svg or .html.

    Raises:
        ConfigError: A folder, or another extension.
        RunError: The disk is full or not writable; `path` is then as it was.
    """
    check_figure_path(path)
    suffix = path.suffix.lower()
    if suffix == ".png":
        write_bytes(path, to_png(figure))
    else:
        write_text(path, to_svg(figure) if suffix == ".svg" else to_html(figure))


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
