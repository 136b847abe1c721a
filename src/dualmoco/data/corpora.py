"""The catalogue of corpora and test sets, and how to get them: by download, or by copying from a mirror.

Downloads resume where they were interrupted. No library does this: pooch 1.9 checks checksums but starts over,
resumable-urlretrieve has had no release since 2018, and `http_get` of huggingface_hub is private.
"""

from __future__ import annotations

import glob
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DataError, require
from dualmoco.core.progress import counting
from dualmoco.core.storage import file_sha256

DOWNLOAD_BYTES = 1 << 18
TIMEOUT_SECONDS = 30
PARTIAL_CONTENT, RANGE_REFUSED = 206, 416


@dataclass(frozen=True)
class CorpusEntry:
    """One corpus or test set of the catalogue."""

    name: str
    kind: str  # parallel, test or nli
    languages: str
    licence: str
    pairs: str
    files: tuple[str, ...] = ()  # globs in a data folder
    page: str = ""
    address: str = ""  # address of a download, with {file} in place of its name
    download: tuple[str, ...] = ()  # names of the files to download
    into: str = ""  # folder for downloads
    sha256: tuple[str, ...] = ()  # checksums of the downloads, if known


def load_catalogue() -> dict[str, CorpusEntry]:
    """All entries by name."""
    yaml = require("omegaconf", "data", "The catalogue").OmegaConf
    text = files("dualmoco.data").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    content: Any = yaml.to_container(yaml.create(text))
    entries = {}
    for fields in content:
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        entries[fields["name"]] = CorpusEntry(**values)
    return entries


def get_corpus(name: str, into: Path, mirror: Path | None) -> list[Path]:
    """Downloads or copies the files of a corpus into a data folder.

    Args:
        name: Name in the catalogue.
        into: The data folder.
        mirror: Another data folder to copy from; None to download.

    Returns:
        The files in the data folder. Complete files are not fetched again.

    Raises:
        DataError: The name is unknown, a file is missing or has the wrong checksum, or the server cannot be reached.
    """
    catalogue = load_catalogue()
    if name not in catalogue:
        raise DataError(f"{name!r}: not in the catalogue; expected one of {', '.join(catalogue)}")
    entry = catalogue[name]
    return _copy(entry, into, mirror) if mirror else _download_entry(entry, into)


def _copy(entry: CorpusEntry, into: Path, mirror: Path) -> list[Path]:
    if not mirror.is_dir():
        raise DataError(f"{mirror}: no such folder; expected a mirror of a data folder")
    found = (name for pattern in entry.files for name in glob.glob(pattern, root_dir=mirror, recursive=True))
    names = sorted(name for name in found if (mirror / name).is_file())
    if not names:
        expected = " or ".join(entry.files) or "no file, because mirrors do not have this corpus"
        raise DataError(f"{mirror}: no files of {entry.name}; expected {expected}")
    for name in names:
        target = into / name
        if not target.is_file() or target.stat().st_size != (mirror / name).stat().st_size:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.partial")
            shutil.copyfile(mirror / name, partial)
            partial.replace(target)
    return [into / name for name in names]


def _download_entry(entry: CorpusEntry, into: Path) -> list[Path]:
    if not entry.download:
        where = f"see {entry.page}" if entry.page else "it is only available from mirrors"
        raise DataError(f"{entry.name}: cannot be downloaded automatically; {where}, or copy it with --from DIR")
    paths = []
    for number, file in enumerate(entry.download):
        path = into / entry.into / file
        sha256 = entry.sha256[number] if entry.sha256 else ""
        if not path.is_file():
            download(entry.address.format(file=file), path, sha256)
        _check_digest(path, sha256)
        paths.append(path)
    return paths


def download(address: str, path: Path, sha256: str = "") -> None:
    """Downloads a file, resuming from `NAME.partial` if it exists; DataError if that fails or the checksum is wrong."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(address, partial)
    except urllib.error.HTTPError as error:
        raise DataError(
            f"{address}: the server answered {error.code} {error.reason}; look for a newer address"
        ) from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{address}: cannot be reached ({reason}); run again to resume, or copy from a mirror with --from DIR"
        ) from None
    except OSError as error:
        raise DataError(f"{partial}: cannot be written: {error.strerror or error}") from None
    try:
        _check_digest(partial, sha256)
    except DataError:
        partial.unlink()
        raise
    partial.replace(path)


def _check_digest(path: Path, sha256: str) -> None:
    """DataError if a file does not have the expected checksum."""
    if sha256 and (found := file_sha256(path)) != sha256:
        raise DataError(f"{path}: sha256 {found}; expected {sha256}: the file is damaged, or has changed at its source")


def _fetch(address: str, partial: Path) -> None:
    """Appends the missing bytes to a partial file."""
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": f"dualmoco/{version('dualmoco')}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == RANGE_REFUSED and have and error.headers.get("Content-Range") == f"bytes */{have}":
            return  # the partial file is complete
        raise
    with answer:
        resumes = have > 0 and answer.status == PARTIAL_CONTENT
        have = have if resumes else 0
        left = int(answer.headers.get("Content-Length") or 0)
        with (
            partial.open("ab" if resumes else "wb") as stream,
            counting(partial.stem, have + left, "B") as advance,
        ):
            advance(have)
            while chunk := answer.read(DOWNLOAD_BYTES):
                stream.write(chunk)
                advance(len(chunk))
                left -= len(chunk)
    if left > 0:
        raise ConnectionError(f"{left} bytes are missing")
