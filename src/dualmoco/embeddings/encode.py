"""A text file of any size to a store of vectors: `dualmoco encode`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dualmoco.core.progress import counting
from dualmoco.embeddings.arrays import VectorPrecision
from dualmoco.embeddings.engines.engine import Encoding, Engine
from dualmoco.embeddings.lines import survey
from dualmoco.embeddings.store import SHARD_ROWS, Store, StoreKey, open_or_start, pending
from dualmoco.models.backend import open_backend


@dataclass(frozen=True)
class EncodeSettings:
    """How a file is encoded."""

    model: str
    lang: str
    backend: str = "auto"
    precision: VectorPrecision = VectorPrecision.fp32
    shard_rows: int = SHARD_ROWS


def encode_file(
    path: Path, folder: Path, settings: EncodeSettings, engine: Engine, done: Callable[[int], object] | None = None
) -> Store:
    """Encodes the distinct sentences of a file, going on where an interrupted run stopped.

    Args:
        path: One sentence a line, plain or compressed.
        folder: Of the store.
        settings: Model, language and form.
        engine: Where it runs.
        done: Is called with the number of each shard that was written.

    Returns:
        The store, whole.

    Raises:
        DataError: A text without sentences or with invalid UTF-8, or a store of something else.
        ModelError: A model that cannot be used, or without the language.
    """
    backend = open_backend(settings.model, settings.lang, settings.backend)
    lines = survey(path)
    key = StoreKey(
        backend.sha256, backend.name, settings.lang, lines.sha256, settings.precision.value, settings.shard_rows
    )
    store = open_or_start(folder, key, backend.width, lines)
    work = Encoding(backend, settings.model, settings.lang, settings.precision)
    left = sum(min(key.shard_rows, store.count - number * key.shard_rows) for number in store.missing())
    with counting(f"encoding {settings.lang}", left) as tell:
        for number, packed in engine.encode(work, pending(store, path, lines.first), tell):
            store.add(number, packed)
            if done:
                done(number)
    return store
