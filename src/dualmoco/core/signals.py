"""How SIGTERM ends a job: by an exception, so that temporary files are removed and locks are released."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(SystemExit):
    """SIGTERM was received; ends the process with status 143 unless it is caught."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """SIGTERM raises Terminated inside the block, unless the caller handles the signal or this is not the main thread.

    Later signals are ignored, so that they do not interrupt the cleanup.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
