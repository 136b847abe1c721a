"""Documents: reads plain text, Markdown, HTML, DOCX and EPUB, and splits the text into sentences.

`read_text` turns a file into lines, `split_text` turns lines into a `Document` of sentences. Sentences are split by
sentencex, whose mistakes in Chinese text and in quotations are then fixed by our own rules.
"""

from __future__ import annotations

import codecs
import html
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby, islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.text.files import READ_ERRORS, log_encoding, open_binary, plain_suffix, read_lines, recognise_encoding
from dualmoco.text.languages import WITHOUT_SPACES, base_language


@dataclass(frozen=True)
class Text:
    """A document as lines, before it is split; an empty line ends a paragraph."""

    name: str  # file name, for messages
    lines: Sequence[str]
    is_plain: bool = True  # whether lines may be sentences; in formats with markup they are paragraphs


@dataclass(frozen=True)
class Document:
    """A document as sentences, none of them empty."""

    name: str
    sentences: Sequence[str]
    places: Sequence[str]  # of each sentence, from 1: its line, or its paragraph and its number there, such as 3.2
    lang: str


# Reading

MAX_TEXT_BYTES = 100_000_000  # of an HTML page, unpacked
MAX_UNPACKED_BYTES = 100_000_000  # of a DOCX or EPUB file, because a few kilobytes of zip can fill any memory
UNREADABLE_SUFFIXES = frozenset(".azw .azw3 .doc .djvu .mobi .odt .pdf .rtf".split())
# for archives that are damaged, encrypted or compressed in a way that Python does not support
ZIP_ERRORS = (zipfile.BadZipFile, RuntimeError, NotImplementedError, *READ_ERRORS)

