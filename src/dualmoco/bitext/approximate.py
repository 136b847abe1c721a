"""Neighbours by FAISS inverted lists, for sizes where exact search takes too long; found rows are scored exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dualmoco.embedding.arrays import ShardedVectors
from dualmoco.errors import ConfigError
from dualmoco.neighbors import SPARE, UNSEEN, Candidates, Neighbors, Tell, nearest, settle
from dualmoco.progress import counting

TRAINED_PER_LIST = 40
ROWS_AT_ONCE = 16_384
PROBES = 16
SAMPLE = 1000


def require_faiss() -> Any:
    """FAISS, if it is installed; ConfigError if not."""
    try:
        import faiss
    except ModuleNotFoundError:
        raise ConfigError("approximate search needs faiss; pip install 'dualmoco[faiss]'") from None
    return faiss


def default_lists(rows: int) -> int:
    """How many lists suit a number of rows: about four times its square root, a power of two."""
    return int(max(1, 1 << round(float(np.log2(max(1.0, 4 * rows**0.5))))))


def approximate_both_ways(
    src: ShardedVectors, tgt: ShardedVectors, k: int, *, lists: int | None = None, probes: int = PROBES
) -> tuple[Neighbors, Neighbors]:
    """Neighbours of every source and every target, some of which may be missed.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        k: How many neighbours.
        lists: Inverted lists of each index; by their size if None.
        probes: Lists looked at for each row: more find more and take longer.

    Returns:
        Neighbours of the sources and of the targets.

    Raises:
        ConfigError: FAISS is not installed.
    """
    return _one_way(src, tgt, k, lists, probes), _one_way(tgt, src, k, lists, probes)


def measured_recall(found: Neighbors, queries: ShardedVectors, keys: ShardedVectors, k: int, seed: int = 0) -> float:
    """Share of the true k nearest, by exact search of a sample of queries, that are among those found."""
    rows = np.random.default_rng(seed).choice(len(queries), size=min(SAMPLE, len(queries)), replace=False)
    exact = nearest(queries[np.sort(rows)], keys, k)
    hits = [len(set(a) & set(b)) for a, b in zip(exact.ids.tolist(), found.ids[np.sort(rows)].tolist(), strict=True)]
    return sum(hits) / exact.ids.size


def _one_way(queries: ShardedVectors, keys: ShardedVectors, k: int, lists: int | None, probes: int) -> Neighbors:
    with counting("indexing", len(keys), " rows") as tell:
        index = _build(keys, min(lists or default_lists(len(keys)), max(1, len(keys) // TRAINED_PER_LIST)), tell)
    index.nprobe = probes
    kept = min(k + SPARE, len(keys))
    best = Candidates.empty(len(queries), kept)
    with counting("searching", len(queries), " rows") as tell:
        for start in range(0, len(queries), ROWS_AT_ONCE):
            block = queries[start : start + ROWS_AT_ONCE]
            scores, ids = index.search(block, kept)
            rows = slice(start, start + len(block))
            for row in np.flatnonzero((ids[:, : min(k, kept)] < 0).any(axis=1)).tolist():
                near = nearest(block[row : row + 1], keys, kept)  # its lists held too few
                scores[row], ids[row] = near.scores[0], near.ids[0]
            best.scores[rows] = torch.from_numpy(np.where(ids < 0, UNSEEN, scores).astype(np.float32))
            best.ids[rows] = torch.from_numpy(np.maximum(ids, 0))
            tell(len(block))
    return settle(best, queries, keys, k, exact=False)


def _build(keys: ShardedVectors, lists: int, tell: Tell) -> Any:
    faiss = require_faiss()
    width = keys.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = 10, 1234
    count = min(len(keys), TRAINED_PER_LIST * lists)
    sample = np.sort(np.random.default_rng(0).choice(len(keys), size=count, replace=False))
    index.train(keys[sample])
    for start in range(0, len(keys), ROWS_AT_ONCE):
        block = keys[start : start + ROWS_AT_ONCE]
        index.add(block)
        tell(len(block))
    return index
