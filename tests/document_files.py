"""Small documents in many formats, for tests of their readers."""

from __future__ import annotations

import zipfile
from pathlib import Path

XHTML = 'xmlns="http://www.w3.org/1999/xhtml"'
CONTAINER = """<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata/><manifest>
<item id="b" href="text/second%20part.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="text/first.xhtml" media-type="application/xhtml+xml"/>
<item id="n" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="c" href="cover.jpg" media-type="image/jpeg"/></manifest>
<spine><itemref idref="c"/><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/></spine></package>"""
BOOK = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": CONTAINER,
    "OEBPS/book.opf": PACKAGE,
    "OEBPS/nav.xhtml": f"<html {XHTML}><head><title/></head><body><nav><ol><li>Contents</li></ol></nav></body></html>",
    "OEBPS/text/first.xhtml": f"""<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html {XHTML}><head><title/><script src="x.js"/></head><body><h1>One<a id="x"/></h1><p>First&nbsp;page, caf&eacute;.</p>
</body></html>""",
    "OEBPS/text/second part.xhtml": f"<html {XHTML}><body><p>第二页。</p></body></html>",
}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def epub(path: Path, **changes: str | bytes | None) -> Path:
    """Writes the book; a change by the last part of a name, before its dot, replaces a file or leaves it out."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in BOOK.items():
            changed = changes.get(Path(name).stem, content)
            if changed is not None:
                archive.writestr(name, changed)
        if encryption := changes.get("encryption"):
            archive.writestr("META-INF/encryption.xml", encryption)
    return path


SRT = """1
00:00:01,000 --> 00:00:03,500
<i>Where have you been
all this time?</i>

2
00:00:04,000 --> 00:00:05,000 X1:40 X2:600
{\\an8}I was waiting for the train

3
00:00:05,200 --> 00:00:07,000
that never came.

4
00:00:07,100 --> 00:00:08,000
- Really?
- <font color="#fff">Really.</font>

5
00:00:09,000 --> 00:00:10,000
42

6
00:00:15,000 --> 00:00:16,000
Tom &amp; Ann left
7
00:00:20,000 --> 00:00:21,000
The end.
"""
VTT = """\ufeffWEBVTT - a title

STYLE
::cue { color: red }

NOTE this is
a comment

first cue
00:01.000 --> 00:03.500 align:start
<v Ann>Where have you been
all <00:02.000>this <c.loud>time</c>?

00:00:04.000 --> 00:00:05.000
I was waiting for the train

NOTE in between

00:00:05.200 --> 00:00:07.000
that never came.
"""


def odt(path: Path, body: str, automatic: str = "", styles: str | None = None) -> Path:
    names = "office style text table draw".split()
    spaces = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in names)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        content = f"<office:automatic-styles>{automatic}</office:automatic-styles><office:body>{body}</office:body>"
        archive.writestr("content.xml", f"<office:document-content {spaces}>{content}</office:document-content>")
        if styles is not None:
            archive.writestr("styles.xml", f"<office:styles {spaces}>{styles}</office:styles>")
    return path


def pdf(path: Path, pages: list[list[str]]) -> Path:
    """A PDF file with lines of Latin text."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>"]
    objects.append("<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
    for number, lines in enumerate(pages):
        stream = "BT /F1 11 Tf 14 TL 50 780 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
        place = 5 + 2 * number
        page = f"/MediaBox[0 0 595 842]/Resources<</Font<</F1 3 0 R>>>>/Contents {place} 0 R"
        objects += [f"<</Type/Page/Parent 2 0 R{page}>>", f"<</Length {len(stream)}>>stream\n{stream}\nendstream"]
    content, offsets = "%PDF-1.4\n", []
    for number, item in enumerate(objects, start=1):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{item}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    trailer = f"trailer<</Size {size}/Root 1 0 R>>\nstartxref\n{len(content)}\n%%EOF"
    return write(path, f"{content}xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode("latin-1"))


RTF = (
    r"{\rtf1\ansi\ansicpg936\deff0{\fonttbl{\f0\fnil\fcharset134 SimSun;}}{\*\generator Riched20;}"
    r"\pard\f0 A {\b bold} word, caf\u233?.\par \'d6\'d0\'ce\'c4\u12290?\par"
    r"\trowd\cellx100\cellx200\intbl left\cell right\cell\row\pard end.\par}"
)
XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="a" source-language="en-US" target-language="zh-CN" datatype="plaintext"><body>
<trans-unit id="1"><source>Open <g id="1">the <x id="2"/>file</g><ph id="3">&lt;br&gt;</ph>.</source>
<target state="final">打开<g id="1">文件</g>。</target>
<alt-trans><source>Open</source><target>不要</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Not translated.</source></trans-unit>
<trans-unit id="3"><source>Two. Three.</source><seg-source><mrk mtype="seg" mid="1">Two.</mrk> <mrk mtype="seg"
mid="2">Three.</mrk></seg-source><target><mrk mtype="seg" mid="1">二。</mrk><mrk mtype="seg" mid="2">三。</mrk></target>
</trans-unit></body></file></xliff>"""
XLIFF2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="zh-Hans">
<file id="f"><unit id="1"><originalData><data id="d1">&lt;b&gt;</data></originalData><segment>
<source>Open <pc id="1">the</pc> file.</source><target>打开文件。</target></segment>
<ignorable><source> </source></ignorable><segment state="initial">
<source>Save it.</source><target/></segment></unit></file></xliff>"""
