"""The compared aligners, and the vectors that all of them use.

Documents and a model in, links out. Shapes: N and M sentences, P the longest run, D dimension, s steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.align_baselines import Lengths, bertalign, vecalign
from benchmarks.align_documents import LONGEST, Suite
from dualmoco.alignment.aligner import Links, Side, align_sides, join_sentences
from dualmoco.alignment.anchors import find_anchors
from dualmoco.alignment.lexical import Words, split_words
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.evaluation.align import GoldDocument, Link, as_sets
from dualmoco.models.model import Model

OURS, AVERAGED = "dualmoco", "dualmoco, averaged spans"
BY_VECTORS, AVERAGED_BY_VECTORS = "dualmoco, without words", "dualmoco, averaged spans, without words"
PEERS = ("Bertalign", "vecalign")


@dataclass(frozen=True)
class Given:
    """The input of an aligner for two texts."""

    src: np.ndarray  # (P, N + 1, D) unit vectors of runs by length and end, single precision; 0 before the text
    tgt: np.ndarray  # (P, M + 1, D)
    lengths: Lengths  # (N,) and (M,) characters of the sentences
    words: tuple[Words, Words] | None = None


class Encoder:
    """A model that encodes each text once.

    Args:
        model: Model with the languages of all texts.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.known: dict[tuple[str, str], np.ndarray] = {}  # by language and text, each (D,)

    def __call__(self, texts: Sequence[str], lang: str) -> Vectors:
        """Unit vectors of texts, shape (n, D)."""
        new = [text for text in dict.fromkeys(texts) if (lang, text) not in self.known]
        if new:
            self.known.update(zip([(lang, text) for text in new], self.model.encode(new, lang=lang), strict=True))
        result: Vectors = np.stack([self.known[lang, text] for text in texts])
        return result


def align_suite(suite: Suite, encoder: Encoder) -> dict[str, list[list[Link]]]:
    """The links of every document by each aligner, all from the same vectors."""
    givens = [encode_document(document, suite.langs, encoder) for document in suite.documents]
    return {name: [link_sets(aligner(given)) for given in givens] for name, aligner in ALIGNERS.items()}


def encode_document(document: GoldDocument, langs: tuple[str, str], encoder: Encoder) -> Given:
    """The vectors of both texts of a document, of single sentences and of runs encoded as one text."""
    texts = document.src, document.tgt
    src, tgt = (_run_vectors(side, lang, encoder) for side, lang in zip(texts, langs, strict=True))
    return Given(src, tgt, (_lengths(texts[0]), _lengths(texts[1])), split_words(texts, langs))


def our_sides(given: Given, *, encoded: bool = True, words: bool = True) -> tuple[Side, Side]:
    """The input of our aligner: vectors of runs, or only of single sentences, with or without words."""
    src, tgt = (
        Side(
            vectors[0, 1:],
            lengths,
            partial(_stored_runs, vectors) if encoded else None,
            given.words[side] if words and given.words else None,
        )
        for side, (vectors, lengths) in enumerate(zip((given.src, given.tgt), given.lengths, strict=True))
    )
    return src, tgt


def align_ours(given: Given, *, encoded: bool = True, words: bool = True) -> Links:
    """Our links; see `our_sides`."""
    src, tgt = our_sides(given, encoded=encoded, words=words)
    return align_sides(src, tgt, find_anchors(src.vectors, tgt.vectors))


def by_steps(aligner: Callable[[np.ndarray, np.ndarray, Lengths], Ids], given: Given) -> Ids:
    """The steps (s, 2) of a peer, in order: the number of source and target sentences of each."""
    return aligner(given.src, given.tgt, given.lengths)


def link_sets(found: Links | Ids) -> list[Link]:
    """The links of an aligner for scoring; making Python objects of them is not timed."""
    if isinstance(found, Links):
        return as_sets(found)
    ends = found.cumsum(axis=0)
    return [(tuple(range(*src)), tuple(range(*tgt))) for src, tgt in np.stack([ends - found, ends], axis=2).tolist()]


ALIGNERS: dict[str, Callable[[Given], Links | Ids]] = {
    OURS: align_ours,
    AVERAGED: partial(align_ours, encoded=False),
    BY_VECTORS: partial(align_ours, words=False),
    AVERAGED_BY_VECTORS: partial(align_ours, encoded=False, words=False),
    "Bertalign": partial(by_steps, bertalign),
    "vecalign": partial(by_steps, vecalign),
}


def peak_mib() -> float:
    """Peak memory of this process; `getrusage` would include the memory of its parent when it was started."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def _lengths(sentences: Sequence[str]) -> Floats:
    return np.array([len(sentence) for sentence in sentences], dtype=np.float64)


def _run_vectors(texts: Sequence[str], lang: str, encoder: Encoder) -> np.ndarray:
    """Unit vectors of all runs by length and end, (P, N + 1, D)."""
    single = encoder(texts, lang)
    vectors = np.zeros((LONGEST, len(texts) + 1, single.shape[1]), dtype=np.float32)
    vectors[0, 1:] = single
    for size in range(2, min(LONGEST, len(texts)) + 1):
        runs = [join_sentences(texts[end - size : end], lang) for end in range(size, len(texts) + 1)]
        vectors[size - 1, size:] = encoder(runs, lang)
    return vectors


def _stored_runs(vectors: np.ndarray, runs: Ids) -> Vectors:
    found: Vectors = vectors[runs[:, 1] - runs[:, 0] - 1, runs[:, 1]]
    return found
