"""Documents: reads plain text, Markdown, HTML, DOCX, ODT, RTF, PDF, EPUB and subtitles as lines.

`read_text` turns a file into lines, which `splitting.split_text` turns into sentences. One rule holds for all formats
that mark code: blocks of code are left out, code inside a sentence is kept.
"""

from __future__ import annotations

import codecs
import html
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dualmoco.alignment.splitting import Text, collapse_spaces, ends_sentence, has_letters, join_lines
from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.text.files import (
    READ_ERRORS,
    is_plain_text,
    log_encoding,
    open_binary,
    plain_suffix,
    read_lines,
    recognise_encoding,
)

EXPECTED_FORMATS = "text, Markdown, HTML, DOCX, ODT, RTF, PDF, EPUB or subtitles"
MAX_TEXT_BYTES = 100_000_000  # of an HTML page, RTF or PDF file, unpacked
MAX_UNPACKED_BYTES = 100_000_000  # of a DOCX, ODT or EPUB file, because a few kilobytes of zip can fill any memory
UNREADABLE_SUFFIXES = frozenset(".azw .azw3 .doc .djvu .fb2 .mobi .odp .ods .ppt .pptx .xls .xlsx".split())
BITEXT_SUFFIXES = frozenset(
    ".arrow .csv .feather .jsonl .mo .ndjson .parquet .po .sdlxliff .tab .tmx .tsv .xlf .xliff".split()
)
# errors of archives that are damaged, encrypted or compressed with an unsupported method
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
HTML_HEAD_BYTES = 4096  # bytes in which a page declares its encoding, and that it is XML
PAGE_ENCODINGS = frozenset(  # encodings of browsers, by Python's names; others, such as utf-7, are not used for pages
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
CODE_STYLE = re.compile(r"\b(?:code|preformatted|verbatim|listing|macro)\b", re.IGNORECASE)
"""Names of paragraph styles for code, such as HTML Preformatted and Source Code."""
ODT_OFFICE, ODT_STYLE, ODT_TEXT = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("office", "style", "text")
)
ODT_BLOCKS = (f"{ODT_TEXT}p", f"{ODT_TEXT}h")
ODT_SPACES = (f"{ODT_TEXT}s", f"{ODT_TEXT}tab", f"{ODT_TEXT}line-break")
ODT_HIDDEN = (
    f"{ODT_OFFICE}annotation",
    *(f"{ODT_TEXT}{name}" for name in ("note", "ruby-text", "table-of-content", "tracked-changes")),
)
RTF_CELL = re.compile(r"\\(?:nest)?cell(?![a-z])")
PDF_HYPHEN = re.compile("[\x02\ufffe]\r?\n?")  # PDFium's mark of a hyphen at which a word was broken
RUNNING_HEADS = 3  # if this many pages begin or end with the same line, except for numbers, the line is dropped
CLOCK_TIME = r"((?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3})"
CUE_TIME = re.compile(rf"{CLOCK_TIME}\s*-->\s*{CLOCK_TIME}")
CUE_TAG = re.compile(r"</?[A-Za-z\d][^<>]*>|\{\\[^{}]*\}")  # <i>, <v Ann>, <00:01.000>, {\an8}
SPEAKER_DASH = re.compile(r"[-–—]+\s*")  # precedes the words of each of two speakers
WIDE_TEXT = re.compile("[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")
MARKED_SHARE = 0.5  # if this share of cues ends with a stop, the others continue in the next cue
MAX_PAUSE = 3.0  # no sentence continues after a pause of this many seconds


def read_text(path: Path) -> Text:
    """Reads a document; its extension says in which format it is.

    In formats with markup, each paragraph, heading, list item and table cell is one line, followed by an empty line.
    Raises DataError if the file cannot be read or has no text, and ConfigError if a package is not installed.
    """
    _check_document(path)
    suffix = plain_suffix(path)
    try:
        if reader := PARAGRAPH_READERS.get(suffix):
            lines = [line for paragraph in reader(path) for line in (paragraph, "")]
        else:
            lines = list(_pdf_lines(path) if suffix == ".pdf" else _plain_lines(path))
    except (ConfigError, DataError):
        raise
    except Exception as error:  # parsers of other libraries raise anything, and one document must not stop a batch
        reason = collapse_spaces(f"{type(error).__name__} {error}")
        raise DataError(f"{path}: cannot be read ({reason}); expected a valid document; convert it to .txt") from None
    if not any(map(str.strip, lines)):
        raise DataError(f"{path}: contains no text; expected at least one sentence; check that it is the right file")
    return Text(str(path), lines, is_plain=is_plain_text(path))


