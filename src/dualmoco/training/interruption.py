"""Ctrl-C and SIGTERM as a wish to stop soon, so that `training.py` can finish its step and save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def caught_signals() -> Iterator[list[str]]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second one has its usual effect."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: object) -> None:
        caught.append(signal.Signals(number).name)
        signal.signal(number, usual[signal.Signals(number)])

    for number in usual:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
