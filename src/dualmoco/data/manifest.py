"""The manifest of `prepare`: what was read, dropped and written, as JSON and as a Markdown table."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dualmoco.core.display import markdown_table
from dualmoco.core.errors import DataError
from dualmoco.core.storage import file_sha256
from dualmoco.data.config import PrepareConfig
from dualmoco.data.decontamination import TestFile

PREPARED_FORMAT = 1
PREPARED_MANIFEST = "manifest.json"
UNRECORDED_SETTINGS = ("out", "root", "workers")  # they do not change the result


@dataclass(frozen=True)
class FileRecord:
    """A file that was read or written."""

    path: str
    bytes: int
    sha256: str


def describe_file(path: Path, root: Path) -> FileRecord:
    """Path, size and checksum of a file; only the name of a folder or a hub dataset."""
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return FileRecord(name, path.stat().st_size, file_sha256(path)) if path.is_file() else FileRecord(name, 0, "")


@dataclass
class CorpusCounts:
    """How many pairs of a corpus were read, dropped and written."""

    name: str
    read: int = 0
    unreadable: int = 0  # lines or files
    changed: Counter[str] = field(default_factory=Counter)  # sentences, by normalizer
    dropped: Counter[str] = field(default_factory=Counter)  # pairs, by filter
    train: int = 0
    heldout: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The counts as JSON types."""
        return vars(self) | {"changed": dict(self.changed), "dropped": dict(self.dropped)}


@dataclass(frozen=True)
class PreparedManifest:
    """The record of one run of `prepare`."""

    src: str
    tgt: str
    settings: PrepareConfig
    inputs: dict[str, list[FileRecord]]
    test_files: list[TestFile]
    test_sentences: int
    test_sentences_left: int
    corpora: list[CorpusCounts]
    problems: list[str]
    shards: list[FileRecord]
    versions: dict[str, str]

    @property
    def total(self) -> CorpusCounts:
        """The sum over all corpora."""
        total = CorpusCounts("total")
        for corpus in self.corpora:
            total.read += corpus.read
            total.unreadable += corpus.unreadable
            total.train += corpus.train
            total.heldout += corpus.heldout
            total.changed.update(corpus.changed)
            total.dropped.update(corpus.dropped)
        return total

    def to_dict(self) -> dict[str, Any]:
        """The manifest as JSON types; the same inputs and settings give the same manifest."""
        settings = {key: value for key, value in asdict(self.settings).items() if key not in UNRECORDED_SETTINGS}
        return {
            "format": PREPARED_FORMAT,
            "src": self.src,
            "tgt": self.tgt,
            "total": self.total.to_dict(),
            "corpora": [corpus.to_dict() for corpus in self.corpora],
            "test_sentences": self.test_sentences,
            "test_sentences_left": self.test_sentences_left,
            "test_files": [asdict(file) for file in self.test_files],
            "inputs": {name: [asdict(file) for file in files] for name, files in self.inputs.items()},
            "shards": [asdict(shard) for shard in self.shards],
            "settings": settings,
            "versions": self.versions,
            "problems": self.problems,
        }

    def to_markdown(self) -> str:
        """The counts as tables."""
        total = self.total
        steps = [step for step, count in total.dropped.items() if count]
        header = ["corpus", "read", *steps, "train", "held out"]
        rows = [
            [corpus.name, *map(str, (corpus.read, *(corpus.dropped[s] for s in steps), corpus.train, corpus.heldout))]
            for corpus in [*self.corpora, total]
        ]
        changed = ", ".join(f"{step} {count:,}" for step, count in total.changed.items() if count) or "none"
        lines = [
            f"# {self.src}-{self.tgt}: {total.train:,} pairs for training, {total.heldout:,} held out",
            "",
            "Pairs read, dropped (by the first step that rejected them), and written:",
            "",
            *markdown_table(header, rows),
            "",
            f"Sentences changed: {changed}. Lines or files that could not be read: {total.unreadable}.",
            "",
            f"Test sentences excluded: {self.test_sentences:,} distinct sentences from {len(self.test_files)} files; "
            f"{self.test_sentences_left} of the written pairs contain one.",
        ]
        return "\n".join(lines) + "\n"


def read_prepared_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of a folder; DataError if `dualmoco prepare` did not write the folder."""
    path = folder / PREPARED_MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise DataError(
            f"{folder}: contains no {PREPARED_MANIFEST}; expected a folder made by dualmoco prepare"
        ) from None
    if not isinstance(content, dict) or not {"corpora", "shards", "settings"} <= content.keys():
        raise DataError(f"{path}: not written by dualmoco prepare; expected a folder that it made")
    if content.get("format") != PREPARED_FORMAT:
        raise DataError(f"{path}: not of format {PREPARED_FORMAT}; prepare the pairs again")
    if not _is_sound(content):
        raise DataError(f"{path}: damaged; prepare the pairs again")
    return content


def _is_sound(content: dict[str, Any]) -> bool:
    """Whether the corpora and shards of a manifest have the right types, and all shards are in its folder."""
    try:
        shards = all(
            isinstance(shard["bytes"], int) and shard["path"] == Path(shard["path"]).name for shard in content["shards"]
        )
        corpora = all(
            isinstance(corpus["name"], str) and min(corpus["train"], corpus["heldout"]) >= 0
            for corpus in content["corpora"]
        )
        return shards and corpora
    except (KeyError, TypeError, IndexError):
        return False


def is_prepared(folder: Path) -> bool:
    """Whether `dualmoco prepare` wrote a folder, in this version's format."""
    try:
        read_prepared_manifest(folder)
    except DataError:
        return False
    return True


def versions() -> dict[str, str]:
    """Versions of the packages that affect the result."""
    packages = {name: version(name) for name in ("dualmoco", "numpy", "opencc", "pyarrow", "py3langid", "xxhash")}
    return packages | {"unicode": unicodedata.unidata_version}
