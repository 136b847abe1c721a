"""What all approximate search has in common: how many inverted lists there are, what they are trained on, their recall.

Two kinds of lists use it, for a reason. `probing.py` serves mining: all rows of one side are queries at once, on disk,
in blocks that any machine can do, so a list and its visitors are one matrix product. `inverted.py` serves an index:
queries come one by one, and FAISS keeps compressed lists in one file that is mapped. Shapes: n rows, q queries, k
neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmoco.core.errors import ConfigError
from dualmoco.core.vectors import Floats, Ids, VectorRows
from dualmoco.search.neighbors import Neighbors, nearest

TRAINED_PER_LIST = 40  # rows that a list's centroid is trained on
KMEANS_ROUNDS = 10  # of k-means
ROWS_AT_ONCE = 65_536  # assigned to lists
RECALL_ROWS = 1000  # on which recall is measured


def require_faiss() -> Any:
    """FAISS, if it is installed; ConfigError if not."""
    try:
        import faiss
    except ModuleNotFoundError:
        raise ConfigError("approximate search needs faiss; pip install 'dualmoco[faiss]'") from None
    return faiss


def default_lists(rows: int, per_root: int) -> int:
    """How many inverted lists suit a number of rows.

    Args:
        rows: How many vectors the lists hold.
        per_root: Lists for each square root of the rows: more are shorter, and take longer to choose from.

    Returns:
        A power of two near that, or fewer if the rows are too few to train so many.
    """
    wanted = 1 << round(float(np.log2(max(1.0, per_root * rows**0.5))))
    return int(max(1, min(wanted, rows // TRAINED_PER_LIST)))


def sample_rows(count: int, size: int, *, without: Ids | None = None, seed: int = 0) -> Ids:
    """Some rows drawn at random, ascending.

    Args:
        count: How many rows there are.
        size: How many are wanted; all if there are fewer.
        without: Rows that are not drawn.
        seed: The same rows for the same seed.

    Returns:
        Row numbers.
    """
    rows: int | Ids = count if without is None else np.setdiff1d(np.arange(count), without)
    possible = count if isinstance(rows, int) else len(rows)
    drawn: Ids = np.random.default_rng(seed).choice(rows, size=min(size, possible), replace=False)
    return np.sort(drawn)


def sampled_recall(found: Neighbors, queries: VectorRows, keys: VectorRows) -> float:
    """The recall of approximate neighbours of all queries, by exact search of a sample of them.

    Args:
        found: The k neighbours of every query, scored exactly.
        queries: Unit vectors (q, D).
        keys: Unit vectors (n, D).

    Returns:
        The share of the true k nearest that were found.
    """
    rows = sample_rows(len(queries), RECALL_ROWS)
    return recall(found.scores[rows], nearest(queries[rows], keys, found.ids.shape[1]).scores)


def recall(found: Floats, truth: Floats) -> float:
    """The share of the true nearest that were found; of equally near ones any counts.

    Args:
        found: Cosines of what was found, shape (q, k).
        truth: Cosines of the true nearest, descending, shape (q, k).

    Returns:
        From 0 to 1; 1 if there is nothing to find.
    """
    return float((found >= truth[:, -1:]).mean()) if truth.size else 1.0
