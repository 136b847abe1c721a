"""Post-processing against numpy, scikit-learn and autograd."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.evaluation.postprocessing import AllButTheTop, Flow, Postprocessing, Whitening, parse_postprocessing


def skewed(count: int, width: int, seed: int = 0) -> Vectors:
    """Vectors far from the origin whose columns depend on each other, with variances from 1 to 1/D."""
    random = np.random.default_rng(seed)
    mixing = np.linalg.qr(random.normal(size=(width, width)))[0] / np.sqrt(np.arange(1, width + 1))[:, None]
    return (random.normal(size=(count, width)) @ mixing + random.normal(size=width)).astype(np.float32)


def warped(count: int, seed: int) -> Vectors:
    """Six numbers of which three bend with the other three."""
    gaussian = np.random.default_rng(seed).normal(size=(count, 6))
    bent = 0.3 * gaussian[:, 3:] * np.exp(0.5 * gaussian[:, :3]) + gaussian[:, :3] ** 2
    return np.concatenate([gaussian[:, :3] * 3 + 5, bent], axis=1).astype(np.float32)


def fitted(postprocessing: Postprocessing, vectors: Vectors) -> Vectors:
    """The vectors after what was fitted to them."""
    postprocessing.fit(vectors)
    return postprocessing.apply(vectors)


@pytest.fixture(scope="module")
def flow() -> Flow:
    """A flow fitted to bent vectors."""
    flow = Flow(200, hidden=32)
    flow.fit(warped(2000, seed=0))
    return flow


@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
def test_whitened_vectors_have_the_identity_as_covariance(scale: float) -> None:
    """Means are zero and covariances one by one those of the identity, however small or large the vectors."""
    whitened = fitted(Whitening(), skewed(500, 12) * np.float32(scale)).astype(np.float64)
    assert whitened.mean(axis=0) == pytest.approx(np.zeros(12), abs=1e-6)
    assert np.cov(whitened.T) == pytest.approx(np.eye(12), abs=1e-5)


def test_whitening_agrees_with_scikit_learn() -> None:
    """Inner products, which no sign or rotation changes, are those of its whitening, for vectors not fitted to too."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    vectors, unseen = skewed(300, 20), skewed(40, 20, seed=1)
    whitening = Whitening(8)
    whitening.fit(vectors)
    expected = decomposition.PCA(8, whiten=True, svd_solver="full").fit(vectors.astype(np.float64)).transform(unseen)
    ours = whitening.apply(unseen)
    assert ours.shape == (40, 8) and ours.dtype == np.float32
    assert ours @ ours.T == pytest.approx(expected @ expected.T, abs=1e-3)


def test_the_largest_variances_are_kept() -> None:
    """Of columns of known variance the cut keeps the two largest, wherever they stand."""
    vectors = (np.random.default_rng(0).normal(size=(2000, 4)) * [1, 9, 0.1, 3]).astype(np.float32)
    whitened = fitted(Whitening(2), vectors)
    correlations = np.abs(np.corrcoef(whitened.T, vectors.T)[:2, 2:])  # (2, 4)
    assert correlations.argmax(axis=1).tolist() == [1, 3]
    assert correlations.max(axis=1) == pytest.approx([1, 1], abs=0.01)


@pytest.mark.parametrize("offset", [0, 1000])
def test_directions_without_variance_become_zero(offset: float) -> None:
    """A constant column and columns that repeat others but for rounding add no noise, near the origin or far away."""
    base = skewed(400, 6)
    repeated = base @ np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    vectors = np.concatenate([base, repeated, np.full((400, 1), 0.1, np.float32)], axis=1) + np.float32(offset)
    whitened = fitted(Whitening(), vectors)
    assert whitened.shape == (400, 12)
    assert np.cov(whitened.T) == pytest.approx(np.diag([1.0] * 6 + [0.0] * 6), abs=1e-3)


