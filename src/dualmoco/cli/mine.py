"""`dualmoco mine`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_mining, mine_settings, open_engine, open_named_model, working_in
from dualmoco.cli.verb import add_verb, print_json

if TYPE_CHECKING:
    from dualmoco.mining.mine import Known, Mined


def add(verbs: Any) -> None:
    """Describes the verb."""
    mine = add_verb(
        verbs, "mine", "find the parallel sentences of two text files",
        "examples:\n"
        "  dualmoco mine en.txt zh.txt --model runs/static-cpu --out pairs.tsv --threshold 0.1\n"
        "  dualmoco mine en.txt.xz zh.txt.xz --model runs/static-cpu --out pairs.tmx --planted known-pairs.tsv\n"
        "  dualmoco mine en.txt zh.txt --model runs/static-cpu --out pairs.parquet --engine ray --address auto",
    )  # fmt: skip
    mine.add_argument("src_file", metavar="SRC", help="text in one language, one sentence a line")
    mine.add_argument("tgt_file", metavar="TGT", help="text in the other")
    mine.add_argument("--src", default="en", metavar="LANG", help="language of SRC")
    mine.add_argument("--tgt", default="zh", metavar="LANG", help="language of TGT")
    mine.add_argument("--out", required=True, metavar="FILE", help="pairs as .tsv, .parquet or .tmx")
    mine.add_argument("--retrieval", default="max", help="forward, backward, intersection or max")
    known = mine.add_mutually_exclusive_group()
    known.add_argument("--gold", metavar="FILE", help="line<TAB>line of true pairs, from 1, that choose the threshold")
    known.add_argument(
        "--planted", metavar="FILE", help="source<TAB>target to hide among the lines for the same purpose"
    )
    add_mining(mine, "FILE.work")
    mine.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Mines, and tells what was found."""
    from dataclasses import asdict
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.mining.output import check_pairs_path

    out = Path(parsed.out)
    check_pairs_path(out)
    settings = mine_settings(parsed)
    known = read_known(parsed)
    if settings.threshold is not None and (parsed.gold or parsed.planted):
        raise ConfigError("--threshold together with --gold or --planted; expected one of them")

    from dualmoco.embeddings.lines import TextFile
    from dualmoco.mining.mine import mine_files

    src, tgt = TextFile(Path(parsed.src_file), parsed.src), TextFile(Path(parsed.tgt_file), parsed.tgt)
    model, engine = open_named_model(parsed), open_engine(parsed)
    with working_in(parsed, out) as work:
        mined = mine_files(src, tgt, model, settings, out, work, engine, known)
    if parsed.json:
        calibration = asdict(mined.calibration) if mined.calibration else None
        print_json({"out": parsed.out, "pairs": len(mined.pairs), "candidates": mined.candidates,
                    "threshold": mined.threshold, "calibration": calibration, "recall": mined.recall})  # fmt: skip
    else:
        sys.stdout.write(describe(mined, parsed.out))
    return 0


def describe(mined: Mined, out: str) -> str:
    """What was found, in words."""
    lines = []
    if mined.calibration:
        chosen = mined.calibration.threshold
        lines.append(
            f"threshold {chosen.value:.4f} [{mined.calibration.low:.4f}, {mined.calibration.high:.4f}] from "
            f"{mined.calibration.known:,} known pairs: precision {100 * chosen.precision:.1f} %, recall "
            f"{100 * chosen.recall:.1f} %, F1 {100 * chosen.f1:.1f} %"
        )
    above = "" if mined.threshold is None else f" that score at least {mined.threshold:.4f}, of {mined.candidates:,}"
    return "\n".join([*lines, f"{len(mined.pairs):,} pairs{above}: {out}"]) + "\n"


def read_known(parsed: argparse.Namespace) -> Known:
    """The pairs that choose the threshold.

    Args:
        parsed: The command line.

    Returns:
        Gold lines, planted sentences, or neither.

    Raises:
        DataError: A file of another form.
    """
    from pathlib import Path

    from dualmoco.core.errors import DataError
    from dualmoco.data.testfiles import read_table
    from dualmoco.mining.mine import Known

    if parsed.planted:
        return Known(planted=[(cells[0], cells[1]) for _, cells in read_table(Path(parsed.planted), [0, 1])])
    if not parsed.gold:
        return Known()
    gold = []
    for number, (a, b) in read_table(Path(parsed.gold), [0, 1]):
        if not (a.isdecimal() and b.isdecimal()):
            raise DataError(f"{parsed.gold}:{number}: {a!r}, {b!r}; expected two line numbers from 1")
        gold.append((int(a), int(b)))
    return Known(gold=gold)
