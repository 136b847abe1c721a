"""Alignments for other tools and for readers: XLIFF 2, TEI, a bilingual HTML page and a bilingual EPUB book.

The input is links as passages of both texts, or documents with links; `output` chooses the format by the file name.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from dualmoco.alignment.aligner import Links
from dualmoco.alignment.splitting import Document
from dualmoco.core import VERSION
from dualmoco.mining.io import xml_attribute, xml_content

Documents = tuple[Document, Document]
CHAPTER_PASSAGES = 400  # passages per file of a book, because readers are slow with long ones
ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip file, so that equal books are byte-identical


class Passage(NamedTuple):
    """The text of a link."""

    src: str  # empty if the link has no source sentence
    tgt: str
    is_confirmed: bool


def xliff(passages: Sequence[Passage], documents: Documents) -> bytes:
    """XLIFF 2.0: confirmed links are final, others translated; passages without a source are left out."""
    src, tgt = documents
    lines = [
        '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" '
        f"srcLang={xml_attribute(src.lang)} trgLang={xml_attribute(tgt.lang)}>",
        f'<file id="f1" original={xml_attribute(src.name)}>',
    ]
    for number, passage in enumerate((part for part in passages if part.src), start=1):
        state = "final" if passage.is_confirmed else "translated" if passage.tgt else "initial"
        target = f"<target>{xml_content(passage.tgt)}</target>" if passage.tgt else ""
        source = f"<source>{xml_content(passage.src)}</source>"
        lines.append(f'<unit id="u{number}"><segment state="{state}">{source}{target}</segment></unit>')
    return _xml_lines([*lines, "</file>", "</xliff>"])


TEI_NAMESPACE = "http://www.tei-c.org/ns/1.0"


def tei(documents: Documents, links: Links) -> bytes:
    """TEI P5: both texts with an id for each sentence, and a group of links between these."""
    title = xml_content(_title(documents))
    lines = [
        f'<TEI xmlns="{TEI_NAMESPACE}">',
        f"<teiHeader><fileDesc><titleStmt><title>{title}</title></titleStmt>",
        "<publicationStmt><p>unpublished</p></publicationStmt>",
        f"<sourceDesc><p>aligned with dualmoco {VERSION}</p></sourceDesc></fileDesc></teiHeader>",
        '<standOff><linkGrp type="alignment">',
    ]
    for spans in zip(links.src.tolist(), links.tgt.tolist(), strict=True):
        src, tgt = ([f"#{side}{number + 1}" for number in range(*span)] for side, span in zip("st", spans, strict=True))
        if src and tgt:
            lines.append(f'<link target="{" ".join(src + tgt)}"/>')
    lines.append("</linkGrp></standOff><text><group>")
    for side, document in zip("st", documents, strict=True):
        lines.extend(_tei_text(side, document))
    return _xml_lines([*lines, "</group></text>", "</TEI>"])


def _tei_text(side: str, document: Document) -> Iterator[str]:
    yield f"<text xml:lang={xml_attribute(document.lang)} n={xml_attribute(document.name)}><body>"
    numbered = enumerate(zip(document.sentences, document.places, strict=True), start=1)
    for _, members in groupby(numbered, key=lambda item: item[1][1].partition(".")[0]):
        sentences = (f'<s xml:id="{side}{number}">{xml_content(text)}</s>' for number, (text, _) in members)
        yield f"<p>{' '.join(sentences)}</p>"
    yield "</body></text>"


BILINGUAL_STYLE = """\
body { font: 1em/1.6 Georgia, "Noto Serif", "Noto Serif CJK SC", "Songti SC", serif;
       margin: 1.5em auto; max-width: 64em; padding: 0 1em; }
