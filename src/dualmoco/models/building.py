"""The encoders of a recipe: built from scratch or from pretrained weights, and the teacher of a distillation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling, StaticEmbedding
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from dualmoco.core.errors import ModelError
from dualmoco.models.encoder import Encoder
from dualmoco.models.model import Model
from dualmoco.models.network import open_modules, route_of
from dualmoco.models.opening import find_folder, open_model
from dualmoco.models.recipe import EncoderConfig, Kind, PoolingMode
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
    if tgt.kind == Kind.shared:
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
    makers = {Kind.pretrained: _pretrained, Kind.bert: _bert, Kind.static: _static}
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
        vocab_size=tokenizer.get_vocab_size(), hidden_size=config.width, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, intermediate_size=4 * config.width,
        max_position_embeddings=config.max_tokens, pad_token_id=tokenizer.token_to_id(PAD),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        BertModel(shape).save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_max_length=config.max_tokens, pad_token=PAD, unk_token="[UNK]",
            cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        ).save_pretrained(folder)  # fmt: skip
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
