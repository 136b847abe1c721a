"""Tests of reading documents: the same text in every format, and what is said of files that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import docx
import pytest
from docx.oxml import parse_xml

from document_files import PACKAGE, RTF, SRT, VTT, XHTML, epub, odt, pdf, write
from dualmoco.alignment import documents as reading
from dualmoco.alignment.documents import read_text
from dualmoco.alignment.splitting import SplitMode, Text, split_text
from dualmoco.core.errors import ConfigError, DataError


def paragraphs(text: Text) -> list[str]:
    """The lines of a format with markup, each of which an empty one follows."""
    assert not text.is_plain
    assert all(line for line in text.lines[::2]) and not any(text.lines[1::2])
    assert len(text.lines) % 2 == 0
    return list(text.lines[::2])


@pytest.mark.parametrize("name", ["a.txt", "a", "a.en", "A.TXT"])
def test_plain_text_stays_as_it_is(tmp_path: Path, name: str) -> None:
    """Any extension that stands for no format is plain; white space is kept, for the splitter to judge."""
    path = write(tmp_path / name, "\ufeff One.  Two.\r\n\r\n\t第三。\n")
    assert read_text(path) == Text(str(path), [" One.  Two.", "", "\t第三。"], is_plain=True)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)])
def test_compressed_text_and_markup(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    """The extension before that of the compression tells the format."""
    assert read_text(write(tmp_path / f"a.txt{suffix}", pack(b"One.\nTwo."))).lines == ["One.", "Two."]
    assert paragraphs(read_text(write(tmp_path / f"a.md{suffix}", pack(b"*One*\nline.")))) == ["One line."]
    assert paragraphs(read_text(write(tmp_path / f"a.html{suffix}", pack(b"<p>One")))) == ["One"]


@pytest.mark.parametrize("name", ["a.md", "a.markdown", "a.MD"])
def test_markdown_shows_what_a_reader_sees(tmp_path: Path, name: str) -> None:
    """Headings, paragraphs, items, cells and quotes are lines without markup; code and HTML blocks are left out."""
    source = """---
title: "No text"
tags:
  - none
---
# A *bold* title

