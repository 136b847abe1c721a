"""Tests of figures: labels that never meet, layouts, curves against loops, and files that open anywhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.vectors import Vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.evaluation.canvas import (
    FILE_STYLE,
    LATIN_FONT,
    find_families,
    label_boxes,
    label_ends,
    new_figure,
    save_figure,
    separate,
    shorten,
    spread_out,
    to_html,
    to_png,
    to_svg,
    width_in_cells,
    wrap,
)
from dualmoco.evaluation.figures import (
    draw_margins,
    draw_parallel,
    draw_precision_recall,
    draw_similarities,
    draw_sts,
    draw_subsets,
    lay_out,
    least_distance,
    move_apart,
    precision_recall,
)
from dualmoco.mining.threshold import best_threshold

PAIRS = generate_pairs(60, seed=3)
LONG = (
    "It costs $5 or $6_{x to walk all the way around the old lake in winter",
    "绕着那个古老的湖走一圈需要五块或者六块钱真的不贵",
)


def make_vectors(count: int, noise: float = 0.3, width: int = 16) -> tuple[Vectors, Vectors]:
    """Vectors of some sentences and, near each of them, that of its translation."""
    random = np.random.default_rng(count)
    src = random.normal(size=(count, width)).astype(np.float32)
    return src, (src + noise * random.normal(size=src.shape)).astype(np.float32)


def make_parallel(count: int, noise: float = 0.3) -> Figure:
    """The figure of some generated pairs, the first of them long and with dollar signs."""
    src, tgt = zip(LONG, *PAIRS[: count - 1], strict=True)
    return draw_parallel(src, tgt, *make_vectors(count, noise), languages=("en", "zh"))


def make_scores(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Descending scores, many of them equal, and flags that the higher ones have more often."""
    random = np.random.default_rng(seed)
    scores = np.sort(random.integers(-20, 20, count) / 10)[::-1]
    return scores, random.random(count) < (scores + 2) / 4


def meeting(boxes: Any) -> list[tuple[int, int]]:
    """Which boxes (left, bottom, right, top) cover some of another, one pair at a time."""
    return [
        (i, j)
        for (i, a), (j, b) in combinations(enumerate(boxes.tolist()), 2)
        if min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1])
    ]


@pytest.mark.parametrize(
    ("text", "cells", "expected"),
    [
        ("short", 10, "short"),
        ("  two \n lines ", 10, "two lines"),
        ("one two three four", 14, "one two three…"),
        ("one two, three four", 13, "one two…"),
        ("一二三四五六", 12, "一二三四五六"),
        ("一二三四五六七", 12, "一二三四五…"),
        ("一二三，四五六七", 10, "一二三…"),
        ("incomprehensibilities", 8, "incompr…"),
        ("", 5, ""),
    ],
)
def test_shortened_texts(text: str, cells: int, expected: str) -> None:
    """Texts are cut between words or characters, at the width they take, and not before a comma."""
    assert shorten(text, cells) == expected
    assert width_in_cells(expected) <= cells


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two", "one two"),
        ("one two three four", "one two\nthree four"),
        ("一二三，四五", "一二\n三，四五"),
        ("incomprehensibilities", "incomprehensibilities"),
    ],
)
def test_wrapped_texts(text: str, expected: str) -> None:
    """A wide text has two lines of about one width; no line begins with a comma."""
    assert wrap(text, 10) == expected


def test_fonts_hold_the_glyphs() -> None:
    """For Chinese a second font is found whose file has the glyphs; Latin needs none."""
    assert find_families(["plain, naïve text"]) == [LATIN_FONT]
    families = find_families(["汉字 and 漢字。"])
    if len(families) == 1:
        pytest.skip("needs a font with Chinese glyphs: a system font, or the package zhplot")
    for char in "汉漢。":
        files = [font_manager.get_font(font_manager.findfont(family)) for family in families]
        assert any(ord(char) in file.get_charmap() for file in files)


def test_missing_glyphs_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Characters that no font has give one warning that says what to install."""
    with caplog.at_level(logging.WARNING):
        assert find_families(["𒀀𒀁 plain"]) == [LATIN_FONT]
    assert [record.getMessage() for record in caplog.records] == [
        "no font for 2 characters such as 𒀀𒀁; install Noto Sans CJK, or pip install zhplot"
    ]


def test_global_settings_stay() -> None:
    """Drawing and writing leave matplotlib's settings as they were, and its settings do not change the figure."""
    plain = to_svg(make_parallel(4))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        assert to_svg(make_parallel(4)) == plain
        assert dict(matplotlib.rcParams) == before


def test_svg_needs_nothing_else() -> None:
    """Letters are paths, there is no date, and links point only into the file."""
    svg = to_svg(make_parallel(5))
    assert "<text" not in svg and "<dc:date" not in svg
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', svg))


