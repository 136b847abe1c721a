"""Progress bars on standard error for work that takes more than two seconds, and the peak memory of a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

DELAY_SECONDS = 2.0
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
        yield bar.update


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
