"""Inverted lists of FAISS over the vectors of an index: built, extended, searched; found rows are reranked exactly.

How many lists must be probed is measured, not guessed. Why these are not the lists of mining is said in
`approximate.py`. Shapes: q queries, n rows, D dimension, k neighbours, c
candidates.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
CODES = 256  # of one product code, each needs a training vector
CODE_DIMENSION = 4  # numbers that share a product code, at least
CANDIDATES = 10  # reranked for each neighbour wanted
LEAST_CANDIDATES = 100
RERANKED_AT_ONCE = 65_536  # queries times candidates
HELD_OUT = 500  # rows on which recall is measured
DEPTH = 10  # neighbours of each that are looked for
LEAST_RECALL = 0.95
Allowed = np.ndarray[tuple[int], np.dtype[np.bool_]]


class InvertedLists:
    """Lists of FAISS beside the vectors they were made of."""

    def __init__(self, index: Any, vectors: ShardedVectors) -> None:
        self.index, self.vectors = index, vectors

    @classmethod
    def train(cls, vectors: ShardedVectors, kind: IndexKind) -> InvertedLists:
        """Makes lists of all vectors, trained on some of them.

        Args:
            vectors: Unit vectors (n, D).
            kind: Of the codes in the lists.

        Returns:
            The lists.

        Raises:
            ConfigError: FAISS is not installed, or too few vectors for product codes.
        """
        faiss = require_faiss()
        count, dimension = vectors.shape
        if kind == IndexKind.ivfpq and count < CODES:
            raise ConfigError(f"ivfpq with {count:,} sentences; expected at least {CODES}: use exact")
        lists = default_lists(count, INDEX_LISTS_PER_ROOT)
        index = faiss.index_factory(dimension, f"IVF{lists},{_codes(kind, dimension)}", faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1
        wanted = max(TRAINED_PER_LIST * lists, TRAINED_PER_LIST * CODES)
        spared = held_out(count) if count > 2 * HELD_OUT else None
        chosen = sample_rows(count, wanted, without=spared, seed=1)
        if kind == IndexKind.ivfpq:
            codes = index.pq.cp
            codes.min_points_per_centroid, codes.max_points_per_centroid, codes.niter = (
                1,
                TRAINED_PER_LIST,
                KMEANS_ROUNDS,
            )
        logger.info("training %d inverted lists on %d vectors", lists, len(chosen))
        index.train(vectors[chosen])
        made = cls(index, vectors)
        made.extend()
        return made

    @classmethod
    def load(cls, path: Path, vectors: ShardedVectors, *, writable: bool = False) -> InvertedLists:
        """Opens lists.

        Args:
            path: Their file.
            vectors: What they are of.
            writable: Whether more will be added; if not, the file is mapped, not read.

        Returns:
            The lists.

        Raises:
            ConfigError: FAISS is not installed.
            DataError: Not a file of FAISS, or of other vectors.
        """
        faiss = require_faiss()
        try:
            index = faiss.read_index(str(path), 0 if writable else faiss.IO_FLAG_MMAP)
        except RuntimeError:
            raise DataError(f"{path}: cannot be read as lists of FAISS; build the index again") from None
        if index.d != vectors.shape[1]:
            raise DataError(f"{path}: lists of dimension {index.d}; expected {vectors.shape[1]}: build the index again")
        return cls(index, vectors)

    def extend(self) -> None:
        """Adds the vectors that are not in the lists yet."""
        with counting("indexing", len(self.vectors) - self.index.ntotal, " rows") as progress:
            for start in range(self.index.ntotal, len(self.vectors), ROWS_AT_ONCE):
                block = self.vectors[start : start + ROWS_AT_ONCE]
                self.index.add(block)
                progress(len(block))

    def save(self, path: Path) -> ListsRecord:
        """Measures how many lists must be probed, and writes the file; RunError if it cannot be written."""
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
        """The least power of two of lists that finds enough of the true neighbours of held-out rows.

        Returns:
            How many lists, and the recall measured: share of the DEPTH nearest, itself aside; of equal ones any counts.
        """
        rows = held_out(len(self.vectors))
        queries = self.vectors[rows]
        truth = _others(nearest(queries, self.vectors, DEPTH + 1), rows)
        probes, found = 1, self._measured(queries, rows, truth, 1)
        while found < LEAST_RECALL and probes < self.index.nlist:
            probes = min(2 * probes, self.index.nlist)
            found = self._measured(queries, rows, truth, probes)
        if found < LEAST_RECALL:
            logger.warning(
                "recall %.3f with all lists; expected %.2f: use ivf or exact if that is too low", found, LEAST_RECALL
            )
        return probes, found

    def _measured(self, queries: Vectors, rows: Ids, truth: Floats, probes: int) -> float:
        return recall(_others(self.search(queries, DEPTH + 1, probes), rows), truth)

    def search(self, queries: Vectors, k: int, probes: int, allowed: Allowed | None = None) -> Neighbors:
        """Neighbours of each query, reranked by the stored vectors.

        Args:
            queries: Unit vectors (q, D).
            k: How many; fewer if fewer rows are allowed.
            probes: Lists probed; all of them for a query that finds too few.
            allowed: Which rows may be found, shape (n,); all if None.

        Returns:
            The neighbours, nearest first.
        """
        possible = len(self.vectors) if allowed is None else int(allowed.sum())
        k = min(k, possible)
        kept = min(max(CANDIDATES * k, LEAST_CANDIDATES), possible)
        found, size = [], max(1, RERANKED_AT_ONCE // kept)
        for start in range(0, len(queries), size):
            block = queries[start : start + size]
            rough = self._candidates(block, kept, k, probes, allowed)
            found.append(rerank(rough, block, self.vectors, k, exact=False))
        return Neighbors(np.concatenate([near.ids for near in found]), np.concatenate([near.scores for near in found]))

    def _candidates(self, queries: Vectors, kept: int, k: int, probes: int, allowed: Allowed | None) -> Candidates:
        scores, ids = self._ask(queries, kept, probes, allowed)
        short = np.flatnonzero((ids >= 0).sum(axis=1) < k)
        if len(short):
            scores[short], ids[short] = self._ask(queries[short], kept, self.index.nlist, allowed)
        rough = np.where(ids < 0, UNSEEN, np.maximum(scores, -1.0)).astype(np.float32)
        return Candidates(torch.from_numpy(rough), torch.from_numpy(np.maximum(ids, 0)))

    def _ask(self, queries: Vectors, kept: int, probes: int, allowed: Allowed | None) -> tuple[np.ndarray, Ids]:
        """Rough scores and row numbers (q, c); row -1 where there is none."""
        faiss = require_faiss()
        chosen = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        options = faiss.SearchParametersIVF(nprobe=min(probes, self.index.nlist), sel=chosen)
        scores, ids = self.index.search(np.ascontiguousarray(queries), kept, params=options)
        return scores, ids


def held_out(count: int) -> Ids:
    """Rows on which recall is measured and lists are not trained if others suffice, ascending."""
    return sample_rows(count, HELD_OUT)


def _codes(kind: IndexKind, dimension: int) -> str:
    if kind == IndexKind.ivf:
        return "SQ8"
    parts = next(parts for parts in range(max(1, dimension // CODE_DIMENSION), 0, -1) if dimension % parts == 0)
    return f"PQ{parts}x8np"  # np: codes in no special order, which takes minutes to find and serves other searches


def _others(near: Neighbors, rows: Ids) -> Floats:
    """Scores (q, at most DEPTH) of the neighbours of some rows that are not the rows themselves."""
    depth = near.ids.shape[1] - 1
    own = near.ids == rows[:, None]
    own[~own.any(axis=1), -1] = True  # equal ones came before it
    others: Floats = near.scores[~own].reshape(len(rows), depth)
    return others