def test_fewer_sentences_than_dimensions(caplog: pytest.LogCaptureFixture) -> None:
    """Whitening stays finite and warns that distances are now all the same."""
    with caplog.at_level(logging.WARNING):
        whitened = fitted(Whitening(), skewed(10, 30))
    cosines = unit_vectors(whitened) @ unit_vectors(whitened).T
    assert cosines[~np.eye(10, dtype=bool)] == pytest.approx(np.full(90, -1 / 9), abs=1e-4)
    assert "give more, or keep fewer" in caplog.text
    caplog.clear()
    fitted(Whitening(4), skewed(10, 30))
    assert not caplog.text


def test_equal_vectors_become_zero() -> None:
    """Nothing is made out of vectors that are all the same."""
    same = np.full((5, 3), 0.1, np.float32)
    assert not fitted(Whitening(), same).any()
    assert fitted(AllButTheTop(), same) == pytest.approx(np.zeros((5, 3)), abs=1e-6)


def test_all_but_the_top_agrees_with_a_loop() -> None:
    """Each vector loses its projections on the strongest directions, found by singular values, one at a time."""
    vectors = skewed(200, 9)
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    directions = np.linalg.svd(centred)[2][:3]
    expected = []
    for vector in centred:
        rest = vector.copy()
        for direction in directions:
            rest -= np.dot(vector, direction) * direction
        expected.append(rest)
    processed = fitted(AllButTheTop(3), vectors)
    assert processed == pytest.approx(np.array(expected), abs=1e-5)
    assert (processed @ directions.T).var(axis=0) == pytest.approx(np.zeros(3), abs=1e-9)
    assert np.linalg.matrix_rank(processed, tol=1e-3) == 6


@pytest.mark.parametrize(("width", "removed"), [(30, 1), (250, 2)])
def test_all_but_the_top_removes_a_hundredth(width: int, removed: int) -> None:
    """By default D // 100 directions go, and at least one."""
    processed = fitted(AllButTheTop(), skewed(400, width))
    assert np.linalg.matrix_rank(processed, tol=1e-3) == width - removed