HTML_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hr html legend li main ol p pre section summary table tbody td tfoot th "
    "thead tr ul".split()
)
HTML_HIDDEN = frozenset(  # rt and rp give the pronunciation of the characters below them
    "button head iframe math nav noscript object pre rp rt script select style svg template textarea".split()
)
CHAPTER_TYPES = frozenset({"application/xhtml+xml", "text/html"})
CHARSET = re.compile(rb"""<(?:\?xml[^>]*?\sencoding|meta[^>]*?charset)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
ENCODING_SAMPLE_BYTES = 1 << 20
HTML_HEAD_BYTES = 4096  # in which a page declares its encoding, and that it is XML
PAGE_ENCODINGS = frozenset(  # of browsers, as Python names them; others, such as utf-7, are not for pages
    "ascii big5 big5hkscs cp866 cp874 cp932 cp949 cp950 cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 "
    "euc_jp euc_kr gb18030 iso2022_jp iso8859-2 iso8859-3 iso8859-4 iso8859-5 iso8859-6 iso8859-7 iso8859-8 iso8859-9 "
    "iso8859-10 iso8859-11 iso8859-13 iso8859-14 iso8859-15 iso8859-16 koi8-r koi8-u mac-roman shift_jis tis-620 "
    "utf-8".split()
)
ENCODING_SUPERSETS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "iso8859-1": "cp1252",
    **dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8"),
}
"""The encodings that browsers assume: pages often declare an older standard and use characters of the newer one, and a
page whose declaration is readable as ASCII is not in UTF-16."""
FRONT_MATTER_LINE = re.compile(r"[\w-]+[ \t]*:|[ \t#-]|$")
DOCX_TAG = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
DOCX_TEXT = (f"{DOCX_TAG}t", f"{DOCX_TAG}tab", f"{DOCX_TAG}br", f"{DOCX_TAG}cr")  # text, and three kinds of white space
DOCX_HIDDEN = (
    f"{DOCX_TAG}moveFrom",
    f"{DOCX_TAG}rt",
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",  # a second copy of a text box
)


def read_text(path: Path) -> Text:
    """Reads a document; a file whose extension is not one of PARAGRAPH_READERS is plain text.

    In formats with markup, each paragraph, heading, list item and table cell is one line, followed by an empty line.
    Raises DataError if the file cannot be read or has no text, and ConfigError if a package is not installed.
    """
    suffix = plain_suffix(path)
    if path.is_dir() or not path.exists():
        reason = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {reason}; expected a document: .txt, .md, .html, .docx or .epub")
    if suffix in UNREADABLE_SUFFIXES:
        raise DataError(f"{path}: {suffix} is not supported; convert the file to .docx, .epub, .html or .txt first")
    reader = PARAGRAPH_READERS.get(suffix)
    try:
        lines = [line for paragraph in reader(path) for line in (paragraph, "")] if reader else list(_plain_lines(path))
    except (ConfigError, DataError):
        raise
    except Exception as error:  # the parsers are not ours, and one document must not stop a batch
        reason = _collapse_spaces(f"{type(error).__name__} {error}")
        raise DataError(f"{path}: cannot be read ({reason}); expected a valid document; convert it to .txt") from None
    if not any(map(str.strip, lines)):
        raise DataError(f"{path}: contains no text; expected at least one sentence; check that it is the right file")
    return Text(str(path), lines, is_plain=reader is None)


def _plain_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        if "\0" in line:  # Latin letters in UTF-16 are valid UTF-8 with zero bytes in between
            raise DataError(f"{path}:{number}: not UTF-8 (zero bytes); convert the file, for example with iconv")
        yield line


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def _paragraph_text(pieces: Sequence[str]) -> str:
    return _collapse_spaces("".join(pieces).replace("\u00ad", ""))  # soft hyphens are invisible inside a line


def _markdown_paragraphs(path: Path) -> Iterator[str]:
    markdown = require("markdown_it", "align", "A Markdown file").MarkdownIt("commonmark")
    source = "\n".join(_without_front_matter(list(_plain_lines(path))))
    for token in markdown.enable(["table", "strikethrough"]).parse(source):
        if token.type == "inline" and (text := _paragraph_text([*map(_visible_markdown, token.children)])):
            yield text


def _without_front_matter(lines: list[str]) -> list[str]:
    """Lines after the settings in YAML at the beginning, between two rules; all lines if there are none."""
    if not lines or lines[0].rstrip(" \t") != "---":
        return lines
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip(" \t") in ("---", "..."):
            return lines[number + 1 :]
        if not FRONT_MATTER_LINE.match(line):
            break
    return lines


def _visible_markdown(token: Any) -> str:
    if token.type in ("text", "code_inline"):
        return str(token.content)
    is_break = token.type in ("softbreak", "hardbreak") or token.content.startswith("<br")
    return " " if is_break else ""


def _page_paragraphs(path: Path) -> Iterator[str]:
    try:
        with open_binary(path) as stream:
            page = stream.read(MAX_TEXT_BYTES + 1)
    except READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(page) > MAX_TEXT_BYTES:
        limit = f"expected at most {MAX_TEXT_BYTES:,} bytes; split the document"
        raise DataError(f"{path}: too large when unpacked; {limit}")
    yield from _html_paragraphs(page, str(path))


def _html_paragraphs(page: bytes, name: str) -> list[str]:
    """The text of each block of a page that a browser would show.

    XHTML is parsed as XML, because `<a/>` does not close the element in HTML.
    """
    etree = require("lxml.etree", "align", "HTML")
    head = page[:HTML_HEAD_BYTES]
    utf8 = _decode_page(page, name).encode()
    if b"<?xml" in head or b"http://www.w3.org/1999/xhtml" in head:
        try:
            return _tree_paragraphs(_parse_xml(utf8, encoding="utf-8"))
        except etree.XMLSyntaxError:
            pass  # many pages that claim to be XHTML are not
    # A tree would be cut off at a depth of a few hundred elements, which pages with unclosed tags exceed.
    parser = etree.HTMLParser(target=_PageText(), encoding="utf-8", no_network=True, huge_tree=True)
    return list(etree.fromstring(utf8, parser))


class _PageText:
    """Collects the text of blocks; the target of an HTML parser."""

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self.pieces: list[str] = []
        self.depth = 0
        self.hidden_depth = 0  # depth of the outermost element that is not shown; 0 if there is none

    def start(self, tag: str, attributes: Any) -> None:
        self.depth += 1
        name = self._end_block(tag)
        if not self.hidden_depth and (name in HTML_HIDDEN or "hidden" in attributes):
            self.hidden_depth = self.depth
        if name == "br":
            self.data(" ")

    def end(self, tag: str) -> None:
        if self.depth == self.hidden_depth:
            self.hidden_depth = 0
        self.depth -= 1
        self._end_block(tag)

    def data(self, text: str) -> None:
        if not self.hidden_depth:
            self.pieces.append(text)

    def close(self) -> list[str]:
        self._end_block("html")
        return self.paragraphs

    def _end_block(self, tag: str) -> str:
        """Ends a paragraph at the border of a block; returns the tag without its namespace."""
        name = tag.rpartition("}")[2].lower()
        if name in HTML_BLOCKS and self.pieces:
            if text := _paragraph_text(self.pieces):
                self.paragraphs.append(text)
            self.pieces = []
        return name


def _tree_paragraphs(root: Any) -> list[str]:
    """The text of each block of an XHTML page."""
    etree, found = require("lxml.etree", "align", "HTML"), _PageText()
    for event, node in etree.iterwalk(root, events=("start", "end", "comment", "pi")):
        is_element = isinstance(node.tag, str)
        if event == "start" and is_element:
            found.start(node.tag, node.attrib)
            found.data(node.text or "")
        elif event == "start":
            found.data(html.unescape(node.text))  # an entity such as &nbsp;, which XML knows only from a DTD
        else:
            if is_element:
                found.end(node.tag)
            found.data(node.tail or "")
    return found.close()


def _parse_xml(document: bytes, encoding: str | None = None) -> Any:
    etree = require("lxml.etree", "align", "An EPUB file")
    return etree.fromstring(document, etree.XMLParser(encoding=encoding, resolve_entities=False, no_network=True))


def _decode_page(page: bytes, name: str) -> str:
    declared = CHARSET.search(page[:HTML_HEAD_BYTES])
    encoding = declared[1].decode().lower() if declared else recognise_encoding(page[:ENCODING_SAMPLE_BYTES])
    if not declared and encoding != "utf-8":
        log_encoding(name, encoding)
    reason = ""
    try:
        codec = codecs.lookup(encoding).name
        codec = ENCODING_SUPERSETS.get(codec, codec)
        if page.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            codec = encoding = "utf-16"
        if codec in PAGE_ENCODINGS or codec == "utf-16":
            return page.decode(codec).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        reason = f" ({error.reason} at byte {error.start})"
    except LookupError:
        pass
    reason = f"not in the encoding {encoding}{reason}; expected UTF-8 or the encoding that the page declares"
    raise DataError(f"{name}: {reason}; convert the file, for example with iconv")


def _docx_paragraphs(path: Path) -> Iterator[str]:
    etree, docx = require("lxml.etree", "align", "A DOCX file"), require("docx", "align", "A DOCX file")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, sum(member.file_size for member in archive.infolist()))
        body = docx.Document(str(path)).element.body
        if body is None:
            raise ValueError("no text body")
    except DataError:
        raise
    except Exception as error:  # python-docx has no error class of its own, so a damaged file may raise anything
        reason = f"not a DOCX file, or damaged ({' '.join(str(error).split())})"
        raise DataError(f"{path}: {reason}; open it in a word processor and save it again") from None
    etree.strip_elements(body, *DOCX_HIDDEN, with_tail=False)
    for paragraph in body.iter(f"{DOCX_TAG}p"):  # python-docx itself skips forms, text boxes and insertions
        parts = paragraph.iter(*DOCX_TEXT)
        own = (part for part in parts if next(part.iterancestors(f"{DOCX_TAG}p")) is paragraph)
        if text := _paragraph_text([part.text or "" if part.tag == DOCX_TEXT[0] else " " for part in own]):
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
    """The files of an EPUB book, unpacked one by one up to a total size."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self.unpacked_bytes = 0

    def chapters(self) -> list[str]:
        """Names of the pages in reading order."""
        rootfile = self._xml("META-INF/container.xml").find(".//{*}rootfile[@full-path]")
        if rootfile is None:
            raise DataError(f"{self.path}: META-INF/container.xml names no package; expected an EPUB book")
        place = rootfile.get("full-path")
        package = self._xml(place)
        pages = {
            item.get("id"): posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(item.get("href", ""))))
            for item in package.iterfind("{*}manifest/{*}item")
            if item.get("media-type") in CHAPTER_TYPES
        }
        order = [item.get("idref") for item in package.iterfind("{*}spine/{*}itemref")]
        spine = [pages[name] for name in order if name in pages]
        if not spine:
            raise DataError(f"{self.path}: {place} has no pages in its spine; expected a readable EPUB book")
        if locked := self._encrypted() & set(spine):
            raise DataError(f"{self.path}: {min(locked)} is encrypted; expected a book without copy protection")
        return spine

    def read(self, name: str) -> bytes:
        """The content of one file."""
        try:
            with self.archive.open(name) as member:  # the size in the archive's directory may be wrong
                content = member.read(MAX_UNPACKED_BYTES - self.unpacked_bytes + 1)
        except KeyError:
            raise DataError(f"{self.path}: {name} is missing; expected a complete EPUB book") from None
        self.unpacked_bytes += len(content)
        _check_size(self.path, self.unpacked_bytes)
        return content

    def _encrypted(self) -> set[str]:
        if "META-INF/encryption.xml" not in self.archive.namelist():
            return set()
        references = self._xml("META-INF/encryption.xml").iterfind(".//{*}CipherReference")
        return {unquote(reference.get("URI", "")) for reference in references}

    def _xml(self, name: str) -> Any:
        try:
            return _parse_xml(self.read(name))
        except SyntaxError as error:  # lxml's XML errors are subclasses of Python's
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
"""Readers of formats with markup, which yield each paragraph as one line."""
DOCUMENT_SUFFIXES = frozenset({".txt", ".text", *PARAGRAPH_READERS, *UNREADABLE_SUFFIXES})