def _check_document(path: Path) -> None:
    """DataError if the file does not exist, or if its extension is not that of a document."""
    suffix = plain_suffix(path)
    if path.is_dir() or not path.exists():
        reason = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {reason}; expected a document: {EXPECTED_FORMATS}")
    if suffix in UNREADABLE_SUFFIXES:
        raise DataError(f"{path}: {suffix} is not supported; convert the file to .docx, .epub, .html or .txt first")
    if suffix in BITEXT_SUFFIXES:
        advice = "dualmoco score reads it if it contains sentence pairs"
        raise DataError(f"{path}: {suffix} is not a document; expected {EXPECTED_FORMATS}; {advice}")
    if suffix not in DOCUMENT_SUFFIXES and not is_plain_text(path):
        advice = "rename it to .txt if it is plain text"
        raise DataError(f"{path}: unknown extension {suffix}; expected {EXPECTED_FORMATS}; {advice}")


def _plain_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        if "\0" in line:  # Latin letters in UTF-16 are valid UTF-8 with zero bytes in between
            raise DataError(f"{path}:{number}: not UTF-8 (zero bytes); convert the file, for example with iconv")
        yield line


def _paragraph_text(pieces: Sequence[str]) -> str:
    return collapse_spaces("".join(pieces).replace("\u00ad", ""))  # soft hyphens are invisible inside a line


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
    yield from _html_paragraphs(_read_bytes(path), str(path))


def _read_bytes(path: Path) -> bytes:
    try:
        with open_binary(path) as stream:
            content = stream.read(MAX_TEXT_BYTES + 1)
    except READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MAX_TEXT_BYTES:
        limit = f"expected at most {MAX_TEXT_BYTES:,} bytes; split the document"
        raise DataError(f"{path}: too large when unpacked; {limit}")
    return content


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
        document = docx.Document(str(path))
        body = document.element.body
        if body is None:
            raise ValueError("no text body")
        code = _docx_code_styles(document)
    except DataError:
        raise
    except Exception as error:  # python-docx has no error class of its own, so a damaged file may raise anything
        reason = f"not a DOCX file, or damaged ({' '.join(str(error).split())})"
        raise DataError(f"{path}: {reason}; open it in a word processor and save it again") from None
    etree.strip_elements(body, *DOCX_HIDDEN, with_tail=False)
    for paragraph in body.iter(f"{DOCX_TAG}p"):  # python-docx itself skips forms, text boxes and insertions
        style = paragraph.find(f"{DOCX_TAG}pPr/{DOCX_TAG}pStyle")
        if style is not None and style.get(f"{DOCX_TAG}val") in code:
            continue
        parts = paragraph.iter(*DOCX_TEXT)
        own = (part for part in parts if next(part.iterancestors(f"{DOCX_TAG}p")) is paragraph)
        if text := _paragraph_text([part.text or "" if part.tag == DOCX_TEXT[0] else " " for part in own]):
            yield text


def _docx_code_styles(document: Any) -> set[str]:
    """Ids of the paragraph styles for code."""
    styles = {}
    for style in document.styles.element.iterfind(f"{DOCX_TAG}style"):
        name, parent = (style.find(f"{DOCX_TAG}{tag}") for tag in ("name", "basedOn"))
        values = ("" if found is None else found.get(f"{DOCX_TAG}val", "") for found in (name, parent))
        styles[style.get(f"{DOCX_TAG}styleId", "")] = tuple(values)
    return _code_styles(styles)


