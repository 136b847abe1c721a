"""Averages of weights: of the last checkpoints of a run, and of a run with what it started from.

    python -m benchmarks.average runs/en-zh --checkpoints 4 --out averaged
    python -m benchmarks.average runs/en-zh --start 0.6 --lang en --out closer

Writes a model folder to be evaluated beside the run's own. With `--start` the weights, of all or one language, are
moved back by that share to where the run began, which keeps more of what an encoder could do before. `--momentum` takes
the momentum encoders.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file

from dualmoco.core.storage import new_folder
from dualmoco.models.folder import RECORD
from dualmoco.models.network import open_routes, save_encoders
from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.starting import INITIAL

SIDES = ("src", "tgt")


@torch.no_grad()
def main() -> None:
    """Averages and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of dual-moco with its checkpoints")
    parser.add_argument("--checkpoints", type=int, default=1, help="how many of the last to average")
    parser.add_argument("--momentum", action="store_true", help="of the momentum encoders")
    parser.add_argument("--start", type=float, default=0.0, help="share of the weights that the run started from")
    parser.add_argument("--lang", help="move only this language back; all if not given")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parsed = parser.parse_args()
    taken = list_checkpoints(parsed.run / "checkpoints")[-parsed.checkpoints :]
    encoders, initial = open_routes(parsed.run / "model"), open_routes(parsed.run / INITIAL)
    kind = "momentum_encoder" if parsed.momentum else "encoder"
    tensors = [load_file(checkpoint / "model.safetensors") for checkpoint in taken]
    for side, lang in zip(SIDES, encoders, strict=True):
        starts = dict(initial[lang].named_parameters())
        for name, weight in encoders[lang].named_parameters():
            found = torch.stack([one[f"contrast.{side}_{kind}.{name}"] for one in tensors]).mean(dim=0)
            weight.copy_(found.lerp(starts[name], parsed.start if parsed.lang in (None, lang) else 0.0))
    with new_folder(parsed.out) as folder:
        save_encoders(encoders, folder)
        (folder / RECORD).write_bytes((parsed.run / "model" / RECORD).read_bytes())
    print(f"{parsed.out}: {', '.join(checkpoint.name for checkpoint in taken)}, {parsed.start:g} of the start")


if __name__ == "__main__":
    main()
