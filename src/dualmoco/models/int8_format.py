"""Models stored in a quarter of the space: each row of a matrix as int8 with one scale.

A packed folder is a model folder that has `model.int8.safetensors` in place of every `model.safetensors`, and for every
BERT an ONNX graph that uses these weights as they are. PyTorch and sentence-transformers get the weights in single
precision. Shapes: O rows, I columns.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dualmoco.core.errors import ModelError
from dualmoco.models.folder import INT8_FILE, WEIGHTS_FILE

SCALE_SUFFIX = ".scale"  # the scales of a matrix are stored under its name with this suffix
INT8_MAX = 127
INT8_GRAPH = "int8-{}.onnx"  # graph of the first language that an encoder has, in the folder of the model


def pack_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Packs tensors: matrices (O, I) become int8 with scales (O,) to multiply their rows by, others become fp32."""
    packed: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        packed[name] = tensor.astype(np.float32)
        if tensor.ndim == 2:
            scales = np.abs(packed[name]).max(axis=1) / np.float32(INT8_MAX)
            scales[scales == 0] = 1
            packed[name] = np.rint(packed[name] / scales[:, None]).astype(np.int8)
            packed[name + SCALE_SUFFIX] = scales
    return packed


def check_packed(tensors: Mapping[str, np.ndarray], place: Path) -> None:
    """Refuses tensors other than those of `pack_tensors`, by type, shape and value, with ModelError."""
    for name, tensor in tensors.items():
        scales = tensors.get(name + SCALE_SUFFIX)
        if tensor.dtype == np.int8:
            fits = tensor.ndim == 2 and scales is not None and scales.shape == tensor.shape[:1]
        else:
            fits = tensor.dtype == np.float32 and scales is None
        if not fits:
            given = f"{tensor.dtype} of shape {tensor.shape}, scales {None if scales is None else scales.shape}"
            raise ModelError(f"{place}: {name} is {given}; expected int8 rows with one scale each, or float32")
        if name.endswith(SCALE_SUFFIX) and not (np.isfinite(tensor) & (tensor > 0)).all():
            raise ModelError(f"{place}: {name} holds a scale that is not a finite number above 0; make the model again")
    check_finite(tensors, place)


def check_finite(tensors: Mapping[str, np.ndarray], place: Path) -> None:
    """Refuses weights that hold NaN or infinity, with ModelError."""
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise ModelError(f"{place}: {name} holds NaN or infinity; expected finite weights: make the model again")


def unpack_tensors(tensors: Mapping[str, np.ndarray], *, spare: int = 0) -> dict[str, np.ndarray]:
    """The tensors that `pack_tensors` was given, to the precision of int8, in fp32.

    Matrices get `spare` rows of zeros at their end.
    """
    scales = {name: tensor for name, tensor in tensors.items() if name.endswith(SCALE_SUFFIX)}
    return {
        name: _unpack(tensor, scales[name + SCALE_SUFFIX], spare) if name + SCALE_SUFFIX in scales else tensor
        for name, tensor in tensors.items()
        if name not in scales
    }


def _unpack(matrix: np.ndarray, scales: np.ndarray, spare: int) -> np.ndarray:
    whole = np.empty((len(matrix) + spare, matrix.shape[1]), dtype=np.float32)
    np.multiply(matrix, scales[:, None], out=whole[: len(matrix)])
    whole[len(matrix) :] = 0
    return whole


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """A model folder that other libraries can read: itself, or a temporary unpacked copy if it is packed."""
    if not is_packed(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as place:
        whole = Path(place) / folder.name
        shutil.copytree(folder, whole, ignore=shutil.ignore_patterns(INT8_FILE, INT8_GRAPH.format("*")))
        for weights in folder.rglob(INT8_FILE):
            save_file(read_packed(weights), whole / weights.relative_to(folder).with_name(WEIGHTS_FILE))
        yield whole


def is_packed(folder: Path) -> bool:
    """Whether any weights of a model folder are packed."""
    return next(folder.rglob(INT8_FILE), None) is not None


def read_packed(path: Path, *, spare: int = 0) -> dict[str, np.ndarray]:
    """The tensors of a packed file, as `unpack_tensors` makes them; ModelError if it holds anything else."""
    tensors = load_tensors(path)
    check_packed(tensors, path)
    return unpack_tensors(tensors, spare=spare)


def load_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file as they are; ModelError if it cannot be read."""
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); install or make the model again") from None
