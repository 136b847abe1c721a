"""Averages weights: the last checkpoints of a run, a run and its start, or two static runs.

    python -m benchmarks.average runs/en-zh --checkpoints 4 --out averaged
    python -m benchmarks.average runs/en-zh --start 0.6 --lang en --out closer
    python -m benchmarks.average runs/en-zh-static --other runs/en-zh-static-2 --out averaged

Writes a model folder to compare with the run's own model. With `--start`, the weights of all languages or one are moved
back by that share towards the start of the run, which keeps more of an encoder's earlier abilities. `--momentum` uses
the momentum encoders. `--other` is a second run of the same static pair, with the same tokens: its tables are rotated
into the space of the first run and averaged with them, which is an ensemble of two in the size of one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dualmoco.core.storage import new_folder
from dualmoco.models.folder import MODEL_RECORD
from dualmoco.models.network import Encoder, open_routes, save_encoders
from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.init_encoders import INITIAL

SIDES = ("src", "tgt")


@torch.no_grad()
def main() -> None:
    """Averages and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of dual-moco with its checkpoints")
    parser.add_argument("--checkpoints", type=int, default=1, help="number of last checkpoints to average")
    parser.add_argument("--momentum", action="store_true", help="average the momentum encoders")
    parser.add_argument("--start", type=float, default=0.0, help="share of the weights at the start of the run")
    parser.add_argument("--lang", help="language to move back (default: all)")
    parser.add_argument("--other", type=Path, help="second run of the same static pair, to average with")
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
    if parsed.other:
        add_turned(encoders, open_routes(parsed.other / "model"))
    with new_folder(parsed.out) as folder:
        save_encoders(encoders, folder)
        (folder / MODEL_RECORD).write_bytes((parsed.run / "model" / MODEL_RECORD).read_bytes())
    print(f"{parsed.out}: {', '.join(checkpoint.name for checkpoint in taken)}, {parsed.start:g} of the start")


@torch.no_grad()
def add_turned(encoders: dict[str, Encoder], others: dict[str, Encoder]) -> None:
    """Averages the tables of static encoders with those of others, turned into their space and at their length."""
    layers: list[dict[str, Any]] = [{lang: both[lang].layers[0] for lang in both} for both in (encoders, others)]
    for lang in encoders:
        if layers[0][lang].tokenizer.get_vocab() != layers[1][lang].tokenizer.get_vocab():
            raise SystemExit(f"the two runs have other tokens of {lang}; expected the same tokenizer")
    tables, more = ([layer.embedding.weight for layer in side.values()] for side in layers)
    ours, theirs = torch.cat(tables), torch.cat(more)  # (V, D) of both languages
    theirs *= ours.norm() / theirs.norm()
    left, _, right = torch.linalg.svd(theirs.T @ ours)  # the rotation closest to it: Procrustes
    averaged = (ours + theirs @ (left @ right)) / 2
    for table, rows in zip(tables, averaged.split([len(table) for table in tables]), strict=True):
        table.copy_(rows)


if __name__ == "__main__":
    main()
