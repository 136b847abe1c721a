"""A pooling that sentence-transformers does not have, for baselines: the average of the first and the last layer.

BERT-whitening and SimCSE's BERT rows are computed with it. Shapes: N sentences, L tokens, D width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

FIRST_LAST = "first-last"


class FirstLastPooling(nn.Module):
    """Mean over a sentence's tokens of the average of the first and the last transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Adds `sentence_embedding` (N, D) to what a transformer gives with all its layers."""
        layers: tuple[Tensor, ...] = features["all_layer_embeddings"]  # word embeddings, then one a layer: (N, L, D)
        tokens = (layers[1] + layers[-1]) / 2
        mask = features["attention_mask"].unsqueeze(-1).to(tokens.dtype)  # (N, L, 1)
        return {**features, "sentence_embedding": (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)}

    def get_embedding_dimension(self) -> int:
        """D."""
        return self.width
