"""Estimates how many mined pairs are right from the distribution of their scores.

The scores of a mining job are a mixture of two distributions. Scores of wrong pairs follow a skewed logistic
distribution, whose tail is exponential. Scores of right pairs have the distribution of known right pairs, shifted and
scaled, because texts differ in how freely they are translated. Both are fitted to the scores, and known pairs count as
further observations. Shapes: p pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dualmoco.core.stats import percentile_interval
from dualmoco.core.vectors import Floats

FEWEST_SCORES = 200  # scores of a job needed for an estimate without known pairs
FEWEST_KNOWN = 10  # known pairs needed of each kind
SCORE_BINS = 400
KNOWN_WEIGHT = 450  # observations that the known pairs of each kind count as
KERNEL_WIDTH = 0.35  # grid of the density of right pairs, in standard deviations
QUARTILE_WIDTH = 2.2  # distance between the quartiles of a logistic distribution of width 1
PRECISION_RESAMPLES = 40
SEARCH_STEPS = 600
SHARES = (-4.0, 0.0, 3.0)  # log-odds of right pairs that the search starts from
STANDARD_GRID = np.linspace(-8, 8, 1601)


@dataclass(frozen=True)
class KnownScores:
    """Scores of pairs that are known to be right, and of pairs that are known to be wrong."""

    right: Floats
    wrong: Floats

    @cached_property
    def log_density(self) -> Floats:
        """Logarithm of the density of right pairs, standardized, at STANDARD_GRID."""
        standard = (self.right - self.right.mean()) / self.right.std()
        kernels = np.exp(-0.5 * ((STANDARD_GRID[:, None] - standard) / KERNEL_WIDTH) ** 2)
        density: Floats = np.log(kernels.mean(axis=1) / (KERNEL_WIDTH * np.sqrt(2 * np.pi)) + 1e-12)
        return density

    @property
    def is_enough(self) -> bool:
        """Whether there are enough scores of each kind, and not all the same."""
        return all(len(side) >= FEWEST_KNOWN and side.std() > 0 for side in (self.right, self.wrong))


@dataclass(frozen=True)
class ScoreMixture:
    """Distributions of the scores of right and wrong pairs."""

    known: KnownScores
    center: float  # wrong pairs: skewed logistic distribution
    width: float
    skew: float  # logarithm of the exponent; 0 for the logistic distribution
    mean: float  # right pairs
    deviation: float
    share: float  # log-odds of a right pair

    def log_wrong(self, scores: Floats) -> Floats:
        """Log-density of wrong pairs (p,)."""
        standard = (scores - self.center) / self.width
        tails = (np.exp(self.skew) + 1) * np.logaddexp(0, -standard)
        return np.asarray(self.skew - np.log(self.width) - standard - tails)

    def log_right(self, scores: Floats) -> Floats:
        """Log-density of right pairs (p,)."""
        standard = (scores - self.mean) / self.deviation
        density = np.interp(standard, STANDARD_GRID, self.known.log_density, left=-40.0, right=-40.0)
        return np.asarray(density - np.log(self.deviation))

    def log_odds(self, scores: Floats) -> Floats:
        """Log-odds of being right (p,); below the mode of wrong pairs, where both densities vanish, no pair is."""
        mode = self.center + self.width * self.skew
        return np.where(scores < mode, -50.0, self.share + self.log_right(scores) - self.log_wrong(scores))

    def probabilities(self, scores: Floats) -> Floats:
        """Probability that each pair is right (p,), for scores in descending order; it never rises along them."""
        odds = np.maximum.accumulate(self.log_odds(scores)[::-1])[::-1]
        return np.asarray(1 / (1 + np.exp(-np.clip(odds, -50, 50))))


def fit_mixture(scores: Floats, known: KnownScores) -> ScoreMixture:
    """Fits the distributions of right and wrong pairs to the scores of a job by maximum likelihood."""
    places, counts = _binned(scores, known)
    fits = [_fit(places, counts, known, np.array([0, 0, 0.3, 0, 0, share])) for share in SHARES]
    return _mixture(min(fits, key=lambda fit: fit[1])[0], known)


def precision_interval(
    scores: Floats, known: KnownScores, mixture: ScoreMixture, accepted: int, scale: float = 1.0, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the precision of the first `accepted` of the scores in descending order, by resampling.

    `scale` is the factor that the probabilities were corrected by.
    """
    places, counts = _binned(scores, known)
    generator = np.random.default_rng(seed)
    start, drawn = _parameters(mixture), []
    for _ in range(PRECISION_RESAMPLES):
        parameters, _ = _fit(places, generator.poisson(counts).astype(np.float64), known, start)
        right = scale * _mixture(parameters, known).probabilities(scores[:accepted]).mean()
        drawn.append(generator.binomial(accepted, min(1.0, right)) / accepted)
    return percentile_interval(np.array(drawn))


