"""What all readers share: the `Source` to read, and raw blocks of it.

A reader cuts a file into raw blocks, which are cheap to send to another process, where `parse` turns each into a
`PairBlock`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.data.text_column import Ints, PairBlock, TextColumn, to_codes, to_text
from dualmoco.text.files import open_binary, open_text
from dualmoco.text.languages import base_language

Problem = tuple[int, str]  # line number, and what is wrong with the line
Report = Callable[[int, str], None]  # callback: line number, and what is wrong with the line
LOGGED_PROBLEMS = 10
logger = logging.getLogger(__name__)
PARSED_ROWS = 20_000  # of a block that does not consist of lines
NEWLINE, TAB, RETURN = 10, 9, 13
COLUMN_NAMES = (("src", "tgt"), ("source", "target"), ("sentence1", "sentence2"), ("text1", "text2"))


class SkippedLines:
    """Counts unreadable lines, and logs the first few; without `skip`, the first unreadable line is an error."""

    def __init__(self, *, skip: bool) -> None:
        self.skip, self.count = skip, 0

    def report(self, path: Path, line: int, what: str) -> None:
        """Reports what is wrong with a line of a file."""
        if not self.skip:
            raise DataError(f"{path}:{line}: {what}; fix the line, or skip unreadable lines with on_error=skip")
        if self.count < LOGGED_PROBLEMS:
            logger.warning("skipped %s:%d: %s", path, line, what)
        self.count += 1


@dataclass(frozen=True)
class TableLayout:
    """Which columns of a table hold the pairs, and how many columns a row must have."""

    src: int
    tgt: int
    columns: int
    exact: bool  # whether more columns are an error: a stray separator shifts columns, unless the user gave numbers

    def fits(self, found: Any) -> Any:
        """Whether rows with this number of columns contain a pair."""
        return found == self.columns if self.exact else found >= self.columns

    def complaint(self, found: int, separated: str) -> str:
        """What is wrong with a row with another number of columns, separated by `tab` or `comma`."""
        given = f"{found} {separated}-separated column{'s' * (found != 1)}"
        if self.exact and found > max(self.src, self.tgt):
            return f"{given}; expected {self.columns} as in the first line"
        least = max(self.src, self.tgt) + 1
        return f"{given}; expected at least {least} (source in {self.src}, target in {self.tgt}; set columns)"


@dataclass(frozen=True)
class Source:
    """A file, or a pair of aligned files, and what to read from it."""

    path: Path
    src: str  # language codes
    tgt: str
    columns: tuple[str, str] | None = None  # names, or numbers from 0
    tgt_path: Path | None = None
    progress: Callable[[int], None] | None = None  # callback: number of newly read bytes

    @property
    def size(self) -> int:
        """Size of the files in bytes; 0 for a folder or a hub dataset."""
        paths = (path for path in (self.path, self.tgt_path) if path and path.is_file())
        return sum(path.stat().st_size for path in paths)

    def open(self) -> IO[bytes]:
        """Opens the file for reading bytes, decompressed; DataError if that is impossible."""
        return _open(open_binary, self.path, self.progress)

    def open_lines(self) -> IO[bytes]:
        """Opens a text file for reading its lines as UTF-8, whatever its encoding; DataError if that is impossible."""
        return _open(open_text, self.path, self.progress)

    def open_tgt(self) -> IO[bytes]:
        """Opens the target side of two aligned files; DataError if that is impossible."""
        if self.tgt_path is None:
            raise DataError(f"{self.path}: one of two aligned files; expected the other file too (set tgt_files)")
        return _open(open_text, self.tgt_path, None)

    def find_columns(self, cells: Sequence[str], line: int, separated: str) -> tuple[TableLayout, bool]:
        """The layout of a table and whether its first row, `cells`, is a header; DataError if a column is missing."""
        names = [cell.strip() for cell in cells]
        named = self.columns or self._guess_names(names)
        if named and not all(column.isdecimal() for column in named):
            if self.columns:
                self._check_names(named, names)
            return TableLayout(names.index(named[0]), names.index(named[1]), len(cells), exact=True), True
        src, tgt = map(int, self.columns or (0, 1))
        numbered = self.columns is not None
        layout = TableLayout(src, tgt, max(src, tgt) + 1 if numbered else len(cells), exact=not numbered)
        if max(src, tgt) >= len(cells):
            raise DataError(f"{self.path}:{line}: {layout.complaint(len(cells), separated)}")
        return layout, False

    def choose_names(self, names: Sequence[str]) -> tuple[str, str]:
        """The source and the target column of a table with named columns; DataError if there are none."""
        chosen = self.columns or self._guess_names(names)
        if chosen is None:
            raise DataError(f"{self.path}: columns {', '.join(names)}; expected {self.src} and {self.tgt}; set columns")
        self._check_names(chosen, names)
        return chosen

    def _guess_names(self, names: Sequence[str]) -> tuple[str, str] | None:
        """The columns that are named after the languages, or in one of the usual ways."""
        langs = tuple(
            next((name for name in names if base_language(name) == base_language(lang)), "")
            for lang in (self.src, self.tgt)
        )
        if all(langs):
            return langs[0], langs[1]
        lowered = {name.lower(): name for name in names}
        return next(((lowered[a], lowered[b]) for a, b in COLUMN_NAMES if a in lowered and b in lowered), None)

    def _check_names(self, wanted: Sequence[str], names: Sequence[str]) -> None:
        for name in wanted:
            if names.count(name) != 1:
                times = "twice or more" if name in names else "not"
                raise DataError(f"{self.path}: column {name!r} is {times} among {', '.join(names)}; set columns")


def _open(
    opener: Callable[[Path, Callable[[int], None] | None], IO[bytes]],
    path: Path,
    progress: Callable[[int], None] | None,
) -> IO[bytes]:
    try:
        return opener(path, progress)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror or error}") from None


def follow(sources: Iterable[Source], advance: Callable[[int], object]) -> Iterator[Source]:
    """Yields sources that report the bytes read; at its end, a source reports the rest of its size."""
    for source in sources:
        done = 0

        def report(count: int) -> None:
            nonlocal done
            done += count
            advance(count)

        yield replace(source, progress=report)
        advance(max(source.size - done, 0))


class Raw(Protocol):
    """A block of a file that is not parsed yet."""

    @property
    def last(self) -> int:
        """Number of its last line."""

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs of the block, and the unreadable lines."""


