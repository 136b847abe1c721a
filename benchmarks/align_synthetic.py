"""Seconds, F1 and peak memory of one aligner on random vectors, in a separate process.

python -m benchmarks.align_synthetic vecalign --sentences 5000

Both texts have the same meanings in the same order, fifty per topic, each with its own noise. Each text lacks 3 % of
the sentences. Runs are averages. Sentences have twenty words, drawn by rank, with random vectors; most of them have
their translation on the other side. The time does not include making vectors or Python objects of links. Prints a JSON
object. Does not import `measure`, because the memory of torch would count in the peak. Shapes: N sentences, P the
longest run, D dimension.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from benchmarks.align_documents import LONGEST
from benchmarks.align_systems import ALIGNERS, AVERAGED, AVERAGED_BY_VECTORS, Given, link_sets, peak_mib
from dualmoco.alignment.lexical import Words
from dualmoco.core.vectors import unit_vectors
from dualmoco.evaluation.align import Link, link_f1

DIMENSION = 768
TOPIC, TOPIC_SHARE, NOISE, DROPPED = 50, 0.7, 0.8, 0.03
ROUNDS = 3  # runs, of which the fastest counts
CHARACTERS = 40.0  # of every sentence
WORDS, VOCABULARY, WORD_DIMENSION, TRANSLATED = (
    20,
    4_000,
    384,
    0.6,
)  # 1,600 distinct words in 300 sentences, as in MAC-Dev
WARM_UP = 450  # sentences of the text that compiles everything, enough to need a band


def main() -> None:
    """Measures one aligner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("aligner", choices=ALIGNERS)
    parser.add_argument("--sentences", type=int, default=5_000, help="sentences per text before deletions")
    parsed = parser.parse_args()
    aligner = ALIGNERS[parsed.aligner]
    averages = parsed.aligner in (AVERAGED, AVERAGED_BY_VECTORS)  # these aligners need no vectors of runs
    longest = 1 if averages else LONGEST
    aligner(related_texts(WARM_UP, longest)[0])
    given, gold = related_texts(parsed.sentences, longest)
    seconds, elapsed = [], []
    for _ in range(ROUNDS):
        start, begun = time.process_time(), time.perf_counter()
        found = aligner(given)
        seconds.append(time.process_time() - start)
        elapsed.append(time.perf_counter() - begun)
    print(
        json.dumps(
            {
                "seconds": min(seconds),
                "elapsed": min(elapsed),
                "f1": link_f1([gold], [link_sets(found)]),
                "peak": peak_mib(),
                "vectors": (given.src.nbytes + given.tgt.nbytes) / 2**20,
            }
        )
    )


def related_texts(count: int, longest: int, seed: int = 0) -> tuple[Given, list[Link]]:
    """Makes two texts.

    Args:
        count: Sentences per text before deletions.
        longest: P.
        seed: Random seed.

    Returns:
        Their vectors, and the true links; a sentence whose partner was deleted is a separate link.
    """
    chance = np.random.default_rng(seed)
    kept = chance.random((2, count)) > DROPPED
    ends = kept.cumsum(axis=1)
    sides = [np.zeros((longest, own + 1, DIMENSION), dtype=np.float32) for own in ends[:, -1].tolist()]
    for start in range(0, count, TOPIC):  # one topic at a time, because more would raise the peak
        part = slice(start, min(start + TOPIC, count))
        meanings = chance.standard_normal((part.stop - start, DIMENSION), dtype=np.float32)
        meanings += TOPIC_SHARE * chance.standard_normal(DIMENSION, dtype=np.float32)
        for side, own, end in zip(sides, kept[:, part], ends[:, part], strict=True):
            noise = chance.standard_normal(meanings.shape, dtype=np.float32)
            side[0, end[own]] = unit_vectors((meanings + NOISE * noise)[own])
    for side in sides:
        _average_runs(side)
    places = zip(kept.T.tolist(), (ends.T - 1).tolist(), strict=True)
    links: list[Link] = [((src,) * own_src, (tgt,) * own_tgt) for (own_src, own_tgt), (src, tgt) in places]
    lengths = [np.full(side.shape[1] - 1, CHARACTERS) for side in sides]
    given = Given(sides[0], sides[1], (lengths[0], lengths[1]), _random_words(chance, kept))
    return given, [link for link in links if any(link)]


def _random_words(chance: np.random.Generator, kept: np.ndarray) -> tuple[Words, Words]:
    """Words of both sides of the kept sentences, (2, n); a translation has the number of its word."""
    shape = kept.shape[1], WORDS
    said, other = (np.exp(chance.random(shape) * np.log(VOCABULARY)).astype(np.int64) - 1 for _ in range(2))
    translated = np.where(chance.random(shape) < TRANSLATED, said, other)
    vectors = unit_vectors(chance.standard_normal((VOCABULARY, WORD_DIMENSION), dtype=np.float32))
    src, tgt = (
        Words(words[own].ravel(), np.arange(own.sum() + 1) * WORDS, vectors)
        for words, own in zip((said, translated), kept, strict=True)
    )
    return src, tgt


def _average_runs(vectors: np.ndarray) -> None:
    """Writes the vectors of longer runs next to those of single sentences; shape (P, N + 1, D)."""
    sums = vectors[0, 1:]
    for size in range(2, len(vectors) + 1):
        sums = sums[:-1] + vectors[0, size:]
        vectors[size - 1, size:] = unit_vectors(sums)


if __name__ == "__main__":
    main()
