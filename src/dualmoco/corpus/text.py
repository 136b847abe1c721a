"""Lines of text files, plain or compressed, and the ids by which equal sentences are known.

Gives `pairs.py` and `nli.py` their lines.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from dualmoco.errors import DataError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
BYTE_ORDER_MARK = "\ufeff"
_remove_marks = re.compile(r"[\W_]+").sub


def find_files(patterns: Iterable[str], root: str | Path) -> list[Path]:
    """The files that names and globs stand for.

    Args:
        patterns: Names or globs, relative to `root` or absolute.
        root: Folder that relative ones start from.

    Returns:
        Existing files; those of one glob in alphabetical order.

    Raises:
        DataError: A name or glob that stands for no file.
    """
    files: list[Path] = []
    for pattern in patterns:
        path = Path(root) / pattern
        found = [path] if path.is_file() else [Path(root) / name for name in _matches(pattern, root)]
        found = [file for file in found if file.is_file()]
        if not found:
            raise DataError(f"{path}: no such file; expected a file or a glob (relative paths start from {root})")
        files += found
    return files


def _matches(pattern: str, root: str | Path) -> list[str]:
    return sorted(glob.glob(pattern, root_dir=root, recursive=True))


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without their line ends, a byte order mark or a carriage return.

    Args:
        path: A text file; .gz, .xz and .bz2 are unpacked on the way.

    Yields:
        One line.

    Raises:
        DataError: An unreadable or damaged file or invalid UTF-8, with the number of the line.
    """
    number = 0
    try:
        with open_binary(path) as stream:
            for raw in stream:
                line = raw.decode("utf-8")
                number += 1
                yield (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r\n")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 ({error.reason}); convert the file, for example with iconv"
        raise DataError(f"{path}:{number + 1}: {reason}") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read after line {number}: {reason}") from None


def open_binary(path: Path) -> IO[bytes]:
    """Opens a file for reading bytes, unpacked according to its extension."""
    opener = OPENERS.get(path.suffix)
    stream: Any = opener(path, "rb") if opener else path.open("rb")
    return io.BufferedReader(stream, 1 << 20) if opener else stream


def normalize(sentence: str) -> str:
    """Keeps what makes two sentences the same: letters and digits, without width, case, marks or spaces."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return _remove_marks("", folded) or folded.strip()


def sentence_ids(sentences: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A 64-bit id for each sentence, equal for sentences that `normalize` makes equal."""
    digest = xxhash.xxh3_64_intdigest
    ids = [digest(normalize(sentence).encode("utf-8", "surrogatepass")) for sentence in sentences]
    return np.array(ids, dtype=np.uint64).view(np.int64)
