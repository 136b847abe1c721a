"""Post-processing of vectors before they are compared: whitening, all-but-the-top and BERT-flow.

Each is fitted to vectors (n, D) without labels and then applied to others. Shapes: n sentences, N sentences of a batch,
D dimension, d components, H hidden units.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.progress import counting
from dualmoco.core.vectors import Floats, Vectors, check_vectors

logger = logging.getLogger(__name__)

POSTPROCESSINGS = "whitening, whitening:DIMENSION, all-but-the-top, all-but-the-top:COMPONENTS, flow or flow:STEPS"
FLOW_STEPS = 300
FLOW_BATCH = 256
FLOW_LEARNING_RATE = 1e-3  # learning rate of Adam; decays linearly to zero
FLOW_MAX_GRADIENT = 1.0  # maximum norm of the gradient; the loss is a mean over D
MAX_LOG_SCALE = 1.0  # a layer scales a number by at most e
FLOW_ROWS = 4096  # vectors mapped at once
FLOW_START_ROWS = 4096  # used to initialize the scales of the layers


class Postprocessing(Protocol):
    """A transformation of vectors that is fitted to data."""

    @property
    def name(self) -> str:
        """Name with every setting that changes the result, for signatures."""

    def fit(self, vectors: Vectors) -> None:
        """Fits the transformation to vectors (n, D)."""

    def apply(self, vectors: Vectors) -> Vectors:
        """Transforms vectors (n, D)."""


class Whitening:
    """BERT-whitening of Su et al. (2021): the fitted vectors get zero mean and the identity as covariance.

    Components whose variance is only rounding noise of single precision become zero; they are never scaled up. The
    `dimension` components of largest variance are kept, or all of them if it is None.
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
        """Fits mean and principal components to vectors (n, D); n should be much larger than D."""
        mean, variances, directions, rank = _principal_components(vectors, self.name)
        dimension = self.dimension or len(mean)
        if dimension > len(mean):
            raise DataError(
                f"{self.name}: vectors of dimension {len(mean)}; expected at least {dimension}, or keep fewer"
            )
        if min(dimension, rank) >= len(vectors) - 1:
            logger.warning(
                "%s: fitted to %d vectors of dimension %d, so all their distances are equal; give more, or keep fewer",
                self.name,
                len(vectors),
                len(mean),
            )
        scales = np.zeros(len(mean))  # (D,)
        scales[:rank] = variances[:rank] ** -0.5
        self.mean, self.kernel = mean, (directions * scales)[:, :dimension]

    def apply(self, vectors: Vectors) -> Vectors:
        """Whitens vectors (n, D) to shape (n, D) or (n, dimension); DataError if they cannot be transformed."""
        if self.mean is None or self.kernel is None:
            raise DataError(f"{self.name}: not fitted to any vectors; call fit first")
        whitened: Vectors = (_centred(vectors, self.mean, self.name) @ self.kernel).astype(np.float32)
        return whitened


class AllButTheTop:
    """All-but-the-top of Mu and Viswanath (2018): removes the mean and the strongest principal components."""

    def __init__(self, components: int | None = None) -> None:
        if components is not None and components < 1:
            raise ConfigError(f"all-but-the-top: {components} components; expected at least 1")
        self.components = components
        self.mean: Floats | None = None  # (D,)
        self.removed: Floats | None = None  # (D, d)

    @property
    def name(self) -> str:
        """`all-but-the-top`, with the number of components if one was given."""
        return "all-but-the-top" if self.components is None else f"all-but-the-top:{self.components}"

    def fit(self, vectors: Vectors) -> None:
        """Fits mean and principal components to vectors (n, D)."""
        mean, _, directions, rank = _principal_components(vectors, self.name)
        components = self.components or max(1, len(mean) // 100)
        if components >= len(mean):
            raise DataError(f"{self.name}: vectors of dimension {len(mean)}; expected more than {components}")
        self.mean, self.removed = mean, directions[:, : min(components, rank)]

    def apply(self, vectors: Vectors) -> Vectors:
        """Removes the components from vectors (n, D); DataError if they cannot be transformed."""
        if self.mean is None or self.removed is None:
            raise DataError(f"{self.name}: not fitted to any vectors; call fit first")
        centred = _centred(vectors, self.mean, self.name)
        rest: Vectors = (centred - centred @ self.removed @ self.removed.T).astype(np.float32)
        return rest


def _principal_components(vectors: Vectors, name: str) -> tuple[Floats, Floats, Floats, int]:
    """Mean (D,), descending variances (D,), directions (D, D) in columns, and the rank: more is only rounding noise."""
    checked = check_vectors(vectors, len(vectors), name).astype(np.float64)  # (n, D)
    count, dimension = checked.shape
    if count < 2:
        raise DataError(f"{name}: vectors to fit to: {count}; expected at least 2")
    mean = checked.mean(axis=0)
    centred = checked - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / (count - 1))  # ascending
    rounding = np.finfo(np.float32).eps ** 2 * np.square(checked).sum(axis=1).mean()
    rank = int((variances > dimension * rounding).sum())
    return mean, variances[::-1], directions[:, ::-1], rank


