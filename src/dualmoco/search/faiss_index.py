"""Inverted lists of FAISS over the vectors of an index; the rows that they find are reranked exactly.

The number of lists that a query probes is measured, not guessed. ivf.py says why mining has other lists. Shapes: q
queries, n rows, D dimension, k neighbours, c candidates.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import ConfigError, DataError, RunError
from dualmoco.core.progress import counting
from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.embeddings.store import ShardedVectors
from dualmoco.search.exact import UNSEEN, Candidates, Neighbors, nearest, rerank
from dualmoco.search.index_files import IndexKind, ListsRecord
from dualmoco.search.ivf import (
    KMEANS_ROUNDS,
    ROWS_AT_ONCE,
    TRAINED_PER_LIST,
    default_lists,
    recall,
    require_faiss,
    sample_rows,
)

logger = logging.getLogger(__name__)

INDEX_LISTS_PER_ROOT = 4
PRODUCT_CODES = 256  # values of a product code; each needs a training vector
CODE_DIMENSION = 4  # minimum number of dimensions per product code
RERANKED = 10  # reranked candidates per neighbour
LEAST_RERANKED = 100
RERANKED_AT_ONCE = 65_536  # queries times candidates
HELD_OUT_ROWS = 500  # rows to measure recall on
RECALL_DEPTH = 10  # neighbours of each held-out row
LEAST_RECALL = 0.95
Allowed = np.ndarray[tuple[int], np.dtype[np.bool_]]


class InvertedLists:
    """Lists of FAISS, and the vectors they were made from."""

    def __init__(self, index: Any, vectors: ShardedVectors) -> None:
        self.index, self.vectors = index, vectors

    @classmethod
    def train(cls, vectors: ShardedVectors, kind: IndexKind) -> InvertedLists:
        """Trains lists (ivf or ivfpq) on a sample, and adds all vectors (n, D)."""
        faiss = require_faiss()
        count, dimension = vectors.shape
        if kind == IndexKind.ivfpq and count < PRODUCT_CODES:
            raise ConfigError(f"ivfpq with {count:,} sentences; expected at least {PRODUCT_CODES}: use exact")
        lists = default_lists(count, INDEX_LISTS_PER_ROOT)
        index = faiss.index_factory(dimension, f"IVF{lists},{_codes(kind, dimension)}", faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1
        wanted = TRAINED_PER_LIST * max(lists, PRODUCT_CODES)
        spared = held_out(count) if count > 2 * HELD_OUT_ROWS else None
        chosen = sample_rows(count, wanted, without=spared, seed=1)
        if kind == IndexKind.ivfpq:
            codes = index.pq.cp
            codes.min_points_per_centroid, codes.max_points_per_centroid = 1, TRAINED_PER_LIST
            codes.niter = KMEANS_ROUNDS
        logger.info("training %d inverted lists on %d vectors", lists, len(chosen))
        index.train(vectors[chosen])
        made = cls(index, vectors)
        made.extend()
        return made

    @classmethod
    def load(cls, path: Path, vectors: ShardedVectors, *, writable: bool = False) -> InvertedLists:
        """Opens lists, mapped unless vectors will be added; DataError if the file is damaged or has other vectors."""
        faiss = require_faiss()
        try:
            index = faiss.read_index(str(path), 0 if writable else faiss.IO_FLAG_MMAP)
        except RuntimeError:
            raise DataError(f"{path}: cannot be read by FAISS; build the index again") from None
        if index.d != vectors.shape[1]:
            raise DataError(
                f"{path}: the lists have dimension {index.d}; expected {vectors.shape[1]}: build the index again"
            )
        if index.ntotal != len(vectors) and not writable:
            found = f"lists of {index.ntotal:,} vectors; expected {len(vectors):,}"
            raise DataError(f"{path}: {found}: build the index again")
        return cls(index, vectors)

    def extend(self) -> None:
        """Adds the vectors that are not yet in the lists."""
        with counting("indexing", len(self.vectors) - self.index.ntotal, " rows") as progress:
            for start in range(self.index.ntotal, len(self.vectors), ROWS_AT_ONCE):
                block = self.vectors[start : start + ROWS_AT_ONCE]
                self.index.add(block)
                progress(len(block))

    def save(self, path: Path) -> ListsRecord:
        """Measures how many lists to probe, and writes the file; RunError if the disk is full or not writable."""
        probes, measured = self.choose_probes()
        partial = path.with_name(f".{path.name}.partial")
        try:
            require_faiss().write_index(self.index, str(partial))
            partial.replace(path)
        except (RuntimeError, OSError) as error:
            partial.unlink(missing_ok=True)
            raise RunError(f"{path}: cannot be written: {str(error).splitlines()[0]}") from None
        return ListsRecord(path.name, file_sha256(path), self.index.nlist, probes, round(measured, 4))

    def choose_probes(self) -> tuple[int, float]:
        """The smallest power of two of probed lists with enough recall on held-out rows, and that recall."""
        rows = held_out(len(self.vectors))
        queries = self.vectors[rows]
        truth = _others(nearest(queries, self.vectors, RECALL_DEPTH + 1), rows)
        probes, found = 1, self._measured(queries, rows, truth, 1)
        while found < LEAST_RECALL and probes < self.index.nlist:
            probes = min(2 * probes, self.index.nlist)
            found = self._measured(queries, rows, truth, probes)
        if found < LEAST_RECALL:
            logger.warning("recall %.3f with all lists; expected %.2f: consider ivf or exact", found, LEAST_RECALL)
        return probes, found

    def _measured(self, queries: Vectors, rows: Ids, truth: Floats, probes: int) -> float:
        return recall(_others(self.search(queries, RECALL_DEPTH + 1, probes), rows), truth)

    def search(self, queries: Vectors, k: int, probes: int, allowed: Allowed | None = None) -> Neighbors:
        """Neighbours of each query, reranked by the stored vectors; queries that find fewer than k probe all lists."""
        possible = len(self.vectors) if allowed is None else int(allowed.sum())
        k = min(k, possible)
        kept = min(max(RERANKED * k, LEAST_RERANKED), possible)
        found, size = [], max(1, RERANKED_AT_ONCE // kept)
        for start in range(0, len(queries), size):
            block = queries[start : start + size]
            rough = self._candidates(block, kept, k, probes, allowed)
            found.append(rerank(rough, block, self.vectors, k, exact=False))
        return Neighbors.concatenate(found)

    def _candidates(self, queries: Vectors, kept: int, k: int, probes: int, allowed: Allowed | None) -> Candidates:
        scores, ids = self._ask(queries, kept, probes, allowed)
        short = np.flatnonzero((ids >= 0).sum(axis=1) < k)
        if len(short):
            scores[short], ids[short] = self._ask(queries[short], kept, self.index.nlist, allowed)
        rough = np.where(ids < 0, UNSEEN, np.maximum(scores, -1.0)).astype(np.float32)
        return Candidates(rough, np.maximum(ids, 0))

    def _ask(self, queries: Vectors, kept: int, probes: int, allowed: Allowed | None) -> tuple[np.ndarray, Ids]:
        """Approximate scores and row numbers (q, c), with row -1 in empty places."""
        faiss = require_faiss()
        chosen = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        options = faiss.SearchParametersIVF(nprobe=min(probes, self.index.nlist), sel=chosen)
        scores, ids = self.index.search(np.ascontiguousarray(queries), kept, params=options)
        if ids.max() >= len(self.vectors):
            raise DataError(f"the inverted lists have row {ids.max()} of {len(self.vectors):,}; build the index again")
        return scores, ids


def held_out(count: int) -> Ids:
    """Rows to measure recall on; lists are not trained on them if there are enough others."""
    return sample_rows(count, HELD_OUT_ROWS)


def _codes(kind: IndexKind, dimension: int) -> str:
    if kind == IndexKind.ivf:
        return "SQ8"
    parts = next(parts for parts in range(max(1, dimension // CODE_DIMENSION), 0, -1) if dimension % parts == 0)
    return f"PQ{parts}x8np"  # np: no reordering of codes, which takes minutes and only helps other kinds of search


def _others(near: Neighbors, rows: Ids) -> Floats:
    """Scores of the neighbours of rows, without the rows themselves, shape (q, at most RECALL_DEPTH)."""
    depth = near.ids.shape[1] - 1
    own = near.ids == rows[:, None]
    own[~own.any(axis=1), -1] = True  # if ties pushed the row out, drop the last
    others: Floats = near.scores[~own].reshape(len(rows), depth)
    return others
