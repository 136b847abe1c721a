"""The catalogue of corpora and test sets, and how to get them: by download, or by copying from a mirror.

Archives of test sets are kept in `downloads/` of the data folder, and their files are unpacked to where `evaluate`
reads them.

Downloads resume where they were interrupted. No library does this: pooch 1.9 checks checksums but starts over,
resumable-urlretrieve has had no release since 2018, and `http_get` of huggingface_hub is private.
"""

from __future__ import annotations

import glob
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import version
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DataError, require
from dualmoco.core.progress import counting
from dualmoco.core.storage import file_sha256
from dualmoco.data.archives import unpack_archive

DOWNLOAD_BYTES = 1 << 18
TIMEOUT_SECONDS = 30
PARTIAL_CONTENT, RANGE_REFUSED = 206, 416
DOWNLOADS = "downloads"  # folder of archives in a data folder


@dataclass(frozen=True)
class CorpusEntry:
    """One corpus or test set of the catalogue."""

    name: str
    kind: str  # parallel, test or nli
    languages: str
    licence: str
    pairs: str
    parts: tuple[str, ...] = ()  # names of other entries that this one stands for
    files: tuple[str, ...] = ()  # globs in a data folder
    page: str = ""
    address: str = ""  # of a download, with {file} for its name
    download: tuple[str, ...] = ()  # names of the files; one archive if there are members
    into: str = ""  # folder for downloads, or for the members
    root: str = ""  # folder of the members in the archive
    members: tuple[str, ...] = ()  # files to unpack from the archive
    sha256: Mapping[str, str] = field(default_factory=dict)  # of downloads, where known

    def archive(self, folder: Path) -> Path | None:
        """The archive in a data folder that the members are unpacked from; None if there are no members."""
        return folder / DOWNLOADS / self.download[0] if self.members else None


def load_catalogue() -> dict[str, CorpusEntry]:
    """All entries by name."""
    yaml = require("omegaconf", "data", "The catalogue").OmegaConf
    text = files("dualmoco.data").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    content: Any = yaml.to_container(yaml.create(text))
    entries = {}
    for fields in content:
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        for key in ("download", "members"):
            values[key] = tuple(name for pattern in values.get(key, ()) for name in expand_braces(pattern))
        entries[fields["name"]] = CorpusEntry(**values)
    return entries


def expand_braces(pattern: str) -> list[str]:
    """The names that a pattern such as `sts-{dev,test}.csv` stands for, as in a shell."""
    parts = re.split(r"[{}]", pattern)  # every second one is a list of choices
    choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(words) for words in product(*choices)]


def find_entries(name: str) -> list[CorpusEntry]:
    """The entry of a name, or those that it stands for; DataError if it is not in the catalogue."""
    catalogue = load_catalogue()
    if name not in catalogue:
        raise DataError(f"{name!r}: not in the catalogue; expected one of {', '.join(catalogue)}")
    return [catalogue[part] for part in catalogue[name].parts or (name,)]


def get_corpus(name: str, into: Path, mirror: Path | None = None) -> list[Path]:
    """Downloads or copies the files of a corpus into a data folder. Test sets are unpacked, ready for `evaluate`.

    Args:
        name: Name in the catalogue; `eval` for the public test sets of the paper.
        into: The data folder.
        mirror: Another data folder to copy from; None to download.

    Returns:
        The files in the data folder. Complete files are not fetched again.

    Raises:
        DataError: The name is unknown, a file is missing or has the wrong checksum, an archive is damaged, or the
            server cannot be reached. The other parts of `eval` are fetched nevertheless.
    """
    found, failed = list[Path](), list[str]()
    for entry in find_entries(name):
        try:
            found += _copy(entry, into, mirror) if mirror else _download_entry(entry, into)
        except DataError as error:
            failed.append(str(error))
    if failed:
        raise DataError("; ".join(failed))
    return found


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
    archive = entry.archive(into)
    paths = [into / entry.into / name for name in entry.members or entry.download]
    if archive and all(path.is_file() for path in paths):
        return paths
    with counting(entry.name, len(entry.download), " files") as advance:
        for file in entry.download:
            path = archive or into / entry.into / file
            if not path.is_file():
                _download_named(entry, file, path)
            _check_digest(path, entry.sha256.get(file, ""))
            advance(1)
    if archive:
        unpack_archive(archive, entry.root, entry.members, into / entry.into)
    return paths


def _download_named(entry: CorpusEntry, file: str, path: Path) -> None:
    try:
        download(entry.address.format(file=file), path, entry.sha256.get(file, ""))
    except DataError as error:
        raise DataError(f"{error}; or save it yourself as {path}: see {entry.page}") from None


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
