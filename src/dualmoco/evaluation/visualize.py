"""Draws how close sentences are to their translations, the paper's t-SNE figure: `dualmoco visualize`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from pathlib import Path

import numpy as np

from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.progress import showing
from dualmoco.data.pairs import SentencePair
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import check_format, read_pairs
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, Model

LOGGED_PROBLEMS = 10
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Visualization:
    """The pairs of a figure and their cosines."""

    out: Path
    pairs: list[SentencePair]
    cosines: list[float]


def visualize(
    pairs: str | Path,
    out: str | Path = "parallel.png",
    *,
    model: Model | str | Path = DEFAULT_MODEL,
    src_lang: str = "en",
    tgt_lang: str = "zh",
    tgt_file: str | Path | None = None,
    format: str = "auto",
    columns: tuple[str, str] | None = None,
    count: int = 15,
    first: bool = False,
    seed: int = 0,
    pooling: str = AUTO,
    backend: str = AUTO,
    progress: bool = True,
) -> Visualization:
    """Draws sentences and their translations in the plane.

    Args:
        pairs: Bitext in any format of `prepare`, or a folder written by it.
        out: Figure to write: .png, .svg or .html.
        model: Model that encodes the sentences, or its name.
        src_lang: Source language.
        tgt_lang: Target language.
        tgt_file: Target side, if `pairs` is a line-aligned source file.
        format: Format of `pairs`, if its extension does not say.
        columns: Source and target column, by name or number.
        count: Pairs to draw; up to 40 show their sentences.
        first: Draw the first pairs instead of random ones.
        seed: Random seed of the choice and of the layout.
        pooling: Pooling of a model given by name, if it does not say.
        backend: Back-end of a model given by name.
        progress: Show progress bars.

    Returns:
        The pairs that were drawn, and the cosine of each.

    Raises:
        ConfigError: An option value is invalid, or a package that draws is not installed.
        DataError: The bitext cannot be read, or has fewer than two pairs.
        ModelError: The model cannot be opened, or lacks a language.
    """
    for module in ("matplotlib", "sklearn"):
        require(module, "eval", "A figure")
    from dualmoco.evaluation.canvas import check_figure_path, save_figure
    from dualmoco.evaluation.figures import draw_parallel

    check_figure_path(Path(out))
    check_format(format)
    if count < 2:
        raise ConfigError(f"count {count}; expected at least 2 pairs")
    source = Source(Path(pairs), src_lang, tgt_lang, columns, Path(tgt_file) if tgt_file else None)
    chosen = choose_pairs(source, format, count, None if first else seed)
    opened = model if isinstance(model, Model) else open_model(model, backend, pooling=pooling)
    languages = src_lang, tgt_lang
    for lang in languages:
        opened.backend(lang)
    texts = [pair[0] for pair in chosen], [pair[1] for pair in chosen]
    with showing(progress):
        src, tgt = (opened.encode(side, lang=lang) for side, lang in zip(texts, languages, strict=True))  # (n, D) each
    save_figure(draw_parallel(*texts, src, tgt, languages=languages, seed=seed), Path(out))
    cosines = np.einsum("nd,nd->n", src, tgt, dtype=np.float64).round(6).tolist()
    return Visualization(Path(out), chosen, cosines)


def choose_pairs(source: Source, form: str, count: int, seed: int | None) -> list[SentencePair]:
    """Chooses pairs with text on both sides, in the order of the file; the first ones if `seed` is None."""
    problems: list[tuple[int, str]] = []
    rows = read_pairs(source, form, report=lambda line, what: problems.append((line, what)))
    filled = ((row.src, row.tgt) for row in rows if row.src.strip() and row.tgt.strip())
    chosen: list[tuple[float, int, SentencePair]]  # a random number, place, pair
    if seed is None:
        chosen = [(0.0, place, pair) for place, pair in enumerate(islice(filled, count))]
    else:
        random = np.random.default_rng(seed)
        chosen = nsmallest(count, ((random.random(), place, pair) for place, pair in enumerate(filled)))
    for line, what in problems[:LOGGED_PROBLEMS]:
        logger.warning("left out %s:%d: %s", source.path, line, what)
    if len(chosen) < 2:
        raise DataError(f"{source.path}: pairs with text on both sides: {len(chosen)}; expected at least 2")
    return [pair for _, _, pair in sorted(chosen, key=lambda item: item[1])]
