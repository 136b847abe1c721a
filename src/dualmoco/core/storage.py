"""Atomic files and folders: each is written under a temporary name and renamed once it is complete."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from os.path import samestat
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from dualmoco.core.errors import ConfigError, DataError, RunError

LOCK = ".lock"
MAX_NAME_BYTES = 240  # file systems allow 255; temporary files and records need longer names


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder that replaces `path` if the block succeeds; other processes cannot write it meanwhile.

    RunError if another process is writing the folder, or if the disk is full or not writable.
    """
    # An older folder is removed only after the new one is in place.
    partial, old = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked_file(path.with_name(f".{path.name}{LOCK}"), path):
            try:
                restore_folder(path)
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                yield partial
                _sync(partial)
                if path.exists():
                    path.rename(old)
                partial.rename(path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                restore_folder(path)
    except (OSError, SafetensorError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}: cannot be written: {reason}; the previous contents are kept") from None


def restore_folder(path: Path) -> None:
    """Puts back the folder that an interrupted `new_folder` had moved out of the way."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Flushes the files of a folder to the disk before it is renamed."""
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
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.callback(_remove_empty, folder)
            stack.enter_context(_locked_file(folder / LOCK, folder))
        except (OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks
            raise RunError(f"{folder}: cannot be locked: {getattr(error, 'strerror', None) or error}") from None
        yield


@contextmanager
def _locked_file(file: Path, folder: Path) -> Iterator[None]:
    """Locks a file, which is removed at the end; RunError says that `folder` is in use if it is already locked."""
    # The system releases the lock of a process that is killed. The file is removed while it is locked, and a lock on a
    # removed file is ignored, so two processes never hold the lock at once.
    from filelock import FileLock, Timeout

    lock = FileLock(file, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(f"{folder}: in use by another process; wait until that process has finished") from None
    try:
        own = file.stat()
        yield
    finally:
        with suppress(OSError):
            if samestat(file.stat(), own):  # not the lock file of a folder that was recreated meanwhile
                file.unlink()
        lock.release()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()  # fails unless it is empty


def read_json(path: Path) -> Any:
    """Reads a JSON file; ValueError if it is not JSON, is not UTF-8 or is nested too deeply."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None


def check_contained(path: Path, folder: Path) -> None:
    """DataError if a path leads out of a folder, by its name or through a link."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{path}: is outside {folder}; expected a file in that folder, not a link to another folder")


def file_sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def record_path(out: Path) -> Path:
    """The file next to an output that records how it was made: `OUT.json`."""
    return out.with_name(f"{out.name}.json")


def read_record(out: Path) -> dict[str, Any] | None:
    """The record that `write_recorded` wrote about an output; None if there is no record."""
    try:
        found = json.loads(record_path(out).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    is_own = isinstance(found, dict) and str(found.get("tool")).startswith("dualmoco")
    return {"written": [], **found} if is_own else None


def write_recorded(out: Path, content: Mapping[str, Any], files: Mapping[Path, bytes]) -> None:
    """Writes files and the record `OUT.json`: `content`, and checksums for `check_replaceable`."""
    record = {**content, "written": [hashlib.sha256(data).hexdigest() for data in files.values()]}
    replaced = [file_sha256(file) for file in files if file.is_file()]
    # The record is written first, with both versions, so an interruption between the files does not look like an edit.
    write_json(record_path(out), {**record, "replaced": replaced})
    for file, data in files.items():
        write_bytes(file, data)
    write_json(record_path(out), record)


def check_replaceable(
    outputs: Sequence[Path], inputs: Iterable[object] = (), *, overwrite: bool = False, has_record: bool = False
) -> None:
    """Raises ConfigError, before any work, if writing the outputs would lose data.

    No output may be an input or another output. An existing file is replaced only with `overwrite`, or if it is
    unchanged since it was written, according to the record of the first output.

    Args:
        outputs: Files to write.
        inputs: Files to read; anything that is not a path, such as a list of sentences, is ignored.
        overwrite: Whether to replace files that may have been edited.
        has_record: Whether the outputs are written by `write_recorded`.
    """
    records = [record_path(outputs[0])] if has_record and outputs else []
    check_distinct([*outputs, *records], inputs)
    if overwrite:
        return
    record = read_record(outputs[0]) if records else None
    known = [*record["written"], *record.get("replaced", [])] if record else []
    edited = [output for output in outputs if output.is_file() and file_sha256(output) not in known]
    edited += [file for file in records if file.is_file() and record is None]
    if edited:
        what = "was changed after this command wrote it" if record else "already exists"
        raise ConfigError(f"{edited[0]}: {what}; expected another name, or --overwrite to replace it")


def check_distinct(outputs: Sequence[Path], inputs: Iterable[object]) -> None:
    """Raises ConfigError if an output is an input or another output (even under another name), or its name too long."""
    taken: dict[object, str] = {}
    for given in inputs:
        if isinstance(given, str | Path):
            taken |= dict.fromkeys(_identities(Path(given)), "is also an input, which would be lost")
    for output in outputs:
        if (length := len(os.fsencode(output.name))) > MAX_NAME_BYTES:
            raise ConfigError(f"{output}: the name has {length} bytes; expected at most {MAX_NAME_BYTES}")
        identities = _identities(output)
        for identity in identities & taken.keys():
            raise ConfigError(f"{output}: {taken[identity]}; expected another name for the output")
        taken |= dict.fromkeys(identities, "is the name of two outputs")


def _identities(path: Path) -> set[object]:
    """What identifies a file under any name: its real path, and its device and inode numbers if it exists."""
    found: set[object] = {path.resolve()}
    with suppress(FileNotFoundError, NotADirectoryError):
        status = path.stat()
        found.add((status.st_dev, status.st_ino))
    return found
