"""Chooses between models without a test set: held-out translations of every corpus, and English inference.

    python -m benchmarks.heldout en-zh en-zh-static --pairs prepared/en-zh/heldout-00000.parquet --data DATA
    python -m benchmarks.heldout runs/a/model runs/b/model --pairs prepared/en-zh/heldout-00000.parquet --limit 4000
    python -m benchmarks.heldout runs/a runs/b --pairs prepared/en-zh/heldout-00000.parquet --dimensions 256 64

Retrieval is the percentage of sentences whose nearest neighbour is their translation, mean of both directions, among
all held-out pairs. It is printed for each corpus, for the mean of the corpora, and for all pairs. Inference, with
`--data`, is how well the cosine of premise and hypothesis separates entailment from contradiction and from neutral: the
area under the curve in percent, on the examples that training also holds out. It shows how much the English encoder
kept while it was trained with another language.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from sklearn.metrics import roc_auc_score

from dualmoco.core.progress import peak_memory
from dualmoco.data.nli_examples import LABELS, NliExample, load_nli
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.search.exact import nearest

NLI_FILE, NLI_HELDOUT = "nli/train.en.tsv", 2000  # same as `nli.heldout` and `seed: 0` of a recipe
SIDES = {"en": "src", "zh": "tgt"}
ENTAILMENT = LABELS.index("entailment")


def main() -> None:
    """Prints one row per model and dimension."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="models, run folders or names of embedded ones")
    parser.add_argument("--pairs", required=True, type=Path, help="held-out pairs of `dualmoco prepare`, Parquet")
    parser.add_argument("--limit", type=int, default=0, help="number of random pairs (default: all)")
    parser.add_argument("--data", help="folder of the NLI examples (default: no inference)")
    parser.add_argument("--backend", default="auto", help="(default: %(default)s)")
    parser.add_argument(
        "--dimensions", type=int, nargs="+", default=[None], help="dimensions of the vectors (default: all)"
    )
    parser.add_argument("--json", type=Path, help="write the results to FILE")
    parsed = parser.parse_args()
    table = pq.read_table(parsed.pairs)
    rows = np.random.default_rng(0).permutation(len(table))[: parsed.limit or None]
    columns = table.take(np.sort(rows)).to_pydict()
    examples = inference_examples(parsed.data) if parsed.data else []
    found = []
    for name, dimension in product(parsed.models, parsed.dimensions):
        model = open_model(name, backend=parsed.backend, dimension=dimension)
        figures = retrieval(model, columns) | (inference(model, examples) if examples else {})
        known = {"model": name, "dimension": model.dimension, "sha256": model.identity.sha256, "pairs": len(rows)}
        found.append(known | figures)
        line = "  ".join(f"{key} {value:.2f}" for key, value in figures.items())
        print(f"{name} [{model.identity.sha256[:12]}, {model.dimension}]  {line}", flush=True)
    if parsed.json:
        parsed.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(f"{len(rows):,} pairs; {peak_memory() / 2**20:,.0f} MiB peak memory")


def retrieval(model: Model, columns: dict[str, list[str]]) -> dict[str, float]:
    """Shares of sentences that find their translation: by corpus, mean of the corpora, each direction, both."""
    en, zh = (model.encode(columns[side], lang=lang) for lang, side in SIDES.items())  # (n, D) each
    own = np.arange(len(en))
    ways = {"en-zh": nearest(en, zh, 1).ids[:, 0] == own, "zh-en": nearest(zh, en, 1).ids[:, 0] == own}
    hits = np.mean(list(ways.values()), axis=0)  # (n,)
    corpora = np.array(columns["corpus"])
    of_corpus = {str(name): 100 * float(hits[corpora == name].mean()) for name in np.unique(corpora)}
    shares = {way: 100 * float(found.mean()) for way, found in ways.items()}
    means = {"mean of corpora": float(np.mean(list(of_corpus.values()))), "all": 100 * float(hits.mean())}
    return of_corpus | shares | means


def inference_examples(data: str) -> list[NliExample]:
    """The examples that a training run with the same file and seed 0 holds out."""
    return load_nli([NLI_FILE], root=data, heldout=NLI_HELDOUT, batch_size=1, seed=0)[1]


def inference(model: Model, examples: list[NliExample]) -> dict[str, float]:
    """Area under the curve of cosines, entailment over each other label."""
    premises = model.encode([example.premise for example in examples], lang="en")
    hypotheses = model.encode([example.hypothesis for example in examples], lang="en")
    cosines, labels = (premises * hypotheses).sum(axis=1), np.array([example.label for example in examples])
    areas = {}
    for other, title in enumerate(LABELS):
        if other != ENTAILMENT:
            asked = (labels == ENTAILMENT) | (labels == other)
            areas[f"over {title}"] = 100 * float(roc_auc_score(labels[asked] == ENTAILMENT, cosines[asked]))
    return areas


if __name__ == "__main__":
    main()
