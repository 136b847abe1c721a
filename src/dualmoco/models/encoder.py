"""The encoder of one language: token features in, vectors (N, D) out, made of sentence-transformers' modules."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any, TypeGuard

import torch
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, StaticEmbedding
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

Features = dict[str, Tensor]
WIDE = "Ａ１，ｂ①！ﬁ？"
"""Characters that NFKC replaces."""


class Encoder(nn.Module):
    """One language: tokens in, vectors out, of unit length unless the model was made otherwise."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Features) -> Tensor:
        """Encodes features of `tokenize` to vectors (N, D)."""
        embedding: Tensor = self.layers(dict(features))["sentence_embedding"]
        return embedding

    def tokenize(self, texts: list[str]) -> Features:
        """Turns N sentences into the tensors that `forward` takes."""
        first: Any = self.layers[0]
        features: dict[str, Any] = first.preprocess(texts)
        return {name: value for name, value in features.items() if isinstance(value, Tensor)}

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        sized: list[Any] = [layer for layer in self.layers if hasattr(layer, "get_embedding_dimension")]
        return int(sized[-1].get_embedding_dimension())

    @property
    def is_frozen(self) -> bool:
        """Whether none of its weights learns, so that its vectors stay the same."""
        return not any(weight.requires_grad for weight in self.parameters())

    def set_dropout(self, share: float) -> None:
        """Sets the share of every dropout layer, wherever the architecture keeps them."""
        for layer in self.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = share

    def checkpoint_gradients(self) -> None:
        """Saves memory in training by computing activations twice; static encoders have none to save."""
        if isinstance(self.layers[0], Transformer):
            self.layers[0].model.gradient_checkpointing_enable()


def text_tokenizer(encoder: Encoder) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a transformer that takes nothing but tokens of plain text; None for other encoders."""
    first: Any = encoder.layers[0]
    plain = isinstance(first, Transformer) and not first.processing_kwargs and "message" not in first.modality_config
    tokenizer = first.tokenizer if plain and not first.can_flatten_inputs else None
    return tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer is first.processor else None


def carry_nfkc(encoder: Encoder) -> None:
    """Puts Unicode NFKC before all that an encoder's tokenizer does, if it has one of the `tokenizers` library."""
    first: Any = encoder.layers[0]
    fast = None if is_static(encoder) else text_tokenizer(encoder)
    tokenizer = first.tokenizer if is_static(encoder) else fast and fast.backend_tokenizer
    if isinstance(tokenizer, Tokenizer):
        own = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), own]) if own else normalizers.NFKC()


def carries_nfkc(encoder: Encoder) -> bool:
    """Whether an encoder's tokenizer cannot tell a text from its NFKC form, by trial."""
    tried, expected = (encoder.tokenize([text]) for text in (WIDE, unicodedata.normalize("NFKC", WIDE)))
    return all(torch.equal(tried[name], expected[name]) for name in expected)


def is_static(encoder: Encoder) -> bool:
    """Whether an encoder averages token vectors from a table."""
    return isinstance(encoder.layers[0], StaticEmbedding)


@torch.inference_mode()
def static_table(encoder: Encoder) -> tuple[Tokenizer, Tensor, bool] | None:
    """A static encoder as one table, its projections multiplied in.

    Args:
        encoder: Any encoder.

    Returns:
        The tokenizer, vectors (V + 1, D) whose means are the encoder's, the last row being for a sentence without
        tokens, and whether means are brought to unit length. None if the encoder does more than that.
    """
    first, *rest = encoder.layers
    if not isinstance(first, StaticEmbedding):
        return None
    layers = [layer for layer in rest if not isinstance(layer, Dropout)]
    normalizes = bool(layers) and isinstance(layers[-1], Normalize)
    if normalizes:
        layers.pop()
    weight = first.embedding.weight.float().cpu()
    table = torch.cat([weight, weight.new_zeros(1, weight.shape[1])])
    for layer in layers:
        if not is_projection(layer):
            return None
        table = layer.cpu()({"sentence_embedding": table})["sentence_embedding"]
    return first.tokenizer, table, normalizes


def is_projection(layer: nn.Module) -> TypeGuard[Dense]:
    """Whether a layer multiplies sentence vectors by a matrix, with or without a bias, and does no more."""
    if not isinstance(layer, Dense) or layer.use_residual or not isinstance(layer.activation_function, nn.Identity):
        return False
    return bool(layer.module_input_name == layer.module_output_name == "sentence_embedding")