def test_flow_makes_held_out_vectors_more_likely(flow: Flow) -> None:
    """Bent vectors not trained on gain on the standardised start, and more than the best Gaussian gives them."""
    start = Flow(1, hidden=32)
    train, heldout = warped(2000, seed=0), warped(500, seed=1).astype(np.float64)
    start.fit(train)
    mean, covariance = train.mean(axis=0), np.cov(train.T)
    squares = np.einsum("nd,de,ne->n", heldout - mean, np.linalg.inv(covariance), heldout - mean)
    gaussian = -(squares + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2
    reached = flow.log_likelihood(warped(500, seed=1)).mean()
    assert reached > start.log_likelihood(warped(500, seed=1)).mean() + 1
    assert reached > gaussian.mean() + 2


def test_likelihood_is_that_of_the_jacobian(flow: Flow) -> None:
    """Densities are a Gaussian's times the determinant that automatic differentiation finds."""
    vectors = warped(5, seed=2)
    assert flow.network is not None
    for vector, latent, density in zip(vectors, flow.apply(vectors), flow.log_likelihood(vectors), strict=True):
        row = torch.from_numpy(vector)
        jacobian = torch.autograd.functional.jacobian(lambda x: flow.network(x[None])[0][0], row)
        log_gaussian = -0.5 * float(latent @ latent) - 3 * np.log(2 * np.pi)
        assert density == pytest.approx(log_gaussian + float(torch.linalg.slogdet(jacobian)[1]), abs=1e-3)


@pytest.mark.parametrize(("count", "width"), [(600, 33), (50, 384), (3, 2)])
def test_flow_is_invertible(count: int, width: int) -> None:
    """Odd dimensions and few vectors come back, also unseen ones, and a constant column does no harm."""
    vectors = skewed(count + 20, width)
    vectors[:, 0] = 0.25
    flow = Flow(30)
    flow.fit(vectors[:count])
    latents = flow.apply(vectors)
    assert latents.shape == vectors.shape and latents.dtype == np.float32 and np.isfinite(latents).all()
    assert not np.allclose(latents, vectors, atol=0.1)
    assert flow.inverse(latents) == pytest.approx(vectors, abs=1e-3)


def test_flow_repeats_itself_and_leaves_the_random_state_alone() -> None:
    """One seed gives one result, another seed another; the global generator goes on as if nothing happened."""
    vectors = warped(300, seed=0)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = (fitted(Flow(20, seed=seed), vectors) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert np.array_equal(first, again)
    assert not np.allclose(first, other, atol=0.1)


def test_names_tell_the_settings() -> None:
    """A post-processing is named as it was asked for, the flow with everything that changes its result."""
    for text in ("whitening", "whitening:256", "all-but-the-top", "all-but-the-top:3"):
        assert parse_postprocessing(text).name == text
    assert parse_postprocessing("flow:500").name == "flow:500,blocks=4,hidden=128,seed=0"
    assert parse_postprocessing("flow").name == Flow().name
    assert len({Flow().name, Flow(7).name, Flow(blocks=2).name, Flow(hidden=9).name, Flow(seed=1).name}) == 5


@pytest.mark.parametrize(
    "text", ["", "whiten", "whitening:", "whitening:0", "flow:-1", "flow:1e3", "whitening:2:3", "flow:٣"]
)
def test_unknown_postprocessing_list_the_choices(text: str) -> None:
    """Another name or number is refused with the choices there are."""
    with pytest.raises(ConfigError, match=r"expected whitening, whitening:DIMENSION, all-but-the-top.* or flow:STEPS"):
        parse_postprocessing(text)


@pytest.mark.parametrize(
    "make", [lambda: Whitening(0), lambda: AllButTheTop(0), lambda: Flow(0), lambda: Flow(hidden=0)]
)
def test_settings_below_one(make: type[Postprocessing]) -> None:
    """A post-processing that would do nothing is refused."""
    with pytest.raises(ConfigError, match="expected at least 1"):
        make()


@pytest.mark.parametrize(
    ("postprocessing", "shape", "message"),
    [
        (Whitening(5), (9, 4), "whitening:5: vectors of dimension 4; expected at least 5"),
        (Whitening(), (1, 4), "whitening: vectors to fit to: 1; expected at least 2"),
        (AllButTheTop(4), (9, 4), "all-but-the-top:4: vectors of dimension 4; expected more than 4"),
        (AllButTheTop(), (0, 4), "all-but-the-top: vectors to fit to: 0"),
        (Flow(), (1, 4), "flow: vectors of shape"),
        (Flow(), (9, 1), "flow: vectors of shape"),
    ],
)
def test_vectors_that_cannot_be_fitted(postprocessing: Postprocessing, shape: tuple[int, int], message: str) -> None:
    """Too few or too narrow vectors are refused."""
    with pytest.raises(DataError, match=message):
        postprocessing.fit(np.ones(shape, np.float32))


@pytest.mark.parametrize("text", ["whitening", "all-but-the-top", "flow:1"])
def test_vectors_that_cannot_be_processed(text: str) -> None:
    """Vectors before fitting, of another dimension or with NaN are refused; no vectors are fine."""
    postprocessing = parse_postprocessing(text)
    with pytest.raises(DataError, match="not fitted"):
        postprocessing.apply(skewed(3, 4))
    postprocessing.fit(skewed(20, 4))
    with pytest.raises(DataError, match="dimension 5; expected 4"):
        postprocessing.apply(skewed(3, 5))
    with pytest.raises(DataError, match="NaN"):
        postprocessing.apply(np.full((3, 4), np.nan, np.float32))
    assert postprocessing.apply(skewed(0, 4)).shape == (0, 4)
