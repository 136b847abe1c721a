"""English-Chinese sentences written for the demo, on everyday topics: real language, though no test set."""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import NamedTuple

LANGS = ("en", "zh")


class DemoPair(NamedTuple):
    """A sentence and its translation."""

    topic: str
    src: str
    tgt: str


def read_demo_pairs() -> list[DemoPair]:
    """All sentences of the demo, by topic, English first; Chinese in simplified characters."""
    with files("dualmoco.data.demo").joinpath("sentences.tsv").open(encoding="utf-8") as stream:
        rows = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [DemoPair(*row) for row in rows]
