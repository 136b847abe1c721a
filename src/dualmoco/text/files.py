"""Text files, plain or compressed: which there are, their bytes and their lines."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from dualmoco.core.errors import DataError, require

READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # what a damaged or absent file ends in


def _open_zstd(file: IO[bytes], mode: str) -> Any:
    pa = require("pyarrow", "data", "A .zst file")
    return pa.CompressedInputStream(pa.PythonFile(file, mode), "zstd")


DECOMPRESSORS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".lzma": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zstd,
}
BYTE_ORDER_MARK = "\ufeff"


def find_files(patterns: Iterable[str], root: str | Path, *, folders: bool = False) -> list[Path]:
    """The files that names and globs stand for.

    Args:
        patterns: Names or globs, relative to `root` or absolute.
        root: Folder that relative ones start from.
        folders: Whether a name may also stand for a folder.

    Returns:
        Existing files; those of one glob in alphabetical order.

    Raises:
        DataError: A name or glob that stands for no file.
    """
    files: list[Path] = []
    for pattern in patterns:
        path = Path(root) / pattern
        if folders and path.is_dir():
            files.append(path)
            continue
        found = [path] if path.is_file() else [Path(root) / name for name in _matches(pattern, root)]
        found = [file for file in found if file.is_file()]
        if not found:
            raise DataError(f"{path}: no such file; expected a file or a glob (relative paths start from {root})")
        files += found
    return files


def _matches(pattern: str, root: str | Path) -> list[str]:
    return sorted(glob.glob(pattern, root_dir=root, recursive=True))


def read_lines(path: Path, *, errors: str = "strict") -> Iterator[str]:
    """Yields the lines of a UTF-8 file without their line ends, a byte order mark or a carriage return.

    Args:
        path: A text file; .gz, .xz, .bz2 and .zst are unpacked on the way.
        errors: `replace` puts U+FFFD in the place of bytes that are not UTF-8.

    Yields:
        One line.

    Raises:
        DataError: An unreadable or damaged file or invalid UTF-8, with the number of the line.
    """
    number = 0
    try:
        with open_binary(path) as stream:
            for raw in stream:
                line = raw.decode("utf-8", errors)
                number += 1
                yield (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r\n")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 ({error.reason}); convert the file, for example with iconv"
        raise DataError(f"{path}:{number + 1}: {reason}") from None
    except READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read after line {number}: {reason}") from None


def read_cells(path: Path, *, errors: str = "strict") -> Iterator[tuple[int, list[str]]]:
    """Yields the tab-separated cells of each line, and the line's number from 1; see `read_lines`."""
    for number, line in enumerate(read_lines(path, errors=errors), start=1):
        yield number, line.split("\t")


def open_binary(path: Path, progress: Callable[[int], None] | None = None) -> IO[bytes]:
    """Opens a file for reading bytes, unpacked according to its extension.

    Args:
        path: The file.
        progress: Callback, takes how many more bytes of the file, packed as it is, were read.

    Returns:
        A stream.
    """
    file = io.BufferedReader(_Metered(path, progress), 1 << 20)
    opener = DECOMPRESSORS.get(path.suffix)
    return io.BufferedReader(opener(file, "rb"), 1 << 20) if opener else file


class _Metered(io.FileIO):
    """A file that reports how far it is read."""

    def __init__(self, path: Path, progress: Callable[[int], None] | None) -> None:
        super().__init__(path)
        self.progress = progress

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        if self.progress and count:
            self.progress(count)
        return count


def read_table(
    path: Path, columns: Sequence[int], *, header: bool = False, errors: str = "strict"
) -> list[tuple[int, list[str]]]:
    """Some columns of a tab-separated file.

    Args:
        path: The file, plain or compressed.
        columns: Their numbers from 0.
        header: Whether the first line names the columns.
        errors: `replace` puts U+FFFD in the place of bytes that are not UTF-8.

    Returns:
        Each line's number and its cells, none of them empty.

    Raises:
        DataError: A line with fewer columns or with an empty cell, or no line at all.
    """
    rows = []
    for number, cells in read_cells(path, errors=errors):
        if header and number == 1:
            continue
        if len(cells) <= max(columns):
            raise DataError(f"{path}:{number}: {len(cells)} columns; expected at least {max(columns) + 1}, by tabs")
        chosen = [cells[column].strip() for column in columns]
        if not all(chosen):
            raise DataError(f"{path}:{number}: an empty cell; expected text in columns {', '.join(map(str, columns))}")
        rows.append((number, chosen))
    if not rows:
        raise DataError(f"{path}: no lines of data; expected a tab-separated file")
    return rows
