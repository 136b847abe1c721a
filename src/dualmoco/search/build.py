"""Builds an index folder and adds files to it; what is interrupted is gone on with, or leaves the index as it was."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dualmoco.core.errors import DataError, ModelError, RunError
from dualmoco.core.storage import locked
from dualmoco.embeddings.arrays import ShardedVectors, VectorPrecision
from dualmoco.embeddings.encode import EncodeSettings
from dualmoco.models.backend import open_backend
from dualmoco.search.cells import require_faiss
from dualmoco.search.inverted import InvertedLists
from dualmoco.search.manifest import (
    PARTS,
    IndexKind,
    IndexManifest,
    ListsRecord,
    PartRecord,
    building_folder,
    part_folder,
    read_index_manifest,
    write_index_manifest,
)  # fmt: skip
from dualmoco.search.part import IndexPart, TextFile, copy_texts, encode_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildSettings:
    """How an index is made."""

    model: str
    kind: IndexKind = IndexKind.exact
    precision: VectorPrecision = VectorPrecision.fp32
    backend: str = "auto"


def build_index(folder: Path, files: Sequence[TextFile], settings: BuildSettings) -> IndexManifest:
    """Makes an index of some files.

    It is built beside its place and renamed; a build that was interrupted goes on where it stopped.

    Args:
        folder: Where it shall be.
        files: What is searched later.
        settings: Model and form.

    Returns:
        What was built.

    Raises:
        ConfigError: FAISS is needed and not installed.
        DataError: The folder exists, or a file cannot be used.
        ModelError: A model that cannot be used, or without one of the languages.
        RunError: The disk is full or not writable.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists already; expected a new folder, or use dualmoco search add {folder}")
    if settings.kind != IndexKind.exact:
        require_faiss()
    building = building_folder(folder)
    if building.exists():
        logger.info("%s: going on with an interrupted build", folder)
    path = Path(settings.model)
    model = str(path.resolve()) if path.is_dir() else settings.model
    sha256 = check_languages(model, files, settings.backend)
    manifest = IndexManifest(model, sha256, settings.backend, settings.precision, settings.kind, ())
    with locked(building):
        manifest = _with_files(building, manifest, files, model)
    try:
        building.rename(folder)
    except OSError as error:
        raise RunError(f"{folder}: cannot be put in place: {error.strerror or error}; it lies in {building}") from None
    return manifest


def add_to_index(folder: Path, files: Sequence[TextFile], model: str | None = None) -> IndexManifest:
    """Adds files to an index, without encoding again what is there.

    Args:
        folder: The index.
        files: What is added.
        model: Where the index's model is now, if it was moved.

    Returns:
        The index with the files.

    Raises:
        DataError: Not an index, a file that cannot be used or one that is in it already.
        ModelError: Another model than the index's, or one without one of the languages.
        RunError: The disk is full or not writable; the index is then as it was.
    """
    read_index_manifest(folder)
    with locked(folder):
        manifest = read_index_manifest(folder)
        found = model or manifest.model
        sha256 = check_languages(found, files, manifest.backend)
        check_model(found, sha256, manifest)
        return _with_files(folder, manifest, files, found)


def check_languages(model: str, files: Sequence[TextFile], backend: str) -> str:
    """Refuses languages that a model does not have before any work is done; gives the model's checksum."""
    checksums = [open_backend(model, lang, backend).sha256 for lang in dict.fromkeys(file.lang for file in files)]
    return str(checksums[0])


def check_model(model: str, sha256: str, manifest: IndexManifest) -> None:
    """Refuses a model that did not make an index's vectors.

    Args:
        model: Its name.
        sha256: Its checksum.
        manifest: Of the index.

    Raises:
        ModelError: Another checksum.
    """
    if sha256 != manifest.model_sha256:
        given, expected = sha256[:12], manifest.model_sha256[:12]
        raise ModelError(
            f"{model}: checksum {given}; expected {expected}, the model that made the index ({manifest.model})"
        )


def map_vectors(parts: Sequence[IndexPart]) -> ShardedVectors:
    """Vectors (n, D) of several parts, one after the other."""
    shards = [store.folder / shard.file for store in (part.store for part in parts)
              for _, shard in sorted(store.shards.items())]  # fmt: skip
    for part in parts:
        if part.store.missing():
            raise DataError(f"{part.folder}: vectors are missing; build the index again")
    return ShardedVectors(shards, parts[0].store.width)


def _with_files(folder: Path, manifest: IndexManifest, files: Sequence[TextFile], model: str) -> IndexManifest:
    """Makes parts of files, then the lists, then the manifest that makes them count."""
    settings = [EncodeSettings(model, file.lang, manifest.backend, manifest.precision) for file in files]
    places = [part_folder(folder, len(manifest.parts) + number) for number in range(len(files))]
    records = list(manifest.parts)
    for file, place, setting in zip(files, places, settings, strict=True):
        record = copy_texts(file, place, setting, manifest.model_sha256)
        _check_new(record, file, records, place)
        records.append(record)
    for place, setting in zip(places, settings, strict=True):
        encode_part(place, setting)
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
            raise DataError(f"{file.path}: is in the index already, as {other.name}; expected another file")


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
    """Removes what earlier, interrupted work left and the manifest does not name."""
    known = {part_folder(folder, number) for number in range(len(manifest.parts))}
    for place in (folder / PARTS).iterdir():
        if place not in known:
            shutil.rmtree(place)
    for file in folder.glob("*.faiss"):
        if not manifest.lists or file.name != manifest.lists.file:
            file.unlink()
