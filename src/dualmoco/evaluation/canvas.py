"""The base of every figure: one style, fonts for any language, PNG, SVG and HTML files, and placement of labels.

matplotlib's global settings change only while a figure is drawn. Labels are placed by our own search and not by
adjustText, which was tried (1.4.0): it covered points and the lines between them, left the frame, and took 10 to 90
times as long, because it pushes labels apart step by step without guaranteeing a result.
"""

from __future__ import annotations

import html
import importlib.util
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
MARKERS = "osD^v<>p"  # of the colours, so that lines differ in print too
FIGURE_STYLE: dict[Any, Any] = {
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
FILE_STYLE: dict[Any, Any] = {  # settings that matplotlib reads only when a figure is written
    "text.hinting": "no_hinting",  # the same proportions at every resolution
    "svg.fonttype": "path",
    "svg.hashsalt": "dualmoco",
}
LATIN_FONT = "DejaVu Sans"  # comes with matplotlib
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
BUNDLED_FONT = ("zhplot", "fonts/NotoSansSC-Regular.ttf")  # only its font is used; the package is never imported
FIGURE_EXTENSIONS = (".png", ".svg", ".html")
FIGURE_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>
<style>body {{ margin: 2em; background: white; }} svg {{ max-width: 100%; height: auto; }}</style></head>
<body>
{svg}</body>
</html>
"""
ELLIPSIS = "…"
WIDE_CHARACTERS = "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\U00020000-\U0003fffd"
CLOSING_PUNCTUATION = "、。，．：；？！）］｝」』》〉”’…"
LINE_PIECE = re.compile(
    rf"(?:[{WIDE_CHARACTERS}]|[^\s{WIDE_CHARACTERS}]+)[{CLOSING_PUNCTUATION}]*\s*"
)  # a line may break after each piece
LABEL_SIZE = 9.0  # points, of names at the ends of lines
LABEL_GAP = 3.0  # pixels kept free around a label, a point and a line
FRAME_MARGIN = 6.0  # pixels between a label and the frame
LEADER_LENGTH = 12.0  # pixels; from this distance, a line joins a label to its point
LABEL_DIRECTIONS, LABEL_RINGS = 24, 60  # places tried for a label that overlaps something
Boxes = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@contextmanager
def new_figure(
    title: str, width: float, height: float, texts: Iterable[str] = (), *, panels: tuple[int, int] | None = None
) -> Iterator[tuple[Figure, Any]]:
    """Creates a figure in the project's style.

    Args:
        title: Title at the top left.
        width: Width in inches.
        height: Height in inches.
        texts: All other texts that may need a font beyond matplotlib's own.
        panels: Rows and columns of small panels; one plot if None.

    Yields:
        The figure and its axes, a list of them if there are panels.
    """
    families = find_families([title, *texts])
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**FIGURE_STYLE, **FILE_STYLE, "font.family": families})
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Any
        if panels:
            axes = figure.subplots(*panels, squeeze=False).ravel().tolist()
            if title:
                figure.suptitle(title, x=0.01, ha="left", fontsize=FIGURE_STYLE["axes.titlesize"])
        else:
            axes = figure.add_subplot()
            axes.set_title(title)
        yield figure, axes
        figure.draw_without_rendering()  # ticks take their style now, not when the figure is written
        figure.set_layout_engine("none")  # keeps the layout the same in every file


def find_families(texts: Iterable[str]) -> list[str]:
    """Font families for some texts: matplotlib's own, then as few others as needed; warns of missing characters."""
    missing = {ord(char) for text in texts for char in text if char.isprintable()}
    missing -= _glyphs(font_manager.findfont(LATIN_FONT))
    families = [LATIN_FONT]
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
            BUNDLED_FONT[0],
        )
    return families


