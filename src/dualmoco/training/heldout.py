"""Held-out scores during training: retrieval on held-out pairs, and the objective's own score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dualmoco.core.progress import Progress, counting
from dualmoco.core.vectors import Vectors
from dualmoco.data.pairs import Pairs
from dualmoco.models.backends.pytorch import run_in_torch
from dualmoco.models.network import Encoder
from dualmoco.search.exact import nearest_both_ways
from dualmoco.training.distributed import first_numbers
from dualmoco.training.objective import HeldoutTask

SENTENCES_PER_UPDATE = 4096  # sentences between two updates of the progress bar


@dataclass(frozen=True)
class HeldoutScore:
    """Shares from 0 to 1; the best model is chosen by `score`."""

    src_to_tgt: float
    tgt_to_src: float
    nli: float | None  # accuracy of the objective's own task, if it has one
    score: float


class Heldout:
    """The held-out pairs of a run, and the held-out task of its objective.

    Args:
        pairs: Pairs of the source language with each of the other languages.
        src: Encoder of the source language.
        others: Encoders of the other languages.
        task: Held-out task of the objective, if it has one.
    """

    def __init__(
        self, pairs: Sequence[Pairs], src: Encoder, others: Sequence[Encoder], task: HeldoutTask | None = None
    ) -> None:
        self.task, self.scores = task, list[float]()  # scores of each other language, from 0 to 1
        self.sides = [
            side
            for part, encoder in zip(pairs, others, strict=True)
            for side in zip((src, encoder), part.texts(), strict=True)
        ]
        self.kept: dict[int, Vectors] = {}  # vectors of frozen encoders, by side, which do not change

    def score(self) -> HeldoutScore:
        """Scores the current encoders with a progress bar, and leaves them in evaluation mode."""
        total = sum(len(texts) for side, (_, texts) in enumerate(self.sides) if side not in self.kept)
        total += self.task.sentences if self.task else 0
        with counting("encoding held-out sentences", total) as progress:
            vectors = [self._vectors(side, progress) for side in range(len(self.sides))]
            own = self.task.measure(progress) if self.task else None
        both_ways = [nearest_both_ways(src, tgt, 1) for src, tgt in zip(vectors[::2], vectors[1::2], strict=True)]
        found = np.array([[near.found_translations.mean() for near in pair] for pair in both_ways])
        self.scores = found.mean(axis=1).tolist()
        src_to_tgt, tgt_to_src = found.mean(axis=0).tolist()  # mean over the languages
        score = own if own is not None and self.task and self.task.decides else (src_to_tgt + tgt_to_src) / 2
        return HeldoutScore(src_to_tgt, tgt_to_src, own, score)

    def _vectors(self, side: int, progress: Progress) -> Vectors:
        """Vectors (n, D) of the held-out sentences of one side; those of a frozen encoder are computed once."""
        if side in self.kept:
            return self.kept[side]
        encoder, texts = self.sides[side]
        vectors = encode_heldout(encoder, texts, progress)
        if encoder.is_frozen:
            self.kept[side] = vectors
        return vectors


def encode_heldout(encoder: Encoder, texts: list[str], progress: Progress) -> Vectors:
    """Vectors (n, D) of sentences, with progress."""
    backend, parts = run_in_torch(encoder), []
    for start in range(0, len(texts), SENTENCES_PER_UPDATE):
        part = texts[start : start + SENTENCES_PER_UPDATE]
        parts.append(backend.encode(part))
        progress(len(part))
    vectors: Vectors = np.concatenate(parts)
    return vectors


def share_score(score: HeldoutScore | None) -> HeldoutScore:
    """The score of the first process on every process, so that all choose the same model; others may pass None."""
    numbers = torch.full((4,), math.nan, dtype=torch.float64)
    if score is not None:
        own = math.nan if score.nli is None else score.nli
        numbers = torch.tensor([score.src_to_tgt, score.tgt_to_src, own, score.score], dtype=torch.float64)
    src_to_tgt, tgt_to_src, nli, chosen = first_numbers(numbers).tolist()
    return HeldoutScore(src_to_tgt, tgt_to_src, None if math.isnan(nli) else nli, chosen)
