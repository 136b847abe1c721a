"""The cost of padding: training steps with both sides in parts of similar length, versus padded as a whole.

    OMP_NUM_THREADS=1 python -m benchmarks.padding DATA/parallel/*.tsv.xz

Prints tokens, CPU seconds and the largest difference of vectors; both variants run the same steps in turn.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.measure import print_machine, print_table
from benchmarks.peers import pad_whole
from dualmoco.data.config import DataConfig
from dualmoco.data.pairs import load_pairs
from dualmoco.models.build import build_encoder
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import TokenParts
from dualmoco.training.batches import PairBatch, PairLoader, ShardSpec, order_pairs
from dualmoco.training.config import ContrastConfig, TrainConfig
from dualmoco.training.objectives import DualMoco

QUEUE, BUCKET = 16_384, 50


def main() -> None:
    """Runs steps of both variants in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="TSV files of sentence pairs")
    parser.add_argument("--batch", type=int, default=1024, help="pairs per step")
    parser.add_argument("--steps", type=int, default=6, help="steps that are timed")
    parser.add_argument("--pairs", type=int, default=200_000, help="pairs that are read")
    parser.add_argument("--counted", type=int, default=60, help="steps whose tokens are counted")
    parser.add_argument("--layers", type=int, default=2, help="layers of each encoder")
    parser.add_argument("--width", type=int, default=256, help="width of each encoder")
    parsed = parser.parse_args()
    print_machine()
    torch.manual_seed(0)
    data = DataConfig(train=[str(Path(name).resolve()) for name in parsed.files], max_pairs=parsed.pairs, heldout=100)
    pairs = load_pairs(data, langs=("en", "zh"), seed=0).train
    shape = EncoderConfig(
        kind=EncoderKind.bert, width=parsed.width, layers=parsed.layers, heads=4, vocab_size=16_000, max_tokens=128
    )
    src_texts, tgt_texts = pairs.texts()
    src = build_encoder(replace(shape, lang="en"), src_texts[:50_000])
    tgt = build_encoder(replace(shape, lang="zh", max_piece_length=4), tgt_texts[:50_000])
    for encoder in (src, tgt):
        encoder.set_dropout(0.0)
    order = order_pairs(pairs, parsed.batch, seed=0, bucket=BUCKET)
    loader = PairLoader(pairs, order, src.tokenize, tgt.tokenize, ShardSpec())
    parts = [loader.step(step)[0] for step in range(max(parsed.counted, parsed.steps + 1))]
    whole = [_unsplit(batch) for batch in parts]
    all_parts = [part for batch in parts for side in (batch.src, batch.tgt) for part in side.parts]
    real = sum(int(part["attention_mask"].sum()) for part in all_parts)
    seconds = _time_in_turn({"parts": parts[: parsed.steps + 1], "whole": whole[: parsed.steps + 1]}, src, tgt)
    rows = [
        {"batches": name, "tokens": count, "padding %": 100 - 100 * real / count, "CPU s per step": seconds[name]}
        for name, count in (("whole", _tokens(whole)), ("parts", _tokens(parts)))
    ]
    print_table(rows)
    with torch.inference_mode():
        pairs_of_vectors = [(src(one.src), src(other.src)) for one, other in zip(parts[:2], whole[:2], strict=True)]
    difference = max(float((one - other).abs().max()) for one, other in pairs_of_vectors)
    average = sum(len(side.parts) for batch in parts for side in (batch.src, batch.tgt)) / (2 * len(parts))
    print(
        f"tokens {_tokens(whole) / _tokens(parts):.2f} times fewer, CPU time {seconds['whole'] / seconds['parts']:.2f} "
        f"times less, {average:.1f} parts per side, vectors differ by at most {difference:.1e}"
    )


def _tokens(batches: list[PairBatch]) -> int:
    return sum(batch.tokens for batch in batches)


def _unsplit(batch: PairBatch) -> PairBatch:
    return replace(batch, src=TokenParts([pad_whole(batch.src)], None), tgt=TokenParts([pad_whole(batch.tgt)], None))


def _time_in_turn(batches: dict[str, list[PairBatch]], src: torch.nn.Module, tgt: torch.nn.Module) -> dict[str, float]:
    """CPU seconds per step of each variant; the first step of each is not timed."""
    config = TrainConfig(contrast=ContrastConfig(queue_size=QUEUE, temperature=0.05))
    objective = DualMoco(src, tgt, config).train()  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW([one for one in objective.parameters() if one.requires_grad], lr=1e-9, fused=True)
    taken: dict[str, list[float]] = {name: [] for name in batches}
    for step in range(len(next(iter(batches.values())))):
        for name, own in batches.items():
            began = time.process_time()
            keys = objective.begin_step([own[step]])
            objective(own[step], keys[0])["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            objective.update_momentum(0.999)
            objective.end_step(keys)
            taken[name].append(time.process_time() - began)
    return {name: sum(seconds[1:]) / len(seconds[1:]) for name, seconds in taken.items()}


if __name__ == "__main__":
    main()
