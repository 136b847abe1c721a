"""What is aligned and what comes of it: a document as sentences, two documents with their links."""

from __future__ import annotations

import codecs
import html
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby, islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dualmoco.alignment.align import Links
from dualmoco.core.errors import DataError, require
from dualmoco.data.readers.base import plain_suffix
from dualmoco.text.files import READ_ERRORS, open_binary, read_lines
from dualmoco.text.languages import WITHOUT_SPACES, base_language


@dataclass(frozen=True)
class Text:
    """A document as lines, before it is split; an empty line ends a paragraph."""

    name: str
    """Of the file, for messages."""
    lines: Sequence[str]
    is_plain: bool = True
    """Whether it may hold one sentence a line: not so for formats with markup, whose lines are paragraphs."""


@dataclass(frozen=True)
class Document:
    """A document as sentences, none of them empty."""

    name: str
    sentences: Sequence[str]
    places: Sequence[str]
    """Where each stands, from 1: the number of its line, or of its paragraph and of itself in it, such as 3.2."""
    lang: str


@dataclass(frozen=True)
class Aligned:
    """Two documents and their links."""

    src: Document
    tgt: Document
    links: Links
    origin: Mapping[str, object]
    """Model, checksums of the texts and every setting."""


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

SAMPLE_LINES = 500  # that show whether lines are sentences
SEVERAL_SHARE = 0.1  # of them with more than one sentence, from which they are not
BROKEN_SHARE = 0.5  # of lines that break off in a sentence, from which a text is hard-wrapped
FULL_SHARE = 0.6  # of the longest line's length, from which a line may have been broken for want of room
STOPS_SHARE = 0.1  # of lines with a full stop; fewer, and joined lines would never be cut apart again
OUTLIERS = 100  # one line in so many may be longer than the width of the text: an address, a row of a table

CLOSERS = "”’」』）】"
STOPS = ".!?…。！？｡．؟۔।॥።។။།"
FINAL = re.compile(rf"""[{STOPS}:：]["')\]»›“{CLOSERS}]*$|["»›{CLOSERS}]$""")
QUOTATION = re.compile(
    r"“[^“”]+”|‘(?:[^‘’]|’(?=[a-z]))+’|\"[^\"]+\"|„[^„“]+“|«[^«»]+»|»[^«»]+«|「[^「」]+」|『[^『』]+』"
)
LABEL = re.compile(r"\W*(?:\d{1,3}|[A-Za-z]|[ivx]+)[.)）]\s*")  # 1. or (a): of an item, it belongs to what follows
LEADING_CLOSERS = re.compile(rf"[{CLOSERS}]+")
CONTINUES = re.compile(r"[，、；：,;]")  # begins no sentence
UNFINISHED = re.compile(r"(?:(?<![A-Za-z])[A-Z][a-z]{0,3}\.|》)\s*$")  # Mr. amid Chinese; a title such as 《谁？》
UNCUT = re.compile(
    rf"[。！？｡][{CLOSERS}]*\s*(?=[0-9a-z])"  # the splitter never begins a sentence with a digit or a small letter
    rf"|(?:。）|[。！？｡][”’」』]{{2,}})\s*(?=[^\s{CLOSERS}，、；：])"  # nor looks beyond one closing mark
    r"|…[”’」』]+\s*(?=[“‘「『])"  # one speaker trails off, another begins; elsewhere …… is as often a pause as an end
)
LONG_TEXT = re.compile(r".{4000}[^。！？]*[。！？]+|.+", re.DOTALL)
"""Parts that the splitter is given one by one, for its time grows with the square of a Chinese text's length."""


class SplitMode(StrEnum):
    """Whether the lines of a document are cut into sentences."""

    auto = "auto"
    """Yes for formats with markup and for plain text whose lines are paragraphs or hard-wrapped, else no."""
    yes = "yes"
    """Lines are joined to paragraphs where they were hard-wrapped, and paragraphs are cut."""
    no = "no"
    """Every line that is not empty is one sentence."""


def split_text(text: Text, lang: str, split: SplitMode) -> Document:
    """Finds the sentences of a document.

    Args:
        text: The document as lines.
        lang: Its language.
        split: Whether lines are cut.

    Returns:
        Its sentences with their places: numbers of lines if they are not cut, such as 7, else of paragraphs and of
        sentences in them, such as 3.2.

    Raises:
        DataError: A document without sentences.
        ConfigError: The splitter is not installed.
    """
    code = base_language(lang)
    if split is SplitMode.yes or (split is SplitMode.auto and _needs_cutting(text, code)):
        found = [
            (f"{number}.{position}", sentence)
            for number, paragraph in enumerate(_paragraphs(text.lines, code), start=1)
            for position, sentence in enumerate(map(str.strip, _sentences(paragraph, code)), start=1)
        ]
    else:
        found = [(str(number), line.strip()) for number, line in enumerate(text.lines, start=1) if line.strip()]
    if not found:
        raise DataError(f"{text.name}: holds no sentences; expected at least one line of text")
    places, sentences = zip(*found, strict=True)
    return Document(text.name, sentences, places, lang)