def test_files_by_extension(tmp_path: Path) -> None:
    """PNG, SVG and HTML are written whole, with nothing beside them; the page's title is escaped."""
    with new_figure("a < b", 3, 2) as (figure, axes):
        axes.plot([0, 1], [1, 0])
    for name in ("a.png", "b.SVG", "new/c.html"):
        save_figure(figure, tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["a.png", "b.SVG", "c.html"]
    assert (tmp_path / "a.png").read_bytes() == to_png(figure)
    assert to_png(figure)[:8] == b"\x89PNG\r\n\x1a\n" and to_png(figure)[16:24] == (480).to_bytes(4) + (320).to_bytes(4)
    assert (tmp_path / "b.SVG").read_text(encoding="utf-8").startswith("<?xml")
    page = (tmp_path / "new" / "c.html").read_text(encoding="utf-8")
    assert page == to_html(figure) and "<title>a &lt; b</title>" in page
    assert page.count("<svg") == page.count("</svg>") == 1 and "<?xml" not in page


@pytest.mark.parametrize(("name", "message"), [("a.pdf", "extension .pdf"), ("a", "missing"), ("", "is a folder")])
def test_other_files_are_refused(name: str, message: str, tmp_path: Path) -> None:
    """An unknown extension or a folder is one clear error, and nothing is written."""
    with pytest.raises(ConfigError, match=message):
        save_figure(Figure(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_crowded_boxes_are_set_apart() -> None:
    """Boxes thrown on each other end inside the room, on no other box and on no obstacle."""
    random = np.random.default_rng(1)
    anchors = random.uniform(200, 400, size=(40, 2))
    half = np.array([30.0, 8.0])
    boxes = np.concatenate([anchors - half, anchors + half], axis=1)
    assert len(meeting(boxes)) > 50
    room = np.array([0.0, 0.0, 600.0, 600.0])
    placed = separate(boxes, anchors, anchors, room)
    assert np.isfinite(placed).all() and not meeting(placed)
    assert (placed[:, :2] >= 0).all() and (placed[:, 2:] <= 600).all()
    np.testing.assert_allclose(placed[:, 2:] - placed[:, :2], np.tile(2 * half, (40, 1)))
    assert not [1 for x, y in anchors for left, low, right, top in placed if left < x < right and low < y < top]


def test_names_at_the_ends_of_lines() -> None:
    """They keep their distance and their order, and those that are far apart keep their place."""
    placed = spread_out({"a": 50.0, "b": 48.0, "c": 1.0}, gap=6.0, lowest=4.0)
    assert placed == {"c": 4.0, "b": 48.0, "a": 54.0}
    with new_figure("", 4, 2, panels=(1, 2)) as (figure, (left, right)):
        left.plot([0, 1], [0, 1])
        right.plot([0, 1], [0, 1])
        label_ends(right, {"one": (1, 1.0, "red"), "two": (1, 0.99, "blue"), "three": (1, 0.0, "green")})
    figure.draw_without_rendering()
    boxes = label_boxes(right.texts)
    assert not meeting(boxes) and boxes[:, 0].min() > right.get_window_extent().x1
    assert (boxes[:, 2] <= figure.bbox.x1).all()


def test_free_boxes_stay_and_boxes_without_room_go() -> None:
    """A box in nobody's way is left where it is; one larger than the room is given up."""
    boxes = np.array([[10.0, 10.0, 30.0, 20.0], [0.0, 40.0, 500.0, 60.0]])
    placed = separate(boxes, boxes[:, :2] + 50, np.array([[90.0, 90.0]]), np.array([0.0, 0.0, 100.0, 100.0]))
    assert placed[0].tolist() == boxes[0].tolist() and np.isnan(placed[1]).all()


@pytest.mark.parametrize(("count", "noise"), [(2, 0.3), (15, 0.0), (40, 0.3)])
def test_labels_never_meet(count: int, noise: float) -> None:
    """All sentences are written, inside the frame, and no two overlap, nor cover a point; at every resolution."""
    figure = make_parallel(count, noise)
    axes = figure.axes[0]
    labels = axes.texts
    assert len(labels) == 2 * count and all(label.get_visible() for label in labels)
    assert labels[0].get_text() == "It costs $5 or $6_{x\nto walk all the way…"
    points = np.concatenate([np.asarray(side.get_offsets()) for side in axes.collections])  # (2n, 2)
    for dpi in (72, 160):
        figure.set_dpi(dpi)
        with matplotlib.rc_context(FILE_STYLE):
            figure.draw_without_rendering()
            boxes, frame = label_boxes(labels), axes.get_window_extent().extents
        assert not meeting(boxes)
        assert (boxes[:, :2] > frame[:2]).all() and (boxes[:, 2:] < frame[2:]).all()
        places = axes.transData.transform(points)
        inside = (places[:, None] > boxes[:, :2]).all(axis=2) & (places[:, None] < boxes[:, 2:]).all(axis=2)
        assert not inside.any()


def test_many_pairs_have_points_only() -> None:
    """More than forty pairs are joined points, told apart by a legend, without sentences."""
    figure = make_parallel(41)
    axes: Any = figure.axes[0]
    assert not axes.texts and len(axes.lines) == 41
    assert [side.get_offsets().shape for side in axes.collections] == [(41, 2), (41, 2)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["en", "zh"]
    assert axes.get_title(loc="left").startswith("41 parallel sentences in en and zh")


def test_lines_join_pairs() -> None:
    """The i-th line goes from the i-th source to the i-th target."""
    axes: Any = make_parallel(6).axes[0]
    src, tgt = (np.asarray(side.get_offsets()) for side in axes.collections)
    for line, start, end in zip(axes.lines[:6], src, tgt, strict=True):
        np.testing.assert_allclose(line.get_xydata(), [start, end])


def test_layout_keeps_translations_near() -> None:
    """Every source is nearer to its translation than to nine tenths of the others; points keep their distance."""
    points = lay_out(*make_vectors(30, 0.1))
    assert points.shape == (60, 2) and np.abs(points).max() < 1.1
    distances = np.linalg.norm(points[:30, None] - points[None, 30:], axis=2)  # (30, 30)
    assert (np.diag(distances) <= np.quantile(distances, 0.1, axis=1)).all()
    gaps = [np.linalg.norm(a - b) for a, b in combinations(points, 2)]
    assert min(gaps) >= least_distance(60) - 1e-6
    assert np.array_equal(points, lay_out(*make_vectors(30, 0.1)))


@pytest.mark.parametrize("width", [1, 4])
def test_layout_of_equal_vectors(width: int) -> None:
    """A collapsed model still gives finite places that can be told apart."""
    vectors = np.ones((3, width), dtype=np.float32)
    points = lay_out(vectors, vectors)
    assert np.isfinite(points).all()
    assert min(np.linalg.norm(a - b) for a, b in combinations(points, 2)) >= least_distance(6) - 1e-6


def test_only_close_points_move() -> None:
    """Two points at one place part to the least distance; one far away stays."""
    moved = move_apart(np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), 0.1)
    assert np.linalg.norm(moved[0] - moved[1]) == pytest.approx(0.1, rel=0.05)
    assert moved[2].tolist() == [1.0, 1.0]


def _draw_uneven(src: int, tgt: int, vectors: int, width: int) -> Figure:
    tgt_vectors = np.ones((vectors, width), dtype=np.float32)
    return draw_parallel(
        ["a"] * src, ["b"] * tgt, np.eye(src, 4, dtype=np.float32), tgt_vectors, languages=("en", "zh")
    )


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: _draw_uneven(1, 1, 1, 4), "pairs to draw: 1; expected at least 2"),
        (lambda: _draw_uneven(3, 2, 3, 4), "3 source and 2 target sentences"),
        (lambda: _draw_uneven(3, 3, 2, 4), "2 vectors; expected 3"),
        (lambda: _draw_uneven(3, 3, 3, 5), "dimension 5; expected 4"),
        (lambda: draw_margins(np.array([-np.inf]), np.array([False]), 0.0), "none of them finite"),
        (lambda: draw_margins(np.array([1.0, 2.0]), np.array([True, True]), 0.0), "expected .*sorted"),
        (lambda: precision_recall(np.array([]), np.array([]), 1), "one of each"),
        (lambda: precision_recall(np.array([2.0, 1.0]), np.array([True, True]), 1), "2 true pairs but 1 gold"),
        (lambda: draw_similarities(["a"], ["b", "c"], np.ones((2, 1))), r"expected \(1, 2\)"),
        (lambda: draw_similarities(["a"], ["b"], np.array([[np.nan]])), "NaN"),
        (lambda: draw_sts({}, "nothing"), "no score"),
        (lambda: draw_subsets({"STS12": {"MSRpar": float("nan")}}), "no score"),
    ],
)
def test_wrong_input(draw: Callable[[], object], message: str) -> None:
    """What cannot be drawn is refused with what was given and what was expected."""
    with pytest.raises(DataError, match=message):
        draw()


