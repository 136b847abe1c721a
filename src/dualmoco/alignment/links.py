"""What an alignment is: links between runs of sentences of two texts, in order. Shapes: b links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmoco.core.vectors import Floats, Ids


@dataclass(frozen=True)
class Links:
    """b links in the order of both texts; every sentence of either side is in exactly one of them."""

    src: Ids  # (b, 2) the first source sentence of each link, and the one after its last; from 0
    tgt: Ids  # (b, 2)
    scores: Floats  # (b,) 1 for a usual translation in this document, about 0 for unrelated sentences; NaN on one side
    confidence: Floats  # (b,) between 0 and 1

    def __len__(self) -> int:
        return len(self.src)

    @property
    def is_linked(self) -> np.ndarray:
        """Which have sentences on both sides, shape (b,); the others were left out by the translator, or added."""
        result: np.ndarray = (self.src[:, 1] > self.src[:, 0]) & (self.tgt[:, 1] > self.tgt[:, 0])
        return result

    def take(self, chosen: np.ndarray) -> Links:
        """The links at some places, or those a mask names."""
        return Links(self.src[chosen], self.tgt[chosen], self.scores[chosen], self.confidence[chosen])
