"""Downloads that resume where they were interrupted, and are in place only when they are whole.

No library does this: pooch 1.9 compares checksums but starts over, resumable-urlretrieve has no release since 2018, and
`http_get` of huggingface_hub resumes but serves the hub: not public, with the hub's errors and limits.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.storage import file_sha256

DOWNLOAD_BYTES = 1 << 18
TIMEOUT_SECONDS = 30
PARTIAL_CONTENT, RANGE_REFUSED = 206, 416


def download(address: str, path: Path, sha256: str = "") -> None:
    """Downloads a file.

    Args:
        address: Of the file.
        path: Where it shall be; `NAME.partial` beside it keeps what an interrupted download got.
        sha256: Its checksum, if known.

    Raises:
        DataError: No network, an answer other than the file, or another checksum.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(address, partial)
    except urllib.error.HTTPError as error:
        raise DataError(f"{address}: the server says {error.code} {error.reason}; look for a newer address") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{address}: cannot be reached ({reason}); run again to resume, or copy from a mirror with --from DIR"
        ) from None
    except OSError as error:
        raise DataError(f"{partial}: cannot be written: {error.strerror or error}") from None
    try:
        check_digest(partial, sha256)
    except DataError:
        partial.unlink()
        raise
    partial.replace(path)


def check_digest(path: Path, sha256: str) -> None:
    """Refuses a file with another checksum.

    Args:
        path: The file.
        sha256: What it must be; empty if unknown.

    Raises:
        DataError: It is another.
    """
    if not sha256:
        return
    found = file_sha256(path)
    if found != sha256:
        raise DataError(f"{path}: sha256 {found}; expected {sha256}: damaged or changed at its source")


def _fetch(address: str, partial: Path) -> None:
    """Appends to a partial file what it lacks."""
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": f"dualmoco/{version('dualmoco')}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == RANGE_REFUSED and have and error.headers.get("Content-Range") == f"bytes */{have}":
            return
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
