"""The files of an index folder: a manifest, and one part per text file with its sentences and their vectors.

A part with documents also has their ids and metadata, one slot per document, and a list of deleted documents. Files
that the manifest does not list do not belong to the index.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.config_loader import MAX_REASON, VectorPrecision
from dualmoco.core.errors import DataError, DualmocoError, ModelError
from dualmoco.core.progress import Progress
from dualmoco.core.storage import check_contained, file_sha256, new_file, read_json, write_json
from dualmoco.core.vectors import Ids
from dualmoco.embeddings.store import ShardedVectors, load_array, open_store, write_array
from dualmoco.embeddings.unique_lines import EMPTY, TextFile, UniqueLines, find_unique_lines, unchanged_sentences
from dualmoco.models.model import Model
from dualmoco.search.metadata import TYPE_NAMES, DocumentTable

INDEX_MANIFEST, PARTS = "manifest.json", "parts"
TEXTS, OFFSETS, LINES, VECTORS, PART_RECORD = "texts.txt", "offsets.npy", "lines.npy", "vectors", "part.json"
"""Files of a part."""
REPEATS = "repeats.npy"  # file of a part; missing in indexes of earlier versions
DOCUMENTS = "documents.sqlite"  # ids and metadata of a part with documents
DELETED = "deleted-{:05d}.npy"  # slots of deleted documents; each deletion writes a new file
DELETED_NAME = re.compile(r"deleted-\d{5,}\.npy")
LISTS_FILE = "index-{:05d}.faiss"
LINE_FEED = 10
VERIFIED_ROWS = 65_536  # rows verified at once
LENGTH_TOLERANCE = 0.01


class IndexKind(StrEnum):
    """How an index is searched."""

    exact = "exact"  # every vector is compared
    ivf = "ivf"  # FAISS inverted lists of int8 vectors
    ivfpq = "ivfpq"  # FAISS inverted lists of product codes, the smallest index


@dataclass(frozen=True)
class PartRecord:
    """One text file of an index."""

    name: str  # name of the file when it was added
    lang: str
    text_sha256: str  # checksum of the file's unpacked bytes
    rows: int
    files: dict[str, str]  # checksum of each file of the part, except for vectors, whose store has it
    number: int  # number of the part's folder
    documents: int = 0  # documents that are not deleted; text files have none
    fields: dict[str, str] = field(default_factory=dict)  # type of each metadata field

    @property
    def has_documents(self) -> bool:
        """Whether it is a part with documents, whose lines have ids."""
        return DOCUMENTS in self.files

    @property
    def sentences(self) -> int:
        """Number of sentences or documents that can be found."""
        return self.documents if self.has_documents else self.rows

    @property
    def deleted_file(self) -> str | None:
        """Name of the file that lists deleted documents."""
        return next((name for name in self.files if DELETED_NAME.fullmatch(name)), None)


@dataclass(frozen=True)
class ListsRecord:
    """Inverted lists, and how many of them a query probes."""

    file: str
    sha256: str
    lists: int
    probes: int
    recall: float  # share of the true ten nearest neighbours that are found, for held-out vectors


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
    dimension: int = 0  # number of leading components that the model keeps; 0 for all

    @property
    def rows(self) -> int:
        """Number of vectors."""
        return sum(part.rows for part in self.parts)

    @property
    def sentences(self) -> int:
        """Number of sentences and documents that can be found."""
        return sum(part.sentences for part in self.parts)

    @property
    def fields(self) -> dict[str, str]:
        """Type of each metadata field."""
        return {name: kind for part in self.parts for name, kind in part.fields.items()}

    @property
    def languages(self) -> list[str]:
        """Languages of the parts."""
        return sorted({part.lang for part in self.parts})

    @property
    def next_number(self) -> int:
        """Number of the folder of the next part."""
        return 1 + max((part.number for part in self.parts), default=-1)


def part_folder(folder: Path, number: int) -> Path:
    """Folder of a part."""
    return folder / PARTS / f"{number:05d}"


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Writes the manifest, so that all files it lists become part of the index."""
    content = {"version": VERSION, **asdict(manifest)}
    for part in content["parts"]:
        if DOCUMENTS not in part["files"]:
            del part["documents"], part["fields"]  # for earlier versions
    write_json(folder / INDEX_MANIFEST, content)


