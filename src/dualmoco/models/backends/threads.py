"""How PyTorch's work on a CPU is shared: every core takes a batch of its own, for one that fits its cache is small."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

CPU_BUDGET = 1024
"""Tokens in a batch: more fall out of a core's cache, fewer leave the matrix products too small."""


def one_thread_workers() -> ThreadPoolExecutor | None:
    """As many workers of one thread each as PyTorch has threads; None if that is one."""
    threads = torch.get_num_threads()
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) if threads > 1 else None


def set_threads(threads: int | None) -> None:
    """Sets the CPU threads of PyTorch in this process, if a number is given."""
    if threads:
        torch.set_num_threads(threads)