A paragraph with a [link](http://x.y),
an ![image](i.png) and `code` &amp; more.\\
After a break<br>and one more ~~struck~~ <b>word</b>.

- first item
- second item

  its second paragraph

> A quote.

| Head | 头 |
|------|----|
| cell | 格 |

```
code is no text
```

    nor is this

<div>
nor that
</div>

[reference]: http://x.y
"""
    assert paragraphs(read_text(write(tmp_path / name, source))) == [
        "A bold title",
        "A paragraph with a link, an and code & more. After a break and one more struck word.",
        "first item",
        "second item",
        "its second paragraph",
        "A quote.",
        *("Head", "头", "cell", "格"),
    ]


def test_a_rule_at_the_beginning_is_no_front_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "a.md", "---\n\nNot a setting. At all\n\n---\n\nMore.")
    assert paragraphs(read_text(path)) == ["Not a setting. At all", "More."]


@pytest.mark.parametrize("name", ["a.html", "a.htm", "a.xhtml"])
def test_html_shows_what_a_reader_sees(tmp_path: Path, name: str) -> None:
    """Each block is a line, inline elements are part of it; what browsers do not show is left out, what follows not."""
    source = """<!DOCTYPE html><html><head><title>Title</title><style>p {}</style></head><body>
<nav><a href="/">Home</a></nav>bare text<!-- comment --> goes on
<h1>Head<em>ing</em></h1><script>var x;</script>after script
<p>A <b>bold</b>
   word,<br>a break and 漢<ruby>字<rt>zi</rt></ruby>&nbsp;&amp; soft&shy;ness.</p>
<div>outer<p>inner</p>tail</div><p hidden>hidden</p>
<ul><li>item<ul><li>nested</li></ul></li></ul><table><tr><th>a<td>b</table>
<pre>code is
  no text</pre></body></html>"""
    assert paragraphs(read_text(write(tmp_path / name, source))) == [
        "bare text goes on",
        "Heading",
        "after script",
        "A bold word, a break and 漢字 & softness.",
        *("outer", "inner", "tail", "item", "nested", "a", "b"),
    ]


@pytest.mark.parametrize(
    ("page", "encoding"),
    [
        ("<p>中文 é", "utf-8"),
        ("<p>中文 é", "utf-8-sig"),
        ("<p>中文 é", "utf-16"),
        ('<meta charset="gb2312"><p>中文 é', "gb18030"),
        ('<META http-equiv="Content-Type" content="text/html; charset=Big5"><p>中文', "big5"),
        (f'<?xml version="1.0" encoding="gbk"?><html {XHTML}><body><p>中文 é</p></body></html>', "gbk"),
        ('<meta charset="utf-16"><p>中文 é', "utf-8"),
    ],
)
def test_html_in_the_encoding_that_it_declares(tmp_path: Path, page: str, encoding: str) -> None:
    text = read_text(write(tmp_path / "a.html", page.encode(encoding)))
    assert paragraphs(text) == [page.split("<p>")[1].removesuffix("</p></body></html>")]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<p>中文".encode("gbk"), r"not in the encoding utf-8 \(.* at byte 3\); expected UTF-8 or .* with iconv"),
        (b'<meta charset="klingon"><p>x', "not in the encoding klingon; expected UTF-8 or the encoding that the page"),
    ],
)
def test_html_in_another_encoding_is_refused(tmp_path: Path, page: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_text(write(tmp_path / "a.html", page))


def test_entities_of_a_document_are_not_followed(tmp_path: Path) -> None:
    """Neither files nor entities within entities are read; the text around them is."""
    secret = write(tmp_path / "secret.txt", "secret")
    page = f"""<!DOCTYPE html [<!ENTITY file SYSTEM "{secret.as_uri()}"><!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>
<html {XHTML}><body><p>before &file; &b; after</p></body></html>"""
    (line,) = paragraphs(read_text(write(tmp_path / "a.xhtml", page)))
    assert line.startswith("before") and line.endswith("after")
    assert "secret" not in line and "aaaa" not in line


def test_deep_html_is_no_matter(tmp_path: Path) -> None:
    """Elements within elements do not exhaust the stack."""
    page = "<p>top</p>" + "<div>" * 100_000 + "deep"
    assert paragraphs(read_text(write(tmp_path / "a.html", page))) == ["top", "deep"]


@pytest.mark.parametrize("head", ["", f'<?xml version="1.0"?><html {XHTML}><body>'])
def test_no_text_of_a_page_is_lost(tmp_path: Path, head: str) -> None:
    """Unclosed tags nest thousands of elements, and a paragraph may be longer than the parser's default limit."""
    page = head + "".join(f"<p>number {number}<font>" for number in range(3000)) + f"<p>{'x' * 11_000_000}<p>end"
    found = paragraphs(read_text(write(tmp_path / "a.html", page)))
    assert found[:3000] == [f"number {number}" for number in range(3000)]
    assert len(found[3000]) == 11_000_000 and found[3001:] == ["end"]


def test_tags_that_are_no_names(tmp_path: Path) -> None:
    assert paragraphs(read_text(write(tmp_path / "a.html", '<p"x>one</p"x><p>two'))) == ["one", "two"]


@pytest.mark.parametrize("charset", ["undefined", "punycode", "utf-7", "idna", "unicode_escape", "rot13"])
def test_encodings_that_are_not_for_pages_are_refused(tmp_path: Path, charset: str) -> None:
    with pytest.raises(DataError, match=f"a.html: not in the encoding {charset}; expected UTF-8"):
        read_text(write(tmp_path / "a.html", f'<meta charset="{charset}"><p>x'))


def test_front_matter_takes_linear_time(tmp_path: Path) -> None:
    """With a pattern that backtracks, a few hundred bytes took minutes."""
    source = "---\n" + "\n" * 60 + " x:\n" * 60 + "Text."
    assert paragraphs(read_text(write(tmp_path / "a.md", source)))[-1].endswith("Text.")


def test_packed_pages_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT_BYTES", 10_000)
    with pytest.raises(DataError, match="too large when unpacked; expected at most 10,000 bytes"):
        read_text(write(tmp_path / "a.html.gz", gzip.compress(b"<p>" + b"x" * 10_000)))


def test_docx_in_document_order(tmp_path: Path) -> None:
    """Headings, paragraphs and the cells of tables, merged cells once; links and line breaks as they look."""
    document = docx.Document()
    document.add_heading("Title", 0)
    paragraph = document.add_paragraph("Some ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" text,\nnext\tline  here.")
    table = document.add_table(rows=2, cols=2)
    table.cell(0, 0).text = "左上"
    table.cell(0, 1).text = "right\n\ncell"
    table.cell(1, 0).merge(table.cell(1, 1)).text = "merged"
    document.add_paragraph("   ")
    document.add_paragraph("An item", style="List Bullet")
    document.save(str(tmp_path / "a.docx"))
    expected = ["Title", "Some bold text, next line here.", "左上", "right cell", "merged", "An item"]
    assert paragraphs(read_text(tmp_path / "a.docx")) == expected


def test_docx_with_changes_forms_and_boxes(tmp_path: Path) -> None:
    """Tracked changes count as accepted; forms and text boxes are read, once."""
    word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    compatible = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    box = "<w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent>"
    document = docx.Document()
    for content in (
        '<w:ins w:id="1"><w:r><w:t>new</w:t></w:r></w:ins><w:del w:id="2"><w:r><w:delText>old</w:delText></w:r></w:del>'
        '<w:moveFrom w:id="3"><w:r><w:t>gone</w:t></w:r></w:moveFrom><w:r><w:t> word</w:t><w:t/><w:t>s</w:t></w:r>',
        "<w:sdt><w:sdtContent><w:r><w:t>form</w:t></w:r></w:sdtContent></w:sdt>",
        f"<w:r><w:t>before</w:t><mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback>"
        "</mc:AlternateContent><w:t> after</w:t></w:r>",
    ):
        document.element.body.insert_element_before(parse_xml(f"<w:p {word} {compatible}>{content}</w:p>"), "w:sectPr")
    document.save(str(tmp_path / "a.docx"))
    assert paragraphs(read_text(tmp_path / "a.docx")) == ["new words", "form", "before after", "boxed"]


def test_epub_in_the_order_of_reading(tmp_path: Path) -> None:
    """Pages follow the spine; its pictures and the table of contents are left out; elements may close themselves."""
    assert paragraphs(read_text(epub(tmp_path / "a.epub"))) == ["One", "First page, café.", "第二页。"]


def test_epub_with_broken_xhtml(tmp_path: Path) -> None:
    """What is not XML is read as browsers do."""
    path = epub(tmp_path / "a.epub", first=f"<html {XHTML}><body><p>One<p>two &nbsp; <i>three</body>")
    assert paragraphs(read_text(path)) == ["One", "two three", "第二页。"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"container": None}, r"a\.epub: META-INF/container\.xml .*expected.* EPUB"),
        ({"container": "<container/>"}, r"a\.epub: META-INF/container\.xml .*package.*expected an EPUB"),
        ({"container": "no xml"}, r"META-INF/container\.xml is not XML \(.+\).*expected an EPUB"),
        ({"book": None}, r"a\.epub: OEBPS/book\.opf .*expected"),
        ({"book": PACKAGE.partition("<spine>")[0] + "</package>"}, r"OEBPS/book\.opf .*spine.*expected"),
        ({"first": None}, r"OEBPS/text/first\.xhtml .*missing.*expected.* EPUB"),
        ({"first": b"<p>\xff"}, r"a\.epub: OEBPS/text/first\.xhtml: not in the encoding utf-8"),
        (
            {"encryption": '<e><d><CipherReference URI="OEBPS/text/first.xhtml"/></d></e>'},
            r"OEBPS/text/first\.xhtml is encrypted.*expected",
        ),
    ],
)
def test_incomplete_epub_is_refused(tmp_path: Path, changes: dict[str, str | bytes | None], message: str) -> None:
    path = epub(tmp_path / "a.epub", **changes)
    with pytest.raises(DataError, match=message):
        read_text(path)


