"""What tests read from run folders."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.run_folder import read_log


def losses(run_folder: Path) -> list[tuple[int, float]]:
    """Step and loss of every step in a run's log."""
    return [(record["step"], record["loss"]) for record in read_log(run_folder / "log.jsonl") if "loss" in record]


def state(run_folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a run's last checkpoint."""
    last = list_checkpoints(run_folder / "checkpoints")[-1]
    return {
        f"{file.stem}.{name}": value for file in last.glob("*.safetensors") for name, value in load_file(file).items()
    }


def assert_same_state(first: Path, second: Path) -> None:
    """Both runs ended in the same place, bit for bit."""
    one, other = state(first), state(second)
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert different == []
