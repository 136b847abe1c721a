"""Alignments written in every format and read back, and files of other tools."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dualmoco.alignment.documents import read_text
from dualmoco.alignment.editing import EditedAlignment, LinkRow, Sentence, as_aligned, rows_of_aligned
from dualmoco.alignment.link_readers import read_alignment
from dualmoco.alignment.output import ALIGNMENT_ENDINGS, Aligned, write_aligned
from dualmoco.core.errors import DataError
from dualmoco.text.languages import recognize_language

NASTY = 'A <b>&amp; "quoted" line.'
TEI, EPUB = "{http://www.tei-c.org/ns/1.0}", "{http://www.idpf.org/2007/opf}"


def recognise(sentences: Sequence[str], name: str) -> str:
    return recognize_language(sentences, None)


@pytest.fixture
def aligned() -> Aligned:
    """Links of several types, some confirmed or edited."""
    rows = [
        LinkRow((Sentence(NASTY, "1.1"), Sentence("Second.", "1.2")), (Sentence("第一句和第二句。", "1.1"),), 0.9, 0.9),
        LinkRow((Sentence("Third.", "2.1"),), (Sentence("第三句。", "2.1"),), 0.8, 0.4, is_confirmed=True),
        LinkRow((Sentence("Only here.", "2.2"),), (), None, 0.7),
        LinkRow((), (Sentence("多出来的。", "2.2"),), is_edited=True),
        LinkRow((Sentence("Last one.", "3.1"),), (Sentence("最后", "3.1"), Sentence("一句。", "3.2")), is_edited=True),
    ]
    return as_aligned(EditedAlignment(("en", "zh"), rows), ("a.txt", "b.txt"), {"tool": "dualmoco serve"})


def shape(aligned: Aligned) -> list[tuple[list[str], list[str], float | None, str]]:
    """The rows without scores and places."""
    return [
        ([part.text for part in row.src], [part.text for part in row.tgt], row.confidence, row.status)
        for row in rows_of_aligned(aligned)
    ]


def read(path: Path) -> Aligned:
    return read_alignment(path, (None, None), recognise)


@pytest.mark.parametrize("ending", [".parquet", ".xml", ".intertext.xml", ".tsv", ".tmx", ".xlf"])
def test_what_is_written_is_read_again(aligned: Aligned, tmp_path: Path, ending: str) -> None:
    """Sentences, statuses and confidence as far as the format has them."""
    write_aligned(tmp_path / f"x{ending}", aligned)
    found, expected = read(tmp_path / f"x{ending}"), shape(aligned)
    assert (found.src.lang, found.tgt.lang) == ("en", "zh")
    joined = [("".join(src), "".join(tgt)) for src, tgt, *_ in expected]
    texts = [("".join(src), "".join(tgt)) for src, tgt, *_ in shape(found)]
    if ending == ".parquet":
        assert shape(found) == expected and found.src.places == aligned.src.places
    elif ending in (".xml", ".intertext.xml"):
        assert [row[:2] for row in shape(found)] == [row[:2] for row in expected]
        by_hand = [status != "automatic" for *_, status in expected]
        assert [status == "confirmed" for *_, status in shape(found)] == by_hand
    elif ending == ".tsv":
        assert [row[2:] for row in shape(found)] == [row[2:] for row in expected]
        assert [(src.replace(" ", ""), tgt) for src, tgt in texts] == [
            (src.replace(" ", ""), tgt) for src, tgt in joined
        ]
    else:
        assert [src.replace(" ", "") for src, _ in texts] == [joined[n][0].replace(" ", "") for n in (0, 1, 4)]


def test_only_confirmed_links_can_be_written(aligned: Aligned, tmp_path: Path) -> None:
    """XLIFF calls them final."""
    write_aligned(tmp_path / "x.xlf", aligned)
    states = [
        node.get("state") for node in ElementTree.parse(tmp_path / "x.xlf").iter() if node.tag.endswith("segment")
    ]
    assert states == ["translated", "final", "initial", "translated"]


def test_tei_has_both_texts_and_links_between_their_sentences(aligned: Aligned, tmp_path: Path) -> None:
    """Every target is the id of a sentence."""
    write_aligned(tmp_path / "x.tei.xml", aligned)
    root = ElementTree.parse(tmp_path / "x.tei.xml").getroot()
    assert root.tag == f"{TEI}TEI" and [child.tag.removeprefix(TEI) for child in root] == [
        "teiHeader",
        "standOff",
        "text",
    ]
    ids = {node.get("{http://www.w3.org/XML/1998/namespace}id"): node.text for node in root.iter(f"{TEI}s")}
    assert list(ids.values()) == [*aligned.src.sentences, *aligned.tgt.sentences]
    links = [(node.get("target") or "").split() for node in root.iter(f"{TEI}link")]
    assert links == [["#s1", "#s2", "#t1"], ["#s3", "#t2"], ["#s5", "#t4", "#t5"]]
    assert {target[1:] for link in links for target in link} <= ids.keys()


def test_page_and_book_can_be_read_as_documents(aligned: Aligned, tmp_path: Path) -> None:
    """Both languages in order; markup in sentences stays text."""
    expected = [
        NASTY + " Second.",
        "第一句和第二句。",
        "Third.",
        "第三句。",
        "Only here.",
        "多出来的。",
        "Last one.",
        "最后一句。",
    ]
    for name in ("x.html", "x.epub"):
        write_aligned(tmp_path / name, aligned)
        lines = [line for line in read_text(tmp_path / name).lines if line]
        assert [line for line in lines if line != "a.txt / b.txt"] == expected


def test_book_is_an_epub(aligned: Aligned, tmp_path: Path) -> None:
    """The type comes first and uncompressed; everything in the manifest is there, and the other way round."""
    long = replace(aligned, links=aligned.links.take(np.tile(np.arange(5), 100)), statuses=None)
    write_aligned(tmp_path / "x.epub", long)
    with zipfile.ZipFile(tmp_path / "x.epub") as book:
        first = book.infolist()[0]
        assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)
        assert book.read("mimetype") == b"application/epub+zip"
        container = ElementTree.fromstring(book.read("META-INF/container.xml"))
        assert next(node.get("full-path") for node in container.iter() if node.get("full-path")) == "book.opf"
        package = ElementTree.fromstring(book.read("book.opf"))
        items = {node.get("id"): node.get("href") or "" for node in package.iter(f"{EPUB}item")}
        assert {*items.values(), "mimetype", "META-INF/container.xml", "book.opf"} == set(book.namelist())
        spine = [node.get("idref") for node in package.iter(f"{EPUB}itemref")]
        assert spine == ["part1", "part2"] and "nav" in items
        for name in items.values():
            if name.endswith(".xhtml"):
                ElementTree.fromstring(book.read(name))


XLIFF_12 = """<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en-US" target-language="zh-CN" datatype="plaintext" original="x"><body>
<trans-unit id="1"><source>Hello <g id="1">there</g>.</source><target>你好。</target></trans-unit>
<trans-unit id="2"><source>Bye.</source><target>再见。</target></trans-unit></body></file></xliff>"""
TMX = """<?xml version="1.0"?><tmx version="1.4"><header srclang="EN-US" segtype="sentence"/><body>
<tu><tuv xml:lang="EN-US"><seg>Hello there.</seg></tuv><tuv xml:lang="ZH-CN"><seg>你好。</seg></tuv></tu>
<tu><tuv xml:lang="ZH-CN"><seg>再见。</seg></tuv><tuv xml:lang="EN-US"><seg>Bye.</seg></tuv></tu></body></tmx>"""


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.xliff", XLIFF_12), ("x.tmx", TMX), ("x.tsv", "Hello there.\t你好。\nBye.\t再见。\n")],
)
def test_files_of_other_tools_are_read(tmp_path: Path, name: str, content: str) -> None:
    """Languages are those of the file, or recognised; whatever order its variants have."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = read(tmp_path / name)
    assert [row[:2] for row in shape(found)] == [(["Hello there."], ["你好。"]), (["Bye."], ["再见。"])]
    assert (found.src.lang[:2].lower(), found.tgt.lang[:2].lower()) == ("en", "zh")
    assert {row[2:] for row in shape(found)} == {(None, "automatic")}


