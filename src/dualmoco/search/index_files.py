"""What an index folder says of itself: its model, its parts, its form."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.storage import file_sha256, new_file, write_bytes, write_json
from dualmoco.core.vectors import Ids
from dualmoco.core.version import VERSION
from dualmoco.embeddings.store import ShardedVectors, open_store
from dualmoco.embeddings.unique_lines import TextFile, find_unique_lines, lines_at
from dualmoco.models.model import Model

MANIFEST, PARTS = "manifest.json", "parts"


class IndexKind(StrEnum):
    """How an index is searched."""

    exact = "exact"
    """Every vector is compared."""
    ivf = "ivf"
    """FAISS inverted lists of int8 vectors."""
    ivfpq = "ivfpq"
    """FAISS inverted lists of product codes, smaller still."""


@dataclass(frozen=True)
class PartRecord:
    """One text file of an index."""

    name: str
    """Of the file, when it was added."""
    lang: str
    text_sha256: str
    """Of the file's unpacked bytes."""
    rows: int
    files: dict[str, str]
    """Checksum of each file of the part, but for vectors, whose store knows them."""


@dataclass(frozen=True)
class ListsRecord:
    """Inverted lists, and how many of them must be looked at."""

    file: str
    sha256: str
    lists: int
    probes: int
    recall: float
    """Share of the true ten nearest that are found, measured on held-out vectors of the index."""


@dataclass(frozen=True)
class IndexManifest:
    """All that is needed to open an index."""

    model: str
    model_sha256: str
    backend: str
    precision: VectorPrecision
    kind: IndexKind
    parts: tuple[PartRecord, ...]
    lists: ListsRecord | None = None
    pooling: str = "own"
    """Of the model, and its prompt, where they are not its own."""

    @property
    def rows(self) -> int:
        """How many sentences there are."""
        return sum(part.rows for part in self.parts)

    @property
    def languages(self) -> list[str]:
        """Languages of the parts."""
        return sorted({part.lang for part in self.parts})


