"""Links as text: what stands on both sides of each, and how many there are of which type.

Takes `Aligned`, gives `AlignedPair`s, which the writers and the Python interface share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean

from dualmoco.alignment.document import Aligned, Document
from dualmoco.core.vectors import Ids
from dualmoco.data.languages import WITHOUT_SPACES, base_language

BREAKS = re.compile("\r\n|[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


@dataclass(frozen=True)
class AlignedPair:
    """What a link joins; a side without sentences is empty, and has no places."""

    src: str
    """Its sentences as one text."""
    tgt: str
    score: float | None
    """1 for a usual translation in this document, about 0 for unrelated sentences; None with one side only."""
    confidence: float
    """Between 0 and 1."""
    src_places: tuple[str, ...]
    """Where each sentence stands, such as 3.2 for the second of the third paragraph."""
    tgt_places: tuple[str, ...]

    @property
    def type(self) -> str:
        """Numbers of sentences of both sides, such as 2-1."""
        return f"{len(self.src_places)}-{len(self.tgt_places)}"

    @property
    def is_linked(self) -> bool:
        """Whether it has sentences on both sides."""
        return bool(self.src_places and self.tgt_places)


@dataclass(frozen=True)
class LinkCounts:
    """What a document's links are in numbers."""

    links: int
    linked: int
    """Those with both sides."""
    types: Mapping[str, int]
    """Links of each type such as 1-1, the most frequent first."""
    mean_score: float | None
    """Of those with both sides; None without any."""


def aligned_pairs(aligned: Aligned) -> list[AlignedPair]:
    """All links of two documents as text, in order.

    Args:
        aligned: The documents and their links.

    Returns:
        One pair a link. The sentences of a side are joined by a space, or by nothing where the language has none.
    """
    links = aligned.links
    sides = (_side(aligned.src, links.src), _side(aligned.tgt, links.tgt))
    numbers = zip(links.scores.tolist(), links.confidence.tolist(), strict=True)
    return [
        AlignedPair(src, tgt, None if isnan(score) else score, confidence, src_places, tgt_places)
        for (src, src_places), (tgt, tgt_places), (score, confidence) in zip(*sides, numbers, strict=True)
    ]


def count_links(pairs: Sequence[AlignedPair]) -> LinkCounts:
    """Counts the links of a document by type."""
    types = Counter(pair.type for pair in pairs)
    scores = [pair.score for pair in pairs if pair.score is not None]
    ordered = dict(sorted(types.items(), key=lambda item: (-item[1], item[0])))
    mean = round(fmean(scores), 4) if scores else None
    return LinkCounts(len(pairs), sum(pair.is_linked for pair in pairs), ordered, mean)


def one_line(text: str) -> str:
    """Text with a space for each tab and each line end of any kind."""
    return BREAKS.sub(" ", text)


def _side(document: Document, runs: Ids) -> list[tuple[str, tuple[str, ...]]]:
    """Text and places of each run (b, 2) of sentences."""
    between = "" if base_language(document.lang) in WITHOUT_SPACES else " "
    return [
        (between.join(document.sentences[first:end]), tuple(document.places[first:end]))
        for first, end in runs.tolist()
    ]  # fmt: skip
