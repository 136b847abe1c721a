"""Commands as processes of their own, as users run them, which real signals stop at a moment that is certain.

Processes are forked from one that has imported the libraries, which takes ten seconds of CPU time for training.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["dualmoco.cli.main", "dualmoco.mining.mine", "dualmoco.training.run"])
SECONDS = 280  # below the time limit of a test


@dataclass(frozen=True)
class Moment:
    """When a process signals itself: at some call of a function, before the call or after it."""

    sent: signal.Signals
    module: str
    name: str
    """Of a function, or of a class and its method."""
    call: int = 1
    after: bool = True

    def __str__(self) -> str:
        return f"{self.sent.name} {'after' if self.after else 'before'} call {self.call} of {self.name}"


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    """The exit code; the negative number of the signal that ended it."""
    error: str


def start_command(
    words: Sequence[str], out: Path, *, moment: Moment | None = None, largest: int | None = None
) -> ForkServerProcess:
    """Starts `dualmoco WORDS`.

    Args:
        words: Of the command.
        out: File or named pipe for its standard output; its standard error goes to a file beside it.
        moment: When it signals itself.
        largest: Bytes from which on a file cannot be written, as on a full disk.

    Returns:
        The process.
    """
    process = FORKING.Process(target=_run_command, args=(list(words), out, moment, largest))
    process.start()
    return process


class ForkedPython:
    """`python ARGUMENTS` where ablate, or a test, calls `subprocess.Popen`; both outputs are appended to one file."""

    lock = threading.Lock()  # multiprocessing must not ask for the exit code of one process in two threads

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: BinaryIO,
        stderr: BinaryIO,
        env: Mapping[str, str],
        start_new_session: bool = True,
    ) -> None:
        with self.lock:
            self.process = FORKING.Process(target=_run_python, args=(list(command[1:]), Path(stdout.name), dict(env)))
            self.process.start()

    def wait(self, timeout: float = SECONDS) -> int:
        """The exit code."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self.lock:
                code = self.process.exitcode
            if code is not None:
                return code
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"the process did not end within {timeout} seconds")

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            os.kill(cast(int, self.process.pid), number)


def end_command(process: ForkServerProcess, out: Path) -> Finished:
    """Waits for a command, and kills it after `SECONDS`."""
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join(SECONDS)
        raise AssertionError(f"the command did not end within {SECONDS} seconds")
    return Finished(process.exitcode, _error_file(out).read_text(encoding="utf-8"))


def run_command(
    words: Sequence[str], out: Path, *, moment: Moment | None = None, largest: int | None = None
) -> Finished:
    """Runs `dualmoco WORDS` to its end; arguments as in `start_command`."""
    return end_command(start_command(words, out, moment=moment, largest=largest), out)


def _run_command(words: list[str], out: Path, moment: Moment | None, largest: int | None) -> None:
    for path, stream in ((out, 1), (_error_file(out), 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    if moment:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
        _arm(moment)
    torch.set_num_threads(1)
    sys.argv = ["dualmoco", *words]
    runpy.run_module("dualmoco", run_name="__main__")


def _run_python(arguments: list[str], out: Path, environment: dict[str, str]) -> None:
    for stream in (1, 2):
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    os.setsid()  # as with `start_new_session`
    os.environ.update(environment)
    torch.set_num_threads(1)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _arm(moment: Moment) -> None:
    """Puts a function that signals this process in the place of another."""
    owner: Any = importlib.import_module(moment.module)
    *outer, name = moment.name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    whole, calls = getattr(owner, name), 0

    def signalling(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == moment.call and not moment.after:
            os.kill(os.getpid(), moment.sent)
        result = whole(*given, **named)
        if calls == moment.call and moment.after:
            os.kill(os.getpid(), moment.sent)
        return result

    setattr(owner, name, signalling)


def _error_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.stderr")
