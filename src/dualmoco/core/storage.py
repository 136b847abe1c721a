"""Atomic files and folders: each is written under a temporary name and renamed once it is complete."""

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
    """Yields a temporary folder that replaces `path` if the block succeeds."""
    # RunError if the disk is full or not writable. An older folder is removed only after the new one is in place.
    partial, old = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.old")
    try:
        restore_folder(path)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        _sync(partial)
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
    """Puts back the folder that an interrupted `new_folder` had moved out of the way."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Makes sure that the files of a folder are on the disk before it is renamed."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yields a binary stream whose file replaces `path` if the block succeeds; RunError if it cannot be written."""
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


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file with `new_file`."""
    with new_file(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file with `new_file`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Writes an indented JSON file with `new_file`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def append_line(path: Path, line: str) -> None:
    """Adds a line to a text file; RunError if the disk is full or not writable."""
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder, which is created if necessary, against other processes; RunError if it is already locked."""
    # The system releases the lock of a process that is killed.
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        own = (folder / LOCK).stat()
    except Timeout:
        raise RunError(f"{folder}: in use by another process; wait until that process has finished") from None
    except (OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks
        raise RunError(f"{folder}: cannot be locked: {getattr(error, 'strerror', None) or error}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            if samestat((folder / LOCK).stat(), own):  # not the lock of a folder that was recreated meanwhile
                (folder / LOCK).unlink()
            folder.rmdir()  # fails unless it is empty
        lock.release()


def file_sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
