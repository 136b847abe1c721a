"""Tests of reading lines from plain and compressed files, and of the ids by which equal sentences are known."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dualmoco.core.errors import DataError
from dualmoco.text.files import find_files, read_lines

LINES = ["Hello.\t你好。", "", "  spaces stay  ", "naïve café\u2028still the same line\x0bhere\x85", "last"]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": partial(lzma.compress, preset=0),
    ".bz2": partial(bz2.compress, compresslevel=1),
}


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(PACKERS[path.suffix if path.suffix in PACKERS else ""](content))
    return path


def test_find_files_takes_names_and_globs(tmp_path: Path) -> None:
    """Names keep their order, a glob's files are sorted, folders are left out, absolute names ignore the root."""
    for name in ("b.tsv", "a.tsv", "deep/down/c.tsv", "z.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "folder.tsv").mkdir()
    root = str(tmp_path)
    assert find_files(["z.txt", "*.tsv"], root) == [tmp_path / "z.txt", tmp_path / "a.tsv", tmp_path / "b.tsv"]
    assert find_files(["**/c.tsv"], root) == [tmp_path / "deep/down/c.tsv"]
    assert find_files([str(tmp_path / "a.tsv")], "/nowhere") == [tmp_path / "a.tsv"]
    assert find_files([], root) == []


@pytest.mark.parametrize("name", ["missing.tsv", "*.nothing", "folder"])
def test_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    """A name or glob without a file is an error that shows where it was looked for."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "there.tsv").write_text("x", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        find_files(["there.tsv", name], tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / name}: no such file; expected a file or a glob")
    assert f"relative paths start from {tmp_path}" in str(caught.value)


def test_root_is_no_glob(tmp_path: Path) -> None:
    """Brackets in the name of the data folder stand for themselves."""
    folder = tmp_path / "data [2021]"
    folder.mkdir()
    (folder / "a.tsv").write_text("x", encoding="utf-8")
    assert find_files(["*.tsv"], folder) == [folder / "a.tsv"]


@pytest.mark.parametrize("suffix", PACKERS)
def test_lines_are_the_same_however_packed(tmp_path: Path, suffix: str) -> None:
    """Only line feeds end a line, and the last line needs none."""
    for end in ("", "\n"):
        path = _write(tmp_path / f"text{suffix}", ("\n".join(LINES) + end).encode())
        assert list(read_lines(path)) == LINES


@pytest.mark.parametrize("suffix", PACKERS)
def test_mark_and_carriage_returns_are_removed(tmp_path: Path, suffix: str) -> None:
    """A file from Windows gives the same lines; a byte order mark later in the file is kept."""
    content = "\ufeff" + "\r\n".join([*LINES, "\ufeffkept"]) + "\r\n"
    assert list(read_lines(_write(tmp_path / f"text{suffix}", content.encode()))) == [*LINES, "\ufeffkept"]


def test_empty_file_has_no_lines(tmp_path: Path) -> None:
    """Nothing is read from nothing."""
    assert list(read_lines(_write(tmp_path / "empty", b""))) == []
    assert list(read_lines(_write(tmp_path / "empty.gz", b""))) == []


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize(("line", "reason"), [(1, "invalid start byte"), (4, "invalid start byte")])
def test_invalid_utf8_is_refused_with_its_line(tmp_path: Path, suffix: str, line: int, reason: str) -> None:
    """The lines before the bad one are given, then the error names it."""
    rows = [b"good"] * 6
    rows[line - 1] = b"bad \xff"
    path = _write(tmp_path / f"text{suffix}", b"\n".join(rows))
    lines = read_lines(path)
    assert [next(lines) for _ in range(line - 1)] == ["good"] * (line - 1)
    with pytest.raises(DataError) as caught:
        next(lines)
    assert str(caught.value).startswith(f"{path}:{line}: not UTF-8 ({reason}); convert the file, for example with icon")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    """Half a compressed file is an error that says how far reading came, not half a corpus."""
    content = "\n".join(os.urandom(20).hex() for _ in range(35_000)).encode()
    path = _write(tmp_path / f"text{suffix}", content)
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) * 9 // 10])
    given = 0
    with pytest.raises(DataError, match=r"cannot be read after line \d+: .*ended before the end-of-stream") as caught:
        for line in read_lines(path):
            assert len(line) == 40
            given += 1
    assert 0 < given < 35_000
    assert f"{path}: cannot be read after line {given}: " in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_file_of_another_format_is_refused(tmp_path: Path, suffix: str) -> None:
    """Plain text under a compressed file's name is an error."""
    path = tmp_path / f"text{suffix}"
    path.write_bytes(b"plain text\n" * 20)
    with pytest.raises(DataError, match=r"text\.\w+: cannot be read after line 0: \w+"):
        list(read_lines(path))


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    """Wherever a byte of a gzip file was changed, the error is ours."""
    packed = gzip.compress(b"".join(b"line %d\n" % number for number in range(300)))
    path = tmp_path / "text.gz"
    for place in range(20, len(packed) - 8, 5):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0x5A]) + packed[place + 1 :])
        with pytest.raises(DataError, match=r"text\.gz: cannot be read after line|text\.gz:\d+: not UTF-8"):
            list(read_lines(path))


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    """A file that has gone since it was found, or is a folder, is an error with the system's reason."""
    with pytest.raises(DataError, match=r"gone\.tsv: cannot be read after line 0: No such file or directory"):
        list(read_lines(tmp_path / "gone.tsv"))
    with pytest.raises(DataError, match="cannot be read after line 0: Is a directory"):
        list(read_lines(tmp_path))
