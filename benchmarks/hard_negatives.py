"""Hard negatives: exact and approximate search of the nearest keys of every key.

    OMP_NUM_THREADS=1 python -m benchmarks.hard_negatives DATA/parallel/*.tsv.xz

Encodes the English side with `en-zh-static`, then prints CPU seconds of both searches for each number of keys, and the
share of true neighbours that approximate search finds. Exact search is timed on a sample of the keys, on which recall
is measured, and extrapolated; approximate search is timed as a whole, including its own check of recall.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import print_machine, print_table
from dualmoco.data.config import DataConfig
from dualmoco.data.pairs import load_pairs
from dualmoco.embeddings.store import ShardedVectors
from dualmoco.models.load import open_model
from dualmoco.search.exact import nearest
from dualmoco.search.ivf import recall, sample_rows
from dualmoco.training import frozen

SAMPLE = 4000
NEIGHBORS = 2 + frozen.EXTRA_NEIGHBORS  # neighbours for `contrast.hard_negatives: 2`


def main() -> None:
    """Measures each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="TSV files of sentence pairs")
    parser.add_argument("--keys", type=int, nargs="+", default=[50_000, 200_000], help="numbers of keys")
    parsed = parser.parse_args()
    print_machine()
    most = max(parsed.keys)
    data = DataConfig(train=[str(Path(name).resolve()) for name in parsed.files], max_pairs=2 * most, heldout=100)
    sentences = list(dict.fromkeys(load_pairs(data, langs=("en", "zh"), seed=0).train.texts()[0]))[:most]
    vectors = open_model("en-zh-static").encode(sentences, lang="en").astype(np.float16)
    with tempfile.TemporaryDirectory() as folder:
        print_table([_measure(vectors[:count], Path(folder) / f"{count}.npy") for count in parsed.keys])


def _measure(vectors: np.ndarray, path: Path) -> dict[str, object]:
    np.save(path, vectors)
    keys = ShardedVectors([path], vectors.shape[1])
    rows = sample_rows(len(keys), SAMPLE)
    began = time.process_time()
    exact = nearest(keys[rows], keys, NEIGHBORS)
    exact_seconds = (time.process_time() - began) * len(keys) / len(rows)
    frozen.EXACT_KEYS = 0
    began = time.process_time()
    found = frozen.neighbor_keys(keys, NEIGHBORS)
    seconds = time.process_time() - began
    return {
        "keys": f"{len(keys):,}",
        "exact CPU s": exact_seconds,
        "approximate CPU s": seconds,
        "recall %": 100 * recall(found.scores[rows], exact.scores),
    }


if __name__ == "__main__":
    main()