h1 { font-size: 1.4em; font-weight: normal; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; }
td { padding: .25em 1em .25em 0; vertical-align: top; overflow-wrap: anywhere; }
td + td { padding: .25em 0 .25em 1em; }
@media (max-width: 40em) {
  td, td + td { display: block; padding: 0 0 .4em; } td + td { padding: 0 0 .9em 1em; }
}
"""
SCREEN_STYLE = """\
:root { color-scheme: light dark; }
"""


def bilingual_page(passages: Sequence[Passage], documents: Documents) -> bytes:
    """An HTML page to read: both texts side by side, or below each other on a phone."""
    title = xml_content(_title(documents))
    lines = [
        f'<!DOCTYPE html>\n<html lang={xml_attribute(documents[0].lang)}>\n<head>\n<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{title}</title>\n<style>\n{SCREEN_STYLE}{BILINGUAL_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        *_table(passages, documents),
        "</body>\n</html>\n",
    ]
    return "\n".join(lines).encode()


def _table(passages: Sequence[Passage], documents: Documents) -> Iterator[str]:
    yield "<table>"
    for passage in passages:
        cells = zip((passage.src, passage.tgt), (document.lang for document in documents), strict=True)
        filled = (f'<td lang={xml_attribute(lang)} dir="auto">{xml_content(text)}</td>' for text, lang in cells)
        yield f"<tr>{''.join(filled)}</tr>"
    yield "</table>"


def bilingual_epub(passages: Sequence[Passage], documents: Documents) -> bytes:
    """An EPUB 3 book with both texts side by side, in parts of CHAPTER_PASSAGES links."""
    starts = range(0, max(1, len(passages)), CHAPTER_PASSAGES)
    parts = {
        f"part{number}.xhtml": passages[start : start + CHAPTER_PASSAGES]
        for number, start in enumerate(starts, start=1)
    }
    files = {
        "META-INF/container.xml": _xml_lines(
            [
                '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>',
                '<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/>',
                "</rootfiles></container>",
            ]
        ),
        "book.opf": _package(list(parts), documents, passages),
        "nav.xhtml": _navigation(list(parts), documents),
        "style.css": BILINGUAL_STYLE.encode(),
        **{name: _xhtml(_title(documents), _table(part, documents)) for name, part in parts.items()},
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as book:
        book.writestr(zipfile.ZipInfo("mimetype", ZIP_TIME), "application/epub+zip")  # first, and not compressed
        for name, content in files.items():
            book.writestr(zipfile.ZipInfo(name, ZIP_TIME), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _package(parts: list[str], documents: Documents, passages: Sequence[Passage]) -> bytes:
    digest = hashlib.sha256("\n".join(f"{part.src}\t{part.tgt}" for part in passages).encode()).hexdigest()
    items = ['<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>']
    items += [f'<item id="{_id(name)}" href="{name}" media-type="application/xhtml+xml"/>' for name in parts]
    spine = "".join(f'<itemref idref="{_id(name)}"/>' for name in parts)
    return _xml_lines(
        [
            '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">',
            '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">',
            f'<dc:identifier id="id">urn:dualmoco:{digest[:32]}</dc:identifier>',
            f"<dc:title>{xml_content(_title(documents))}</dc:title>",
            *(f"<dc:language>{xml_content(document.lang)}</dc:language>" for document in documents),
            '<meta property="dcterms:modified">2000-01-01T00:00:00Z</meta>',  # required
            "</metadata>",
            f'<manifest>{"".join(items)}<item id="style" href="style.css" media-type="text/css"/></manifest>',
            f"<spine>{spine}</spine>",
            "</package>",
        ]
    )


def _id(name: str) -> str:
    return name.partition(".")[0]


def _navigation(parts: list[str], documents: Documents) -> bytes:
    entries = "".join(f'<li><a href="{name}">{number}</a></li>' for number, name in enumerate(parts, start=1))
    return _xhtml(_title(documents), iter([f'<nav epub:type="toc"><ol>{entries}</ol></nav>']))


def _xhtml(title: str, body: Iterator[str]) -> bytes:
    return _xml_lines(
        [
            '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">',
            f"<head><title>{xml_content(title)}</title>",
            '<link rel="stylesheet" type="text/css" href="style.css"/></head>',
            "<body>",
            *body,
            "</body></html>",
        ]
    )


def _title(documents: Documents) -> str:
    return " / ".join(document.name for document in documents)


def _xml_lines(lines: list[str]) -> bytes:
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *lines, ""]).encode()
