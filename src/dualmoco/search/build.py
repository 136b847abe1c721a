"""Builds an index and adds files to it; an interrupted build is resumed, an interrupted addition changes nothing."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dualmoco.core.config_loader import VectorPrecision, parse_choice
from dualmoco.core.errors import DataError, RunError
from dualmoco.core.storage import locked
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.models.embedded import DEFAULT_MODEL
from dualmoco.models.folder import portable_name
from dualmoco.models.load import open_model
from dualmoco.models.model import AUTO, BACKENDS, Model
from dualmoco.search.faiss_index import InvertedLists
from dualmoco.search.index_files import (
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
    map_vectors,
    part_folder,
    read_index_manifest,
    write_index_manifest,
)
from dualmoco.search.ivf import require_faiss

logger = logging.getLogger(__name__)

Files = Mapping[str, str | Path | Sequence[str | Path]] | Sequence[TextFile]
"""The file or files of each language."""


def build_index(
    folder: str | Path,
    files: Files,
    model: Model | str | Path = DEFAULT_MODEL,
    *,
    kind: str = IndexKind.exact,
    precision: str = VectorPrecision.fp32,
) -> IndexManifest:
    """Builds an index of text files.

    The index is built in a temporary folder and renamed; an interrupted build is resumed.

    Args:
        folder: New folder for the index.
        files: Text files to search, by language.
        model: Model that encodes the files and the queries, or its name.
        kind: Kind of search: exact, or inverted lists: ivf or ivfpq.
        precision: Precision of stored vectors: fp32, fp16 or int8.

    Raises:
        ConfigError: An option value is invalid, or FAISS is needed and not installed.
        DataError: The folder exists, or a file cannot be used.
        ModelError: The model cannot be opened, or lacks a language.
        RunError: The disk is full or not writable.
    """
    folder, texts = Path(folder), _text_files(files)
    chosen, stored = parse_choice(IndexKind, kind, "index"), parse_choice(VectorPrecision, precision, "precision")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: already exists; expected a new folder, or use dualmoco search add {folder}")
    if chosen != IndexKind.exact:
        require_faiss()
    building = building_folder(folder)
    if building.exists():
        logger.info("%s: resuming an interrupted build", folder)
    model = model if isinstance(model, Model) else open_model(model)
    backend = _check_languages(model, texts)
    name = portable_name(model.identity.name)
    manifest = IndexManifest(name, model.identity.sha256, backend, stored, chosen, (), pooling=model.identity.pooling)
    with locked(building):
        manifest = _add_files(building, manifest, texts, model)
    try:
        building.rename(folder)
    except OSError as error:
        raise RunError(f"{folder}: cannot be created: {error.strerror or error}; the index is in {building}") from None
    return manifest


def add_to_index(folder: str | Path, files: Files, model: Model | str | Path | None = None) -> IndexManifest:
    """Adds text files to an index, without encoding its other files again.

    Args:
        folder: The index.
        files: Text files to add, by language.
        model: Model of the index, if it was moved or is already open.

    Raises:
        DataError: The folder is not an index, or a file cannot be used or is already in the index.
        ModelError: The model is not the one that made the index, or lacks a language.
        RunError: The disk is full or not writable; the index is unchanged.
    """
    folder, texts = Path(folder), _text_files(files)
    read_index_manifest(folder)
    with locked(folder):
        manifest = read_index_manifest(folder)
        model = model if isinstance(model, Model) else open_model(model or manifest.model, manifest.backend)
        _check_languages(model, texts)
        check_index_model(model, manifest)
        return _add_files(folder, manifest, texts, model)


def _text_files(files: Files) -> list[TextFile]:
    if not isinstance(files, Mapping):
        return list(files)
    return [
        TextFile(Path(path), lang)
        for lang, paths in files.items()
        for path in ([paths] if isinstance(paths, str | Path) else paths)
    ]


def _check_languages(model: Model, files: Sequence[TextFile]) -> str:
    """The back-end that runs all languages, or AUTO; ModelError if the model lacks a language."""
    names = [model.backend(lang).name for lang in dict.fromkeys(file.lang for file in files)]
    return names[0] if len(set(names)) == 1 and names[0] in BACKENDS else AUTO


def _add_files(folder: Path, manifest: IndexManifest, files: Sequence[TextFile], model: Model) -> IndexManifest:
    """Makes parts, then inverted lists, then the manifest that lists them."""
    made_with = {"model": manifest.model_sha256, "backend": manifest.backend, "precision": manifest.precision.value}
    places = [part_folder(folder, len(manifest.parts) + number) for number in range(len(files))]
    records = list(manifest.parts)
    for file, place in zip(files, places, strict=True):
        record = copy_texts(file, place, made_with)
        _check_new(record, file, records, place)
        records.append(record)
    for file, place in zip(files, places, strict=True):
        encode_file(TextFile(place / TEXTS, file.lang), place / VECTORS, model, StoreForm(manifest.precision))
    manifest = replace(manifest, parts=tuple(records))
    if manifest.kind != IndexKind.exact:
        manifest = replace(manifest, lists=_make_lists(folder, manifest))
    write_index_manifest(folder, manifest)
    _remove_strays(folder, manifest)
    return manifest


def _check_new(record: PartRecord, file: TextFile, records: Sequence[PartRecord], place: Path) -> None:
    for other in records:
        if (other.text_sha256, other.lang) == (record.text_sha256, record.lang):
            shutil.rmtree(place)
            raise DataError(f"{file.path}: is already in the index, as {other.name}; expected another file")


def _make_lists(folder: Path, manifest: IndexManifest) -> ListsRecord:
    parts = [IndexPart(part_folder(folder, number), record) for number, record in enumerate(manifest.parts)]
    vectors = map_vectors(parts)
    if manifest.lists:
        lists = InvertedLists.load(folder / manifest.lists.file, vectors, writable=True)
        lists.extend()
    else:
        lists = InvertedLists.train(vectors, manifest.kind)
    return lists.save(folder / f"index-{len(parts):05d}.faiss")


def _remove_strays(folder: Path, manifest: IndexManifest) -> None:
    """Removes files of interrupted work that the manifest does not list."""
    known = {part_folder(folder, number) for number in range(len(manifest.parts))}
    for place in (folder / PARTS).iterdir():
        if place not in known:
            shutil.rmtree(place)
    for file in folder.glob("*.faiss"):
        if not manifest.lists or file.name != manifest.lists.file:
            file.unlink()
