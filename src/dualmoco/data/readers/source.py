"""Where pairs are read from: a file, its format, its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from dualmoco.core.errors import DataError
from dualmoco.data.languages import base_language
from dualmoco.data.text import open_binary

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
