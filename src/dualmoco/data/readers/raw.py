"""Text as it was read, cheap to hand to another process, which parses it into a `PairBlock`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from dualmoco.data.block import Ints, PairBlock, TextColumn, to_codes, to_text
from dualmoco.data.readers.source import TableLayout

Problem = tuple[int, str]  # number of the line, and what is wrong with it
PARSED_ROWS = 20_000  # of a block that is not made of lines
NEWLINE, TAB, RETURN = 10, 9, 13


class Raw(Protocol):
    """Some part of a file."""

    @property
    def last(self) -> int:
        """Number of its last line."""
        ...

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs in it, and the lines that hold none."""
        ...


@dataclass(frozen=True)
class Row:
    """A pair that a reader has parsed itself."""

    src: str
    tgt: str
    line: int


@dataclass(frozen=True)
class ParsedRows:
    """Pairs that a reader has parsed itself."""

    rows: list[Row]

    @property
    def last(self) -> int:
        """Number of the last row's line."""
        return self.rows[-1].line

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs as a block."""
        src, tgt = (TextColumn.from_texts([getattr(row, side) for row in self.rows]) for side in ("src", "tgt"))
        return PairBlock(src, tgt, np.array([row.line for row in self.rows], dtype=np.int64)), []


def in_blocks(rows: Iterable[Row]) -> Iterator[ParsedRows]:
    """Cuts a stream of pairs into blocks."""
    stream = iter(rows)
    while part := list(islice(stream, PARSED_ROWS)):
        yield ParsedRows(part)


@dataclass(frozen=True)
class RawLines:
    """Whole lines of a file, as bytes."""

    data: bytes
    first: int  # number of the first line

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.first + self.data.count(b"\n") - self.data.endswith(b"\n")

    def decode(self) -> tuple[str, Ints, list[Problem]]:
        """The text without lines that are not UTF-8, the number of each line that is left, and the problems."""
        try:
            return self.data.decode("utf-8"), np.arange(self.first, self.last + 1), []
        except UnicodeDecodeError:
            pass
        good, numbers, problems = [], [], []
        for number, line in enumerate(self.data.removesuffix(b"\n").split(b"\n"), start=self.first):
            try:
                good.append(line.decode("utf-8"))
                numbers.append(number)
            except UnicodeDecodeError as error:
                problems.append((number, f"not UTF-8 ({error.reason}); convert the file, for example with iconv"))
        return "".join(f"{line}\n" for line in good), np.array(numbers, dtype=np.int64), problems


@dataclass(frozen=True)
class TabbedLines:
    """Lines of tab-separated columns."""

    lines: RawLines
    layout: TableLayout

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.lines.last

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs of all lines with the expected number of columns."""
        text, numbers, problems = self.lines.decode()
        codes = to_codes(text)
        starts, ends = line_bounds(codes, len(numbers))
        tabs = np.flatnonzero(codes == TAB)
        first = np.searchsorted(tabs, starts)  # index of each line's first tab
        found = np.searchsorted(tabs, ends) - first + 1
        good = self.layout.fits(found)
        problems += [
            (int(numbers[row]), self.layout.complaint(int(found[row]), "tab"))
            for row in np.flatnonzero(~good)
            if to_text(codes[starts[row] : ends[row]]).strip()
        ]
        starts, ends, first, found = starts[good], ends[good], first[good], found[good]
        sides = []
        for column in (self.layout.src, self.layout.tgt):
            begins = tabs[first + column - 1] + 1 if column else starts
            stops, is_last = ends.copy(), found == column + 1
            stops[~is_last] = tabs[first[~is_last] + column]
            sides.append(TextColumn(codes, begins, stops))
        return PairBlock(sides[0], sides[1], numbers[good]), problems


@dataclass(frozen=True)
class AlignedLines:
    """As many lines of two files."""

    src: RawLines
    tgt: RawLines

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.src.last

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs of all lines that are text on both sides."""
        (src, src_numbers, problems), (tgt, tgt_numbers, more) = self.src.decode(), self.tgt.decode()
        numbers = np.intersect1d(src_numbers, tgt_numbers)
        sides = []
        for text, own in ((src, src_numbers), (tgt, tgt_numbers)):
            codes = to_codes(text)
            bounds = line_bounds(codes, len(own))
            sides.append(TextColumn(codes, *bounds).take(np.isin(own, numbers)))
        return PairBlock(sides[0], sides[1], numbers), problems + more


@dataclass(frozen=True)
class JsonLines:
    """Lines that are JSON objects."""

    lines: RawLines
    keys: tuple[str, str]

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.lines.last

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs of all objects that have both keys, directly or under `translation`."""
        text, numbers, problems = self.lines.decode()
        rows = []
        lines = text.removesuffix("\n").split("\n") if len(numbers) else []
        for number, line in zip(numbers.tolist(), lines, strict=True):
            if line.strip():
                try:
                    rows.append(Row(*pick_pair(json.loads(line), self.keys), number))
                except ValueError as error:
                    reason = f"not valid JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else str(error)
                    problems.append((number, reason))
        return ParsedRows(rows).parse()[0], problems


def pick_pair(record: Any, keys: tuple[str, str]) -> tuple[str, str]:
    """The two sentences of a record.

    Args:
        record: A mapping with both keys, or with a mapping `translation` that has them.
        keys: Of the source and the target sentence.

    Returns:
        Both sentences; an absent one is empty.

    Raises:
        ValueError: A record of another form.
    """
    inner = record.get("translation", record) if isinstance(record, dict) else record
    if not isinstance(inner, dict) or any(key not in inner for key in keys):
        found = ", ".join(map(str, inner)) if isinstance(inner, dict) else type(inner).__name__
        raise ValueError(f"found {found}; expected {keys[0]} and {keys[1]} (set columns)")
    src, tgt = ("" if inner[key] is None else inner[key] for key in keys)
    if not isinstance(src, str) or not isinstance(tgt, str):
        raise ValueError(f"{keys[0]} or {keys[1]} is no text; expected two sentences")
    if not is_unicode(src) or not is_unicode(tgt):
        raise ValueError("holds half a surrogate pair; expected text")
    return src, tgt


def is_unicode(text: str) -> bool:
    """Whether a string has no half of a surrogate pair, which no file in UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def line_bounds(codes: Any, count: int) -> tuple[Ints, Ints]:
    """Where each line begins and ends, without its line end or a carriage return before it."""
    ends = np.flatnonzero(codes == NEWLINE)
    if not count:
        return ends[:0], ends[:0]
    if len(ends) < count:
        ends = np.append(ends, len(codes))
    starts = np.concatenate([[0], ends[:-1] + 1])
    returns = (ends > starts) & (codes[np.maximum(ends - 1, 0)] == RETURN) if len(codes) else np.zeros(count, bool)
    return starts, ends - returns