# Splitting

SAMPLE_LINES = 500  # lines that are checked to see whether they are sentences
SEVERAL_SHARE = 0.1  # share of lines with several sentences from which a text is split
BROKEN_SHARE = 0.5  # share of lines that end inside a sentence from which a text is hard-wrapped
FULL_SHARE = 0.6  # share of the text width from which a line may have been wrapped
STOPS_SHARE = 0.1  # share of lines with a full stop; with fewer, joined lines would never be split again
WIDTH_OUTLIERS = 100  # one line in this many may be longer than the text width: a URL, a table row

CLOSERS = "”’」』）】"
STOPS = ".!?…。！？｡．؟۔।॥።។။།"
FINAL = re.compile(rf"""[{STOPS}:：]["')\]»›“{CLOSERS}]*$|["»›{CLOSERS}]$""")
QUOTATION = re.compile(
    r"“[^“”]+”|‘(?:[^‘’]|’(?=[a-z]))+’|\"[^\"]+\"|„[^„“]+“|«[^«»]+»|»[^«»]+«|「[^「」]+」|『[^『』]+』"
)
ITEM_LABEL = re.compile(r"\W*(?:\d{1,3}|[A-Za-z]|[ivx]+)[.)）]\s*")  # 1. or (a), which belongs to the text after it
LEADING_CLOSERS = re.compile(rf"[{CLOSERS}]+")
CONTINUES = re.compile(r"[，、；：,;]")  # cannot start a sentence
UNFINISHED = re.compile(r"(?:(?<![A-Za-z])[A-Z][a-z]{0,3}\.|》)\s*$")  # Mr. in Chinese text; a title such as 《谁？》
MISSED_END = re.compile(
    rf"[。！？｡][{CLOSERS}]*\s*(?=[0-9a-z])"  # sentencex never starts a sentence with a digit or a lowercase letter
    rf"|(?:。）|[。！？｡][”’」』]{{2,}})\s*(?=[^\s{CLOSERS}，、；：])"  # nor looks past one closing mark
    r"|…[”’」』]+\s*(?=[“‘「『])"  # one speaker trails off and another starts; elsewhere …… is often just a pause
)
LONG_TEXT = re.compile(r".{4000}[^。！？]*[。！？]+|.+", re.DOTALL)
"""Parts that are split separately, because sentencex takes quadratic time on Chinese text."""


