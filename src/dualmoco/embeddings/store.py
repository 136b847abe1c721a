"""A store: a folder with the vectors of a text's distinct sentences in `.npy` shards, and a manifest.

Vectors are stored as fp32, fp16 or int8 and read by rows as unit vectors of single precision. Shapes: n rows, D
dimension.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dualmoco.core import VERSION
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError, RunError
from dualmoco.core.storage import LOCK, check_contained, file_sha256, read_json, write_bytes, write_json
from dualmoco.core.vectors import Ids, Vectors, unit_vectors
from dualmoco.embeddings.unique_lines import UniqueLines, unchanged_sentences

LARGEST_INT8 = 127
STORED_TYPES = {VectorPrecision.fp32: np.float32, VectorPrecision.fp16: np.float16}
STORE_MANIFEST, STORE_ROWS = "manifest.json", "rows.npy"
KILLED_EARLY = (LOCK, STORE_ROWS, f".{STORE_ROWS}.partial", f".{STORE_MANIFEST}.partial")
"""Files that a run leaves if it is killed before its first shard."""
SHARD_ROWS = 65_536


def pack(vectors: Vectors, precision: VectorPrecision) -> np.ndarray:
    """Converts unit vectors (n, D) to the stored precision."""
    if precision != VectorPrecision.int8:
        return vectors.astype(STORED_TYPES[precision])
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = np.divide(LARGEST_INT8 * vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    packed: np.ndarray = np.rint(scaled).astype(np.int8)
    return packed


def unpack(stored: np.ndarray) -> Vectors:
    """Converts stored vectors (n, D) to unit vectors of single precision."""
    if stored.dtype == np.float32:
        return np.ascontiguousarray(stored)
    return unit_vectors(stored.astype(np.float32))


class ShardedVectors:
    """Concatenated vectors of several memory-mapped `.npy` files; missing checksums are computed when needed."""

    def __init__(self, paths: Sequence[Path], dimension: int, checksums: Sequence[str] = ()) -> None:
        self.paths, self.checksums = list(paths), list(checksums)
        self.parts = [_map(path, dimension) for path in self.paths]
        self.headers = [path.stat().st_size - part.nbytes for path, part in zip(self.paths, self.parts, strict=True)]
        self.ends = np.cumsum([0, *(len(part) for part in self.parts)])  # first row of each part, and the end
        self.dimension = dimension

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""
        return len(self), self.dimension

    @property
    def sha256(self) -> str:
        """Checksum of all vectors, which names the files of results that are derived from them."""
        checksums = self.checksums or [file_sha256(path) for path in self.paths]
        return hashlib.sha256("".join(checksums).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, rows: Any) -> Vectors:
        """Unit vectors of a slice, or of an array of row numbers of any shape."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                return self[np.arange(start, stop, step)]
            return unpack(self._run(start, max(start, stop)))
        ids = np.asarray(rows)
        return unpack(self.stored(ids.ravel())).reshape(*ids.shape, self.dimension)

    def read(self, rows: np.ndarray) -> Vectors:
        """Unit vectors of rows (n,), read from the files without mapping.

        Use it for random rows of a large store, because rows read through the map, and all pages that the system maps
        around them, count as memory of this process.
        """
        if not hasattr(os, "preadv"):
            return self[rows]
        owners = np.searchsorted(self.ends, rows, side="right") - 1
        stored = np.empty((len(rows), self.dimension), dtype=self.parts[0].dtype)
        width, buffer = stored.itemsize * self.dimension, stored.reshape(-1).view(np.uint8).data
        with ExitStack() as stack:
            files = {owner: stack.enter_context(self.paths[owner].open("rb")) for owner in np.unique(owners).tolist()}
            for place, (owner, number) in enumerate(
                zip(owners.tolist(), (rows - self.ends[owners]).tolist(), strict=True)
            ):
                row = buffer[place * width : (place + 1) * width]
                if os.preadv(files[owner].fileno(), [row], self.headers[owner] + number * width) != width:
                    raise DataError(f"{self.paths[owner]}: became shorter while in use; encode again")
        return unpack(stored)

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of rows (n,) in the stored precision."""
        if len(self.parts) == 1:
            return self.parts[0].take(rows, axis=0)
        owners = np.searchsorted(self.ends, rows, side="right") - 1
        found = np.empty((len(rows), self.dimension), dtype=self.parts[0].dtype if self.parts else np.float32)
        for owner in np.unique(owners).tolist():
            mine = owners == owner
            found[mine] = self.parts[owner].take(rows[mine] - self.ends[owner], axis=0)
        return found

    def _run(self, start: int, stop: int) -> np.ndarray:
        pieces = [
            part[max(0, start - first) : max(0, stop - first)]
            for part, first in zip(self.parts, self.ends[:-1].tolist(), strict=True)
            if first < stop and first + len(part) > start
        ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, self.dimension), dtype=np.float32)


def _map(path: Path, dimension: int) -> np.ndarray:
    array = load_array(path, "if", mode="c")
    if array.ndim != 2 or array.shape[1] != dimension:
        raise DataError(f"{path}: an array of shape {array.shape}; expected (n, {dimension})")
    return np.asarray(array)


def load_array(path: Path, kinds: str, mode: Literal["r", "c"] = "r") -> np.ndarray:
    """Maps a `.npy` file; DataError if it is damaged or its numbers are not of NumPy's `kinds`."""
    try:
        array = np.lib.format.open_memmap(path, mode=mode)
    except Exception as error:  # a damaged header raises almost anything
        raise DataError(f"{path}: cannot be read as vectors: {error or 'damaged'}; encode again") from None
    if array.dtype.kind not in kinds:
        raise DataError(f"{path}: the type is {array.dtype}; expected numbers: encode again")
    return array


