"""Readers of translation tools' files: TMX translation memories and gettext catalogues."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from dualmoco.core.errors import DataError, require
from dualmoco.data.readers.base import Raw, Report, Row, Source, in_blocks
from dualmoco.text.files import plain_suffix
from dualmoco.text.languages import base_language

XML_BYTES = 1 << 18
FORMATTING = {"bpt", "ept", "it", "ph", "ut"}  # inline elements with formatting codes instead of text


def read_tmx(source: Source, report: Report) -> Iterator[Raw]:
    """Translation units that have both languages, in any regional variant."""
    yield from in_blocks(_units(source))


def _units(source: Source) -> Iterator[Row]:
    units = _Units(base_language(source.src), base_language(source.tgt))
    parser = units.parser
    with source.open() as stream:
        try:
            yield from units.parse(stream)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise DataError(f"{source.path}:{error.lineno}: malformed XML ({reason})") from None
        except (LookupError, ValueError) as error:
            raise DataError(f"{source.path}: unknown or broken encoding ({error})") from None
        except _EntityError:
            raise DataError(
                f"{source.path}:{parser.CurrentLineNumber}: declares an XML entity; refused as unsafe"
            ) from None
    for lang in (source.src, source.tgt):
        if units.seen and base_language(lang) not in units.seen:
            raise DataError(f"{source.path}: no {lang} segment; it holds {', '.join(sorted(units.seen))}")


class _EntityError(Exception):
    """The document declares an entity."""


class _Units:
    """Collects the segments of each translation unit while expat parses."""

    def __init__(self, src: str, tgt: str) -> None:
        self.langs, self.seen = (src, tgt), set[str]()
        self.rows: list[Row] = []
        self.unit: dict[str, str] = {}
        self.lang, self.line, self.formatting_depth = "", 0, 0
        self.text: list[str] | None = None
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.EntityDeclHandler = self.refuse

    def parse(self, stream: IO[bytes]) -> Iterator[Row]:
        """Yields the units of a file; an error is raised after the units before it."""
        try:
            while chunk := stream.read(XML_BYTES):
                self.parser.Parse(chunk, False)
                yield from self.pop()
            self.parser.Parse(b"", True)
        except Exception:
            yield from self.pop()
            raise

    def pop(self) -> list[Row]:
        rows, self.rows = self.rows, []
        return rows

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.unit, self.line = {}, self.parser.CurrentLineNumber
        elif name == "tuv":
            self.lang = base_language(attributes.get("xml:lang", attributes.get("lang", "")))
            self.seen.add(self.lang)
        elif name == "seg":
            self.text = []
        elif name in FORMATTING:
            self.formatting_depth += 1

    def end(self, name: str) -> None:
        if name == "seg" and self.text is not None:
            self.unit.setdefault(self.lang, "".join(self.text))
            self.text = None
        elif name in FORMATTING:
            self.formatting_depth -= 1
        elif name == "tu" and self.unit.keys() & set(self.langs):
            src, tgt = (self.unit.get(lang, "") for lang in self.langs)
            self.rows.append(Row(src, tgt, self.line))

    def characters(self, text: str) -> None:
        if self.text is not None and not self.formatting_depth:
            self.text.append(text)

    def refuse(self, *_: object) -> None:
        raise _EntityError


def read_gettext(source: Source, report: Report) -> Iterator[Raw]:
    """Translated messages of a .po or .mo file that are neither fuzzy nor obsolete; of plurals the last form."""
    yield from in_blocks(_messages(source))


def _messages(source: Source) -> Iterator[Row]:
    lang, entries = _load(source)
    if lang and lang not in (base_language(source.src), base_language(source.tgt)):
        raise DataError(f"{source.path}: translates into {lang}; expected {source.src} or {source.tgt}")
    is_reversed = lang == base_language(source.src)
    for original, translation, line in entries:
        src, tgt = (translation, original) if is_reversed else (original, translation)
        yield Row(src, tgt, line)


def _load(source: Source) -> tuple[str, list[tuple[str, str, int]]]:
    """The language of the translations, and each message with its translation and line."""
    polib = require("polib", "data", "A gettext catalogue")
    with source.open() as stream, tempfile.NamedTemporaryFile(suffix=plain_suffix(source.path)) as plain:
        plain.write(stream.read())
        plain.flush()
        load = polib.mofile if Path(plain.name).suffix == ".mo" else polib.pofile
        try:
            catalogue = load(plain.name)
            entries = [_texts(entry) for entry in catalogue.translated_entries()]
        except Exception as error:  # polib has no exception of its own; a damaged file raises any of Python's
            reason = " ".join(str(error).replace(plain.name, str(source.path)).split())
            raise DataError(f"{source.path}: not a gettext catalogue, or damaged ({reason})") from None
    return base_language(catalogue.metadata.get("Language", "")), entries


def _texts(entry: Any) -> tuple[str, str, int]:
    line = getattr(entry, "linenum", 0) or 0
    if entry.msgid_plural:
        return entry.msgid_plural, entry.msgstr_plural[max(entry.msgstr_plural)], line
    return entry.msgid, entry.msgstr, line
