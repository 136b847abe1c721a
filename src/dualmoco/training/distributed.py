"""Communication between the processes of a run; with a single process every function returns its argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import Tensor

LONGEST_WAIT = timedelta(days=7)  # for one process to download, encode, search or evaluate for all


def process_rank() -> int:
    """The rank of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks."""
    if _alone():
        return rows
    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, rows.contiguous())
    return torch.cat(gathered)


def gather_with_gradient(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks; gradients flow back to the process that made each row."""
    return rows if _alone() else torch.cat(dist_nn.all_gather(rows))


def connect_hosts() -> None:
    """Opens the connection for the functions below; every process calls this before one works for the others.

    It is separate from the connection of the GPUs. A process may wait on it for LONGEST_WAIT without blocking a GPU,
    while the exchange of gradients still fails soon if a process hangs.
    """
    if not _alone():
        _hosts(dist.group.WORLD)


@cache
def _hosts(world: dist.ProcessGroup) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
    return group


def wait_for_all() -> None:
    """Returns when every process has called this."""
    if not _alone():
        dist.barrier(_hosts(dist.group.WORLD))


@contextmanager
def first_before_others() -> Iterator[None]:
    """Runs a block on the first process, then on all others."""
    if process_rank() != 0:
        wait_for_all()
    yield
    if process_rank() == 0:
        wait_for_all()


def first_numbers(numbers: Tensor) -> Tensor:
    """The numbers of the first process, on the CPU of every process."""
    if not _alone():
        dist.broadcast(numbers, 0, _hosts(dist.group.WORLD))
    return numbers


def highest_numbers(numbers: Tensor) -> Tensor:
    """The maximum of each number over all processes, on the CPU of every process."""
    if not _alone():
        dist.all_reduce(numbers, dist.ReduceOp.MAX, _hosts(dist.group.WORLD))
    return numbers


def _alone() -> bool:
    return not dist.is_initialized() or dist.get_world_size() == 1
