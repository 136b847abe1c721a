"""Accuracy over minutes of training with one encoder frozen, with both trained, static and hybrid; and their speed.

    python -m benchmarks.towers curve runs/locked --data DATA --partner runs/static
    python -m benchmarks.towers speed recipes/join-language.yaml
    python -m benchmarks.towers keys

`curve` scores every checkpoint of a run on Tatoeba, alone and as a hybrid with a finished model, so train with
`schedule.keep=100`. The test set chooses nothing: recipes and weights do not depend on it. `speed` trains a recipe with
the source frozen and with both sides in turn, on the same short pairs, and prints pairs per second and their ratio.
`keys` draws negatives from a store of 3.5 million keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file
from tqdm import tqdm

from benchmarks.measure import peak_memory, print_machine, print_table
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.vectors import Vectors
from dualmoco.data.pairs import Pairs, load_pairs
from dualmoco.embeddings.store import SHARD_ROWS, StoreKey, open_or_start, open_store
from dualmoco.embeddings.unique_lines import UniqueLines
from dualmoco.evaluation.retrieval import Tatoeba
from dualmoco.models.backends.pytorch import run_in_torch
from dualmoco.models.build import build_encoders
from dualmoco.models.folder import read_conversion
from dualmoco.models.hybrid import join_vectors
from dualmoco.models.load import open_model
from dualmoco.models.network import open_routes
from dualmoco.search.exact import nearest_both_ways
from dualmoco.training.batches import PairLoader, ShardSpec, order_pairs
from dualmoco.training.checkpoint import list_checkpoints, state_tensors
from dualmoco.training.config import TrainConfig
from dualmoco.training.frozen import FrozenKeys, Negatives, OneSidedBatch, OneSidedMoco
from dualmoco.training.init_encoders import INITIAL
from dualmoco.training.objective import Objective
from dualmoco.training.objectives import DualMoco, objective_class
from dualmoco.training.recipe import load_config

PAIR = "cmn-eng"
SHORT = 70  # maximum characters of the longer side of the pairs for measuring speed
STEPS, ROUNDS = 4, 5
DIMENSION, NEGATIVES, DRAWS = 384, 8192, 200


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    curve = commands.add_parser("curve", help="score the checkpoints of a run on Tatoeba")
    curve.add_argument("run", type=Path, help="run folder")
    curve.add_argument("--data", required=True, type=Path, help="folder of the test sets")
    curve.add_argument("--partner", help="finished model to combine with each checkpoint in the rows of the hybrid")
    curve.add_argument("--weights", default="1,1", help="of that model and of the run (default: 1,1)")
    curve.add_argument("--pair", default=PAIR, help="test set, such as deu-eng (default: cmn-eng)")
    curve.set_defaults(work=score_run)
    speed = commands.add_parser("speed", help="pairs per second with the source side frozen, and with both learning")
    speed.add_argument("recipe", help="two encoders and pairs")
    speed.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the recipe")
    speed.set_defaults(work=compare_speed)
    keys = commands.add_parser("keys", help="memory and time of drawing negatives from a large store of keys")
    keys.add_argument("--rows", type=int, default=3_500_000, help="keys of 384 numbers (default: 3500000)")
    keys.set_defaults(work=draw_keys)
    parsed = parser.parse_args()
    parsed.work(parsed)


def score_run(parsed: argparse.Namespace) -> None:
    """Prints minutes and accuracies of every checkpoint, those of the start first."""
    config = load_config(parsed.run / "config.yaml")
    test = Tatoeba(parsed.data / "eval" / "tatoeba", parsed.pair)
    encoders = open_routes(parsed.run / INITIAL)
    objective = objective_class(config)(*(encoders[side.lang] for side in (config.src, config.tgt)), config)
    conversion = read_conversion(parsed.run / INITIAL)
    texts = [conversion.apply(side, lang) for side, lang in zip(test.sides, test.langs, strict=True)]
    other: list[Vectors] = []
    if parsed.partner:
        model = open_model(parsed.partner)
        other = [model.encode(side, lang=lang) for side, lang in zip(test.sides, test.langs, strict=True)]
    weights = [float(weight) for weight in parsed.weights.split(",")]
    rows = []
    for checkpoint in [None, *list_checkpoints(parsed.run / "checkpoints")]:
        minutes = load_state(objective, checkpoint) / 60 if checkpoint else 0.0
        own = [run_in_torch(encoders[lang]).encode(side) for side, lang in zip(texts, test.langs, strict=True)]
        row = {"minutes": round(minutes, 2), **accuracies(own, "alone")}
        if other:
            row |= accuracies([join_vectors(pair, weights) for pair in zip(other, own, strict=True)], "hybrid")
        rows.append(row)
    print_table(rows)


def load_state(objective: Objective, checkpoint: Path) -> float:
    """Loads a checkpoint into an objective and its encoders; returns the seconds of training until then."""
    weights = load_file(checkpoint / "model.safetensors")
    with torch.no_grad():
        for name, tensor in state_tensors(objective).items():
            tensor.copy_(weights[name])
    return float(json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["progress"]["seconds"])


def accuracies(sides: Sequence[Vectors], name: str) -> dict[str, float]:
    """Shares of sentences whose nearest neighbour is their translation, in percent, in both directions."""
    near = nearest_both_ways(sides[0], sides[1], 1)
    return {
        f"{name} {way}": round(100 * float(side.found_translations.mean()), 1)
        for way, side in zip(("there", "back"), near, strict=True)
    }


def compare_speed(parsed: argparse.Namespace) -> None:
    """Prints pairs per second of both kinds of training, several rounds in turn, and the ratio of their medians."""
    print_machine()
    config = load_config(parsed.recipe, parsed.overrides)
    data = replace(config.data, max_pairs=20_000, curriculum=[replace(config.data.curriculum[0], max_chars=SHORT)])
    config = replace(config, data=data)
    pairs = load_pairs(data, langs=(config.src.lang, config.tgt.lang), seed=config.seed).train
    encoders = build_encoders(config.src, config.tgt, {config.src.lang: [], config.tgt.lang: []})
    src, tgt = encoders[config.src.lang], encoders[config.tgt.lang]
    order = order_pairs(pairs, config.optimizer.batch_size, seed=config.seed, bucket=data.bucket)
    loader = PairLoader(pairs, order, src.tokenize, tgt.tokenize, ShardSpec())
    ways = {"source frozen": _frozen(config, tgt), "both learn": _both(config, src, tgt)}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    memory = dict.fromkeys(ways, 0.0)
    for number in range(ROUNDS):
        batches = [loader.step(number * STEPS + step)[0] for step in range(STEPS)]
        for name, step in ways.items():
            with peak_memory() as peak:
                began = time.perf_counter()
                for batch in batches:
                    step(batch)
                seconds = time.perf_counter() - began
            if number:  # the first round warms up
                speeds[name].append(STEPS * config.optimizer.batch_size / seconds)
            memory[name] = max(memory[name], peak.extra_mib)
    both = statistics.median(speeds["both learn"])
    rows = [
        {
            "what": name,
            "pairs/s": statistics.median(speeds[name]),
            "ratio": statistics.median(speeds[name]) / both,
            "peak MiB beyond the start": memory[name],
        }
        for name in ways
    ]
    print_table(rows)


def draw_keys(parsed: argparse.Namespace) -> None:
    """Prints the seconds for a step's negatives, and peak memory including the disk cache."""
    print_machine()
    random = np.random.default_rng(0)
    block = random.standard_normal((SHARD_ROWS, DIMENSION), dtype=np.float32).astype(np.float16)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        lines = UniqueLines(np.arange(parsed.rows), np.arange(parsed.rows), "", np.arange(parsed.rows, dtype=np.uint64))
        key = StoreKey("", "", "en", "", VectorPrecision.fp16.value)
        store = open_or_start(Path(folder) / "keys", key, DIMENSION, lines)
        for number in tqdm(store.missing(), desc="writing keys"):
            store.add(number, block[: parsed.rows - number * SHARD_ROWS])
        ids = np.arange(parsed.rows)
        text = pa.nulls(parsed.rows, pa.large_string())
        pairs = Pairs(text, text, ids, ids, ids, ("",))
        rows = []
        with peak_memory() as peak:
            keys = FrozenKeys(open_store(Path(folder) / "keys"), pairs, "src")
            for _ in range(DRAWS):
                began = time.perf_counter()
                keys.take(np.sort(random.choice(parsed.rows, NEGATIVES, replace=False, shuffle=False)))
                rows.append(time.perf_counter() - began)
    milliseconds = 1000 * statistics.median(rows)
    row = {"keys": parsed.rows, "negatives": NEGATIVES, "ms per draw": milliseconds, "peak MiB": peak.extra_mib}
    print_table([row])


