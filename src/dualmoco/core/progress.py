"""Progress bars on standard error for work that takes more than two seconds, and the peak memory of a job."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

DELAY_SECONDS = 2.0
TICK_SECONDS = 1.0
Progress = Callable[[int], object]  # callback: number of newly completed units
_shown = ContextVar("shown", default=True)


@contextmanager
def showing(enabled: bool) -> Iterator[None]:
    """Turns progress bars on or off inside the block; once off, an inner block cannot turn them on."""
    token = _shown.set(enabled and _shown.get())
    try:
        yield
    finally:
        _shown.reset(token)


def are_shown() -> bool:
    """Whether progress bars are turned on."""
    return _shown.get()


@contextmanager
def counting(name: str, total: int, unit: str = " sentences") -> Iterator[Progress]:
    """Shows a progress bar if the block takes longer than two seconds, and yields the callback that advances it."""
    with progress_bar()(
        total=total,
        desc=name,
        unit=unit,
        unit_scale=True,
        delay=DELAY_SECONDS,
        file=sys.stderr,
        disable=not are_shown(),
    ) as bar:
        with _ticking(bar):
            yield bar.update


@contextmanager
def working(name: str) -> Iterator[None]:
    """Shows the elapsed time of work that cannot be counted, if it takes longer than two seconds."""
    with progress_bar()(
        desc=name, bar_format="{desc}: {elapsed}", delay=DELAY_SECONDS, file=sys.stderr, disable=not are_shown()
    ) as bar:
        with _ticking(bar):
            yield


@contextmanager
def _ticking(bar: Any) -> Iterator[None]:
    """Draws a bar again every second, so that its clock moves even if one unit of work takes long."""
    if bar.disable or bar.gui or "notebook" in type(bar).__name__:
        yield
        return
    ended = threading.Event()

    def tick() -> None:
        passed = 0.0
        while not ended.wait(TICK_SECONDS):
            passed += TICK_SECONDS
            if passed >= DELAY_SECONDS:
                bar.refresh()
                bar.last_print_t = time.time()  # so that closing ends the line

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def progress_bar() -> Any:
    """Returns tqdm's notebook bar in a Jupyter notebook where ipywidgets is installed, and its text bar elsewhere."""
    if "ipykernel" in sys.modules and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm as notebook_bar

        return notebook_bar
    from tqdm import tqdm

    return tqdm


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
