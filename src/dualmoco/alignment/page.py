"""Two aligned documents side by side as one HTML page that needs nothing else. Takes `Aligned`, gives HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dualmoco.alignment.document import Aligned, Document
from dualmoco.alignment.pairs import AlignedPair, aligned_pairs, count_links, one_line
from dualmoco.core.errors import require
from dualmoco.core.vectors import Floats
from dualmoco.core.version import VERSION
from dualmoco.mining.tmx import NOT_XML

LOW = 0.5
"""Links of less confidence are marked."""
CHUNK = 50  # rows that a browser lays out together, and only once they come near
COLUMNS = 200  # of the overview, at most


@dataclass(frozen=True)
class _Row:
    """A link as the page shows it."""

    number: int
    """From 1."""
    type: str
    classes: str
    confidence: str
    score: str
    src: Sequence[tuple[str, str]]
    """Place and text of each sentence."""
    tgt: Sequence[tuple[str, str]]
    before: int | None = None
    """Of a link of low confidence, the number of the one before it."""
    after: int | None = None


@dataclass(frozen=True)
class _Column:
    """Neighbouring links as one column of the overview; heights between 0 and 1."""

    place: int
    first: int
    """Number of the first of them, and of the last."""
    last: int
    goal: int
    """Of the least confident one."""
    mean: float
    low: float
    """Share of them that is of low confidence."""
    gaps: float
    """Share of them that has one side only."""


def alignment_page(aligned: Aligned) -> str:
    """Both texts side by side, one row a link, links of low confidence marked and within reach.

    Args:
        aligned: The documents and their links.

    Returns:
        HTML.

    Raises:
        ConfigError: jinja2 is not installed; says how to install it.
    """
    jinja2 = require("jinja2", "eval", "A page of an alignment")
    pairs = aligned_pairs(aligned)
    rows = _rows(aligned, pairs)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dualmoco.alignment", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page: str = environment.get_template("page.html.j2").render(
        src=aligned.src, tgt=aligned.tgt, counts=count_links(pairs), origin=aligned.origin, version=VERSION, low=LOW,
        chunks=[rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)],
        lows=[row.number for row in rows if "low" in row.classes],
        linked=[_linked_share(runs, aligned.links.is_linked) for runs in (aligned.links.src, aligned.links.tgt)],
        columns=_columns(aligned.links.confidence, aligned.links.is_linked),
        place_width=max((len(place) for place in (*aligned.src.places, *aligned.tgt.places)), default=0),
    )  # fmt: skip
    return page


def _rows(aligned: Aligned, pairs: Sequence[AlignedPair]) -> list[_Row]:
    lows = (np.flatnonzero(aligned.links.confidence < LOW) + 1).tolist()
    around = zip([None, *lows], lows, [*lows[1:], None], strict=False)
    neighbors = {low: (before, after) for before, low, after in around}
    sides = (_sentences(aligned.src), _sentences(aligned.tgt))
    rows = []
    runs = zip(aligned.links.src.tolist(), aligned.links.tgt.tolist(), strict=True)
    for number, (pair, (src, tgt)) in enumerate(zip(pairs, runs, strict=True), start=1):
        marks = (("low", number in neighbors), ("gap", not pair.is_linked), ("many", pair.type != "1-1"))
        score = "" if pair.score is None else f"{pair.score:z.2f}"
        rows.append(_Row(
            number, pair.type, " ".join(name for name, holds in marks if holds), f"{pair.confidence:z.2f}", score,
            sides[0][src[0] : src[1]], sides[1][tgt[0] : tgt[1]], *neighbors.get(number, (None, None)),
        ))  # fmt: skip
    return rows


def _sentences(document: Document) -> list[tuple[str, str]]:
    """Places and texts, without the characters that no page can hold."""
    texts = (NOT_XML.sub("", one_line(text)) for text in document.sentences)
    return list(zip(document.places, texts, strict=True))


def _linked_share(runs: np.ndarray, is_linked: np.ndarray) -> float:
    """Share of a side's sentences that are linked to some of the other."""
    sizes = runs[:, 1] - runs[:, 0]
    return float(sizes[is_linked].sum() / max(sizes.sum(), 1))


def _columns(confidence: Floats, is_linked: np.ndarray) -> list[_Column]:
    ends = np.linspace(0, len(confidence), min(len(confidence), COLUMNS) + 1).astype(np.int64).tolist()
    columns = []
    for place, (first, end) in enumerate(pairwise(ends)):
        part = confidence[first:end]
        columns.append(_Column(
            place, first + 1, end, first + int(part.argmin()) + 1, float(part.mean()), float((part < LOW).mean()),
            float((~is_linked[first:end]).mean()),
        ))  # fmt: skip
    return columns