class SplitMode(StrEnum):
    """Whether lines are split into sentences."""

    auto = "auto"  # yes for formats with markup and for lines that are paragraphs or hard-wrapped, no otherwise
    yes = "yes"  # hard-wrapped lines are joined into paragraphs, which are split
    no = "no"  # each line that is not empty is one sentence


def split_text(text: Text, lang: str, split: SplitMode) -> Document:
    """Splits a document into sentences; DataError if there are none, ConfigError if sentencex is not installed."""
    code = base_language(lang)
    if split is SplitMode.yes or (split is SplitMode.auto and _needs_splitting(text, code)):
        found = [
            (f"{number}.{position}", sentence)
            for number, paragraph in enumerate(_paragraphs(text.lines, code), start=1)
            for position, sentence in enumerate(map(str.strip, _sentences(paragraph, code)), start=1)
        ]
    else:
        found = [(str(number), line.strip()) for number, line in enumerate(text.lines, start=1) if line.strip()]
    if not found:
        raise DataError(f"{text.name}: contains no sentences; expected at least one line of text")
    places, sentences = zip(*found, strict=True)
    return Document(text.name, sentences, places, lang)


def _needs_splitting(text: Text, code: str) -> bool:
    if not text.is_plain:
        return True
    sample = list(islice(filter(None, map(_collapse_spaces, text.lines)), SAMPLE_LINES))
    # quotations do not count, because other splitters may have kept those of several sentences whole
    several = sum(len(_segment(line, code)) > 1 for line in sample)
    return several >= max(1, SEVERAL_SHARE * len(sample)) or _is_wrapped(text.lines, code)


