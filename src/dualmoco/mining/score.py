"""Margin scores of pairs that exist already, to filter them: `dualmoco score`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.storage import write_text
from dualmoco.core.vectors import Floats, Ids
from dualmoco.core.version import VERSION
from dualmoco.embeddings.encode import encode_file
from dualmoco.embeddings.engines.engine import Engine, LocalEngine
from dualmoco.embeddings.lines import TextFile
from dualmoco.embeddings.store import Store
from dualmoco.mining.margins import margin_scores
from dualmoco.mining.mine import MineSettings, find_neighbors
from dualmoco.mining.output import PairTable, write_pairs
from dualmoco.models.model import Model
from dualmoco.search.neighbors import PLACES

ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Scored:
    """What was scored and what was kept."""

    pairs: int
    kept: int
    scores: Floats


def score_pairs(
    pairs: Iterable[tuple[str, str]], langs: tuple[str, str], model: Model, settings: MineSettings, out: Path,
    work: Path, engine: Engine | None = None,
) -> Scored:  # fmt: skip
    """Scores every pair of a bitext against the other sentences of its two sides, and writes those above a threshold.

    Args:
        pairs: Source and target sentences.
        langs: Their languages.
        model: What encodes both.
        settings: Margin, k; `threshold` is the lowest score to keep.
        out: The file of pairs, in the order they came.
        work: Folder for vectors and neighbours.
        engine: Where it runs; this process if None.

    Returns:
        Counts and all scores.

    Raises:
        DataError: No pair, or a pair with an empty side.
    """
    engine = engine or LocalEngine()
    texts = _write_sides(pairs, work)
    stores = [
        encode_file(TextFile(text, lang), work / name, model, settings.form, engine)
        for name, text, lang in zip(("src", "tgt"), texts, langs, strict=True)
    ]
    forward, backward, recall = find_neighbors(stores, settings, work, engine)
    src, tgt = stores[0].lines, stores[1].lines  # (pairs,) rows
    cosines = _cosines(stores, src, tgt)
    means = forward.mean[src], backward.mean[tgt]
    scores = margin_scores(cosines, *means, settings.margin)
    kept = np.flatnonzero(scores >= settings.threshold) if settings.threshold is not None else np.arange(len(scores))
    table = PairTable(scores[kept], means[0][kept].round(PLACES), means[1][kept].round(PLACES), kept + 1, kept + 1)
    origin = {
        "tool": "dualmoco score", "version": VERSION, "pairs": len(kept), "scored": len(scores),
        "model": model.identity.name, "model_sha256": stores[0].key.model_sha256, "backend": stores[0].key.backend,
        "src_lang": langs[0], "tgt_lang": langs[1], "src_text_sha256": stores[0].key.text_sha256,
        "tgt_text_sha256": stores[1].key.text_sha256, "margin": settings.margin.value, "k": settings.k,
        "threshold": settings.threshold, "approximate_recall": recall,
    }  # fmt: skip
    write_pairs(out, table, (texts[0], texts[1]), langs, origin)
    return Scored(len(scores), len(kept), scores)


def _write_sides(pairs: Iterable[tuple[str, str]], work: Path) -> list[Path]:
    """The two sides as files of one sentence a line."""
    sides: tuple[list[str], list[str]] = ([], [])
    for number, pair in enumerate(pairs, start=1):
        for side, text in zip(sides, pair, strict=True):
            line = " ".join(text.split())
            if not line:
                raise DataError(
                    f"pair {number}: one side is empty; expected two sentences: clean with dualmoco prepare"
                )
            side.append(line)
    if not sides[0]:
        raise DataError("no pairs to score; expected at least one")
    paths = [work / "src.txt", work / "tgt.txt"]
    for path, side in zip(paths, sides, strict=True):
        write_text(path, "".join(f"{line}\n" for line in side))
    return paths


def _cosines(stores: list[Store], src: Ids, tgt: Ids) -> Floats:
    """Cosines (pairs,) in double precision, rounded."""
    vectors = stores[0].vectors(), stores[1].vectors()
    cosines = np.empty(len(src), dtype=np.float64)
    for start in range(0, len(src), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        cosines[part] = np.einsum("nd,nd->n", vectors[0][src[part]], vectors[1][tgt[part]], dtype=np.float64)
    return cosines.round(PLACES)