def _needs_cutting(text: Text, code: str) -> bool:
    if not text.is_plain:
        return True
    sample = list(islice(filter(None, map(_collapse_spaces, text.lines)), SAMPLE_LINES))
    # a quotation of several sentences is no sign, for other splitters may have kept it whole
    several = sum(len(_cut(line, code)) > 1 for line in sample)
    return several >= max(1, SEVERAL_SHARE * len(sample)) or _is_wrapped(text.lines, code)


def _is_wrapped(lines: Sequence[str], code: str) -> bool:
    """Whether most lines that another one follows break off in a sentence."""
    width = _width(lines)
    followed = [pair for group in _groups(lines) for pair in pairwise(group)]
    broken = sum(_is_broken(line, following, width, code) for line, following in followed)
    stops = sum(not set(STOPS).isdisjoint(line) for line, _ in followed)
    return bool(followed) and broken >= BROKEN_SHARE * len(followed) and stops >= STOPS_SHARE * len(followed)


def _paragraphs(lines: Sequence[str], code: str) -> Iterator[str]:
    """Yields the lines between empty ones, those that were hard-wrapped put together."""
    width = _width(lines)
    for group in _groups(lines):
        paragraph = [group[0]]
        for line, following in pairwise(group):
            if not _is_broken(line, following, width, code):
                yield "".join(paragraph)
                paragraph = []
            elif code not in WITHOUT_SPACES and not re.search(r"\w-$", line):
                paragraph.append(" ")
            paragraph.append(following)
        yield "".join(paragraph)


def _groups(lines: Sequence[str]) -> list[list[str]]:
    """The lines between empty ones."""
    return [list(group) for is_text, group in groupby(map(_collapse_spaces, lines), key=bool) if is_text]


def _collapse_spaces(line: str) -> str:
    return " ".join(line.split())  # the splitter fails on some white space that is not a plain space


def _width(lines: Sequence[str]) -> int:
    lengths = sorted(filter(None, (len(_collapse_spaces(line)) for line in lines)))
    return lengths[-1 - len(lengths) // OUTLIERS] if lengths else 0


def _is_broken(line: str, following: str, width: int, code: str) -> bool:
    """Whether a line ended for want of room, so that the one after it continues its sentence."""
    if len(line) < FULL_SHARE * width:
        return False
    if not FINAL.search(line):
        return True
    # a full stop may be that of an abbreviation, which the splitter knows
    together = f"{line} {following}"
    return line.endswith(".") and len(line) + 1 not in accumulate(map(len, _cut(together, code)))


def _sentences(paragraph: str, code: str) -> list[str]:
    """Cuts a paragraph into sentences, those inside quotations too."""
    return [sentence for part in _cut(paragraph, code) for sentence in _open_quotations(part, code)]


def _open_quotations(sentence: str, code: str) -> list[str]:
    """Cuts a sentence inside its quotations, most of which the splitter keeps whole however long they are."""
    ends: list[int] = []
    for quotation in QUOTATION.finditer(sentence):
        start = quotation.start() + 1
        inside = _sentences(sentence[start : quotation.end() - 1], code)
        ends += [start + end for end in accumulate(map(len, inside[:-1]))]
    return _cut_at(sentence, ends)


def _cut(paragraph: str, code: str) -> list[str]:
    """Cuts a paragraph into sentences that are together the same text, and mends what the splitter does wrong."""
    segment = require("sentencex", "align", "Splitting into sentences").segment
    pieces = [piece for part in LONG_TEXT.findall(paragraph) for piece in segment(code, part)]
    sentences: list[str] = []
    for piece in _mend_unspaced(pieces) if code in WITHOUT_SPACES else pieces:
        if sentences and _belong_together(sentences[-1], piece, code):
            sentences[-1] += piece
        else:
            sentences.append(piece)
    return sentences


def _mend_unspaced(pieces: Sequence[str]) -> list[str]:
    """Gives back to a sentence the marks that close it, and cuts where the splitter did not."""
    mended: list[str] = []
    for piece in pieces:
        if mended and (closing := LEADING_CLOSERS.match(piece)):
            mended[-1] += closing[0]
            piece = piece[closing.end() :]
        mended += _cut_at(piece, [match.end() for match in UNCUT.finditer(piece)])
    return mended


def _cut_at(text: str, ends: Sequence[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)]) if start < end]


def _belong_together(left: str, right: str, code: str) -> bool:
    if not (any(map(str.isalnum, left)) and any(map(str.isalnum, right))) or LABEL.fullmatch(left):
        return True
    return code in WITHOUT_SPACES and bool(CONTINUES.match(right) or UNFINISHED.search(left))
