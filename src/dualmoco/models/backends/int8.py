"""The int8 back-end: a packed BERT on a CPU, whose matrices are multiplied as they are stored, without transformers.

Each row of the weights is int8 with one scale. Activations are quantized to int8 per token as they come, so the vector
of a sentence does not depend on its batch. Products are summed exactly, in int32; everything else is fp32.
Shapes: n sentences, N in a batch, L tokens, H heads, E width, D dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, normalize, scaled_dot_product_attention

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.st_format import (
    DENSE,
    LAYOUT_ERRORS,
    POOLING,
    TRANSFORMER,
    Layer,
    UnknownLayoutError,
    check_projection,
    pop_normalize,
    read_layout,
    read_prompt,
    read_settings,
    read_tokenizer,
)
from dualmoco.models.backends.static import check_vocabulary
from dualmoco.models.backends.tokens import (
    CPU_BATCH_TOKENS,
    TOKEN_IDS,
    TOKEN_MASK,
    Arrays,
    Padding,
    TokenBackend,
    TokenSource,
    check_length,
    one_thread_workers,
)
from dualmoco.models.folder import INT8_FILE
from dualmoco.models.int8_format import INT8_MAX, SCALE_SUFFIX, check_packed
from dualmoco.models.model import INT8

Tensors = Mapping[str, Tensor]
LEAST_PEAK = 1e-12  # a row of activations with a lower peak counts as zero
BERT_DEFAULTS = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
"""The only values of these settings that this back-end supports."""
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
INT8_POOLINGS = ("cls", "mean")


def suits_machine() -> bool:
    """Whether int8 is the fastest back-end here: without a GPU and with oneDNN; otherwise PyTorch in fp32 is."""
    return not torch.accelerator.is_available() and torch.backends.mkldnn.is_available()


@dataclass(frozen=True)
class BertShape:
    """The settings of a BERT that the shapes of its tensors do not show."""

    layers: int
    heads: int
    epsilon: float  # of layer normalization
    pooling: str  # cls or mean


class Int8Matrix:
    """A matrix (O, I) of int8 rows with scales (O,), and a bias (O,) or None."""

    def __init__(self, tensors: Tensors, *names: str) -> None:
        self.weight, self.scales = (_concatenate(tensors, names, part) for part in ("weight", f"weight{SCALE_SUFFIX}"))
        self.bias = _concatenate(tensors, names, "bias") if f"{names[0]}.bias" in tensors else None

    def multiply(self, inputs: Tensor) -> Tensor:
        """Inputs (M, I) times the transposed matrix, plus the bias, shape (M, O)."""
        steps = inputs.abs().amax(dim=1, keepdim=True).clamp_min_(LEAST_PEAK) / INT8_MAX  # (M, 1)
        product = torch._int_mm((inputs / steps).round_().to(torch.int8), self.weight.T)  # (M, O) int32
        outputs = product.float().mul_(steps).mul_(self.scales)
        return outputs if self.bias is None else outputs.add_(self.bias)

    def take(self, ids: Tensor) -> Tensor:
        """The rows of some ids, of shape (*ids, I), in fp32."""
        return self.weight[ids].float() * self.scales[ids].unsqueeze(-1)


def _concatenate(tensors: Tensors, names: Sequence[str], part: str) -> Tensor:
    """Several tensors one after the other; a single one is not copied."""
    found = [tensors[f"{name}.{part}"] for name in names]
    return found[0] if len(found) == 1 else torch.cat(found)


class _Norm:
    def __init__(self, tensors: Tensors, name: str, epsilon: float) -> None:
        self.weight, self.bias, self.epsilon = tensors[f"{name}.weight"], tensors[f"{name}.bias"], epsilon

    def __call__(self, states: Tensor) -> Tensor:
        return layer_norm(states, self.weight.shape, self.weight, self.bias, self.epsilon)


class _BertLayer:
    """Attention and the feed-forward network, each with its residual and normalization."""

    def __init__(self, tensors: Tensors, name: str, shape: BertShape) -> None:
        self.heads = shape.heads
        self.query_key_value = Int8Matrix(
            tensors, *(f"{name}attention.self.{part}" for part in ("query", "key", "value"))
        )
        self.attention_output = Int8Matrix(tensors, f"{name}attention.output.dense")
        self.attention_norm = _Norm(tensors, f"{name}attention.output.LayerNorm", shape.epsilon)
        self.intermediate = Int8Matrix(tensors, f"{name}intermediate.dense")
        self.output = Int8Matrix(tensors, f"{name}output.dense")
        self.output_norm = _Norm(tensors, f"{name}output.LayerNorm", shape.epsilon)

    def __call__(self, states: Tensor, seen: Tensor | None) -> Tensor:
        sentences, length, width = states.shape
        flat = states.reshape(-1, width)  # (N L, E)
        qkv = self.query_key_value.multiply(flat).view(sentences, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=seen)  # (N, H, L, E / H)
        flat = self.attention_norm(flat + self.attention_output.multiply(mixed.transpose(1, 2).reshape(-1, width)))
        flat = self.output_norm(flat + self.output.multiply(gelu(self.intermediate.multiply(flat))))
        return flat.view(sentences, length, width)


class Int8Bert:
    """A BERT with its pooling and projections, for inference only."""

    # `projections`: for each dense layer after pooling `linear.weight`, its scales, and a bias or none.

    def __init__(self, tensors: Tensors, shape: BertShape, projections: Sequence[Tensors], *, unit: bool) -> None:
        self.shape, self.unit = shape, unit
        self.words, self.positions, self.types = (
            Int8Matrix(tensors, f"embeddings.{name}_embeddings") for name in ("word", "position", "token_type")
        )
        self.layers = [_BertLayer(tensors, f"encoder.layer.{number}.", shape) for number in range(shape.layers)]
        self.norm = _Norm(tensors, "embeddings.LayerNorm", shape.epsilon)
        self.projections = [Int8Matrix(projection, "linear") for projection in projections]
        last = self.projections[-1].weight.shape[0] if self.projections else self.words.weight.shape[1]
        self.dimension = int(last)

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Vectors (N, D) of token ids (N, L); the mask (N, L) is 0 for padding."""
        first = self.positions.take(torch.arange(ids.shape[1])) + self.types.take(torch.zeros(1, dtype=torch.long))
        states = self.norm(self.words.take(ids) + first)  # (N, L, E)
        seen = None if bool(mask.all()) else mask[:, None, None, :].bool()  # (N, 1, 1, L)
        for layer in self.layers:
            states = layer(states, seen)
        if self.shape.pooling == "cls":
            pooled = states[:, 0]
        else:
            counted = mask.unsqueeze(-1).float()  # (N, L, 1)
            pooled = (states * counted).sum(dim=1) / counted.sum(dim=1)
        for projection in self.projections:
            pooled = projection.multiply(pooled)
        return normalize(pooled) if self.unit else pooled


