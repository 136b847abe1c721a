"""Reader of gettext catalogues: the messages of programs and their translations."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DataError, require
from dualmoco.data.languages import base_language
from dualmoco.data.readers.raw import Raw, Row, in_blocks
from dualmoco.data.readers.source import Report, Source, plain_suffix


def read_gettext(source: Source, report: Report) -> Iterator[Raw]:
    """A .po or .mo file: translated messages that are neither fuzzy nor obsolete; plurals give their last form."""
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
    """The language of the translations, and all messages, translations and lines."""
    polib = require("polib", "data", "A gettext catalogue")

    with source.open() as stream, tempfile.NamedTemporaryFile(suffix=plain_suffix(source.path)) as plain:
        plain.write(stream.read())
        plain.flush()
        load = polib.mofile if Path(plain.name).suffix == ".mo" else polib.pofile
        try:
            catalogue = load(plain.name)
            entries = [_texts(entry) for entry in catalogue.translated_entries()]
        except Exception as error:  # polib has no error of its own: a damaged file ends in any of Python's
            reason = " ".join(str(error).replace(plain.name, str(source.path)).split())
            raise DataError(f"{source.path}: not a gettext catalogue, or damaged ({reason})") from None
    return base_language(catalogue.metadata.get("Language", "")), entries


def _texts(entry: Any) -> tuple[str, str, int]:
    if entry.msgid_plural:
        return entry.msgid_plural, entry.msgstr_plural[max(entry.msgstr_plural)], getattr(entry, "linenum", 0) or 0
    return entry.msgid, entry.msgstr, getattr(entry, "linenum", 0) or 0
