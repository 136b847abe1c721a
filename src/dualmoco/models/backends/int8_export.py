"""Quantize a BERT of PyTorch for the graph of `int8_graph.py`, with its channels balanced first.

A channel with large activations would take most of a token's 255 steps. So each channel is divided by a factor, and the
column of the matrix multiplied by it, as in SmoothQuant (Xiao et al. 2023): the same product, with a part of the range
moved from activations to weights. The factors come from activations of typical sentences. Those of attention are merged
into its values; others cost one multiplication per activation. GELU has a minimum, so its outputs are quantized from
there. Shapes: L tokens, I channels in, O out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from torch import Tensor, nn

from dualmoco.core.errors import ModelError
from dualmoco.models.backends.int8_graph import (
    BALANCE_SUFFIX,
    INT8_POOLINGS,
    LIFT_SUFFIX,
    BertShape,
    DenseLayer,
    make_int8_graph,
)
from dualmoco.models.backends.tokens import Arrays, TokenSource
from dualmoco.models.int8_format import pack_tensors, unpack_tensors
from dualmoco.models.network import Encoder

BALANCE_SHARE = 0.55  # exponent of SmoothQuant: the share of a range that moves from activations to weights
LARGEST_BALANCE = 1e3
LEAST_RANGE = 1e-9
GELU_DEPTH = 0.17  # minus the minimum of GELU, rounded up
INT8_NETWORKS = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
LAYER_PREFIX = re.compile(r"encoder\.layer\.\d+\.")
BERT_NAMES = (
    (r"^transformer\.", "encoder."),
    (r"\.attention\.q_lin\b", ".attention.self.query"),
    (r"\.attention\.k_lin\b", ".attention.self.key"),
    (r"\.attention\.v_lin\b", ".attention.self.value"),
    (r"\.attention\.out_lin\b", ".attention.output.dense"),
    (r"\.sa_layer_norm\b", ".attention.output.LayerNorm"),
    (r"\.ffn\.lin1\b", ".intermediate.dense"),
    (r"\.ffn\.lin2\b", ".output.dense"),
    (r"\.output_layer_norm\b", ".output.LayerNorm"),
)
"""Names of layers in DistilBERT, and BERT's names for them."""


def quantize_network(encoder: Encoder, source: TokenSource, sentences: Sequence[str]) -> bytes:
    """The int8 graph of a network on the CPU; `sentences` are typical ones, to balance channels by.

    The graph takes token ids and their mask, and gives unit vectors. ModelError if `int8_graph.py` does not know such
    networks.
    """
    bert, pooling, dense = _known_layers(encoder, source)
    tensors = _bert_tensors(bert)
    batches = (arrays for text in sentences for arrays in source.batches([text], 1))  # one sentence, without padding
    peaks = _activation_peaks(encoder, bert, batches)
    for block in sorted({found[0] for name in tensors if (found := LAYER_PREFIX.match(name))}):
        _balance_block(tensors, block, peaks)
    shape = BertShape(
        layers=bert.config.num_hidden_layers,
        heads=bert.config.num_attention_heads,
        epsilon=bert.embeddings.LayerNorm.eps,
        pooling=pooling,
    )
    ends = [
        DenseLayer(
            _packed({f"linear.{name}": weight.numpy() for name, weight in layer.linear.state_dict().items()}),
            has_tanh=isinstance(layer.activation_function, nn.Tanh),
        )
        for layer in dense
    ]
    return make_int8_graph(_packed(tensors), shape, ends, unit=True)


def _known_layers(encoder: Encoder, source: TokenSource) -> tuple[Any, str, list[Dense]]:
    """The BERT of an encoder, its pooling and its dense layers; ModelError if it has anything else."""
    layers = [layer for layer in encoder.layers if not isinstance(layer, Dropout)]
    if isinstance(layers[-1], Normalize):
        layers.pop()  # vectors are scaled in any case
    first, second, *rest = layers
    config: Any = first.model.config if isinstance(first, Transformer) else None
    kind, pooling = getattr(config, "model_type", type(first).__name__), getattr(second, "pooling_mode", "its own")
    activation = getattr(config, "hidden_act", None) or getattr(config, "activation", None)
    dense = [layer for layer in rest if isinstance(layer, Dense) and _is_plain(layer)]
    is_known = kind in INT8_NETWORKS and activation == "gelu" and _is_plain_bert(config)
    has_pooling = isinstance(second, Pooling) and second.include_prompt and pooling in INT8_POOLINGS
    if not is_known or not has_pooling or len(dense) < len(rest) or source.padding.left:
        side = "left" if source.padding.left else "right"
        raise ModelError(
            f"onnx-int8: {kind} with {activation}, pooling {pooling}, {len(rest)} more layers, padding on the {side}; "
            f"expected a network of type {', '.join(INT8_NETWORKS)} with gelu, pooling {' or '.join(INT8_POOLINGS)}, "
            "dense layers without residual, padding on the right: use onnx"
        )
    return first.model, pooling, dense