def read_index_manifest(folder: Path) -> IndexManifest:
    """Reads the manifest of a folder of `dualmoco search build`; DataError if there is no index."""
    if building_folder(folder).exists() and not folder.exists():
        raise DataError(f"{folder}: the index build was interrupted; run the same dualmoco search build again")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected an index of dualmoco search build")
    try:
        content: dict[str, Any] = read_json(folder / INDEX_MANIFEST)
        del content["version"]
        lists = content.pop("lists")
        parts = tuple(PartRecord(**{"number": place, **part}) for place, part in enumerate(content.pop("parts")))
        precision, kind = VectorPrecision(content.pop("precision")), IndexKind(content.pop("kind"))
        manifest = IndexManifest(
            **content, precision=precision, kind=kind, parts=parts, lists=ListsRecord(**lists) if lists else None
        )
        _check_manifest(manifest)
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{folder}: has no readable {INDEX_MANIFEST}; expected an index of dualmoco search build"
        ) from None


def _check_manifest(manifest: IndexManifest) -> None:
    """ValueError or TypeError if a value of a manifest is invalid, such as the name of a file elsewhere."""
    lists, names = manifest.lists, {TEXTS, OFFSETS, LINES}
    records: list[IndexManifest | PartRecord | ListsRecord] = [manifest, *manifest.parts, *([lists] if lists else [])]
    for record in records:
        _check_types(record)
    for part in manifest.parts:
        others = set(part.files) - {part.deleted_file, DOCUMENTS, REPEATS}
        is_deleted = part.deleted_file is not None and not part.has_documents
        if part.rows < 1 or part.number < 0 or others != names or is_deleted:
            raise ValueError(part.name)
        if set(part.fields.values()) - set(TYPE_NAMES.values()):
            raise ValueError(part.name)
    if not manifest.parts or len({part.number for part in manifest.parts}) < len(manifest.parts):
        raise ValueError(PARTS)
    is_named = lists is None or (re.fullmatch(r"index-\d{5,}\.faiss", lists.file) and lists.probes > 0)
    if not is_named or (lists is None) != (manifest.kind == IndexKind.exact):
        raise ValueError("lists")


def _check_types(record: IndexManifest | PartRecord | ListsRecord) -> None:
    types: dict[object, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}
    types["dict[str, str]"] = (dict,)
    for one in fields(record):
        value = getattr(record, one.name)
        if one.type in types and (not isinstance(value, types[one.type]) or isinstance(value, bool)):
            raise TypeError(one.name)


@contextmanager
def guard_index(folder: Path) -> Iterator[None]:
    """Turns an unexpected exception of the block into a DataError of one line, with the cause chained."""
    try:
        yield
    except (DualmocoError, ImportError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:MAX_REASON]
        raise DataError(f"{folder}: cannot be used as an index ({reason}); build it again") from error


def building_folder(folder: Path) -> Path:
    """Folder in which an index is built before it is renamed."""
    return folder.with_name(f".{folder.name}.building")


