"""Vectors of runs of sentences, encoded as one text: only of those that a link near the best path needs.

Takes the sentences of a text and what encodes them, gives what `Side.encode` is. Shapes: u runs, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dualmoco.core.vectors import Ids, Vectors
from dualmoco.data.languages import WITHOUT_SPACES, base_language

RunEncoder = Callable[[Ids], Vectors]
"""Takes runs of a text (u, 2), each from one sentence to before another, gives unit vectors (u, D)."""


def run_encoder(sentences: Sequence[str], lang: str, encode: Callable[[list[str]], Vectors]) -> RunEncoder:
    """Encodes runs as one text each.

    Args:
        sentences: Of the text.
        lang: Its language, which decides what stands between sentences.
        encode: Makes unit vectors of texts.

    Returns:
        What encodes runs.
    """

    def encode_runs(runs: Ids) -> Vectors:
        return encode([run_text(sentences[first:last], lang) for first, last in runs.tolist()])

    return encode_runs


def run_text(sentences: Sequence[str], lang: str) -> str:
    """Sentences as one text."""
    return ("" if base_language(lang) in WITHOUT_SPACES else " ").join(sentences)
