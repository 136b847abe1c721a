"""Build the encoders of a recipe, and the teacher of a distillation.

An encoder has pretrained weights or starts from scratch. This module also initializes its projection by ridge
regression, chooses which weights are trained, and computes its size for cost estimates. Shapes: n sentences, P pooled
dimension, D dimension.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling, StaticEmbedding
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.pytorch import run_in_torch
from dualmoco.models.config import ALL, HEAD, LAST, EncoderConfig, EncoderKind, PoolingMode
from dualmoco.models.load import find_folder, open_model
from dualmoco.models.model import Model
from dualmoco.models.network import (
    Encoder,
    is_projection,
    is_static,
    make_pooling,
    open_modules,
    prompt_of,
    route_of,
)
from dualmoco.models.tokenizer import CLS, MASK, PAD, SEP, UNKNOWN, entry_texts, train_tokenizer

STATIC_INIT_STD = 0.1
ENTRY_LENGTH = 6.0  # length of token vectors from `entry_vectors`; random vectors have length 2, trained vectors 22
RIDGE_STRENGTH = 0.01  # penalty as a share of the mean squared length of the inputs per dimension


def build_encoders(
    src: EncoderConfig,
    tgt: EncoderConfig,
    texts: Mapping[str, Iterable[str]],
    *,
    others: Sequence[EncoderConfig] = (),
) -> dict[str, Encoder]:
    """Builds the encoder of each language; both share one encoder if the target's kind is `shared`."""
    if tgt.kind == EncoderKind.shared:
        both = [text for side in texts.values() for text in side]
        encoder = build_encoder(src, both)
        return {src.lang: encoder, tgt.lang: encoder}
    encoders = {config.lang: build_encoder(config, texts[config.lang]) for config in (src, tgt, *others)}
    for other in (tgt, *others):
        dimensions = [encoders[config.lang].dimension for config in (src, other)]
        if dimensions[0] != dimensions[1]:
            raise ModelError(
                f"{src.lang} vectors have dimension {dimensions[0]}, {other.lang} vectors {dimensions[1]}; expected "
                f"the same: {_advise(src, other, dimensions)}"
            )
    return encoders


def _advise(src: EncoderConfig, tgt: EncoderConfig, dimensions: list[int]) -> str:
    """Advice on settings that give both sides the same dimension."""
    if src.frozen:
        return f"set tgt.projection={dimensions[0]}"
    if tgt.frozen:
        return f"set src.projection={dimensions[1]}"
    return f"set src.projection and tgt.projection to one number, for example {min(dimensions)}"


def build_encoder(config: EncoderConfig, texts: Iterable[str]) -> Encoder:
    """Builds the encoder of one language, on the CPU; `texts` train the tokenizer of a `bert` or `static` encoder."""
    builders = {EncoderKind.pretrained: _load_pretrained, EncoderKind.bert: _new_bert, EncoderKind.static: _new_static}
    layers, own_prompt = builders[config.kind](config, texts)
    prompt = own_prompt if config.prompt is None else config.prompt
    if isinstance(layers[0], Transformer):
        _limit_tokens(layers[0], config)
    elif config.dropout and not any(isinstance(layer, Dropout) for layer in layers):
        layers.insert(1, Dropout(config.dropout))
    return _end_with_unit_vectors(_set_pooling(layers, config), config.projection, prompt)


def load_teacher(name: str, config: EncoderConfig) -> Encoder:
    """Opens the teacher of `distill`, which returns unit vectors; ModelError if it cannot be loaded safely."""
    # If the teacher defines no pooling, it gets the pooling and length of the source encoder, `config`.
    layers, prompt = _open_layers(name, config.lang)
    if len(layers) == 1 and isinstance(layers[0], Transformer):
        _limit_tokens(layers[0], config)
        layers = _set_pooling(layers, config)
    return _end_with_unit_vectors(layers, 0, prompt)


def _limit_tokens(transformer: Transformer, config: EncoderConfig) -> None:
    transformer.max_seq_length = min(config.max_tokens, transformer.max_seq_length or config.max_tokens)
    if transformer.tokenizer is not None:
        transformer.tokenizer.padding_side = (
            "right"  # causal attention ignores padding on the right, and positions start with the text
        )


def _set_pooling(layers: list[nn.Module], config: EncoderConfig) -> list[nn.Module]:
    """The layers with the pooling of the recipe; `auto` keeps the model's own, or mean if it has none."""
    first, asked = layers[0], config.pooling
    if not isinstance(first, Transformer):
        if asked not in (PoolingMode.auto, PoolingMode.mean):
            raise ModelError(f"{config.lang}: pooling {asked} of a static model, which averages; expected auto or mean")
        return layers
    own = next((place for place, layer in enumerate(layers) if isinstance(layer, Pooling)), None)
    if own is None:
        mode = PoolingMode.mean if asked == PoolingMode.auto else asked
        return [first, make_pooling(first.get_embedding_dimension(), mode), *layers[1:]]
    if asked == PoolingMode.auto:
        return layers
    old: Any = layers[own]
    new = make_pooling(old.embedding_dimension, asked, include_prompt=old.include_prompt)
    if new.get_embedding_dimension() != old.get_embedding_dimension() and any(
        isinstance(layer, Dense) for layer in layers[own:]
    ):
        raise ModelError(
            f"{config.name}: pooling {asked} gives dimension {new.get_embedding_dimension()}, but its Dense layer "
            f"needs {old.get_embedding_dimension()}; expected pooling auto"
        )
    return [*layers[:own], new, *layers[own + 1 :]]


