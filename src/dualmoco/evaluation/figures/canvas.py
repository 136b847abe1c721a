"""The sheet every figure is drawn on: one style, fonts for the sentences, files.

Takes a title, a size and the texts to draw; gives a matplotlib `Figure`, and SVG, PNG or HTML of it. Nothing here
changes matplotlib's global settings for longer than the drawing takes.
"""

from __future__ import annotations

import html
import importlib.util
import io
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
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
    "Noto Sans CJK", "Noto Sans SC", "Noto Sans TC", "Noto Sans JP", "Noto Sans KR", "Source Han Sans", "WenQuanYi",
    "PingFang", "Hiragino", "Heiti", "Microsoft YaHei", "Microsoft JhengHei", "SimHei", "Yu Gothic", "Malgun Gothic",
    "Apple SD Gothic", "Arial Unicode", "Droid Sans Fallback", "Nanum", "IPA", "Unifont",
)  # fmt: skip
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
