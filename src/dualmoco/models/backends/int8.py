"""The int8 back-end: a packed BERT on a CPU, its matrices multiplied as they are stored, without transformers.

Rows of weights are int8 with a scale each; tokens' activations are brought to int8 row by row as they come, so a
sentence's vector does not depend on its batch. Products are summed in int32, exactly; the rest is fp32.
Shapes: n sentences, N in a batch, L tokens, H heads, E width, D dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, normalize, scaled_dot_product_attention

from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.pytorch import CPU_BUDGET, one_thread_workers
from dualmoco.models.backends.st_format import (
    DENSE,
    LAYOUT_ERRORS,
    UNIT,
    Layer,
    UnknownLayoutError,
    check_projection,
    keeps_names,
    read_layout,
    read_prompt,
    read_settings,
)
from dualmoco.models.backends.tokens import TOKEN_IDS, TOKEN_MASK, Arrays, Padding, TokenSource
from dualmoco.models.int8_format import LARGEST, PACKED, SCALE
from dualmoco.models.model import INT8

Tensors = Mapping[str, Tensor]
TINY = 1e-12
"""Below it a row counts as zero."""


def suits_machine() -> bool:
    """Whether int8 is the fastest here: no GPU, and oneDNN to multiply; elsewhere PyTorch in fp32 is."""
    return not torch.accelerator.is_available() and torch.backends.mkldnn.is_available()


@dataclass(frozen=True)
class BertShape:
    """What a BERT's settings say beyond the shapes of its tensors."""

    layers: int
    heads: int
    epsilon: float
    """Of layer normalisation."""
    pooling: str
    """cls or mean."""


class Rows:
    """A matrix of int8 rows (O, I) with a scale (O,) each, and a bias (O,) or none."""

    def __init__(self, tensors: Tensors, *names: str) -> None:
        self.weight, self.scales = (_joined(tensors, names, part) for part in ("weight", f"weight{SCALE}"))
        self.bias = _joined(tensors, names, "bias") if f"{names[0]}.bias" in tensors else None

    def multiply(self, inputs: Tensor) -> Tensor:
        """Inputs (M, I) times the transposed matrix, plus the bias, shape (M, O)."""
        steps = inputs.abs().amax(dim=1, keepdim=True).clamp_min_(TINY) / LARGEST  # (M, 1)
        product = torch._int_mm((inputs / steps).round_().to(torch.int8), self.weight.T)  # (M, O) int32
        outputs = product.float().mul_(steps).mul_(self.scales)
        return outputs if self.bias is None else outputs.add_(self.bias)

    def take(self, ids: Tensor) -> Tensor:
        """The rows of some ids, of shape (*ids, I), in fp32."""
        return self.weight[ids].float() * self.scales[ids].unsqueeze(-1)


def _joined(tensors: Tensors, names: Sequence[str], part: str) -> Tensor:
    """One tensor as it lies in its file, several copied one after the other."""
    found = [tensors[f"{name}.{part}"] for name in names]
    return found[0] if len(found) == 1 else torch.cat(found)


class Int8Bert:
    """A BERT with its pooling and projections, for inference alone.

    Args:
        tensors: Of the packed transformer.
        shape: Its settings.
        projections: Tensors `linear.weight`, its scales and a bias or none, of each dense layer after pooling.
        unit: Whether vectors are brought to unit length.
    """

    def __init__(self, tensors: Tensors, shape: BertShape, projections: Sequence[Tensors], *, unit: bool) -> None:
        self.shape, self.unit = shape, unit
        self.words, self.positions, self.types = (
            Rows(tensors, f"embeddings.{name}_embeddings") for name in ("word", "position", "token_type")
        )
        self.layers = [_Layer(tensors, f"encoder.layer.{number}.", shape) for number in range(shape.layers)]
        self.norm = _Norm(tensors, "embeddings.LayerNorm", shape.epsilon)
        self.projections = [Rows(projection, "linear") for projection in projections]
        last = self.projections[-1].weight.shape[0] if self.projections else self.words.weight.shape[1]
        self.dimension = int(last)

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Vectors (N, D) of token ids (N, L), of which the mask (N, L) says which are no padding."""
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


class _Norm:
    def __init__(self, tensors: Tensors, name: str, epsilon: float) -> None:
        self.weight, self.bias, self.epsilon = tensors[f"{name}.weight"], tensors[f"{name}.bias"], epsilon

    def __call__(self, states: Tensor) -> Tensor:
        return layer_norm(states, self.weight.shape, self.weight, self.bias, self.epsilon)


class _Layer:
    """Attention and the two dense layers after it, each with its residual and normalisation."""

    def __init__(self, tensors: Tensors, name: str, shape: BertShape) -> None:
        self.heads = shape.heads
        self.attended = Rows(tensors, *(f"{name}attention.self.{part}" for part in ("query", "key", "value")))
        self.joined = Rows(tensors, f"{name}attention.output.dense")
        self.widened, self.narrowed = Rows(tensors, f"{name}intermediate.dense"), Rows(tensors, f"{name}output.dense")
        self.after_attention = _Norm(tensors, f"{name}attention.output.LayerNorm", shape.epsilon)
        self.after_dense = _Norm(tensors, f"{name}output.LayerNorm", shape.epsilon)

    def __call__(self, states: Tensor, seen: Tensor | None) -> Tensor:
        sentences, length, width = states.shape
        flat = states.reshape(-1, width)  # (N L, E)
        three = self.attended.multiply(flat).view(sentences, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(three[0], three[1], three[2], attn_mask=seen)  # (N, H, L, E / H)
        flat = self.after_attention(flat + self.joined.multiply(mixed.transpose(1, 2).reshape(-1, width)))
        flat = self.after_dense(flat + self.narrowed.multiply(gelu(self.widened.multiply(flat))))
        return flat.view(sentences, length, width)


class Int8Backend:
    """Runs one language of a packed model.

    Args:
        network: The BERT.
        source: Its tokens.
    """

    name, is_unit = INT8, False

    def __init__(self, network: Int8Bert, source: TokenSource) -> None:
        self.network, self.source, self.dimension = network, source, network.dimension
        self.workers = one_thread_workers()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, as the network makes them."""
        return self.source.encode(texts, CPU_BUDGET, self.dimension, self._run, self.workers)

    @torch.inference_mode()
    def _run(self, arrays: Arrays) -> Vectors:
        ids, mask = (torch.from_numpy(arrays[name]) for name in (TOKEN_IDS, TOKEN_MASK))
        vectors: Vectors = np.asarray(self.network.encode(ids, mask))
        return vectors


