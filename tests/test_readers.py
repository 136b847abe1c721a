from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from document_files import XLIFF, XLIFF2
from dualmoco.core.errors import DataError
from dualmoco.data.readers import lines as line_readers
from dualmoco.data.readers import tmx
from dualmoco.data.readers.base import Row, SkippedLines, Source, follow
from dualmoco.data.readers.formats import READERS, guess_format, read_blocks, read_pairs

Pair = tuple[str, str]
PAIRS: list[Pair] = [("Hello, world", "你好，世界"), ("two\u3000words", "两个词"), ("third", "第三")]


def read_all(
    path: Path,
    form: str = "auto",
    columns: Pair | None = None,
    langs: Pair = ("en", "zh"),
    tgt_path: Path | None = None,
) -> tuple[list[tuple[str, str, int]], list[tuple[int, str]]]:
    """All pairs with their lines, and all problems."""
    problems: list[tuple[int, str]] = []
    rows: list[tuple[str, str, int]] = []
    source = Source(path, *langs, columns, tgt_path)
    reported: list[tuple[int, str]] = []
    for raw in read_blocks(source, form, lambda line, what: reported.append((line, what))):
        block, more = raw.parse()
        problems += more
        rows += zip(block.src.texts(), block.tgt.texts(), block.lines.tolist(), strict=True)
    return rows, sorted(problems + reported)


def pairs_of(path: Path, **options: object) -> list[Pair]:
    rows, problems = read_all(path, **options)  # type: ignore[arg-type]
    assert problems == []
    return [(src, tgt) for src, tgt, _ in rows]


def tsv(pairs: list[Pair]) -> bytes:
    return "".join(f"{src}\t{tgt}\n" for src, tgt in pairs).encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": partial(bz2.compress, compresslevel=1),
    ".xz": partial(lzma.compress, preset=0),
    ".zst": zstd,
}


@pytest.mark.parametrize("suffix", list(PACKERS))
def test_tsv_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(PACKERS[suffix](tsv(PAIRS)))
    assert pairs_of(path) == PAIRS


