"""The corpora and test sets of the paper: what they are, where they can be had, and how to get them."""

from __future__ import annotations

import glob
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DataError, require
from dualmoco.data.download import check_digest, download


@dataclass(frozen=True)
class Entry:
    """One corpus or test set."""

    name: str
    kind: str  # parallel, test or nli
    languages: str
    licence: str
    pairs: str
    files: tuple[str, ...] = ()  # globs in a data folder
    page: str = ""
    address: str = ""  # of a download, with {file} for its name
    download: tuple[str, ...] = ()
    into: str = ""  # folder for downloads
    sha256: tuple[str, ...] = ()  # of the downloads


def load_catalogue() -> dict[str, Entry]:
    """All entries by name."""
    yaml = require("omegaconf", "data", "The catalogue").OmegaConf
    text = files("dualmoco.data").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    content: Any = yaml.to_container(yaml.create(text))
    entries = {}
    for fields in content:
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        entries[fields["name"]] = Entry(**values)
    return entries


def get(name: str, into: Path, mirror: Path | None) -> list[Path]:
    """Puts the files of an entry into a data folder.

    Args:
        name: Of the entry.
        into: The data folder.
        mirror: Another data folder to copy from; None to download.

    Returns:
        The files that are there now; those already whole are left alone.

    Raises:
        DataError: An unknown name, an absent file, no network, or a file with another checksum.
    """
    catalogue = load_catalogue()
    if name not in catalogue:
        raise DataError(f"{name!r}: not in the catalogue; expected one of {', '.join(catalogue)}")
    entry = catalogue[name]
    return _copy(entry, into, mirror) if mirror else _fetch(entry, into)


def _copy(entry: Entry, into: Path, mirror: Path) -> list[Path]:
    if not mirror.is_dir():
        raise DataError(f"{mirror}: no such folder; expected a mirror of a data folder")
    names = sorted(
        name
        for pattern in entry.files
        for name in glob.glob(pattern, root_dir=mirror, recursive=True)
        if (mirror / name).is_file()
    )
    if not names:
        expected = " or ".join(entry.files) or "no file of this entry, which is not laid out for mirrors"
        raise DataError(f"{mirror}: nothing for {entry.name}; expected {expected}")
    for name in names:
        target = into / name
        if not target.is_file() or target.stat().st_size != (mirror / name).stat().st_size:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.partial")
            shutil.copyfile(mirror / name, partial)
            partial.replace(target)
    return [into / name for name in names]


def _fetch(entry: Entry, into: Path) -> list[Path]:
    if not entry.download:
        where = f"see {entry.page}" if entry.page else "it exists in mirrors only"
        raise DataError(f"{entry.name}: cannot be downloaded by a program; {where}, or copy it with --from DIR")
    paths = []
    for number, file in enumerate(entry.download):
        path = into / entry.into / file
        sha256 = entry.sha256[number] if entry.sha256 else ""
        if not path.is_file():
            download(entry.address.format(file=file), path, sha256)
        check_digest(path, sha256)
        paths.append(path)
    return paths