def _centred(vectors: Vectors, mean: Floats, name: str) -> Floats:
    return check_vectors(vectors, len(vectors), name, len(mean)).astype(np.float64) - mean


class Flow:
    """BERT-flow of Li et al. (2020): an invertible network, trained without labels, maps vectors to a Gaussian.

    The network is a Glow without levels, and training maximizes the likelihood of the vectors under a standard
    Gaussian. Unlike theirs, it rotates vectors instead of permuting numbers, and its couplings also scale. The only
    maintained library, zuko, has no data-dependent initialization and takes no random generator, and the code would
    hardly be shorter with it. Training is deterministic by seed and does not touch the global random state. Many
    passes over few sentences overfit; `log_likelihood` of held-out sentences shows when to stop. A step is one batch
    of FLOW_BATCH vectors, and `hidden` is the number of hidden units of the coupling networks.
    """

    def __init__(self, steps: int = FLOW_STEPS, *, blocks: int = 4, hidden: int = 128, seed: int = 0) -> None:
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
        """Trains the network on vectors (n, D)."""
        checked = check_vectors(vectors, len(vectors), "flow")
        if len(checked) < 2 or checked.shape[1] < 2:
            raise DataError(f"flow: vectors of shape {checked.shape}; expected at least 2 sentences and dimension 2")
        generator = torch.Generator().manual_seed(self.seed)
        network = FlowNetwork(checked.shape[1], self.blocks, self.hidden, generator)
        data = torch.tensor(checked)  # (n, D)
        network.start_from(data[torch.randperm(len(data), generator=generator)[:FLOW_START_ROWS]])
        _train_flow(network, data, self.steps, generator)
        self.network = network

    def apply(self, vectors: Vectors) -> Vectors:
        """Maps vectors (n, D) to latent vectors (n, D); DataError if they cannot be transformed."""
        latents: Vectors = self._map(lambda network, rows: network(rows)[0], vectors)
        return latents

    def inverse(self, latents: Vectors) -> Vectors:
        """Maps latent vectors (n, D) back to vectors (n, D)."""
        vectors: Vectors = self._map(lambda network, rows: network.inverse(rows), latents)
        return vectors

    def log_likelihood(self, vectors: Vectors) -> np.ndarray:
        """Natural logarithm of the density at each vector (n, D), shape (n,)."""
        densities: np.ndarray = self._map(lambda network, rows: network.log_likelihood(rows), vectors)
        return densities

    @torch.no_grad()
    def _map(self, function: Callable[[FlowNetwork, Tensor], Tensor], vectors: Vectors) -> Any:
        if self.network is None:
            raise DataError("flow: not fitted to any vectors; call fit first")
        checked = torch.tensor(check_vectors(vectors, len(vectors), "flow", self.network.dimension))
        return torch.cat([function(self.network, rows) for rows in checked.split(FLOW_ROWS)]).numpy()


class FlowNetwork(nn.Module):
    """Blocks in sequence; `forward` returns latent vectors (N, D) and log-determinants (N,)."""

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
        """Sets the scaling of every block so that its outputs for these vectors (N, D) have mean 0 and variance 1."""
        for block in self.blocks:
            block.standardize(vectors)
            vectors, _ = block(vectors)


class _Block(nn.Module):
    """A scaling per dimension, a fixed random rotation, and a coupling of the two halves of the vector."""

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

    def standardize(self, vectors: Tensor) -> None:
        """Sets mean and deviation from vectors (N, D); columns that are constant up to rounding keep their scale."""
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


def _train_flow(network: FlowNetwork, data: Tensor, steps: int, generator: torch.Generator) -> None:
    """Maximizes the mean log-likelihood of the data (n, D)."""
    optimizer = torch.optim.Adam(network.parameters(), lr=FLOW_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    with counting("fitting flow", steps, " steps") as progress:
        for rows in _batches(len(data), steps, generator):
            loss = -network.log_likelihood(data[rows]).mean() / network.dimension
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), FLOW_MAX_GRADIENT)
            optimizer.step()
            schedule.step()
            progress(1)


def _batches(count: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields row numbers of `steps` batches; every row is seen once before any is seen again."""
    size = min(FLOW_BATCH, count)
    waiting = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(waiting) < size:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator)])
        yield waiting[:size]
        waiting = waiting[size:]


def parse_postprocessing(text: str) -> Postprocessing:
    """An unfitted post-processing by name, such as `whitening:256` or `flow:500`; ConfigError if it is unknown."""
    makers: dict[str, Callable[..., Postprocessing]]
    makers = {"whitening": Whitening, "all-but-the-top": AllButTheTop, "flow": Flow}
    asked = re.fullmatch("([a-z-]+)(?::([1-9][0-9]{0,8}))?", text)
    if not asked or asked[1] not in makers:
        raise ConfigError(f"post-processing {text!r}; expected {POSTPROCESSINGS}")
    make = makers[asked[1]]
    return make(int(asked[2])) if asked[2] else make()