@dataclass(frozen=True)
class Int8Encoder:
    """The network of one language and its tokens."""

    network: Int8Bert
    source: TokenSource


class Int8Backend(TokenBackend):
    """Runs one language of a packed model."""

    name = INT8

    def __init__(self, encoder: Int8Encoder) -> None:
        super().__init__(encoder.source, encoder.network.dimension, CPU_BATCH_TOKENS, one_thread_workers)
        self.network = encoder.network

    @torch.inference_mode()
    def run(self, arrays: Arrays) -> Vectors:
        """Vectors (N, D) of a padded batch (N, L)."""
        ids, mask = (torch.from_numpy(arrays[name]) for name in (TOKEN_IDS, TOKEN_MASK))
        vectors: Vectors = np.asarray(self.network.encode(ids, mask))
        return vectors


def read_int8_folder(folder: Path, prompt: str = "") -> dict[str, Int8Encoder] | None:
    """Reads a packed model by language; None if an encoder is not a BERT, or has anything not supported here."""
    # Languages that share an encoder get the same one. An empty prompt means the model's own.
    try:
        layout = read_layout(folder)
        prompt = prompt or read_prompt(folder)
        encoders = {layers: _read_encoder(layers, prompt) for layers in dict.fromkeys(layout.values())}
        return {lang: encoders[layers] for lang, layers in layout.items()}
    except LAYOUT_ERRORS:
        return None  # sentence-transformers opens it, or says what is wrong with it


