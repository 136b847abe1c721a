"""Hard negatives: keys of a frozen side that lie close to a pair's own, found once by our own search.

Random negatives are told apart soon; what is left to learn is in sentences that mean nearly the same. Takes the keys of
`keys.py`, gives `onesided.py` rows of pairs. Shapes: n keys, m of a batch, h hard negatives a key.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualmoco.core.progress import counting
from dualmoco.core.storage import new_file
from dualmoco.core.vectors import Ids
from dualmoco.search.neighbors import nearest
from dualmoco.training.keys import FrozenKeys

FILE = "hard-negatives.npy"
SAME_MEANING = 0.9  # cosine of keys from which a sentence may be a translation as well, so no negative
MORE = 16  # neighbours looked at beyond those wanted, for some may be too close
NONE = -1


class HardNegatives:
    """The pairs whose keys are nearest to each pair's own.

    Args:
        keys: Of the frozen side.
        near: Rows of the store (n, h), `NONE` where there are fewer.
    """

    def __init__(self, keys: FrozenKeys, near: Ids) -> None:
        self.lines, self.near = keys.lines, near
        self.pairs = np.empty(len(near), dtype=np.int64)  # a pair of every key
        self.pairs[keys.lines] = np.arange(len(keys.lines))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the pairs that are hard negatives of any pair of a batch (m,), sorted."""
        near = np.unique(self.near[self.lines[rows]])
        return np.sort(self.pairs[near[near != NONE]])


def find_hard_negatives(keys: FrozenKeys, count: int, out: Path) -> None:
    """Searches the neighbours of every key among all keys and writes them into the run folder, unless they are there.

    Args:
        keys: Of the frozen side.
        count: Hard negatives a key, at most.
        out: The run folder.
    """
    if (out / FILE).exists():
        return
    vectors = keys.vectors
    with counting("searching hard negatives", len(vectors), " keys") as progress:
        found = nearest(vectors, vectors, count + MORE, progress=progress)
    unfit = (found.ids == np.arange(len(found.ids))[:, None]) | (found.scores >= SAME_MEANING)  # (n, k)
    order = np.argsort(unfit, axis=1, kind="stable")[:, :count]  # the nearest that fit, then those that do not
    near = np.where(unfit, NONE, found.ids)
    with new_file(out / FILE) as stream:
        np.save(stream, np.take_along_axis(near, order, axis=1), allow_pickle=False)


def open_hard_negatives(keys: FrozenKeys, out: Path) -> HardNegatives:
    """Opens what `find_hard_negatives` wrote."""
    return HardNegatives(keys, np.load(out / FILE, allow_pickle=False))
