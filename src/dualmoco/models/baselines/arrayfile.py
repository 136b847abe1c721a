"""A `.npy` file, mapped into memory rather than read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError


def map_array(path: Path) -> np.ndarray[Any, Any]:
    """Maps the vectors of a file.

    Args:
        path: A `.npy` file.

    Returns:
        An array of shape (n, D) that stays on the disk.

    Raises:
        DataError: No such file, a damaged one, or one that holds anything but rows of numbers.
    """
    try:
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read as an array: {reason}; expected numbers saved by numpy.save") from None
    if array.ndim != 2 or array.dtype.kind != "f":
        shape = f"an array of shape {array.shape}, {array.dtype}"
        raise DataError(f"{path}: {shape}; expected floating-point numbers of shape (n, D)")
    return array
