"""The aligners that are compared, and the vectors that all of them are given.

Takes documents and a model, gives links. Shapes: N and M sentences, P the longest run, D dimension, s steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.align_baselines import Lengths, bertalign, vecalign
from benchmarks.align_documents import LONGEST, Suite
from dualmoco.alignment.aligner import align_runs
from dualmoco.alignment.anchors import find_anchors
from dualmoco.alignment.runs import AveragedRuns, EncodedRuns, Runs, encoded_runs, longer_texts
from dualmoco.core.vectors import Ids, Vectors
from dualmoco.evaluation.align import GoldDocument, Link, as_sets
from dualmoco.models.model import Model

ENCODED, AVERAGED = "dualmoco, encoded runs", "dualmoco, averaged runs"
PEERS = ("Bertalign", "vecalign")


@dataclass(frozen=True)
class Given:
    """What an aligner knows of two texts."""

    src: np.ndarray  # (P, N + 1, D) unit vectors of runs by length and end, single precision; see `EncodedRuns`
    tgt: np.ndarray  # (P, M + 1, D)
    lengths: Lengths  # (N,) and (M,) characters of the sentences


class Encoder:
    """A model that encodes each text once.

    Args:
        model: Of the languages of all texts.
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
    return {name: [aligner(given) for given in givens] for name, aligner in ALIGNERS.items()}


def encode_document(document: GoldDocument, langs: tuple[str, str], encoder: Encoder) -> Given:
    """The vectors of both texts of a document, of single sentences and of runs as one text."""
    texts = document.src, document.tgt
    src, tgt = (_run_vectors(side, lang, encoder) for side, lang in zip(texts, langs, strict=True))
    lengths = [np.array([len(text) for text in side], dtype=np.float64) for side in texts]
    return Given(src, tgt, (lengths[0], lengths[1]))


def align_encoded(given: Given) -> list[Link]:
    """Ours, by the vectors of runs."""
    return _align(EncodedRuns(given.src), EncodedRuns(given.tgt), given.lengths)


def align_averaged(given: Given) -> list[Link]:
    """Ours, by the vectors of single sentences alone."""
    return _align(AveragedRuns(given.src[0, 1:], LONGEST), AveragedRuns(given.tgt[0, 1:], LONGEST), given.lengths)


def by_steps(aligner: Callable[[np.ndarray, np.ndarray, Lengths], Ids], given: Given) -> list[Link]:
    """The links of an aligner that gives steps (s, 2): how many sentences of either side each takes, in order."""
    steps = aligner(given.src, given.tgt, given.lengths)
    ends = steps.cumsum(axis=0)
    return [(tuple(range(*src)), tuple(range(*tgt))) for src, tgt in np.stack([ends - steps, ends], axis=2).tolist()]


ALIGNERS: dict[str, Callable[[Given], list[Link]]] = {
    ENCODED: align_encoded, AVERAGED: align_averaged,
    "Bertalign": partial(by_steps, bertalign), "vecalign": partial(by_steps, vecalign),
}  # fmt: skip


def peak_mib() -> float:
    """The most memory that this process has held; `getrusage` would count what its parent held when it was started."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def _run_vectors(texts: Sequence[str], lang: str, encoder: Encoder) -> np.ndarray:
    encode = partial(encoder, lang=lang)
    runs = encoded_runs(encode(texts), longer_texts(texts, lang, LONGEST), encode)
    assert isinstance(runs, EncodedRuns)
    return runs.vectors


def _align(src: Runs, tgt: Runs, lengths: Lengths) -> list[Link]:
    return as_sets(align_runs(src, tgt, lengths, find_anchors(src.sentences, tgt.sentences)))
