"""Paraphrases within one file: mining of a text against itself: `dualmoco paraphrases`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.version import VERSION
from dualmoco.embeddings.encode import encode_file
from dualmoco.embeddings.engine import Engine, LocalEngine
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.io import PairTable, sentences_at, write_pairs
from dualmoco.mining.knn import MineSettings, find_neighbors
from dualmoco.mining.margins import ScoredPairs, margin_scores
from dualmoco.mining.results import MiningResult
from dualmoco.models.model import Model
from dualmoco.search.exact import PLACES, Neighbors


def mine_paraphrases(
    text: TextFile, model: Model, settings: MineSettings, out: Path, work: Path, engine: Engine | None = None
) -> MiningResult:
    """Finds the sentences of a file that say the same, and writes them as pairs, the earlier line first.

    Args:
        text: Equal lines are one sentence.
        model: What encodes it.
        settings: Margin, k; `threshold` is the lowest score to keep.
        out: The file of pairs.
        work: Folder for vectors and neighbours.
        engine: Where it runs; this process if None.

    Returns:
        The pairs by descending score.

    Raises:
        DataError: Fewer than two different sentences.
    """
    engine = engine or LocalEngine()
    store = encode_file(text, work / "src", model, settings.form, engine)
    if store.count < 2:
        raise DataError(f"{text.path}: {store.count} sentence; expected at least two that differ")
    wider = replace(settings, k=settings.k + 1)
    found, _, recall = find_neighbors([store, store], wider, work, engine)
    near = without_self(found, settings.k)
    pairs = paraphrase_pairs(near, settings)
    means, lines = near.mean.round(PLACES), store.first_lines() + 1
    table = PairTable(pairs.scores, means[pairs.src], means[pairs.tgt], lines[pairs.src], lines[pairs.tgt])
    origin = {
        "tool": "dualmoco paraphrases",
        "version": VERSION,
        "pairs": len(pairs),
        "model": model.identity.name,
        "model_sha256": store.key.model_sha256,
        "backend": store.key.backend,
        "lang": text.lang,
        "text_sha256": store.key.text_sha256,
        "margin": settings.margin.value,
        "k": settings.k,
        "threshold": settings.threshold,
        "approximate_recall": recall,
    }
    sides = sentences_at(text.path, table.src_lines), sentences_at(text.path, table.tgt_lines)
    write_pairs(out, table, sides, (text.lang, text.lang), origin)
    return MiningResult(out, None, len(pairs), len(pairs), settings.threshold)


def without_self(near: Neighbors, k: int) -> Neighbors:
    """The k nearest other rows, of k + 1 nearest rows that include, but for ties, the row itself."""
    own = np.arange(len(near.ids))[:, None]
    others = np.argsort(near.ids == own, axis=1, kind="stable")[:, : min(k, near.ids.shape[1] - 1)]  # itself last
    return Neighbors(np.take_along_axis(near.ids, others, axis=1), np.take_along_axis(near.scores, others, axis=1))


def paraphrase_pairs(near: Neighbors, settings: MineSettings) -> ScoredPairs:
    """Every neighbour of every row as a pair, once, by descending score."""
    src = np.repeat(np.arange(len(near.ids)), near.ids.shape[1])
    tgt, cosines = near.ids.ravel(), near.scores.ravel()
    scores = margin_scores(cosines, near.mean[src], near.mean[tgt], settings.margin)
    low, high = np.minimum(src, tgt), np.maximum(src, tgt)
    _, first = np.unique(low * len(near.ids) + high, return_index=True)
    low, high, scores = low[first], high[first], scores[first]
    order = np.lexsort((high, low, -scores))
    pairs = ScoredPairs(low[order], high[order], scores[order])
    return pairs if settings.threshold is None else pairs.above(settings.threshold)