def _cjk_fonts() -> dict[str, str]:
    """Font files for Chinese, Japanese and Korean by family: system fonts first, then the bundled one."""
    fonts = {font.name: font.fname for font in font_manager.fontManager.ttflist if font.name.startswith(CJK_FAMILIES)}
    spec = importlib.util.find_spec(BUNDLED_FONT[0])
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / BUNDLED_FONT[1]
        if path.is_file() and (family := str(FT2Font(str(path)).family_name)) not in fonts:
            font_manager.fontManager.addfont(path)
            fonts[family] = str(path)
    return fonts


@cache
def _glyphs(path: str) -> frozenset[int]:
    return frozenset(FT2Font(path).get_charmap())


def to_svg(figure: Figure) -> str:
    """A figure as SVG with letters as paths; equal figures give identical SVG."""
    stream = io.StringIO()
    with matplotlib.rc_context(FILE_STYLE):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """A figure as PNG."""
    stream = io.BytesIO()
    with matplotlib.rc_context(FILE_STYLE):
        figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def to_html(figure: Figure) -> str:
    """A figure as a self-contained HTML page."""
    svg = to_svg(figure)
    title = figure.axes[0].get_title(loc="left") if figure.axes else "figure"
    return FIGURE_PAGE.format(title=html.escape(title), svg=svg[svg.index("<svg") :])


def check_figure_path(path: Path) -> None:
    """Raises ConfigError if the path is a folder or its extension is not .png, .svg or .html."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; expected the name of a file such as {path / 'figure.png'}")
    if path.suffix.lower() not in FIGURE_EXTENSIONS:
        raise ConfigError(
            f"{path}: extension {path.suffix or 'missing'}; expected one of {' '.join(FIGURE_EXTENSIONS)}"
        )


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format of its extension: .png, .svg or .html.

    Raises:
        ConfigError: The path is a folder or has another extension.
        RunError: The disk is full or not writable; `path` is then unchanged.
    """
    check_figure_path(path)
    suffix = path.suffix.lower()
    if suffix == ".png":
        write_bytes(path, to_png(figure))
    else:
        write_text(path, to_svg(figure) if suffix == ".svg" else to_html(figure))


def width_in_cells(text: str) -> int:
    """Width of a text in Latin letters."""
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def shorten(text: str, cells: int = 44) -> str:
    """A text on one line, cut between words or Chinese characters if it is wider than `cells`."""
    text = " ".join(text.split())
    if width_in_cells(text) <= cells:
        return text
    kept = ""
    for piece in LINE_PIECE.findall(text):
        if width_in_cells((kept + piece).rstrip()) >= cells:
            break
        kept += piece
    if not kept:  # one long word
        kept = "".join(
            char for char, end in zip(text, accumulate(map(width_in_cells, text)), strict=True) if end < cells
        )
    return kept.rstrip(f" .,;:-{CLOSING_PUNCTUATION}") + ELLIPSIS


def wrap(text: str, cells: int = 26) -> str:
    """A text on one line, or on two lines of similar width if it is wider than `cells`."""
    pieces = LINE_PIECE.findall(text)
    if width_in_cells(text) <= cells or len(pieces) < 2:
        return text
    breaks = [("".join(pieces[:end]).rstrip(), "".join(pieces[end:])) for end in range(1, len(pieces))]
    return "\n".join(min(breaks, key=lambda lines: max(map(width_in_cells, lines))))


def place_labels(axes: Any, labels: Sequence[Any], points: Boxes, ways: Boxes, obstacles: Boxes) -> None:
    """Places labels next to their points, inside the axes, without overlaps.

    Labels for which there is no room are hidden, with a warning.

    Args:
        axes: Axes with their final limits and size.
        labels: k matplotlib texts.
        points: Points (k, 2) that the labels belong to, in data coordinates.
        ways: Preferred direction (k, 2) of each label from its point.
        obstacles: Points (any, 2) that no label may cover, including `points`.
    """
    to_data = axes.transData.inverted()
    anchors, covered = axes.transData.transform(points), axes.transData.transform(obstacles)
    room = np.array(axes.get_window_extent().extents) + FRAME_MARGIN * np.array([1, 1, -1, -1])
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
        if np.linalg.norm(nearest - anchor) >= LEADER_LENGTH:
            (end_x, end_y), (start_x, start_y) = to_data.transform(nearest), point
            axes.plot([start_x, end_x], [start_y, end_y], color=GREY, linewidth=0.5, alpha=0.7, zorder=1.5)


