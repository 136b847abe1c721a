"""Compares the precision that `mine` estimates with the true precision, for several shares of true pairs.

    python -m benchmarks.precision --data DATA

First the BUCC sample of DATA, with gold pairs, with 0.9 and 0.95 as the wanted precision, and with planted pairs. Then
texts of `--lines` lines per side: 30 %, 3 % and 0.3 % of the lines are news with their translations in the other text.
The other English lines are speeches of the European Parliament, and the other Chinese lines technology journalism. A
mined pair counts as right only if it is one of the news, so accidental translations among the other lines count as
wrong. Lines of one corpus on both sides would have many of these.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dualmoco
from dualmoco.core.progress import peak_memory
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs
from dualmoco.mining.threshold import distinct_pairs
from dualmoco.models.model import Model

Pairs = Sequence[tuple[str, str]]
SHARES = (0.3, 0.03, 0.003)
PLANTED = 1000


def main() -> None:
    """Mines every text in several ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en-zh-static")
    parser.add_argument("--calibration", help="output of dualmoco calibrate (default: the model's own)")
    parser.add_argument("--data", default=os.environ.get("DUALMOCO_DATA"))
    parser.add_argument(
        "--pairs", default="parallel/news_commentary_10k.tsv.xz", help="bitext of true and planted pairs"
    )
    parser.add_argument("--src-others", default="languages/fr/europarl_direct.tsv.xz", help="bitext of other sources")
    parser.add_argument("--tgt-others", default="parallel/lctt_articles.tsv.xz", help="bitext of other targets")
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    model, data = dualmoco.load(parsed.model), Path(parsed.data)
    columns = f"{'threshold':>9} {'pairs':>6} {'announced':>9} {'interval':>9} {'true':>6} {'recall':>7}"
    print(f"{'text':22} {'how':17} {columns}")
    pairs = read(data / parsed.pairs, parsed.lines)
    others = (
        [src for src, _ in read(data / parsed.src_others, parsed.lines)],
        [tgt for _, tgt in read(data / parsed.tgt_others, parsed.lines)],
    )
    bucc(model, data / "eval" / "bucc2018", pairs, parsed.calibration)
    for share in SHARES:
        mix(model, pairs, others, share, parsed)
    print(f"{peak_memory() / 2**20:,.0f} MiB peak memory")


def read(path: str | Path, most: int) -> Pairs:
    """The first pairs of a bitext, without shared sentences."""

    def ignore(line: int, what: str) -> None:
        """Skips an unreadable line."""

    rows = read_pairs(Source(Path(path), "en", "zh"), report=ignore)
    return distinct_pairs((row.src.strip(), row.tgt.strip()) for row, _ in zip(rows, range(2 * most), strict=False))


def bucc(model: Model, folder: Path, planted: Pairs, calibration: str | None) -> None:
    """The BUCC sample; lines are numbered from 1."""
    sides = []
    for lang in ("en", "zh"):
        rows = [line.split("\t", 1) for line in (folder / f"zh-en.dev.{lang}").read_text("utf-8").splitlines()]
        sides.append({name: (number, text) for number, (name, text) in enumerate(rows, start=1)})
    gold = [line.split() for line in (folder / "zh-en.dev.gold").read_text("utf-8").splitlines()]
    right = {(sides[0][en][0], sides[1][zh][0]) for zh, en in gold}
    texts = [[text for _, text in side.values()] for side in sides]
    ways: dict[str, dict[str, Any]] = {
        "gold": {"gold": sorted(right)},
        "scores, 0.9": {},
        "scores, 0.95": {"min_precision": 0.95},
        "planted news, 0.9": {"planted": planted[:PLANTED], "min_precision": 0.9},
    }
    for way, options in ways.items():
        report(
            "BUCC sample",
            way,
            dualmoco.mine(*texts, model=model, calibration=calibration, progress=False, **options),
            right,
        )


def mix(
    model: Model, pairs: Pairs, others: tuple[list[str], list[str]], share: float, parsed: argparse.Namespace
) -> None:
    """Mines texts in which a share of the lines has a translation."""
    known = round(share * parsed.lines)
    order = np.random.default_rng(parsed.seed).permutation(len(pairs))
    planted, true = order[:PLANTED], order[PLANTED : PLANTED + known]
    count = min(parsed.lines - known, *map(len, others))
    src = [pairs[row][0] for row in true.tolist()] + others[0][:count]
    tgt = [pairs[row][1] for row in true.tolist()] + others[1][:count]
    right = {(line, line) for line in range(1, known + 1)}
    hidden = [pairs[row] for row in planted.tolist()]
    ways: dict[str, dict[str, Any]] = {
        "gold": {"gold": sorted(right)},
        "scores, 0.9": {},
        "scores, 0.95": {"min_precision": 0.95},
        "planted, 0.9": {"planted": hidden, "min_precision": 0.9},
        "planted, 0.95": {"planted": hidden, "min_precision": 0.95},
        "planted, best F1": {"planted": hidden},
    }
    for way, options in ways.items():
        found = dualmoco.mine(src, tgt, model=model, calibration=parsed.calibration, progress=False, **options)
        report(f"{100 * known / len(src):.1f} % of {len(src):,}", way, found, right)


def report(text: str, way: str, found: dualmoco.MiningResult, right: set[tuple[int, int]]) -> None:
    """Prints a line."""
    hits = sum((pair.src_line, pair.tgt_line) in right for pair in found)
    made = found.calibration
    announced = f"{100 * made.threshold.precision:.1f}" if made else "none"
    interval = f"{100 * made.low:.0f}-{100 * made.high:.0f}" if made else ""
    true = f"{100 * hits / len(found):.1f}" if len(found) else "none"
    print(
        f"{text:22} {way:17} {found.threshold or 0:9.4f} {len(found):6,} {announced:>9} {interval:>9} {true:>6} "
        f"{100 * hits / len(right):7.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