BAD = {
    "broken.tmx": (TMX[:200], "malformed XML"),
    "broken.xlf": ("<xliff", "malformed XML"),
    "entity.tmx": ('<!DOCTYPE x [<!ENTITY a "b">]><tmx/>', "refused as unsafe"),
    "one.tmx": ('<tmx><header srclang="en"/></tmx>', "names en; expected a source and a target language"),
    "empty.tmx": (TMX.replace("<tu>", "<x>").replace("</tu>", "</x>"), "no sentence pairs"),
    "own.tsv": ("score\tconfidence\tsrc\ttgt\tsrc_places\ttgt_places\nbad\t1\ta\tb\t1\t1\n", "own.tsv:2: 6 columns"),
    "other.xml": ("<html/>", "the root is html; expected cesAlign"),
    "alone.xml": ('<linkGrp toDoc="t.xml" fromDoc="../s.xml"/>', "refers to '../s.xml'; expected that file"),
    "book.epub": ("PK", "ends with .epub; expected an alignment"),
    "bad.parquet": ("PAR1", "not a Parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    """The line names the file, not its folder."""
    content, message = BAD[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as raised:
        read(tmp_path / name)
    assert message in str(raised.value) and str(raised.value).startswith(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("s3;s2", "s9;s2", "no sentence 's9' in the text"),
        ("s3;s2", "s2;s2", "crosses another link"),
        ("s3;s2", "s3", "expected ids;ids"),
        ('certainty="1.0000"', 'certainty="high"', "certainty 'high'; expected a number"),
    ],
)
def test_links_that_fit_no_text_are_refused(aligned: Aligned, tmp_path: Path, old: str, new: str, message: str) -> None:
    """With their line."""
    write_aligned(tmp_path / "x.xml", aligned)
    text = (tmp_path / "x.xml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "x.xml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=r"^x\.xml:\d+: ") as raised:
        read(tmp_path / "x.xml")
    assert message in str(raised.value)


def test_sentences_that_no_link_names_are_rows_of_their_own(aligned: Aligned, tmp_path: Path) -> None:
    """In their places."""
    write_aligned(tmp_path / "x.xml", aligned)
    lines = (tmp_path / "x.xml").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if 'id="L2"' not in line and 'id="L5"' not in line]
    (tmp_path / "x.xml").write_text("\n".join(kept), encoding="utf-8")
    rows = [(len(src), len(tgt)) for src, tgt, *_ in shape(read(tmp_path / "x.xml"))]
    assert rows == [(2, 1), (1, 0), (1, 0), (0, 1), (0, 1), (1, 0), (0, 1), (0, 1)]


def test_all_endings_are_tested() -> None:
    """A new format needs a line above."""
    assert {*ALIGNMENT_ENDINGS} == set(".parquet .xml .intertext.xml .tsv .tmx .xlf .tei.xml .html .epub".split())


def test_rows_are_json(aligned: Aligned) -> None:
    """Unknown numbers are null."""
    assert "NaN" not in json.dumps([row.as_json() for row in rows_of_aligned(aligned)])