def part_folder(folder: Path, number: int) -> Path:
    """Where a part lies."""
    return folder / PARTS / f"{number:05d}"


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Writes the manifest at once; whatever it does not name is no part of the index."""
    write_json(folder / MANIFEST, {"version": VERSION, **asdict(manifest)})


def read_index_manifest(folder: Path) -> IndexManifest:
    """Reads what an index is.

    Args:
        folder: Of `dualmoco search build`.

    Returns:
        Its manifest.

    Raises:
        DataError: No such folder, or something else than an index.
    """
    if building_folder(folder).exists() and not folder.exists():
        raise DataError(f"{folder}: its building was interrupted; run the same dualmoco search build again")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected an index made by dualmoco search build")
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        del content["version"]
        lists = content.pop("lists")
        parts = tuple(PartRecord(**part) for part in content.pop("parts"))
        precision, kind = VectorPrecision(content.pop("precision")), IndexKind(content.pop("kind"))
        return IndexManifest(
            **content, precision=precision, kind=kind, parts=parts, lists=ListsRecord(**lists) if lists else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{folder}: no readable {MANIFEST} of an index; expected a folder of dualmoco search build"
        ) from None


def building_folder(folder: Path) -> Path:
    """Where an index lies until it is whole."""
    return folder.with_name(f".{folder.name}.building")


TEXTS, OFFSETS, LINES, VECTORS, RECORD = "texts.txt", "offsets.npy", "lines.npy", "vectors", "part.json"


class IndexPart:
    """A part of an index in use, mapped from disk."""

    def __init__(self, folder: Path, record: PartRecord) -> None:
        self.folder, self.record = folder, record
        self.store = open_store(folder / VECTORS)
        try:
            self.offsets: Ids = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)  # (n + 1,)
            self.lines: Ids = np.load(folder / LINES, mmap_mode="r", allow_pickle=False)  # (n,)
            self.bytes = np.memmap(folder / TEXTS, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: cannot be read ({error}); build the index again") from None
        if len(self.offsets) != record.rows + 1 or self.store.count != record.rows:
            raise DataError(f"{folder}: {self.store.count:,} vectors; expected {record.rows:,}: build the index again")

    def text(self, row: int) -> str:
        """A sentence."""
        start, stop = self.offsets[row : row + 2].tolist()
        return self.bytes[start : stop - 1].tobytes().decode("utf-8")

    def check(self) -> None:
        """Compares every file with its checksum; DataError for the first that differs."""
        known = {self.folder / name: sha256 for name, sha256 in self.record.files.items()}
        known |= {self.store.folder / shard.file: shard.sha256 for shard in self.store.shards.values()}
        for path, sha256 in known.items():
            check_file(path, sha256)


def check_file(path: Path, sha256: str) -> None:
    """Compares a file with its checksum.

    Args:
        path: A file of an index.
        sha256: What its manifest says.

    Raises:
        DataError: It is gone or damaged.
    """
    if not path.is_file():
        raise DataError(f"{path}: is missing; build the index again")
    if file_sha256(path) != sha256:
        raise DataError(f"{path}: is damaged, its checksum is not the manifest's; build the index again")


def check_index_model(model: Model, manifest: IndexManifest) -> None:
    """Refuses a model that did not make an index's vectors.

    Args:
        model: The model.
        manifest: Of the index.

    Raises:
        ModelError: Another checksum, pooling or prompt.
    """
    if model.identity.sha256 != manifest.model_sha256:
        given, expected = model.identity.sha256[:12], manifest.model_sha256[:12]
        raise ModelError(
            f"{model.identity.name}: checksum {given}; expected {expected}, the model that made the index "
            f"({manifest.model})"
        )
    if model.identity.pooling != manifest.pooling:
        raise ModelError(
            f"{model.identity.name}: pooling {model.identity.pooling}; expected {manifest.pooling}, as the index was "
            "made: open the index with a model that was opened so"
        )


def map_vectors(parts: Sequence[IndexPart]) -> ShardedVectors:
    """Vectors (n, D) of several parts, one after the other."""
    shards = [
        store.folder / shard.file
        for store in (part.store for part in parts)
        for _, shard in sorted(store.shards.items())
    ]
    for part in parts:
        if part.store.missing():
            raise DataError(f"{part.folder}: vectors are missing; build the index again")
    return ShardedVectors(shards, parts[0].store.dimension)


def copy_texts(file: TextFile, folder: Path, made_with: Mapping[str, str]) -> PartRecord:
    """Begins a part: copies the distinct sentences of a file.

    Args:
        file: What is added.
        folder: Of the part; an interrupted part of the same file and settings is resumed, another removed.
        made_with: All that decides its vectors: model, back-end, precision.

    Returns:
        What the part is.

    Raises:
        DataError: A text without sentences or with invalid UTF-8.
        RunError: The disk is full or not writable.
    """
    lines = find_unique_lines(file.path)
    made_of = {"text": lines.sha256, "lang": file.lang, **made_with}
    if record := _begun(folder, made_of):
        return record
    shutil.rmtree(folder, ignore_errors=True)
    offsets = np.zeros(len(lines.first) + 1, dtype=np.int64)
    with new_file(folder / TEXTS) as stream:
        for row, text in enumerate(lines_at(file.path, lines.first.tolist())):
            offsets[row + 1] = offsets[row] + stream.write(text.encode() + b"\n")
    if not offsets[-1]:
        raise DataError(f"{file.path}: changed while it was read; run the command again")
    _write_array(folder / OFFSETS, offsets)
    _write_array(folder / LINES, lines.first)
    files = {name: file_sha256(folder / name) for name in (TEXTS, OFFSETS, LINES)}
    record = PartRecord(file.path.name, file.lang, lines.sha256, len(lines.first), files)
    write_json(folder / RECORD, {"made_of": made_of, "record": asdict(record)})
    return record


def _begun(folder: Path, made_of: dict[str, str]) -> PartRecord | None:
    """The record of a part whose sentences were copied already."""
    try:
        content = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return PartRecord(**content["record"]) if content["made_of"] == made_of else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_array(path: Path, array: Ids) -> None:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    write_bytes(path, stream.getvalue())
