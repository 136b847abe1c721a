"""A training step: ours with a queue versus the ranking losses of sentence-transformers, on the same batches.

    python -m benchmarks.step                # a quarter of an hour

Prints pairs per second, our ratio to each peer, and memory beyond the encoders. The in-batch peer has one batch of
negatives; the cached peer has as many as our queue, from one huge batch. Ours and the cached peer encode with gradients
in micro-batches of any size, with the same result. Both are measured with a whole batch and with 32, the default of the
cached peer.
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
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.pairs import Pairs
from dualmoco.models.build import build_encoder
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import Encoder
from dualmoco.training.batches import PairBatch, PairLoader, ShardSpec, order_pairs
from dualmoco.training.config import ContrastConfig, TrainConfig
from dualmoco.training.objectives import DualMoco

QUEUE, BATCH, TEMPERATURE, CLIP = 16_384, 256, 0.05, 10.0
PAIRS = 40_000
ROUNDS = 2
STEPS = 8  # steps per round; one step of the cached peer counts as QUEUE / BATCH steps of the others
WARM_UP = 512  # pairs of the cached peer's first step, which is not timed
PLAIN_PEER, CACHED_PEER = "sentence-transformers in-batch", "sentence-transformers cached"
VARIANTS = {  # system and size of its micro-batches
    "bert": [("dual-moco", 256), ("dual-moco", 32), (PLAIN_PEER, 256), (CACHED_PEER, 256), (CACHED_PEER, 32)],
    "static": [("dual-moco", 256), (PLAIN_PEER, 256)],  # the cached loss refuses static encoders
}


def main() -> None:
    """Measures every variant in its own process, in turn, several rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SYSTEMS), help="one measurement, as JSON")
    parser.add_argument("--kind", choices=list(VARIANTS), default="bert", help="encoders of that measurement")
    parser.add_argument("--micro-batch", type=int, default=BATCH, help="pairs of that measurement encoded at a time")
    parsed = parser.parse_args()
    if parsed.only:
        print(json.dumps(measure(parsed.only, EncoderKind(parsed.kind), parsed.micro_batch)))
        return
    print_machine()
    for kind in VARIANTS:
        print(f"{kind} encoders, batch {BATCH}, {QUEUE:,} negatives except for the in-batch peer\n")
        compare(kind)


def compare(kind: str) -> None:
    """Prints one row per variant."""
    variants = VARIANTS[kind]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {variant: [] for variant in variants}
    for _ in range(ROUNDS):
        for name, size in variants:
            result = in_new_process("benchmarks.step", "--only", name, "--kind", kind, "--micro-batch", str(size))
            runs[name, size].append(result)
    speed, memory = (
        {variant: statistics.median(run[metric] for run in done) for variant, done in runs.items()}
        for metric in ("pairs/s", "mib")
    )
    print_table(
        [
            {
                "system": name,
                "micro-batch": size,
                "pairs/s": speed[name, size],
                "our speed / its": speed["dual-moco", size] / speed[name, size],
                "peak MiB": memory[name, size],
                "our memory / its": memory["dual-moco", size] / memory[name, size],
            }
            for name, size in variants
        ]
    )


def measure(name: str, kind: EncoderKind, size: int) -> dict[str, float]:
    """Pairs per second and peak memory beyond the encoders of one variant."""
    torch.manual_seed(0)
    pairs = Pairs.from_texts(generate_pairs(PAIRS))
    src_texts, tgt_texts = pairs.texts()
    shape = EncoderConfig(kind=kind, width=256, layers=4, heads=4, vocab_size=4000)
    src, tgt = build_encoder(shape, src_texts), build_encoder(shape, tgt_texts)

    def load(batch_size: int, count: int, micro_batches: int) -> list[list[PairBatch]]:
        order = order_pairs(pairs, batch_size, seed=0, bucket=1)
        loader = PairLoader(pairs, order, src.tokenize, tgt.tokenize, ShardSpec(micro_batches=micro_batches))
        return [loader.step(index) for index in range(count)]

    if name == CACHED_PEER:
        first, *rest = load(WARM_UP, 1, 1) + load(QUEUE, 1, 1)
    else:
        first, *rest = load(BATCH, 1 + STEPS, BATCH // size)
    with peak_memory() as peak:
        step = SYSTEMS[name](src, tgt, size)
        step(first)
        began = time.perf_counter()
        for batch in rest:
            step(batch)
        seconds = time.perf_counter() - began
    return {"pairs/s": sum(len(part.src_ids) for batch in rest for part in batch) / seconds, "mib": peak.extra_mib}


Step = Callable[[list[PairBatch]], None]


def ours(src: Encoder, tgt: Encoder, size: int) -> Step:
    """Dual momentum contrast with a full queue; the batch comes in its micro-batches."""
    contrast = ContrastConfig(queue_size=QUEUE, temperature=TEMPERATURE, batch_keys=True)
    objective = DualMoco(src, tgt, TrainConfig(contrast=contrast)).train()
    for queue in (objective.contrast.src_queue, objective.contrast.tgt_queue):
        vectors = torch.nn.functional.normalize(torch.randn(QUEUE, src.dimension), dim=1)
        queue.enqueue(vectors, torch.randint(1 << 60, (QUEUE, 2)))
    optimizer = _adamw(objective)

    def step(batch: list[PairBatch]) -> None:
        keys = objective.begin_step(batch)
        for part, part_keys in zip(batch, keys, strict=True):
            (objective(part, part_keys)["loss"] / len(batch)).backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        objective.update_momentum(0.999)
        objective.end_step(keys)

    return step


def in_batch(src: Encoder, tgt: Encoder, size: int) -> Step:
    """The peer with in-batch negatives, whose batch cannot be split."""
    return _peer(ranking_loss(routed(src, tgt), TEMPERATURE))


def cached(src: Encoder, tgt: Encoder, size: int) -> Step:
    """The peer with the same number of negatives as our queue."""
    return _peer(cached_loss(routed(src, tgt), TEMPERATURE, size))


def _peer(loss: torch.nn.Module) -> Step:
    optimizer = _adamw(loss.train())

    def step(batch: list[PairBatch]) -> None:
        peer_step(loss, optimizer, batch[0], CLIP)

    return step


def _adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for weight in module.parameters() if weight.requires_grad], lr=1e-4, fused=True)


SYSTEMS: dict[str, Callable[[Encoder, Encoder, int], Step]] = {
    "dual-moco": ours,
    PLAIN_PEER: in_batch,
    CACHED_PEER: cached,
}

if __name__ == "__main__":
    main()