@dataclass(frozen=True)
class Row:
    """A sentence pair, and the number of its line."""

    src: str
    tgt: str
    line: int


@dataclass(frozen=True)
class ParsedRows:
    """Pairs that the reader has already parsed."""

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
    """Cuts a stream of pairs into blocks; an error of the stream is raised after the pairs before it."""
    part: list[Row] = []
    try:
        for row in rows:
            part.append(row)
            if len(part) == PARSED_ROWS:
                yield ParsedRows(part)
                part = []
    except Exception:
        if part:
            yield ParsedRows(part)
        raise
    if part:
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
        """The text and the numbers of the lines in UTF-8, and the other lines."""
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
class TabbedLines(RawLines):
    """Lines of tab-separated columns."""

    layout: TableLayout

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs of all lines with the expected number of columns."""
        text, numbers, problems = self.decode()
        codes = to_codes(text)
        starts, ends = _line_bounds(codes, len(numbers))
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
class AlignedLines(RawLines):
    """Lines of the source file, and the same number of lines of the target file."""

    tgt: bytes

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs of all lines that are UTF-8 on both sides."""
        decoded = self.decode(), RawLines(self.tgt, self.first).decode()
        numbers = np.intersect1d(decoded[0][1], decoded[1][1])
        sides = []
        for text, own, _ in decoded:
            codes = to_codes(text)
            sides.append(TextColumn(codes, *_line_bounds(codes, len(own))).take(np.isin(own, numbers)))
        return PairBlock(sides[0], sides[1], numbers), decoded[0][2] + decoded[1][2]


@dataclass(frozen=True)
class JsonLines(RawLines):
    """Lines of JSON objects."""

    keys: tuple[str, str]

    def parse(self) -> tuple[PairBlock, list[Problem]]:
        """The pairs of all objects that have both keys, directly or under `translation`."""
        text, numbers, problems = self.decode()
        rows = []
        lines = text.removesuffix("\n").split("\n") if len(numbers) else []
        for number, line in zip(numbers.tolist(), lines, strict=True):
            if line.strip():
                try:
                    rows.append(Row(*pick_pair(json.loads(line), self.keys), number))
                except json.JSONDecodeError as error:
                    problems.append((number, f"not valid JSON ({error.msg})"))
                except RecursionError:
                    problems.append((number, "nested too deeply; expected an object with two sentences"))
                except ValueError as error:
                    problems.append((number, str(error)))
        return ParsedRows(rows).parse()[0], problems


def _line_bounds(codes: Any, count: int) -> tuple[Ints, Ints]:
    """Where each line starts and ends, without its newline or carriage return."""
    ends = np.flatnonzero(codes == NEWLINE)
    if not count:
        return ends[:0], ends[:0]
    if len(ends) < count:
        ends = np.append(ends, len(codes))
    starts = np.concatenate([[0], ends[:-1] + 1])
    returns = (ends > starts) & (codes[np.maximum(ends - 1, 0)] == RETURN) if len(codes) else np.zeros(count, bool)
    return starts, ends - returns


def pick_pair(record: Any, keys: tuple[str, str]) -> tuple[str, str]:
    """Both sentences of a mapping, or of its mapping `translation`; null gives "", another form ValueError."""
    inner = record.get("translation", record) if isinstance(record, dict) else record
    if not isinstance(inner, dict) or any(key not in inner for key in keys):
        found = ", ".join(map(str, inner)) if isinstance(inner, dict) else type(inner).__name__
        raise ValueError(f"found {clip_reason(found)}; expected {keys[0]} and {keys[1]} (set columns)")
    src, tgt = ("" if inner[key] is None else inner[key] for key in keys)
    if not isinstance(src, str) or not isinstance(tgt, str):
        raise ValueError(f"{keys[0]} or {keys[1]} is not a string; expected two sentences")
    if not is_unicode(src) or not is_unicode(tgt):
        raise ValueError("contains an unpaired surrogate; expected text")
    return src, tgt


def clip_reason(text: object) -> str:
    """The beginning of a text or of an error's message, on one line."""
    return " ".join(str(text).encode("utf-8", "replace").decode().split())[:200]


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded as UTF-8: it has no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
