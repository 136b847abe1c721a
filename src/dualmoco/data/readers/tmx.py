"""Readers of translation tools' files: TMX translation memories, XLIFF files and gettext catalogues."""

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
MAX_SEGMENT_CHARACTERS = 1 << 20
MAX_CATALOGUE_BYTES = 50_000_000  # unpacked; polib needs many times as much memory, and large catalogues have 10 MB


def read_tmx(source: Source, report: Report) -> Iterator[Raw]:
    """Translation units that have both languages, in any regional variant."""
    yield from in_blocks(_units(source, _TmxUnits(source)))


def read_xliff(source: Source, report: Report) -> Iterator[Raw]:
    """Translated units of XLIFF 1.2 and segments of XLIFF 2, in the order of the languages."""
    yield from in_blocks(_units(source, _XliffUnits(source)))


def _units(source: Source, units: _Units) -> Iterator[Row]:
    parser = units.parser
    with source.open() as stream:
        try:
            yield from units.parse(stream)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise DataError(f"{source.path}:{error.lineno}: malformed XML ({reason})") from None
        except (LookupError, ValueError) as error:
            raise DataError(f"{source.path}: unknown or broken encoding ({error})") from None
        except _RefusedError as error:
            raise DataError(f"{source.path}:{parser.CurrentLineNumber}: {error}") from None
    for lang in (source.src, source.tgt):
        if units.seen and base_language(lang) not in units.seen:
            raise DataError(f"{source.path}: no {lang} segments; found {', '.join(sorted(units.seen))}")


class _RefusedError(Exception):
    """The document declares an entity, or a segment is too long."""


class _Units:
    """Collects the texts of each translation unit while expat parses."""

    def __init__(self, source: Source) -> None:
        self.langs, self.seen = (base_language(source.src), base_language(source.tgt)), set[str]()
        self.rows: list[Row] = []
        self.unit: dict[str, str] = {}
        self.lang, self.line, self.formatting_depth = "", 0, 0
        self.text: list[str] | None = None
        self.length = 0  # characters of the text
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
        """Called for each start tag."""
        if name in FORMATTING:
            self.formatting_depth += 1

    def end(self, name: str) -> None:
        """Called for each end tag."""
        if name in FORMATTING:
            self.formatting_depth -= 1

    def start_unit(self) -> None:
        self.unit, self.line = {}, self.parser.CurrentLineNumber

    def start_text(self, lang: str) -> None:
        self.lang, self.text, self.length = lang, [], 0

    def end_text(self) -> None:
        if self.text is not None:
            self.unit.setdefault(self.lang, "".join(self.text))
            self.text = None

    def end_unit(self) -> None:
        if self.unit.keys() & set(self.langs):
            src, tgt = (self.unit.get(lang, "") for lang in self.langs)
            self.rows.append(Row(src, tgt, self.line))

    def characters(self, text: str) -> None:
        if self.text is not None and not self.formatting_depth:
            self.length += len(text)
            if self.length > MAX_SEGMENT_CHARACTERS:
                limit = f"expected at most {MAX_SEGMENT_CHARACTERS:,} characters"
                raise _RefusedError(f"a segment is too long; {limit}")
            self.text.append(text)

    def refuse(self, *_: object) -> None:
        raise _RefusedError("declares an XML entity; refused as unsafe")


class _TmxUnits(_Units):
    """Units of TMX, whose variants name their languages."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.start_unit()
        elif name == "tuv":
            self.lang = base_language(attributes.get("xml:lang", attributes.get("lang", "")))
            self.seen.add(self.lang)
        elif name == "seg":
            self.start_text(self.lang)
        super().start(name, attributes)

    def end(self, name: str) -> None:
        if name == "seg":
            self.end_text()
        elif name == "tu":
            self.end_unit()
        super().end(name)


class _XliffUnits(_Units):
    """Units of XLIFF, where the file declares the languages of all sources and targets."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.names = {"source": "", "target": ""}
        self.other_depth = 0  # inside suggestions of other translations

    def start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        if name in ("xliff", "file"):
            self.name_languages(attributes)
        elif name in ("alt-trans", "matches"):
            self.other_depth += 1
        elif self.other_depth:
            return
        elif name in ("trans-unit", "segment"):
            self.start_unit()
        elif name in self.names:
            self.start_text(base_language(attributes.get("xml:lang", "")) or self.names[name])
        super().start(name, attributes)

    def end(self, name: str) -> None:
        name = name.rpartition(":")[2]
        if name in ("alt-trans", "matches"):
            self.other_depth -= 1
        elif self.other_depth:
            return
        elif name in self.names:
            self.end_text()
        elif name in ("trans-unit", "segment") and all(self.unit.get(lang, "").strip() for lang in self.langs):
            self.end_unit()
        super().end(name)

    def name_languages(self, attributes: dict[str, str]) -> None:
        for side, names in (("source", ("srcLang", "source-language")), ("target", ("trgLang", "target-language"))):
            for name in names:
                if name in attributes:
                    self.names[side] = base_language(attributes[name])
                    self.seen.add(self.names[side])


def read_gettext(source: Source, report: Report) -> Iterator[Raw]:
    """Translated messages of a .po or .mo file that are neither fuzzy nor obsolete; for plurals, the last form."""
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
        content = stream.read(MAX_CATALOGUE_BYTES + 1)
        if len(content) > MAX_CATALOGUE_BYTES:
            limit = f"expected at most {MAX_CATALOGUE_BYTES:,} bytes"
            raise DataError(f"{source.path}: too large when unpacked; {limit}; split the catalogue")
        plain.write(content)
        plain.flush()
        load = polib.mofile if Path(plain.name).suffix == ".mo" else polib.pofile
        try:
            catalogue = load(plain.name)
            entries = [_texts(entry) for entry in catalogue.translated_entries()]
        except Exception as error:  # polib has no exception class; a damaged file raises any of Python's
            reason = " ".join(str(error).replace(plain.name, str(source.path)).split())
            raise DataError(f"{source.path}: not a gettext catalogue, or damaged ({reason})") from None
    return base_language(catalogue.metadata.get("Language", "")), entries


def _texts(entry: Any) -> tuple[str, str, int]:
    line = getattr(entry, "linenum", 0) or 0
    if entry.msgid_plural:
        return entry.msgid_plural, entry.msgstr_plural[max(entry.msgstr_plural)], line
    return entry.msgid, entry.msgstr, line