def _binned(scores: Floats, known: KnownScores) -> tuple[Floats, Floats]:
    """Centres of the bins that contain scores, and the number of scores in each."""
    least, most = min(scores.min(), known.wrong.min()), max(scores.max(), known.right.max())
    counts, edges = np.histogram(scores, SCORE_BINS, (least, most))
    used = counts > 0
    return ((edges[1:] + edges[:-1]) / 2)[used], counts[used].astype(np.float64)


def _mixture(parameters: Floats, known: KnownScores) -> ScoreMixture:
    """A mixture by parameters relative to the known scores."""
    first, middle, third = np.quantile(known.wrong, [0.25, 0.5, 0.75])
    center, width, skew, mean, deviation, share = parameters.tolist()
    return ScoreMixture(
        known,
        middle + center * (third - first),
        (third - first) / QUARTILE_WIDTH * np.exp(width),
        skew,
        known.right.mean() + mean * known.right.std(),
        known.right.std() * np.exp(deviation),
        share,
    )


def _parameters(mixture: ScoreMixture) -> Floats:
    """The parameters of a mixture, as input of `_mixture`."""
    known = mixture.known
    first, middle, third = np.quantile(known.wrong, [0.25, 0.5, 0.75])
    return np.array(
        [
            (mixture.center - middle) / (third - first),
            np.log(mixture.width * QUARTILE_WIDTH / (third - first)),
            mixture.skew,
            (mixture.mean - known.right.mean()) / known.right.std(),
            np.log(mixture.deviation / known.right.std()),
            mixture.share,
        ]
    )


def _fit(places: Floats, counts: Floats, known: KnownScores, start: Floats) -> tuple[Floats, float]:
    """The most likely parameters near `start`, and the negative of their log-likelihood."""

    def loss(parameters: Floats) -> float:
        mixture = _mixture(parameters, known)
        if mixture.mean < mixture.center + 2 * mixture.width or abs(mixture.share) > 20:
            return 1e12
        wrong, right = mixture.log_wrong(places), mixture.log_right(places) + mixture.share
        observed = counts @ (np.logaddexp(wrong, right) - np.logaddexp(0, mixture.share))
        labelled = mixture.log_wrong(known.wrong).mean() + mixture.log_right(known.right).mean()
        return float(0.5 * mixture.skew**2 - observed - KNOWN_WEIGHT * labelled)

    coarse, _ = minimize(loss, start, np.array([0.5, 0.3, 0.3, 0.5, 0.3, 1.0]))
    return minimize(loss, coarse, np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.3]))


def minimize(loss: Callable[[Floats], float], start: Floats, steps: Floats) -> tuple[Floats, float]:
    """The lowest point that the simplex method of Nelder and Mead (1965) finds, and its loss."""
    points = np.vstack([start, start + np.diag(steps)])
    losses = np.array([loss(point) for point in points])
    for _ in range(SEARCH_STEPS):
        order = np.argsort(losses, kind="stable")
        points, losses = points[order], losses[order]
        if losses[-1] - losses[0] < 1e-4:
            break
        center = points[:-1].mean(axis=0)
        found = _better_point(loss, center, points[-1], losses)
        if found is None:
            points[1:] = (points[1:] + points[0]) / 2
            losses[1:] = [loss(point) for point in points[1:]]
        else:
            points[-1], losses[-1] = found
    best = int(losses.argmin())
    return points[best], float(losses[best])


def _better_point(
    loss: Callable[[Floats], float], center: Floats, worst: Floats, losses: Floats
) -> tuple[Floats, float] | None:
    """A point to replace the worst one with: reflected, expanded or contracted; None if none is better."""
    reflected = 2 * center - worst
    value = loss(reflected)
    if value < losses[0]:
        expanded = 3 * center - 2 * worst
        further = loss(expanded)
        return (expanded, further) if further < value else (reflected, value)
    if value < losses[-2]:
        return reflected, value
    contracted = (center + (reflected if value < losses[-1] else worst)) / 2
    nearer = loss(contracted)
    return (contracted, nearer) if nearer < min(value, losses[-1]) else None
