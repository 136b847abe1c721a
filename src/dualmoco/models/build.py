"""The encoders of a recipe: built from scratch or from pretrained weights, and the teacher of a distillation."""

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
from dualmoco.models.backends.pytorch import TorchBackend
from dualmoco.models.config import ALL, HEAD, LAST, EncoderConfig, EncoderKind, PoolingMode
from dualmoco.models.load import find_folder, open_model
from dualmoco.models.model import Model
from dualmoco.models.network import Encoder, is_projection, is_static, open_modules, route_of
from dualmoco.models.tokenizer import PAD, entry_texts, train_tokenizer

STATIC_INIT_STD = 0.1
ENTRY_LENGTH = 6.0  # of token vectors that come from a model: between those of random ones, 2, and of trained ones, 22


def build_encoders(src: EncoderConfig, tgt: EncoderConfig, texts: Mapping[str, Iterable[str]]) -> dict[str, Encoder]:
    """Makes the two encoders of a recipe.

    Args:
        src: The source language's encoder.
        tgt: The target language's.
        texts: Sentences of each language, by its name, on which tokenizers are trained where a recipe asks for it.

    Returns:
        An encoder for each language; one and the same for both if the target's kind is `shared`.

    Raises:
        ModelError: A model that cannot be loaded safely, or encoders of different dimension without a projection.
    """
    if tgt.kind == EncoderKind.shared:
        both = [text for side in texts.values() for text in side]
        encoder = build_encoder(src, both)
        return {src.lang: encoder, tgt.lang: encoder}
    encoders = {config.lang: build_encoder(config, texts[config.lang]) for config in (src, tgt)}
    dimensions = [encoders[config.lang].dimension for config in (src, tgt)]
    if dimensions[0] != dimensions[1]:
        raise ModelError(
            f"{src.lang} vectors have dimension {dimensions[0]}, {tgt.lang} vectors {dimensions[1]}; expected the "
            f"same: {_advise(src, tgt, dimensions)}"
        )
    return encoders


def _advise(src: EncoderConfig, tgt: EncoderConfig, dimensions: list[int]) -> str:
    """What to set where the dimensions of both sides differ."""
    if src.frozen:
        return f"set tgt.projection={dimensions[0]}"
    if tgt.frozen:
        return f"set src.projection={dimensions[1]}"
    return f"set src.projection and tgt.projection to one number, for example {min(dimensions)}"


def build_encoder(config: EncoderConfig, texts: Iterable[str]) -> Encoder:
    """Makes the encoder of one language.

    Args:
        config: Where it comes from and how it pools.
        texts: Sentences to train a tokenizer on, used by the kinds `bert` and `static`.

    Returns:
        The encoder, on the CPU.

    Raises:
        ModelError: A model that cannot be loaded safely, or that cannot pool as the recipe asks.
    """
    makers = {EncoderKind.pretrained: _pretrained, EncoderKind.bert: _bert, EncoderKind.static: _static}
    layers = makers[config.kind](config, texts)
    if isinstance(layers[0], Transformer):
        layers[0].max_seq_length = min(config.max_tokens, layers[0].max_seq_length or config.max_tokens)
    elif config.dropout and not any(isinstance(layer, Dropout) for layer in layers):
        layers.insert(1, Dropout(config.dropout))
    return _finish(_pool(layers, config), config.projection)


def load_teacher(name: str, config: EncoderConfig) -> Encoder:
    """Opens the model that `distill` copies, with its own pooling if it is a sentence-transformers model.

    Args:
        name: Folder or hub name.
        config: Of the source encoder; its pooling and length serve a teacher that names no pooling.

    Returns:
        The teacher, giving unit vectors.

    Raises:
        ModelError: A model that cannot be loaded safely.
    """
    layers = _open_layers(name, config.lang)
    if len(layers) == 1 and isinstance(layers[0], Transformer):
        layers[0].max_seq_length = min(config.max_tokens, layers[0].max_seq_length or config.max_tokens)
        layers = _pool(layers, config)
    return _finish(layers, projection=0)


