"""Text files, plain or compressed: find them, open them, read their lines and tab-separated cells."""

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

READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # raised by missing and damaged files
BYTE_ORDER_MARK = "\ufeff"


def find_files(patterns: Iterable[str], root: str | Path, *, folders: bool = False) -> list[Path]:
    """Expands names and globs.

    Args:
        patterns: Names or globs, absolute or relative to `root`.
        root: Folder that relative patterns start from.
        folders: Whether a name may also be that of a folder.

    Returns:
        Existing files; those of one glob in alphabetical order.

    Raises:
        DataError: A pattern matches no file.
    """
    files: list[Path] = []
    for pattern in patterns:
        path = Path(root) / pattern
        if folders and path.is_dir():
            files.append(path)
            continue
        names = [pattern] if path.is_file() else sorted(glob.glob(pattern, root_dir=root, recursive=True))
        found = [Path(root) / name for name in names if (Path(root) / name).is_file()]
        if not found:
            raise DataError(f"{path}: no such file; expected a file or a glob (relative paths start from {root})")
        files += found
    return files


def open_binary(path: Path, progress: Callable[[int], None] | None = None) -> IO[bytes]:
    """Opens a file for reading bytes; .gz, .xz, .lzma, .bz2 and .zst files are decompressed.

    Args:
        path: The file.
        progress: Callback: number of newly read bytes, counted before decompression.
    """
    file = io.BufferedReader(_Metered(path, progress), 1 << 20)
    opener = DECOMPRESSORS.get(path.suffix)
    return io.BufferedReader(opener(file, "rb"), 1 << 20) if opener else file


class _Metered(io.FileIO):
    """A file that reports how many bytes are read."""

    def __init__(self, path: Path, progress: Callable[[int], None] | None) -> None:
        super().__init__(path)
        self.progress = progress

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        if self.progress and count:
            self.progress(count)
        return count


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


def read_lines(path: Path, *, errors: str = "strict") -> Iterator[str]:
    """Yields the lines of a UTF-8 file, plain or compressed, without line ends and byte order mark.

    Args:
        path: The file.
        errors: `replace` substitutes U+FFFD for bytes that are not UTF-8.

    Yields:
        One line.

    Raises:
        DataError: The file cannot be read or is not UTF-8; the message has the line number.
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
    """Yields the number of each line, from 1, and its tab-separated cells; see `read_lines`."""
    for number, line in enumerate(read_lines(path, errors=errors), start=1):
        yield number, line.split("\t")


def read_table(
    path: Path, columns: Sequence[int], *, header: bool = False, errors: str = "strict"
) -> list[tuple[int, list[str]]]:
    """Reads some columns of a tab-separated file.

    Args:
        path: The file, plain or compressed.
        columns: Column numbers, from 0.
        header: Whether to skip the first line.
        errors: See `read_lines`.

    Returns:
        The number of each line and its cells, none of them empty.

    Raises:
        DataError: A column is missing, a cell is empty, or there are no lines.
    """
    rows = []
    for number, cells in read_cells(path, errors=errors):
        if header and number == 1:
            continue
        if len(cells) <= max(columns):
            raise DataError(
                f"{path}:{number}: {len(cells)} columns; expected at least {max(columns) + 1} tab-separated columns"
            )
        chosen = [cells[column].strip() for column in columns]
        if not all(chosen):
            raise DataError(f"{path}:{number}: an empty cell; expected text in columns {', '.join(map(str, columns))}")
        rows.append((number, chosen))
    if not rows:
        raise DataError(f"{path}: no lines of data; expected a tab-separated file")
    return rows
