"""Encoders: built from a recipe, saved as and opened from sentence-transformers folders.

Gives `training.py` and `model.py` modules that turn token features into unit vectors (N, D), and evaluation any model
as it is. The only file that knows sentence-transformers. A saved model is a Router with one route a language and holds
only that library's own modules, so it opens without dualmoco.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling, StaticEmbedding
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from dualmoco.config import EncoderConfig, Kind
from dualmoco.corpus.tokenizer import PAD, train_tokenizer
from dualmoco.errors import ModelError
from dualmoco.hub import fetch_model
from dualmoco.modelfolder import check_folder
from dualmoco.pooling import FIRST_LAST, FirstLastPooling

Features = dict[str, Tensor]
LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError, SafetensorError)
STATIC_INIT_STD = 0.1


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
    def width(self) -> int:
        """D, the length of a vector."""
        sized: list[Any] = [layer for layer in self.layers if hasattr(layer, "get_embedding_dimension")]
        return int(sized[-1].get_embedding_dimension())

    def set_dropout(self, share: float) -> None:
        """Sets the share of every dropout layer, wherever the architecture keeps them."""
        for layer in self.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = share

    def checkpoint_gradients(self) -> None:
        """Saves memory in training by computing activations twice; static encoders have none to save."""
        if isinstance(self.layers[0], Transformer):
            self.layers[0].model.gradient_checkpointing_enable()


@torch.inference_mode()
def encode_texts(encoder: Encoder, texts: Sequence[str], batch_size: int) -> Tensor:
    """Vectors (n, D) of sentences in their order, encoded in batches of like length and evaluation mode."""
    encoder.eval()
    device = next(encoder.parameters()).device
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    vectors = torch.empty(len(texts), encoder.width)  # (n, D)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        features = encoder.tokenize([texts[row] for row in rows])
        vectors[rows] = encoder({name: value.to(device) for name, value in features.items()}).float().cpu()
    return vectors


def build_encoders(src: EncoderConfig, tgt: EncoderConfig, texts: Mapping[str, Iterable[str]]) -> dict[str, Encoder]:
    """Makes the two encoders of a recipe.

    Args:
        src: The source language's encoder.
        tgt: The target language's.
        texts: Sentences of each language, by its name, on which tokenizers are trained where a recipe asks for it.

    Returns:
        An encoder for each language; one and the same for both if the target's kind is `shared`.

    Raises:
        ModelError: A model that cannot be loaded safely, or encoders of different width without a projection.
    """
    if tgt.kind == Kind.shared:
        both = [text for side in texts.values() for text in side]
        encoder = build_encoder(src, both)
        return {src.lang: encoder, tgt.lang: encoder}
    encoders = {config.lang: build_encoder(config, texts[config.lang]) for config in (src, tgt)}
    widths = [encoders[config.lang].width for config in (src, tgt)]
    if widths[0] != widths[1]:
        raise ModelError(
            f"{src.lang} vectors have width {widths[0]}, {tgt.lang} vectors {widths[1]}; expected one width: "
            f"set src.projection and tgt.projection to the same number, for example {min(widths)}"
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
    width = first.get_embedding_dimension()
    if isinstance(first, Transformer):
        first.max_seq_length = min(config.max_tokens, first.max_seq_length or config.max_tokens)
        layers.append(Pooling(width, pooling_mode=config.pooling.value))
    elif config.dropout:
        layers.append(Dropout(config.dropout))
    if config.projection:
        layers.append(Dense(width, config.projection, bias=False, activation_function=nn.Identity()))
    return Encoder([*layers, Normalize()])


@dataclass(frozen=True)
class OpenedModel:
    """A model as its folder or hub name gives it, without anything added."""

    encoders: dict[str, Encoder] | Encoder
    """One for each language, or one that takes any."""
    pooling: str
    """`own` if the model says itself how it pools, else mean, max or cls."""
    prompt: str = ""
    """What the model wants before every sentence."""


def open_model(name: str, pooling: str | None = None) -> OpenedModel:
    """Opens any model: of dualmoco, of sentence-transformers or of transformers.

    Args:
        name: Folder or hub name.
        pooling: mean, max, cls or first-last, not the model's own; a model without any pools by mean unless told.

    Returns:
        Its encoders, whose vectors are of unit length only if the model makes them so, on the CPU.

    Raises:
        ModelError: A model that cannot be loaded safely, or a pooling for a model without one transformer.
    """
    opened = _open_any(name)
    if isinstance(opened, Transformer):
        return OpenedModel(_pooled(opened, pooling or "mean"), pooling or "mean")
    layers = list(opened.children())
    prompt = str(opened.prompts.get(opened.default_prompt_name or "") or "")
    if pooling and isinstance(layers[0], Transformer):
        return OpenedModel(_pooled(layers[0], pooling), pooling, prompt)
    if pooling:
        kind = type(layers[0]).__name__
        raise ModelError(f"{name}: pooling {pooling} is for one Transformer, this model begins with a {kind}; use auto")
    if isinstance(layers[0], Router):
        routes = layers[0].sub_modules.items()
        return OpenedModel({lang: Encoder(route.children()) for lang, route in routes}, "own", prompt)
    return OpenedModel(Encoder(layers), "own", prompt)


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
    opened = _open_any(name)
    if isinstance(opened, Transformer):
        return _finish(opened, replace(config, projection=0))
    layers = list(opened.children())
    if isinstance(layers[0], Router):
        layers = list(_route(layers[0], config.lang, name).children())
    return Encoder(layers if isinstance(layers[-1], Normalize) else [*layers, Normalize()])


def save_encoders(encoders: Mapping[str, Encoder], path: Path) -> None:
    """Writes a sentence-transformers folder with one route a language and no default route."""
    disable_progress_bar()
    routes: dict[str, list[Any]] = {lang: list(encoder.layers.children()) for lang, encoder in encoders.items()}
    router = Router(routes, allow_empty_key=False)
    device = str(next(router.parameters()).device)  # SentenceTransformer moves its modules: leave them where they are
    SentenceTransformer(modules=[router], device=device, similarity_fn_name="dot").save(
        str(path), create_model_card=False, safe_serialization=True
    )


def save_encoder(encoder: Encoder, path: Path, prompt: str = "") -> None:
    """Writes the encoder of one language as a sentence-transformers folder that needs no task.

    Args:
        encoder: The encoder.
        path: The folder.
        prompt: What the model wants before every sentence.
    """
    disable_progress_bar()
    model = SentenceTransformer(modules=list(encoder.layers.children()), device="cpu")
    if prompt:
        model.prompts, model.default_prompt_name = {"sentence": prompt}, "sentence"
    model.save(str(path), create_model_card=False, safe_serialization=True)


def text_tokenizer(encoder: Encoder) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a transformer that takes nothing but tokens of plain text; None for other encoders."""
    first: Any = encoder.layers[0]
    plain = isinstance(first, Transformer) and not first.processing_kwargs and "message" not in first.modality_config
    tokenizer = first.tokenizer if plain and not first.can_flatten_inputs else None
    return tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer is first.processor else None


