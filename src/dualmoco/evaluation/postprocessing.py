"""BERT-flow: sentence vectors mapped to a Gaussian by an invertible network, trained without labels.

Takes vectors (n, D), gives vectors (n, D). Follows Li et al. (2020): the network is a Glow without its levels, and
training makes the vectors likely under a standard Gaussian. Unlike theirs, the network turns vectors where they permute
numbers, and its couplings also scale. Of the libraries only zuko is kept up; it has neither layers that start from the
data nor first weights from a generator of one's own, and with those written here the code is hardly shorter.
Shapes: n sentences, N sentences of a batch, D dimension, H hidden units.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from tqdm import tqdm

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.vectors import Floats, Vectors, check_vectors

STEPS = 300
BATCH = 256
RATE = 1e-3  # Adam's, decays linearly to zero
MAX_GRADIENT = 1.0  # norm; the loss is a mean over D
MAX_LOG_SCALE = 1.0  # a layer stretches or shrinks a number by at most e
ROWS = 4096  # mapped at once
START_ROWS = 4096  # from which the layers' first scales are measured


class Flow:
    """A post-processing that maps vectors to where they are Gaussian.

    Training is deterministic by seed and leaves the global random state alone. Many passes over few sentences learn
    them by heart: `log_likelihood` of sentences held out shows when to stop.

    Args:
        steps: Batches of 256 to train on.
        blocks: Invertible layers, each a scaling, a rotation and a coupling.
        hidden: Hidden units of the coupling networks.
        seed: Of the rotations, the first weights and the order of the batches.

    Raises:
        ConfigError: A number below one.
    """

    def __init__(self, steps: int = STEPS, *, blocks: int = 4, hidden: int = 128, seed: int = 0) -> None:
        for setting, value in {"steps": steps, "blocks": blocks, "hidden": hidden}.items():
            if value < 1:
                raise ConfigError(f"flow: {setting} {value}; expected at least 1")
        self.steps, self.blocks, self.hidden, self.seed = steps, blocks, hidden, seed
        self.network: FlowNetwork | None = None

    @property
    def name(self) -> str:
        """The post-processing with its settings, for signatures."""
        return f"flow:{self.steps},blocks={self.blocks},hidden={self.hidden},seed={self.seed}"

    def fit(self, vectors: Vectors) -> None:
        """Trains the network on vectors (n, D).

        Raises:
            DataError: Fewer than two vectors, vectors of dimension one, or values that are not finite numbers.
        """
        checked = check_vectors(vectors, len(vectors), "flow")
        if len(checked) < 2 or checked.shape[1] < 2:
            raise DataError(f"flow: vectors of shape {checked.shape}; expected at least 2 sentences and dimension 2")
        generator = torch.Generator().manual_seed(self.seed)
        network = FlowNetwork(checked.shape[1], self.blocks, self.hidden, generator)
        data = torch.tensor(checked)  # (n, D)
        network.start_from(data[torch.randperm(len(data), generator=generator)[:START_ROWS]])
        _train(network, data, self.steps, generator)
        self.network = network

    def apply(self, vectors: Vectors) -> Vectors:
        """Maps vectors to the Gaussian.

        Args:
            vectors: Shape (n, D).

        Returns:
            Latent vectors, shape (n, D).

        Raises:
            DataError: Not fitted yet, vectors of another dimension, or values that are not finite numbers.
        """
        latents: Vectors = self._map(lambda network, rows: network(rows)[0], vectors)
        return latents

    def inverse(self, latents: Vectors) -> Vectors:
        """Maps latent vectors (n, D) back; arguments and errors as in `apply`."""
        vectors: Vectors = self._map(lambda network, rows: network.inverse(rows), latents)
        return vectors

    def log_likelihood(self, vectors: Vectors) -> np.ndarray:
        """Natural logarithm of the density at each vector (n, D), shape (n,); errors as in `apply`."""
        densities: np.ndarray = self._map(lambda network, rows: network.log_likelihood(rows), vectors)
        return densities

    @torch.no_grad()
    def _map(self, function: Callable[[FlowNetwork, Tensor], Tensor], vectors: Vectors) -> Any:
        if self.network is None:
            raise DataError("flow: not fitted to any vectors; call fit first")
        checked = torch.tensor(check_vectors(vectors, len(vectors), "flow", self.network.dimension))
        return torch.cat([function(self.network, rows) for rows in checked.split(ROWS)]).numpy()


class FlowNetwork(nn.Module):
    """Blocks one after the other; `forward` gives latent vectors (N, D) and log-determinants (N,)."""

    def __init__(self, dimension: int, blocks: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.dimension = dimension
        self.blocks: Any = nn.ModuleList(_Block(dimension, hidden, generator) for _ in range(blocks))

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Maps vectors (N, D) to latent vectors (N, D) and the log-determinants of the Jacobian (N,)."""
        total = vectors.new_zeros(len(vectors))
        for block in self.blocks:
            vectors, log_det = block(vectors)
            total = total + log_det
        return vectors, total

    def inverse(self, latents: Tensor) -> Tensor:
        """Maps latent vectors (N, D) back to vectors (N, D)."""
        for block in reversed(self.blocks):
            latents = block.inverse(latents)
        return latents

    def log_likelihood(self, vectors: Tensor) -> Tensor:
        """Log-density of vectors (N, D) when their latent vectors are standard Gaussian, shape (N,)."""
        latents, log_det = self(vectors)
        density: Tensor = log_det - (latents.square().sum(dim=1) + self.dimension * math.log(2 * math.pi)) / 2
        return density

    @torch.no_grad()
    def start_from(self, vectors: Tensor) -> None:
        """Sets every block's scaling so that these vectors (N, D) come out of it with mean 0 and variance 1."""
        for block in self.blocks:
            block.standardise(vectors)
            vectors, _ = block(vectors)


