"""Margin scores of pairs that exist already, to filter them: `dualmoco score`.

Takes the rows of a bitext with the numbers of their lines, writes those above a threshold with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.storage import write_text
from dualmoco.core.vectors import Floats, Ids
from dualmoco.core.version import VERSION
from dualmoco.data.readers.base import Report, Row
from dualmoco.embeddings.encode import encode_file
from dualmoco.embeddings.engine import Engine, LocalEngine
from dualmoco.embeddings.store import Store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.io import PairTable, sentences_at, write_pairs
from dualmoco.mining.knn import MineSettings, find_neighbors
from dualmoco.mining.margins import margin_scores
from dualmoco.mining.results import MiningResult
from dualmoco.models.model import Model
from dualmoco.search.exact import PLACES

SCORED_AT_ONCE = 8192
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def score_pairs(
    rows: Iterable[Row],
    langs: tuple[str, str],
    model: Model,
    settings: MineSettings,
    out: Path,
    work: Path,
    engine: Engine | None = None,
    *,
    report: Report | None = None,
) -> MiningResult:
    """Scores every pair of a bitext against the other sentences of its two sides, and writes those above a threshold.

    Args:
        rows: Source and target sentences, and the lines where they stand.
        langs: Their languages.
        model: What encodes both.
        settings: Margin, k; `threshold` is the lowest score to keep.
        out: The file of pairs, in the order they came, with the lines where they stand.
        work: Folder for vectors and neighbours.
        engine: Where it runs; this process if None.
        report: Is called with the line of a pair that has an empty side, and what is wrong, and the pair is left out;
            such a pair is an error if None.

    Returns:
        The accepted pairs in their order, and quantiles of all scores.

    Raises:
        DataError: No pair, or one with an empty side.
    """
    engine = engine or LocalEngine()
    texts, lines = _write_sides(rows, work, report or _refuse)
    stores = [
        encode_file(TextFile(text, lang), work / name, model, settings.form, engine)
        for name, text, lang in zip(("src", "tgt"), texts, langs, strict=True)
    ]
    forward, backward, recall = find_neighbors(stores, settings, work, engine)
    src, tgt = stores[0].lines, stores[1].lines  # (pairs,) rows
    cosines = _cosines(stores, src, tgt)
    means = forward.mean[src], backward.mean[tgt]  # (pairs,) each
    scores = margin_scores(cosines, *means, settings.margin)
    kept = np.flatnonzero(scores >= settings.threshold) if settings.threshold is not None else np.arange(len(scores))
    table = PairTable(
        scores[kept], means[0][kept].round(PLACES), means[1][kept].round(PLACES), lines[kept], lines[kept]
    )
    origin = {
        "tool": "dualmoco score",
        "version": VERSION,
        "pairs": len(kept),
        "scored": len(scores),
        "model": model.identity.name,
        "model_sha256": stores[0].key.model_sha256,
        "backend": stores[0].key.backend,
        "src_lang": langs[0],
        "tgt_lang": langs[1],
        "src_text_sha256": stores[0].key.text_sha256,
        "tgt_text_sha256": stores[1].key.text_sha256,
        "margin": settings.margin.value,
        "k": settings.k,
        "threshold": settings.threshold,
        "approximate_recall": recall,
    }
    write_pairs(out, table, [sentences_at(text, kept + 1) for text in texts], langs, origin)
    quantiles = tuple(np.quantile(scores, QUANTILES).round(4).tolist())
    return MiningResult(out, None, len(kept), len(scores), settings.threshold, quantiles=quantiles)


def _write_sides(rows: Iterable[Row], work: Path, report: Report) -> tuple[list[Path], Ids]:
    """The two sides as files of one sentence a line, and where each pair stands in the bitext, shape (pairs,)."""
    src, tgt, lines = [], [], []
    for row in rows:
        pair = [" ".join(text.split()) for text in (row.src, row.tgt)]
        if not all(pair):
            report(row.line, "one side is empty; expected two sentences: clean with dualmoco prepare")
            continue
        src.append(pair[0])
        tgt.append(pair[1])
        lines.append(row.line)
    if not lines:
        raise DataError("no pairs to score; expected at least one")
    paths = [work / "src.txt", work / "tgt.txt"]
    for path, side in zip(paths, (src, tgt), strict=True):
        write_text(path, "".join(f"{line}\n" for line in side))
    return paths, np.array(lines, dtype=np.int64)


def _refuse(line: int, what: str) -> None:
    raise DataError(f"line {line}: {what}")


def _cosines(stores: list[Store], src: Ids, tgt: Ids) -> Floats:
    """Cosines (pairs,) in double precision, rounded."""
    vectors = stores[0].vectors(), stores[1].vectors()
    cosines = np.empty(len(src), dtype=np.float64)
    for start in range(0, len(src), SCORED_AT_ONCE):
        part = slice(start, start + SCORED_AT_ONCE)
        cosines[part] = np.einsum("nd,nd->n", vectors[0][src[part]], vectors[1][tgt[part]], dtype=np.float64)
    return cosines.round(PLACES)
