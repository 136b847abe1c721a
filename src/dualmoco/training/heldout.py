"""How good the encoders are while they train: retrieval on held-out pairs, accuracy on held-out NLI.

Takes held-out sentences from `data/`, gives a score to `loop.py`, which keeps the best model by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dualmoco.core.progress import Progress, counting
from dualmoco.core.vectors import Vectors
from dualmoco.data.nli import NliExample
from dualmoco.data.pairs import Pairs
from dualmoco.models.backends.pytorch import TorchBackend
from dualmoco.models.network import Encoder
from dualmoco.search.exact import nearest_both_ways
from dualmoco.training.batches import make_nli_batch
from dualmoco.training.distributed import first_numbers
from dualmoco.training.nli import NliHead

NLI_BATCH = 256  # examples
COUNTED_SENTENCES = 4096  # encoded between two moves of the progress bar


@dataclass(frozen=True)
class HeldoutScore:
    """Shares from 0 to 1; `score` is what the best model is chosen by."""

    src_to_tgt: float
    tgt_to_src: float
    nli: float | None
    score: float


class Heldout:
    """The held-out pairs and NLI examples of a run."""

    def __init__(self, pairs: Pairs, src: Encoder, tgt: Encoder) -> None:
        self.encoders = (src, tgt)
        self.texts = pairs.texts()
        self.kept: dict[int, Vectors] = {}  # of frozen encoders, by side: they stay the same
        self.head: NliHead | None = None
        self.nli: Sequence[NliExample] = ()
        self.by_nli = False

    def add_nli(self, examples: Sequence[NliExample], head: NliHead, *, choose_by_it: bool) -> None:
        """Scores NLI examples too, and chooses the best model by them if asked."""
        self.nli, self.head, self.by_nli = examples, head, choose_by_it

    def score(self) -> HeldoutScore:
        """Scores the encoders as they are now, with a progress bar; they are left in evaluation mode."""
        total = sum(len(texts) for side, texts in enumerate(self.texts) if side not in self.kept) + 2 * len(self.nli)
        with counting("encoding held-out sentences", total) as progress:
            src, tgt = (self._vectors(side, progress) for side in range(2))
            nli = self._nli_accuracy(self.head, progress) if self.head else None
        forward, backward = (float(near.found_translations.mean()) for near in nearest_both_ways(src, tgt, 1))
        score = nli if nli is not None and self.by_nli else (forward + backward) / 2
        return HeldoutScore(forward, backward, nli, score)

    def _vectors(self, side: int, progress: Progress) -> Vectors:
        """Vectors (n, D) of one side; those of a frozen encoder are made once."""
        if side in self.kept:
            return self.kept[side]
        encoder = self.encoders[side]
        vectors = _encode(encoder, self.texts[side], progress)
        if encoder.is_frozen:
            self.kept[side] = vectors
        return vectors

    @torch.inference_mode()
    def _nli_accuracy(self, head: NliHead, progress: Progress) -> float:
        head.eval()
        device = next(head.parameters()).device
        right = 0
        for start in range(0, len(self.nli), NLI_BATCH):
            batch = make_nli_batch(list(self.nli[start : start + NLI_BATCH]), head.encoder.tokenize).to(device)
            right += int((head(batch).argmax(dim=1) == batch.labels).sum())
            progress(2 * len(batch.labels))
        return right / len(self.nli)


def share_score(score: HeldoutScore | None, device: torch.device) -> HeldoutScore:
    """The first process's score on every process, so that all choose the same model and stop together.

    Args:
        score: Of the first process; others may give None.
        device: Of the process group's tensors.

    Returns:
        That score.
    """
    numbers = torch.full((4,), math.nan, dtype=torch.float64)
    if score is not None:
        without = math.nan if score.nli is None else score.nli
        numbers = torch.tensor([score.src_to_tgt, score.tgt_to_src, without, score.score], dtype=torch.float64)
    src_to_tgt, tgt_to_src, nli, chosen = first_numbers(numbers.to(device)).tolist()
    return HeldoutScore(src_to_tgt, tgt_to_src, None if math.isnan(nli) else nli, chosen)


def _encode(encoder: Encoder, texts: list[str], progress: Progress) -> Vectors:
    """Vectors (n, D) of sentences; counts them as they are done."""
    backend, parts = TorchBackend(encoder), []
    for start in range(0, len(texts), COUNTED_SENTENCES):
        part = texts[start : start + COUNTED_SENTENCES]
        parts.append(backend.encode(part))
        progress(len(part))
    vectors: Vectors = np.concatenate(parts)
    return vectors
