"""The distinct sentences of a text file: each is encoded once, and every line knows its row of vectors."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from dualmoco.core.config_loader import parse_choice
from dualmoco.core.errors import DataError
from dualmoco.core.storage import new_file
from dualmoco.core.vectors import Ids
from dualmoco.data.config import OnError
from dualmoco.data.readers.base import is_unicode
from dualmoco.text.files import check_sentence_file, open_binary, read_lines

EMPTY = -1  # row of a line without text
logger = logging.getLogger(__name__)


class TextChangedError(DataError):
    """A text file was changed while it was being read."""


@dataclass(frozen=True)
class TextFile:
    """A text file with one sentence per line, and its language."""

    path: Path
    lang: str  # empty until recognised
    is_known: bool = False  # whether its language was already checked
    copied_from: str = ""  # name of the file that `path` is a copy of

    @property
    def name(self) -> str:
        """The name of the user's file."""
        return self.copied_from or self.path.name


def readable_copy(text: TextFile, path: Path) -> tuple[TextFile, int]:
    """A text with empty lines in place of those that are not UTF-8 (a copy at `path` if needed), and their number."""
    read = partial(read_lines, text.path, errors="surrogateescape")
    skipped = sum(not is_unicode(line) for line in read())
    if not skipped:
        return text, 0
    with new_file(path) as stream:
        for line in read():
            stream.write((line if is_unicode(line) else "").encode() + b"\n")
    return replace(text, path=path, copied_from=text.name), skipped


@contextmanager
def readable_texts(texts: Sequence[TextFile], on_error: str) -> Iterator[list[TextFile]]:
    """Yields texts; if `on_error` is skip, lines that are not UTF-8 become empty, and their number is logged.

    The other lines keep their numbers. ConfigError if `on_error` is neither stop nor skip.
    """
    if parse_choice(OnError, on_error, "on_error") == OnError.stop:
        yield list(texts)
        return
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as folder:
        files = []
        for number, text in enumerate(texts):
            file, skipped = readable_copy(text, Path(folder) / f"{number}.txt")
            if skipped:
                logger.warning("%s: skipped lines that are not UTF-8: %s", text.path, f"{skipped:,}")
            files.append(file)
        yield files


@dataclass(frozen=True)
class UniqueLines:
    """The row of every line; rows are distinct sentences in the order of their first lines."""

    rows: Ids  # (lines,) EMPTY for a line without text
    first: Ids  # (n,) first line, from 0, of each distinct sentence
    sha256: str  # checksum of the file's unpacked bytes
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]]  # (n,) hash of each distinct sentence


def find_unique_lines(path: Path) -> UniqueLines:
    """Finds the distinct sentences of a text file by 64-bit hashes; spaces at line ends are ignored."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected text, one sentence per line")
    check_sentence_file(path)
    before = _state(path)
    keys = np.fromiter((_key(line) for line in read_lines(path)), dtype=np.uint64)  # (lines,) 0 for an empty line
    filled = np.flatnonzero(keys)
    if not len(filled):
        raise DataError(f"{path}: no sentences in {len(keys):,} lines; expected text, one sentence per line")
    distinct, first, inverse = np.unique(keys[filled], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # distinct sentences by first line
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rows = np.full(len(keys), EMPTY, dtype=np.int64)
    rows[filled] = rank[inverse]
    lines = UniqueLines(rows, filled[first[order]], _text_sha256(path), distinct[order])
    if _state(path) != before:
        raise _changed(path)
    return lines


def unchanged_sentences(path: Path, lines: UniqueLines, rows: Ids | slice) -> Iterator[str]:
    """Yields the distinct sentences of some rows, ascending; TextChangedError if the file has changed meanwhile."""
    texts = lines_at(path, map(int, lines.first[rows]))
    for key in map(int, lines.keys[rows]):
        text = next(texts, "")
        if _key(text) != key:
            raise _changed(path)
        yield text


def lines_at(path: Path, wanted: Iterable[int]) -> Iterator[str]:
    """Yields the lines with the given numbers (from 0, ascending), without spaces at their ends."""
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


def _state(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _changed(path: Path) -> TextChangedError:
    return TextChangedError(f"{path}: changed while it was read; run the command again when the file is complete")


def _text_sha256(path: Path) -> str:
    with open_binary(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
