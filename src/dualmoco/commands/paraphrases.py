"""`dualmoco paraphrases`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.commands.options import add_mining, clear_work, mine_settings, open_engine, work_folder
from dualmoco.commands.verb import add_verb, print_json


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

    from dualmoco.bitext.mine import Side
    from dualmoco.bitext.output import check_pairs_path
    from dualmoco.bitext.paraphrases import mine_paraphrases

    out = Path(parsed.out)
    check_pairs_path(out)
    work = work_folder(parsed, out)
    side = Side(Path(parsed.file), parsed.lang)
    pairs = mine_paraphrases(side, mine_settings(parsed), out, work, open_engine(parsed))
    clear_work(parsed, work)
    if parsed.json:
        print_json({"out": parsed.out, "pairs": len(pairs)})
    else:
        sys.stdout.write(f"{len(pairs):,} pairs: {parsed.out}\n")
    return 0