def is_static(encoder: Encoder) -> bool:
    """Whether an encoder averages token vectors from a table."""
    return isinstance(encoder.layers[0], StaticEmbedding)


@torch.inference_mode()
def static_table(encoder: Encoder) -> tuple[Tokenizer, Tensor] | None:
    """A static encoder as one table, its projections multiplied in.

    Args:
        encoder: Any encoder.

    Returns:
        The tokenizer, and vectors (V + 1, D) whose means point where the encoder's do; the last row is for a sentence
        without tokens. None if the encoder does more than average, project and normalise.
    """
    first, *rest = encoder.layers
    if not isinstance(first, StaticEmbedding):
        return None
    layers = [layer for layer in rest if not isinstance(layer, Dropout)]
    if layers and isinstance(layers[-1], Normalize):
        layers.pop()
    weight = first.embedding.weight.float().cpu()
    table = torch.cat([weight, weight.new_zeros(1, weight.shape[1])])
    for layer in layers:
        if not _is_projection(layer):
            return None
        table = layer.cpu()({"sentence_embedding": table})["sentence_embedding"]
    return first.tokenizer, table


def load_encoders(path: str | Path) -> dict[str, Encoder]:
    """Opens a folder that `save_encoders` wrote.

    Args:
        path: The folder.

    Returns:
        An encoder for each language, in the order they were saved.

    Raises:
        ModelError: Not such a folder, or one with pickled weights or code in it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; expected a model folder such as runs/demo/model")
    check_folder(folder)
    if not (folder / "modules.json").is_file():
        raise ModelError(f"{folder}: no modules.json; expected a folder saved by dualmoco train (RUN/model)")
    router = next(_open(folder).children())
    if not isinstance(router, Router):
        raise ModelError(f"{folder}: a model of one route; expected one route a language, as dualmoco train saves it")
    return {lang: Encoder(layers.children()) for lang, layers in router.sub_modules.items()}


def _open(name: str | Path) -> SentenceTransformer:
    disable_progress_bar()
    try:
        return SentenceTransformer(
            str(name), device="cpu", trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )
    except LOADING_ERRORS as error:
        raise ModelError(f"{name}: cannot be opened as a model: {_first_line(error)}") from None


def _open_any(name: str) -> SentenceTransformer | Transformer:
    """A model of sentence-transformers whole, of transformers as the one module it is."""
    folder = Path(name) if Path(name).is_dir() else fetch_model(name)
    check_folder(folder)
    if (folder / "modules.json").is_file():
        return _open(folder)
    disable_progress_bar()
    try:
        plain: Transformer = Transformer(str(folder), model_kwargs={"use_safetensors": True})
        return plain
    except LOADING_ERRORS as error:
        raise ModelError(f"{name}: cannot be opened as a model: {_first_line(error)}") from None


def _pretrained(config: EncoderConfig, texts: Iterable[str]) -> Transformer | StaticEmbedding:
    """The first module of a local or hub model: ours (then the language's route), sentence-transformers' or plain."""
    opened = _open_any(config.name)
    first: nn.Module = opened if isinstance(opened, Transformer) else next(opened.children())
    if isinstance(first, Router):
        first = next(_route(first, config.lang, config.name).children())
    if not isinstance(first, Transformer | StaticEmbedding):
        kind = type(first).__name__
        raise ModelError(f"{config.name}: begins with a {kind}; expected Transformer or StaticEmbedding")
    return first


def _pooled(first: Transformer, pooling: str) -> Encoder:
    if pooling == FIRST_LAST:
        first.model.config.output_hidden_states = True
        return Encoder([first, FirstLastPooling(first.get_embedding_dimension())])
    return Encoder([first, Pooling(first.get_embedding_dimension(), pooling_mode=pooling)])


def _is_projection(layer: nn.Module) -> bool:
    """Whether a layer multiplies sentence vectors by a matrix and does no more."""
    if not isinstance(layer, Dense) or layer.use_residual or not isinstance(layer.activation_function, nn.Identity):
        return False
    return bool(layer.module_input_name == layer.module_output_name == "sentence_embedding")


def _route(router: Router, lang: str, name: str) -> nn.Module:
    if lang not in router.sub_modules:
        raise ModelError(f"{name}: has no language {lang!r}; expected one of {', '.join(router.sub_modules)}")
    return router.sub_modules[lang]


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


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
