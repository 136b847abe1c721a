"""The encoders of a recipe: built from scratch or from pretrained weights, and the teacher of a distillation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling, StaticEmbedding
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from dualmoco.core.errors import ModelError
from dualmoco.models.encoder import Encoder
from dualmoco.models.folder import model_folder
from dualmoco.models.network import open_modules, route_of
from dualmoco.models.recipe import EncoderConfig, Kind
from dualmoco.models.tokenizer import PAD, train_tokenizer

STATIC_INIT_STD = 0.1


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
            f"same: set src.projection and tgt.projection to one number, for example {min(dimensions)}"
        )
    return encoders


def build_encoder(config: EncoderConfig, texts: Iterable[str]) -> Encoder:
    """Makes the encoder of one language.

    Args:
        config: Where it comes from and how it pools.
        texts: Sentences to train a tokenizer on, used by the kinds `bert` and `static`.

    Returns:
        The encoder, on the CPU.

    Raises:
        ModelError: A model that cannot be loaded safely.
    """
    makers = {Kind.pretrained: _pretrained, Kind.bert: _bert, Kind.static: _static}
    return _finish(makers[config.kind](config, texts), config)


def _finish(first: Transformer | StaticEmbedding, config: EncoderConfig) -> Encoder:
    """Pooling, projection and unit length after a first module."""
    layers: list[nn.Module] = [first]
    dimension = first.get_embedding_dimension()
    if isinstance(first, Transformer):
        first.max_seq_length = min(config.max_tokens, first.max_seq_length or config.max_tokens)
        layers.append(Pooling(dimension, pooling_mode=config.pooling.value))
    elif config.dropout:
        layers.append(Dropout(config.dropout))
    if config.projection:
        layers.append(Dense(dimension, config.projection, bias=False, activation_function=nn.Identity()))
    return Encoder([*layers, Normalize()])


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
    opened = open_modules(model_folder(name))
    if isinstance(opened, Transformer):
        return _finish(opened, replace(config, projection=0))
    layers = list(opened.children())
    if isinstance(layers[0], Router):
        layers = list(route_of(layers[0], config.lang, name).children())
    return Encoder(layers if isinstance(layers[-1], Normalize) else [*layers, Normalize()])


def _pretrained(config: EncoderConfig, texts: Iterable[str]) -> Transformer | StaticEmbedding:
    """The first module of a local or hub model: ours (then the language's route), sentence-transformers' or plain."""
    opened = open_modules(model_folder(config.name))
    first: nn.Module = opened if isinstance(opened, Transformer) else next(opened.children())
    if isinstance(first, Router):
        first = next(route_of(first, config.lang, config.name).children())
    if not isinstance(first, Transformer | StaticEmbedding):
        kind = type(first).__name__
        raise ModelError(f"{config.name}: begins with a {kind}; expected Transformer or StaticEmbedding")
    return first


def _bert(config: EncoderConfig, texts: Iterable[str]) -> Transformer:
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
        encoder: Transformer = Transformer(folder)
    return encoder


def _static(config: EncoderConfig, texts: Iterable[str]) -> StaticEmbedding:
    """A table of random token vectors."""
    tokenizer = train_tokenizer(texts, config.vocab_size, config.max_piece_length, special_tokens=False)
    tokenizer.enable_truncation(config.max_tokens)
    first = StaticEmbedding(tokenizer, embedding_dim=config.width)
    nn.init.normal_(first.embedding.weight, std=STATIC_INIT_STD)
    return first
