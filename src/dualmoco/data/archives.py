"""Takes named files out of a downloaded tar archive.

Only files that the caller names are read, and they are written under the caller's names, so an archive cannot choose
where its content goes.
"""

from __future__ import annotations

import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from dualmoco.core.errors import DataError
from dualmoco.core.storage import write_bytes

MAX_ARCHIVE_BYTES = 1 << 30  # of all files in an archive, also those that are not unpacked


def unpack_archive(archive: Path, root: str, members: Sequence[str], into: Path) -> None:
    """Writes those of the named files that a folder lacks; nothing is written unless the archive has all of them.

    Args:
        archive: A tar archive, which may be compressed with gzip, bzip2 or xz.
        root: Folder of the files in the archive.
        members: Names of the files in that folder.
        into: Folder to write the files to, under the same names.

    Raises:
        DataError: The archive is damaged or too large, or a file is missing or is not a regular file.
        RunError: A file cannot be written.
    """
    missing = [name for name in members if not (into / name).is_file()]
    if not missing:
        return
    try:
        with tarfile.open(archive) as tar:
            found = _find_files(tar, archive)
            for name in missing:
                _check_member(found.get(posixpath.join(root, name)), posixpath.join(root, name), archive)
            for name in missing:
                source = tar.extractfile(found[posixpath.join(root, name)])
                assert source  # of a regular file
                write_bytes(into / name, source.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error}); delete it and run again") from None


def _find_files(tar: tarfile.TarFile, archive: Path) -> dict[str, tarfile.TarInfo]:
    """The members by normalized name."""
    found, total = {}, 0
    for member in tar:
        total += member.size
        if total > MAX_ARCHIVE_BYTES:
            raise DataError(f"{archive}: unpacks to more than {MAX_ARCHIVE_BYTES:,} bytes; expected test sets")
        found[posixpath.normpath(member.name)] = member
    return found


def _check_member(member: tarfile.TarInfo | None, name: str, archive: Path) -> None:
    if member is None:
        raise DataError(f"{archive}: has no {name}; expected the archive that the catalogue names: delete it")
    if not member.isreg():
        raise DataError(f"{archive}: {name} is a link or a folder; expected a file: delete the archive")
