"""Documents to index, from JSONL, CSV, TSV and Parquet files or from Python, checked and staged by language.

A document has a text and, optionally, an id, a language and metadata (all other columns).
"""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DataError, require
from dualmoco.data.readers.base import Report, SkippedLines, clip_reason, is_unicode
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.models.embedded import all_languages
from dualmoco.models.model import Model, recognize_sentences
from dualmoco.search.metadata import DocumentEntry, DocumentWriter, FieldTypes, check_metadata
from dualmoco.text.files import plain_suffix, read_lines
from dualmoco.text.languages import SCRIPTS, base_language, main_script

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET_SUFFIX = ".parquet"
INDEXED_SUFFIXES = (*JSON_SUFFIXES, *SEPARATORS, PARQUET_SUFFIX)
"""Extensions of files of documents; all other files contain one sentence per line."""
TEXT_KEYS, LANG_KEYS, ID_KEY, METADATA_KEY = ("text", "sentence", "content"), ("lang", "language"), "id", "metadata"
GIVEN_DOCUMENTS = "documents"  # name of documents from Python
LINE_BREAK = re.compile(r"\s*[\r\n]+\s*")
JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
BATCH = 4096  # documents whose languages are recognised together
SAMPLED_DOCUMENTS = 1000  # number of documents whose languages choose the default model

DocumentRecords = Iterable[Mapping[str, Any]]
"""Mappings with `text`, and optionally `id`, `lang` and metadata."""


@dataclass(frozen=True)
class GivenDocument:
    """A document to index."""

    id: str  # empty if it has none
    text: str
    lang: str  # empty until it is recognised
    line: int  # in its file, or its place in a list, from 1
    metadata: Mapping[Any, Any]
    name: str  # of its file


@dataclass
class StagedDocuments:
    """Documents of one language and file, written to temporary files."""

    file: TextFile  # one text per line
    table: Path  # their ids and metadata
    has_ids: bool
    ids: list[str] = field(default_factory=list)
    fields: FieldTypes = field(default_factory=dict)


def is_document_file(path: Path) -> bool:
    """Whether the extension of a file means that it contains documents."""
    return plain_suffix(path) in INDEXED_SUFFIXES


def read_documents(file: TextFile, report: Report) -> Iterator[GivenDocument]:
    """Yields the documents of a file; calls `report` with the line and the problem of each unreadable document.

    Raises:
        DataError: The file is missing, damaged, or has no column of texts.
    """
    if not file.path.is_file():
        raise DataError(f"{file.path}: no such file; expected documents or sentences")
    suffix = plain_suffix(file.path)
    if suffix == PARQUET_SUFFIX:
        rows: Iterator[tuple[int, Any]] = _read_parquet(file.path)
    elif suffix in SEPARATORS:
        rows = _read_table(file.path, SEPARATORS[suffix], report)
    else:
        rows = _read_json_lines(file.path, report)
    for line, record in rows:
        try:
            yield make_document(record, line, file.name, file.lang)
        except ValueError as error:
            report(line, str(error))


def make_document(record: Any, line: int, name: str, lang: str = "") -> GivenDocument:
    """The document of a mapping; ValueError if it is not one."""
    if not isinstance(record, Mapping):
        raise ValueError(f"a {type(record).__name__}; expected an object with {TEXT_KEYS[0]}")
    rest = dict(record)
    inner = rest.pop(METADATA_KEY, None) if isinstance(rest.get(METADATA_KEY), Mapping) else None
    text = rest.pop(next((key for key in TEXT_KEYS if key in rest), ""), None)
    if not isinstance(text, str):
        found = "" if text is None else f"{TEXT_KEYS[0]} is a {type(text).__name__}; "
        keys = clip_reason(", ".join(map(str, record)))
        raise ValueError(f"{found or f'found {keys}; '}expected {' or '.join(TEXT_KEYS)}")
    text = LINE_BREAK.sub(" ", text.strip())
    if not text or not is_unicode(text):
        raise ValueError("no text" if not text else "contains an unpaired surrogate; expected text")
    given = rest.pop(next((key for key in LANG_KEYS if key in rest), ""), None) or lang
    if not isinstance(given, str):
        raise ValueError(f"{LANG_KEYS[0]} is a {type(given).__name__}; expected a language code such as en")
    values = {key: _plain(value) for key, value in {**(inner or {}), **rest}.items() if key != ID_KEY}
    return GivenDocument(_own_id(rest.get(ID_KEY)), text, given, line, values, name)


