"""Tatoeba similarity search (table 1 of the paper), and LASER's xSIM error on the same pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.data.languages import base_language
from dualmoco.data.testfiles import existing, read_aligned_sentences
from dualmoco.evaluation.sample import Hits, interval
from dualmoco.evaluation.score import Score, Signer, data_sha256
from dualmoco.evaluation.sentences import Sentences
from dualmoco.evaluation.task import Parallel, Result
from dualmoco.mining.margins import Margin, best_candidates
from dualmoco.models.model import Identity
from dualmoco.search.neighbors import nearest_both_ways

XSIM_NEIGHBORS = 4


class Tatoeba:
    """One language pair of a folder in LASER's layout: `tatoeba.XXX-eng.XXX` beside `tatoeba.XXX-eng.eng`."""

    def __init__(self, folder: Path, pair: str, margin: Margin = Margin.ratio) -> None:
        codes = pair.split("-")
        if len(codes) != 2:
            raise DataError(f"Tatoeba pair {pair!r}; expected two languages such as cmn-eng")
        self.paths = [existing(folder / f"tatoeba.{pair}.{code}", "a Tatoeba test file") for code in codes]
        self.pair, self.margin = pair, margin
        self.langs = [base_language(code) for code in codes]
        self.sides = read_aligned_sentences(*self.paths)

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sides."""
        return dict(zip(self.langs, self.sides, strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Accuracy of the nearest neighbour by cosine and error of the best by margin, both ways."""
        signer = Signer(identity, "tatoeba", data_sha256(self.paths))
        vectors = [sentences.vectors(side, lang) for side, lang in zip(self.sides, self.langs, strict=True)]
        near = nearest_both_ways(vectors[0], vectors[1], XSIM_NEIGHBORS)
        scores = []
        for side, other in ((0, 1), (1, 0)):
            direction = f"{self.langs[side]}-{self.langs[other]}"
            right = near[side].found_translations
            scores.append(self._score(signer, direction, "accuracy", right))
            best, _ = best_candidates(near[side], near[other].mean, self.margin)
            wrong = best != np.arange(len(vectors[0]))
            scores.append(self._score(signer, direction, f"xsim-{self.margin.value}-error", wrong))
        return Result(scores, parallel=Parallel(f"Tatoeba {self.pair}", self.langs[0], self.langs[1], *self.sides))

    def _score(self, signer: Signer, direction: str, metric: str, units: np.ndarray) -> Score:
        sample = Hits(units.astype(np.float64))
        settings = {"k": XSIM_NEIGHBORS} if metric.startswith("xsim") else {}
        return signer.score(
            self.pair, direction, metric, sample, len(units), interval(sample), pair=self.pair, **settings
        )  # fmt: skip


def tatoeba_pairs(folder: Path) -> list[str]:
    """The language pairs of a folder, such as afr-eng, in alphabetical order."""
    pairs = {path.name.split(".")[1] for path in existing(folder, "the Tatoeba test files").glob("tatoeba.*-*.*")}
    return sorted(pairs)
