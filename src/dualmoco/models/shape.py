"""The shape of an encoder without its weights: how many there are, and how many operations a sentence takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dualmoco.models.building import build_encoder
from dualmoco.models.encoder import Encoder, is_static
from dualmoco.models.recipe import EncoderConfig, Kind


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer, or of a table of token vectors, which has no layers."""

    vocab: int
    width: int
    dimension: int  # of the vectors
    layers: int = 0
    heads: int = 0
    feed_forward: int = 0
    positions: int = 0

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: four square matrices, two of the feed-forward network, biases, two norms."""
        if not self.layers:
            return 0
        width, inner = self.width, self.feed_forward
        return 4 * width * width + 2 * width * inner + 4 * width + inner + width + 4 * width

    @property
    def parameters(self) -> int:
        """Weights of the encoder."""
        table = (self.vocab + self.positions) * self.width
        if self.layers:
            table += 2 * self.width + 2 * self.width  # two segments, a norm
        projection = self.width * self.dimension if self.dimension != self.width else 0
        return table + self.layers * self.layer_parameters + projection

    def operations(self, tokens: float) -> float:
        """Of one sentence of so many tokens, forward."""
        if not self.layers:
            return 2 * tokens * self.width
        matrices = 4 * self.width * self.width + 2 * self.width * self.feed_forward
        attention = 2 * tokens * self.width
        return 2 * tokens * self.layers * (matrices + attention)


KNOWN = {
    "bert-base-uncased": Shape(30522, 768, 768, 12, 12, 3072, 512),
    "hfl/chinese-roberta-wwm-ext": Shape(21128, 768, 768, 12, 12, 3072, 512),
    "roberta-large": Shape(50265, 1024, 1024, 24, 16, 4096, 514),
    "hfl/chinese-roberta-wwm-ext-large": Shape(21128, 1024, 1024, 24, 16, 4096, 512),
}
"""The paper's encoders by their hub names, for plans where the hub is out of reach."""


def shape_of(config: EncoderConfig) -> Shape:
    """The shape of the encoder that a recipe's side names.

    Args:
        config: Of the side; not of the kind `shared`, which has the other's.

    Returns:
        Its sizes; a vocabulary that is still to be made counts as large as it may become.

    Raises:
        ModelError: A model that cannot be opened.
    """
    if config.kind == Kind.static:
        return Shape(config.vocab_size, config.width, config.projection or config.width)
    if config.kind == Kind.bert:
        return Shape(
            config.vocab_size, config.width, config.projection or config.width, config.layers, config.heads,
            4 * config.width, config.max_tokens,
        )  # fmt: skip
    if config.name in KNOWN:
        return replace(KNOWN[config.name], dimension=config.projection or KNOWN[config.name].dimension)
    return read_shape(build_encoder(config, []))


def read_shape(encoder: Encoder) -> Shape:
    """The shape of an encoder that is built; of an unusual architecture what its configuration tells."""
    first: Any = encoder.layers[0]
    if is_static(encoder):
        vocab, width = first.embedding.weight.shape
        return Shape(vocab, width, encoder.dimension)
    sizes = first.model.config
    width = int(getattr(sizes, "hidden_size", encoder.dimension))
    return Shape(
        vocab=getattr(sizes, "vocab_size", 0), width=width, dimension=encoder.dimension,
        layers=getattr(sizes, "num_hidden_layers", 0), heads=getattr(sizes, "num_attention_heads", 1),
        feed_forward=getattr(sizes, "intermediate_size", getattr(sizes, "hidden_dim", 4 * width)),
        positions=getattr(sizes, "max_position_embeddings", 0),
    )  # fmt: skip
