"""Readers of line-based files: tab- and comma-separated, JSON lines, two aligned files, Moses archives."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import IO, Any

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.data.readers.base import (
    NEWLINE,
    AlignedLines,
    JsonLines,
    Raw,
    RawLines,
    Report,
    Row,
    Source,
    TabbedLines,
    in_blocks,
    is_unicode,
)
from dualmoco.text.files import BYTE_ORDER_MARK
from dualmoco.text.languages import base_language

BLOCK_BYTES = 2 << 20
MAX_LINE_BYTES = 8 << 20
ENCODED_MARK = BYTE_ORDER_MARK.encode()


def read_tsv(source: Source, report: Report) -> Iterator[Raw]:
    """Tab-separated columns; the first row is a header if it has the given column names, or names both languages."""
    with source.open_lines() as stream:
        layout = None
        for lines in cut_lines(stream, report):
            if layout is None:
                head, _, rest = lines.data.partition(b"\n")
                number = lines.first
                while not head.strip() and rest:
                    head, _, rest = rest.partition(b"\n")
                    number += 1
                if not head.strip():
                    continue
                cells = head.decode("utf-8", "replace").rstrip("\r").split("\t")
                layout, is_header = source.find_columns(cells, number, "tab")
                if is_header:
                    lines = RawLines(rest, number + 1)
            if lines.data:
                yield TabbedLines(lines.data, lines.first, layout)


def read_csv(source: Source, report: Report) -> Iterator[Raw]:
    """Comma-separated columns, quoted as in spreadsheets."""
    with source.open_lines() as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        yield from in_blocks(_csv_rows(csv.reader(text, strict=True), source, report))


def _csv_rows(reader: Any, source: Source, report: Report) -> Iterator[Row]:
    layout = None
    for line, cells in _csv_lines(reader, report):
        if not cells:
            continue
        if layout is None:
            layout, is_header = source.find_columns(cells, line, "comma")
            if is_header:
                continue
        if not layout.fits(len(cells)):
            report(line, layout.complaint(len(cells), "comma"))
        elif not (is_unicode(cells[layout.src]) and is_unicode(cells[layout.tgt])):
            report(line, "not UTF-8; convert the file, for example with iconv")
        else:
            yield Row(cells[layout.src], cells[layout.tgt], line)


def _csv_lines(reader: Any, report: Report) -> Iterator[tuple[int, list[str]]]:
    """The rows that can be parsed, each with the number of its last line."""
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report(reader.line_num, f"not valid CSV ({error})")
        else:
            yield reader.line_num, cells


def read_jsonl(source: Source, report: Report) -> Iterator[Raw]:
    """One JSON object per line, whose keys are the languages unless columns are given."""
    keys = source.columns or (source.src, source.tgt)
    with source.open_lines() as stream:
        for lines in cut_lines(stream, report):
            yield JsonLines(lines.data, lines.first, keys)


def read_aligned(source: Source, report: Report) -> Iterator[Raw]:
    """Two files with the same number of lines."""
    with source.open_lines() as src, source.open_tgt() as tgt:
        yield from _align(src, tgt, (str(source.path), str(source.tgt_path)), report)


def read_moses(source: Source, report: Report) -> Iterator[Raw]:
    """A zip archive with two aligned files whose extensions are the languages."""
    try:
        with zipfile.ZipFile(source.path) as archive:
            names = [_member(archive, lang, source.path) for lang in (source.src, source.tgt)]
            with archive.open(names[0]) as src, archive.open(names[1]) as tgt:
                yield from _align(src, tgt, (names[0], names[1]), report)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:  # damaged, encrypted, unknown packing
        raise DataError(f"{source.path}: not a zip archive, or damaged ({error})") from None


def _member(archive: zipfile.ZipFile, lang: str, path: Path) -> str:
    names = [name for name in archive.namelist() if PurePath(name).suffix]
    exact = [name for name in names if PurePath(name).suffix[1:] == lang]
    loose = [name for name in names if base_language(PurePath(name).suffix[1:]) == base_language(lang)]
    if not (exact or loose):
        raise DataError(f"{path}: contains {', '.join(archive.namelist())}; expected a file that ends with .{lang}")
    return (exact or loose)[0]


def _align(src: IO[bytes], tgt: IO[bytes], names: Sequence[str], report: Report) -> Iterator[Raw]:
    tgt_lines, last = _LineStream(tgt, report), 0
    for lines in cut_lines(src, report):
        data = lines.data if lines.data.endswith(b"\n") else lines.data + b"\n"
        count = data.count(b"\n")
        other = tgt_lines.take(count)
        missing = count - other.count(b"\n")
        if missing:
            raise DataError(_unequal(names[1], lines.first + count - missing - 1, names[0]))
        yield AlignedLines(data, lines.first, other)
        last = lines.first + count - 1
    if tgt_lines.take(1):
        raise DataError(_unequal(names[0], last, names[1]))


def _unequal(short: str, last: int, long: str) -> str:
    return f"{short} ends after line {last} but {long} has more; expected the same number of lines in both"


class _LineStream:
    """A file from which any number of lines can be taken."""

    def __init__(self, stream: IO[bytes], report: Report) -> None:
        self.blocks, self.buffer = cut_lines(stream, report), b""

    def take(self, count: int) -> bytes:
        parts, needed = [], count
        while needed > 0:
            if not self.buffer:
                block = next(self.blocks, None)
                if block is None:
                    break
                self.buffer = block.data if block.data.endswith(b"\n") else block.data + b"\n"
            ends = np.flatnonzero(np.frombuffer(self.buffer, dtype=np.uint8) == NEWLINE)
            cut = int(ends[min(needed, len(ends)) - 1]) + 1
            parts.append(self.buffer[:cut])
            self.buffer = self.buffer[cut:]
            needed -= min(needed, len(ends))
        return b"".join(parts)


def cut_lines(stream: IO[bytes], report: Report) -> Iterator[RawLines]:
    """Cuts a stream into blocks of whole lines, without a byte order mark; lines that are too long become empty."""
    rest, number, is_first = b"", 1, True
    for chunk in iter(lambda: stream.read(BLOCK_BYTES), b""):
        if is_first:
            chunk, is_first = chunk.removeprefix(ENCODED_MARK), False
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            data = rest + head + newline
            if len(rest) > MAX_LINE_BYTES:
                report(number, _too_long())
                data = b"\n" + data.split(b"\n", 1)[1]
            yield RawLines(data, number)
            number, rest = number + data.count(b"\n"), tail
        elif len(rest) <= MAX_LINE_BYTES:
            rest += tail
    if len(rest) > MAX_LINE_BYTES:
        report(number, _too_long())
        rest = b""
    if rest:
        yield RawLines(rest, number)


def _too_long() -> str:
    return f"longer than {MAX_LINE_BYTES >> 20} MiB; expected sentences"