def _step(objective: Objective, prepare: Callable[[Any], Any]) -> Callable[[Any], None]:
    """An optimizer step of an objective on batches made from pairs."""
    trained = [weight for weight in objective.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    objective.train()

    def step(batch: Any) -> None:
        own = prepare(batch)
        keys = objective.begin_step([own])
        objective(own, keys[0])["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        objective.update_momentum(0.999)
        objective.end_step(keys)

    return step


def _frozen(config: TrainConfig, tgt: Any) -> Callable[[Any], None]:
    """Trains the target side against stored keys, as in training; their values do not affect the time."""
    rows = config.contrast.queue_size
    queue = torch.nn.functional.normalize(torch.randn(rows, tgt.dimension), dim=1)
    negatives = Negatives(queue, torch.randint(1 << 60, (rows, 2)))

    def prepare(batch: Any) -> OneSidedBatch:
        own = torch.stack([batch.tgt_ids, batch.src_ids], dim=1)
        return OneSidedBatch(batch.tgt, queue[: len(own)], own, negatives)

    return _step(OneSidedMoco(tgt, tgt, config), prepare)


def _both(config: TrainConfig, src: Any, tgt: Any) -> Callable[[Any], None]:
    """Trains both sides by dual momentum contrast with a queue of that size."""
    return _step(DualMoco(src, tgt, config), lambda batch: batch)


if __name__ == "__main__":
    main()
