"""Tests of reading lines from plain and compressed files, and of the ids by which equal sentences are known."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dualmoco.core.errors import DataError
from dualmoco.text import files
from dualmoco.text.files import check_sentence_file, find_files, is_plain_text, read_lines, recognise_encoding

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


CHINESE_LINES = [
    "他昨天来了，我们谈了很久，直到半夜才睡。",
    "",
    "“你走吗？”她问。“不走。”他说，然后看了看天上的云。",
    "Free Software 是一个说法，在这里可以用。",
]
TRADITIONAL_LINES = [
    "他昨天來了，我們談了很久，直到半夜才睡。",
    "「你走嗎？」她問。「不走。」他說，然後看了看天上的雲。",
]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("encoding", "name", "lines"),
    [
        ("gb18030", "GB18030", CHINESE_LINES),
        ("gbk", "GB18030", CHINESE_LINES),
        ("big5", "Big5", TRADITIONAL_LINES),
        ("utf-16", "UTF-16", [*LINES, "\U0001f600"]),
        ("utf-32", "UTF-32", LINES),
    ],
)
def test_other_encodings_are_recognised_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, encoding: str, name: str, lines: list[str]
) -> None:
    """The lines are those of the same file in UTF-8; the encoding is logged once, however often a file is read."""
    caplog.set_level(logging.INFO, "dualmoco")
    for end in ("\n", "\r\n"):
        path = _write(tmp_path / f"{len(end)}{suffix}", end.join([*lines, ""]).encode(encoding))
        assert list(read_lines(path)) == list(read_lines(path)) == lines
        assert caplog.messages.count(f"{path}: read as {name}") == 1


def test_utf16_of_either_byte_order(tmp_path: Path) -> None:
    for order in ("utf-16-le", "utf-16-be"):
        assert list(read_lines(_write(tmp_path / order, ("\ufeff" + "\n".join(LINES)).encode(order)))) == LINES


def test_a_long_text_in_another_encoding(tmp_path: Path) -> None:
    """Characters across the borders of the blocks that are converted are whole."""
    lines = [f"{number} {line}" for number in range(9000) for line in CHINESE_LINES]
    path = _write(tmp_path / "novel.txt", "\n".join(lines).encode("gb18030"))
    assert path.stat().st_size > 1 << 20 and list(read_lines(path)) == lines
    path.write_bytes(path.read_bytes()[:-3] + b"\xff\xff")
    with pytest.raises(
        DataError, match=r"novel\.txt:\d+: not GB18030 \(illegal multibyte sequence\); convert the file"
    ):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "Für größere Bären müssen schöne Bäume über Flüsse wachsen. Natürlich hörten wir später müde zu. "),
        ("latin-1", "Les élèves préférés du collège étaient déjà arrivés. "),
        ("cp1251", "Все счастливые семьи похожи друг на друга. "),
        ("koi8-r", "Все счастливые семьи похожи друг на друга. "),
        ("euc_kr", "안녕하세요. 오늘은 날씨가 좋습니다. 우리는 학교에 갑니다. 책을 읽고 있어요. "),
        ("shift_jis", "私は学校に行きます。今日は天気がいいですね。本を読んでいる。"),
        ("euc_jp", "私は学校に行きます。今日は天気がいいですね。本を読んでいる。何を食べましたか。"),
        ("gbk", "红楼梦"),
    ],
)
def test_what_is_no_chinese_text_is_not_taken_for_it(tmp_path: Path, encoding: str, text: str) -> None:
    """Bytes of other encodings are often valid GB18030 or Big5, but their characters are rare ones."""
    with pytest.raises(DataError, match=r"text:1: not UTF-8 \(.+\); convert the file, for example with iconv"):
        list(read_lines(_write(tmp_path / "text", text.encode(encoding))))


def test_damaged_utf8_is_not_another_encoding() -> None:
    text = "\n".join(CHINESE_LINES * 20).encode()
    assert recognise_encoding(text[:100] + b"\xb0\xa1" + text[100:]) == "utf-8"
    assert recognise_encoding(text[:-1]) == recognise_encoding(b"") == "utf-8"


def test_binary_files_are_refused(tmp_path: Path) -> None:
    """UTF-16 without a mark has many zero bytes, a single one is no matter."""
    with pytest.raises(DataError, match=r"text: not UTF-8 text \(zero bytes\); convert the file"):
        list(read_lines(_write(tmp_path / "text", "Plain.".encode("utf-16-le"))))
    assert list(read_lines(_write(tmp_path / "text", b"x" * 100 + b"\0"))) == ["x" * 100 + "\0"]


@pytest.mark.parametrize("suffix", PACKERS)
def test_long_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """Wherever a line begins in a block, the limit is the same; the lines before it are given."""
    monkeypatch.setattr(files, "MAX_SENTENCE_BYTES", 1000)
    for before in ([], ["a" * 990], ["a" * 1000] * 3, ["", "b"]):
        content = "\n".join([*before, "x" * 1000, "é" * 500, "y"])
        path = _write(tmp_path / f"text{suffix}", content.encode())
        assert [len(line.encode()) for line in read_lines(path)] == [*map(len, before), 1000, 1000, 1]
        path = _write(path, content.replace("y", "y" * 1001).encode())
        lines, found = read_lines(path), list[str]()
        message = rf"text\S*:{len(before) + 3}: the line is too long; expected at most 1,000 bytes; break it"
        with pytest.raises(DataError, match=message):
            found.extend(lines)


def test_names_of_plain_text() -> None:
    """Languages and the endings of corpora are plain text, file types are not, whatever compresses them."""
    plain = "a a.txt A.TXT a.text train.en train.zh-CN train.zh_Hans a.deu a.pl a.tok.en a.lc a.1 1.1.txt.gz a.en.xz"
    assert [name for name in [*plain.split(), "Dr. No"] if not is_plain_text(Path(name))] == []
    other = "a.json a.jsonl a.xml a.zip a.png a.csv a.tsv a.docx a.srt a.pdf a.mp3 a.html.gz a.unheard a.tmx a.yaml"
    assert [name for name in other.split() if is_plain_text(Path(name))] == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.tsv", "cut -f 1 a.tsv > sentences.txt writes the first column"),
        ("a.jsonl", "write its sentences to a .txt file"),
    ],
)
def test_files_that_are_not_sentences_are_refused(name: str, advice: str) -> None:
    with pytest.raises(DataError) as caught:
        check_sentence_file(Path(name))
    suffix = Path(name).suffix
    assert str(caught.value) == f"{name}: {suffix} is not plain text; expected one sentence per line; {advice}"
