"""The encoder of one language, made of sentence-transformers modules, and how model folders are opened and saved.

Only the files of `models/` import sentence-transformers. Shapes: N sentences, L tokens, V vocabulary, D dimension.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling, StaticEmbedding
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from dualmoco.core.errors import ModelError
from dualmoco.models.backends.st_format import choose_prompt
from dualmoco.models.backends.static import StaticTable, check_vocabulary
from dualmoco.models.config import FIRST_LAST, Attention, PoolingMode
from dualmoco.models.folder import MODULES_FILE, check_folder
from dualmoco.models.hybrid import is_hybrid
from dualmoco.models.int8_format import unpacked
from dualmoco.models.lora import merge_adapter
from dualmoco.models.model import ANY_LANGUAGE

Features = dict[str, Tensor]
PART_TOKENS = 512  # fixed cost of one more part, in padding tokens
NFKC_SAMPLE = "Ａ１，ｂ①！ﬁ？"  # characters that NFKC replaces
LIBRARY_POOLING = {PoolingMode.last: "lasttoken"}  # names that differ in sentence-transformers
LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class TokenParts:
    """The tokens of N sentences in parts of similar length, each padded to its own longest sentence."""

    parts: list[Features]
    places: Tensor | None  # (N,): row of each sentence in the joined parts; None if there is only one part, in order

    @classmethod
    def split(cls, features: Features) -> TokenParts:
        """Sorts a padded batch by length and splits it where that saves most; batches without a mask stay whole."""
        mask = features.get("attention_mask")
        if mask is None or any(value.shape != mask.shape for value in features.values()):
            return cls([features], None)
        lengths, order = mask.sum(dim=1).sort(stable=True)
        parts = order.tensor_split(split_lengths(lengths.numpy()))
        if len(parts) == 1:
            return cls([features], None)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        return cls([_take_rows(features, rows, mask[rows].any(dim=0)) for rows in parts], places)

    @property
    def count(self) -> int:
        """Tokens of all parts, including padding."""
        return sum(part["input_ids"].numel() for part in self.parts)

    def to(self, device: torch.device) -> TokenParts:
        """The tokens on a device."""
        parts = [{name: value.to(device, non_blocking=True) for name, value in part.items()} for part in self.parts]
        return TokenParts(parts, None if self.places is None else self.places.to(device, non_blocking=True))


def _take_rows(features: Features, rows: Tensor, columns: Tensor) -> Features:
    return {name: value[rows][:, columns] for name, value in features.items()}


def split_lengths(lengths: np.ndarray) -> list[int]:
    """Where to split sorted lengths to minimize padded tokens plus PART_TOKENS per part."""
    sizes, counts = np.unique(lengths, return_counts=True)
    ends = np.concatenate([[0], counts.cumsum()])  # a part contains all sentences of some adjacent sizes
    costs, came_from = np.zeros(len(ends)), np.zeros(len(ends), dtype=np.int64)
    for last in range(1, len(ends)):
        tried = costs[:last] + (ends[last] - ends[:last]) * sizes[last - 1] + PART_TOKENS
        came_from[last] = tried.argmin()
        costs[last] = tried[came_from[last]]
    splits, last = [], came_from[-1]
    while last:
        splits.append(int(ends[last]))
        last = came_from[last]
    return splits[::-1]


class Encoder(nn.Module):
    """One language: tokens in, vectors out; of unit length if the last layer normalizes them.

    Args:
        layers: Modules of sentence-transformers.
        prompt: Text before every sentence.
    """

    def __init__(self, layers: Iterable[nn.Module], prompt: str = "") -> None:
        super().__init__()
        self.layers, self.prompt = nn.Sequential(*layers), prompt
        leaves_out = any(isinstance(layer, Pooling) and not layer.include_prompt for layer in self.layers)
        self.needs_half = False  # whether its attention does not support fp32
        self.prompt_tokens = int(self._preprocess(["a"]).get("prompt_length") or 0) if prompt and leaves_out else 0

    def forward(self, features: Features | TokenParts) -> Tensor:
        """Encodes the features of `tokenize`, whole or in parts, as vectors (N, D)."""
        if isinstance(features, TokenParts):
            vectors = [self(part) for part in features.parts]
            return vectors[0] if features.places is None else torch.cat(vectors)[features.places]
        left_out = {"prompt_length": self.prompt_tokens} if self.prompt_tokens else {}
        with self._half_precision() if self.needs_half else nullcontext():
            embedding: Tensor = self.layers({**features, **left_out})["sentence_embedding"]
        return embedding

    def _half_precision(self) -> torch.autocast:
        """Autocast to the current autocast type, or else to bf16."""
        device = next(self.parameters()).device.type
        is_set = torch.is_autocast_enabled(device)
        return torch.autocast(device, torch.get_autocast_dtype(device) if is_set else torch.bfloat16)

    def tokenize(self, texts: list[str]) -> Features:
        """Turns N sentences, each after the prompt, into the input tensors of `forward`."""
        return {name: value for name, value in self._preprocess(texts).items() if isinstance(value, Tensor)}

    def _preprocess(self, texts: list[str]) -> dict[str, Any]:
        first: Any = self.layers[0]
        prompt = {"prompt": self.prompt} if self.prompt else {}
        features: dict[str, Any] = first.preprocess(texts, **prompt)
        return features

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        sized: list[Any] = [layer for layer in self.layers if hasattr(layer, "get_embedding_dimension")]
        return int(sized[-1].get_embedding_dimension())

    @property
    def is_frozen(self) -> bool:
        """Whether none of its weights are trained, so its vectors stay the same."""
        return not any(weight.requires_grad for weight in self.parameters())

    def set_dropout(self, share: float) -> None:
        """Sets the probability of all dropout, wherever the architecture stores it."""
        for module, name in self._dropouts():
            setattr(module, name, share)

    @property
    def has_dropout(self) -> bool:
        """Whether two passes over the same sentence differ in training mode."""
        return any(getattr(module, name) > 0 for module, name in self._dropouts())

    def _dropouts(self) -> Iterator[tuple[nn.Module, str]]:
        """Where dropout probabilities are stored: in dropout layers, or in attention layers such as ModernBERT's."""
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                yield module, "p"
            numbers = {name for name, value in vars(module).items() if type(value) in (int, float)}
            yield from ((module, name) for name in sorted(numbers) if "dropout" in name)

    def set_attention(self, attention: Attention) -> None:
        """Sets the implementation of a transformer's attention; ValueError or ImportError if it is not available."""
        first: Any = self.layers[0]
        if attention != Attention.auto:
            first.model.set_attn_implementation(attention.value)
            self.needs_half = attention == Attention.flash_attention_2

    def checkpoint_gradients(self) -> None:
        """Saves memory in training by computing activations twice; does nothing for static encoders."""
        if isinstance(self.layers[0], Transformer):
            self.layers[0].model.gradient_checkpointing_enable()


