"""Post-processing of sentence vectors, fitted without labels: baselines beside trained encoders.

Takes vectors (n, D) of any encoder, gives processed ones to compare. Shapes: n sentences, D dimension, d components.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.vectors import Floats, Vectors, check_vectors
from dualmoco.evaluation.flow import Flow

CHOICES = "whitening, whitening:DIMENSION, all-but-the-top, all-but-the-top:COMPONENTS, flow or flow:STEPS"
logger = logging.getLogger(__name__)


class Postprocessing(Protocol):
    """Something done to vectors after encoding."""

    @property
    def name(self) -> str:
        """What is done, with every setting that changes the result, for signatures."""

    def fit(self, vectors: Vectors) -> None:
        """Learns from vectors (n, D) what `apply` does."""

    def apply(self, vectors: Vectors) -> Vectors:
        """Maps vectors (n, D), those it was fitted to or others."""


class Whitening:
    """BERT-whitening of Su et al. (2021): the fitted vectors get mean zero and the identity as covariance.

    A component without variance, beyond the rounding of single precision, becomes zero: it is never scaled up.

    Args:
        dimension: How many components to keep, those of the largest variance; all of them if None.

    Raises:
        ConfigError: A dimension below one.
    """

    def __init__(self, dimension: int | None = None) -> None:
        if dimension is not None and dimension < 1:
            raise ConfigError(f"whitening: dimension {dimension}; expected at least 1")
        self.dimension = dimension
        self.mean: Floats | None = None  # (D,)
        self.kernel: Floats | None = None  # (D, d)

    @property
    def name(self) -> str:
        """`whitening`, with the dimension if one was given."""
        return "whitening" if self.dimension is None else f"whitening:{self.dimension}"

    def fit(self, vectors: Vectors) -> None:
        """Learns mean and principal components of vectors (n, D).

        Args:
            vectors: Many more than D, or else the fitted vectors end up at nearly equal distances.

        Raises:
            DataError: Fewer than two vectors, or a dimension above D.
        """
        found = _principal_components(vectors, self.name)
        dimension = self.dimension or len(found.mean)
        if dimension > len(found.mean):
            raise DataError(
                f"{self.name}: vectors of dimension {len(found.mean)}; expected at least {dimension}, or keep fewer"
            )
        if min(dimension, found.rank) >= len(vectors) - 1:
            logger.warning(
                "%s: fitted to %d vectors of dimension %d, so all their distances are equal; give more, or keep fewer",
                self.name, len(vectors), len(found.mean),
            )  # fmt: skip
        scales = np.zeros(len(found.mean))  # (D,)
        scales[: found.rank] = found.variances[: found.rank] ** -0.5
        self.mean, self.kernel = found.mean, (found.directions * scales)[:, :dimension]

    def apply(self, vectors: Vectors) -> Vectors:
        """Whitens vectors.

        Args:
            vectors: Shape (n, D).

        Returns:
            Components by descending variance before whitening, shape (n, D) or (n, dimension).

        Raises:
            DataError: Not fitted yet, or vectors of another dimension.
        """
        if self.mean is None or self.kernel is None:
            raise DataError(f"{self.name}: not fitted to any vectors; call fit first")
        whitened: Vectors = (_centred(vectors, self.mean, self.name) @ self.kernel).astype(np.float32)
        return whitened


class AllButTheTop:
    """All-but-the-top of Mu and Viswanath (2018): vectors without their mean and their strongest directions.

    Args:
        components: How many directions to remove; D // 100, but at least one, if None.

    Raises:
        ConfigError: A number below one.
    """

    def __init__(self, components: int | None = None) -> None:
        if components is not None and components < 1:
            raise ConfigError(f"all-but-the-top: {components} components; expected at least 1")
        self.components = components
        self.mean: Floats | None = None  # (D,)
        self.removed: Floats | None = None  # (D, d)

    @property
    def name(self) -> str:
        """`all-but-the-top`, with the number of directions if one was given; it is D // 100 otherwise."""
        return "all-but-the-top" if self.components is None else f"all-but-the-top:{self.components}"

    def fit(self, vectors: Vectors) -> None:
        """Learns mean and strongest directions of vectors (n, D).

        Raises:
            DataError: Fewer than two vectors, or no direction would be left.
        """
        found = _principal_components(vectors, self.name)
        components = self.components or max(1, len(found.mean) // 100)
        if components >= len(found.mean):
            raise DataError(f"{self.name}: vectors of dimension {len(found.mean)}; expected more than {components}")
        self.mean, self.removed = found.mean, found.directions[:, : min(components, found.rank)]

    def apply(self, vectors: Vectors) -> Vectors:
        """Removes mean and strongest directions.

        Args:
            vectors: Shape (n, D).

        Returns:
            Vectors of the same shape.

        Raises:
            DataError: Not fitted yet, or vectors of another dimension.
        """
        if self.mean is None or self.removed is None:
            raise DataError(f"{self.name}: not fitted to any vectors; call fit first")
        centred = _centred(vectors, self.mean, self.name)
        rest: Vectors = (centred - centred @ self.removed @ self.removed.T).astype(np.float32)
        return rest


def parse_postprocessing(text: str) -> Postprocessing:
    """The post-processing that a user names.

    Args:
        text: Such as `whitening`, `whitening:256`, `all-but-the-top:3` or `flow:500`.

    Returns:
        The post-processing, not fitted yet.

    Raises:
        ConfigError: Another name, or a setting that is not a whole number above zero.
    """
    makers: dict[str, Callable[..., Postprocessing]]
    makers = {"whitening": Whitening, "all-but-the-top": AllButTheTop, "flow": Flow}
    asked = re.fullmatch("([a-z-]+)(?::([1-9][0-9]{0,8}))?", text)
    if not asked or asked[1] not in makers:
        raise ConfigError(f"post-processing {text!r}; expected {CHOICES}")
    make = makers[asked[1]]
    return make(int(asked[2])) if asked[2] else make()


@dataclass(frozen=True)
class _PrincipalComponents:
    """Directions of descending variance; those from `rank` on have none beyond rounding."""

    mean: Floats  # (D,)
    variances: Floats  # (D,)
    directions: Floats  # (D, D), one a column
    rank: int


def _principal_components(vectors: Vectors, name: str) -> _PrincipalComponents:
    checked = check_vectors(vectors, len(vectors), name).astype(np.float64)  # (n, D)
    count, dimension = checked.shape
    if count < 2:
        raise DataError(f"{name}: vectors to fit to: {count}; expected at least 2")
    mean = checked.mean(axis=0)
    centred = checked - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / (count - 1))  # ascending
    rounding = np.finfo(np.float32).eps ** 2 * np.square(checked).sum(axis=1).mean()
    rank = int((variances > dimension * rounding).sum())
    return _PrincipalComponents(mean, variances[::-1], directions[:, ::-1], rank)


def _centred(vectors: Vectors, mean: Floats, name: str) -> Floats:
    return check_vectors(vectors, len(vectors), name, len(mean)).astype(np.float64) - mean
