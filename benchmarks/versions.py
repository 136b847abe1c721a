"""Training steps of two versions of the code, in turn, with the same seed, data and settings.

    OMP_NUM_THREADS=1 python -m benchmarks.versions OLD DATA/parallel/*.tsv.xz

OLD is another checkout, for example of `git worktree add OLD COMMIT`. Each version runs in its own process, and they
take steps in turn. Prints CPU seconds per step (batches included), their ratio, the peak memory of both processes, and
the difference between the losses of the last step. `--models EN ZH` adds pretrained encoders, by folder or hub name,
such as MiniLM and bge-small-zh.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "static": [
        *("src.kind=static", "tgt.kind=static", "src.width=384", "tgt.width=384", "src.vocab_size=22000"),
        *("tgt.vocab_size=22000", "optimizer.batch_size=512", "contrast.queue_size=2048", "optimizer.lr=2e-2"),
    ],
    "bert": [
        *("src.kind=bert", "tgt.kind=bert", "src.layers=2", "tgt.layers=2", "src.width=256", "tgt.width=256"),
        *("optimizer.batch_size=256", "contrast.queue_size=16384", "optimizer.lr=1e-3"),
    ],
    "pretrained": ["optimizer.batch_size=128", "contrast.queue_size=4096", "optimizer.lr=1e-4"],
}


def main() -> None:
    """Compares the versions, or runs one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder of the other version")
    parser.add_argument("files", nargs="+", help="TSV files of sentence pairs")
    parser.add_argument("--models", nargs=2, metavar=("EN", "ZH"), help="also compare these pretrained encoders")
    parser.add_argument("--only", choices=list(SETTINGS), help="one kind of encoders")
    parser.add_argument("--steps", type=int, default=12, help="steps that are timed, after two that are not")
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs that are read")
    parser.add_argument("--recipe", help=argparse.SUPPRESS)  # of one process
    parsed = parser.parse_args()
    if parsed.recipe:
        take_steps(Path(parsed.recipe))
        return
    from benchmarks.measure import print_machine, print_table

    print_machine()
    kinds = [parsed.only] if parsed.only else [kind for kind in SETTINGS if kind != "pretrained" or parsed.models]
    print_table([compare(kind, parsed) for kind in kinds])


def compare(kind: str, parsed: argparse.Namespace) -> dict[str, Any]:
    """A row of the table: one kind of encoders in both versions."""
    folders = {"old": parsed.old.resolve(), "new": Path(__file__).resolve().parents[1]}
    with tempfile.TemporaryDirectory() as work:
        processes = {
            name: _start(folder, _write_recipe(Path(work) / name, kind, parsed)) for name, folder in folders.items()
        }
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in processes}
        for _ in range(2 + parsed.steps):
            for name, process in processes.items():
                taken[name].append(_next_step(process))
        for process in processes.values():
            process.communicate("")
    seconds = {name: statistics.mean(step["seconds"] for step in steps[2:]) for name, steps in taken.items()}
    last = {name: steps[-1] for name, steps in taken.items()}
    return {
        "encoders": kind,
        "old s per step": seconds["old"],
        "new s per step": seconds["new"],
        "times as fast": seconds["old"] / seconds["new"],
        "old MiB": last["old"]["mib"],
        "new MiB": last["new"]["mib"],
        "losses differ by": abs(last["old"]["loss"] - last["new"]["loss"]),
    }


def _write_recipe(out: Path, kind: str, parsed: argparse.Namespace) -> Path:
    """Writes the settings of one process as lines of KEY=VALUE."""
    files = [str(Path(name).resolve()) for name in parsed.files]
    settings = [
        *(f"out={out}", f"data.train={json.dumps(files)}", f"data.max_pairs={parsed.pairs}", "data.heldout=100"),
        *("src.lang=en", "tgt.lang=zh", "src.dropout=0", "tgt.dropout=0", "tgt.max_piece_length=4"),
        *("contrast.batch_keys=true", "contrast.temperature=0.05", "schedule.steps=1000", *SETTINGS[kind]),
    ]
    if kind == "pretrained":
        settings += [f"src.name={parsed.models[0]}", f"tgt.name={parsed.models[1]}"]
        settings += ["tgt.projection=384"]  # MiniLM's dimension
    path = out.with_suffix(".json")
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def _start(folder: Path, recipe: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", __file__, "old", "file", "--recipe", str(recipe)]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _next_step(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdin and process.stdout
    process.stdin.write("step\n")
    process.stdin.flush()
    answer: dict[str, float] = json.loads(process.stdout.readline())
    return answer


def take_steps(recipe: Path) -> None:
    """Runs a step for each line of standard input, with the version that Python finds."""
    import torch

    from dualmoco.data.pairs import load_pairs
    from dualmoco.training.recipe import load_config
    from dualmoco.training.run import build_trainer, start_accelerator
    from dualmoco.training.schedule import RunProgress

    empty = recipe.with_suffix(".yaml")
    empty.write_text("{}", encoding="utf-8")
    config = load_config(empty, json.loads(recipe.read_text(encoding="utf-8")))
    split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
    trainer, progress = build_trainer(config, split, start_accelerator(config)), RunProgress()
    torch.manual_seed(0)
    for _ in sys.stdin:
        began = time.process_time()
        metrics: Any = trainer.step(trainer.batches(progress.step), progress)
        seconds, progress.step = time.process_time() - began, progress.step + 1
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "loss": float(metrics["loss"]), "mib": mib}), flush=True)


if __name__ == "__main__":
    main()
