"""A training step: ours with a queue beside sentence-transformers' ranking losses, same encoders, data and batch.

    python -m benchmarks.step

Prints pairs per second, the ratio to each peer and memory beyond the encoders. The peer with in-batch negatives sees
one batch of them; the cached peer gets as many as our queue holds, by one huge batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.measure import in_new_process, peak_memory, print_machine, print_table
from benchmarks.peers import cached_loss, peer_step, ranking_loss, routed
from dualmoco.batching import PairBatch, PairLoader, Share, order_pairs
from dualmoco.config import ContrastConfig, EncoderConfig, Kind
from dualmoco.corpus.grammar import generate_pairs
from dualmoco.corpus.pairs import Pairs
from dualmoco.encoders import Encoder, build_encoder
from dualmoco.objectives import DualMoco

QUEUE, BATCH, TEMPERATURE, CLIP = 16_384, 256, 0.05, 10.0
PAIRS = 40_000
ROUNDS = 3
STEPS = 8  # of one round; the cached peer's step is worth QUEUE / BATCH of the others'


def main() -> None:
    """Measures every system in its own process, in turn, several rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SYSTEMS), help="one measurement, as JSON")
    parser.add_argument("--kind", choices=["bert", "static"], default="bert", help="encoders")
    parsed = parser.parse_args()
    if parsed.only:
        print(json.dumps(measure(parsed.only, Kind(parsed.kind))))
        return
    print_machine()
    for kind in ("bert", "static"):
        print(f"{kind} encoders, batch {BATCH}, queue {QUEUE:,}\n")
        compare(kind)


def compare(kind: str) -> None:
    """Prints one row a system."""
    systems = [name for name in SYSTEMS if kind == "bert" or name != CACHED]  # the cached loss refuses static encoders
    results: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name in systems:
            results[name].append(in_new_process("benchmarks.step", "--only", name, "--kind", kind))
    speed = {name: statistics.median(run["pairs/s"] for run in runs) for name, runs in results.items()}
    memory = {name: statistics.median(run["mib"] for run in runs) for name, runs in results.items()}
    rows = [
        {
            "system": name,
            "pairs/s": speed[name],
            "our speed / its": speed["dual-moco"] / speed[name],
            "peak MiB": memory[name],
            "our memory / its": memory["dual-moco"] / memory[name],
        }
        for name in systems
    ]
    print_table(rows)


def measure(name: str, kind: Kind) -> dict[str, float]:
    """Pairs per second and peak memory beyond the encoders of one system."""
    torch.manual_seed(0)
    pairs = Pairs.from_texts(generate_pairs(PAIRS))
    src_texts, tgt_texts = pairs.texts()
    shape = EncoderConfig(kind=kind, width=256, layers=4, heads=4, vocab_size=4000)
    src, tgt = build_encoder(shape, src_texts), build_encoder(shape, tgt_texts)
    batch_size = QUEUE if name == CACHED else BATCH
    order = order_pairs(pairs, batch_size, seed=0, bucket=1)
    loader = PairLoader(pairs, order, src.tokenize, tgt.tokenize, Share())
    count = 1 if name == CACHED else STEPS
    batches = [loader.step(index)[0] for index in range(1 + count)]
    with peak_memory() as peak:
        step = SYSTEMS[name](src, tgt)
        step(batches[0])
        began = time.perf_counter()
        for batch in batches[1:]:
            step(batch)
        seconds = time.perf_counter() - began
    return {"pairs/s": count * batch_size / seconds, "mib": peak.extra_mib}


Step = Callable[[PairBatch], object]


def ours(src: Encoder, tgt: Encoder) -> Step:
    """Dual momentum contrast with a full queue."""
    objective = DualMoco(src, tgt, ContrastConfig(queue_size=QUEUE, temperature=TEMPERATURE, batch_keys=True)).train()
    contrast = objective.contrast
    for queue in (contrast.src_queue, contrast.tgt_queue):
        queue.enqueue(
            torch.nn.functional.normalize(torch.randn(QUEUE, src.width), dim=1), torch.randint(1 << 60, (QUEUE, 2))
        )
    optimizer = _adamw(objective)

    def step(batch: PairBatch) -> None:
        keys = objective.begin_step([batch])
        loss = objective(batch, keys[0])["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        objective.end_step(keys, 0.999)

    return step


def in_batch(src: Encoder, tgt: Encoder) -> Step:
    """The peer with the batch's negatives."""
    loss = ranking_loss(routed(src, tgt), TEMPERATURE).train()
    optimizer = _adamw(loss)
    return lambda batch: peer_step(loss, optimizer, batch, CLIP)


def cached(src: Encoder, tgt: Encoder) -> Step:
    """The peer with as many negatives as our queue."""
    loss = cached_loss(routed(src, tgt), TEMPERATURE, BATCH).train()
    optimizer = _adamw(loss)
    return lambda batch: peer_step(loss, optimizer, batch, CLIP)


def _adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for weight in module.parameters() if weight.requires_grad], lr=1e-4, fused=True)


CACHED = "sentence-transformers cached, 16,384 negatives"
SYSTEMS: dict[str, Callable[[Encoder, Encoder], Step]] = {
    "dual-moco": ours,
    "sentence-transformers in-batch": in_batch,
    CACHED: cached,
}

if __name__ == "__main__":
    main()
