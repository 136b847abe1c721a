"""Append-only journals: the history of a review or an alignment, one JSON object per line."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DataError, RunError

Event = dict[str, Any]
UNDO, REDO = "undo", "redo"
"""Values of `type` of the events that undo the last effective event, or redo the last undone one."""


class ConflictError(RunError):
    """Another window or program has written in the meantime."""


class Journal:
    """A journal, which is created by its first event. All methods may be called from several threads.

    Args:
        path: File of the journal; its folder must exist.

    Raises:
        DataError: The file is not a journal. A last line that a crash cut off is ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._size = 0  # bytes of complete lines
        if path.exists():
            self._read()

    def _read(self) -> None:
        *lines, torn = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
                if not isinstance(event, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError):
                if number == len(lines) and not torn:
                    return
                raise DataError(f"{self.path}, line {number}: expected a JSON object; the journal is damaged") from None
            self._events.append(event)
            self._size += len(line) + 1

    @property
    def revision(self) -> int:
        """The number of events."""
        return len(self._events)

    def events(self) -> list[Event]:
        """All events, oldest first; do not modify the list."""
        with self._lock:
            return self._events.copy()

    def append(self, event: Mapping[str, Any], expected: int) -> int:
        """Writes an event to the disk.

        Args:
            event: Event to write; `type` is its kind.
            expected: Revision that the event was made for.

        Returns:
            The new revision.

        Raises:
            ConflictError: Another event was written since that revision.
            RunError: The disk is full or not writable; the journal is unchanged.
        """
        line = json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        with self._lock:
            if expected != self.revision:
                raise ConflictError(
                    f"{self.path.parent.name}: changed in another window (revision {self.revision}, expected "
                    f"{expected}); reload the page"
                )
            self._write(line)
            self._events.append(json.loads(line))
            self._size += len(line)
            return self.revision

    def _write(self, line: bytes) -> None:
        try:
            with self.path.open("r+b" if self._size else "wb", buffering=0) as stream:
                try:
                    stream.truncate(self._size)  # removes a line that was cut off
                    stream.seek(self._size)
                    if stream.write(line) != len(line):
                        raise OSError(0, "the disk is full")
                    os.fsync(stream.fileno())
                except OSError:
                    with suppress(OSError):
                        stream.truncate(self._size)
                    raise
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written: {error.strerror or error}; nothing was changed") from None


def replay(events: Iterable[Event]) -> list[Event]:
    """The effective events: without undone events, and without undo and redo themselves.

    An undo without anything to undo, and a redo without anything to redo, change nothing.
    """
    done: list[Event] = []
    undone: list[Event] = []
    for event in events:
        kind = event.get("type")
        if kind not in (UNDO, REDO):
            done.append(event)
            undone.clear()
            continue
        taken, given = (done, undone) if kind == UNDO else (undone, done)
        if taken:
            given.append(taken.pop())
    return done