def _pool(layers: list[nn.Module], config: EncoderConfig) -> list[nn.Module]:
    """The layers with the pooling that the recipe asks for; with `auto` their own, or mean where they have none."""
    first, asked = layers[0], config.pooling
    if not isinstance(first, Transformer):
        if asked not in (PoolingMode.auto, PoolingMode.mean):
            raise ModelError(f"{config.lang}: pooling {asked} of a static model, which averages; expected auto or mean")
        return layers
    own = next((place for place, layer in enumerate(layers) if isinstance(layer, Pooling)), None)
    if own is None:
        mode = PoolingMode.mean if asked == PoolingMode.auto else asked
        return [first, Pooling(first.get_embedding_dimension(), pooling_mode=mode.value), *layers[1:]]
    if asked == PoolingMode.auto:
        return layers
    old: Any = layers[own]
    new = Pooling(old.embedding_dimension, pooling_mode=asked.value, include_prompt=old.include_prompt)
    if new.get_embedding_dimension() != old.get_embedding_dimension() and any(
        isinstance(layer, Dense) for layer in layers[own:]
    ):
        raise ModelError(
            f"{config.name}: pooling {asked} gives dimension {new.get_embedding_dimension()}, its Dense layer takes "
            f"{old.get_embedding_dimension()} of its own pooling; expected pooling auto"
        )
    return [*layers[:own], new, *layers[own + 1 :]]


def _finish(layers: list[nn.Module], projection: int) -> Encoder:
    """Projection and unit length after the other layers; a saved projection of that dimension serves as it is."""
    while isinstance(layers[-1], Normalize):
        layers = layers[:-1]
    dimension = Encoder(layers).dimension
    if projection and not (isinstance(layers[-1], Dense) and dimension == projection):
        layers = [*layers, Dense(dimension, projection, bias=False, activation_function=nn.Identity())]
    return Encoder([*layers, Normalize()])


def _open_layers(name: str, lang: str) -> list[nn.Module]:
    """All layers of a local or hub model: ours (then the language's route), sentence-transformers' or a plain one."""
    folder = find_folder(name)
    if folder is None:
        raise ModelError(f"{name}: not a network; expected a model folder or hub name to train from")
    opened = open_modules(folder)
    if isinstance(opened, Transformer):
        return [opened]
    layers = list(opened.children())
    return list(route_of(layers[0], lang, name).children()) if isinstance(layers[0], Router) else layers


def _pretrained(config: EncoderConfig, texts: Iterable[str]) -> list[nn.Module]:
    """The layers of a saved model, those after pooling among them."""
    layers = _open_layers(config.name, config.lang)
    if not isinstance(layers[0], Transformer | StaticEmbedding):
        kind = type(layers[0]).__name__
        raise ModelError(f"{config.name}: begins with a {kind}; expected Transformer or StaticEmbedding")
    return layers


def _bert(config: EncoderConfig, texts: Iterable[str]) -> list[nn.Module]:
    """A BERT with random weights."""
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
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
        ).save_pretrained(folder)
        return [Transformer(folder)]


def _static(config: EncoderConfig, texts: Iterable[str]) -> list[nn.Module]:
    """A table of token vectors: random ones, or those that a model gives to the entries as texts."""
    start = _entry_model(config) if config.entry_vectors else None
    tokenizer = train_tokenizer(texts, config.vocab_size, config.max_piece_length, special_tokens=False)
    tokenizer.enable_truncation(config.max_tokens)
    first = StaticEmbedding(tokenizer, embedding_dim=config.width)
    weight = first.embedding.weight
    nn.init.normal_(weight, std=STATIC_INIT_STD)
    if start:
        entries = entry_texts(tokenizer)
        vectors = start.encode(list(entries.values()), lang=config.lang)  # (entries, D)
        weight.data[list(entries)] = ENTRY_LENGTH * torch.from_numpy(vectors)
    return [first]


def _entry_model(config: EncoderConfig) -> Model:
    """Opens the model that a table of token vectors starts from; ModelError if of another dimension or language."""
    model = open_model(config.entry_vectors)
    dimension = model.backend(config.lang).dimension
    if dimension != config.width:
        raise ModelError(
            f"{config.entry_vectors}: vectors of dimension {dimension}; expected {config.width}, the width of the "
            f"{config.lang} encoder that starts from them"
        )
    return model


STRENGTH = 0.01
"""Of the penalty, as a share of the mean squared length of the pooled vectors along a dimension."""


