"""Files and folders that are either whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os.path import samestat
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from dualmoco.core.errors import RunError

LOCK = ".lock"


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a folder to fill, which takes the place of `path` when the block ends without an error.

    Args:
        path: Where the folder shall be; an older one there is removed only after the new one is in place.

    Yields:
        The folder to write to.

    Raises:
        RunError: The disk is full or not writable; `path` is then as it was.
    """
    partial, old = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.old")
    try:
        restore_folder(path)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        _flush(partial)
        if path.exists():
            path.rename(old)
        partial.rename(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}: cannot be written: {reason}; what was there before is kept") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        restore_folder(path)


def restore_folder(path: Path) -> None:
    """Puts back what an interrupted `new_folder` had moved out of the way."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Gives a file to write, which takes its place when the block ends without an error.

    Args:
        path: Where it shall be.

    Yields:
        A stream of bytes.

    Raises:
        RunError: The disk is full or not writable; `path` is then as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that lock the same folder out of it; a process that is killed holds no lock any more.

    Args:
        folder: Is made if it is not there, and removed if it stays empty.

    Raises:
        RunError: Another process has it, or it cannot be made.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        own = (folder / LOCK).stat()
    except Timeout:
        raise RunError(f"{folder}: another process is at work in it; expected one at a time: wait for it") from None
    except (OSError, NotImplementedError) as error:  # the latter where a file system has no locks
        raise RunError(f"{folder}: cannot be locked: {getattr(error, 'strerror', None) or error}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            if samestat((folder / LOCK).stat(), own):  # not another's, of a folder made anew meanwhile
                (folder / LOCK).unlink()
            folder.rmdir()  # if nothing came of it
        lock.release()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file at once.

    Args:
        path: Where it shall be.
        content: What it shall hold.

    Raises:
        RunError: The disk is full or not writable; `path` is then as it was.
    """
    with new_file(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Writes a file of UTF-8 at once; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file.

    Args:
        path: The file.
        line: Without its end.

    Raises:
        RunError: The disk is full or not writable.
    """
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_json(path: Path, content: Any) -> None:
    """Writes a readable JSON file at once."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def file_sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    """Makes sure the files of a folder are on the disk before it is renamed."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
