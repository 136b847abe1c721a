"""Files of test sets: takes the lines and cells of `text.py`, gives sentences and rows to `evaluation/`.

All that can be wrong with them is said in one line.
"""

from __future__ import annotations

import math
from pathlib import Path

from dualmoco.core.errors import DataError
from dualmoco.text.files import read_lines


def existing(path: Path, what: str) -> Path:
    """The path, if there is such a file or folder.

    Args:
        path: Where it should be.
        what: What it is, for the error.

    Returns:
        The path.

    Raises:
        DataError: Nothing is there.
    """
    if not path.exists():
        raise DataError(f"{path}: not found; expected {what} there: name the folder that holds eval/ with --data")
    return path


def read_sentences(path: Path) -> list[str]:
    """The lines of a file, one sentence each.

    Args:
        path: A text file, plain or compressed.

    Returns:
        Its sentences.

    Raises:
        DataError: An empty line or no line at all.
    """
    lines = list(read_lines(path))
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path}:{number}: an empty line; expected a sentence on every line")
    if not lines:
        raise DataError(f"{path}: empty; expected a sentence a line")
    return lines


def read_aligned_sentences(src: Path, tgt: Path) -> tuple[list[str], list[str]]:
    """Two files whose lines are translations of each other; DataError if one is longer or has an empty line."""
    sides = read_sentences(src), read_sentences(tgt)
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"{src} has {len(sides[0]):,} lines, {tgt} has {len(sides[1]):,}; expected as many in both")
    return sides


def parse_score(text: str, low: float, high: float, place: str) -> float:
    """A gold score.

    Args:
        text: As it stands in the file.
        low: Least possible.
        high: Greatest possible.
        place: File and line, for the error.

    Returns:
        The number.

    Raises:
        DataError: Not a number, or out of range.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise DataError(f"{place}: gold score {text!r}; expected a number from {low:g} to {high:g}")
    return value