def start_projection(encoder: Encoder, texts: Sequence[str], goals: Vectors, *, lang: str) -> None:
    """Sets the projection of an encoder to the ridge regression from its pooled vectors to given ones.

    Args:
        encoder: Ends in a linear layer and unit length.
        texts: Sentences of its language.
        goals: Vectors (n, D) of their translations.
        lang: Its language, for errors.

    Raises:
        ModelError: The last layer of the encoder is more than a matrix.
        DataError: Fewer pairs than the pooled vectors have dimensions.
    """
    *below, projection, _ = encoder.layers
    if not is_projection(projection) or projection.linear.bias is not None:
        raise ModelError(
            f"{lang}: projection_init ridge of a model whose last layer, a {type(projection).__name__}, is more than a "
            "matrix; expected projection of another dimension than that layer has, or projection_init random"
        )
    if len(texts) < projection.in_features:
        raise DataError(
            f"{lang}: projection_init ridge from {len(texts):,} pairs; expected at least {projection.in_features:,}, "
            "one for each dimension of the pooled vectors: give more pairs, raise ridge_pairs, or use random"
        )
    pooled = TorchBackend(Encoder(below)).encode(texts)  # (n, P)
    with torch.no_grad():
        projection.linear.weight.copy_(torch.from_numpy(ridge_regression(pooled, goals)))


def ridge_regression(inputs: Vectors, goals: Vectors, strength: float = STRENGTH) -> np.ndarray:
    """The matrix W (D, P) for which W x comes nearest to the goals.

    Args:
        inputs: Vectors x (n, P).
        goals: Vectors (n, D).
        strength: Of the penalty on W, as a share of the mean of the inputs' squared length along a dimension.

    Returns:
        The matrix that minimises squared distances plus the penalty, in double precision.
    """
    x, y = inputs.astype(np.float64), goals.astype(np.float64)
    covariance = x.T @ x  # (P, P)
    penalty = strength * np.trace(covariance) / len(covariance)
    solved: np.ndarray = np.linalg.solve(covariance + penalty * np.eye(len(covariance)), x.T @ y)  # (P, D)
    return solved.T


def set_trainable(encoder: Encoder, config: EncoderConfig) -> None:
    """Leaves to training what a recipe's `frozen` and `trainable` leave to it, and fixes the other weights.

    Args:
        encoder: All of whose weights learn so far.
        config: Of that encoder.

    Raises:
        ModelError: More layers than there are, layers of an encoder that has none, or nothing that could learn.
    """
    if config.frozen:
        encoder.requires_grad_(False).eval()
        return
    if config.trainable == ALL:
        return
    learning = _head(encoder)
    if config.trainable != HEAD:
        learning += _last_layers(encoder, config)
    encoder.requires_grad_(False)
    for module in learning:
        module.requires_grad_(True)
    if encoder.is_frozen:
        raise ModelError(
            f"{config.lang}: trainable {config.trainable} of a model without weights after pooling; expected some: "
            "set projection, or trainable to all"
        )


def _head(encoder: Encoder) -> list[nn.Module]:
    """The layers after pooling; a static encoder's table pools by itself."""
    layers = list(encoder.layers)
    pooling = max((place for place, layer in enumerate(layers) if isinstance(layer, Pooling)), default=0)
    return layers[pooling + 1 :]


def _last_layers(encoder: Encoder, config: EncoderConfig) -> list[nn.Module]:
    """The transformer layers that `last:N` names."""
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
    if config.kind == EncoderKind.static:
        return Shape(config.vocab_size, config.width, config.projection or config.width)
    if config.kind == EncoderKind.bert:
        return Shape(
            config.vocab_size,
            config.width,
            config.projection or config.width,
            config.layers,
            config.heads,
            4 * config.width,
            config.max_tokens,
        )
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
        vocab=getattr(sizes, "vocab_size", 0),
        width=width,
        dimension=encoder.dimension,
        layers=getattr(sizes, "num_hidden_layers", 0),
        heads=getattr(sizes, "num_attention_heads", 1),
        feed_forward=getattr(sizes, "intermediate_size", getattr(sizes, "hidden_dim", 4 * width)),
        positions=getattr(sizes, "max_position_embeddings", 0),
    )