@pytest.mark.parametrize("seed", range(3))
def test_precision_and_recall_agree_with_a_loop(seed: int) -> None:
    """Each distinct score, taken as the threshold, gives the point that counting gives."""
    scores, correct = make_scores(200, seed)
    gold = int(correct.sum()) + 15
    expected = []
    for threshold in sorted(set(scores.tolist()), reverse=True):
        accepted = [flag for score, flag in zip(scores, correct, strict=True) if score >= threshold]
        expected.append((sum(accepted) / len(accepted), sum(accepted) / gold))
    precision, recall = precision_recall(scores, correct, gold)
    np.testing.assert_allclose(np.stack([precision, recall], axis=1), expected)
    f1 = 2 * precision * recall / (precision + recall)
    assert f1.max() == pytest.approx(best_threshold(scores, correct, gold).f1)


def test_chosen_threshold_is_marked() -> None:
    """Two of three accepted pairs are true and gold are four: P 66.7, R 50, F1 57.1, written beside the point."""
    scores, correct = np.array([0.9, 0.8, 0.7, 0.2]), np.array([True, False, True, False])
    axes: Any = draw_precision_recall(scores, correct, 4, 0.5).axes[0]
    assert axes.lines[-1].get_xydata().tolist() == [[0.5, pytest.approx(2 / 3)]]
    assert axes.texts[-1].get_text() == "threshold 0.5\nP 66.7   R 50.0   F1 57.1"
    assert "threshold" not in draw_precision_recall(scores, correct, 4, np.inf).axes[0].texts[-1].get_text()
    for line in axes.lines[:5]:  # of equal F1
        recall, precision = line.get_xydata().T
        f1 = 2 * precision * recall / (precision + recall)
        np.testing.assert_allclose(f1, f1[0])