def test_columns_by_number_name_and_language(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("x\t你好\thello\n", encoding="utf-8")
    assert pairs_of(path, columns=("2", "1")) == [("hello", "你好")]
    path.write_text("id\tzh-CN\teng\n1\t你好\thello\n", encoding="utf-8")
    assert pairs_of(path) == [("hello", "你好")]
    assert pairs_of(path, columns=("eng", "zh-CN")) == [("hello", "你好")]
    path.write_text("Source\tTarget\nhello\t你好\n", encoding="utf-8")
    assert pairs_of(path) == [("hello", "你好")]


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        ("a\ta\tb", ("a", "b"), "twice"),
        ("a\tb", ("a", "c"), "not among a, b"),
        (
            "only",
            None,
            r"a\.tsv:1: 1 tab-separated column; expected at least 2 \(source in 0, target in 1; set",
        ),
        ("a\tb", ("0", "5"), "expected at least 6"),
    ],
)
def test_wrong_columns(tmp_path: Path, header: str, columns: Pair | None, message: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(header + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_all(path, columns=columns)


def test_tsv_problems_have_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\xef\xbb\xbfone\t\xe4\xb8\x80\r\nno tab\n\n\xff\xfe\tbad\nextra\ttab\there\ntwo\t\xe4\xba\x8c")
    rows, problems = read_all(path)
    assert rows == [("one", "一", 1), ("two", "二", 6)]
    assert [line for line, _ in sorted(problems)] == [2, 4, 5]
    assert "1 tab-separated column" in dict(problems)[2]
    assert "not UTF-8" in dict(problems)[4]
    assert "3 tab-separated column" in dict(problems)[5]


def test_columns_that_were_counted_may_be_followed_by_others(tmp_path: Path) -> None:
    """Given by number, two columns are read from every line that has them; a line that lacks one is a problem."""
    path = tmp_path / "a.tsv"
    path.write_text("id1\tHello. \t你好\tmore\n\n   \nid2\tBye\t再见\nid3\tno target\n", encoding="utf-8")
    rows, problems = read_all(path, columns=("1", "2"))
    assert rows == [("Hello. ", "你好", 1), ("Bye", "再见", 4)]
    expected = "2 tab-separated columns; expected at least 3 (source in 1, target in 2; set columns)"
    assert problems == [(5, expected)]
    assert pairs_of(path, columns=("0", "1")) == [("id1", "Hello. "), ("id2", "Bye"), ("id3", "no target")]
    assert pairs_of(path, columns=("1", "0"))[1] == ("Bye", "id2")
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n\nd,e\n", encoding="utf-8")
    assert pairs_of(path, columns=("1", "0")) == [("b", "a"), ("e", "d")]


def test_lines_before_a_header_count(tmp_path: Path) -> None:
    """Blank lines before the header or the first pair do not shift the numbers of the lines."""
    path = tmp_path / "a.tsv"
    path.write_text("\n\nen\tzh\none\t一\ntwo\n", encoding="utf-8")
    rows, problems = read_all(path)
    assert rows == [("one", "一", 4)] and [line for line, _ in problems] == [5]
    path.write_text("\n\nonly\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.tsv:3: 1 tab-separated column"):
        read_all(path)


def test_line_numbers_and_bounds_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_readers, "BLOCK_BYTES", 64)
    pairs = [(f"sentence {number} {'x' * (number % 50)}", f"句子{number}") for number in range(200)]
    path = tmp_path / "a.tsv"
    path.write_bytes(tsv(pairs))
    rows, problems = read_all(path)
    assert rows == [(src, tgt, line) for line, (src, tgt) in enumerate(pairs, start=1)]
    assert problems == []


def test_a_huge_line_is_named_and_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_readers, "BLOCK_BYTES", 100)
    monkeypatch.setattr(line_readers, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n" + "x" * 5000 + "\tc\nd\te\n", encoding="utf-8")
    rows, problems = read_all(path)
    assert [(src, tgt, line) for src, tgt, line in rows] == [("a", "b", 1), ("d", "e", 3)]
    assert problems[0][0] == 2 and "longer than" in problems[0][1]
    path.write_text("a\tb\n" + "x" * 5000, encoding="utf-8")
    rows, problems = read_all(path)
    assert len(rows) == 1 and problems[0][0] == 2


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('en,zh\n"a, ""b""",一\n"two\nlines",二\n', encoding="utf-8-sig")
    rows, problems = read_all(path)
    assert rows == [('a, "b"', "一", 2), ("two\nlines", "二", 4)]
    assert problems == []
    path.write_bytes("a,一\nonly\n".encode() + b"\xff,x\n" + "b,二\n".encode())
    rows, problems = read_all(path)
    assert [(src, tgt) for src, tgt, _ in rows] == [("a", "一"), ("b", "二")]
    assert [line for line, _ in problems] == [2, 3]


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records = [{"en": "a", "zh": "一"}, {"translation": {"en": "b", "zh": "二"}}, {"en": "c", "zh": None}]
    path.write_text("\n".join(json.dumps(r) for r in records) + '\n\n{"en": 1, "zh": "x"}\nnot json\n{"fr": "x"}\n')
    rows, problems = read_all(path)
    assert rows == [("a", "一", 1), ("b", "二", 2), ("c", "", 3)]
    assert [line for line, _ in problems] == [5, 6, 7]
    assert pairs_of_keys(tmp_path) == [("x", "y")]


def pairs_of_keys(folder: Path) -> list[Pair]:
    path = folder / "b.jsonl"
    path.write_text('{"left": "x", "right": "y"}')
    return pairs_of(path, columns=("left", "right"))


def test_aligned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_readers, "BLOCK_BYTES", 50)
    pairs = [(f"{'long ' * (number % 7)}{number}", f"行{number}") for number in range(100)]
    src, tgt = tmp_path / "a.en", tmp_path / "a.zh.gz"
    src.write_text("\n".join(pair[0] for pair in pairs), encoding="utf-8")
    tgt.write_bytes(gzip.compress("".join(f"{pair[1]}\r\n" for pair in pairs).encode()))
    assert pairs_of(src, tgt_path=tgt) == pairs


