"""Vectors of runs of sentences: encoded as one text, or the mean of their sentences' vectors.

Takes sentences and what encodes them, gives what links are scored by. A run is named by its length and its end, the
number of sentences up to and with its last: 1 to N. Where one would begin before the text, its cosines are zero.
Shapes: N sentences, P the longest run, D dimension, b runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np

from dualmoco.core.vectors import Floats, Ids, Vectors, unit_vectors
from dualmoco.data.languages import WITHOUT_SPACES, base_language

CHUNK = 1024
SINGLE_PRECISION = 10_000  # sentences of a text, beyond which encoded runs are kept in half precision


class Runs(Protocol):
    """Vectors of the runs of 1 to P sentences of one text."""

    sentences: Vectors
    """Unit vectors of the single sentences, (N, D)."""
    longest: int
    """P."""

    def cosines(self, other: Self, rows: slice, columns: slice) -> np.ndarray:
        """Cosines of the runs that end in `rows` with runs of another text that end in `columns`, (P, P, r, c)."""

    def beside(self, sentences: Vectors, rows: slice) -> np.ndarray:
        """Cosines of the runs that end in `rows` with k single sentences (k, D), as (P, r, k)."""

    def at(self, runs: Ids) -> Vectors:
        """Unit vectors (b, D) of some runs (b, 2), each from one sentence to before another."""


class AveragedRuns:
    """The mean of the sentences' vectors. No vector of a run is ever made: sums of cosines of sentences are enough.

    Args:
        sentences: Unit vectors, shape (N, D).
        longest: P.
    """

    def __init__(self, sentences: Vectors, longest: int) -> None:
        self.sentences, self.longest = sentences, longest
        count = len(sentences)
        squares = np.zeros((longest, count + 1))  # of the lengths of the sums of run's vectors
        for start in range(0, count, CHUNK):
            sums = np.array(sentences[start : start + CHUNK + longest - 1])
            for size in range(1, longest + 1):
                begins = max(0, min(CHUNK, count - start - size + 1))  # runs that begin in this chunk
                sums = sums[: min(len(sums), CHUNK)]
                if size > 1:
                    sums[:begins] += sentences[start + size - 1 : start + size - 1 + begins]
                squares[size - 1, start + size : start + size + begins] = np.einsum(
                    "nd,nd->n", sums[:begins], sums[:begins]
                )
        self.shares: Floats = np.divide(1.0, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)
        """What a run's sum is to be multiplied with, (P, N + 1); 0 where it would begin before the text."""

    def cosines(self, other: Self, rows: slice, columns: slice) -> np.ndarray:
        """See `Runs.cosines`."""
        longest, height, width = self.longest, rows.stop - rows.start, columns.stop - columns.start
        singles = _before(self.sentences, rows, longest) @ _before(other.sentences, columns, longest).T
        sums = np.empty((longest, longest, height, width), dtype=np.float32)
        across = np.zeros((len(singles), width), dtype=np.float32)
        for n in range(longest):
            across += singles[:, longest - 1 - n : longest - 1 - n + width]
            sums[0, n] = across[longest - 1 :]
            for m in range(1, longest):
                np.add(sums[m - 1, n], across[longest - 1 - m : longest - 1 - m + height], out=sums[m, n])
        sums *= self.shares[:, None, rows, None].astype(np.float32)
        sums *= other.shares[None, :, None, columns].astype(np.float32)
        return sums

    def beside(self, sentences: Vectors, rows: slice) -> np.ndarray:
        """See `Runs.beside`."""
        longest, height = self.longest, rows.stop - rows.start
        singles = _before(self.sentences, rows, longest) @ sentences.T
        sums = np.empty((longest, height, len(sentences)), dtype=np.float32)
        sums[0] = singles[longest - 1 :]
        for m in range(1, longest):
            np.add(sums[m - 1], singles[longest - 1 - m : longest - 1 - m + height], out=sums[m])
        sums *= self.shares[:, rows, None].astype(np.float32)
        return sums

    def at(self, runs: Ids) -> Vectors:
        """See `Runs.at`."""
        sums = np.zeros((len(runs), self.sentences.shape[1]), dtype=np.float32)
        for step in range(self.longest):
            inside = runs[:, 0] + step < runs[:, 1]
            sums[inside] += self.sentences[runs[inside, 0] + step]
        return unit_vectors(sums)


class EncodedRuns:
    """Each run encoded as one text.

    Args:
        vectors: Unit vectors by length and end, shape (P, N + 1, D), in half or single precision; zero where a run
            would begin before the text.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors, self.longest = vectors, len(vectors)
        self.sentences: Vectors = vectors[0, 1:].astype(np.float32, copy=False)

    def cosines(self, other: Self, rows: slice, columns: slice) -> np.ndarray:
        """See `Runs.cosines`."""
        src = self.vectors[:, rows].astype(np.float32, copy=False)  # (P, r, D)
        tgt = other.vectors[:, columns].astype(np.float32, copy=False)  # (P, c, D)
        products = src.reshape(-1, src.shape[2]) @ tgt.reshape(-1, tgt.shape[2]).T
        return products.reshape(*src.shape[:2], *tgt.shape[:2]).transpose(0, 2, 1, 3)

    def beside(self, sentences: Vectors, rows: slice) -> np.ndarray:
        """See `Runs.beside`."""
        runs = self.vectors[:, rows].astype(np.float32, copy=False)  # (P, r, D)
        products = runs.reshape(-1, runs.shape[2]) @ sentences.T
        return products.reshape(*runs.shape[:2], len(sentences))

    def at(self, runs: Ids) -> Vectors:
        """See `Runs.at`."""
        return np.asarray(self.vectors[runs[:, 1] - runs[:, 0] - 1, runs[:, 1]]).astype(np.float32)


def longer_texts(sentences: Sequence[str], lang: str, longest: int) -> list[list[str]]:
    """The texts of the runs of 2 to P sentences, by their length."""
    between = "" if base_language(lang) in WITHOUT_SPACES else " "
    return [
        [between.join(sentences[start : start + size]) for start in range(len(sentences) - size + 1)]
        for size in range(2, longest + 1)
    ]


def encoded_runs(sentences: Vectors, longer: Sequence[Sequence[str]], encode: Callable[[list[str]], Vectors]) -> Runs:
    """Runs whose texts are encoded.

    Args:
        sentences: Unit vectors of the single sentences, shape (N, D).
        longer: Texts of the runs of 2 to P sentences; see `longer_texts`.
        encode: Makes unit vectors of texts.

    Returns:
        The runs.
    """
    place = {text: number for number, text in enumerate(dict.fromkeys(text for size in longer for text in size))}
    vectors = encode(list(place))
    precision = np.float32 if len(sentences) <= SINGLE_PRECISION else np.float16
    runs = np.zeros((len(longer) + 1, len(sentences) + 1, sentences.shape[1]), dtype=precision)
    runs[0, 1:] = sentences
    for size, texts in enumerate(longer, start=2):
        if texts:
            runs[size - 1, size:] = vectors[[place[text] for text in texts]]
    return EncodedRuns(runs)


def _before(vectors: Vectors, ends: slice, longest: int) -> Vectors:
    """Vectors of the sentences that runs with these ends are made of, zeros before the text, (P + ends - 1, D)."""
    first = ends.start - longest
    part = vectors[max(0, first) : max(0, ends.stop - 1)]
    if first >= 0:
        return part
    padded = np.zeros((longest + ends.stop - ends.start - 1, vectors.shape[1]), dtype=np.float32)
    padded[len(padded) - len(part) :] = part
    return padded
