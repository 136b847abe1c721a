"""Time to re-align two books after links were confirmed: `python -m benchmarks.realign`.

Reads consecutive verses of `DATA/parallel/bible.tsv.xz`, deletes 3 % of the sentences of each side, and confirms some
links of the first alignment, spread evenly. The first time is for a process that has not seen these links yet, the
second is after one more confirmation. Prints CPU and elapsed seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from itertools import islice
from pathlib import Path

from dualmoco.alignment.editing import EditedAlignment, LinkRow, Sentence
from dualmoco.alignment.realign import Realigner
from dualmoco.models.embedded import FAST_MODEL
from dualmoco.models.load import open_model
from dualmoco.text.files import read_lines

LANGS = "en", "zh"
DROPPED = 0.03
CONFIRMED = (1, 10, 100, 1_000)


def main() -> None:
    """Measures one size of books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=5_155, help="sentences per side before deletions")
    parsed = parser.parse_args()
    path = Path(os.environ["DUALMOCO_DATA"]) / "parallel" / "bible.tsv.xz"
    edited = book(path, parsed.sentences)
    with tempfile.TemporaryDirectory() as folder:
        realigner = Realigner(Path(folder) / "vectors.safetensors", open_model(FAST_MODEL), LANGS)
        realign(edited, realigner)
        for confirmed in CONFIRMED:
            step = len(edited.rows) // confirmed
            for row in range(step // 2, len(edited.rows), step):
                if not edited.rows[row].is_confirmed:
                    edited.apply({"type": "confirm", "row": row})
            print(f"{edited.confirmed:5,} confirmed: {realign(edited, realigner)}", end="; ")
            edited.apply(
                {"type": "confirm", "row": next(n for n, row in enumerate(edited.rows) if not row.is_confirmed)}
            )
            print(f"after one more: {realign(edited, realigner)}")


def book(path: Path, count: int) -> EditedAlignment:
    """An alignment that consists of one link with all sentences."""
    chance = random.Random(0)
    sides: tuple[list[Sentence], list[Sentence]] = ([], [])
    for number, line in enumerate(islice(read_lines(path), count), start=1):
        for side, text in zip(sides, line.split("\t"), strict=False):
            if chance.random() >= DROPPED:
                side.append(Sentence(text, str(number)))
    print(f"{len(sides[0]):,} x {len(sides[1]):,} sentences")
    return EditedAlignment(LANGS, [LinkRow(tuple(sides[0]), tuple(sides[1]))])


def realign(edited: EditedAlignment, realigner: Realigner) -> str:
    """Re-aligns everything that is not confirmed; returns the time."""
    cpu, elapsed = time.process_time(), time.perf_counter()
    edited.apply(realigner.plan(edited))
    return f"{time.process_time() - cpu:.2f} s CPU, {time.perf_counter() - elapsed:.2f} s elapsed"


if __name__ == "__main__":
    main()
