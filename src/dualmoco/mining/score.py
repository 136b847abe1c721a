"""Scores the pairs of a bitext, to filter it: `dualmoco score`.

The score of a pair is the cosine of its sentences, so it does not depend on the other pairs. Margins, which compare the
cosine with those of other sentences of the bitext, are optional. The pairs above a threshold are written in order, with
their line numbers and their other columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.config_loader import parse_choice
from dualmoco.core.errors import DataError
from dualmoco.core.storage import write_text
from dualmoco.core.vectors import Floats, Ids
from dualmoco.data.config import OnError
from dualmoco.data.readers.base import Row, Source
from dualmoco.data.readers.extra_columns import read_extra_columns
from dualmoco.data.readers.formats import check_format
from dualmoco.embeddings.store import Store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.io import Bitext, PairTable, Problems, read_bitext, sentences_at, write_pairs
from dualmoco.mining.knn import MiningSettings, encode_sides, find_neighbors
from dualmoco.mining.margins import Margin, margin_scores
from dualmoco.mining.mine import (
    MiningOptions,
    MiningResult,
    mining_job,
    parse_settings,
    usual_calibration,
)
from dualmoco.mining.score_report import kept_at, report_page, sampled_pairs
from dualmoco.models.model import Model
from dualmoco.search.exact import COSINE_PLACES
from dualmoco.text.files import read_lines
from dualmoco.text.languages import SCRIPTS, base_language, main_script

SCORED_AT_ONCE = 8192
SCORE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
UNTRANSLATED_SCORE = -1.0
SCRIPT_CHARACTERS = 20  # letters of a side; shorter texts may be names, which keep their script
ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://|www\.)\S+", re.IGNORECASE)
CHECKED_PAIRS = 100


def score(
    pairs: Bitext,
    *,
    model: Model | str | Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    out: str | Path | None = None,
    tgt_file: str | Path | None = None,
    format: str = "auto",
    columns: tuple[str, str] | None = None,
    on_error: str = "stop",
    report: str | Path | None = None,
    **options: Unpack[MiningOptions],
) -> MiningResult:
    """Scores the pairs of a bitext by the cosine of their sentences, to filter it.

    Untranslated pairs score -1: both sides are the same text, or both are in the script of one language. With `margin`
    distance or ratio, a pair is compared with the other sentences of the bitext, so its score depends on them, and no
    threshold is applied unless it is given.

    Args:
        pairs: The bitext.
        model: Model that encodes both sides, or its name; chosen by the languages if None.
        src_lang: Language of the sources; recognised if None, and en in the names of columns and TMX segments.
        tgt_lang: Language of the targets; recognised if None, and zh in the names of columns and TMX segments.
        out: File to write the accepted pairs to, .tsv, .csv, .jsonl or .tmx, also followed by .gz, or .parquet; None to
            keep them in memory.
        tgt_file: File of the translations, if `pairs` is a file of source lines only.
        format: Format of the file (default: by extension).
        columns: Source and target column, by name or by number from 0, if the file has columns.
        on_error: What to do with a line that cannot be read or has an empty side: stop, or skip.
        report: File (.html) for a page with a histogram of all scores and samples of the pairs.
        **options: See `MiningOptions`.

    Returns:
        The accepted pairs in their order, and quantiles of all scores.

    Raises:
        ConfigError: An option value is invalid.
        DataError: The bitext cannot be read or has no pairs, or a pair has an empty side.
        ModelError: The model cannot be opened, or lacks a language.
    """
    parse_choice(OnError, on_error, "on_error")
    check_format(format)
    settings = parse_settings({**options, "margin": options.get("margin", Margin.absolute)})
    given_langs = src_lang or "", tgt_lang or ""
    with mining_job(out, model, options, (pairs, tgt_file), report) as job:
        job.check_languages([lang for lang in given_langs if lang])
        problems, named = Problems(pairs, skip=on_error == "skip"), (src_lang or "en", tgt_lang or "zh")
        rows = read_bitext(pairs, named, tgt_file, format, problems, columns)
        sides, lines = _write_sides(rows, given_langs, job.work, problems)
        opened, texts = job.resolve(sides, ("sources", "targets"))
        langs = texts[0].lang, texts[1].lang
        by_cosine = settings.margin == Margin.absolute
        own = usual_calibration(opened, langs, MiningSettings(threshold=settings.threshold), options)
        own = own if by_cosine else None
        threshold = own.cosine if own else settings.threshold
        stores = encode_sides(texts, opened, settings, job.work, job.engine)
        src, tgt = stores[0].lines, stores[1].lines  # (pairs,) rows
        cosines, recall = _cosines(stores, src, tgt), None
        src_means = tgt_means = np.zeros(len(src))
        if not by_cosine:
            src_near, tgt_near, recall = find_neighbors(stores, settings, job.work, job.engine)
            src_means, tgt_means = src_near.mean[src], tgt_near.mean[tgt]  # (pairs,)
        scores = margin_scores(cosines, src_means, tgt_means, settings.margin)
        untranslated = _untranslated([text.path for text in texts], langs)
        scores[untranslated] = UNTRANSLATED_SCORE
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
            "untranslated": int(untranslated.sum()),
            "model": opened.identity.name,
            "model_sha256": stores[0].key.model_sha256,
            "backend": stores[0].key.backend,
            "dimension": stores[0].dimension,
            "src_lang": langs[0],
            "tgt_lang": langs[1],
            "src_text_sha256": stores[0].key.text_sha256,
            "tgt_text_sha256": stores[1].key.text_sha256,
            "margin": settings.margin.value,
            "k": None if by_cosine else settings.k,
            "threshold": threshold,
            "approximate_recall": recall,
        }
        extra: dict[str, list[str]] = {}
        if isinstance(pairs, str | Path) and not tgt_file:
            extra = read_extra_columns(Source(Path(pairs), *named, columns), format, lines[kept].tolist())
        accepted = [sentences_at(text.path, kept + 1) for text in texts]
        pages = {}
        if report:
            samples = sampled_pairs(scores, lambda rows: [sentences_at(text.path, rows + 1) for text in texts])
            pages[Path(report)] = report_page(scores, threshold, settings.margin, samples, origin)
        write_pairs(job.file, table, accepted, langs, origin, extra, pages)
        quantiles = tuple(np.quantile(scores, SCORE_QUANTILES).round(4).tolist())
        found = MiningResult(job.file, None, len(kept), len(scores), threshold, recall=recall, quantiles=quantiles)
        found = replace(found, kept_at=kept_at(scores, settings.margin), untranslated=int(untranslated.sum()))
        return job.result(replace(found, unreadable=problems.count, model_calibration=own))


def _write_sides(
    rows: Iterable[Row], langs: tuple[str, str], work: Path, problems: Problems
) -> tuple[list[TextFile], Ids]:
    """The two sides as files with one sentence per line, and the line of each pair in the bitext, shape (pairs,)."""
    src, tgt, lines = list[str](), list[str](), list[int]()
    for row in rows:
        if len(lines) == CHECKED_PAIRS:
            _refuse_addresses(src, tgt)
        pair = [" ".join(text.split()) for text in (row.src, row.tgt)]
        if not all(pair):
            problems.report(row.line, "one side is empty; expected two sentences: clean with dualmoco prepare")
            continue
        src.append(pair[0])
        tgt.append(pair[1])
        lines.append(row.line)
    if not lines:
        raise DataError("no pairs to score; expected at least one")
    _refuse_addresses(src[:CHECKED_PAIRS], tgt[:CHECKED_PAIRS])
    texts = []
    for name, side, lang in zip(("src.txt", "tgt.txt"), (src, tgt), langs, strict=True):
        write_text(work / name, "".join(f"{line}\n" for line in side))
        texts.append(TextFile(work / name, lang))
    return texts, np.array(lines, dtype=np.int64)


def _refuse_addresses(src: Sequence[str], tgt: Sequence[str]) -> None:
    """DataError if most cells of a side are addresses of web pages."""
    for name, side in (("source", src), ("target", tgt)):
        count = sum(bool(ADDRESS.fullmatch(text)) for text in side)
        if 2 * count > len(side):
            raise DataError(
                f"{side[0]!r:.60}: the {name} column contains web addresses; expected sentences: name the two columns "
                "with --columns, such as --columns 2,3 (numbers from 0)"
            )


def _untranslated(files: Sequence[Path], langs: tuple[str, str]) -> np.ndarray:
    """Which pairs (pairs,) are not translated: both sides are the same text, or in the script of one language."""
    scripts = [SCRIPTS.get(base_language(lang)) for lang in langs]
    differ = scripts[0] is not None and scripts[1] is not None and not scripts[0] & scripts[1]
    found = []
    for src, tgt in zip(read_lines(files[0]), read_lines(files[1]), strict=True):
        is_copy = _folded(src) == _folded(tgt)
        if differ and not is_copy:
            one, other = main_script(src), main_script(tgt)
            is_copy = bool(one and one == other and min(len(src), len(tgt)) >= SCRIPT_CHARACTERS)
        found.append(is_copy)
    return np.array(found, dtype=bool)


def _folded(text: str) -> str:
    """The letters and digits of a text, or all of it if it has none."""
    return "".join(filter(str.isalnum, text.casefold())) or text


def _cosines(stores: list[Store], src: Ids, tgt: Ids) -> Floats:
    """Cosines (pairs,) in double precision, rounded."""
    vectors = stores[0].vectors(), stores[1].vectors()
    cosines = np.empty(len(src), dtype=np.float64)
    for start in range(0, len(src), SCORED_AT_ONCE):
        part = slice(start, start + SCORED_AT_ONCE)
        cosines[part] = np.einsum("nd,nd->n", vectors[0][src[part]], vectors[1][tgt[part]], dtype=np.float64)
    return cosines.round(COSINE_PLACES)
