"""`dualmoco score`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_mining, mine_settings, open_engine, open_named_model, working_in
from dualmoco.cli.verb import add_verb, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    score = add_verb(
        verbs, "score", "margin scores of an existing bitext, to filter it",
        "examples:\n"
        "  dualmoco score crawled.tmx --model runs/static-cpu --out scored.tsv\n"
        "  dualmoco score crawled.tsv.xz --model runs/static-cpu --threshold 0.05 --out clean.parquet",
    )  # fmt: skip
    score.add_argument("bitext", metavar="BITEXT", help="pairs in any format of prepare, or its result")
    score.add_argument("--tgt-file", metavar="FILE", help="the translations, if BITEXT holds only the source lines")
    score.add_argument("--src", default="en", metavar="LANG", help="source language")
    score.add_argument("--tgt", default="zh", metavar="LANG", help="target language")
    score.add_argument("--format", default="auto", metavar="NAME", help="of BITEXT, if its extension does not tell")
    score.add_argument("--out", required=True, metavar="FILE", help="pairs as .tsv, .parquet or .tmx, in their order")
    add_mining(score, "FILE.work")
    score.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Scores, and tells how the scores are spread."""
    from pathlib import Path

    import numpy as np

    from dualmoco.data.readers.formats import check_format
    from dualmoco.data.readers.raw import Row
    from dualmoco.data.readers.sentences import read_sentence_pairs
    from dualmoco.data.readers.source import Source
    from dualmoco.mining.output import check_pairs_path
    from dualmoco.mining.score import score_pairs

    out = Path(parsed.out)
    check_pairs_path(out)
    check_format(parsed.format)
    settings = mine_settings(parsed)
    tgt_path = Path(parsed.tgt_file) if parsed.tgt_file else None
    source = Source(Path(parsed.bitext), parsed.src, parsed.tgt, tgt_path=tgt_path)
    rows = (Row(*pair, line) for line, pair in enumerate(read_sentence_pairs(source, parsed.format), start=1))
    model, engine = open_named_model(parsed), open_engine(parsed)
    with working_in(parsed, out) as work:
        scored = score_pairs(rows, (parsed.src, parsed.tgt), model, settings, out, work, engine)
    quantiles = np.quantile(scored.scores, [0.05, 0.25, 0.5, 0.75, 0.95]).round(4).tolist()
    if parsed.json:
        print_json({"out": parsed.out, "pairs": scored.pairs, "kept": scored.kept, "quantiles": quantiles})
    else:
        sys.stdout.write(
            f"{scored.pairs:,} pairs scored; 5, 25, 50, 75, 95 %: {', '.join(f'{value:.3f}' for value in quantiles)}\n"
            f"{scored.kept:,} pairs kept: {parsed.out}\n"
        )
    return 0