@pytest.mark.parametrize(("false", "scale"), [(30, "linear"), (900, "log")])
def test_margins_count_every_pair(false: int, scale: str) -> None:
    """The bars hold all finite scores of both kinds; many more of one kind make the axis logarithmic."""
    random = np.random.default_rng(0)
    scores = np.concatenate([random.normal(1, 0.1, 20), random.normal(0, 0.1, false)])
    order = np.argsort(-scores)
    scores = np.append(scores[order], -np.inf)
    correct = np.append(order < 20, False)
    axes: Any = draw_margins(scores, correct, 0.5).axes[0]
    assert axes.get_yscale() == scale
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [f"false pairs ({false})", "true pairs (20)", "threshold 0.5"]
    assert axes.lines[0].get_xdata() == [0.5, 0.5]
    assert not draw_margins(scores, correct, np.inf).axes[0].lines


def test_heat_map_of_few_sentences() -> None:
    """Sources are named down, targets across, in their own script, and each cell has its value, never minus zero."""
    values = np.array([[1.0, 0.25, -0.001], [-0.5, 0.0, 0.75]])
    axes: Any = draw_similarities(["one", LONG[0]], ["一", "二", LONG[1]], values).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", shorten(LONG[0], 32)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["一", "二", shorten(LONG[1], 32)]
    assert [text.get_text() for text in axes.texts] == ["1.00", "0.25", "0.00", "-0.50", "0.00", "0.75"]
    np.testing.assert_array_equal(axes.images[0].get_array(), values)
    assert not draw_similarities(["a"] * 61, ["b"] * 61, np.ones((61, 61))).axes[0].texts


def test_bars_of_models() -> None:
    """Each model has a bar in each data set it was scored on, left to right, with its value above it."""
    rows = {"ours": {"STS12": 70.0, "STS13": 80.25}, "论文": {"STS13": 75.0}}
    figure = draw_sts(rows, "Spearman")
    axes = figure.axes[0]
    heights = np.array([[bar.get_height() for bar in group] for group in axes.containers])
    np.testing.assert_array_equal(heights, [[70.0, 80.25], [np.nan, 75.0]])
    assert [text.get_text() for text in axes.texts] == ["70.0", "80.2", "", "75.0"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "论文"]
    ours, paper = (group[1].get_x() for group in axes.containers)
    assert 0.5 < ours < paper < 1.5
    assert axes.get_ylim() == (0, 100)
    assert draw_sts({"bad": {"STS12": -7.0}}, "below zero").axes[0].get_ylim() == (-12, 100)


def test_bars_of_subsets() -> None:
    """Subsets of one year stand together, years from the top down, with a gap between them."""
    values = {"STS12": {"MSRpar": 40.0, "OnWN": 70.0}, "STS13": {"OnWN": 80.0}, "STS14": {}}
    axes: Any = draw_subsets(values).axes[0]
    bars = [bar for group in axes.containers for bar in group]
    assert [bar.get_width() for bar in bars] == [40.0, 70.0, 80.0]
    first, second, third = (bar.get_y() for bar in bars)
    assert third - second > second - first > 0 and axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["MSRpar", "OnWN", "OnWN"]
    assert [text.get_text() for text in axes.texts if text.get_text().startswith("STS")] == ["STS12", "STS13"]