def _own_id(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int) or not is_unicode(str(value)):
        raise ValueError(f"{ID_KEY} is {value!r:.40}; expected text or a whole number")
    return str(value)


def _plain(value: Any) -> Any:
    """A value as a JSON type: dates as text, numbers of all kinds as numbers."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return float(value) if isinstance(value, decimal.Decimal) else value


def _read_json_lines(path: Path, report: Report) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(read_lines(path, errors="surrogateescape"), start=1):
        if not is_unicode(line):
            report(number, "not UTF-8; convert the file, for example with iconv")
        elif line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deeply")
                report(number, f"not valid JSON ({reason}); expected one object per line")
            else:
                yield number, record


def _read_table(path: Path, separator: str, report: Report) -> Iterator[tuple[int, Any]]:
    """The rows of a table with a header; columns that contain only numbers are converted."""
    numeric: set[str] | None = None
    for _, record in _read_rows(path, separator, lambda line, what: None):
        numeric = set(record) if numeric is None else numeric
        numeric = {name for name in numeric if not record[name] or JSON_NUMBER.fullmatch(record[name])}
    numeric = (numeric or set()) - {ID_KEY, *TEXT_KEYS, *LANG_KEYS}
    for line, record in _read_rows(path, separator, report):
        filled = {name: cell for name, cell in record.items() if cell}
        yield line, {name: json.loads(cell) if name in numeric else cell for name, cell in filled.items()}


def _read_rows(path: Path, separator: str, report: Report) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), delimiter=separator, strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        if not set(TEXT_KEYS) & set(header) or len(set(header)) < len(header):
            found = clip_reason(", ".join(header))
            raise DataError(f"{path}:1: columns {found}; expected a header of distinct names, including text")
        for row in reader:
            if len(row) == len(header):
                yield reader.line_num, dict(zip(header, row, strict=True))
            elif any(row):
                report(reader.line_num, f"{len(row)} columns; expected {len(header)}, as in the header")
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a table ({error}); expected balanced quotes") from None


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    pa, pq = require("pyarrow", "data", "A Parquet file"), require("pyarrow.parquet", "data", "A Parquet file")
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            batches = file.iter_batches(BATCH)
            yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a Parquet file, or damaged ({clip_reason(error)})") from None


@contextmanager
def staged_documents(
    files: Sequence[TextFile],
    given: DocumentRecords | Sequence[GivenDocument],
    model: Model,
    types: FieldTypes,
    *,
    skip: bool,
) -> Iterator[list[StagedDocuments]]:
    """Yields the documents of files and from Python, checked and written to temporary files by file and language.

    Args:
        files: Files of documents.
        given: Documents from Python.
        model: Model that recognises missing languages.
        types: Type of each metadata field so far; new fields are added.
        skip: Whether to skip and log unusable documents.

    Raises:
        DataError: A document cannot be used, or an id is missing or occurs twice.
        ModelError: The model does not have a language.
    """
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as folder:
        staged: list[StagedDocuments] = []
        seen: dict[str, str] = {}
        for file in files:
            skipped = SkippedLines(skip=skip)

            def report(line: int, what: str, file: TextFile = file, skipped: SkippedLines = skipped) -> None:
                skipped.report(Path(file.copied_from or file.path), line, what)

            stage = _Stage(Path(folder) / str(len(staged)), model, types, seen, report)
            staged += stage.write(read_documents(file, report), str(file.path))
        if not isinstance(given, Sequence) or len(given):
            skipped = SkippedLines(skip=skip)

            def report_item(line: int, what: str) -> None:
                skipped.report(Path(GIVEN_DOCUMENTS), line, what)

            stage = _Stage(Path(folder) / "given", model, types, seen, report_item)
            staged += stage.write(_from_python(given, report_item), GIVEN_DOCUMENTS)
        yield staged


def _from_python(given: DocumentRecords | Sequence[GivenDocument], report: Report) -> Iterator[GivenDocument]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise DataError(f"documents: a {type(given).__name__}; expected mappings such as {{'id': 'a1', 'text': '...'}}")
    for place, record in enumerate(given, start=1):
        if isinstance(record, GivenDocument):
            yield record
            continue
        try:
            yield make_document(record, place, GIVEN_DOCUMENTS)
        except ValueError as error:
            report(place, str(error))


def valid_documents(given: Sequence[Any]) -> Iterator[GivenDocument]:
    """Yields the readable documents from Python; the others are reported when they are staged."""
    return _from_python(given, lambda line, what: None)


def document_languages(documents: Iterator[GivenDocument]) -> list[str]:
    """The languages of the first documents; missing ones are recognised among those of the default models."""
    sample = list(islice(documents, SAMPLED_DOCUMENTS))
    unknown = [document.text for document in sample if not document.lang]
    return [*(document.lang for document in sample if document.lang), *recognize_sentences(unknown, all_languages())]


class _Stage:
    """Writes the documents of one file, or from Python, by name and language."""

    def __init__(self, folder: Path, model: Model, types: FieldTypes, seen: dict[str, str], report: Report) -> None:
        self.folder, self.model, self.types, self.seen, self.report = folder, model, types, seen, report
        self.has_ids: bool | None = None
        folder.mkdir()

    def write(self, documents: Iterator[GivenDocument], name: str) -> list[StagedDocuments]:
        """Writes the documents; DataError if there are none."""
        made: dict[tuple[str, str], tuple[StagedDocuments, Any, DocumentWriter]] = {}
        with ExitStack() as stack:
            while batch := list(islice(documents, BATCH)):
                for document, lang in zip(batch, recognize_documents(batch, self.model, name), strict=True):
                    key = document.name, lang
                    if not (entry := self._entry(document)):
                        continue
                    if key not in made:
                        made[key] = self._open(stack, len(made), *key)
                    staged, stream, writer = made[key]
                    stream.write(f"{document.text}\n")
                    writer.add(entry)
                    staged.ids.append(entry.id)
        if not made:
            raise DataError(f"{name}: no documents; expected at least one with text")
        for staged, _, writer in made.values():
            staged.fields = {field: self.types[field] for field in writer.fields}
        return [staged for staged, _, _ in made.values()]

    def _open(self, stack: ExitStack, number: int, name: str, lang: str) -> tuple[StagedDocuments, Any, DocumentWriter]:
        path = self.folder / f"{number}.txt"
        staged = StagedDocuments(TextFile(path, lang, True, name), path.with_suffix(".sqlite"), bool(self.has_ids))
        stream = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        return staged, stream, stack.enter_context(DocumentWriter(staged.table))

    def _entry(self, document: GivenDocument) -> DocumentEntry | None:
        """What is stored of a document; None if it is skipped."""
        self.has_ids = bool(document.id) if self.has_ids is None else self.has_ids
        try:
            if bool(document.id) != self.has_ids:
                raise ValueError("has no id" if self.has_ids else "has an id, but documents before it have none")
            own = document.id or f"{document.name}:{document.line}"
            place = f"{document.name}:{document.line}"
            if own in self.seen:
                raise ValueError(f"the id {own!r:.60} is also that of {self.seen[own]}; expected distinct ids")
            metadata = check_metadata(document.metadata, self.types)
        except ValueError as error:
            self.report(document.line, str(error))
            return None
        self.seen[own] = place
        return DocumentEntry(own, document.line, metadata)


def recognize_documents(documents: Sequence[GivenDocument], model: Model, name: str) -> list[str]:
    """The language of each document, as given or recognised.

    Documents in a script that only one language of the model has are recognised together, all others one by one.
    """
    langs = [model.language(document.lang) if document.lang else "" for document in documents]
    by_script: dict[str, list[int]] = {}
    for place, document in enumerate(documents):
        if not langs[place]:
            by_script.setdefault(main_script(document.text), []).append(place)
    for script, places in by_script.items():
        texts = [documents[place].text for place in places]
        fitting = [lang for lang in model.languages or () if script in SCRIPTS.get(base_language(lang), {script})]
        if not script or len(fitting) != 1:
            found = model.recognize_each(texts)
        else:
            found = [model.resolve(None, texts, name)] * len(texts)
        for place, lang in zip(places, found, strict=True):
            langs[place] = lang
    return langs