def test_encrypted_fonts_do_not_matter(tmp_path: Path) -> None:
    path = epub(tmp_path / "a.epub", encryption='<e><CipherReference URI="OEBPS/font.otf"/></e>')
    assert len(paragraphs(read_text(path))) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.docx", r"a\.docx: not a DOCX file.* \(.*zip.*\); open it"),
        ("a.epub", r"a\.epub: not a zip archive.* \(.*zip.*\); expected an EPUB"),
    ],
)
def test_what_is_no_zip_is_refused(tmp_path: Path, name: str, message: str) -> None:
    """Other formats under the name of these, empty files and halves of files."""
    whole = epub(tmp_path / "whole.zip").read_bytes()
    for content in (b"plain text", b"", whole[: len(whole) // 2]):
        with pytest.raises(DataError, match=message):
            read_text(write(tmp_path / name, content))


def test_zip_of_something_else_is_no_docx(tmp_path: Path) -> None:
    path = epub(tmp_path / "a.docx")
    with pytest.raises(DataError, match=r"a\.docx: not a DOCX file.* \(.+\); open it"):
        read_text(path)


def test_damaged_epub_is_refused(tmp_path: Path) -> None:
    """A changed byte in a packed page is found by its checksum or its packing."""
    content = bytearray(epub(tmp_path / "a.epub").read_bytes())
    content[content.index(b"first.xhtml") + 30] ^= 0xFF
    with pytest.raises(DataError, match=r"a\.epub: .*damaged \(.+\); expected an EPUB"):
        read_text(write(tmp_path / "a.epub", bytes(content)))


def test_zip_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are small when packed are not unpacked beyond the limit, whether one is large or many are together."""
    message = r"too large.*expected at most 10,000 bytes; .*convert it to \.txt"
    monkeypatch.setattr(reading, "MAX_UNPACKED_BYTES", 10_000)
    large = epub(tmp_path / "large.epub", first=f"<p>{'x' * 10_000}</p>")
    with pytest.raises(DataError, match=message):
        read_text(large)
    spine = PACKAGE.replace('<itemref idref="a"/>', '<itemref idref="a"/>' * 20)
    many = epub(tmp_path / "many.epub", book=spine, first=f"<p>{'x' * 1000}</p>")
    with pytest.raises(DataError, match=message):
        read_text(many)
    docx.Document().save(str(tmp_path / "a.docx"))
    with pytest.raises(DataError, match=message):
        read_text(tmp_path / "a.docx")
    assert paragraphs(read_text(epub(tmp_path / "a.epub")))


@pytest.mark.parametrize("form", [".doc", ".mobi", ".DOC"])
def test_other_formats_are_to_be_converted(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / f"a{form}", "x")
    with pytest.raises(DataError, match=rf"{form.lower()} .*convert the file to \.docx, \.epub, \.html or"):
        read_text(path)


@pytest.mark.parametrize("name", ["a.txt", "a.docx", "a.epub", "a.html", "a.md"])
def test_absent_files_and_folders_are_refused(tmp_path: Path, name: str) -> None:
    expected = "expected a document: text, Markdown, HTML, DOCX, ODT, RTF, PDF, EPUB or subtitles"
    for reason in ("no such file", "a folder"):
        with pytest.raises(DataError) as caught:
            read_text(tmp_path / name)
        said = str(caught.value)
        assert said.startswith(f"{tmp_path / name}: ") and reason in said and said.endswith(expected)
        (tmp_path / name).mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", ""),
        ("a.txt", " \n\t\n\u3000\n"),
        ("a.md", "```\ncode\n```\n"),
        ("a.html", ""),
        ("a.html", "<html><head><title>x</title></head><body><script>x</script></body></html>"),
        ("a.html", "<!-- x -->"),
    ],
)
def test_documents_without_text_are_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: .*no text; expected at least one sentence"):
        read_text(write(tmp_path / name, content))


def test_empty_books_are_refused(tmp_path: Path) -> None:
    docx.Document().save(str(tmp_path / "a.docx"))
    page = f"<html {XHTML}><body/></html>"
    content = {"first": page, "second part": page}
    for path in (tmp_path / "a.docx", epub(tmp_path / "a.epub", **content)):
        with pytest.raises(DataError, match="no text; expected"):
            read_text(path)


@pytest.mark.parametrize(("encoding", "place"), [("utf-16-le", ""), ("gb18030", ":2")])
@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_text_in_an_unclear_encoding_is_refused(tmp_path: Path, name: str, encoding: str, place: str) -> None:
    content = "Plain.\n中文。\n" if encoding == "gb18030" else "Plain.\nLines.\n"
    with pytest.raises(
        DataError, match=rf"{name}{place}: not UTF-8.* \(.+\); convert the file, for example with iconv"
    ):
        read_text(write(tmp_path / name, content.encode(encoding)))


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030"])
def test_text_and_pages_in_a_recognised_encoding(tmp_path: Path, encoding: str) -> None:
    """Also pages that declare no encoding."""
    text = "他昨天来了，我们谈了很久，直到半夜才睡。"
    for name in ("a.txt", "a.md", "a.html"):
        assert read_text(write(tmp_path / name, text.encode(encoding))).lines[0] == text


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("a.md", "markdown_it", "A Markdown file needs the package markdown_it"),
        ("a.html", "lxml.etree", "HTML needs the package lxml"),
        ("a.docx", "docx", "A DOCX file needs the package docx"),
        ("a.odt", "lxml.etree", "An ODT file needs the package lxml"),
        ("a.rtf", "striprtf.striprtf", "An RTF file needs the package striprtf"),
        ("a.pdf", "pypdfium2", "A PDF file needs the package pypdfium2"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{package}; pip install 'dualmoco\[align\]'"):
        read_text(write(tmp_path / name, "text"))


def test_subtitles_by_sentence(tmp_path: Path) -> None:
    """Numbers, times and tags are left out; a sentence may span cues unless a pause or another speaker ends it."""
    assert paragraphs(read_text(write(tmp_path / "a.srt", SRT))) == [
        "Where have you been all this time?",
        "I was waiting for the train that never came.",
        *("Really?", "Really.", "42", "Tom & Ann left", "The end."),
    ]
    assert paragraphs(read_text(write(tmp_path / "a.vtt", VTT))) == [
        "Where have you been all this time?",
        "I was waiting for the train that never came.",
    ]


def test_subtitles_without_marks(tmp_path: Path) -> None:
    """Chinese subtitles rarely end with a mark, so each cue is a sentence; lines of a cue are joined by nothing."""
    texts = ["你这些日子去哪里了", "我在等那趟车\n它没有来", "真的吗？", "OK\n我们走"]
    cues = (f"{n + 1}\r\n00:00:0{n},0 --> 00:00:0{n},9\r\n{text}\r\n\r\n" for n, text in enumerate(texts))
    path = write(tmp_path / "a.srt", "".join(cues).replace("\n", "\r\n").replace("\r\r", "\r").encode("gb18030"))
    assert paragraphs(read_text(path)) == ["你这些日子去哪里了", "我在等那趟车它没有来", "真的吗？", "OK我们走"]


def test_subtitles_without_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.srt: no time codes such as .*; expected subtitles"):
        read_text(write(tmp_path / "a.srt", "Just text."))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            "a.json a.xml a.zip a.png a.yaml a.unheard",
            r"unknown extension \.\w+; expected text, .*; rename it to \.txt",
        ),
        (
            "a.tmx a.xlf a.jsonl a.csv a.tsv.gz a.po",
            r"\.\w+ is not a document; expected text, .*dualmoco score reads it",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, names: str, message: str) -> None:
    for name in names.split():
        with pytest.raises(DataError, match=rf"{name}: {message}"):
            read_text(write(tmp_path / name, "One.\nTwo.\n"))


def test_odt_shows_what_a_reader_sees(tmp_path: Path) -> None:
    """Headings, paragraphs, items, cells and boxes; notes, comments and deleted text are left out, code too."""
    body = """<office:text><text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
<text:h>A <text:span>bold title</text:span></text:h>
<text:p>Some<text:s text:c="3"/>words,<text:line-break/>next<text:tab/>line<text:note>
<text:note-body><text:p>note</text:p></text:note-body></text:note>.<office:annotation><text:p>comment</text:p>
</office:annotation></text:p><text:list><text:list-item><text:p>item</text:p></text:list-item></text:list>
<table:table><table:table-row><table:table-cell><text:p>左</text:p></table:table-cell><table:table-cell><text:p>右</text:p>
</table:table-cell></table:table-row></table:table><text:p>before <draw:frame><draw:text-box><text:p>boxed</text:p>
</draw:text-box></draw:frame>after</text:p><text:p text:style-name="Preformatted_20_Text">code</text:p>
<text:p text:style-name="P1">more code</text:p><text:p text:style-name="P2">end</text:p></office:text>"""
    automatic = """<style:style style:name="P1" style:parent-style-name="Own"/><style:style style:name="P2"/>"""
    styles = """<style:style style:name="Preformatted_20_Text" style:display-name="Preformatted Text"/>
<style:style style:name="Own" style:parent-style-name="Preformatted_20_Text"/>"""
    path = odt(tmp_path / "a.odt", body, automatic, styles)
    expected = ["A bold title", "Some words, next line.", "item", "左", "右", "before after", "boxed", "end"]
    assert paragraphs(read_text(path)) == expected


def test_what_is_no_odt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.odt: content\.xml has no text; expected an ODT document"):
        read_text(odt(tmp_path / "a.odt", "<office:spreadsheet/>"))
    with pytest.raises(DataError, match=r"b\.odt: not a zip archive.*expected an ODT document"):
        read_text(write(tmp_path / "b.odt", "x"))
    with pytest.raises(DataError, match=r"c\.odt: content\.xml is missing; expected a complete ODT document"):
        read_text(epub(tmp_path / "c.odt"))


def test_docx_without_code(tmp_path: Path) -> None:
    """Styles for code, and those based on them."""
    document = docx.Document()
    own = document.styles.add_style("Own", 1)
    own.base_style = document.styles.add_style("Source Code", 1)
    for text, style in (
        ("Text.", None),
        ("code", "Source Code"),
        ("code", "Own"),
        ("code", "macro"),
        ("End.", "Quote"),
    ):
        document.add_paragraph(text, style=style)
    document.save(str(tmp_path / "a.docx"))
    assert paragraphs(read_text(tmp_path / "a.docx")) == ["Text.", "End."]


def test_rtf(tmp_path: Path) -> None:
    """Characters in a code page and in Unicode, paragraphs and cells; fonts and other destinations are left out."""
    expected = ["A bold word, café.", "中文。", "left", "right", "end."]
    assert paragraphs(read_text(write(tmp_path / "a.rtf", RTF))) == expected
    with pytest.raises(DataError, match=r"b\.rtf: not an RTF file; open it in a word processor"):
        read_text(write(tmp_path / "b.rtf", "text"))


def test_pdf_lines_without_page_numbers_and_heads(tmp_path: Path) -> None:
    """Lines of all pages follow each other, so that a sentence may span pages; it is split like wrapped text."""
    ends = ["One", "Two", "Three", "Four"]
    pages = [
        [f"A Tale, {n}", f"The first line of {n} is long and", f"ends. {end}", str(n)] for n, end in enumerate(ends)
    ]
    text = read_text(pdf(tmp_path / "a.pdf", pages))
    assert not text.is_plain
    assert text.lines == [line for page in pages for line in page[1:3]]
    document = split_text(text, "en", SplitMode.auto)
    assert document.sentences[0] == "The first line of 0 is long and ends."
    assert len(read_text(pdf(tmp_path / "b.pdf", pages[:2])).lines) == 6


def test_damaged_pdf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a\.pdf: not a PDF file, damaged, or locked by a password \(.+\); save it again"
    ):
        read_text(write(tmp_path / "a.pdf", "text"))
    with pytest.raises(DataError, match=r"b\.pdf: contains no text; expected at least one sentence"):
        read_text(pdf(tmp_path / "b.pdf", [[]]))