def _end_with_unit_vectors(layers: list[nn.Module], projection: int, prompt: str) -> Encoder:
    """Adds normalization and, unless the last layer already has that dimension, a projection."""
    while isinstance(layers[-1], Normalize):
        layers = layers[:-1]
    dimension = Encoder(layers).dimension
    if projection and not (isinstance(layers[-1], Dense) and dimension == projection):
        layers = [*layers, Dense(dimension, projection, bias=False, activation_function=nn.Identity())]
    return Encoder([*layers, Normalize()], prompt)


def _open_layers(name: str, lang: str) -> tuple[list[nn.Module], str]:
    """The layers and the prompt of a local or hub model; if it has routes, of the route of the language."""
    folder = find_folder(name)
    if folder is None:
        raise ModelError(f"{name}: not a network; expected a model folder or hub name to train from")
    opened = open_modules(folder)
    if isinstance(opened, Transformer):
        return [opened], ""
    layers = list(opened.children())
    if isinstance(layers[0], Router):
        return list(route_of(layers[0], lang, name).children()), prompt_of(opened, lang)
    return layers, prompt_of(opened)


def _load_pretrained(config: EncoderConfig, texts: Iterable[str]) -> tuple[list[nn.Module], str]:
    layers, prompt = _open_layers(config.name, config.lang)
    if not isinstance(layers[0], Transformer | StaticEmbedding):
        kind = type(layers[0]).__name__
        raise ModelError(f"{config.name}: begins with a {kind}; expected Transformer or StaticEmbedding")
    return layers, prompt


def _new_bert(config: EncoderConfig, texts: Iterable[str]) -> tuple[list[nn.Module], str]:
    """A BERT with random weights, and no prompt."""
    disable_progress_bar()
    tokenizer = train_tokenizer(texts, config.vocab_size, config.max_piece_length, special_tokens=True)
    shape = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        max_position_embeddings=config.max_tokens,
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(shape).save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            model_max_length=config.max_tokens,
            pad_token=PAD,
            unk_token=UNKNOWN,
            cls_token=CLS,
            sep_token=SEP,
            mask_token=MASK,
        ).save_pretrained(folder)
        return [Transformer(folder)], ""


def _new_static(config: EncoderConfig, texts: Iterable[str]) -> tuple[list[nn.Module], str]:
    """A table of token vectors, random or encoded by the model `entry_vectors`, and no prompt."""
    start = _open_entry_model(config) if config.entry_vectors else None
    tokenizer = train_tokenizer(texts, config.vocab_size, config.max_piece_length, special_tokens=False)
    tokenizer.enable_truncation(config.max_tokens)
    first = StaticEmbedding(tokenizer, embedding_dim=config.width)
    weight = first.embedding.weight
    nn.init.normal_(weight, std=STATIC_INIT_STD)
    if start:
        entries = entry_texts(tokenizer)
        vectors = start.encode(list(entries.values()), lang=config.lang)  # (entries, D)
        weight.data[list(entries)] = ENTRY_LENGTH * torch.from_numpy(vectors)
    return [first], ""


def _open_entry_model(config: EncoderConfig) -> Model:
    model = open_model(config.entry_vectors)
    dimension = model.backend(config.lang).dimension
    if dimension != config.width:
        raise ModelError(
            f"{config.entry_vectors}: vectors of dimension {dimension}; expected {config.width}, the width of the "
            f"{config.lang} encoder that they initialize"
        )
    return model


def start_projection(encoder: Encoder, texts: Sequence[str], goals: Vectors, *, lang: str) -> None:
    """Sets an encoder's projection to the ridge regression from its pooled vectors of n texts to `goals` (n, D)."""
    *below, projection, _ = encoder.layers
    if not is_projection(projection) or projection.linear.bias is not None:
        raise ModelError(
            f"{lang}: projection_init ridge of a model whose last layer, a {type(projection).__name__}, is more than a "
            "matrix; expected another dimension for projection, or projection_init random"
        )
    if len(texts) < projection.in_features:
        raise DataError(
            f"{lang}: projection_init ridge from {len(texts):,} pairs; expected at least {projection.in_features:,}, "
            "one for each dimension of the pooled vectors: give more pairs, raise ridge_pairs, or use random"
        )
    pooled = run_in_torch(Encoder(below, encoder.prompt)).encode(texts)  # (n, P)
    with torch.no_grad():
        projection.linear.weight.copy_(torch.from_numpy(ridge_regression(pooled, goals)))


