"""Stopping and resuming: signals, and checkpoints from which a run continues as if it had never stopped.

A checkpoint contains the parameters and buffers of the objective (encoders, momentum encoders, queues, heads), the
state of the optimizer, the random number generators of every process, and the progress, from which the order of the
data follows. The files are safetensors and JSON. `checkpoint_model.py` makes a model of its encoders.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dualmoco.core.errors import RunError
from dualmoco.core.storage import new_folder, write_json
from dualmoco.models.folder import WEIGHTS_FILE
from dualmoco.training.distributed import gather_rows, process_rank
from dualmoco.training.objective import Objective
from dualmoco.training.schedule import RunProgress

CHECKPOINT_PREFIX = "step-"
TRAINED, MOMENTUM = "trained", "momentum"  # kinds of encoders in a checkpoint


@contextmanager
def caught_signals() -> Iterator[list[str]]:
    """Collects SIGINT and SIGTERM instead of exiting; a second signal has its usual effect."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: object) -> None:
        caught.append(signal.Signals(number).name)
        signal.signal(number, usual[signal.Signals(number)])

    for number in usual:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def save_checkpoint(
    folder: Path,
    progress: RunProgress,
    objective: Objective,
    optimizer: Any,
    scaler: Any,
    *,
    keep: int,
    signature: str,
    encoders: Mapping[str, Mapping[str, nn.Module]],
) -> None:
    """Writes a checkpoint and removes the oldest beyond `keep`; every process calls this, and the first one writes.

    The names of `encoders` (by language) in `model.safetensors` are written too, for `checkpoint_model.py`.
    """
    generators = _gather_generators()
    if process_rank() != 0:
        return
    state = optimizer.state_dict()
    moments = {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    with new_folder(folder / f"{CHECKPOINT_PREFIX}{progress.step:08d}") as checkpoint:
        _save_tensors(state_tensors(objective), checkpoint / WEIGHTS_FILE)
        _save_tensors(moments, checkpoint / "optimizer.safetensors")
        _save_tensors(generators, checkpoint / "generators.safetensors")
        write_json(
            checkpoint / "state.json",
            {
                "progress": asdict(progress),
                "signature": signature,
                "param_groups": state["param_groups"],
                "scaler": scaler.state_dict() if scaler else None,
                "encoders": {kind: module_names(objective, modules) for kind, modules in encoders.items()},
            },
        )
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    checkpoint: Path, objective: Objective, optimizer: Any, scaler: Any, *, signature: str
) -> RunProgress:
    """Restores the state that `save_checkpoint` wrote; RunError if it is damaged or has other settings or data."""
    try:
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        weights, moments, generators = (
            load_file(checkpoint / f"{name}.safetensors") for name in ("model", "optimizer", "generators")
        )
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise RunError(f"{checkpoint}: damaged ({error}); remove it to resume from the one before") from None
    if not isinstance(state, dict) or "signature" not in state:
        raise RunError(f"{checkpoint / 'state.json'}: damaged; remove the checkpoint to resume from the one before")
    if state["signature"] != signature:
        raise RunError(
            f"{checkpoint}: written with other settings, training data or teacher, or by another version of dualmoco "
            f"({state['signature']}, now {signature}); resume with the same ones, or start another run with out=FOLDER"
        )
    own = state_tensors(objective)
    check_tensors(own, weights, checkpoint, "remove it to resume from the one before")
    try:
        restored = _restore_moments(moments, optimizer)
        progress = RunProgress(**state["progress"])
        optimizer.load_state_dict({"state": restored, "param_groups": state["param_groups"]})
        if scaler and state["scaler"]:
            scaler.load_state_dict(state["scaler"])
        _restore_generators(generators)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise RunError(f"{checkpoint}: damaged ({error}); remove it to resume from the one before") from error
    copy_tensors(own, weights)
    return progress


@torch.no_grad()
def copy_tensors(own: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """Copies values into the tensors with the same names."""
    for name, tensor in own.items():
        tensor.copy_(given[name])


def check_tensors(own: dict[str, Tensor], given: dict[str, Tensor], checkpoint: Path, advice: str) -> None:
    """RunError if the names, shapes or types of a checkpoint's tensors are not the expected ones."""
    for name in sorted({*own, *given}):
        found, expected = (
            f"{tuple(some[name].shape)} {some[name].dtype}" if name in some else "missing" for some in (given, own)
        )
        if found != expected:
            raise RunError(f"{checkpoint}: {name} is {found}; expected {expected}: {advice}")


def _restore_moments(moments: dict[str, Tensor], optimizer: Any) -> dict[int, dict[str, Tensor]]:
    """The state of the optimizer by parameter; ValueError unless each has its parameter's shape or is a number."""
    shapes = [weight.shape for group in optimizer.param_groups for weight in group["params"]]
    restored: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        if value.numel() != 1 and value.shape != shapes[int(index)]:
            raise ValueError(f"{key} of shape {tuple(value.shape)}; expected {tuple(shapes[int(index)])}")
        restored.setdefault(int(index), {})[name] = value
    return restored


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob(f"{CHECKPOINT_PREFIX}*") if (path / "state.json").is_file())


def last_checkpoint(out: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    checkpoints = list_checkpoints(out / "checkpoints")
    return checkpoints[-1] if checkpoints else None


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; shared ones occur once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def state_tensors(objective: Objective) -> dict[str, Tensor]:
    """The tensors of an objective that belong in a checkpoint."""
    constant = {id(tensor) for module in objective.constant_modules() for tensor in module_tensors(module).values()}
    return {name: tensor for name, tensor in module_tensors(objective).items() if id(tensor) not in constant}


def module_names(objective: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """The names of the given modules that are part of an objective, by their keys in `modules`."""
    names = {id(module): name for name, module in objective.named_modules()}
    return {key: names[id(module)] for key, module in modules.items() if id(module) in names}


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def _gather_generators() -> dict[str, Tensor]:
    """The states of every process's random number generators, one row per rank."""
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return {name: gather_rows(state[None].to(device)).cpu() for name, state in states.items()}


def _restore_generators(states: dict[str, Tensor]) -> None:
    """Sets this process's generators, unless the checkpoint was written by fewer processes."""
    rank = process_rank()
    if rank < len(states["cpu"]):
        torch.set_rng_state(states["cpu"][rank])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"][rank])
