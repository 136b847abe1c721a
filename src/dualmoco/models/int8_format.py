"""Models stored small: matrices as rows of int8 with a scale each, a quarter of the size, opened as if they were whole.

A packed folder is a model folder in which `model.int8.safetensors` stands in place of every `model.safetensors`. It is
for shipping: PyTorch and sentence-transformers never see it, they get its weights in single precision.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dualmoco.core.errors import ModelError
from dualmoco.core.storage import new_folder
from dualmoco.models.folder import copy_model, folder_sha256
from dualmoco.models.hybrid import is_hybrid, read_hybrid, write_hybrid

WHOLE, PACKED = "model.safetensors", "model.int8.safetensors"
SCALE = ".scale"
"""What follows the name of a matrix in the name of its scales."""
LARGEST = 127


def pack_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors as they are stored small.

    Args:
        tensors: By name, in floating point.

    Returns:
        Of each matrix the rows as int8 and a scale (rows,) each, by which they are multiplied; others in fp32.
    """
    packed: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        packed[name] = tensor.astype(np.float32)
        if tensor.ndim == 2:
            scales = np.abs(packed[name]).max(axis=1) / np.float32(LARGEST)
            scales[scales == 0] = 1
            packed[name] = np.rint(packed[name] / scales[:, None]).astype(np.int8)
            packed[name + SCALE] = scales
    return packed


def unpack_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `pack_tensors` was given, to the precision of int8, in fp32."""
    scales = {name: tensor for name, tensor in tensors.items() if name.removesuffix(SCALE) != name}
    return {
        name: tensor * scales[name + SCALE][:, None] if name + SCALE in scales else tensor
        for name, tensor in tensors.items()
        if name not in scales
    }


def pack_model(folder: Path, out: Path) -> None:
    """Writes a model small; of a hybrid every part.

    Args:
        folder: Of the model or hybrid, whose weights are in floating point.
        out: The folder to write, in place of one that is there.

    Raises:
        ModelError: Weights that cannot be read.
        RunError: The disk is full or not writable.
    """
    with new_folder(out) as new:
        new.rmdir()
        copy_model(folder, new)
        for weights in new.rglob(WHOLE):
            save_file(pack_tensors(_read(weights)), weights.with_name(PACKED))
            weights.unlink()
        if is_hybrid(new):
            parts = read_hybrid(new)
            write_hybrid(new, [replace(part, sha256=folder_sha256(new / part.folder)) for part in parts], {})


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """The folder of a model as other libraries know it.

    Args:
        folder: Of a model, packed or not.

    Yields:
        The folder itself; of a packed model one that is gone when the block ends.

    Raises:
        ModelError: Packed weights that cannot be read.
    """
    if not is_packed(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as place:
        whole = Path(place) / folder.name
        shutil.copytree(folder, whole, ignore=shutil.ignore_patterns(PACKED))
        for weights in folder.rglob(PACKED):
            save_file(read_packed(weights), whole / weights.relative_to(folder).with_name(WHOLE))
        yield whole


def is_packed(folder: Path) -> bool:
    """Whether any weights of a model folder are packed."""
    return next(folder.rglob(PACKED), None) is not None


def read_packed(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a packed file in fp32; ModelError if it cannot be read."""
    return unpack_tensors(_read(path))


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); install or make the model again") from None
