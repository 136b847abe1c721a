"""Similarities on a GPU with PyTorch, which returns only the best of a tile. Shapes: r rows, w columns, D dimension.

PyTorch is imported only if the search is large enough and the machine seems to have a GPU.
"""

from __future__ import annotations

import numpy as np

from dualmoco.core.hardware import find_accelerator
from dualmoco.core.vectors import Ids, Vectors

DEVICE_TILE = (8192, 8192)  # rows and columns of similarities in the memory of a GPU at once, 256 MiB
LEAST_DEVICE_FLOPS = 1e12  # a CPU takes several seconds, more than the import of PyTorch
CPU = "cpu"
BestOfTile = tuple[Vectors, Ids]
"""The highest similarities of each row (r, c), descending, and their columns."""


def choose_device(rows: int, columns: int, dimension: int) -> str:
    """The device for a search: `cpu` for numpy, or the GPU if there is one and the search is large."""
    large = 2.0 * rows * columns * dimension >= LEAST_DEVICE_FLOPS
    return (find_accelerator() if large else None) or CPU


def best_of_tile(
    queries: Vectors, keys: Vectors, kept: int, kept_across: int | None, device: str
) -> tuple[BestOfTile, BestOfTile | None]:
    """The best columns of each row of queries (r, D) times keys (w, D), and optionally the best rows of each column."""
    import torch

    with torch.inference_mode():
        scores = torch.mm(torch.from_numpy(queries).to(device), torch.from_numpy(keys).to(device).T)  # (r, w)
        best, places = scores.topk(min(kept, len(keys)), dim=1)
        rows = best.cpu().numpy(), places.cpu().numpy()
        if kept_across is None:
            return rows, None
        best, places = scores.topk(min(kept_across, len(queries)), dim=0)
        return rows, (np.ascontiguousarray(best.T.cpu().numpy()), np.ascontiguousarray(places.T.cpu().numpy()))