def text_tokenizer(encoder: Encoder) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a transformer whose only input is tokens of plain text; None for other encoders."""
    first: Any = encoder.layers[0]
    plain = isinstance(first, Transformer) and not first.processing_kwargs and "message" not in first.modality_config
    tokenizer = first.tokenizer if plain and not first.can_flatten_inputs else None
    return tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer is first.processor else None


def count_positions(encoder: Encoder) -> int | None:
    """Maximum tokens of a transformer; None if it has no position embeddings."""
    model: Any = getattr(encoder.layers[0], "model", None)
    rows = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    tables = [module for name, module in model.named_modules() if name.endswith("position_embeddings")] if model else []
    if not isinstance(rows, int) or rows < 1:
        return None
    padding = next((getattr(table, "padding_idx", None) for table in tables), None)
    return rows if padding is None else rows - padding - 1  # RoBERTa starts positions after the index of padding


def add_nfkc_normalizer(encoder: Encoder) -> None:
    """Prepends Unicode NFKC to an encoder's tokenizer, if the tokenizer is from the `tokenizers` library."""
    first: Any = encoder.layers[0]
    fast = None if is_static(encoder) else text_tokenizer(encoder)
    tokenizer = first.tokenizer if is_static(encoder) else fast and fast.backend_tokenizer
    if isinstance(tokenizer, Tokenizer):
        own = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), own]) if own else normalizers.NFKC()


def carries_nfkc(encoder: Encoder) -> bool:
    """Whether an encoder tokenizes a sample text and its NFKC form equally."""
    texts = (NFKC_SAMPLE, unicodedata.normalize("NFKC", NFKC_SAMPLE))
    tried, expected = (encoder.tokenize([text]) for text in texts)
    return all(torch.equal(tried[name], expected[name]) for name in expected)


def is_static(encoder: Encoder) -> bool:
    """Whether an encoder averages token vectors from a table."""
    return isinstance(encoder.layers[0], StaticEmbedding)


def take_all_tokens(encoder: Encoder) -> None:
    """Removes the token limit of a static encoder, for which long sentences cost nothing."""
    first: Any = encoder.layers[0]
    if isinstance(first, StaticEmbedding):
        first.tokenizer.no_truncation()