def label_ends(axes: Any, lines: Mapping[str, tuple[float, float, str]]) -> None:
    """Writes the names of lines to the right of the axes in their colours, apart from each other.

    Args:
        axes: Axes with their final limits and size.
        lines: The end of each line in data coordinates, and its colour, by name.
    """
    axes.figure.draw_without_rendering()  # gives the axes their size
    low, high = axes.get_window_extent().intervaly
    size = LABEL_SIZE * axes.figure.dpi / 72  # pixels
    ends = {name: float(axes.transData.transform(end[:2])[1].clip(low, high)) for name, end in lines.items()}
    for name, height in spread_out(ends, gap=1.25 * size, lowest=low + size / 2).items():
        axes.annotate(
            name,
            (1.0, (height - low) / (high - low)),
            (6.0, 0.0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=lines[name][2],
            fontsize=LABEL_SIZE,
            va="center",
        )


def spread_out(heights: Mapping[str, float], *, gap: float, lowest: float) -> dict[str, float]:
    """Heights of labels, from `lowest` on, moved up where they would overlap."""
    placed: dict[str, float] = {}
    least = lowest
    for name in sorted(heights, key=heights.__getitem__):
        placed[name] = max(heights[name], least)
        least = placed[name] + gap
    return placed


def _beside(boxes: Boxes, anchors: Boxes, ways: Boxes) -> Boxes:
    """Boxes (k, 4) moved in the given directions until they no longer cover their points."""
    half = (boxes[:, 2:] - boxes[:, :2]) / 2
    steps = (half + 2 * LABEL_GAP) / np.maximum(np.abs(ways), 1e-9)  # (k, 2) how far until the point is free in x, in y
    centers = anchors + steps.min(axis=1, keepdims=True) * ways
    moved: Boxes = np.concatenate([centers - half, centers + half], axis=1)
    return moved


def label_boxes(labels: Sequence[Any]) -> Boxes:
    """Bounding boxes (k, 4) of labels in pixels."""
    return np.array([label.get_window_extent().extents for label in labels]).reshape(-1, 4)


def separate(boxes: Boxes, anchors: Boxes, obstacles: Boxes, room: Boxes) -> Boxes:
    """Moves boxes that overlap others, cover obstacles or leave the room to the nearest free place.

    Args:
        boxes: Left, bottom, right and top, shape (k, 4).
        anchors: The points they belong to, shape (k, 2).
        obstacles: Points that no box may cover, shape (any, 2).
        room: Left, bottom, right and top that no box may cross, shape (4,).

    Returns:
        The boxes (k, 4); NaN if there is no free place.
    """
    pad = np.array([-LABEL_GAP, -LABEL_GAP, LABEL_GAP, LABEL_GAP])
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
    """The box itself, then boxes on wider and wider rings around its point, shape (1 + rings * directions, 4)."""
    half = (box[2:] - box[:2]) / 2
    angles = np.arange(LABEL_DIRECTIONS) * (2 * np.pi / LABEL_DIRECTIONS)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # (directions, 2)
    rings = np.arange(1, LABEL_RINGS + 1)[:, None, None] * np.array([1.0, 0.5]) * half.max() / 4
    centers = (anchor + rings * directions).reshape(-1, 2)
    return np.concatenate([box[None], np.concatenate([centers - half, centers + half], axis=1)])


def _meets(box: Boxes, others: Boxes) -> bool:
    return bool(((others[:, :2] < box[2:]) & (box[:2] < others[:, 2:])).all(axis=1).any())
