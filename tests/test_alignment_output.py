"""Files and the page of an alignment: read by other parsers, valid whatever sentences hold, the same every time."""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from dualmoco.alignment.aligner import Links
from dualmoco.alignment.output import (
    ALIGNMENT_ENDINGS,
    Aligned,
    AlignedPair,
    aligned_pairs,
    alignment_page,
    link_files,
    write_aligned,
)
from dualmoco.alignment.splitting import Document
from dualmoco.core.errors import ConfigError
from dualmoco.core.storage import file_sha256
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs
from dualmoco.mining.io import check_pairs_path

LANG = "{http://www.w3.org/XML/1998/namespace}lang"
EN = ['"One" <b>&amp; two.', "Tab\there,\r\nline\u2028end.", "Bell\x07 and \ufffe.", "Left out.", "Last."]
ZH = ["一和二。", "铃。", "多出来的。", "最后", "一句。"]
EXPECTED = [  # texts as one line each, for formats of text
    ('"One" <b>&amp; two. Tab here, line end.', "一和二。", "0.9123", "0.9700", "1.1 1.2", "1"),
    ("Bell\x07 and \ufffe.", "铃。", "0.0000", "0.4000", "2.1", "2"),
    ("Left out.", "", "", "0.8000", "2.2", ""),
    ("", "多出来的。", "", "0.3000", "", "4"),
    ("Last.", "最后一句。", "1.1000", "1.0000", "3.1", "5 6"),
]
TYPES = ["2-1", "1-1", "1-0", "0-1", "1-2"]


@pytest.fixture
def aligned() -> Aligned:
    """Five links of all kinds; the target has a sentence a line and an empty third line."""
    links = Links(
        np.array([[0, 2], [2, 3], [3, 4], [4, 4], [4, 5]]),
        np.array([[0, 1], [1, 2], [2, 2], [2, 3], [3, 5]]),
        np.array([0.91234, -0.00001, np.nan, np.nan, 1.1]),
        np.array([0.97, 0.4, 0.8, 0.3, 1.0]),
    )
    src = Document("a&b.en.txt", EN, ["1.1", "1.2", "2.1", "2.2", "3.1"], "en")
    tgt = Document("b.zh.txt", ZH, ["1", "2", "4", "5", "6"], "zh-CN")
    return Aligned(
        src, tgt, links, {"tool": "dualmoco align", "version": "0.1.0", "longest": 4, "texts": {"src": "0f"}}
    )


def in_xml(text: str) -> str:
    """What of a text XML can hold."""
    return text.replace("\x07", "").replace("\ufffe", "")


def test_pairs_are_the_links_in_order(aligned: Aligned) -> None:
    """Sentences of a side are joined as its language does; a missing side is empty."""
    pairs = aligned_pairs(aligned)
    assert pairs[0] == AlignedPair(f"{EN[0]} {EN[1]}", ZH[0], 0.91234, 0.97, ("1.1", "1.2"), ("1",))
    assert pairs[2] == AlignedPair("Left out.", "", None, 0.8, ("2.2",), ())
    assert pairs[4].tgt == "最后一句。"
    assert [pair.type for pair in pairs] == TYPES
    assert [pair.is_linked for pair in pairs] == aligned.links.is_linked.tolist()


