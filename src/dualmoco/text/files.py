"""Text files, plain or compressed: find them, open them, read their lines and tab-separated cells.

Files are in UTF-8. UTF-16 with a byte order mark, GB18030 and Big5 are recognised, and converted while they are read.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import io
import logging
import lzma
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from dualmoco.core.errors import ConfigError, DataError, require

READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # raised by missing and damaged files
BYTE_ORDER_MARK = "\ufeff"
STANDARD_INPUT = "-"
MAX_SENTENCE_BYTES = 1 << 20  # limit for a line; encoding a line takes a hundred times its size in memory
logger = logging.getLogger(__name__)

ENCODING_MARKS = {  # UTF-32 first, because its mark starts with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
CHINESE_ENCODINGS = {"gb18030": "GB18030", "big5hkscs": "Big5"}
FREQUENT_HAN = frozenset(
    "的一在是我用个你有们了不和中以这可为他人数要行会时能到使对上如来将于下文定发大地过所作多出分方并动本生其法后国或它成理进"
    "子就自前面者新年当同么点而被之说得那也内最她道没好看想心事天见家只把手很去都还個們這爲為數會時對來將於發過並動後國進當麼"
    "點說內沒見還"
)
"""These make up a third of the characters of Chinese text, and almost none of wrongly decoded text."""
MIN_FREQUENT_SHARE = 0.15  # share of the characters beyond ASCII
MIN_FREQUENT_KINDS = 5  # distinct characters; wrongly decoded German umlauts also give a few
MAX_ZERO_SHARE = 0.05  # share of the bytes; a few stray zeros in a large file are tolerated

PLAIN_SUFFIXES = frozenset(
    {"", *".txt .text .lc .tc .tok .bpe .raw .snt .sent .sents .lines .clean .norm .src .tgt .trg .ref .hyp".split()}
)
"""Extensions of plain text, and of files with one sentence per line."""
LANGUAGE_SUFFIX = re.compile(r"\.(?:[a-z]{2,3}(?:[-_][a-z]{2,4}){0,2}|\d+|.*\s.*)")
"""A language such as .en or .zh-CN, a number, or the end of a title such as `Dr. No`."""
OTHER_SUFFIXES = frozenset(
    ".7z .aac .ass .avi .azw .bat .bib .bin .bmp .cfg .cpp .css .csv .dat .db .dbf .dll .doc .eml .eps .exe .fb2 .flv "
    ".gif .gz .htm .ico .ics .ini .iso .jar .jpg .js .jsx .log .lrc .md .mid .mkv .mo .mov .mpg .npy .npz .odp .ods "
    ".odt .ogg .otf .pdf .php .pkl .png .po .pot .pps .ppt .prc .psd .py .pyc .rar .rb .rpm .rst .rtf .sbv .sgm .smi "
    ".sql .srt .ssa .sub .svg .swf .tab .tar .tbx .tex .tgz .tif .tmx .tsv .tsx .ttf .vcf .vtt .wav .wma .wmv .xlf "
    ".xls .xml .xsd .xsl .xz .yml .zip .zst".split()
)
"""Well-known file types of two or three letters, which are therefore not languages."""


@contextmanager
def standard_input(names: Sequence[str], suffix: str = ".txt") -> Iterator[list[str]]:
    """Yields file names in which `-` is replaced by a temporary file with the content of standard input.

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
    """A file that reports the number of bytes read."""

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


def plain_suffix(path: Path) -> str:
    """The extension of a file in lower case, without that of its compression."""
    name = path.name.lower()
    for suffix in DECOMPRESSORS:
        name = name.removesuffix(suffix)
    return Path(name).suffix


def is_plain_text(path: Path) -> bool:
    """Whether the extension of a file means plain text, is a language as in `train.en`, or is missing."""
    suffix = plain_suffix(path)
    return suffix in PLAIN_SUFFIXES or (suffix not in OTHER_SUFFIXES and bool(LANGUAGE_SUFFIX.fullmatch(suffix)))


def check_sentence_file(path: Path) -> None:
    """DataError if the extension says that the file is not text with one sentence per line."""
    if not is_plain_text(path):
        suffix = plain_suffix(path)
        advice = (
            f"cut -f 1 {path.name} > sentences.txt writes the first column"
            if suffix in (".tsv", ".tab")
            else "write its sentences to a .txt file"
        )
        raise DataError(f"{path}: {suffix} is not plain text; expected one sentence per line; {advice}")


