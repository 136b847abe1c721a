"""The projection of an encoder in closed form: the linear map of its pooled vectors that comes nearest to given ones.

A pretrained encoder put beside a space it was not trained for starts there in seconds instead of at random.
Shapes: n pairs, P dimension of pooled vectors, D dimension of the space.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.pytorch import TorchBackend
from dualmoco.models.encoder import Encoder, is_projection

STRENGTH = 0.01
"""Of the penalty, as a share of the mean squared length of the pooled vectors along a dimension."""


def start_projection(encoder: Encoder, texts: Sequence[str], goals: Vectors, *, lang: str) -> None:
    """Sets the projection of an encoder to the ridge regression from its pooled vectors to given ones.

    Args:
        encoder: Ends in a linear layer and unit length.
        texts: Sentences of its language.
        goals: Vectors (n, D) of their translations.
        lang: Its language, for errors.

    Raises:
        ModelError: The last layer of the encoder is more than a matrix.
        DataError: Fewer pairs than the pooled vectors have dimensions.
    """
    *below, projection, _ = encoder.layers
    if not is_projection(projection) or projection.linear.bias is not None:
        raise ModelError(
            f"{lang}: projection_init ridge of a model whose last layer, a {type(projection).__name__}, is more than a "
            "matrix; expected projection of another dimension than that layer has, or projection_init random"
        )
    if len(texts) < projection.in_features:
        raise DataError(
            f"{lang}: projection_init ridge from {len(texts):,} pairs; expected at least {projection.in_features:,}, "
            "one for each dimension of the pooled vectors: give more pairs, raise ridge_pairs, or use random"
        )
    pooled = TorchBackend(Encoder(below)).encode(texts)  # (n, P)
    with torch.no_grad():
        projection.linear.weight.copy_(torch.from_numpy(ridge_regression(pooled, goals)))


def ridge_regression(inputs: Vectors, goals: Vectors, strength: float = STRENGTH) -> np.ndarray:
    """The matrix W (D, P) for which W x comes nearest to the goals.

    Args:
        inputs: Vectors x (n, P).
        goals: Vectors (n, D).
        strength: Of the penalty on W, as a share of the mean of the inputs' squared length along a dimension.

    Returns:
        The matrix that minimises squared distances plus the penalty, in double precision.
    """
    x, y = inputs.astype(np.float64), goals.astype(np.float64)
    covariance = x.T @ x  # (P, P)
    penalty = strength * np.trace(covariance) / len(covariance)
    solved: np.ndarray = np.linalg.solve(covariance + penalty * np.eye(len(covariance)), x.T @ y)  # (P, D)
    return solved.T
