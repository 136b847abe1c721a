"""What this machine offers: CPU threads and a GPU, and one thread per matrix product while several run at once."""

from __future__ import annotations

import importlib.util
import os
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

THREAD_VARIABLES = ("DUALMOCO_THREADS", "OMP_NUM_THREADS")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a Linux container: microseconds of CPU time per period, and period

CPU_INFO = Path("/proc/cpuinfo")
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, Windows Subsystem for Linux

_lock = threading.Lock()
_users = 0
_before: list[int] = []  # thread limits of the libraries before the first block


def thread_count(wanted: int | None = None) -> int:
    """Number of threads: `wanted`, DUALMOCO_THREADS, OMP_NUM_THREADS, or the cores available to this process."""
    if wanted:
        return wanted
    for name in THREAD_VARIABLES:
        value = os.environ.get(name, "").partition(",")[0].strip()  # OpenMP allows a list with one per level
        if value.isdecimal() and int(value):
            return int(value)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota()))


@cache
def find_accelerator() -> str | None:
    """The GPU that PyTorch can use, such as `cuda`; PyTorch is imported only if there may be one."""
    may_have_gpu = any(Path(name).exists() for name in GPU_FILES) or platform.system() == "Darwin"
    if not may_have_gpu or importlib.util.find_spec("torch") is None:
        return None
    import torch

    return str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else None


@cache
def has_int8_instructions() -> bool:
    """Whether the CPU has 8-bit dot product instructions (VNNI); True if unknown."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    try:
        return "_vnni" in CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        return True


def _quota() -> int:
    """Cores that the container may use; a high number if there is no limit."""
    try:
        quota, period = CPU_QUOTA.read_text().split()[:2]
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits every matrix product of numpy to one thread inside the block, in all threads of the process."""
    # Several threads may be inside a block at once: the first one sets the limit, and the last one lifts it.
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _before.extend(library.num_threads for library in _blas_libraries())
            _limit([1] * len(_before))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _limit(_before)
                _before.clear()


def _limit(counts: Sequence[int]) -> None:
    for library, count in zip(_blas_libraries(), counts, strict=True):
        if hasattr(library, "clear_controlling_thread"):  # otherwise only one thread may change OpenBLAS
            library.clear_controlling_thread(force=True)
        library.set_num_threads(count)
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


@cache
def _blas_libraries() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