def test_tsv_has_one_line_a_link(aligned: Aligned, tmp_path: Path) -> None:
    """Whatever ends lines in the texts, no line of the file is broken."""
    write_aligned(tmp_path / "a.tsv", aligned)
    text = (tmp_path / "a.tsv").read_bytes().decode()
    lines = list(csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert lines[0] == ["score", "confidence", "src", "tgt", "src_places", "tgt_places"]
    assert lines[1:] == [[score, sure, src, tgt, *places] for src, tgt, score, sure, *places in EXPECTED]


def test_parquet_has_the_texts_as_they_are(aligned: Aligned, tmp_path: Path) -> None:
    """Nothing is replaced, a missing score is null, and sentences are there one by one."""
    write_aligned(tmp_path / "a.parquet", aligned)
    table = pq.read_table(tmp_path / "a.parquet")
    rows = table.to_pylist()
    assert list(rows[0]) == [
        "score",
        "confidence",
        "src",
        "tgt",
        "src_places",
        "tgt_places",
        "src_sentences",
        "tgt_sentences",
    ]
    assert rows[0]["src"] == f"{EN[0]} {EN[1]}" and rows[0]["src_sentences"] == EN[:2]
    assert [row["score"] for row in rows] == [0.91234, -0.00001, None, None, 1.1]
    assert [row["confidence"] for row in rows] == [0.97, 0.4, 0.8, 0.3, 1.0]
    assert [(row["src_places"], row["tgt_places"]) for row in rows] == [row[4:] for row in EXPECTED]
    assert [row["tgt_sentences"] for row in rows] == [ZH[:1], ZH[1:2], [], ZH[2:3], ZH[3:]]
    assert table.schema.metadata == {
        b"tool": b"dualmoco align",
        b"version": b"0.1.0",
        b"longest": b"4",
        b"texts": b'{"src": "0f"}',
    }


def test_tmx_has_the_links_with_both_sides(aligned: Aligned, tmp_path: Path) -> None:
    """Its header has what TMX 1.4b requires, its units say whether they are sentences; our own reader takes them."""
    write_aligned(tmp_path / "a.tmx", aligned)
    root = ElementTree.parse(tmp_path / "a.tmx").getroot()
    assert (root.tag, root.attrib, [child.tag for child in root]) == ("tmx", {"version": "1.4"}, ["header", "body"])
    assert root[0].attrib == {
        "creationtool": "dualmoco",
        "creationtoolversion": "0.1.0",
        "segtype": "sentence",
        "o-tmf": "tsv",
        "adminlang": "en",
        "srclang": "en",
        "datatype": "plaintext",
    }
    units = list(root.iter("tu"))
    assert [unit.get("segtype") for unit in units] == ["block", "sentence", "block"]
    for unit, (src, tgt, *props) in zip(units, [row for row in EXPECTED if row[0] and row[1]], strict=True):
        assert [child.tag for child in unit] == ["prop"] * 4 + ["tuv"] * 2
        assert [prop.get("type") for prop in unit.iter("prop")] == ["score", "confidence", "src_places", "tgt_places"]
        assert [prop.text for prop in unit.iter("prop")] == props
        assert [tuv.get(LANG) for tuv in unit.iter("tuv")] == ["en", "zh-CN"]
        assert [seg.text for seg in unit.iter("seg")] == [in_xml(src), tgt]
    problems: list[int] = []
    read = read_pairs(Source(tmp_path / "a.tmx", "en", "zh"), report=lambda line, what: problems.append(line))
    assert [row.tgt for row in read] == ["一和二。", "铃。", "最后一句。"] and not problems


def test_tmx_without_what_is_no_translation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Equal sides and sides without letters are left out and counted; TSV has them."""
    caplog.set_level(logging.INFO, "dualmoco")
    src = ["One.", "13.3.1.", "https://a.b", "* * *", "1984", "OK"]
    tgt = ["一。", "13.3.2.", "https://a.b", "－－", "一九八四年", "好"]
    spans, ones = np.array([[number, number + 1] for number in range(6)]), np.ones(6)
    places = [str(number) for number in range(6)]
    aligned = Aligned(
        Document("a", src, places, "en"), Document("b", tgt, places, "zh"), Links(spans, spans, ones, ones), {}
    )
    write_aligned(tmp_path / "a.tmx", aligned)
    units = ElementTree.parse(tmp_path / "a.tmx").iter("tu")
    assert [[seg.text for seg in unit.iter("seg")] for unit in units] == [["One.", "一。"], ["OK", "好"]]
    assert caplog.messages == [f"{tmp_path / 'a.tmx'}: skipped 4 links with equal sides or without letters"]
    write_aligned(tmp_path / "a.tsv", aligned)
    assert len((tmp_path / "a.tsv").read_text(encoding="utf-8").splitlines()) == 7


@pytest.mark.skipif(shutil.which("omegat") is None, reason="needs the program omegat, Debian's package of that name")
def test_omegat_translates_by_a_tmx(aligned: Aligned, tmp_path: Path) -> None:
    """As a memory of a project of OmegaT it gives each source side its target side."""
    settings = "".join(f"<{name}_dir>__DEFAULT__</{name}_dir>" for name in ("source", "target", "tm", "glossary"))
    settings += "<source_lang>en</source_lang><target_lang>zh-CN</target_lang><sentence_seg>false</sentence_seg>"
    for folder in ("source", "target", "omegat", "glossary", "dictionary"):
        (tmp_path / folder).mkdir()
    project = f'<?xml version="1.0" encoding="UTF-8"?><omegat><project version="1.0">{settings}</project></omegat>'
    (tmp_path / "omegat.project").write_text(project, encoding="utf-8")
    write_aligned(tmp_path / "tm" / "auto" / "a.tmx", aligned)  # memories in `auto` are applied without being asked
    texts = [src for src, tgt, *_ in EXPECTED if src and tgt]
    (tmp_path / "source" / "a.txt").write_text("\n\n".join(map(in_xml, texts)), encoding="utf-8")
    command = ["omegat", str(tmp_path), "--mode=console-translate", "--quiet"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    translated = (tmp_path / "target" / "a.txt").read_text(encoding="utf-8").split("\n\n")
    assert translated == [tgt for src, tgt, *_ in EXPECTED if src and tgt]


def sentences(path: Path) -> dict[str, str]:
    """Texts of the sentences of a document by their ids."""
    return {element.attrib["id"]: element.text or "" for element in ElementTree.parse(path).getroot().iter("s")}


def test_xces_names_the_sentences_of_two_documents(aligned: Aligned, tmp_path: Path) -> None:
    """Following the links into the documents beside gives every sentence once, in order, with its paragraph."""
    write_aligned(tmp_path / "a.v1.xml", aligned)
    root = ElementTree.parse(tmp_path / "a.v1.xml").getroot()
    documents = {"fromDoc": "a.v1.src.xml", "toDoc": "a.v1.tgt.xml"}
    assert (root.tag, root.attrib) == ("cesAlign", {"version": "1.0", **documents})
    assert (root[0].tag, root[0].attrib) == ("linkGrp", {"targType": "s", **documents})
    links = list(root[0])
    assert [link.attrib for link in links[:3]] == [
        {"id": "L1", "xtargets": "s1 s2;s1", "type": "2-1", "certainty": "0.9700", "status": "auto"},
        {"id": "L2", "xtargets": "s3;s2", "type": "1-1", "certainty": "0.4000", "status": "auto"},
        {"id": "L3", "xtargets": "s4;", "type": "1-0", "certainty": "0.8000", "status": "auto"},
    ]
    assert [link.get("type") for link in links] == TYPES
    for side, name, texts in ((0, "a.v1.src.xml", EN), (1, "a.v1.tgt.xml", ZH)):
        known = sentences(tmp_path / name)
        named = [key for link in links for key in link.attrib["xtargets"].split(";")[side].split()]
        assert named == list(known) == ["s1", "s2", "s3", "s4", "s5"]
        assert list(known.values()) == [in_xml(" ".join(text.splitlines())).replace("\t", " ") for text in texts]
    src, tgt = (ElementTree.parse(tmp_path / f"a.v1.{side}.xml").getroot() for side in ("src", "tgt"))
    assert (src.get(LANG), tgt.get(LANG)) == ("en", "zh-CN")
    assert [(p.get("id"), len(p)) for p in src] == [("p1", 2), ("p2", 2), ("p3", 1)]
    assert [(p.get("id"), len(p)) for p in tgt] == [(f"p{number}", 1) for number in range(1, 6)]


def test_intertext_has_the_target_first(aligned: Aligned, tmp_path: Path) -> None:
    """Its own rules: linkGrp is the root, and types and targets name the document that is led to before the other."""
    write_aligned(tmp_path / "a.intertext.xml", aligned)
    root = ElementTree.parse(tmp_path / "a.intertext.xml").getroot()
    assert (root.tag, root.attrib) == ("linkGrp", {"toDoc": "a.tgt.xml", "fromDoc": "a.src.xml"})
    assert [(link.get("type"), link.get("xtargets")) for link in root] == [
        ("1-2", "s1;s1 s2"),
        ("1-1", "s2;s3"),
        ("0-1", ";s4"),
        ("1-0", "s3;"),
        ("2-1", "s4 s5;s5"),
    ]
    assert len(sentences(tmp_path / "a.src.xml")) == len(sentences(tmp_path / "a.tgt.xml")) == 5


@pytest.mark.parametrize("ending", ALIGNMENT_ENDINGS)
def test_every_file_has_its_origin_and_is_the_same_each_time(aligned: Aligned, tmp_path: Path, ending: str) -> None:
    """Two writes give equal bytes; counts stand beside where the links come from; nothing half-written is left."""
    for folder in ("one", "two"):
        write_aligned(tmp_path / folder / f"a{ending}", aligned)
    written = sorted(path.name for path in (tmp_path / "one").iterdir())
    beside = [file.name for file in link_files(Path(f"a{ending}"))[:-1]]
    assert written == sorted([f"a{ending}", f"a{ending}.json", *beside])
    for name in written:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    record = json.loads((tmp_path / "one" / f"a{ending}.json").read_text(encoding="utf-8"))
    assert file_sha256(tmp_path / "one" / f"a{ending}") in record.pop("written")
    assert record == {
        **aligned.origin,
        "links": 5,
        "linked": 3,
        "types": {name: 1 for name in sorted(TYPES)},
        "mean_score": 0.6708,
    }


@pytest.mark.parametrize("ending", ALIGNMENT_ENDINGS)
def test_documents_without_a_common_sentence_are_written(aligned: Aligned, tmp_path: Path, ending: str) -> None:
    """No link has both sides, or there is none at all: files are valid and the mean is null."""
    for links in (aligned.links.take(~aligned.links.is_linked), aligned.links.take(np.zeros(5, dtype=bool))):
        write_aligned(tmp_path / f"a{ending}", replace(aligned, links=links))
        counts = json.loads((tmp_path / f"a{ending}.json").read_text(encoding="utf-8"))
        assert (counts["links"], counts["linked"], counts["mean_score"]) == (len(links), 0, None)
        assert f"<dt>links</dt><dd>{len(links)}</dd>" in alignment_page(replace(aligned, links=links))


def test_paths_of_other_kinds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, an unknown ending, a missing package."""
    for ending in ALIGNMENT_ENDINGS:
        check_pairs_path(tmp_path / f"a{ending}", ALIGNMENT_ENDINGS)
    with pytest.raises(ConfigError, match=r": a folder; expected the name of a file to write$"):
        check_pairs_path(tmp_path, ALIGNMENT_ENDINGS)
    known = r"\.tsv, \.parquet, \.tmx, \.xlf, \.tei\.xml, \.html, \.epub, \.xml, \.intertext\.xml"
    expected = rf"^a\.doc: ends with \.doc; expected one of {known}$"
    with pytest.raises(ConfigError, match=expected):
        check_pairs_path(Path("a.doc"), ALIGNMENT_ENDINGS)
    with pytest.raises(ConfigError, match=r"^a: ends with nothing; expected one of"):
        check_pairs_path(Path("a"), ALIGNMENT_ENDINGS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"^Parquet needs the package pyarrow; pip install 'dualmoco\[data\]'$"):
        check_pairs_path(Path("a.parquet"), ALIGNMENT_ENDINGS)


class _Rows(HTMLParser):
    """Collects the rows of a page with their texts, and every id and every link to one."""

    VOID = ("meta", "input", "rect", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[tuple[str, list[str]]] = []
        self.langs: list[str] = []
        self.ids, self.goals = set[str](), set[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.open += [] if tag in self.VOID else [tag]
        self.ids |= {values["id"]} if "id" in values else set()
        self.goals |= {values["href"]} if "href" in values else set()
        self.langs += [values["lang"]] if "lang" in values else []
        if values.get("class", "").split()[:1] == ["row"]:
            self.rows.append((values["class"], []))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if "main" in self.open and text.strip():
            self.rows[-1][1].append(text)


def read_page(page: str) -> _Rows:
    """The rows of a page, every tag of which is closed."""
    reader = _Rows()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_page_shows_every_link_and_marks_what_is_doubtful(aligned: Aligned) -> None:
    """Texts come back as they were, escaped; low confidence has a class, a symbol and a way to the next."""
    page = alignment_page(aligned)
    read = read_page(page)
    assert [classes for classes, _ in read.rows] == [
        "row many",
        "row low",
        "row gap many",
        "row low gap many",
        "row many",
    ]
    assert read.rows[0][1] == [
        "1.1",
        '"One" <b>&amp; two.',
        "1.2",
        "Tab here, line end.",
        "2-1",
        "0.97",
        "1",
        "一和二。",
    ]
    assert read.rows[1][1] == ["2.1", "Bell and .", "⚠\ufe0e", "1-1", "0.40", "↓", "2", "铃。"]
    assert read.rows[3][1] == ["no counterpart", "⚠\ufe0e", "0-1", "0.30", "↑", "4", "多出来的。"]
    assert read.langs == ["en", *["en", "zh-CN"] * 2, "en", "zh-CN", "en", "zh-CN"]
    assert {goal.removeprefix("#") for goal in read.goals} <= read.ids
    assert "<b>&amp; two" not in page and "<h1>a&amp;b.en.txt ↔ b.zh.txt</h1>" in page
    assert "http" not in page.replace("http-equiv", "") and page.count("<script") == page.count("<script>") == 1
    assert not {"One", "铃", "innerHTML", "{{"} & set(re.findall(r"\w+|\{\{", page.partition("<script>")[2]))
    assert page == alignment_page(aligned)


def test_page_counts_and_leads_to_every_doubtful_link() -> None:
    """Of many links each low one leads to the next; the overview has columns no wider than needed."""
    count = 1234
    runs = np.stack([np.arange(count), np.arange(count) + 1], axis=1)
    confidence = np.where(np.arange(count) % 100 == 99, 0.25, 1.0)
    document = Document(
        "a", [f"s{number}" for number in range(count)], [str(number + 1) for number in range(count)], "en"
    )
    page = alignment_page(Aligned(document, document, Links(runs, runs, np.ones(count), confidence), {}))
    read = read_page(page)
    assert len(read.rows) == count
    assert list(_chain(page, "l100")) == [f"l{number}" for number in range(100, count, 100)]
    assert 'href="#l100">first low-confidence link' in page
    assert page.count("<title>links ") == 200 and "<title>links 1228 to 1234: mean confidence 1.00</title>" in page
    assert ">1,234</dd>" in page and "⚠&#xFE0E; 12</dd>" in page and "100.0 %" in page


@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs the program chromium, Debian's package of that name"
)
def test_readers_choose_the_limit_of_low_confidence(aligned: Aligned, tmp_path: Path) -> None:
    """Another limit marks, counts and connects other links, and moves the line of the overview."""
    move = "<script>field('limit').value = 0.9; field('limit').dispatchEvent(new Event('input'));</script></body>"
    path = tmp_path / "page.html"
    path.write_text(alignment_page(aligned).replace("</body>", move), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    shown = subprocess.run(["chromium", *options, path.as_uri()], check=True, capture_output=True, timeout=120)
    page = shown.stdout.decode()
    rows = read_page(page).rows
    assert [number for number, (classes, _) in enumerate(rows, start=1) if "low" in classes.split()] == [2, 3, 4]
    assert rows[2][1] == ["2.2", "Left out.", "⚠\ufe0e", "1-0", "0.80", "↑", "↓", "no counterpart"]
    assert [cell for cell in rows[3][1] if cell in "↑↓"] == ["↑"]
    assert re.search(r'id="low-count"[^>]*>⚠\ufe0e 3<', page) and re.search(r'id="limit-value"[^>]*>0\.90<', page)
    assert 'id="first-low" href="#l2"' in page and page.count("<rect") == 3 + 2  # and two columns of deletions


def _chain(page: str, start: str) -> Iterator[str]:
    """Yields the ids of rows, each of which leads to the one after it."""
    yield start
    row = page.split(f'id="{start}"')[1].split('<div class="row')[0]
    if 'title="next' in row:
        yield from _chain(page, row.split('" title="next')[0].rpartition('href="#')[2])


def test_page_without_its_package_says_what_to_install(aligned: Aligned, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        ConfigError, match=r"^A page of an alignment needs the package jinja2; pip install 'dualmoco\[eval\]'$"
    ):
        alignment_page(aligned)