TRANSFORMER, POOLING = "Transformer", "Pooling"
KNOWN = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
"""Settings of a BERT that are understood; what is not said is so."""
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
POOLINGS = ("cls", "mean")


@dataclass(frozen=True)
class Int8Encoder:
    """The network of one language and its tokens."""

    network: Int8Bert
    source: TokenSource

    def run(self) -> Int8Backend:
        """What runs it."""
        return Int8Backend(self.network, self.source)


def read_int8_folder(folder: Path, prompt: str = "") -> dict[str, Int8Encoder] | None:
    """Reads a packed model all of whose encoders are BERTs.

    Args:
        folder: A packed sentence-transformers folder.
        prompt: Put before every sentence; the model's own if empty.

    Returns:
        An encoder for each language, the same for languages that share it; None if the folder holds anything else, or
        anything that is not known here.
    """
    try:
        layout = read_layout(folder)
        prompt = prompt or read_prompt(folder)
        encoders = {layers: _read_encoder(layers, prompt) for layers in dict.fromkeys(layout.values())}
        return {lang: encoders[layers] for lang, layers in layout.items()}
    except LAYOUT_ERRORS:
        return None  # sentence-transformers opens it, or says what is wrong with it


def _read_encoder(layers: tuple[Layer, ...], prompt: str) -> Int8Encoder:
    (first, folder), (second, pooling), *rest = layers
    unit = bool(rest) and rest[-1].kind == UNIT
    if unit and not keeps_names(read_settings(rest.pop().folder)):
        raise UnknownLayoutError
    if (first, second) != (TRANSFORMER, POOLING) or any(layer.kind != DENSE for layer in rest):
        raise UnknownLayoutError
    projections = [_read_projection(layer.folder) for layer in rest]
    network = Int8Bert(_read_packed(folder), _read_shape(folder, pooling), projections, unit=unit)
    return Int8Encoder(network, _read_tokens(folder, prompt))


def _read_shape(folder: Path, pooling: Path) -> BertShape:
    config, pools = read_settings(folder), read_settings(pooling)
    text = read_settings(folder, "sentence_bert_config.json")
    is_known = all(config.get(key, value) == value for key, value in KNOWN.items())
    is_bert = config["model_type"] == "bert" and text["modality_config"] == TEXT_ONLY
    if not (is_bert and is_known) or pools["pooling_mode"] not in POOLINGS or not pools.get("include_prompt", True):
        raise UnknownLayoutError
    return BertShape(
        config["num_hidden_layers"], config["num_attention_heads"], config["layer_norm_eps"], pools["pooling_mode"]
    )


def _read_projection(folder: Path) -> Tensors:
    check_projection(folder)
    return _read_packed(folder)


def _read_packed(folder: Path) -> Tensors:
    from safetensors.torch import load_file

    return load_file(folder / PACKED)


def _read_tokens(folder: Path, prompt: str) -> TokenSource:
    from tokenizers import Tokenizer

    config = read_settings(folder, "tokenizer_config.json")
    if any(config.get(side, "right") != "right" for side in ("padding_side", "truncation_side")):
        raise UnknownLayoutError
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(int(config["model_max_length"]))
    padding = tokenizer.token_to_id(config["pad_token"])
    if padding is None:
        raise UnknownLayoutError
    return TokenSource(tokenizer, (TOKEN_IDS, TOKEN_MASK), Padding(padding), prompt)
