"""Runs a command of dualmoco for a server: `python -m dualmoco.server.worker WORDS`, in the folder of the project.

Standard input is a pipe from the server. When the server is gone, the command is terminated and saves its work.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from filelock import FileLock

WORKER_LOCK = Path("jobs", ".lock")
EARLIER_SECONDS = 60  # time for a command of an earlier server to save its work


def end_with_server() -> None:
    """Terminates this process when standard input ends."""
    while os.read(sys.stdin.fileno(), 1024):  # a buffered read would crash the interpreter's shutdown
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_server, daemon=True).start()
    with FileLock(WORKER_LOCK, timeout=EARLIER_SECONDS):
        runpy.run_module("dualmoco", run_name="__main__")