@torch.inference_mode()
def static_table(encoder: Encoder) -> StaticTable | None:
    """A static encoder as one table, with its projections multiplied in; None for other encoders."""
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
    return StaticTable(first.tokenizer, table.numpy(), normalizes, encoder.prompt)


def is_projection(layer: nn.Module) -> TypeGuard[Dense]:
    """Whether a layer only multiplies sentence vectors by a matrix, with or without a bias."""
    if not isinstance(layer, Dense) or layer.use_residual or not isinstance(layer.activation_function, nn.Identity):
        return False
    return bool(layer.module_input_name == layer.module_output_name == "sentence_embedding")


@dataclass(frozen=True)
class OpenedNetwork:
    """The networks of a model folder."""

    encoders: dict[str, Encoder]
    """The encoder of each language, possibly shared, or a single encoder under ANY_LANGUAGE."""
    pooling: str  # `own` if the model defines its pooling, else mean, max, cls, last or first-last

    @property
    def prompts(self) -> dict[str, str]:
        """The prompt of each encoder."""
        return {lang: encoder.prompt for lang, encoder in self.encoders.items()}


def open_network(folder: Path, pooling: str | None = None, prompt: str = "") -> OpenedNetwork:
    """Opens the encoders of a model, on the CPU.

    Args:
        folder: The model folder.
        pooling: Pooling (default: the model's own, or mean if it has none).
        prompt: Text before every sentence; empty for the model's own.
    """
    opened = open_modules(folder)
    if isinstance(opened, Transformer):
        return OpenedNetwork({ANY_LANGUAGE: _pooled(opened, pooling or "mean", prompt)}, pooling or "mean")
    layers = list(opened.children())
    if isinstance(layers[0], Router) and not pooling:
        return OpenedNetwork(_routes(opened, layers[0], prompt), "own")
    prompt = prompt or prompt_of(opened)
    if pooling and isinstance(layers[0], Transformer):
        return OpenedNetwork({ANY_LANGUAGE: _pooled(layers[0], pooling, prompt)}, pooling)
    if pooling:
        kind = type(layers[0]).__name__
        raise ModelError(
            f"{folder}: pooling {pooling} needs a Transformer, but this model begins with a {kind}; use auto"
        )
    return OpenedNetwork({ANY_LANGUAGE: Encoder(layers, prompt)}, "own")


def prompt_of(opened: Any, lang: str = ANY_LANGUAGE) -> str:
    """The prompt of an opened sentence-transformers model, or of one of its routes."""
    return choose_prompt(opened.prompts, opened.default_prompt_name, lang)


def _routes(opened: Any, router: Router, prompt: str) -> dict[str, Encoder]:
    """The encoder of each language; languages with the same modules and prompt have the same encoder."""
    distinct: dict[tuple[str | int, ...], Encoder] = {}
    encoders: dict[str, Encoder] = {}
    for lang, route in router.sub_modules.items():
        layers, own = list(route.children()), prompt or prompt_of(opened, lang)
        encoders[lang] = distinct.setdefault((own, *map(id, layers)), Encoder(layers, own))
    return encoders


def _pooled(first: Transformer, pooling: str, prompt: str) -> Encoder:
    if pooling == FIRST_LAST:
        first.model.config.output_hidden_states = True
        return Encoder([first, FirstLastPooling(first.get_embedding_dimension())], prompt)
    return Encoder([first, make_pooling(first.get_embedding_dimension(), pooling)], prompt)


def make_pooling(dimension: int, pooling: str, *, include_prompt: bool = True) -> Pooling:
    """The pooling layer of a PoolingMode other than auto."""
    mode = LIBRARY_POOLING.get(PoolingMode(pooling), pooling)
    layer: Pooling = Pooling(dimension, pooling_mode=str(mode), include_prompt=include_prompt)
    return layer


def open_routes(folder: Path) -> dict[str, Encoder]:
    """Opens a folder that `save_encoders` wrote: an encoder for each language, in the order they were saved."""
    encoders = open_network(folder).encoders
    if ANY_LANGUAGE in encoders:
        raise ModelError(
            f"{folder}: a model with one route; expected one route per language, as saved by dualmoco train"
        )
    return encoders


