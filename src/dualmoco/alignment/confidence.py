"""How likely a link is right: by how much the path would lose without it, and how alike its sides are.

The weights were fitted by logistic regression to links of generated documents, right or wrong by their gold
(`python -m benchmarks.align_confidence`). Shapes: b links.
"""

from __future__ import annotations

import numpy as np

from dualmoco.core.vectors import Floats

LINKED = (-0.7, 1.1, 3.5)  # constant, for the score, for the margin
ONE_SIDED = (-0.2, 0.0, 4.5)
PLACES = 4


def confidence(scores: Floats, margins: Floats) -> Floats:
    """Probabilities that links are right.

    Args:
        scores: Of the links, shape (b,); NaN for one-sided ones.
        margins: What the path would lose without each, shape (b,); see `path.margins`.

    Returns:
        Numbers between 0 and 1, shape (b,).
    """
    one_sided = np.isnan(scores)
    weights = np.where(one_sided[:, None], ONE_SIDED, LINKED)  # (b, 3)
    known = np.stack([np.ones(len(scores)), np.where(one_sided, 0.0, scores), margins], axis=1)
    odds = np.einsum("bk,bk->b", weights, known)
    return np.asarray(np.round(1 / (1 + np.exp(-odds)), PLACES))