@pytest.mark.parametrize(("src", "tgt"), [("a\nb\nc\n", "一\n二\n"), ("a\n", "一\n二\n"), ("", "一\n"), ("a\n", "")])
def test_aligned_files_of_different_length(tmp_path: Path, src: str, tgt: str) -> None:
    (tmp_path / "a.en").write_text(src, encoding="utf-8")
    (tmp_path / "a.zh").write_text(tgt, encoding="utf-8")
    counts = {"a.en": src.count("\n"), "a.zh": tgt.count("\n")}
    short, long = sorted(counts, key=lambda name: counts[name])
    with pytest.raises(DataError) as caught:
        read_all(tmp_path / "a.en", tgt_path=tmp_path / "a.zh")
    expected = f"{tmp_path / short} ends after line {counts[short]} but {tmp_path / long} has more"
    assert str(caught.value).startswith(expected)


def test_moses_zip(tmp_path: Path) -> None:
    path = tmp_path / "en-zh.txt.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README", "about")
        archive.writestr("Corpus.en-zh_CN.en", "".join(f"{src}\n" for src, _ in PAIRS))
        archive.writestr("Corpus.en-zh_CN.zh_CN", "".join(f"{tgt}\n" for _, tgt in PAIRS))
    assert pairs_of(path) == PAIRS
    with pytest.raises(DataError, match=r"ends with \.fr"):
        read_all(path, langs=("en", "fr"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="not a zip archive, or damaged"):
        read_all(path)


TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="en-US"><seg>Click <bpt i="1">&lt;b&gt;</bpt><hi>here</hi><ept i="1">x</ept> &amp; go</seg></tuv>
<tuv xml:lang="zh_Hans"><seg>点击这里</seg></tuv></tu>
<tu><tuv lang="CMN"><seg>第二</seg></tuv><tuv lang="eng"><seg>second</seg></tuv><tuv lang="fr"><seg>2</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>seul</seg></tuv></tu>
</body></tmx>"""


def test_tmx(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx.xz"
    path.write_bytes(lzma.compress(TMX.encode()))
    rows, problems = read_all(path)
    assert rows == [("Click here & go", "点击这里", 4), ("second", "第二", 6), ("alone", "", 7)]
    assert problems == []
    with pytest.raises(DataError, match="no de segments; found en, fr, zh"):
        read_all(path, langs=("en", "de"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TMX[:-30], r"a\.tmx:\d+: malformed XML"),
        (TMX.replace("<hi>", "<hi"), r"a\.tmx:4: malformed XML"),
        ('<!DOCTYPE t [<!ENTITY a "b">]><tmx>&a;</tmx>', "entity; refused"),
        ('<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><tmx>&x;</tmx>', "entity; refused"),
        ("", "malformed XML"),
    ],
)
def test_bad_tmx(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_all(path)


def test_tmx_in_utf16(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(TMX.replace("UTF-8", "UTF-16"), encoding="utf-16")
    assert len(pairs_of(path)) == 3


def test_parquet_and_arrow(tmp_path: Path) -> None:
    table = pa.table(
        {"zh": [tgt for _, tgt in PAIRS] + [None], "en": [src for src, _ in PAIRS] + ["x"], "id": [1, 2, 3, 4]}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert pairs_of(tmp_path / "a.parquet") == [*PAIRS, ("x", "")]
    for name, opener in (("a.arrow", pa.ipc.new_file), ("b.arrow", pa.ipc.new_stream)):
        with opener(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
        assert pairs_of(tmp_path / name) == [*PAIRS, ("x", "")]
    nested = pa.table({"translation": [{"en": "a", "zh": "一"}]})
    pq.write_table(nested, tmp_path / "n.parquet")
    assert pairs_of(tmp_path / "n.parquet") == [("a", "一")]
    pq.write_table(pa.table({"en": ["a"], "fr": ["b"]}), tmp_path / "w.parquet")
    with pytest.raises(DataError, match="columns en, fr; expected en and zh"):
        read_all(tmp_path / "w.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="not a Parquet file, or damaged"):
        read_all(tmp_path / "bad.parquet")


DAMAGE_ARROW = """
import random, sys
from pathlib import Path
import pyarrow as pa
from document_files import XLIFF, XLIFF2
from dualmoco.core.errors import DataError
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs
path, draw, sound = Path(sys.argv[1]), random.Random(1), []
flat = pa.table({"en": [f"sentence {n}" for n in range(50)], "zh": [f"第{n}句话" for n in range(50)]})
nested = pa.table({"translation": [{"en": f"s {n}", "zh": f"句{n}"} for n in range(50)]})
for table in (flat, nested):
    for opener in (pa.ipc.new_file, pa.ipc.new_stream):
        with opener(str(path), table.schema) as writer:
            writer.write_table(table)
        sound.append(path.read_bytes())
read = 0
for _ in range(400):
    content = bytearray(draw.choice(sound))
    for _ in range(draw.randint(1, 4)):
        content[draw.randrange(len(content))] = draw.choice([0, 1, 127, 255, draw.randrange(256)])
    path.write_bytes(content)
    try:
        list(read_pairs(Source(path, "en", "zh"), report=lambda line, what: None))
        read += 1
    except DataError:
        pass
print(read)
"""


def test_damaged_arrow_files_do_not_crash(tmp_path: Path) -> None:
    """Offsets that point outside of the file were followed, and the process died."""
    words = [sys.executable, "-c", DAMAGE_ARROW, str(tmp_path / "a.arrow")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert 20 < int(ran.stdout) < 380


def test_one_bad_row_of_an_arrow_file_costs_one_row(tmp_path: Path) -> None:
    content = pa.array([b"a", b"\xff", b"c"], pa.binary())
    table = pa.table({"en": content.view(pa.string()), "zh": ["一", "二", "三"]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    rows, problems = read_all(tmp_path / "a.arrow")
    assert rows == [("a", "一", 1), ("c", "三", 3)]
    assert [line for line, _ in problems] == [2] and "not readable" in problems[0][1]


def test_xliff(tmp_path: Path) -> None:
    """Translated units only; suggestions, formatting codes and the data of codes are left out; either direction."""
    (tmp_path / "a.xlf").write_text(XLIFF, encoding="utf-8")
    expected = [("Open the file.", "打开文件。"), ("Two. Three.", "二。三。")]
    assert pairs_of(tmp_path / "a.xlf") == expected
    assert pairs_of(tmp_path / "a.xlf", langs=("zh", "en")) == [(tgt, src) for src, tgt in expected]
    (tmp_path / "b.xliff").write_text(XLIFF2, encoding="utf-8")
    assert pairs_of(tmp_path / "b.xliff") == [("Open the file.", "打开文件。")]
    with pytest.raises(DataError, match="no fr segments; found en, zh"):
        read_all(tmp_path / "a.xlf", langs=("en", "fr"))
    (tmp_path / "a.xlf").write_text('<!DOCTYPE t [<!ENTITY a "b">]><xliff>&a;</xliff>', encoding="utf-8")
    with pytest.raises(DataError, match="entity; refused"):
        read_all(tmp_path / "a.xlf")


def test_packed_catalogues_and_segments_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes of gzip can fill any memory."""
    pytest.importorskip("polib")
    monkeypatch.setattr(tmx, "MAX_CATALOGUE_BYTES", 10_000)
    monkeypatch.setattr(tmx, "MAX_SEGMENT_CHARACTERS", 10_000)
    (tmp_path / "zh.po.gz").write_bytes(gzip.compress(b"# x\n" * 10_000))
    with pytest.raises(DataError, match=r"zh\.po\.gz: too large when unpacked; expected at most 10,000 bytes"):
        read_all(tmp_path / "zh.po.gz")
    for name, content, end in (("a.tmx", TMX, "</seg>"), ("a.xlf", XLIFF, "</target>")):
        (tmp_path / name).write_text(content.replace(end, "x" * 10_001 + end, 1), encoding="utf-8")
        with pytest.raises(DataError, match=rf"{name}:\d+: a segment is too long; expected at most 10,000 characters"):
            read_all(tmp_path / name)


def test_tables_in_other_encodings(tmp_path: Path) -> None:
    """GB18030 and UTF-16 as spreadsheets write them."""
    text = "".join(
        f"{src}\t{tgt}\n" for src, tgt in [("He came.", "他来了，我们都在这里。"), ("Yes.", "是的，可以的。")]
    )
    for encoding in ("gb18030", "utf-16"):
        (tmp_path / "a.tsv").write_bytes(text.encode(encoding))
        assert pairs_of(tmp_path / "a.tsv") == [tuple(line.split("\t")) for line in text.splitlines()]


def test_dataset_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra dualmoco[datasets] is not installed")
    folder = tmp_path / "set"
    datasets.Dataset.from_dict({"en": [src for src, _ in PAIRS], "zh": [tgt for _, tgt in PAIRS]}).save_to_disk(
        str(folder)
    )
    assert pairs_of(folder) == PAIRS


PO = """msgid ""
msgstr ""
"Language: zh_CN\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

msgid "Open"
msgstr "打开"

#, fuzzy
msgid "Close"
msgstr "关"

msgid "one file"
msgid_plural "%d files"
msgstr[0] "%d 个文件"

msgid "untranslated"
msgstr ""

#~ msgid "old"
#~ msgstr "旧"
"""


def test_gettext(tmp_path: Path) -> None:
    polib = pytest.importorskip("polib")
    path = tmp_path / "zh.po"
    path.write_text(PO, encoding="utf-8")
    expected = [("Open", "打开"), ("%d files", "%d 个文件")]
    assert pairs_of(path) == expected
    assert pairs_of(path, langs=("zh", "en")) == [(tgt, src) for src, tgt in expected]
    with pytest.raises(DataError, match="translates into zh"):
        read_all(path, langs=("en", "fr"))
    polib.pofile(str(path)).save_as_mofile(str(tmp_path / "zh.mo"))
    assert sorted(pairs_of(tmp_path / "zh.mo")) == sorted(expected)
    (tmp_path / "zh.po.gz").write_bytes(gzip.compress(PO.encode()))
    assert pairs_of(tmp_path / "zh.po.gz") == expected
    path.write_text('msgid "a"\nnonsense\n', encoding="utf-8")
    with pytest.raises(DataError, match="not a gettext catalogue, or damaged"):
        read_all(path)
    (tmp_path / "bad.mo").write_bytes(b"\x00" * 40)
    with pytest.raises(DataError, match="not a gettext catalogue, or damaged"):
        read_all(tmp_path / "bad.mo")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_truncated_archives_name_the_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """All pairs before the damage are given, and the error names the line after which there are no more."""
    monkeypatch.setattr(line_readers, "BLOCK_BYTES", 1 << 16)
    path = tmp_path / f"a.tsv{suffix}"
    generator = random.Random(1)
    lines = [f"{generator.getrandbits(320):x}\t{number}\n" for number in range(40_000)]  # more than one buffer
    path.write_bytes(PACKERS[suffix]("".join(lines).encode())[:-400])
    source, problems, given = Source(path, "en", "zh"), list[tuple[int, str]](), list[Row]()
    given += read_pairs(source, report=lambda line, what: problems.append((line, what)))
    assert [f"{row.src}\t{row.tgt}\n" for row in given] == lines[: len(given)]
    last = given[-1].line
    assert len(problems) == 1 and problems[0][0] == last + 1 and 0 < last < 40_000
    assert problems[0][1].startswith(f"cannot be read after line {last}")
    refusing = SkippedLines(skip=False)
    with pytest.raises(DataError, match=rf"^{re.escape(str(path))}: cannot be read after line {last}"):
        list(read_pairs(source, report=partial(refusing.report, path)))


def test_absent_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.tsv: cannot be opened"):
        read_all(tmp_path / "absent.tsv")
    with pytest.raises(DataError, match="unknown extension"):
        guess_format(Source(tmp_path / "a.docx", "en", "zh"))
    (tmp_path / "a.tsv.gz").write_bytes(b"no gzip at all")
    with pytest.raises(DataError, match="cannot be opened: Not a gzipped file"):
        read_all(tmp_path / "a.tsv.gz")


def test_rows_have_their_lines_and_every_unreadable_line_is_reported(tmp_path: Path) -> None:
    """Lines that a reader refuses and lines that parsing refuses are reported alike; the rest keep their numbers."""
    path = tmp_path / "a.tsv"
    path.write_bytes("one\t一\nno tab\n\n".encode() + b"\xff\tbad\n" + "two\t二\nthree\t\n".encode())
    problems: list[tuple[int, str]] = []
    rows = list(read_pairs(Source(path, "en", "zh"), report=lambda line, what: problems.append((line, what))))
    assert rows == [Row("one", "一", 1), Row("two", "二", 5), Row("three", "", 6)]
    assert sorted(line for line, _ in problems) == [2, 4]
    path = tmp_path / "a.csv"
    path.write_text("one,一\nonly\ntwo,二\n", encoding="utf-8")
    problems.clear()
    rows = list(read_pairs(Source(path, "en", "zh"), report=lambda line, what: problems.append((line, what))))
    assert rows == [Row("one", "一", 1), Row("two", "二", 3)]
    assert problems == [(2, "1 comma-separated column; expected at least 2 (source in 0, target in 1; set columns)")]
    with pytest.raises(DataError, match=r"absent\.tsv: no such file; expected sentence pairs"):
        next(read_pairs(Source(tmp_path / "absent.tsv", "en", "zh"), report=lambda line, what: None))


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.parquet", "a.en"])
def test_progress_ends_at_the_size_of_the_files(tmp_path: Path, name: str) -> None:
    """Whether or not a reader reports bytes, a source has counted in full when the next one begins."""
    path, tgt_path = tmp_path / name, tmp_path / "a.zh" if name == "a.en" else None
    if name == "a.parquet":
        pq.write_table(pa.table({"en": ["a"], "zh": ["一"]}), path)
    else:
        path.write_bytes(PACKERS[path.suffix if path.suffix in PACKERS else ""](tsv(PAIRS)))
    if tgt_path:
        tgt_path.write_bytes(tsv(PAIRS))
    size = path.stat().st_size + (tgt_path.stat().st_size if tgt_path else 0)
    counted = 0

    def advance(count: int) -> None:
        nonlocal counted
        counted += count

    for number, source in enumerate(follow([Source(path, "en", "zh", tgt_path=tgt_path)] * 2, advance)):
        assert counted == number * size == number * source.size
        assert list(read_pairs(source, report=lambda line, what: None))
        assert counted > number * size or name == "a.parquet"
    assert counted == 2 * size


def test_files_of_a_folder_are_numbered_as_one(tmp_path: Path) -> None:
    """The rows of a folder of Parquet files have numbers of their own, though each file begins at one."""
    for number, part in enumerate((PAIRS[:2], PAIRS[2:])):
        columns = {"src": [src for src, _ in part], "tgt": [tgt for _, tgt in part]}
        pq.write_table(pa.table(columns), tmp_path / f"train-{number}.parquet")
    rows = read_pairs(Source(tmp_path, "en", "zh"), report=lambda line, what: None)
    assert list(rows) == [Row(src, tgt, line) for line, (src, tgt) in enumerate(PAIRS, start=1)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r\ufeff"), max_size=8)] * 2),
        max_size=20,
    )
)
def test_what_is_written_as_tsv_is_read(tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair]) -> None:
    pairs = [("first", "第一"), *pairs]
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    path.write_bytes(tsv(pairs))
    assert pairs_of(path) == pairs


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([name for name in READERS if name not in ("dataset", "aligned")]))
def test_no_bytes_break_a_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes, form: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / {"gettext": "a.po"}.get(form, "a.bin")
    path.write_bytes(data)
    try:
        read_all(path, form)
    except DataError as error:
        assert "\n" not in str(error)


def test_an_empty_last_line_after_a_broken_one(tmp_path: Path) -> None:
    """A line that is not UTF-8 and an empty last line leave the lines between them where they are."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\x80\n{"en":"a","zh":"b"}\n\n')
    rows, problems = read_all(path, "jsonl")
    assert rows == [("a", "b", 2)]
    assert [line for line, _ in problems] == [1] and "not UTF-8" in problems[0][1]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_breaks_a_reader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes of sound files are cut out, doubled or changed."""
    sound = {
        "tsv": tsv(PAIRS),
        "tmx": TMX.encode(),
        "gettext": PO.encode(),
        "csv": b'a,"b"\nc,d\n',
        "jsonl": b'{"en":"a","zh":"b"}\n',
    }
    form = data.draw(st.sampled_from(list(sound)))
    content = bytearray(sound[form])
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        content = content or bytearray(b"x")
    path = tmp_path_factory.mktemp("fuzz") / {"gettext": "a.po"}.get(form, "a.bin")
    path.write_bytes(bytes(content))
    try:
        read_all(path, form)
    except DataError as error:
        assert "\n" not in str(error)
