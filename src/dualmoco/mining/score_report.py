"""The report of `mine --report` and `score --report`: a page with a histogram of all scores and samples by score.

The page is a single file without scripts, so it opens anywhere. Shapes: p pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from dualmoco.core.errors import ConfigError
from dualmoco.core.vectors import Floats, Ids
from dualmoco.mining.margins import Margin

REPORT_BINS = 60
SAMPLE_BANDS, SAMPLES_PER_BAND = 8, 5
HISTOGRAM_BAR_WIDTH, PLOT_HEIGHT = 12, 220
KEPT_AT = {Margin.distance: (0.05, 0.1, 0.15), Margin.ratio: (1.02, 1.05, 1.1), Margin.absolute: (0.3, 0.4, 0.5)}
"""Thresholds of a margin for which the number of pairs is counted."""
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left;
vertical-align:top}th{font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.narrow{width:auto}
rect{fill:#b8bec8}rect.kept{fill:#3b6fb6}svg text{font-size:12px;fill:#555}h3{margin:1.2rem 0 .2rem}"""

SampledPair = tuple[float, str, str]  # score and both sentences


def check_report(path: str | Path | None) -> None:
    """ConfigError if a report cannot be written to a file of this name."""
    if path is None:
        return
    if Path(path).suffix != ".html" or Path(path).is_dir():
        raise ConfigError(f"{path}: expected a file name that ends with .html for the report")


def kept_at(scores: Floats, margin: Margin) -> tuple[tuple[float, int], ...]:
    """Thresholds, and the number of pairs that reach each."""
    return tuple((threshold, int((scores >= threshold).sum())) for threshold in KEPT_AT[margin])


def sampled_pairs(scores: Floats, sentences: Callable[[Ids], Sequence[Sequence[str]]]) -> list[list[SampledPair]]:
    """A few pairs of each band of scores, the highest band first; `sentences` returns both sides of some pairs."""
    finite = np.flatnonzero(np.isfinite(scores))
    edges = np.linspace(scores[finite].min(), scores[finite].max(), SAMPLE_BANDS + 1)
    bands = np.clip(np.digitize(scores[finite], edges[1:-1]), 0, SAMPLE_BANDS - 1)
    generator, found = np.random.default_rng(0), []
    for band in range(SAMPLE_BANDS - 1, -1, -1):
        rows = finite[bands == band]
        drawn = np.sort(generator.permutation(rows)[:SAMPLES_PER_BAND])
        drawn = drawn[np.argsort(-scores[drawn], kind="stable")]
        src, tgt = sentences(drawn) if len(drawn) else ((), ())
        found.append(list(zip(scores[drawn].tolist(), src, tgt, strict=True)))
    return [band for band in found if band]


def report_page(
    scores: Floats,
    threshold: float | None,
    margin: Margin,
    samples: Sequence[Sequence[SampledPair]],
    origin: Mapping[str, object],
) -> str:
    """The page for the scores (p,) of all pairs or candidates."""
    kept = len(scores) if threshold is None else int((scores >= threshold).sum())
    chosen = "no threshold" if threshold is None else f"{kept:,} reach the threshold {threshold:.4f}"
    counts = (
        (f"{value:g}", f"{count:,}", f"{100 * count / len(scores):.1f} %") for value, count in kept_at(scores, margin)
    )
    rows = "".join("<tr>" + "".join(f"<td class=n>{cell}</td>" for cell in cells) + "</tr>" for cells in counts)
    head = "<tr><th class=n>threshold</th><th class=n>pairs</th><th class=n>share</th></tr>"
    title = str(origin.get("tool", "dualmoco"))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n"
        f"<p>{len(scores):,} scored pairs, {chosen}.</p>\n"
        f"{_histogram(scores, threshold)}\n<p>Number of pairs by score, on a square root scale.</p>\n"
        "<h2>Pairs kept at other thresholds</h2>\n"
        f"<table class=narrow>{head}{rows}</table>\n<h2>Samples by score</h2>\n"
        f"{''.join(map(_band, samples))}\n<h2>Settings</h2>\n<table>{_settings(origin)}</table>\n</body></html>\n"
    )


def _histogram(scores: Floats, threshold: float | None) -> str:
    """The scores as SVG bars with square root heights; scores above the threshold have another colour."""
    counts, edges = np.histogram(scores[np.isfinite(scores)], REPORT_BINS)
    heights = PLOT_HEIGHT * np.sqrt(counts / max(1, counts.max()))
    bars = []
    for number, (height, count) in enumerate(zip(heights.tolist(), counts.tolist(), strict=True)):
        is_kept = threshold is not None and edges[number + 1] > threshold
        place = f'x="{number * HISTOGRAM_BAR_WIDTH}" y="{PLOT_HEIGHT - height:.1f}"'
        size = f'width="{HISTOGRAM_BAR_WIDTH - 1}" height="{height:.1f}"'
        title = f"{edges[number]:.3f} to {edges[number + 1]:.3f}: {count:,} pairs"
        bars.append(f'<rect class="{"kept" if is_kept else ""}" {place} {size}><title>{title}</title></rect>')
    ticks = "".join(
        f'<text x="{number * HISTOGRAM_BAR_WIDTH}" y="{PLOT_HEIGHT + 16}">{edges[number]:.2f}</text>'
        for number in range(0, REPORT_BINS, 10)
    )
    size = f'viewBox="0 0 {REPORT_BINS * HISTOGRAM_BAR_WIDTH} {PLOT_HEIGHT + 24}"'
    return f'<svg {size} role="img" aria-label="histogram of scores">{"".join(bars)}{ticks}</svg>'


def _band(samples: Sequence[SampledPair]) -> str:
    rows = "".join(
        f"<tr><td class=n>{score:.4f}</td><td>{escape(src)}</td><td>{escape(tgt)}</td></tr>"
        for score, src, tgt in samples
    )
    return f"<h3>{samples[-1][0]:.3f} to {samples[0][0]:.3f}</h3><table>{rows}</table>"


def _settings(origin: Mapping[str, object]) -> str:
    rows = ((name, value) for name, value in origin.items() if value is not None)
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows)
