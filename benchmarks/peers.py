"""The losses and the sampler of sentence-transformers on our encoders: peers for measurements of training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn
from torch.nn.functional import pad

from dualmoco.data.pairs import Pairs
from dualmoco.models.network import Encoder, Features, TokenParts
from dualmoco.training.batches import Curriculum, PairBatch

BOTH_WAYS: tuple[Literal["query_to_doc", "doc_to_query"], ...] = ("query_to_doc", "doc_to_query")


def routed(src: Encoder, tgt: Encoder) -> SentenceTransformer:
    """The two encoders as one sentence-transformers model, sharing their weights."""
    routes: dict[str, Any] = {"src": list(src.layers.children()), "tgt": list(tgt.layers.children())}
    return SentenceTransformer(modules=[Router(routes, allow_empty_key=False)], device="cpu")


def ranking_loss(model: SentenceTransformer, temperature: float) -> nn.Module:
    """Translation ranking with in-batch negatives, in both directions."""
    loss: nn.Module = MultipleNegativesRankingLoss(model, scale=1 / temperature, directions=BOTH_WAYS)
    return loss


def cached_loss(model: SentenceTransformer, temperature: float, piece: int) -> nn.Module:
    """The same for a batch too large for one pass, encoded twice in pieces (GradCache)."""
    loss: nn.Module = CachedMultipleNegativesRankingLoss(
        model, scale=1 / temperature, mini_batch_size=piece, directions=BOTH_WAYS
    )
    return loss


class DistinctBatches(Curriculum):
    """Random batches in which no sentence repeats, by sentence-transformers' sampler; steps must be asked in turn."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int) -> None:
        super().__init__([], [1.0], max(1, len(pairs) // batch_size))
        src, tgt = pairs.texts()
        self.sampler = NoDuplicatesBatchSampler(
            Dataset.from_dict({"src": src, "tgt": tgt}),
            batch_size,
            drop_last=True,
            generator=torch.Generator(),
            seed=seed,
            precompute_hashes=True,
        )
        self.batches = self._batches()

    def _batches(self) -> Iterator[list[int]]:
        for epoch in count():
            self.sampler.set_epoch(epoch)
            yield from self.sampler

    def rows(self, step: int) -> np.ndarray:
        """The next rows, whatever the number of the step."""
        return np.array(next(self.batches))


def peer_features(batch: PairBatch) -> list[dict[str, Any]]:
    """A batch as input of the peers."""
    return [{**pad_whole(batch.src), "task": "src"}, {**pad_whole(batch.tgt), "task": "tgt"}]


def pad_whole(tokens: TokenParts) -> Features:
    """The sentences of a batch in order, all padded to the longest one with our padding token, 0."""
    if tokens.places is None:
        return tokens.parts[0]
    longest = max(part["input_ids"].shape[1] for part in tokens.parts)
    return {
        name: torch.cat([pad(part[name], (0, longest - part[name].shape[1])) for part in tokens.parts])[tokens.places]
        for name in tokens.parts[0]
    }


def peer_step(loss: nn.Module, optimizer: torch.optim.Optimizer, batch: PairBatch, clip: float) -> float:
    """One optimizer step with a peer's loss."""
    value: Tensor = loss(peer_features(batch), None)
    value.backward()
    torch.nn.utils.clip_grad_norm_(loss.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return float(value.detach())