@dataclass(frozen=True)
class StoreKey:
    """Everything that determines the vectors of a store."""

    model_sha256: str
    backend: str
    lang: str
    text_sha256: str
    precision: str
    shard_rows: int = SHARD_ROWS
    pooling: str = "own"  # pooling and prompt, if not the model's own


@dataclass(frozen=True)
class Shard:
    """One file of vectors."""

    file: str
    rows: int
    sha256: str


class Store:
    """A folder of vectors, complete or partly written."""

    def __init__(self, folder: Path, key: StoreKey, dimension: int, lines: Ids, count: int) -> None:
        self.folder, self.key, self.dimension, self.lines, self.count = folder, key, dimension, lines, count
        self.shards: dict[int, Shard] = {}

    def missing(self) -> list[int]:
        """Numbers of the shards that are not written yet."""
        return [number for number in range(-(-self.count // self.key.shard_rows)) if number not in self.shards]

    def rows_of(self, number: int) -> int:
        """The number of vectors that a shard must have."""
        return min(self.key.shard_rows, self.count - number * self.key.shard_rows)

    def vectors(self) -> ShardedVectors:
        """Unit vectors (n, D) of the distinct sentences, mapped from disk; DataError if shards are missing."""
        if self.missing():
            raise DataError(f"{self.folder}: {len(self.missing())} shards are missing; run dualmoco encode again")
        shards = [self.shards[number] for number in sorted(self.shards)]
        paths = [self.folder / shard.file for shard in shards]
        vectors = ShardedVectors(paths, self.dimension, [shard.sha256 for shard in shards])
        for number, part in zip(sorted(self.shards), vectors.parts, strict=True):
            if len(part) != self.rows_of(number):
                found = f"{len(part):,} vectors; expected {self.rows_of(number):,}"
                raise DataError(f"{vectors.paths[number]}: {found}: run dualmoco encode again")
        return vectors

    def first_lines(self) -> Ids:
        """First line, from 0, of each distinct sentence, shape (n,)."""
        rows, first = np.unique(self.lines, return_index=True)
        return first[rows >= 0]

    def add(self, number: int, packed: np.ndarray) -> None:
        """Writes a shard, then the manifest that lists it; RunError unless it has one vector per sentence."""
        if packed.shape != (self.rows_of(number), self.dimension):
            expected = self.rows_of(number), self.dimension
            raise RunError(f"{self.folder}: shard {number} has the shape {packed.shape}; expected {expected}")
        name = shard_name(number)
        write_array(self.folder / name, packed)
        self.shards[number] = Shard(name, len(packed), file_sha256(self.folder / name))
        self.save()

    def discard(self) -> None:
        """Removes the manifest and the shards, so that another text can be encoded into the folder."""
        (self.folder / STORE_MANIFEST).unlink()
        for shard in self.shards.values():
            (self.folder / shard.file).unlink()
        (self.folder / STORE_ROWS).unlink()
        self.shards = {}

    def save(self) -> None:
        """Writes the manifest."""
        write_json(
            self.folder / STORE_MANIFEST,
            {
                "version": VERSION,
                "key": asdict(self.key),
                "width": self.dimension,
                "lines": len(self.lines),
                "sentences": self.count,
                "shards": [asdict(self.shards[number]) for number in sorted(self.shards)],
            },
        )


def open_or_start(folder: Path, key: StoreKey, dimension: int, lines: UniqueLines) -> Store:
    """Opens a store to resume it, without its damaged shards, or creates one; DataError if it has another key."""
    if not (folder / STORE_MANIFEST).exists():
        if folder.exists() and any(path.name not in KILLED_EARLY for path in folder.iterdir()):
            raise DataError(f"{folder}: contains other files; expected a new folder or a folder of dualmoco encode")
        store = Store(folder, key, dimension, lines.rows, len(lines.first))
        write_array(folder / STORE_ROWS, lines.rows)
        store.save()
        return store
    store = open_store(folder)
    stored, wanted = ({**asdict(own), "dimension": d} for own, d in ((store.key, store.dimension), (key, dimension)))
    if others := [name for name in wanted if stored[name] != wanted[name]]:
        found = ", ".join(f"{name} {_short(stored[name])}" for name in others)
        expected = ", ".join(_short(wanted[name]) for name in others)
        raise DataError(f"{folder}: contains vectors with {found}; expected {expected}: use another folder")
    kept = {number: shard for number, shard in store.shards.items() if _is_intact(store, number)}
    if store.count != len(lines.first) or not np.array_equal(store.lines, lines.rows):
        write_array(folder / STORE_ROWS, lines.rows)  # damaged; the text is the same
    store = Store(folder, key, dimension, lines.rows, len(lines.first))
    store.shards = {number: shard for number, shard in kept.items() if shard.rows == store.rows_of(number)}
    return store


def open_store(folder: Path) -> Store:
    """Opens a folder of `dualmoco encode` without verifying checksums; DataError if it is not such a folder."""
    try:
        content: dict[str, Any] = read_json(folder / STORE_MANIFEST)
        key = StoreKey(**content["key"])
        rows = np.array(load_array(folder / STORE_ROWS, "i"))
        store = Store(folder, key, int(content["width"]), rows, int(content["sentences"]))
        shards = [Shard(**shard) for shard in content["shards"]]
        store.shards = {int(shard.file.partition(".")[0]): shard for shard in shards}
        _check_store(store, shards)
        return store
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder}: not a folder of dualmoco encode ({error}); expected one") from None


def _check_store(store: Store, shards: Sequence[Shard]) -> None:
    """ValueError or DataError if the manifest of a store is inconsistent or names files outside its folder."""
    if store.key.shard_rows < 1 or store.dimension < 1:
        raise ValueError(f"shards of {store.key.shard_rows} rows, dimension {store.dimension}")
    if store.lines.ndim != 1 or (len(store.lines) and int(store.lines.max()) != store.count - 1):
        raise ValueError(f"{STORE_ROWS} does not have {store.count} sentences")
    for number, shard in store.shards.items():
        if shard.file != shard_name(number):
            raise ValueError(f"a shard is named {shard.file!r}")
        check_contained(store.folder / shard.file, store.folder)
    if len(store.shards) != len(shards):
        raise ValueError("a shard is listed twice")


def pending(store: Store, path: Path, lines: UniqueLines) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the sentences of each missing shard; DataError if the text was changed."""
    rows = np.arange(store.count)
    missing = store.missing()
    texts = unchanged_sentences(path, lines, rows[np.isin(rows // store.key.shard_rows, missing)])
    for number in missing:
        yield number, list(islice(texts, store.rows_of(number)))


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"{number:05d}.npy"


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes an array as `.npy` atomically; RunError if the disk is full or not writable."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    write_bytes(path, stream.getvalue())


def _is_intact(store: Store, number: int) -> bool:
    shard, path = store.shards[number], store.folder / store.shards[number].file
    if not path.is_file() or file_sha256(path) != shard.sha256:
        return False
    with suppress(DataError):
        return load_array(path, "if").shape == (shard.rows, store.dimension)
    return False


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else repr(value)