class IndexPart:
    """A part of an open index, mapped from disk."""

    def __init__(self, folder: Path, record: PartRecord) -> None:
        self.folder, self.record = part_folder(folder, record.number), record
        for name in (*record.files, VECTORS):
            check_contained(self.folder / name, folder)
        self.store = open_store(self.folder / VECTORS)
        self.offsets: Ids = load_array(self.folder / OFFSETS, "i")  # (n + 1,)
        self.lines: Ids = load_array(self.folder / LINES, "i")  # (n,)
        self.repeats: Ids = np.empty((2, 0), dtype=np.int64)  # rows and lines, from 0, after the first, by row and line
        if REPEATS in record.files:
            self.repeats = load_array(self.folder / REPEATS, "i")
        self.table = DocumentTable(self.folder / DOCUMENTS, record.fields) if record.has_documents else None
        self.deleted: Ids = np.empty(0, dtype=np.int64)  # slots of deleted documents, ascending
        if record.deleted_file:
            self.deleted = load_array(self.folder / record.deleted_file, "i")
        try:
            self.bytes = np.memmap(self.folder / TEXTS, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder}: cannot be read ({error}); build the index again") from None
        self._check_shapes()

    def _check_shapes(self) -> None:
        rows, expected = self.record.rows, f"expected {self.record.rows:,}: build the index again"
        if self.store.count != rows:
            raise DataError(f"{self.folder}: {self.store.count:,} vectors; {expected}")
        if self.offsets.shape != (rows + 1,) or self.lines.shape != (rows,):
            raise DataError(
                f"{self.folder}: {len(self.offsets) - 1:,} sentences, {len(self.lines):,} lines; {expected}"
            )
        if self.repeats.ndim != 2 or len(self.repeats) != 2:
            raise DataError(f"{self.folder / REPEATS}: an array of shape {self.repeats.shape}; expected (2, n)")
        slots = rows + self.repeats.shape[1]
        if self.table and (self.deleted.ndim != 1 or slots - len(self.deleted) != self.record.documents):
            found = f"{slots - len(self.deleted):,} documents; expected {self.record.documents:,}"
            raise DataError(f"{self.folder}: {found}: build the index again")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.bytes):
            raise DataError(f"{self.folder}: offsets do not fit the {len(self.bytes):,} bytes of {TEXTS}; {expected}")
        if (self.store.key.text_sha256, self.store.key.lang) != (self.record.files[TEXTS], self.record.lang):
            raise DataError(f"{self.folder}: the vectors are of another text than {TEXTS}; build the index again")

    def text(self, row: int) -> str:
        """The sentence of a row; DataError if the row is not one line of the texts."""
        start, stop = self.offsets[row : row + 2].tolist()
        if 0 <= start < stop <= len(self.bytes) and (start == 0 or self.bytes[start - 1] == LINE_FEED):
            content = self.bytes[start:stop].tobytes()
            if content.find(b"\n") == len(content) - 1:
                return content[:-1].decode("utf-8", "replace")
        raise DataError(f"{self.folder}: the offsets of sentence {row} are wrong; build the index again")

    def lines_of(self, row: int) -> tuple[int, ...]:
        """All lines of a sentence in its file, from 1."""
        start, stop = np.searchsorted(self.repeats[0], [row, row + 1]).tolist()
        return (int(self.lines[row]) + 1, *(self.repeats[1, start:stop] + 1).tolist())

    @cached_property
    def slot_rows(self) -> Ids:
        """The row of each document, (slots,)."""
        rows = np.empty(self.record.rows + self.repeats.shape[1], dtype=np.int64)
        rows[self.lines] = np.arange(self.record.rows)
        rows[self.repeats[1]] = self.repeats[0]
        return rows

    def kept_slots(self, slots: Ids) -> Ids:
        """Some slots (ascending) without the deleted ones."""
        return np.setdiff1d(slots, self.deleted, assume_unique=True) if len(self.deleted) else slots

    def check(self, progress: Progress) -> None:
        """Verifies the checksum of every file and every vector; DataError if one is missing or damaged."""
        checksums = {self.folder / name: sha256 for name, sha256 in self.record.files.items()}
        checksums |= {self.store.folder / shard.file: shard.sha256 for shard in self.store.shards.values()}
        for path, sha256 in checksums.items():
            check_file(path, sha256)
        vectors = self.store.vectors()
        for start in range(0, self.record.rows, VERIFIED_ROWS):
            check_lengths(vectors[start : start + VERIFIED_ROWS], self.folder)
            ends = self.offsets[start + 1 : start + 1 + VERIFIED_ROWS]
            lines = self.bytes[self.offsets[start] : ends[-1]]
            if not np.array_equal(np.flatnonzero(lines == LINE_FEED) + self.offsets[start] + 1, ends):
                raise DataError(f"{self.folder}: offsets do not fit the lines of {TEXTS}; build the index again")
            progress(len(ends))