def _is_plain_bert(config: Any) -> bool:
    """Whether a network adds vectors of positions to those of tokens, and each token sees all others."""
    is_absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return is_absolute and not getattr(config, "is_decoder", False)


def _is_plain(layer: Dense) -> bool:
    """Whether a dense layer maps sentence vectors by a matrix, and by tanh or nothing after it."""
    keeps_names = layer.module_input_name == layer.module_output_name == "sentence_embedding"
    return keeps_names and not layer.use_residual and isinstance(layer.activation_function, nn.Identity | nn.Tanh)


def _bert_name(name: str) -> str:
    for pattern, new in BERT_NAMES:
        name = re.sub(pattern, new, name)
    return name


def _bert_tensors(bert: Any) -> dict[str, np.ndarray]:
    """Copies of the tensors that the graph needs, by BERT's names; positions from that of the first token on."""
    tensors = {_bert_name(name): weight.numpy().copy() for name, weight in bert.state_dict().items()}
    tensors = {name: one for name, one in tensors.items() if LAYER_PREFIX.match(name) or name.startswith("embeddings.")}
    padding = bert.embeddings.position_embeddings.padding_idx  # RoBERTa numbers positions after that of padding
    name = "embeddings.position_embeddings.weight"
    tensors[name] = tensors[name][0 if padding is None else padding + 1 :]
    width = tensors[name].shape[1]
    tensors.setdefault("embeddings.token_type_embeddings.weight", np.zeros((1, width), dtype=np.float32))
    return tensors


@torch.inference_mode()
def _activation_peaks(encoder: Encoder, bert: nn.Module, batches: Iterable[Arrays]) -> dict[str, np.ndarray]:
    """The largest absolute value of each channel (I,) that a layer of a BERT was given, by the name of the layer."""
    peaks: dict[str, Tensor] = {}

    def watch(name: str, values: Tensor) -> None:
        peak = values.abs().flatten(0, -2).amax(dim=0)
        peaks[name] = torch.maximum(peaks[name], peak) if name in peaks else peak

    layers = {_bert_name(name): layer for name, layer in bert.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [
        layer.register_forward_pre_hook(lambda _, values, name=name: watch(name, values[0]))
        for name, layer in layers.items()
    ]
    try:
        encoder.eval()
        for arrays in batches:
            encoder({name: torch.from_numpy(array) for name, array in arrays.items()})
    finally:
        for hook in hooks:
            hook.remove()
    return {name: peak.numpy() for name, peak in peaks.items()}


def _balance_block(tensors: dict[str, np.ndarray], block: str, peaks: Mapping[str, np.ndarray]) -> None:
    """Balances the four activations of a block of attention and feed-forward network."""
    inputs = [f"{block}attention.self.{part}" for part in ("query", "key", "value")]
    mixed, inner, output = (
        f"{block}{name}" for name in ("attention.output.dense", "intermediate.dense", "output.dense")
    )
    for layers in (inputs, [inner], [output]):
        tensors[layers[0] + BALANCE_SUFFIX] = 1 / _balance(tensors, layers, peaks[layers[0]])
    factors = _balance(tensors, [mixed], peaks[mixed])
    tensors[f"{inputs[2]}.weight"] /= factors[:, None]
    tensors[f"{inputs[2]}.bias"] /= factors
    tensors[output + LIFT_SUFFIX] = GELU_DEPTH * tensors[output + BALANCE_SUFFIX]


def _balance(tensors: dict[str, np.ndarray], layers: Sequence[str], peaks: np.ndarray) -> np.ndarray:
    """Multiplies the columns of some matrices by factors (I,) for channels with these peaks; returns the factors."""
    weights = np.max([np.abs(tensors[f"{name}.weight"]).max(axis=0) for name in layers], axis=0)
    factors = np.maximum(peaks, LEAST_RANGE) ** BALANCE_SHARE
    factors /= np.maximum(weights, LEAST_RANGE) ** (1 - BALANCE_SHARE)
    factors /= np.exp(np.log(factors).mean())
    limited: np.ndarray = np.clip(factors, 1 / LARGEST_BALANCE, LARGEST_BALANCE).astype(np.float32)
    for name in layers:
        tensors[f"{name}.weight"] *= limited
    return limited


def _packed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Packed tensors; the biases of layers whose activations are lifted take the lift back."""
    packed = pack_tensors(tensors)
    whole = unpack_tensors(packed)
    for name in [name.removesuffix(LIFT_SUFFIX) for name in tensors if name.endswith(LIFT_SUFFIX)]:
        packed[f"{name}.bias"] = packed[f"{name}.bias"] - whole[f"{name}.weight"] @ whole[name + LIFT_SUFFIX]
    return packed
