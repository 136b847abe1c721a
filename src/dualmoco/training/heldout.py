"""How good the encoders are while they train: retrieval on held-out pairs, accuracy on held-out NLI.

Takes held-out sentences from `corpus/`, gives a score to `training.py`, which keeps the best model by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dualmoco.data.bitext import Pairs
from dualmoco.data.nli import NliExample
from dualmoco.models.backends.pytorch import TorchBackend
from dualmoco.models.encoder import Encoder
from dualmoco.training.batching import make_nli_batch
from dualmoco.training.metrics import retrieval_accuracy
from dualmoco.training.nli import NliHead

BATCH_SENTENCES = 256


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
        self.src, self.tgt = src, tgt
        self.src_texts, self.tgt_texts = pairs.texts()
        self.head: NliHead | None = None
        self.nli: Sequence[NliExample] = ()
        self.by_nli = False

    def add_nli(self, examples: Sequence[NliExample], head: NliHead, *, choose_by_it: bool) -> None:
        """Scores NLI examples too, and chooses the best model by them if asked."""
        self.nli, self.head, self.by_nli = examples, head, choose_by_it

    def score(self) -> HeldoutScore:
        """Scores the encoders as they are now; they are left in evaluation mode."""
        src = torch.from_numpy(TorchBackend(self.src).encode(self.src_texts))
        tgt = torch.from_numpy(TorchBackend(self.tgt).encode(self.tgt_texts))
        accuracy = retrieval_accuracy(src, tgt)
        nli = self._nli_accuracy(self.head) if self.head else None
        score = nli if nli is not None and self.by_nli else accuracy.mean
        return HeldoutScore(accuracy.src_to_tgt, accuracy.tgt_to_src, nli, score)

    @torch.inference_mode()
    def _nli_accuracy(self, head: NliHead) -> float:
        head.eval()
        device = next(head.parameters()).device
        right = 0
        for start in range(0, len(self.nli), BATCH_SENTENCES):
            batch = make_nli_batch(list(self.nli[start : start + BATCH_SENTENCES]), head.encoder.tokenize).to(device)
            right += int((head(batch).argmax(dim=1) == batch.labels).sum())
        return right / len(self.nli)