class _Block(nn.Module):
    """A scaling of each number, a fixed random rotation, and a coupling: one half is moved by what the other says."""

    rotation: Tensor  # (D, D)
    mean: Tensor  # (D,)
    log_deviation: Tensor  # (D,)

    def __init__(self, dimension: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        kept, moved = dimension // 2, dimension - dimension // 2
        self.halves = [kept, moved]
        gaussian = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        self.register_buffer("rotation", torch.linalg.qr(gaussian).Q.float())
        self.register_buffer("mean", torch.zeros(dimension))
        self.register_buffer("log_deviation", torch.zeros(dimension))
        self.shift = nn.Parameter(torch.zeros(dimension))  # (D,)
        self.stretch = nn.Parameter(torch.zeros(dimension))  # (D,)
        self.inward = nn.Parameter(torch.randn(hidden, kept, generator=generator) / math.sqrt(kept))
        self.inward_bias = nn.Parameter(torch.zeros(hidden))
        self.outward = nn.Parameter(torch.zeros(2 * moved, hidden))  # zeros: the coupling starts as the identity
        self.outward_bias = nn.Parameter(torch.zeros(2 * moved))

    def standardise(self, vectors: Tensor) -> None:
        """Takes mean and deviation of vectors (N, D); a column that is constant but for rounding keeps its scale."""
        deviation, mean = torch.std_mean(vectors.double(), dim=0, correction=0)
        varies = deviation > torch.finfo(torch.float32).eps * vectors.double().square().mean(dim=0).sqrt()
        self.mean.copy_(mean)
        self.log_deviation.copy_(torch.where(varies, deviation, 1.0).log())

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Maps vectors (N, D) to vectors (N, D) and log-determinants (N,)."""
        log_scale = self._log_scale()
        scaled = (vectors - self.mean) * log_scale.exp() + self.shift
        kept, moved = (scaled @ self.rotation).split(self.halves, dim=1)
        shift, stretch = self._coupling(kept)
        rejoined = torch.cat([kept, moved * stretch.exp() + shift], dim=1)
        return rejoined, log_scale.sum() + stretch.sum(dim=1)

    def inverse(self, latents: Tensor) -> Tensor:
        """Undoes `forward`."""
        kept, moved = latents.split(self.halves, dim=1)
        shift, stretch = self._coupling(kept)
        scaled = torch.cat([kept, (moved - shift) * (-stretch).exp()], dim=1) @ self.rotation.T
        return (scaled - self.shift) * (-self._log_scale()).exp() + self.mean

    def _log_scale(self) -> Tensor:
        return _bounded(self.stretch) - self.log_deviation  # (D,)

    def _coupling(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        hidden = linear(kept, self.inward, self.inward_bias).relu()  # (N, H)
        shift, stretch = linear(hidden, self.outward, self.outward_bias).chunk(2, dim=1)
        return shift, _bounded(stretch)


def _bounded(log_scale: Tensor) -> Tensor:
    return MAX_LOG_SCALE * torch.tanh(log_scale / MAX_LOG_SCALE)


def _train(network: FlowNetwork, data: Tensor, steps: int, generator: torch.Generator) -> None:
    """Maximises the mean log-likelihood of the data (n, D)."""
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    with tqdm(total=steps, desc="fitting flow", unit=" steps", delay=2, disable=None) as bar:
        for rows in _batches(len(data), steps, generator):
            loss = -network.log_likelihood(data[rows]).mean() / network.dimension
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
            optimizer.step()
            schedule.step()
            bar.update()


def _batches(count: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields row numbers of `steps` batches; every row is seen once before any is seen again."""
    size = min(BATCH, count)
    waiting = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(waiting) < size:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator)])
        yield waiting[:size]
        waiting = waiting[size:]


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
                self.name,
                len(vectors),
                len(found.mean),
            )
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
