"""Progress bars for work over two seconds, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

DELAY = 2.0


@contextmanager
def counting(name: str, total: int, unit: str = " sentences") -> Iterator[Callable[[int], object]]:
    """Shows how much of some work is done, and when it will end, if it takes longer than two seconds.

    Args:
        name: What is done.
        total: How many units there are.
        unit: What is counted.

    Yields:
        A function to be told how many more are done.
    """
    with tqdm(total=total, desc=name, unit=unit, unit_scale=True, delay=DELAY, file=sys.stderr) as bar:
        yield bar.update