def _is_wrapped(lines: Sequence[str], code: str) -> bool:
    """Whether most lines that are followed by another line end inside a sentence."""
    width = _text_width(lines)
    followed = [pair for block in _blocks(lines) for pair in pairwise(block)]
    broken = sum(_is_broken(line, following, width, code) for line, following in followed)
    stops = sum(not set(STOPS).isdisjoint(line) for line, _ in followed)
    return bool(followed) and broken >= BROKEN_SHARE * len(followed) and stops >= STOPS_SHARE * len(followed)


def _paragraphs(lines: Sequence[str], code: str) -> Iterator[str]:
    """Yields paragraphs: the lines between empty lines, with hard-wrapped ones joined."""
    width = _text_width(lines)
    for block in _blocks(lines):
        paragraph = [block[0]]
        for line, following in pairwise(block):
            if not _is_broken(line, following, width, code):
                yield "".join(paragraph)
                paragraph = []
            elif code not in WITHOUT_SPACES and not re.search(r"\w-$", line):
                paragraph.append(" ")
            paragraph.append(following)
        yield "".join(paragraph)


def _blocks(lines: Sequence[str]) -> list[list[str]]:
    """The lines between empty lines; sentencex fails on some white space, so only plain spaces are left."""
    return [list(block) for is_text, block in groupby(map(_collapse_spaces, lines), key=bool) if is_text]


def _text_width(lines: Sequence[str]) -> int:
    lengths = sorted(filter(None, (len(_collapse_spaces(line)) for line in lines)))
    return lengths[-1 - len(lengths) // WIDTH_OUTLIERS] if lengths else 0


def _is_broken(line: str, following: str, width: int, code: str) -> bool:
    """Whether a line was wrapped, so that the line after it continues its sentence."""
    if len(line) < FULL_SHARE * width:
        return False
    if not FINAL.search(line):
        return True
    # the full stop may be that of an abbreviation, which sentencex knows
    return line.endswith(".") and len(line) + 1 not in accumulate(map(len, _segment(f"{line} {following}", code)))


def _sentences(paragraph: str, code: str) -> list[str]:
    """Splits a paragraph into sentences, also inside quotations, most of which sentencex keeps whole."""
    return [sentence for part in _segment(paragraph, code) for sentence in _split_quotations(part, code)]


def _split_quotations(sentence: str, code: str) -> list[str]:
    ends: list[int] = []
    for quotation in QUOTATION.finditer(sentence):
        start = quotation.start() + 1
        inside = _sentences(sentence[start : quotation.end() - 1], code)
        ends += [start + end for end in accumulate(map(len, inside[:-1]))]
    return _cut_at(sentence, ends)


def _segment(paragraph: str, code: str) -> list[str]:
    """Splits a paragraph with sentencex and fixes its mistakes; the sentences add up to the paragraph."""
    segment = require("sentencex", "align", "Splitting into sentences").segment
    pieces = [piece for part in LONG_TEXT.findall(paragraph) for piece in segment(code, part)]
    sentences: list[str] = []
    for piece in _fix_unspaced(pieces) if code in WITHOUT_SPACES else pieces:
        if sentences and _belong_together(sentences[-1], piece, code):
            sentences[-1] += piece
        else:
            sentences.append(piece)
    return sentences


def _fix_unspaced(pieces: Sequence[str]) -> list[str]:
    """Moves closing marks back to the sentence they close, and splits where sentencex missed an end."""
    fixed: list[str] = []
    for piece in pieces:
        if fixed and (closing := LEADING_CLOSERS.match(piece)):
            fixed[-1] += closing[0]
            piece = piece[closing.end() :]
        fixed += _cut_at(piece, [match.end() for match in MISSED_END.finditer(piece)])
    return fixed


def _cut_at(text: str, ends: Sequence[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)]) if start < end]


def _belong_together(left: str, right: str, code: str) -> bool:
    if not (any(map(str.isalnum, left)) and any(map(str.isalnum, right))) or ITEM_LABEL.fullmatch(left):
        return True
    return code in WITHOUT_SPACES and bool(CONTINUES.match(right) or UNFINISHED.search(left))
