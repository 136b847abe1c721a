"""Progress bars for work over two seconds, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

DELAY = 2.0
Progress = Callable[[int], object]
"""Is called with how many more units of some work are done."""


@contextmanager
def counting(name: str, total: int, unit: str = " sentences", *, enabled: bool = True) -> Iterator[Progress]:
    """Shows how much of some work is done, and when it will end, if it takes longer than two seconds.

    Args:
        name: What is done.
        total: How many units there are.
        unit: What is counted.
        enabled: Whether to show anything at all.

    Yields:
        The callback that advances the bar.
    """
    with tqdm(
        total=total, desc=name, unit=unit, unit_scale=True, delay=DELAY, file=sys.stderr, disable=not enabled
    ) as bar:
        yield bar.update
