"""`dualmoco paraphrases`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import add_mining, add_verb, counted, mining_options, print_json


def add(verbs: Any) -> None:
    """Describes the verb."""
    paraphrases = add_verb(
        verbs,
        "paraphrases",
        "find the sentences of one file that say the same",
        "example:\n  dualmoco paraphrases questions.txt --lang en --model runs/static-cpu --out same.tsv",
    )
    paraphrases.add_argument("file", metavar="FILE", help="text, one sentence a line")
    paraphrases.add_argument("--lang", required=True, help="its language")
    paraphrases.add_argument("--out", required=True, metavar="FILE", help="pairs as .tsv, .parquet or .tmx")
    add_mining(paraphrases, "FILE.work")
    paraphrases.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Mines one text against itself, and says what was found."""
    from dualmoco.mining.mine import paraphrases

    found = paraphrases(parsed.file, model=parsed.model, lang=parsed.lang, out=parsed.out, **mining_options(parsed))
    if parsed.json:
        print_json({"out": parsed.out, "pairs": len(found)})
    else:
        sys.stdout.write(f"{counted(len(found), 'pair')}: {parsed.out}\n")
    return 0
