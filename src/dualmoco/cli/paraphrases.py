"""`dualmoco paraphrases`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_mining, mine_settings, open_engine, open_named_model, working_in
from dualmoco.cli.verb import add_verb, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    paraphrases = add_verb(
        verbs, "paraphrases", "find the sentences of one file that say the same",
        "example:\n  dualmoco paraphrases questions.txt --lang en --model runs/static-cpu --out same.tsv",
    )  # fmt: skip
    paraphrases.add_argument("file", metavar="FILE", help="text, one sentence a line")
    paraphrases.add_argument("--lang", required=True, help="its language")
    paraphrases.add_argument("--out", required=True, metavar="FILE", help="pairs as .tsv, .parquet or .tmx")
    add_mining(paraphrases, "FILE.work")
    paraphrases.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Mines one text against itself, and tells what was found."""
    from pathlib import Path

    from dualmoco.embeddings.lines import TextFile
    from dualmoco.mining.output import check_pairs_path
    from dualmoco.mining.paraphrases import mine_paraphrases

    out = Path(parsed.out)
    check_pairs_path(out)
    settings, text = mine_settings(parsed), TextFile(Path(parsed.file), parsed.lang)
    model, engine = open_named_model(parsed), open_engine(parsed)
    with working_in(parsed, out) as work:
        pairs = mine_paraphrases(text, model, settings, out, work, engine)
    if parsed.json:
        print_json({"out": parsed.out, "pairs": len(pairs)})
    else:
        sys.stdout.write(f"{len(pairs):,} pairs: {parsed.out}\n")
    return 0