def open_text(path: Path, progress: Callable[[int], None] | None = None) -> IO[bytes]:
    """Opens a text file like `open_binary`; other encodings are converted to UTF-8 and logged."""
    stream = open_binary(path, progress)
    try:
        sample = stream.peek()  # type: ignore[attr-defined]  # about a megabyte, which stays to be read
        encoding = recognise_encoding(sample)
        if encoding == "utf-8" and sample.count(0) > MAX_ZERO_SHARE * len(sample):
            raise DataError(f"{path}: not UTF-8 text (zero bytes); convert the file, for example with iconv")
    except BaseException:
        stream.close()
        raise
    if encoding == "utf-8":
        return stream
    log_encoding(str(path), encoding)
    return io.BufferedReader(_Converted(stream, encoding), 1 << 20)


@cache
def log_encoding(name: str, encoding: str) -> None:
    """Logs once that a file is not in UTF-8."""
    logger.info("%s: read as %s", name, CHINESE_ENCODINGS.get(encoding, encoding.upper()))


def recognise_encoding(sample: bytes) -> str:
    """The encoding of a text that begins with `sample`: utf-8 if the sample is valid or no other encoding is likely."""
    for mark, encoding in ENCODING_MARKS.items():
        if sample.startswith(mark):
            return encoding
    if _is_utf8(sample):
        return "utf-8"
    shares = {encoding: _frequent_share(sample, encoding) for encoding in CHINESE_ENCODINGS}
    likely = max(shares, key=shares.__getitem__)
    return likely if shares[likely] >= MIN_FREQUENT_SHARE else "utf-8"


def _is_utf8(sample: bytes) -> bool:
    """Whether a sample is UTF-8, possibly damaged: over half of its bytes beyond ASCII form valid characters."""
    if sample.isascii():
        return True
    valid = len(sample.decode("utf-8", "ignore").encode())
    beyond = len(sample) - sum(map(sample.count, range(128)))
    return 2 * (len(sample) - valid) < beyond


def _frequent_share(sample: bytes, encoding: str) -> float:
    """The share of frequent Chinese characters in a sample; 0 if not in this encoding, or if too few are distinct."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)  # the last character may be cut off
    except UnicodeDecodeError:
        return 0.0
    beyond = [character for character in text if not character.isascii()]
    frequent = [character for character in beyond if character in FREQUENT_HAN]
    return len(frequent) / len(beyond) if len(set(frequent)) >= MIN_FREQUENT_KINDS else 0.0


class _Converted(io.RawIOBase):
    """A stream in some encoding as UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self.stream, self.decoder = stream, codecs.getincrementaldecoder(encoding)()
        self.rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = b"."
        while chunk and not self.rest:
            chunk = self.stream.read(1 << 16)
            self.rest = self.decoder.decode(chunk, final=not chunk).encode()
        part = self.rest[: len(buffer)]
        buffer[: len(part)] = part
        self.rest = self.rest[len(part) :]
        return len(part)

    def close(self) -> None:
        self.stream.close()
        super().close()


def read_lines(path: Path, *, errors: str = "strict") -> Iterator[str]:
    """Yields the lines of a text file, plain or compressed, without line ends; a DataError names the line."""
    number = 0
    try:
        with open_text(path) as stream:
            for lines in _blocks_of_lines(stream):
                for raw in lines:
                    line = raw.decode("utf-8", errors)
                    number += 1
                    yield (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r\n")
    except _LongLineError:
        limit = f"expected at most {MAX_SENTENCE_BYTES:,} bytes"
        raise DataError(f"{path}:{number + 1}: the line is too long; {limit}; break it into sentences") from None
    except UnicodeDecodeError as error:
        encoding = CHINESE_ENCODINGS.get(error.encoding, error.encoding.upper())
        reason = f"not {encoding} ({error.reason}); convert the file, for example with iconv"
        raise DataError(f"{path}:{number + 1}: {reason}") from None
    except READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read after line {number}: {reason}") from None


class _LongLineError(Exception):
    """A line is longer than MAX_SENTENCE_BYTES."""


def _blocks_of_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yields the lines of a stream without their line feeds, some at a time."""
    rest = b""
    while block := stream.read1(MAX_SENTENCE_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + block).split(b"\n")
        if len(lines[0] if lines else rest) > MAX_SENTENCE_BYTES:  # all other lines begin and end in this block
            raise _LongLineError
        yield lines
    if rest:
        yield [rest]


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
            raise DataError(f"{path}:{number}: empty cell; expected text in columns {', '.join(map(str, columns))}")
        rows.append((number, chosen))
    if not rows:
        raise DataError(f"{path}: no lines of data; expected a tab-separated file")
    return rows