def ridge_regression(inputs: Vectors, goals: Vectors, strength: float = RIDGE_STRENGTH) -> np.ndarray:
    """The matrix W (D, P), in fp64, that maps inputs x (n, P) close to the goals (n, D)."""
    # The penalty on W is `strength` times the mean squared input per dimension.
    x, y = inputs.astype(np.float64), goals.astype(np.float64)
    covariance = x.T @ x  # (P, P)
    penalty = strength * np.trace(covariance) / len(covariance)
    solved: np.ndarray = np.linalg.solve(covariance + penalty * np.eye(len(covariance)), x.T @ y)  # (P, D)
    return solved.T


def set_trainable(encoder: Encoder, config: EncoderConfig) -> None:
    """Freezes the weights that `frozen` and `trainable` exclude; ModelError if no weights are left to train."""
    if config.frozen:
        encoder.requires_grad_(False).eval()
        return
    if config.trainable == ALL:
        return
    layers = list(encoder.layers)
    pooling = max((place for place, layer in enumerate(layers) if isinstance(layer, Pooling)), default=0)
    trained = layers[pooling + 1 :]  # a static encoder pools in its first layer
    if config.trainable != HEAD:
        trained += _last_layers(encoder, config)
    encoder.requires_grad_(False)
    for module in trained:
        module.requires_grad_(True)
    if encoder.is_frozen:
        raise ModelError(
            f"{config.lang}: trainable {config.trainable} of a model without weights after pooling; expected some: "
            "set projection, or trainable to all"
        )


def _last_layers(encoder: Encoder, config: EncoderConfig) -> list[nn.Module]:
    """The transformer layers of `last:N`."""
    first: Any = encoder.layers[0]
    wanted = int(config.trainable.removeprefix(LAST))
    count = first.model.config.num_hidden_layers if isinstance(first, Transformer) else 0
    lists = (module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count)
    layers = next(lists, nn.ModuleList())
    if wanted > len(layers):
        most = f"at most {LAST}{len(layers)}, or all" if len(layers) else "all or head"
        raise ModelError(
            f"{config.lang}: trainable {config.trainable} of a model with {len(layers)} transformer layers; "
            f"expected {most}"
        )
    return list(layers)[len(layers) - wanted :]


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer, or of a table of token vectors, which has no layers."""

    vocab: int
    width: int
    dimension: int  # dimension of the vectors
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
        """Floating-point operations of the forward pass of one sentence."""
        if not self.layers:
            return 2 * tokens * self.width
        matrices = 4 * self.width * self.width + 2 * self.width * self.feed_forward
        attention = 2 * tokens * self.width
        return 2 * tokens * self.layers * (matrices + attention)


PAPER_SHAPES = {
    "bert-base-uncased": Shape(30522, 768, 768, 12, 12, 3072, 512),
    "hfl/chinese-roberta-wwm-ext": Shape(21128, 768, 768, 12, 12, 3072, 512),
    "roberta-large": Shape(50265, 1024, 1024, 24, 16, 4096, 514),
    "hfl/chinese-roberta-wwm-ext-large": Shape(21128, 1024, 1024, 24, 16, 4096, 512),
}
"""The paper's encoders by hub name, so that `plan` works offline."""


def shape_of(config: EncoderConfig) -> Shape:
    """The shape of an encoder, unless it is `shared`; a vocabulary that is not trained yet has the recipe's size."""
    if config.kind == EncoderKind.pretrained:
        if known := PAPER_SHAPES.get(config.name):
            return replace(known, dimension=config.projection or known.dimension)
        return read_shape(build_encoder(config, []))
    table = Shape(config.vocab_size, config.width, config.projection or config.width)
    if config.kind == EncoderKind.static:
        return table
    return replace(
        table,
        layers=config.layers,
        heads=config.heads,
        feed_forward=4 * config.width,
        positions=config.max_tokens,
    )


def read_shape(encoder: Encoder) -> Shape:
    """The shape of a built encoder; for unusual architectures, as much as the configuration shows."""
    first: Any = encoder.layers[0]
    if is_static(encoder):
        vocab, width = first.embedding.weight.shape
        return Shape(vocab, width, encoder.dimension)
    sizes = first.model.config
    width = int(getattr(sizes, "hidden_size", encoder.dimension))
    return Shape(
        vocab=getattr(sizes, "vocab_size", 0),
        width=width,
        dimension=encoder.dimension,
        layers=getattr(sizes, "num_hidden_layers", 0),
        heads=getattr(sizes, "num_attention_heads", 1),
        feed_forward=getattr(sizes, "intermediate_size", getattr(sizes, "hidden_dim", 4 * width)),
        positions=getattr(sizes, "max_position_embeddings", 0),
    )