def check_lengths(vectors: np.ndarray, folder: Path) -> None:
    """DataError if a vector (..., D) has neither length 1 nor length 0 (a sentence of unknown words)."""
    lengths = np.sqrt(np.einsum("...d,...d->...", vectors, vectors, dtype=np.float64))
    wrong = ~((np.abs(lengths - 1) < LENGTH_TOLERANCE) | (lengths == 0))  # true for NaN
    if wrong.any():
        found = f"{wrong.sum():,} vectors are not of length 1, but {lengths[wrong][0]:.3g}"
        raise DataError(f"{folder}: {found}; build the index again")


def check_file(path: Path, sha256: str) -> None:
    """DataError if a file of an index is missing or damaged."""
    if not path.is_file():
        raise DataError(f"{path}: is missing; build the index again")
    if file_sha256(path) != sha256:
        raise DataError(f"{path}: is damaged: its checksum differs from the manifest; build the index again")


def check_index_model(model: Model, manifest: IndexManifest) -> None:
    """ModelError if another model made the index, or if it was opened with another dimension, pooling or prompt."""
    if (model.identity.dimension or 0) != manifest.dimension:
        expected = f"dimension={manifest.dimension}" if manifest.dimension else "no dimension"
        raise ModelError(
            f"{model.identity.name}: vectors of dimension {model.dimension}, which the index does not have; expected "
            f"the model opened with {expected}"
        )
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


def check_part_model(part: IndexPart, manifest: IndexManifest) -> None:
    """DataError if the vectors of a part do not match the manifest."""
    key = part.store.key
    made = key.model_sha256, key.precision, key.pooling
    if made != (manifest.model_sha256, manifest.precision, manifest.pooling):
        raise DataError(f"{part.folder}: vectors of another model or precision than the index; build the index again")


def map_vectors(parts: Sequence[IndexPart]) -> ShardedVectors:
    """Concatenated vectors (n, D) of several parts."""
    for part in parts:
        if part.store.missing():
            raise DataError(f"{part.folder}: vectors are missing; build the index again")
    of_parts = [part.store.vectors() for part in parts]
    vectors = ShardedVectors([path for some in of_parts for path in some.paths], parts[0].store.dimension)
    if len({part.dtype for part in vectors.parts}) > 1:
        raise DataError(f"{parts[0].folder.parent}: vectors of several precisions; build the index again")
    return vectors


def copy_texts(file: TextFile, folder: Path, made_with: Mapping[str, str]) -> PartRecord:
    """Starts a part: copies the distinct sentences of a text file.

    An interrupted part of the same file and `made_with` (model, back-end, precision) is resumed; any other one is
    removed.
    """
    lines = find_unique_lines(file.path)
    made_of = {"text": lines.sha256, "lang": file.lang, **made_with}
    if record := _read_part_record(folder, made_of):
        return record
    shutil.rmtree(folder, ignore_errors=True)
    offsets = np.zeros(len(lines.first) + 1, dtype=np.int64)
    with new_file(folder / TEXTS) as stream:
        for row, text in enumerate(unchanged_sentences(file.path, lines, slice(None))):
            offsets[row + 1] = offsets[row] + stream.write(text.encode() + b"\n")
    write_array(folder / OFFSETS, offsets)
    write_array(folder / LINES, lines.first)
    write_array(folder / REPEATS, _repeats(lines))
    files = {name: file_sha256(folder / name) for name in (TEXTS, OFFSETS, LINES, REPEATS)}
    record = PartRecord(file.name, file.lang, lines.sha256, len(lines.first), files, int(folder.name))
    write_json(folder / PART_RECORD, {"made_of": made_of, "record": asdict(record)})
    return record


def _repeats(lines: UniqueLines) -> Ids:
    """Rows and lines (2, r) of all lines that repeat an earlier one, by row and line."""
    is_repeat = lines.rows != EMPTY
    is_repeat[lines.first] = False
    places = np.flatnonzero(is_repeat)
    rows = lines.rows[places]
    order = np.argsort(rows, kind="stable")
    return np.stack([rows[order], places[order]])


def _read_part_record(folder: Path, made_of: dict[str, str]) -> PartRecord | None:
    """The record of a part whose sentences were already copied, if its origin is the same."""
    try:
        content = read_json(folder / PART_RECORD)
        return PartRecord(**content["record"]) if content["made_of"] == made_of else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
