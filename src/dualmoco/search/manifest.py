"""What an index folder says of itself: its model, its parts, its form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DataError
from dualmoco.core.options import VectorPrecision
from dualmoco.core.storage import write_json
from dualmoco.core.version import VERSION

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
