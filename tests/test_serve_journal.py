"""Journals: every event is on the disk, and nothing else is."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualmoco.core.errors import DataError, RunError
from dualmoco.server.journal import ConflictError, Journal, replay


def events(*names: str) -> list[dict[str, Any]]:
    return [{"type": name} for name in names]


def test_events_are_kept(tmp_path: Path) -> None:
    """In order, one JSON line each; a journal that is opened again has them."""
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.revision == 0 and not journal.path.exists()
    assert journal.append({"type": "edit", "text": "第一行\n\u2028 two"}, 0) == 1
    assert journal.append({"type": "undo"}, 1) == 2
    assert (
        Journal(journal.path).events()
        == journal.events()
        == [{"type": "edit", "text": "第一行\n\u2028 two"}, *events("undo")]
    )
    assert [json.loads(line) for line in journal.path.read_bytes().splitlines()] == journal.events()


def test_another_window_is_not_overwritten(tmp_path: Path) -> None:
    """An event for an old revision is refused."""
    journal = Journal(tmp_path / "j")
    journal.append({"type": "a"}, 0)
    with pytest.raises(ConflictError, match=r"revision 1, expected 0.*reload"):
        journal.append({"type": "b"}, 0)
    assert journal.events() == events("a")


def test_many_threads_write_one_journal(tmp_path: Path) -> None:
    """Each revision goes to one of them."""
    journal = Journal(tmp_path / "j")
    conflicts = []

    def write(name: int) -> None:
        for _ in range(20):
            try:
                journal.append({"type": str(name)}, journal.revision)
            except ConflictError:
                conflicts.append(name)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.revision == 100 - len(conflicts) == len(Journal(journal.path).events())


@pytest.mark.parametrize("rest", [b'{"type": "b', b"{", b"\xff\xfe", b'{"type": "b"}'])
def test_a_torn_last_line_is_ignored_and_repaired(tmp_path: Path, rest: bytes) -> None:
    """As a crash in the middle of a write leaves it: a line without its end."""
    path = tmp_path / "j"
    path.write_bytes(b'{"type": "a"}\n' + rest)
    journal = Journal(path)
    assert journal.events() == events("a")
    journal.append({"type": "c"}, 1)
    assert path.read_bytes() == b'{"type": "a"}\n{"type": "c"}\n'


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    """With the line; a damaged last line, which a crash may leave as well, is repaired."""
    path = tmp_path / "j"
    path.write_bytes(b'{"type": "a"}\nnonsense\n{"type": "b"}\n')
    with pytest.raises(DataError, match="line 2"):
        Journal(path)
    path.write_bytes(b'{"type": "a"}\n\0\0\0\0\n')
    assert Journal(path).events() == events("a")


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("room", [0, 7])
def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, room: int) -> None:
    """Also if a part of the line was written; when there is room again, writing goes on."""
    journal = Journal(tmp_path / "j")
    journal.append({"type": "a"}, 0)
    size = journal.path.stat().st_size
    with full_disk(size + room), pytest.raises(RunError, match=r"cannot be written.*nothing was changed"):
        journal.append({"type": "b", "text": "x" * 100}, 1)
    assert journal.path.stat().st_size == size and journal.revision == 1
    assert journal.append({"type": "c"}, 1) == 2
    assert Journal(journal.path).events() == events("a", "c")


def test_a_journal_that_was_deleted_is_not_started_again(tmp_path: Path) -> None:
    """Writing says so."""
    journal = Journal(tmp_path / "j")
    journal.append({"type": "a"}, 0)
    journal.path.unlink()
    with pytest.raises(RunError, match="cannot be written"):
        journal.append({"type": "b"}, 1)
    assert not journal.path.exists()


def test_events_survive_a_kill(tmp_path: Path) -> None:
    """What `append` has returned for is there, whatever ends the process."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom dualmoco.server.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "while True:\n    sys.stdout.write(f'{journal.append({}, journal.revision)}\\n')\n    sys.stdout.flush()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "j"],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout
    told = [int(process.stdout.readline()) for _ in range(20)]
    process.kill()
    told += map(int, process.stdout.read().split())
    process.wait()
    process.stdout.close()
    assert told[-1] <= Journal(tmp_path / "j").revision <= told[-1] + 1


def test_undo_and_redo() -> None:
    """Worked out by hand."""
    undo, redo = "undo", "redo"
    for given_events, left in [
        ((), ()),
        (("a", "b"), ("a", "b")),
        (("a", undo), ()),
        (("a", "b", undo, undo, redo), ("a",)),
        (("a", "b", undo, redo), ("a", "b")),
        (("a", undo, "b", redo), ("b",)),
        ((undo, redo, "a", redo), ("a",)),
        (("a", "b", undo, "c", undo, undo), ()),
    ]:
        assert replay(events(*given_events)) == events(*left)


@given(st.lists(st.sampled_from(["edit", "undo", "redo"])))
def test_replay_equals_a_stack_of_states(kinds: list[str]) -> None:
    """An editor that keeps every state, and a position among them."""
    states: list[list[int]] = [[]]
    position = 0
    for number, kind in enumerate(kinds):
        if kind == "edit":
            states = [*states[: position + 1], [*states[position], number]]
            position += 1
        else:
            position = max(0, min(len(states) - 1, position + (1 if kind == "redo" else -1)))
    found = replay([{"type": kind, "number": number} for number, kind in enumerate(kinds)])
    assert [event["number"] for event in found] == states[position]
