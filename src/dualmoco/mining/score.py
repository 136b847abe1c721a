"""Scores the pairs of a bitext by their margin, to filter it: `dualmoco score`.

Writes the pairs above a threshold in their order, with the numbers of their lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.storage import write_text
from dualmoco.core.vectors import Floats, Ids
from dualmoco.data.readers.base import Row
from dualmoco.data.readers.formats import check_format
from dualmoco.embeddings.encode import resolve_text
from dualmoco.embeddings.store import Store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.io import Bitext, PairTable, Problems, read_bitext, sentences_at, write_pairs
from dualmoco.mining.knn import encode_sides, find_neighbors
from dualmoco.mining.margins import margin_scores
from dualmoco.mining.mine import MiningOptions, MiningResult, mining_job, model_threshold, parse_settings
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.model import Model
from dualmoco.search.exact import COSINE_PLACES

SCORED_AT_ONCE = 8192
SCORE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def score(
    pairs: Bitext,
    *,
    model: Model | str | Path = DEFAULT_MODEL,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    out: str | Path | None = None,
    tgt_file: str | Path | None = None,
    format: str = "auto",
    columns: tuple[str, str] | None = None,
    on_error: str = "stop",
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Scores the pairs of a bitext against the other sentences of its two sides, to filter it.

    Args:
        pairs: The bitext.
        model: Model that encodes both sides, or its name.
        src_lang: Language of the sources; recognised if None, and en in the names of columns and TMX segments.
        tgt_lang: Language of the targets; recognised if None, and zh in the names of columns and TMX segments.
        out: File to write the accepted pairs to, .tsv, .parquet or .tmx; None to keep them in memory.
        tgt_file: File of the translations, if `pairs` is a file of source lines only.
        format: Format of the file, if its extension does not tell.
        columns: Source and target column, by name or by number from 0, if the file has columns.
        on_error: What to do with a line that cannot be read or has an empty side: stop, or skip.
        **options: See `MiningOptions`.

    Returns:
        The accepted pairs in their order, and quantiles of all scores.

    Raises:
        ConfigError: An option value is invalid.
        DataError: The bitext cannot be read or has no pairs, or a pair has an empty side.
        ModelError: The model cannot be opened, or lacks a language.
    """
    if on_error not in ("stop", "skip"):
        raise ConfigError(f"on_error {on_error}; expected stop or skip")
    check_format(format)
    settings, given_langs = parse_settings(options), (src_lang or "", tgt_lang or "")
    with mining_job(out, model, options, (pairs, tgt_file)) as job:
        for lang in filter(None, given_langs):
            job.model.language(lang)
        problems = Problems(pairs, skip=on_error == "skip")
        rows = read_bitext(pairs, (src_lang or "en", tgt_lang or "zh"), tgt_file, format, problems, columns)
        sides, lines = _write_sides(rows, given_langs, job.work, problems)
        texts = [resolve_text(side, job.model, name) for side, name in zip(sides, ("sources", "targets"), strict=True)]
        langs = texts[0].lang, texts[1].lang
        own = model_threshold(job.model, langs, settings)
        threshold = own.threshold if own else settings.threshold
        stores = encode_sides(texts, job.model, settings, job.work, job.engine)
        src_near, tgt_near, recall = find_neighbors(stores, settings, job.work, job.engine)
        src, tgt = stores[0].lines, stores[1].lines  # (pairs,) rows
        src_means, tgt_means = src_near.mean[src], tgt_near.mean[tgt]  # (pairs,)
        scores = margin_scores(_cosines(stores, src, tgt), src_means, tgt_means, settings.margin)
        kept = np.arange(len(scores)) if threshold is None else np.flatnonzero(scores >= threshold)
        table = PairTable(
            scores[kept],
            src_means[kept].round(COSINE_PLACES),
            tgt_means[kept].round(COSINE_PLACES),
            lines[kept],
            lines[kept],
        )
        origin = {
            "tool": "dualmoco score",
            "version": VERSION,
            "pairs": len(kept),
            "scored": len(scores),
            "model": job.model.identity.name,
            "model_sha256": stores[0].key.model_sha256,
            "backend": stores[0].key.backend,
            "src_lang": langs[0],
            "tgt_lang": langs[1],
            "src_text_sha256": stores[0].key.text_sha256,
            "tgt_text_sha256": stores[1].key.text_sha256,
            "margin": settings.margin.value,
            "k": settings.k,
            "threshold": threshold,
            "approximate_recall": recall,
        }
        write_pairs(job.file, table, [sentences_at(text.path, kept + 1) for text in texts], langs, origin)
        quantiles = tuple(np.quantile(scores, SCORE_QUANTILES).round(4).tolist())
        found = MiningResult(job.file, None, len(kept), len(scores), threshold, recall=recall, quantiles=quantiles)
        return job.result(replace(found, unreadable=problems.count, model_calibration=own))


def _write_sides(
    rows: Iterable[Row], langs: tuple[str, str], work: Path, problems: Problems
) -> tuple[list[TextFile], Ids]:
    """The two sides as files with one sentence per line, and the line of each pair in the bitext, shape (pairs,)."""
    src, tgt, lines = [], [], []
    for row in rows:
        pair = [" ".join(text.split()) for text in (row.src, row.tgt)]
        if not all(pair):
            problems.report(row.line, "one side is empty; expected two sentences: clean with dualmoco prepare")
            continue
        src.append(pair[0])
        tgt.append(pair[1])
        lines.append(row.line)
    if not lines:
        raise DataError("no pairs to score; expected at least one")
    texts = []
    for name, side, lang in zip(("src.txt", "tgt.txt"), (src, tgt), langs, strict=True):
        write_text(work / name, "".join(f"{line}\n" for line in side))
        texts.append(TextFile(work / name, lang))
    return texts, np.array(lines, dtype=np.int64)


def _cosines(stores: list[Store], src: Ids, tgt: Ids) -> Floats:
    """Cosines (pairs,) in double precision, rounded."""
    vectors = stores[0].vectors(), stores[1].vectors()
    cosines = np.empty(len(src), dtype=np.float64)
    for start in range(0, len(src), SCORED_AT_ONCE):
        part = slice(start, start + SCORED_AT_ONCE)
        cosines[part] = np.einsum("nd,nd->n", vectors[0][src[part]], vectors[1][tgt[part]], dtype=np.float64)
    return cosines.round(COSINE_PLACES)
