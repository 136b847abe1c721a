"""The lines of a text file as encoding takes them: which are distinct, which are empty, and where they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Ids
from dualmoco.text.files import open_binary, read_lines

EMPTY = -1


@dataclass(frozen=True)
class TextFile:
    """A text file, one sentence a line, and its language."""

    path: Path
    lang: str
    is_known: bool = False
    """Whether its language was looked at before."""


@dataclass(frozen=True)
class LineTable:
    """Every line's row among the distinct sentences, in the order in which they first stand in the file."""

    rows: Ids  # (lines,) EMPTY for a line without text
    first: Ids  # (n,) the line, from 0, where each distinct sentence first stands
    sha256: str
    """Of the file's unpacked bytes."""


def survey(path: Path) -> LineTable:
    """Reads a file once, to know its sentences.

    Args:
        path: One sentence a line, UTF-8, plain or compressed.

    Returns:
        Its lines; equal lines, spaces at their ends aside, have one row. Ids of 64 bits tell lines apart.

    Raises:
        DataError: No such file, invalid UTF-8 with the line's number, or no sentence in it.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected text, one sentence a line")
    keys = np.fromiter((_key(line) for line in read_lines(path)), dtype=np.uint64)  # (lines,) 0 for an empty one
    filled = np.flatnonzero(keys)
    if not len(filled):
        raise DataError(f"{path}: no sentence in {len(keys):,} lines; expected text, one sentence a line")
    _, first, inverse = np.unique(keys[filled], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # distinct sentences by where they first stand
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rows = np.full(len(keys), EMPTY, dtype=np.int64)
    rows[filled] = rank[inverse]
    return LineTable(rows, filled[first[order]], _text_sha256(path))


def lines_at(path: Path, wanted: Iterable[int]) -> Iterator[str]:
    """Yields the lines with some ascending numbers from 0, without spaces at their ends.

    Args:
        path: The file.
        wanted: Line numbers, ascending.

    Yields:
        One line.
    """
    numbers = iter(wanted)
    following = next(numbers, None)
    for number, line in enumerate(read_lines(path)):
        if following is None:
            return
        if number == following:
            yield line.strip()
            following = next(numbers, None)


def _key(line: str) -> int:
    text = line.strip()
    return (xxhash.xxh3_64_intdigest(text.encode()) or 1) if text else 0


def _text_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_binary(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
