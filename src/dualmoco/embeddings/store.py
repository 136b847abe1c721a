"""The vectors of a text file on disk: shards, a manifest that says what they are of, resumption.

A store belongs to one model, one text and one set of settings; another is refused, never silently reused. Shapes: n
distinct sentences, D dimension.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.storage import LOCK, file_sha256, write_bytes, write_json
from dualmoco.core.vectors import Ids
from dualmoco.core.version import VERSION
from dualmoco.embeddings.arrays import ShardedVectors
from dualmoco.embeddings.lines import LineTable, lines_at

MANIFEST, ROWS = "manifest.json", "rows.npy"
UNBORN = (LOCK, ROWS, f".{ROWS}.partial", f".{MANIFEST}.partial")
"""What a run killed before its first shard leaves behind."""
SHARD_ROWS = 65_536


@dataclass(frozen=True)
class StoreKey:
    """All that decides the vectors of a store."""

    model_sha256: str
    backend: str
    lang: str
    text_sha256: str
    precision: str
    shard_rows: int = SHARD_ROWS
    pooling: str = "own"
    """Of the model, and its prompt, where they are not its own."""


@dataclass(frozen=True)
class Shard:
    """One file of vectors."""

    file: str
    rows: int
    sha256: str


class Store:
    """A folder of vectors, whole or in the making."""

    def __init__(self, folder: Path, key: StoreKey, dimension: int, lines: Ids, count: int) -> None:
        self.folder, self.key, self.dimension, self.lines, self.count = folder, key, dimension, lines, count
        self.shards: dict[int, Shard] = {}

    def missing(self) -> list[int]:
        """Numbers of the shards that are still to be made."""
        return [number for number in range(-(-self.count // self.key.shard_rows)) if number not in self.shards]

    def vectors(self) -> ShardedVectors:
        """Unit vectors (n, D) of the distinct sentences, mapped from disk; DataError if some are missing."""
        if self.missing():
            raise DataError(f"{self.folder}: {len(self.missing())} shards are missing; run dualmoco encode again")
        shards = [self.shards[number] for number in sorted(self.shards)]
        paths = [self.folder / shard.file for shard in shards]
        return ShardedVectors(paths, self.dimension, [shard.sha256 for shard in shards])

    def first_lines(self) -> Ids:
        """The line, from 0, where each distinct sentence first stands, shape (n,)."""
        rows, first = np.unique(self.lines, return_index=True)
        return first[rows >= 0]

    def add(self, number: int, packed: np.ndarray) -> None:
        """Writes a shard and then the manifest that names it."""
        name = f"{number:05d}.npy"
        stream = io.BytesIO()
        np.save(stream, packed, allow_pickle=False)
        write_bytes(self.folder / name, stream.getvalue())
        self.shards[number] = Shard(name, len(packed), file_sha256(self.folder / name))
        self.save()

    def save(self) -> None:
        """Writes the manifest."""
        write_json(self.folder / MANIFEST, {
            "version": VERSION, "key": asdict(self.key), "width": self.dimension, "lines": len(self.lines),
            "sentences": self.count, "shards": [asdict(self.shards[number]) for number in sorted(self.shards)],
        })  # fmt: skip


def open_or_start(folder: Path, key: StoreKey, dimension: int, lines: LineTable) -> Store:
    """Opens a store to resume, or begins one.

    Args:
        folder: Where it is or shall be.
        key: What it must be of.
        dimension: D.
        lines: Of the text.

    Returns:
        The store with the shards that are there and whole; damaged ones are to be made again.

    Raises:
        DataError: The folder holds vectors of something else, or other files.
    """
    if not (folder / MANIFEST).exists():
        if folder.exists() and any(path.name not in UNBORN for path in folder.iterdir()):
            raise DataError(f"{folder}: holds other files; expected a new folder, or vectors of dualmoco encode")
        store = Store(folder, key, dimension, lines.rows, len(lines.first))
        stream = io.BytesIO()
        np.save(stream, lines.rows, allow_pickle=False)
        write_bytes(folder / ROWS, stream.getvalue())
        store.save()
        return store
    store = open_store(folder)
    for name, value in asdict(key).items():
        given = getattr(store.key, name)
        if given != value:
            said = f"{name} {_short(given)}; expected {_short(value)}"
            raise DataError(f"{folder}: holds vectors with {said}: use another folder")
    store.shards = {number: shard for number, shard in store.shards.items() if _is_whole(folder, shard)}
    return store


def open_store(folder: Path) -> Store:
    """Opens a folder of `dualmoco encode` without checking its shards' checksums.

    Args:
        folder: The folder.

    Returns:
        The store.

    Raises:
        DataError: Not such a folder.
    """
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        key = StoreKey(**content["key"])
        rows = np.load(folder / ROWS, allow_pickle=False)
        store = Store(folder, key, int(content["width"]), rows, int(content["sentences"]))
        store.shards = {int(shard["file"].partition(".")[0]): Shard(**shard) for shard in content["shards"]}
        return store
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: not a folder of dualmoco encode ({error}); expected one") from None


def pending(store: Store, path: Path, first: Ids) -> Iterator[tuple[int, list[str]]]:
    """Yields the sentences of each shard that is still to be made.

    Args:
        store: The store.
        path: Its text.
        first: Where each distinct sentence first stands.

    Yields:
        The shard's number and its sentences.
    """
    size, missing = store.key.shard_rows, store.missing()
    wanted = [first[number * size : (number + 1) * size] for number in missing]
    texts = lines_at(path, np.concatenate([np.empty(0, dtype=np.int64), *wanted]).tolist())
    for number, numbers in zip(missing, wanted, strict=True):
        yield number, list(islice(texts, len(numbers)))


def _is_whole(folder: Path, shard: Shard) -> bool:
    path = folder / shard.file
    return path.is_file() and file_sha256(path) == shard.sha256


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else repr(value)
