"""A document of any usual format as lines of text: plain, Markdown, HTML, DOCX or EPUB."""

from __future__ import annotations

import codecs
import html
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dualmoco.alignment.document import Text
from dualmoco.core.errors import DataError, require
from dualmoco.data.readers.source import plain_suffix
from dualmoco.data.text import READ_ERRORS, open_binary, read_lines

MAX_UNPACKED_BYTES = 1 << 30
"""Of a DOCX or EPUB file; a few kilobytes of zip can hold more than any memory."""
UNREADABLE = frozenset(".azw .azw3 .doc .djvu .mobi .odt .pdf .rtf".split())

# an archive that is damaged, encrypted or packed in a way that Python does not know
ZIP_ERRORS = (zipfile.BadZipFile, RuntimeError, NotImplementedError, *READ_ERRORS)
BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hr html legend li main ol p pre section summary table tbody td tfoot th "
    "thead tr ul".split()
)
UNSEEN = frozenset(  # rt and rp: how to pronounce the characters below them
    "button head iframe math nav noscript object rp rt script select style svg template textarea".split()
)
CHAPTERS = frozenset({"application/xhtml+xml", "text/html"})
CHARSET = re.compile(rb"""<(?:\?xml[^>]*?\sencoding|meta[^>]*?charset)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
HEAD_BYTES = 4096  # where a page declares its encoding, and whether it is XML
SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "iso-8859-1": "cp1252", "utf-16": "utf-8"}
"""What browsers take a declared encoding for: pages name the older standard but use the characters of the newer one,
and a declaration that is read before it is decoded is not in UTF-16."""
FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:(?:[\w-]+[ \t]*:|[ \t#-]).*\n|\n)*?(?:---|\.\.\.)[ \t]*\n")
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
WORD_SEEN = (f"{WORD}t", f"{WORD}tab", f"{WORD}br", f"{WORD}cr")  # text, and what stands for white space
WORD_UNSEEN = (
    f"{WORD}moveFrom",
    f"{WORD}rt",
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",  # a text box again, for old programs
)


def read_text(path: Path) -> Text:
    """Reads a document, its format told by the extension of the file.

    Args:
        path: Markdown (.md, .markdown), HTML (.html, .htm, .xhtml), .docx or .epub; any other file is plain text. All
            but the last two may be compressed.

    Returns:
        Its lines as they are if it is plain; else each paragraph, heading, list item and table cell as a line, and an
        empty line after each.

    Raises:
        DataError: A file that is absent, damaged, in another encoding or a format that cannot be read, or without text.
        ConfigError: A package that the format needs is not installed.
    """
    form = plain_suffix(path)
    if path.is_dir() or not path.exists():
        reason = "a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {reason}; expected a document: .txt, .md, .html, .docx or .epub")
    if form in UNREADABLE:
        raise DataError(f"{path}: {form} cannot be read; convert the file to .docx, .epub, .html or .txt first")
    reader = PARAGRAPH_READERS.get(form)
    lines = [line for paragraph in reader(path) for line in (paragraph, "")] if reader else list(_plain_lines(path))
    if not any(map(str.strip, lines)):
        raise DataError(f"{path}: holds no text; expected at least one sentence; check that it is the right file")
    return Text(str(path), lines, is_plain=reader is None)


def _plain_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        if "\0" in line:  # Latin letters in UTF-16 are valid UTF-8, with a zero byte beside each
            raise DataError(f"{path}:{number}: not UTF-8 (zero bytes); convert the file, for example with iconv")
        yield line


def _collapse(text: str) -> str:
    return " ".join(text.replace("\u00ad", "").split())  # soft hyphens are not seen inside a line


def _markdown_paragraphs(path: Path) -> Iterator[str]:
    markdown = require("markdown_it", "align", "A Markdown file").MarkdownIt("commonmark")
    source = FRONT_MATTER.sub("", "\n".join(_plain_lines(path)) + "\n")
    for token in markdown.enable(["table", "strikethrough"]).parse(source):
        if token.type == "inline" and (text := _collapse("".join(map(_seen_of_markdown, token.children)))):
            yield text


def _seen_of_markdown(token: Any) -> str:
    if token.type in ("text", "code_inline"):
        return str(token.content)
    is_break = token.type in ("softbreak", "hardbreak") or token.content.startswith("<br")
    return " " if is_break else ""


def _page_paragraphs(path: Path) -> Iterator[str]:
    try:
        with open_binary(path) as stream:
            page = stream.read()
    except READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    yield from _html_paragraphs(page, str(path))


def _html_paragraphs(page: bytes, name: str) -> Iterator[str]:
    """Yields the text of each block of a page that a browser would show."""
    etree = require("lxml.etree", "align", "HTML")
    pieces: list[str] = []
    walker = etree.iterwalk(_parse_page(page, name), events=("start", "end", "comment", "pi"))
    for event, node in walker:
        tag = etree.QName(node).localname.lower() if isinstance(node.tag, str) else ""
        if tag in BLOCKS:
            if text := _collapse("".join(pieces)):
                yield text
            pieces = []
        if event == "start":
            if tag in UNSEEN or (tag and "hidden" in node.attrib):
                walker.skip_subtree()
            elif tag:
                pieces.append(" " if tag == "br" else node.text or "")
            else:
                pieces.append(html.unescape(node.text))  # an entity such as &nbsp; that XML knows only by its DTD
        else:
            pieces.append(node.tail or "")
    if text := _collapse("".join(pieces)):
        yield text


def _parse_page(page: bytes, name: str) -> Any:
    """The root of a page; XHTML is parsed as XML, since in HTML `<a/>` would not be closed."""
    etree, parsers = require("lxml.etree", "align", "HTML"), require("lxml.html", "align", "HTML")
    head = page[:HEAD_BYTES]
    utf8 = _decode(page, name).encode()
    if b"<?xml" in head or b"http://www.w3.org/1999/xhtml" in head:
        try:
            return _parse_xml(utf8, encoding="utf-8")
        except etree.XMLSyntaxError:
            pass  # many pages that call themselves XHTML are not
    try:
        return parsers.document_fromstring(utf8, parser=parsers.HTMLParser(encoding="utf-8", no_network=True))
    except etree.LxmlError:  # nothing but white space and comments
        return etree.Element("html")


def _parse_xml(document: bytes, encoding: str | None = None) -> Any:
    etree = require("lxml.etree", "align", "An EPUB file")
    return etree.fromstring(document, etree.XMLParser(encoding=encoding, resolve_entities=False, no_network=True))


def _decode(page: bytes, name: str) -> str:
    declared = CHARSET.search(page[:HEAD_BYTES])
    encoding = declared[1].decode().lower() if declared else "utf-8"
    encoding = SUPERSETS.get(encoding, encoding)
    if page.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return page.decode(encoding).removeprefix("\ufeff")
    except (UnicodeDecodeError, LookupError) as error:
        reason = f" ({error.reason} at byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        reason = f"not in the encoding {encoding}{reason}; expected UTF-8 or the encoding that the page declares"
        raise DataError(f"{name}: {reason}; convert the file, for example with iconv") from None


def _docx_paragraphs(path: Path) -> Iterator[str]:
    etree, docx = require("lxml.etree", "align", "A DOCX file"), require("docx", "align", "A DOCX file")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, sum(member.file_size for member in archive.infolist()))
        body = docx.Document(str(path)).element.body
    except DataError:
        raise
    except Exception as error:  # python-docx has no error of its own: a damaged file ends in any of Python's
        reason = f"not a DOCX file, or damaged ({' '.join(str(error).split())})"
        raise DataError(f"{path}: {reason}; open it in a word processor and save it again") from None
    etree.strip_elements(body, *WORD_UNSEEN, with_tail=False)
    for paragraph in body.iter(f"{WORD}p"):  # python-docx itself would pass over forms, text boxes and insertions
        parts = paragraph.iter(*WORD_SEEN)
        own = (part for part in parts if next(part.iterancestors(f"{WORD}p")) is paragraph)
        if text := _collapse("".join(part.text or "" if part.tag == WORD_SEEN[0] else " " for part in own)):
            yield text


def _epub_paragraphs(path: Path) -> Iterator[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            book = _Book(path, archive)
            for name in book.chapters():
                yield from _html_paragraphs(book.read(name), f"{path}: {name}")
    except ZIP_ERRORS as error:
        raise DataError(f"{path}: not a zip archive, or damaged ({error}); expected an EPUB book") from None


class _Book:
    """The files of an EPUB book, unpacked one by one as long as they are not too large together."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self.archive = archive
        self.unpacked = 0  # bytes

    def chapters(self) -> list[str]:
        """Names of the pages in the order of reading."""
        rootfile = self._xml("META-INF/container.xml").find(".//{*}rootfile[@full-path]")
        if rootfile is None:
            raise DataError(f"{self.path}: META-INF/container.xml names no package; expected an EPUB book")
        place = rootfile.get("full-path")
        package = self._xml(place)
        pages = {
            item.get("id"): posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(item.get("href", ""))))
            for item in package.iterfind("{*}manifest/{*}item")
            if item.get("media-type") in CHAPTERS
        }
        order = [item.get("idref") for item in package.iterfind("{*}spine/{*}itemref")]
        spine = [pages[name] for name in order if name in pages]
        if not spine:
            raise DataError(f"{self.path}: {place} has no pages in its spine; expected an EPUB book that can be read")
        if locked := self._encrypted() & set(spine):
            raise DataError(f"{self.path}: {min(locked)} is encrypted; expected a book without copy protection")
        return spine

    def read(self, name: str) -> bytes:
        """The content of one file."""
        try:
            with self.archive.open(name) as member:
                content = member.read(MAX_UNPACKED_BYTES - self.unpacked + 1)  # the size that is stated may be a lie
        except KeyError:
            raise DataError(f"{self.path}: lacks {name}; expected an EPUB book with all of its files") from None
        self.unpacked += len(content)
        _check_size(self.path, self.unpacked)
        return content

    def _encrypted(self) -> set[str]:
        if "META-INF/encryption.xml" not in self.archive.namelist():
            return set()
        references = self._xml("META-INF/encryption.xml").iterfind(".//{*}CipherReference")
        return {unquote(reference.get("URI", "")) for reference in references}

    def _xml(self, name: str) -> Any:
        try:
            return _parse_xml(self.read(name))
        except SyntaxError as error:  # of XML; lxml's own is a kind of Python's
            raise DataError(f"{self.path}: {name} is not XML ({error.msg}); expected an EPUB book") from None


def _check_size(path: Path, unpacked: int) -> None:
    if unpacked > MAX_UNPACKED_BYTES:
        limit = f"expected at most {MAX_UNPACKED_BYTES:,} bytes; remove its pictures or convert it to .txt"
        raise DataError(f"{path}: too large when unpacked; {limit}")


PARAGRAPH_READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    ".md": _markdown_paragraphs,
    ".markdown": _markdown_paragraphs,
    ".html": _page_paragraphs,
    ".htm": _page_paragraphs,
    ".xhtml": _page_paragraphs,
    ".docx": _docx_paragraphs,
    ".epub": _epub_paragraphs,
}
"""The readers of formats with markup, each of which yields paragraphs on a single line."""
