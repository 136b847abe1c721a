"""What the benchmarks share: peak memory, a fresh process for each measurement, tables."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MEBIBYTE = 1 << 20


class Peak:
    """Peak memory of this process inside a block, minus its memory before."""

    extra_mib: float = 0.0


@contextmanager
def peak_memory(*, children: bool = False) -> Iterator[Peak]:
    """Samples the resident memory of this process every two milliseconds; with its children, every fifty."""
    measure, pause = (_resident_with_children, 0.05) if children else (_resident, 0.002)
    peak, before = Peak(), measure()
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(pause):
            peak.extra_mib = max(peak.extra_mib, (measure() - before) / MEBIBYTE)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def timed(name: str, work: Callable[[], object]) -> dict[str, Any]:
    """Runs a function and returns a row of a table: seconds, and peak memory minus memory before."""
    with peak_memory() as peak:
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
    return {"what": name, "seconds": seconds, "peak MiB beyond the start": peak.extra_mib}


def in_new_process(module: str, *words: str) -> dict[str, Any]:
    """Runs `python -m MODULE WORDS`, and returns the JSON object in the last line of its output."""
    done = subprocess.run([sys.executable, "-m", module, *words], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints rows as a Markdown table."""
    names = list(rows[0])
    cells = [[_show(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    for line in [names, ["-" * width for width in widths], *cells]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
    print(flush=True)


def machine() -> str:
    """The processor and its cores, and the version of Python."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def print_machine() -> None:
    """Prints the conditions of a measurement."""
    import torch

    threads = f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.2f}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine()}, {threads}, torch {torch.__version__}\n", flush=True)


def _resident_with_children() -> int:
    """Pages that processes share are counted for each."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError, ValueError):
            total += int((process / "statm").read_text().split()[1]) * 4096
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return total


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _show(value: Any) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
