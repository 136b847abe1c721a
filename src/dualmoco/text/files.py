"""Text files, plain or compressed: find them, open them, read their lines and tab-separated cells."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dualmoco.core.errors import ConfigError, DataError, require

READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # raised by missing and damaged files
BYTE_ORDER_MARK = "\ufeff"
STANDARD_INPUT = "-"


@contextmanager
def standard_input(names: Sequence[str], suffix: str = ".txt") -> Iterator[list[str]]:
    """Yields file names in which `-` is replaced by a temporary file with everything that standard input holds.

    Files are read more than once, which a stream does not allow. ConfigError if `-` is given more than once.
    """
    if names.count(STANDARD_INPUT) > 1:
        raise ConfigError(f"{STANDARD_INPUT} is given twice; expected standard input only once")
    if STANDARD_INPUT not in names:
        yield list(names)
        return
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as folder:
        path = Path(folder) / f"standard-input{suffix}"
        with path.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
        yield [str(path) if name == STANDARD_INPUT else name for name in names]


def find_files(patterns: Iterable[str], root: str | Path, *, folders: bool = False) -> list[Path]:
    """Expands names and globs relative to `root`, each glob sorted; DataError if a pattern matches no file."""
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
    """Opens a plain, .gz, .xz, .lzma, .bz2 or .zst file; `progress` is called with newly read bytes of the file."""
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
    """Yields the lines of a UTF-8 file, plain or compressed, without line ends; DataError has the line number."""
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
    """Line numbers and cells of some columns (from 0) of a TSV file; DataError if a cell is missing or empty."""
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
