"""The files of an index folder: a manifest, and one part per text file with its sentences and their vectors.

Whatever the manifest does not list is not part of the index.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.storage import file_sha256, new_file, write_json
from dualmoco.core.vectors import Ids
from dualmoco.embeddings.store import ShardedVectors, open_store, write_array
from dualmoco.embeddings.unique_lines import TextFile, find_unique_lines, lines_at
from dualmoco.models.model import Model

INDEX_MANIFEST, PARTS = "manifest.json", "parts"
TEXTS, OFFSETS, LINES, VECTORS, PART_RECORD = "texts.txt", "offsets.npy", "lines.npy", "vectors", "part.json"
"""Files of a part."""


class IndexKind(StrEnum):
    """How an index is searched."""

    exact = "exact"  # every vector is compared
    ivf = "ivf"  # FAISS inverted lists of int8 vectors
    ivfpq = "ivfpq"  # FAISS inverted lists of product codes, the smallest


@dataclass(frozen=True)
class PartRecord:
    """One text file of an index."""

    name: str  # name of the file when it was added
    lang: str
    text_sha256: str  # checksum of the file's unpacked bytes
    rows: int
    files: dict[str, str]  # checksum of each file of the part, except those of vectors, which their store has


@dataclass(frozen=True)
class ListsRecord:
    """Inverted lists, and how many of them a query probes."""

    file: str
    sha256: str
    lists: int
    probes: int
    recall: float  # share of the true ten nearest that are found for held-out vectors of the index


@dataclass(frozen=True)
class IndexManifest:
    """Everything that is needed to open an index."""

    model: str
    model_sha256: str
    backend: str
    precision: VectorPrecision
    kind: IndexKind
    parts: tuple[PartRecord, ...]
    lists: ListsRecord | None = None
    pooling: str = "own"  # pooling and prompt, if they are not the model's own

    @property
    def rows(self) -> int:
        """Number of sentences."""
        return sum(part.rows for part in self.parts)

    @property
    def languages(self) -> list[str]:
        """Languages of the parts."""
        return sorted({part.lang for part in self.parts})


def part_folder(folder: Path, number: int) -> Path:
    """Folder of a part."""
    return folder / PARTS / f"{number:05d}"


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Writes the manifest, which makes everything that it lists part of the index."""
    write_json(folder / INDEX_MANIFEST, {"version": VERSION, **asdict(manifest)})


def read_index_manifest(folder: Path) -> IndexManifest:
    """Reads the manifest of a folder of `dualmoco search build`; DataError if there is no index."""
    if building_folder(folder).exists() and not folder.exists():
        raise DataError(f"{folder}: the index build was interrupted; run the same dualmoco search build again")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected an index of dualmoco search build")
    try:
        content: dict[str, Any] = json.loads((folder / INDEX_MANIFEST).read_text(encoding="utf-8"))
        del content["version"]
        lists = content.pop("lists")
        parts = tuple(PartRecord(**part) for part in content.pop("parts"))
        precision, kind = VectorPrecision(content.pop("precision")), IndexKind(content.pop("kind"))
        return IndexManifest(
            **content, precision=precision, kind=kind, parts=parts, lists=ListsRecord(**lists) if lists else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{folder}: has no readable {INDEX_MANIFEST}; expected an index of dualmoco search build"
        ) from None


def building_folder(folder: Path) -> Path:
    """Folder in which an index is built before it is renamed."""
    return folder.with_name(f".{folder.name}.building")


class IndexPart:
    """A part of an open index, mapped from disk."""

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
        """The sentence of a row."""
        start, stop = self.offsets[row : row + 2].tolist()
        return self.bytes[start : stop - 1].tobytes().decode("utf-8")

    def check(self) -> None:
        """Verifies the checksum of every file; DataError if one is missing or damaged."""
        checksums = {self.folder / name: sha256 for name, sha256 in self.record.files.items()}
        checksums |= {self.store.folder / shard.file: shard.sha256 for shard in self.store.shards.values()}
        for path, sha256 in checksums.items():
            check_file(path, sha256)


def check_file(path: Path, sha256: str) -> None:
    """DataError if a file of an index is missing or damaged."""
    if not path.is_file():
        raise DataError(f"{path}: is missing; build the index again")
    if file_sha256(path) != sha256:
        raise DataError(f"{path}: is damaged: its checksum differs from the manifest; build the index again")


def check_index_model(model: Model, manifest: IndexManifest) -> None:
    """ModelError if the model is not the one that made the index, or was opened with another pooling or prompt."""
    if model.identity.sha256 != manifest.model_sha256:
        given, expected = model.identity.sha256[:12], manifest.model_sha256[:12]
        raise ModelError(
            f"{model.identity.name}: checksum {given}; expected {expected}, the model that made the index "
            f"({manifest.model})"
        )
    if model.identity.pooling != manifest.pooling:
        raise ModelError(
            f"{model.identity.name}: pooling {model.identity.pooling}; expected {manifest.pooling}, as in the index: "
            "open the model with that pooling"
        )


def map_vectors(parts: Sequence[IndexPart]) -> ShardedVectors:
    """Concatenated vectors (n, D) of several parts."""
    for part in parts:
        if part.store.missing():
            raise DataError(f"{part.folder}: vectors are missing; build the index again")
    shards = [part.store.folder / shard.file for part in parts for _, shard in sorted(part.store.shards.items())]
    return ShardedVectors(shards, parts[0].store.dimension)


def copy_texts(file: TextFile, folder: Path, made_with: Mapping[str, str]) -> PartRecord:
    """Starts a part: copies the distinct sentences of a text file.

    An interrupted part of the same file and `made_with` (model, back-end, precision) is resumed, any other is removed.
    """
    lines = find_unique_lines(file.path)
    made_of = {"text": lines.sha256, "lang": file.lang, **made_with}
    if record := _read_part_record(folder, made_of):
        return record
    shutil.rmtree(folder, ignore_errors=True)
    offsets = np.zeros(len(lines.first) + 1, dtype=np.int64)
    with new_file(folder / TEXTS) as stream:
        for row, text in enumerate(lines_at(file.path, lines.first.tolist())):
            offsets[row + 1] = offsets[row] + stream.write(text.encode() + b"\n")
    if not offsets[-1]:
        raise DataError(f"{file.path}: changed while it was read; run the command again")
    write_array(folder / OFFSETS, offsets)
    write_array(folder / LINES, lines.first)
    files = {name: file_sha256(folder / name) for name in (TEXTS, OFFSETS, LINES)}
    record = PartRecord(file.path.name, file.lang, lines.sha256, len(lines.first), files)
    write_json(folder / PART_RECORD, {"made_of": made_of, "record": asdict(record)})
    return record


def _read_part_record(folder: Path, made_of: dict[str, str]) -> PartRecord | None:
    """The record of a part whose sentences were copied before, if it was made of the same."""
    try:
        content = json.loads((folder / PART_RECORD).read_text(encoding="utf-8"))
        return PartRecord(**content["record"]) if content["made_of"] == made_of else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
