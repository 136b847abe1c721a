"""Builds an index of text files, sentences and documents, and changes it: adds, replaces and deletes.

A change writes new files first. It takes effect when the manifest that lists them replaces the old one, so a search
always sees either the old index or the new one, and an interrupted change leaves the old one. An interrupted build is
resumed.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from dualmoco.core.config_loader import VectorPrecision, parse_choice
from dualmoco.core.errors import ConfigError, DataError, RunError
from dualmoco.core.storage import file_sha256, locked, new_file, write_text
from dualmoco.data.config import OnError
from dualmoco.embeddings.encode import StoreForm, encode_file, resolve_texts
from dualmoco.embeddings.store import open_or_start, write_array
from dualmoco.embeddings.unique_lines import TextFile, find_unique_lines, readable_texts
from dualmoco.models.embedded import all_languages, default_model
from dualmoco.models.folder import portable_name
from dualmoco.models.load import as_model, open_model
from dualmoco.models.model import AUTO, BACKENDS, Model, recognize_sentences
from dualmoco.search.document_reader import (
    DocumentRecords,
    GivenDocument,
    StagedDocuments,
    document_languages,
    is_document_file,
    make_document,
    read_documents,
    staged_documents,
    valid_documents,
)
from dualmoco.search.faiss_index import InvertedLists
from dualmoco.search.index_files import (
    DELETED,
    DELETED_NAME,
    DOCUMENTS,
    LINES,
    LISTS_FILE,
    PARTS,
    TEXTS,
    VECTORS,
    IndexKind,
    IndexManifest,
    IndexPart,
    ListsRecord,
    PartRecord,
    building_folder,
    check_index_model,
    copy_texts,
    guard_index,
    map_vectors,
    part_folder,
    read_index_manifest,
    write_index_manifest,
)
from dualmoco.search.ivf import require_faiss
from dualmoco.search.metadata import DocumentWriter, MetadataFilter, parse_filter
from dualmoco.text.containers import as_sentences, check_characters
from dualmoco.text.files import read_lines
from dualmoco.text.languages import recognize_language

logger = logging.getLogger(__name__)

Files = Mapping[str, str | Path | Sequence[str | Path]] | Sequence[TextFile | str | Path]
"""The file or files of each language, or files whose languages are recognised."""
GivenSentences = Mapping[str, Iterable[str]] | Iterable[str]
"""Sentences of each language, or sentences whose language is recognised one by one."""
MERGED_FACTOR = 2  # a part is merged with a later part of its file that has at least half as many documents


def build_index(
    folder: str | Path,
    files: Files = (),
    model: Model | str | Path | None = None,
    *,
    sentences: GivenSentences = (),
    documents: DocumentRecords = (),
    kind: str = IndexKind.exact,
    precision: str = VectorPrecision.fp32,
    on_error: str = OnError.stop,
) -> IndexManifest:
    """Builds an index of text files, sentences or documents.

    The index is built in a temporary folder and renamed; an interrupted build is resumed.

    Args:
        folder: New folder for the index.
        files: Files to search, by language, or in a list to recognise their languages. Text has one sentence per line.
            JSONL, CSV, TSV and Parquet files contain documents: a column `text`, optionally `id` and `lang`, and
            metadata in all other columns.
        model: Model that encodes the files and the queries, or its name; chosen by the languages if None.
        sentences: Sentences to search, by language, or in one list to recognise their languages. The `line` of a hit is
            its place in the list, from 1.
        documents: Documents to search, such as `{"id": "a1", "text": "It rains.", "year": 2020}`.
        kind: Kind of search: exact, or inverted lists (ivf or ivfpq).
        precision: Precision of stored vectors: fp32, fp16 or int8.
        on_error: What to do with unusable lines and documents: stop, or skip.

    Raises:
        ConfigError: An option value is invalid, or FAISS is needed and not installed.
        DataError: The folder exists, or a file or a document cannot be used.
        ModelError: The model cannot be opened, or lacks a language.
        RunError: The disk is full or not writable.
    """
    folder, given_files = Path(folder), _given_files(files)
    chosen, stored = parse_choice(IndexKind, kind, "index"), parse_choice(VectorPrecision, precision, "precision")
    with guard_index(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(f"{folder}: already exists; expected a new folder, or use dualmoco search add {folder}")
    if chosen != IndexKind.exact:
        require_faiss()
    building = building_folder(folder)
    if building.exists():
        logger.info("%s: resuming an interrupted build", folder)
    if model is None:
        sentences = sentences if isinstance(sentences, Mapping) else _lines(sentences, "sentences")
        documents = documents if isinstance(documents, Sequence | Mapping) else list(documents)
        model = default_index_model(given_files, sentences, documents)
    model = as_model(model)
    name, pooling, kept = portable_name(model.identity.name), model.identity.pooling, model.identity.dimension or 0
    manifest = IndexManifest(name, model.identity.sha256, AUTO, stored, chosen, (), pooling=pooling, dimension=kept)
    with _staged(manifest, given_files, sentences, documents, model, on_error) as staged:
        manifest = replace(manifest, backend=_check_languages(model, staged))
        with locked(building):
            manifest = _add_staged(building, manifest, staged, model)
    try:
        building.rename(folder)
    except OSError as error:
        raise RunError(f"{folder}: cannot be created: {error.strerror or error}; the index is in {building}") from None
    return manifest


def add_to_index(
    folder: str | Path,
    files: Files = (),
    model: Model | str | Path | None = None,
    *,
    sentences: GivenSentences = (),
    documents: DocumentRecords = (),
    on_error: str = OnError.stop,
) -> IndexManifest:
    """Adds text files, sentences or documents to an index, without encoding the existing ones again.

    A document replaces an earlier document with the same id. A file without ids replaces an earlier file with the same
    name and language.

    Args:
        folder: The index.
        files: Files to add; see `build_index`.
        model: Model of the index, if it was moved or is already open.
        sentences: Sentences to add, by language, or in one list to recognise their languages.
        documents: Documents to add; see `build_index`.
        on_error: What to do with unusable lines and documents: stop, or skip.

    Raises:
        DataError: The folder is not an index, or a file cannot be used or is already in the index.
        ModelError: The model did not make the index, or lacks a language.
        RunError: The disk is full or not writable; the index is unchanged.
    """
    folder, given_files = Path(folder), _given_files(files)
    with _changing(folder) as manifest:
        model = open_index_model(manifest, model)
        check_index_model(model, manifest)
        with _staged(manifest, given_files, sentences, documents, model, on_error) as staged:
            _check_languages(model, staged)
            return _add_staged(folder, manifest, staged, model)


def update_index(
    folder: str | Path, documents: DocumentRecords, model: Model | str | Path | None = None
) -> IndexManifest:
    """Changes documents of an index: given values replace the old ones, all others stay, and None removes a value.

    Args:
        folder: The index.
        documents: Mappings with the `id` of a document and its new values: `text`, `lang` or metadata.
        model: Model of the index, if it was moved or is already open.

    Raises:
        DataError: An id is missing or not in the index, or a value cannot be used; the index is unchanged.
        ModelError: The model did not make the index, or lacks a language.
        RunError: The disk is full or not writable; the index is unchanged.
    """
    folder = Path(folder)
    with _changing(folder) as manifest:
        model = open_index_model(manifest, model)
        check_index_model(model, manifest)
        parts = [IndexPart(folder, record) for record in manifest.parts]
        with _staged(manifest, [], (), _changed_documents(parts, documents), model, OnError.stop) as staged:
            return _add_staged(folder, manifest, staged, model)


def _changed_documents(parts: Sequence[IndexPart], documents: DocumentRecords) -> list[GivenDocument]:
    """Documents of an index with new values."""
    changes = {}
    for place, change in enumerate(documents, start=1):
        if not isinstance(change, Mapping) or not change.get("id"):
            raise DataError(f"documents:{place}: {change!r:.60}; expected a mapping with the id of a document")
        changes[str(change["id"])] = change
    changed = []
    for part, slots in _find_documents([part for part in parts if part.table], list(changes)):
        assert part.table
        for slot, entry in zip(slots, part.table.entries(slots), strict=True):
            text = part.text(int(part.slot_rows[slot]))
            record = {**entry.metadata, "text": text, "lang": part.record.lang, **changes[entry.id]}
            try:
                changed.append(make_document(record, entry.line, part.record.name))
            except ValueError as error:
                raise DataError(f"document {entry.id!r:.60}: {error}") from None
    return changed


def _find_documents(parts: Sequence[IndexPart], ids: Sequence[str]) -> list[tuple[IndexPart, list[int]]]:
    """The slots of documents in each part; DataError if one is missing or deleted."""
    found = [(part, _slots_of(part, ids)) for part in parts]
    known = {one for part, slots in found if part.table for one in _ids_of(part, slots)}
    if missing := [one for one in ids if one not in known]:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise DataError(f"id {missing[0]!r:.60}{more}: not in the index; expected ids of its documents")
    return found


def _slots_of(part: IndexPart, ids: Sequence[str]) -> list[int]:
    """The slots of the given documents that a part has and that are not deleted, ascending."""
    slots = sorted(part.table.find_ids(ids).values()) if part.table else []
    kept: list[int] = part.kept_slots(np.array(slots, dtype=np.int64)).tolist()
    return kept


def _ids_of(part: IndexPart, slots: Sequence[int]) -> list[str]:
    return [entry.id for entry in part.table.entries(slots)] if part.table else []


def delete_from_index(
    folder: str | Path, ids: Iterable[str] = (), *, files: Iterable[str] = (), filter: MetadataFilter | None = None
) -> IndexManifest:
    """Deletes documents or whole files from an index. Their disk space is freed by a later addition.

    Args:
        folder: The index.
        ids: Ids of documents.
        files: Names of files, as hits and `dualmoco search build` show them, such as `news.jsonl` or `tv.en.txt`.
        filter: Conditions on the metadata of documents to delete; see `Index.search`.

    Raises:
        ConfigError: Nothing to delete is given, or the filter is invalid.
        DataError: An id or a file is not in the index, or nothing would be left; the index is unchanged.
        RunError: The disk is full or not writable; the index is unchanged.
    """
    folder, given, names = Path(folder), as_sentences(ids, "ids"), as_sentences(files, "files")
    if not given and not names and not filter:
        raise ConfigError("nothing to delete; expected ids, files or a filter")
    with _changing(folder) as manifest:
        known = {record.name for record in manifest.parts}
        if missing := [name for name in names if name not in known]:
            raise DataError(f"{missing[0]}: not a file of the index; expected one of {', '.join(sorted(known))}")
        parts = [IndexPart(folder, record) for record in manifest.parts if record.name not in names]
        if not parts:
            raise DataError(f"{folder}: nothing would be left; remove the folder instead, or add other documents first")
        conditions = parse_filter(filter, manifest.fields) if filter else None
        slots = _find_documents(parts, given)
        records = []
        for part, own in slots:
            if conditions is not None and part.table:
                own = [*own, *part.table.slots(conditions).tolist()]
            records.append(_delete_slots(folder, manifest, part, own))
        lists = manifest.lists
        if len(records) < len(manifest.parts) and lists:
            lists = _make_lists(folder, replace(manifest, parts=tuple(records), lists=None))
        manifest = replace(manifest, parts=tuple(records), lists=lists)
        write_index_manifest(folder, manifest)
        _remove_strays(folder, manifest)
        return manifest


def _delete_slots(folder: Path, manifest: IndexManifest, part: IndexPart, slots: Iterable[int]) -> PartRecord:
    """The record of a part without some documents; writes the file that lists them."""
    record = part.record
    deleted = np.union1d(part.deleted, np.fromiter(slots, dtype=np.int64))
    if len(deleted) == len(part.deleted):
        return record
    old = record.deleted_file
    name = DELETED.format(int(old[8:-4]) + 1 if old else 0)
    place = part_folder(folder, record.number) / name
    write_array(place, deleted)
    files = {file: sha256 for file, sha256 in record.files.items() if file != old} | {name: file_sha256(place)}
    return replace(record, files=files, documents=len(part.slot_rows) - len(deleted))


@contextmanager
def _changing(folder: Path) -> Iterator[IndexManifest]:
    """Yields the manifest of an index that no other process can change meanwhile."""
    with guard_index(folder):
        read_index_manifest(folder)
    with locked(folder):
        yield read_index_manifest(folder)


def open_index_model(manifest: IndexManifest, model: Model | str | Path | None = None) -> Model:
    """The model of an index, opened with the settings of the index, unless it is already open."""
    if isinstance(model, Model):
        return model
    return open_model(model or manifest.model, manifest.backend, dimension=manifest.dimension or None)


@contextmanager
def _staged(
    manifest: IndexManifest,
    files: Sequence[TextFile],
    sentences: GivenSentences,
    documents: DocumentRecords | Sequence[GivenDocument],
    model: Model,
    on_error: str,
) -> Iterator[list[TextFile | StagedDocuments]]:
    """Yields the checked input: text files, and documents and sentences in temporary files."""
    texts = [file for file in files if not is_document_file(file.path)]
    tables = [file for file in files if is_document_file(file.path)]
    _check_names(files)
    skip = parse_choice(OnError, on_error, "on_error") == OnError.skip
    with (
        _written(sentences, model, manifest.next_number + 1) as given,
        readable_texts(texts, on_error) as readable,
        staged_documents(tables, documents, model, manifest.fields, skip=skip) as staged,
    ):
        if not readable and not given and not staged:
            raise DataError("nothing to search; expected text files, sentences or documents")
        known = resolve_texts(model, readable, [str(file.path) for file in readable])[1]
        yield [*known, *given, *staged]


@contextmanager
def _written(sentences: GivenSentences, model: Model, number: int) -> Iterator[list[TextFile]]:
    """Temporary files `sentences-NUMBER` of sentences, one per language; the line of a sentence is its place."""
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as place:
        files: list[TextFile] = []
        for lang, texts in _by_language(sentences, model).items():
            path = Path(place) / str(len(files)) / f"sentences-{number}"
            path.parent.mkdir()
            write_text(path, "".join(f"{text}\n" for text in texts))
            files.append(TextFile(path, lang))
        try:
            yield files
        except DataError as error:
            raise DataError(re.sub(rf"{re.escape(place)}\W\d+\W", "", str(error))) from None


def default_index_model(
    files: Sequence[TextFile] = (), sentences: GivenSentences = (), documents: DocumentRecords = ()
) -> str:
    """The default model for everything to index; missing languages are recognised among those of the default models.

    Raises:
        DataError: A text is in several scripts, or too short to recognise its language.
        ModelError: No default model has all languages.
    """
    langs = [file.lang for file in files if file.lang]
    unknown = [file for file in files if not file.lang and file.path.is_file()]
    for file in unknown:
        if is_document_file(file.path):
            langs += document_languages(read_documents(file, lambda line, what: None))
        elif found := recognize_language(read_lines(file.path), all_languages(), str(file.path)):
            langs.append(found)
    if isinstance(sentences, Mapping):
        langs += sentences
    else:
        langs += recognize_sentences(list(sentences), all_languages(), langs)
    if isinstance(documents, Sequence) and not isinstance(documents, str | bytes):
        langs += document_languages(valid_documents(documents))
    return default_model(langs)


def _by_language(sentences: GivenSentences, model: Model) -> dict[str, list[str]]:
    """Sentences of each language; if languages are recognised, "" replaces sentences in other languages."""
    if isinstance(sentences, Mapping):
        return {lang: _lines(texts, f"sentences of {lang}") for lang, texts in sentences.items()}
    texts = _lines(sentences, "sentences")
    langs = model.recognize_each(texts)
    return {
        lang: [text if lang == own else "" for text, own in zip(texts, langs, strict=True)]
        for lang in dict.fromkeys(langs)
    }


def _lines(given: Iterable[str], name: str) -> list[str]:
    """Checked sentences that can be lines of a file; DataError if one has several lines."""
    texts = as_sentences(given, name)
    check_characters(texts)
    for place, text in enumerate(texts):
        if "\n" in text:
            raise DataError(f"{name}: item {place}, {text!r:.60}, has several lines; expected one line each")
    return texts


def _given_files(files: Files) -> list[TextFile]:
    if not isinstance(files, Mapping):
        return [file if isinstance(file, TextFile) else TextFile(Path(file), "") for file in files]
    return [
        TextFile(Path(path), lang)
        for lang, paths in files.items()
        for path in ([paths] if isinstance(paths, str | Path) else paths)
    ]


def _check_languages(model: Model, staged: Sequence[TextFile | StagedDocuments]) -> str:
    """The back-end that runs all languages, or AUTO; ModelError if the model lacks a language."""
    langs = dict.fromkeys(_text_of(one).lang for one in staged)
    names = [model.backend(lang).name for lang in langs]
    return names[0] if len(set(names)) == 1 and names[0] in BACKENDS else AUTO


def _text_of(staged: TextFile | StagedDocuments) -> TextFile:
    return staged.file if isinstance(staged, StagedDocuments) else staged


def _add_staged(
    folder: Path, manifest: IndexManifest, staged: Sequence[TextFile | StagedDocuments], model: Model
) -> IndexManifest:
    """Makes parts, then inverted lists, then the manifest that lists them."""
    made_with = {"model": manifest.model_sha256, "backend": manifest.backend, "precision": manifest.precision.value}
    places = [part_folder(folder, manifest.next_number + number) for number in range(len(staged))]
    records: list[PartRecord] = []
    for one, place in zip(staged, places, strict=True):
        file = _text_of(one)
        record = copy_texts(file, place, made_with)
        if isinstance(one, StagedDocuments):
            record = _take_table(one, place, record)
        else:
            _check_new(record, file, [*manifest.parts, *records], place)
        records.append(record)
    for one, place in zip(staged, places, strict=True):
        text = replace(_text_of(one), path=place / TEXTS)
        encode_file(text, place / VECTORS, model, StoreForm(manifest.precision))
    kept = _without_replaced(folder, manifest, records, staged)
    is_smaller = len(kept) < len(manifest.parts)
    manifest = replace(manifest, parts=(*kept, *records), lists=None if is_smaller else manifest.lists)
    if manifest.kind == IndexKind.exact:
        manifest = _merge_parts(folder, manifest, records, made_with)
    else:
        manifest = replace(manifest, lists=_make_lists(folder, manifest))
    write_index_manifest(folder, manifest)
    _remove_strays(folder, manifest)
    return manifest


def _take_table(staged: StagedDocuments, place: Path, record: PartRecord) -> PartRecord:
    """The record of a part with its documents; their file is moved into the part."""
    with new_file(place / DOCUMENTS) as stream, staged.table.open("rb") as table:
        shutil.copyfileobj(table, stream)
    files = {**record.files, DOCUMENTS: file_sha256(place / DOCUMENTS)}
    return replace(record, files=files, documents=len(staged.ids), fields=staged.fields)


def _check_names(files: Sequence[TextFile]) -> None:
    """DataError if hits in two files could not be distinguished."""
    seen = set()
    for file in files:
        if (file.name, file.lang) in seen:
            raise DataError(f"{file.path}: a second {file.lang} file of this name; expected different names: rename it")
        seen.add((file.name, file.lang))


def _check_new(record: PartRecord, file: TextFile, records: Sequence[PartRecord], place: Path) -> None:
    """DataError if the index already has the same text, except under the name of a text that will be replaced."""
    named = [other for other in records if (other.name, other.lang) == (record.name, record.lang)]
    for other in records:
        is_same = (other.text_sha256, other.lang) == (record.text_sha256, record.lang)
        if is_same and (other not in named or len(named) == 1):
            shutil.rmtree(place)
            raise DataError(f"{file.path}: is already in the index, as {other.name}; expected another file")


def _without_replaced(
    folder: Path,
    manifest: IndexManifest,
    new: Sequence[PartRecord],
    staged: Sequence[TextFile | StagedDocuments],
) -> list[PartRecord]:
    """The parts without files that a new file of the same name replaces, and without documents whose id is added."""
    own_ids = [one.ids for one in staged if isinstance(one, StagedDocuments) and one.has_ids]
    by_id = {record.number for record, one in zip(new, staged, strict=True) if getattr(one, "has_ids", False)}
    replacing = [record for record in new if record.number not in by_id]
    names = {(record.name, "" if record.has_documents else record.lang) for record in replacing}
    kept: list[PartRecord] = []
    for part in manifest.parts:
        if (part.name, "" if part.has_documents else part.lang) in names:
            continue
        if part.has_documents and own_ids:
            opened = IndexPart(folder, part)
            slots = [slot for ids in own_ids for slot in opened.table.find_ids(ids).values()] if opened.table else []
            part = _delete_slots(folder, manifest, opened, slots)
        if part.documents or not part.has_documents or manifest.kind != IndexKind.exact:
            kept.append(part)
    _log_replaced(manifest, kept, new)
    return kept


def _log_replaced(manifest: IndexManifest, kept: Sequence[PartRecord], new: Sequence[PartRecord]) -> None:
    for record in new:
        same = [
            sum(part.sentences for part in parts if part.name == record.name)
            for parts in ([part for part in parts if part.lang == record.lang] for parts in (manifest.parts, kept))
        ]
        if same[0] > same[1]:
            logger.info(
                "%s: replaced its %s old sentences with %s", record.name, f"{same[0] - same[1]:,}", f"{record.rows:,}"
            )


def _merge_parts(
    folder: Path, manifest: IndexManifest, new: Sequence[PartRecord], made_with: Mapping[str, str]
) -> IndexManifest:
    """Merges small parts of a file, to keep their number low however often documents are added."""
    for name, lang in dict.fromkeys((record.name, record.lang) for record in new if record.has_documents):
        group = [part for part in manifest.parts if part.has_documents and (part.name, part.lang) == (name, lang)]
        chosen, total = [group[-1]], group[-1].documents
        for part in reversed(group[:-1]):
            if part.documents > MERGED_FACTOR * total and 2 * part.documents > part.rows:
                break
            chosen.insert(0, part)
            total += part.documents
        if len(chosen) > 1:
            merged = _merge(folder, manifest, chosen, made_with)
            kept = [part for part in manifest.parts if part not in chosen]
            manifest = replace(manifest, parts=(*kept, merged))
    return manifest


def _merge(
    folder: Path, manifest: IndexManifest, records: Sequence[PartRecord], made_with: Mapping[str, str]
) -> PartRecord:
    """One part with the documents of several parts that are not deleted; their vectors are copied."""
    parts, place = [IndexPart(folder, record) for record in records], part_folder(folder, manifest.next_number)
    vectors, starts = map_vectors(parts), np.cumsum([0, *(record.rows for record in records)])
    lang, name = records[0].lang, records[0].name
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as temporary:
        text, table = Path(temporary) / "texts", Path(temporary) / "table"
        rows: list[int] = []
        fields: dict[str, str] = {}
        with text.open("w", encoding="utf-8", newline="\n") as stream, DocumentWriter(table) as writer:
            for part, start in zip(parts, starts.tolist(), strict=False):
                assert part.table
                slots = part.kept_slots(np.arange(len(part.slot_rows))).tolist()
                for slot, entry in zip(slots, part.table.entries(slots), strict=True):
                    row = int(part.slot_rows[slot])
                    stream.write(f"{part.text(row)}\n")
                    writer.add(entry)
                    rows.append(start + row)
                fields |= part.record.fields
        record = copy_texts(TextFile(text, lang, True, name), place, made_with)
        staged = StagedDocuments(TextFile(text, lang), table, True, [""] * len(rows))
        staged.fields = {field: fields[field] for field in writer.fields}
        record = _take_table(staged, place, record)
    lines = find_unique_lines(place / TEXTS)
    key = replace(parts[0].store.key, text_sha256=lines.sha256)
    store = open_or_start(place / VECTORS, key, vectors.dimension, lines)
    wanted = np.array(rows)[np.load(place / LINES, allow_pickle=False)]  # the old row of each new row
    for number in store.missing():
        first = number * key.shard_rows
        store.add(number, vectors.stored(wanted[first : first + store.rows_of(number)]))
    return record


def _make_lists(folder: Path, manifest: IndexManifest) -> ListsRecord:
    vectors = map_vectors([IndexPart(folder, record) for record in manifest.parts])
    if manifest.lists:
        lists = InvertedLists.load(folder / manifest.lists.file, vectors, writable=True)
        lists.extend()
    else:
        lists = InvertedLists.train(vectors, manifest.kind)
    return lists.save(folder / LISTS_FILE.format(manifest.next_number))


def _remove_strays(folder: Path, manifest: IndexManifest) -> None:
    """Removes files of interrupted work that the manifest does not list."""
    known = {part_folder(folder, part.number): part for part in manifest.parts}
    for place in (folder / PARTS).iterdir():
        if place not in known:
            shutil.rmtree(place)
            continue
        for file in place.iterdir():
            if DELETED_NAME.fullmatch(file.name) and file.name != known[place].deleted_file:
                file.unlink()
    for file in folder.glob("*.faiss"):
        if not manifest.lists or file.name != manifest.lists.file:
            file.unlink()