def open_modules(folder: Path) -> SentenceTransformer | Transformer:
    """Loads a model in fp32 on the CPU: a whole sentence-transformers model, or a transformers model as one module."""
    if is_hybrid(folder):
        raise ModelError(f"{folder}: a hybrid of several models; expected a single model, such as one of its parts")
    check_folder(folder)
    disable_progress_bar()
    weights = {"use_safetensors": True, "dtype": "float32"}
    opened: SentenceTransformer | Transformer
    try:
        with unpacked(folder) as whole:
            if (whole / MODULES_FILE).is_file():
                opened = SentenceTransformer(str(whole), device="cpu", trust_remote_code=False, model_kwargs=weights)
            else:
                opened = Transformer(str(whole), model_kwargs=weights)
    except LOADING_ERRORS as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{folder}: cannot be opened as a model: {reason}") from None
    _check_weights(opened, folder)
    _complete_tokenizers(opened)
    opened.float()  # modules other than the transformer keep their stored precision
    return opened


def _complete_tokenizers(opened: nn.Module) -> None:
    """Lets tokenizers without a padding token, such as Llama's, pad with the end-of-text token; padding is masked."""
    for module in opened.modules():
        tokenizer = module.tokenizer if isinstance(module, Transformer) else None
        if tokenizer is not None and tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token


def _check_weights(opened: nn.Module, folder: Path) -> None:
    """ModelError if weights are missing from the files, not finite, or too few for the vocabulary."""
    for module in opened.modules():
        if isinstance(module, StaticEmbedding):
            check_vocabulary(tuple(module.embedding.weight.shape), module.tokenizer, folder)
        elif isinstance(module, PreTrainedModel):
            _check_transformer(module, folder)
    for name, weight in opened.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(
                f"{folder}: {name} contains NaN or infinity; expected finite weights: make the model again"
            )


def _check_transformer(model: PreTrainedModel, folder: Path) -> None:
    """ModelError if transformers filled weights with random numbers, except for a pooler, which has no effect."""
    heads = getattr(model.config, "num_attention_heads", 1)
    if isinstance(heads, int) and heads < 1:
        raise ModelError(f"{folder}: {heads} attention heads; expected at least one")
    loaded = {name: getattr(weight, "_is_hf_initialized", False) for name, weight in model.named_parameters()}
    missing = [name for name, known in loaded.items() if not known and "pooler." not in name]
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} weights are missing, such as {missing[0]}; expected all that config.json "
            "describes: save or download the model again"
        )


def route_of(router: Router, lang: str, name: str) -> nn.Module:
    """The modules of one language; ModelError if the model does not have it."""
    if lang not in router.sub_modules:
        raise ModelError(f"{name}: has no language {lang!r}; expected one of {', '.join(router.sub_modules)}")
    return router.sub_modules[lang]


def save_encoders(encoders: Mapping[str, Encoder], path: Path) -> None:
    """Writes a sentence-transformers folder with one route and prompt per language and no default route.

    The prompt of a language is named after the language. sentence-transformers applies the prompt automatically if all
    languages have the same one. Adapters are added to the weights.
    """
    disable_progress_bar()
    merged = {encoder: merge_adapter(encoder) for encoder in encoders.values()}
    routes: dict[str, list[Any]] = {lang: list(merged[encoder].layers) for lang, encoder in encoders.items()}
    router = Router(routes, allow_empty_key=False)
    device = str(
        next(router.parameters()).device
    )  # SentenceTransformer moves its modules, so keep their current device
    model = SentenceTransformer(modules=[router], device=device, similarity_fn_name="dot")
    prompts: dict[str, str | None] = {lang: encoder.prompt for lang, encoder in encoders.items()}
    if any(prompts.values()):
        model.prompts = prompts
        model.default_prompt_name = next(iter(prompts)) if len(set(prompts.values())) == 1 else None
    model.save(str(path), create_model_card=False, safe_serialization=True)


def save_encoder(encoder: Encoder, path: Path) -> None:
    """Writes the encoder of one language as a sentence-transformers folder that needs no task, with its prompt."""
    disable_progress_bar()
    model = SentenceTransformer(modules=list(encoder.layers.children()), device="cpu")
    if encoder.prompt:
        model.prompts, model.default_prompt_name = {"sentence": encoder.prompt}, "sentence"
    model.save(str(path), create_model_card=False, safe_serialization=True)


class FirstLastPooling(nn.Module):
    """Average of the first and last layer, then mean over tokens, as in the baselines of BERT-whitening and SimCSE."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Adds `sentence_embedding` (N, D) to the output of a transformer with all its layers."""
        layers: tuple[Tensor, ...] = features["all_layer_embeddings"]  # word embeddings, then each layer: (N, L, D)
        tokens = (layers[1] + layers[-1]) / 2
        mask = features["attention_mask"].unsqueeze(-1).to(tokens.dtype)  # (N, L, 1)
        return {**features, "sentence_embedding": (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)}

    def get_embedding_dimension(self) -> int:
        """D."""
        return self.dimension