def _code_styles(styles: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Ids of the styles for code, given the name and the parent of each style."""
    code = {style for style, (name, _) in styles.items() if CODE_STYLE.search(name)}
    while more := {style for style, (_, parent) in styles.items() if parent in code} - code:
        code |= more
    return code


def _odt_paragraphs(path: Path) -> Iterator[str]:
    etree = require("lxml.etree", "align", "An ODT file")
    with _unpacked(path, "ODT document") as archive:
        content = archive.xml("content.xml")
        sheets = [content, *(archive.xml(name) for name in ("styles.xml",) if name in archive.names)]
    styles = {
        style.get(f"{ODT_STYLE}name", ""): (
            style.get(f"{ODT_STYLE}display-name", style.get(f"{ODT_STYLE}name", "")).replace("_20_", " "),
            style.get(f"{ODT_STYLE}parent-style-name", ""),
        )
        for sheet in sheets
        for style in sheet.iter(f"{ODT_STYLE}style")
    }
    code = _code_styles(styles)
    body = content.find(f"{ODT_OFFICE}body/{ODT_OFFICE}text")
    if body is None:
        raise DataError(f"{path}: content.xml has no text; expected an ODT document")
    etree.strip_elements(body, *ODT_HIDDEN, with_tail=False)
    for paragraph in body.iter(*ODT_BLOCKS):
        if paragraph.get(f"{ODT_TEXT}style-name", "") not in code:
            if text := _paragraph_text([*_odt_pieces(paragraph)]):
                yield text


def _odt_pieces(node: Any) -> Iterator[str]:
    """The text of an element without that of paragraphs inside it, such as those of a text box."""
    yield node.text or ""
    for child in node:
        if isinstance(child.tag, str) and child.tag not in ODT_BLOCKS:
            yield " " if child.tag in ODT_SPACES else ""
            yield from _odt_pieces(child)
        yield child.tail or ""


def _rtf_paragraphs(path: Path) -> Iterator[str]:
    rtf_to_text = require("striprtf.striprtf", "align", "An RTF file").rtf_to_text
    source = _read_bytes(path)
    if not source.lstrip().startswith(b"{\\rtf"):
        raise DataError(f"{path}: not an RTF file; open it in a word processor and save it again")
    marked = RTF_CELL.sub(r"\\par ", source.decode("latin-1"))  # each cell of a table is a paragraph
    yield from filter(None, (_paragraph_text([line]) for line in rtf_to_text(marked, errors="ignore").split("\n")))


def _pdf_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a PDF file, without page numbers and the lines that pages begin and end with."""
    pdfium = require("pypdfium2", "align", "A PDF file")
    try:
        document = pdfium.PdfDocument(_read_bytes(path))
    except pdfium.PdfiumError as error:
        raise DataError(f"{path}: not a PDF file, damaged, or locked by a password ({error}); save it again") from None
    with document:
        pages = [_pdf_page(page) for page in document]
    counts = Counter(_page_head(line) for page in pages for line in {*page[:1], *page[-1:]})
    for page in pages:
        for place, line in enumerate(page):
            is_edge = place in (0, len(page) - 1)
            if not (is_edge and counts[_page_head(line)] >= RUNNING_HEADS):
                yield line


def _pdf_page(page: Any) -> list[str]:
    """The lines of a page that have letters, with words rejoined that were hyphenated at the end of a line."""
    text = page.get_textpage().get_text_bounded()
    lines = PDF_HYPHEN.sub("", text).splitlines()
    return [line for line in lines if has_letters(line)]


def _page_head(line: str) -> str:
    return re.sub(r"\d+", "", collapse_spaces(line))


@dataclass(frozen=True)
class _Cue:
    """The lines that a subtitle shows at once, and their start and end in seconds."""

    lines: Sequence[str]
    start: float
    end: float


def _subtitle_paragraphs(path: Path) -> Iterator[str]:
    """Yields the spoken text, with sentences rejoined that span several cues.

    In many subtitles, especially Chinese ones, sentences end without punctuation. There each cue is a paragraph.
    """
    cues = _cues(path)
    if not cues:
        raise DataError(f"{path}: no time codes such as 00:00:01,000 --> 00:00:02,000; expected subtitles")
    marked = sum(ends_sentence(cue.lines[-1]) for cue in cues)
    is_marked = marked >= MARKED_SHARE * len(cues)
    spoken, end = "", -MAX_PAUSE
    for cue in cues:
        may_continue = is_marked and not ends_sentence(spoken) and cue.start - end < MAX_PAUSE
        for place, line in enumerate(cue.lines):
            words = SPEAKER_DASH.sub("", line)
            if spoken and words == line and (place or may_continue):
                spoken = join_lines(spoken, line, "zh" if WIDE_TEXT.search(spoken[-1] + line[0]) else "en")
            else:
                yield from filter(None, [spoken])
                spoken = words
        end = cue.end
    yield from filter(None, [spoken])


def _cues(path: Path) -> list[_Cue]:
    is_webvtt = plain_suffix(path) == ".vtt"
    cues: list[_Cue] = []
    lines: list[str] | None = None  # lines of the current cue
    for line in _plain_lines(path):
        if times := CUE_TIME.search(line):
            if lines and lines[-1].isdecimal():
                lines.pop()  # the number of the new cue
            lines = []
            cues.append(_Cue(lines, _seconds(times[1]), _seconds(times[2])))
        elif lines is not None and line.strip():
            lines += filter(None, [_spoken(line)])
        elif is_webvtt:
            lines = None  # what follows an empty line is a note, a style or the name of a cue
    return [cue for cue in cues if cue.lines]


def _seconds(time: str) -> float:
    seconds = 0.0
    for part in time.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def _spoken(line: str) -> str:
    """A line of a subtitle without tags."""
    return collapse_spaces(html.unescape(CUE_TAG.sub("", line.replace("\\N", " "))))


def _epub_paragraphs(path: Path) -> Iterator[str]:
    with _unpacked(path, "EPUB book") as archive:
        for name in _chapters(archive):
            yield from _html_paragraphs(archive.read(name), f"{path}: {name}")


@contextmanager
def _unpacked(path: Path, kind: str) -> Iterator[_Archive]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield _Archive(path, kind, archive)
    except ZIP_ERRORS as error:
        reason = collapse_spaces(str(error))
        raise DataError(f"{path}: not a zip archive, or damaged ({reason}); expected an {kind}") from None


class _Archive:
    """The files of a zip archive, unpacked one by one up to a total size."""

    def __init__(self, path: Path, kind: str, archive: zipfile.ZipFile) -> None:
        self.path, self.kind, self.archive = path, kind, archive
        self.names = frozenset(archive.namelist())
        self.unpacked_bytes = 0

    def read(self, name: str) -> bytes:
        """The content of one file."""
        try:
            with self.archive.open(name) as member:  # the size in the archive's directory may be wrong
                content = member.read(MAX_UNPACKED_BYTES - self.unpacked_bytes + 1)
        except KeyError:
            raise DataError(f"{self.path}: {name} is missing; expected a complete {self.kind}") from None
        self.unpacked_bytes += len(content)
        _check_size(self.path, self.unpacked_bytes)
        return content

    def xml(self, name: str) -> Any:
        """The root of an XML file."""
        try:
            return _parse_xml(self.read(name))
        except SyntaxError as error:  # lxml's XML errors are subclasses of Python's
            reason = collapse_spaces(error.msg)
            raise DataError(f"{self.path}: {name} is not XML ({reason}); expected an {self.kind}") from None


def _chapters(book: _Archive) -> list[str]:
    """Names of the pages of an EPUB book in reading order."""
    rootfile = book.xml("META-INF/container.xml").find(".//{*}rootfile[@full-path]")
    if rootfile is None:
        raise DataError(f"{book.path}: META-INF/container.xml names no package; expected an EPUB book")
    place = rootfile.get("full-path")
    package = book.xml(place)
    pages = {
        item.get("id"): posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(item.get("href", ""))))
        for item in package.iterfind("{*}manifest/{*}item")
        if item.get("media-type") in CHAPTER_TYPES
    }
    order = [item.get("idref") for item in package.iterfind("{*}spine/{*}itemref")]
    spine = [pages[name] for name in order if name in pages]
    if not spine:
        raise DataError(f"{book.path}: {place} has no pages in its spine; expected a readable EPUB book")
    if locked := _encrypted_files(book) & set(spine):
        raise DataError(f"{book.path}: {min(locked)} is encrypted; expected a book without copy protection")
    return spine


def _encrypted_files(book: _Archive) -> set[str]:
    if "META-INF/encryption.xml" not in book.names:
        return set()
    references = book.xml("META-INF/encryption.xml").iterfind(".//{*}CipherReference")
    return {unquote(reference.get("URI", "")) for reference in references}


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
    ".odt": _odt_paragraphs,
    ".rtf": _rtf_paragraphs,
    ".epub": _epub_paragraphs,
    ".srt": _subtitle_paragraphs,
    ".vtt": _subtitle_paragraphs,
}
"""Readers of formats with markup, which yield each paragraph as one line."""
DOCUMENT_SUFFIXES = frozenset({".txt", ".text", ".pdf", *PARAGRAPH_READERS, *UNREADABLE_SUFFIXES})
