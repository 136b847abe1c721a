"""Text as it was read, cheap to hand to another process, which parses it into a `PairBlock`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.data.text_column import Ints, PairBlock, TextColumn, to_codes, to_text
from dualmoco.text.files import open_binary
from dualmoco.text.languages import base_language

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


Report = Callable[[int, str], None]  # takes the number of a line and what is wrong with it
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lzma")
USUAL_NAMES = (("src", "tgt"), ("source", "target"), ("sentence1", "sentence2"), ("text1", "text2"))


@dataclass(frozen=True)
class TableLayout:
    """Which columns of a table hold the pairs, and how many columns a row must have."""

    src: int
    tgt: int
    columns: int
    exact: bool  # no more than that: a stray separator would shift the columns; unless a user counted them

    def fits(self, found: Any) -> Any:
        """Whether rows with so many columns hold a pair."""
        return found == self.columns if self.exact else found >= self.columns

    def complaint(self, found: int, separated: str) -> str:
        """What is wrong with a row of another number of columns.

        Args:
            found: Columns of the row.
            separated: What separates them, such as `tab`.

        Returns:
            What was found, what was expected, and what to set.
        """
        given = f"{found} {separated}-separated column{'s' * (found != 1)}"
        if self.exact and found > max(self.src, self.tgt):
            return f"{given}; expected {self.columns} as in the first line"
        least = max(self.src, self.tgt) + 1
        return f"{given}; expected at least {least} (source in {self.src}, target in {self.tgt}; set columns)"


@dataclass(frozen=True)
class Source:
    """A file, or a pair of aligned ones, and what to read from it."""

    path: Path
    src: str  # language codes
    tgt: str
    columns: tuple[str, str] | None = None  # names, or numbers from 0
    tgt_path: Path | None = None
    progress: Callable[[int], None] | None = None  # callback, takes how many more bytes of the file were read

    @property
    def size(self) -> int:
        """Bytes of its files; a folder or a hub name counts as nothing."""
        paths = (path for path in (self.path, self.tgt_path) if path and path.is_file())
        return sum(path.stat().st_size for path in paths)

    def open(self) -> IO[bytes]:
        """Opens the file for reading bytes, unpacked according to its extension.

        Returns:
            A stream.

        Raises:
            DataError: A file that is not there or may not be read.
        """
        return _open(self.path, self.progress)

    def open_tgt(self) -> IO[bytes]:
        """Opens the other one of two aligned files.

        Returns:
            A stream.

        Raises:
            DataError: There is none, or it may not be read.
        """
        if self.tgt_path is None:
            raise DataError(f"{self.path}: one side of two aligned files; expected the other one too (set tgt_files)")
        return _open(self.tgt_path, None)

    def find_columns(self, cells: Sequence[str], line: int, separated: str) -> tuple[TableLayout, bool]:
        """Which columns of a table hold the pairs.

        Args:
            cells: Of the first row.
            line: Its number.
            separated: What separates cells, for the error.

        Returns:
            Which columns, and whether the first row is a header.

        Raises:
            DataError: A column that is not there, or whose name is there twice.
        """
        names = [cell.strip() for cell in cells]
        named = self.columns or self.guess_names(names)
        if named and not all(column.isdecimal() for column in named):
            if self.columns:
                self.check_names(named, names)
            return TableLayout(names.index(named[0]), names.index(named[1]), len(cells), exact=True), True
        src, tgt = map(int, self.columns or (0, 1))
        counted = self.columns is not None
        layout = TableLayout(src, tgt, max(src, tgt) + 1 if counted else len(cells), exact=not counted)
        if max(src, tgt) >= len(cells):
            raise DataError(f"{self.path}:{line}: {layout.complaint(len(cells), separated)}")
        return layout, False

    def guess_names(self, names: Sequence[str]) -> tuple[str, str] | None:
        """The two column names that say which language they hold, if there are such."""
        langs = tuple(
            next((name for name in names if base_language(name) == base_language(lang)), "")
            for lang in (self.src, self.tgt)
        )
        if all(langs):
            return langs[0], langs[1]
        lowered = {name.lower(): name for name in names}
        return next(((lowered[a], lowered[b]) for a, b in USUAL_NAMES if a in lowered and b in lowered), None)

    def check_names(self, wanted: Sequence[str], names: Sequence[str]) -> None:
        """Refuses columns that are absent or ambiguous.

        Args:
            wanted: Names of columns to read.
            names: Names of all columns.

        Raises:
            DataError: Says which columns there are.
        """
        for name in wanted:
            if names.count(name) != 1:
                times = "twice or more" if name in names else "not"
                raise DataError(f"{self.path}: column {name!r} is {times} among {', '.join(names)}; set columns")

    def choose_names(self, names: Sequence[str]) -> tuple[str, str]:
        """The two columns of a table whose columns have names.

        Args:
            names: Names of all columns.

        Returns:
            Names of the source and of the target column.

        Raises:
            DataError: No column named for a language, or a name that is absent or ambiguous.
        """
        chosen = self.columns or self.guess_names(names)
        if chosen is None:
            raise DataError(f"{self.path}: columns {', '.join(names)}; expected {self.src} and {self.tgt}; set columns")
        self.check_names(chosen, names)
        return chosen


class _Meter:
    """A progress callback that knows how far it is."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        self.advance, self.done = advance, 0

    def __call__(self, count: int) -> None:
        self.done += count
        self.advance(count)


def follow(sources: Iterable[Source], advance: Callable[[int], object]) -> Iterator[Source]:
    """Yields sources that report how far they are read.

    Args:
        sources: To be read one after the other.
        advance: Progress callback, takes how many more bytes were read; each source ends at its full size, also if its
            reader reports nothing.

    Yields:
        One source.
    """
    for source in sources:
        meter = _Meter(advance)
        yield replace(source, progress=meter)
        advance(max(source.size - meter.done, 0))


def plain_suffix(path: Path) -> str:
    """The extension of a file without that of its compression."""
    name = path.name.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return Path(name).suffix


def _open(path: Path, progress: Callable[[int], None] | None) -> IO[bytes]:
    try:
        return open_binary(path, progress)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror or error}") from None
