"""Encoders: built from a recipe, saved as and opened from sentence-transformers folders.

Gives `training.py` and `model.py` modules that turn token features into unit vectors (N, D). The only file that knows
sentence-transformers. A saved model is a Router with one route a language and holds only that library's own modules, so
it opens without dualmoco.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling, StaticEmbedding
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from dualmoco.config import EncoderConfig, Kind
from dualmoco.corpus.tokenizer import PAD, train_tokenizer
from dualmoco.errors import ModelError

Features = dict[str, Tensor]
LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError, SafetensorError)
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".pickle")
STATIC_INIT_STD = 0.1
logger = logging.getLogger(__name__)


class Encoder(nn.Module):
    """One language: tokens in, unit vectors out."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Features) -> Tensor:
        """Encodes features of `tokenize` to unit vectors (N, D)."""
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
    """Unit vectors (n, D) of sentences in their order, encoded in batches of like length and evaluation mode."""
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
    first = makers[config.kind](config, texts)
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


def load_teacher(name: str, config: EncoderConfig) -> Encoder:
    """Opens the model that `distill` copies, with its own pooling if it is a sentence-transformers folder.

    Args:
        name: Folder or hub name.
        config: Of the source encoder; its pooling serves a teacher that names none.

    Returns:
        The teacher, giving unit vectors.

    Raises:
        ModelError: A model that cannot be loaded safely.
    """
    if not (Path(name) / "modules.json").is_file():
        return build_encoder(replace(config, kind=Kind.pretrained, name=name, projection=0), [])
    check_folder(Path(name))
    layers = list(_open(name).children())
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


def check_folder(folder: Path) -> None:
    """Refuses a model folder whose loading could run code.

    Args:
        folder: A local model folder.

    Raises:
        ModelError: Python files, module classes from outside sentence-transformers, remote-code maps, or weights that
            exist only in pickled form.
    """
    for code in folder.rglob("*.py"):
        raise ModelError(f"{code}: code in a model folder is never run; expected weights and JSON only")
    for config in folder.rglob("*.json"):
        for name in _foreign_code(config):
            raise ModelError(f"{config}: names the class {name}; expected only classes of sentence-transformers")
    for weights in folder.rglob("*"):
        if weights.suffix in PICKLED and not list(weights.parent.glob("*.safetensors")):
            raise ModelError(f"{weights}: pickled weights are never loaded; expected them as model.safetensors")


def _foreign_code(config: Path) -> list[str]:
    """Classes a JSON file of a model folder would have imported from outside the libraries."""
    if config.name not in ("modules.json", "router_config.json", "config.json", "tokenizer_config.json"):
        return []
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        if isinstance(content, list):
            types = [str(module.get("type")) for module in content]
        else:
            types = [str(name) for name in (content.get("types") or {}).values()]
            types += [f"in auto_map: {name}" for name in content.get("auto_map") or {}]
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{config}: not a model's JSON file ({error}); save or download the model again") from None
    return [name for name in types if not name.startswith("sentence_transformers.")]


def _open(name: str | Path) -> SentenceTransformer:
    disable_progress_bar()
    try:
        return SentenceTransformer(
            str(name), device="cpu", trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )
    except LOADING_ERRORS as error:
        raise ModelError(f"{name}: cannot be opened as a model: {_first_line(error)}") from None


def _pretrained(config: EncoderConfig, texts: Iterable[str]) -> Transformer | StaticEmbedding:
    """The first module of a local or hub model: ours (then the language's route), sentence-transformers' or plain."""
    folder = Path(config.name)
    if folder.is_dir():
        check_folder(folder)
    if (folder / "modules.json").is_file():
        first = next(_open(folder).children())
        if isinstance(first, Router):
            first = next(_route(first, config.lang, config.name).children())
        if not isinstance(first, Transformer | StaticEmbedding):
            raise ModelError(f"{folder}: begins with a {type(first).__name__}; expected Transformer or StaticEmbedding")
        return first
    disable_progress_bar()
    try:
        plain: Transformer = Transformer(config.name, model_kwargs={"use_safetensors": True})
        return plain
    except LOADING_ERRORS as error:
        raise ModelError(
            f"{config.name}: neither a model folder nor a hub name that can be loaded from here: {_first_line(error)}"
        ) from None


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
