"""What a long job shows: progress bars on standard error for work over two seconds, and its peak memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tqdm import tqdm

DELAY = 2.0
Progress = Callable[[int], object]
"""Is called with how many more units of some work are done."""
_shown = ContextVar("shown", default=True)


@contextmanager
def showing(enabled: bool) -> Iterator[None]:
    """Turns progress bars on or off for everything called inside the block."""
    token = _shown.set(enabled and _shown.get())
    try:
        yield
    finally:
        _shown.reset(token)


def are_shown() -> bool:
    """Whether progress bars may be shown now."""
    return _shown.get()


@contextmanager
def counting(name: str, total: int, unit: str = " sentences") -> Iterator[Progress]:
    """Shows how much of some work is done, and when it will end, if it takes longer than two seconds.

    Args:
        name: What is done.
        total: How many units there are.
        unit: What is counted.

    Yields:
        The callback that advances the bar.
    """
    with tqdm(
        total=total, desc=name, unit=unit, unit_scale=True, delay=DELAY, file=sys.stderr, disable=not are_shown()
    ) as bar:
        yield bar.update


def peak_memory() -> int:
    """Peak resident memory of this process, in bytes, on Linux, macOS and Windows."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB
