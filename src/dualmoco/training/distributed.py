"""Communication between the processes of a run; with a single process every function returns its argument."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import Tensor


def process_rank() -> int:
    """The number of this process, from 0."""
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


def first_numbers(numbers: Tensor, device: torch.device) -> Tensor:
    """The first process's numbers on every process; they go through the device only if there are several."""
    if _alone():
        return numbers
    shared = numbers.to(device)
    dist.broadcast(shared, 0)
    return shared


def _alone() -> bool:
    return not dist.is_initialized() or dist.get_world_size() == 1