def _read_encoder(layers: tuple[Layer, ...], prompt: str) -> Int8Encoder:
    (first, folder), (second, pooling), *rest = layers
    unit = pop_normalize(rest)
    if (first, second) != (TRANSFORMER, POOLING) or any(layer.kind != DENSE for layer in rest):
        raise UnknownLayoutError
    for layer in rest:
        check_projection(layer.folder)
    shape, source = _read_shape(folder, pooling), _read_tokens(folder, prompt)
    tensors = _load_packed(folder)
    check_vocabulary(tensors["embeddings.word_embeddings.weight"].shape, source.tokenizer, folder)
    _check_shapes(tensors, _bert_shapes(read_settings(folder)), folder)
    projections, width = [], int(read_settings(folder)["hidden_size"])
    for layer in rest:
        projections.append(_load_packed(layer.folder))
        outputs = len(projections[-1]["linear.weight"])
        _check_shapes(projections[-1], {"linear.weight": (outputs, width)}, layer.folder)
        width = outputs
    return Int8Encoder(Int8Bert(tensors, shape, projections, unit=unit), source)


def _load_packed(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(folder / INT8_FILE)
    check_packed({name: tensor.numpy() for name, tensor in tensors.items()}, folder / INT8_FILE)
    return tensors


def _bert_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that a BERT of these settings has, with their shapes."""
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}_embeddings.weight": (int(config[key]), width) for name, key in tables.items()
    }
    layers = [f"encoder.layer.{number}." for number in range(int(config["num_hidden_layers"]))]
    norms = ["embeddings", *(f"{layer}{name}" for layer in layers for name in ("attention.output", "output"))]
    shapes |= {f"{name}.LayerNorm.{part}": (width,) for name in norms for part in ("weight", "bias")}
    for layer in layers:
        square = [f"attention.self.{part}" for part in ("query", "key", "value")] + ["attention.output.dense"]
        sizes = {name: (width, width) for name in square}
        sizes |= {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
        for name, size in sizes.items():
            shapes |= {f"{layer}{name}.weight": size, f"{layer}{name}.bias": size[:1]}
    return shapes


def _check_shapes(tensors: Tensors, expected: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """Refuses tensors that are missing or of another shape, and matrices that are not int8, with ModelError."""
    for name, shape in expected.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape or 0 in shape or (len(shape) == 2 and tensors[name].dtype != torch.int8):
            raise ModelError(f"{folder / INT8_FILE}: {name} {found or 'is missing'}; expected {shape} by config.json")


def _read_shape(folder: Path, pooling: Path) -> BertShape:
    config, pools = read_settings(folder), read_settings(pooling)
    text = read_settings(folder, "sentence_bert_config.json")
    is_known = all(config.get(key, value) == value for key, value in BERT_DEFAULTS.items())
    is_bert = config["model_type"] == "bert" and text["modality_config"] == TEXT_ONLY
    known_pooling = pools["pooling_mode"] in INT8_POOLINGS and pools.get("include_prompt", True)
    if not (is_bert and is_known and known_pooling):
        raise UnknownLayoutError
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    if layers < 1 or heads < 1 or config["hidden_size"] % heads:
        sizes = f"{layers} layers, {heads} heads, width {config['hidden_size']}"
        raise ModelError(
            f"{folder / 'config.json'}: {sizes}; expected at least one each, and heads that divide the width"
        )
    return BertShape(layers, heads, config["layer_norm_eps"], pools["pooling_mode"])


def _read_tokens(folder: Path, prompt: str) -> TokenSource:
    config = read_settings(folder, "tokenizer_config.json")
    if any(config.get(side, "right") != "right" for side in ("padding_side", "truncation_side")):
        raise UnknownLayoutError
    tokenizer = read_tokenizer(folder)
    tokenizer.no_padding()
    positions = int(read_settings(folder)["max_position_embeddings"])
    tokenizer.enable_truncation(check_length(config["model_max_length"], positions, folder))
    padding = tokenizer.token_to_id(config["pad_token"])
    if padding is None:
        raise UnknownLayoutError
    return TokenSource(tokenizer, (TOKEN_IDS, TOKEN_MASK), Padding(padding), prompt, positions)
