"""Accuracy against minutes: dual-moco, in-batch negatives, and sentence-transformers' cached loss, one after the other.

    python -m benchmarks.accuracy recipes/static-cpu.yaml --data DATA --minutes 4 --plot docs/accuracy-static.png

All three start from the same encoders, read the same pairs and decay their rate over the same minutes. The cached loss
takes batches as large as our queue, so that it has as many negatives, encodes them 256 at a time, its fastest way here,
and a rate scaled by the root of the batch size unless one is given; it refuses static encoders, for which the peer's
plain loss takes these batches at once.
Prints the accuracy on held-out pairs, both ways averaged, and on Tatoeba, and when each system first had the final
accuracy of the peer.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import peak_memory, print_machine, print_table
from benchmarks.peers import cached_loss, peer_step, ranking_loss, routed
from dualmoco.data.pairs import load_pairs
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.models.network import open_routes, save_encoders
from dualmoco.models.opening import open_model
from dualmoco.models.recipe import Kind
from dualmoco.training.batching import PairLoader, Share, prefetch
from dualmoco.training.config import load_config
from dualmoco.training.heldout import Heldout
from dualmoco.training.log import read_log
from dualmoco.training.order import order_pairs
from dualmoco.training.recipe import TrainConfig
from dualmoco.training.run import train

Curve = list[tuple[float, float]]  # minutes, accuracy
EVALUATIONS = 10
PEER = "sentence-transformers"
PEER_MICRO_BATCH = 256
WARM_UP = 0.1  # share of the minutes in which the peer's rate rises: its batches are too few to count them


def main() -> None:
    """Trains the three systems and compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="encoders, data and the settings of dual-moco")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's")
    parser.add_argument("--data", required=True, help="folder of the corpora and test sets")
    parser.add_argument("--minutes", type=float, default=4.0, help="training time of each system")
    parser.add_argument("--peer-rate", type=float, help="the peer's learning rate; scaled from the recipe's if absent")
    parser.add_argument("--plot", help="PNG to write")
    parsed = parser.parse_args()
    limit = [f"data.root={parsed.data}", f"schedule.minutes={parsed.minutes}", "schedule.steps=0"]
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(parsed.recipe, [*parsed.overrides, *limit, f"out={folder}/dual-moco"])
        systems: dict[str, Callable[[], Curve]] = {
            "dual-moco": lambda: by_us(config),
            "in-batch": lambda: by_us(
                load_config(parsed.recipe, [*parsed.overrides, *limit, f"out={folder}/in-batch", "objective=in-batch"]),
                start=Path(folder) / "dual-moco" / "initial",
            ),
            PEER: lambda: by_peer(
                config, Path(folder) / "dual-moco" / "initial", Path(folder) / PEER, parsed.peer_rate
            ),
        }
        curves: dict[str, Curve] = {}
        rows = []
        for name, run in systems.items():
            with peak_memory() as peak:
                curves[name] = run()
            encoder = open_model(str(Path(folder) / name / "model"))
            scores = evaluate(encoder, "tatoeba", data=parsed.data).scores
            zh_en, en_zh = (score.value for score in scores if score.metric == "accuracy")
            rows.append({"system": name, "held-out": 100 * curves[name][-1][1], "Tatoeba zh-en": zh_en,
                         "en-zh": en_zh, "peak MiB": peak.extra_mib})  # fmt: skip
    goal = curves[PEER][-1][1]
    for row in rows:
        row["minutes to the peer's final"] = first_time(curves[str(row["system"])], goal)
    print_table(rows)
    if parsed.plot:
        plot(curves, Path(parsed.plot), f"{Path(parsed.recipe).stem}, {parsed.minutes:g} minutes each")


def by_us(config: TrainConfig, start: Path | None = None) -> Curve:
    """Trains by our loop, from given encoders if any."""
    out = Path(config.out)
    if start:
        out.mkdir(parents=True)
        shutil.copytree(start, out / "initial")
        (out / "config.yaml").write_text(as_yaml(config), encoding="utf-8")
    train(config, resume=bool(start))
    records = read_log(out / "log.jsonl")
    clock = {record["step"]: record["seconds"] for record in records if "seconds" in record} | {0: 0.0}
    return [(clock[r["step"]] / 60, r["heldout"]["score"]) for r in records if "heldout" in r and r["step"] in clock]


def as_yaml(config: TrainConfig) -> str:
    """The settings as a run folder keeps them."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(config.to_dict()))


def by_peer(config: TrainConfig, start: Path, out: Path, rate: float | None) -> Curve:
    """Trains by sentence-transformers' cached loss, plain for static encoders, with batches of our queue's size."""
    torch.manual_seed(config.seed)
    src, tgt = open_routes(start).values()
    split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
    batch_size = config.contrast.queue_size
    order = order_pairs(split.train, batch_size, seed=config.seed, bucket=1)
    loader = PairLoader(split.train, order, src.tokenize, tgt.tokenize, Share())
    if Kind.static in (config.src.kind, config.tgt.kind):
        loss = ranking_loss(routed(src, tgt), config.contrast.temperature)
    else:
        loss = cached_loss(routed(src, tgt), config.contrast.temperature, PEER_MICRO_BATCH)
    peak_rate = rate or config.optimizer.lr * math.sqrt(batch_size / config.optimizer.batch_size)
    optimizer = torch.optim.AdamW(loss.parameters(), peak_rate, weight_decay=config.optimizer.weight_decay, fused=True)
    heldout = Heldout(split.heldout, src, tgt)
    curve: Curve = [(0.0, heldout.score().score)]
    limit = 60 * config.schedule.minutes
    began, step, batches = time.monotonic(), 0, prefetch(loader.step, 0)
    while (seconds := time.monotonic() - began) < limit:
        now = peak_rate * min(1.0, (seconds / limit + 0.01) / WARM_UP) * (1 + math.cos(math.pi * seconds / limit)) / 2
        optimizer.param_groups[0]["lr"] = now
        loss.train()
        peer_step(loss, optimizer, next(batches)[0], config.optimizer.clip)
        step += 1
        if seconds / limit >= len(curve) / EVALUATIONS:
            curve.append(((time.monotonic() - began) / 60, heldout.score().score))
    batches.close()
    curve.append(((time.monotonic() - began) / 60, heldout.score().score))
    save_encoders({config.src.lang: src, config.tgt.lang: tgt}, out / "model")
    return curve


def first_time(curve: Curve, goal: float) -> Any:
    """The first minute at which a curve reaches an accuracy, between two measurements by a straight line."""
    for (left, low), (right, high) in pairwise(curve):
        if high >= goal:
            return left + (right - left) * max(0.0, goal - low) / (high - low) if high > low else right
    return "never"


def plot(curves: dict[str, Curve], path: Path, title: str) -> None:
    """Draws accuracy against minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), dpi=150)
    for name, curve in curves.items():
        axes.plot([minutes for minutes, _ in curve], [100 * score for _, score in curve], marker="o", ms=3, label=name)
    axes.set(xlabel="minutes of training", ylabel="held-out retrieval accuracy, %", title=title, ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
