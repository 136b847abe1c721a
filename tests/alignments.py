"""What the tests of alignment share: vectors, runs by slow means, texts whose links are known."""

from __future__ import annotations

from functools import partial

import numpy as np

from dualmoco.alignment.aligner import Links, Side, align_sides
from dualmoco.alignment.anchors import Anchors, find_anchors
from dualmoco.core.vectors import Ids, Vectors, unit_vectors

Step = tuple[int, int]


def random_units(generator: np.random.Generator, count: int, dimension: int) -> Vectors:
    """Unit vectors in random directions."""
    return unit_vectors(generator.normal(size=(count, dimension)).astype(np.float32))


def related(generator: np.random.Generator, count: int, dimension: int, noise: float) -> tuple[Vectors, Vectors]:
    """Random vectors and noisy copies of them."""
    vectors = random_units(generator, count, dimension)
    shift = generator.normal(size=vectors.shape) * noise / np.sqrt(dimension)
    return vectors, unit_vectors((vectors + shift).astype(np.float32))


def mean_vector(sentences: Vectors, first: int, last: int) -> np.ndarray:
    """The unit vector of a run's mean, in double precision."""
    mean = sentences[first:last].astype(np.float64).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def cells_of(steps: Ids) -> Ids:
    """The cells that a path goes through, the first one too."""
    return np.concatenate([np.zeros((1, 2), dtype=np.int64), steps.cumsum(axis=0)])


class Synthetic:
    """Two texts with known links; the vector of a sentence that stands for several is their mean.

    Args:
        seed: Of the random numbers.
        types: Sentences of both sides of each link, one of them 1 at most.
    """

    def __init__(self, seed: int, types: list[Step]) -> None:
        generator = np.random.default_rng(seed)
        sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        lengths: tuple[list[float], list[float]] = ([], [])
        for sizes in types:
            parts = random_units(generator, max(sizes), 64)
            each = generator.integers(20, 60, max(sizes)).astype(np.float64)
            for side, size in enumerate(sizes):
                if size:
                    one = size < max(sizes)
                    made = parts.mean(axis=0, keepdims=True) if one else parts
                    noisy = unit_vectors(made) + generator.normal(size=made.shape) * 0.04
                    sides[side].extend(unit_vectors(noisy.astype(np.float32)))
                    lengths[side].extend((1.0, 0.4)[side] * (each.sum(keepdims=True) if one else each))
        self.types = types
        self.vectors = np.array(sides[0]), np.array(sides[1])
        self.lengths = np.array(lengths[0]), np.array(lengths[1])

    def sides(self, *, encoded: bool = False) -> tuple[Side, Side]:
        """As the aligner takes them; runs, if encoded, are means as well."""

        def encode(vectors: Vectors, runs: Ids) -> Vectors:
            return np.array([mean_vector(vectors, *run) for run in runs.tolist()], dtype=np.float32)

        src, tgt = (
            Side(vectors, lengths, partial(encode, vectors) if encoded else None)
            for vectors, lengths in zip(self.vectors, self.lengths, strict=True)
        )
        return src, tgt

    def aligned(self, *, flipped: bool = False, encoded: bool = False, anchors: Anchors | None = None) -> Links:
        """What the aligner makes of them."""
        src, tgt = self.sides(encoded=encoded)
        if flipped:
            src, tgt = tgt, src
        return align_sides(src, tgt, anchors or find_anchors(src.vectors, tgt.vectors))


def random_types(seed: int, count: int) -> list[Step]:
    """Mostly one to one, some one to many either way; some left out, never on both sides in one place."""
    generator = np.random.default_rng(seed)
    known = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 0), (0, 1)]
    drawn = generator.choice(len(known), count, p=[0.66, 0.1, 0.1, 0.03, 0.03, 0.04, 0.04])
    types = [(1, 1)]
    for number in drawn:
        types += [known[number]] if number < 5 else [(1, 1), known[number], (1, 1)]
    return [*types, (1, 1)]


def types_of(links: Links) -> list[Step]:
    """Numbers of sentences of both sides of each link."""
    return list(zip(np.diff(links.src)[:, 0].tolist(), np.diff(links.tgt)[:, 0].tolist(), strict=True))


def check_whole(links: Links, counts: Step) -> None:
    """Every sentence is in exactly one link, in order."""
    for side, count in zip((links.src, links.tgt), counts, strict=True):
        assert side[0, 0] == 0 and side[-1, 1] == count and (side[1:, 0] == side[:-1, 1]).all()
        assert (side[:, 1] >= side[:, 0]).all()
    assert ((links.confidence >= 0) & (links.confidence <= 1)).all()
    assert (np.isnan(links.scores) == ~links.is_linked).all()
