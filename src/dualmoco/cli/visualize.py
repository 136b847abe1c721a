"""`dualmoco visualize`."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import MODELS, add_verb, print_json
from dualmoco.models.embedded import DEFAULT_MODEL

if TYPE_CHECKING:
    from dualmoco.data.pairs import SentencePair
    from dualmoco.data.readers.base import Source

SHOWN_PROBLEMS = 10
logger = logging.getLogger(__name__)


def add(verbs: Any) -> None:
    """Describes the verb."""
    visualize = add_verb(
        verbs,
        "visualize",
        "draw how near sentences are to their translations",
        "examples:\n"
        "  dualmoco visualize pairs.tsv --out parallel.png\n"
        "  dualmoco visualize runs/tiny dev.en --tgt-file dev.zh --count 25 --out parallel.html",
    )
    visualize.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=MODELS)
    visualize.add_argument("pairs", metavar="PAIRS", help="bitext in any format of prepare, or its result")
    visualize.add_argument("--tgt-file", metavar="FILE", help="the translations, if PAIRS holds only the source lines")
    visualize.add_argument("--src", default="en", metavar="LANG", help="source language")
    visualize.add_argument("--tgt", default="zh", metavar="LANG", help="target language")
    visualize.add_argument("--format", default="auto", metavar="NAME", help="of PAIRS, if its extension does not say")
    visualize.add_argument("--count", type=int, default=15, help="pairs to draw; up to 40 have their sentences written")
    visualize.add_argument("--first", action="store_true", help="draw the first pairs, not random ones")
    visualize.add_argument("--seed", type=int, default=0, help="of the random pairs")
    visualize.add_argument("--pooling", default="auto", help="how token vectors become one, if MODEL does not say")
    visualize.add_argument("--out", default="parallel.png", metavar="FILE", help="a .png, .svg or .html file")
    visualize.add_argument("--json", action="store_true", help="print the pairs and their cosines as JSON")
    visualize.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Chooses pairs, encodes and draws them."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError, require

    for module in ("matplotlib", "sklearn"):
        require(module, "eval", "A figure")

    from dualmoco.data.readers.base import Source
    from dualmoco.data.readers.formats import check_format
    from dualmoco.evaluation.canvas import check_figure_path, save_figure
    from dualmoco.evaluation.figures import draw_parallel

    out = Path(parsed.out)
    check_figure_path(out)
    check_format(parsed.format)
    if parsed.count < 2:
        raise ConfigError(f"--count {parsed.count}; expected at least 2 pairs")
    tgt_path = Path(parsed.tgt_file) if parsed.tgt_file else None
    source = Source(Path(parsed.pairs), parsed.src, parsed.tgt, tgt_path=tgt_path)
    pairs = choose_pairs(source, parsed.format, parsed.count, None if parsed.first else parsed.seed)

    import numpy as np

    from dualmoco.models.load import open_model

    model = open_model(parsed.model, pooling=parsed.pooling)
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
    """Some pairs of a file that have text on both sides.

    Args:
        source: The file, or a folder of Parquet files such as `prepare` makes.
        form: Name of a reader, or `auto`.
        count: How many pairs, fewer if the file has fewer.
        seed: Of the random choice; None for the first ones.

    Returns:
        Source and target sentences, in the order of the file.

    Raises:
        DataError: A file that is not there or cannot be read, or fewer than two pairs in it.
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
