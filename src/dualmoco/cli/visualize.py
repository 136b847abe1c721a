"""`dualmoco visualize`."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_bitext,
    add_command,
    add_json,
    add_model,
    add_pooling,
    make_source,
    open_named_model,
    print_json,
)
from dualmoco.cli.parser import hint

if TYPE_CHECKING:
    from dualmoco.data.pairs import SentencePair
    from dualmoco.data.readers.base import Source

SHOWN_PROBLEMS = 10
logger = logging.getLogger(__name__)


def add(commands: Any) -> None:
    """Declares the command."""
    visualize = add_command(
        commands,
        "visualize",
        "draw how close sentences are to their translations",
        "examples:\n"
        "  dualmoco visualize examples/pairs.tsv --out parallel.png\n"
        "  dualmoco visualize dev.en dev.zh --model runs/mine --count 25 --out parallel.html",
    )
    given = add_bitext(visualize)
    given.add_argument(
        "--count", type=int, default=15, metavar="N", help="pairs to draw; up to 40 show their sentences"
    )
    given.add_argument("--first", action="store_true", help="draw the first pairs instead of random ones")
    given.add_argument("--seed", type=int, default=0, help="random seed of the chosen pairs")
    output = visualize.add_argument_group("output")
    output.add_argument("--out", default="parallel.png", metavar="FILE", help="draw to FILE: .png, .svg or .html")
    add_json(output, "pairs and their cosines")
    add_pooling(add_model(visualize))
    visualize.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Chooses, encodes and draws pairs."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError, require

    for module in ("matplotlib", "sklearn"):
        require(module, "eval", "A figure")

    from dualmoco.evaluation.canvas import check_figure_path, save_figure
    from dualmoco.evaluation.figures import draw_parallel

    out = Path(parsed.out)
    check_figure_path(out)
    if parsed.count < 2:
        raise ConfigError(f"--count {parsed.count}; expected at least 2 pairs")
    if parsed.tgt_file and not Path(parsed.bitext).is_file():  # version 0.1: visualize MODEL BITEXT
        hint("MODEL before BITEXT is now --model MODEL")
        parsed.model, parsed.bitext, parsed.tgt_file = parsed.bitext, parsed.tgt_file, None
    source = make_source(parsed, parsed.bitext, parsed.tgt_file)
    pairs = choose_pairs(source, parsed.format, parsed.count, None if parsed.first else parsed.seed)

    import numpy as np

    model = open_named_model(parsed)
    src_texts, tgt_texts = ([pair[side] for pair in pairs] for side in (0, 1))
    for lang in (parsed.src, parsed.tgt):
        model.backend(lang)
    src, tgt = (  # (n, D) each
        model.encode(texts, lang=lang) for texts, lang in ((src_texts, parsed.src), (tgt_texts, parsed.tgt))
    )
    figure = draw_parallel(src_texts, tgt_texts, src, tgt, languages=(parsed.src, parsed.tgt), seed=parsed.seed)
    save_figure(figure, out)
    cosines = np.einsum("nd,nd->n", src, tgt, dtype=np.float64).round(6).tolist()
    if parsed.json:
        rows = [[*pair, cosine] for pair, cosine in zip(pairs, cosines, strict=True)]
        print_json({"out": str(out), "pairs": rows, "mean_cosine": float(np.mean(cosines))})
    else:
        sys.stdout.write(f"{len(pairs)} pairs, mean cosine {np.mean(cosines):.3f}\nfigure in {out}\n")
    return 0


def choose_pairs(source: Source, form: str, count: int, seed: int | None) -> list[SentencePair]:
    """Chooses pairs that have text on both sides.

    Args:
        source: A file, or a folder of Parquet files such as `prepare` makes.
        form: Name of a reader, or `auto`.
        count: Number of pairs; fewer if the file has fewer.
        seed: Random seed; None for the first pairs.

    Returns:
        Source and target sentences, in the order of the file.

    Raises:
        DataError: The file cannot be read, or has fewer than two pairs.
    """
    from heapq import nsmallest
    from itertools import islice

    import numpy as np

    from dualmoco.core.errors import DataError
    from dualmoco.data.readers.formats import read_pairs

    problems: list[tuple[int, str]] = []
    rows = read_pairs(source, form, report=lambda line, what: problems.append((line, what)))
    filled = ((row.src, row.tgt) for row in rows if row.src.strip() and row.tgt.strip())
    chosen: list[tuple[float, int, SentencePair]]  # a random number, place, pair
    if seed is None:
        chosen = [(0.0, place, pair) for place, pair in enumerate(islice(filled, count))]
    else:
        random = np.random.default_rng(seed)
        chosen = nsmallest(count, ((random.random(), place, pair) for place, pair in enumerate(filled)))
    for line, what in problems[:SHOWN_PROBLEMS]:
        logger.warning("left out %s:%d: %s", source.path, line, what)
    if len(chosen) < 2:
        raise DataError(f"{source.path}: pairs with text on both sides: {len(chosen)}; expected at least 2")
    return [pair for _, _, pair in sorted(chosen, key=lambda item: item[1])]
