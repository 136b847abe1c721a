"""Make the ONNX graph of a BERT in int8: matrices as `int8_format.py` packs them, activations quantized per token.

A token's scale depends on that token alone, so the vector of a sentence does not depend on its batch. Products are
summed exactly, in int32; everything else is fp32. Only standard operators are used. The graph of a packed folder holds
no weights: they are external data of ONNX, and their file is `model.int8.safetensors` beside or below the graph, so any
onnxruntime opens both. An export holds its weights, and balances the channels of activations (`int8_export.py`).
Shapes: N sentences, L tokens of each, T of all, E width, H heads, O rows and I columns of a matrix, D dimension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.models.backends.onnx_runtime import ONNX_OUTPUT, check_onnx
from dualmoco.models.backends.tokens import TOKEN_IDS, TOKEN_MASK
from dualmoco.models.folder import INT8_FILE
from dualmoco.models.int8_format import INT8_MAX, SCALE_SUFFIX

INT8_OPSET, INT8_IR = 17, 8  # of 2022, so that old versions of onnxruntime read the graph
ZERO_POINT = 128  # activations are unsigned, because CPUs multiply unsigned by signed bytes
UINT8_MAX = 255
BALANCE_SUFFIX = ".balance"  # factors (I,) for the activations that a layer takes, stored under the layer's name
LIFT_SUFFIX = ".lift"  # numbers (I,) that, added to balanced activations, leave none below zero
LEAST_PEAK = 1e-12  # a row of activations with a lower peak counts as zero
MASKED = -1e30  # added to attention scores of padding
INT8_POOLINGS = ("cls", "mean")
LEAST_LENGTH = 1e-12  # of a vector that is scaled to unit length


@dataclass(frozen=True)
class BertShape:
    """The settings of a BERT that the shapes of its tensors do not show."""

    layers: int
    heads: int
    epsilon: float  # of layer normalization
    pooling: str  # cls or mean


PackedSource = Path | Mapping[str, np.ndarray]
"""A packed folder, or packed tensors, which become part of a graph."""


@dataclass(frozen=True)
class DenseLayer:
    """A layer after pooling."""

    source: PackedSource
    has_tanh: bool = False  # whether tanh follows the product


def make_int8_graph(
    bert: PackedSource, shape: BertShape, dense: Sequence[DenseLayer], *, unit: bool, home: Path = Path()
) -> bytes:
    """The graph of a packed BERT and the dense layers after its pooling.

    Args:
        bert: Weights of the BERT.
        shape: Settings of the BERT.
        dense: Layers after pooling.
        unit: Whether vectors are scaled to unit length.
        home: Folder of the graph; packed folders are in or below it.

    Returns:
        The serialized graph.
    """
    check_onnx("onnx")
    graph = Int8GraphBuilder(home)
    pooled = _Bert(graph, bert, shape).pooled()
    for number, layer in enumerate(dense):
        pooled = graph.dense(pooled, [graph.weights(layer.source, f"dense{number}/")["linear"]])
        pooled = graph.node("Tanh", pooled) if layer.has_tanh else pooled
    if unit:
        length = graph.node("ReduceL2", pooled, axes=[-1], keepdims=1)
        pooled = graph.node("Div", pooled, graph.node("Max", length, graph.constant(np.float32(LEAST_LENGTH))))
    return graph.finish(pooled)


class Int8GraphBuilder:
    """Nodes and tensors of a graph; each method returns the name of its output."""

    def __init__(self, home: Path = Path()) -> None:
        import onnx

        self.onnx, self.home = onnx, home
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns its output, or several."""
        names = [f"{kind}_{len(self.nodes)}_{place}" for place in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        """A small tensor, stored in the graph."""
        array = np.asarray(value)
        name = f"constant_{array.dtype}_{'_'.join(map(str, array.ravel().tolist()))}_{array.ndim}"
        self.tensors[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def weights(self, source: PackedSource, prefix: str = "") -> dict[str, _Weights]:
        """The layers of a packed folder, or of packed tensors, by the name of their tensors without the ending."""
        if isinstance(source, Path):
            return _layers(prefix, self._stored(source / INT8_FILE, prefix))
        for name, array in source.items():
            self.tensors[prefix + name] = self.onnx.numpy_helper.from_array(array, prefix + name)
        return _layers(prefix, source)

    def _stored(self, file: Path, prefix: str) -> Iterable[str]:
        """Adds the tensors of a packed file, which stay there; returns their names."""
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header: dict[str, Any] = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        location = file.relative_to(self.home).as_posix()
        for name, about in header.items():
            self._external(prefix + name, about, location, 8 + length)
        return header

    def _external(self, name: str, about: dict[str, Any], location: str, start: int) -> None:
        kinds = {"I8": self.onnx.TensorProto.INT8, "F32": self.onnx.TensorProto.FLOAT}
        tensor = self.onnx.TensorProto(name=name, data_type=kinds[about["dtype"]], dims=about["shape"])
        tensor.data_location = self.onnx.TensorProto.EXTERNAL
        first, last = about["data_offsets"]
        for key, value in (("location", location), ("offset", start + first), ("length", last - first)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors[name] = tensor

    def dense(self, values: str, layers: Sequence[_Weights]) -> str:
        """Activations (T, I) through layers that take the same ones, (T, O)."""
        return self.linear(self.quantized(values, layers[0]), layers)

    def quantized(self, values: str, layer: _Weights) -> tuple[str, str]:
        """Activations (T, I) of a layer as unsigned bytes, and their steps (T,)."""
        if layer.is_balanced:
            values = self.node("Mul", values, layer.balance)
        if layer.is_lifted:
            values = self.node("Add", values, layer.lift)
        sizes = values if layer.is_lifted else self.node("Abs", values)
        peak = self.node("ReduceMax", sizes, axes=[-1], keepdims=0)
        most = self.constant(np.float32(UINT8_MAX if layer.is_lifted else INT8_MAX))
        steps = self.node("Div", self.node("Max", peak, self.constant(np.float32(LEAST_PEAK))), most)
        zero = self.constant(np.array([layer.zero_point], dtype=np.uint8))
        zeros = self.node("Expand", zero, self.node("Shape", steps))
        return self.node("QuantizeLinear", values, steps, zeros, axis=0), steps

    def linear(self, quantized: tuple[str, str], layers: Sequence[_Weights]) -> str:
        """Quantized activations (T, I) times the transposed matrices of some layers (O, I), plus biases, (T, O)."""
        values, steps = quantized
        matrix = self.node("Transpose", self._joined([layer.weight for layer in layers]), perm=[1, 0])
        product = self.node("MatMulInteger", values, matrix, self.constant(np.uint8(layers[0].zero_point)))
        scaled = self.node("DequantizeLinear", product, steps, axis=0)
        scaled = self.node("Mul", scaled, self._joined([layer.scales for layer in layers]))
        if not layers[0].has_bias:
            return str(scaled)
        # With a bias (O,) onnxruntime would merge the sum with GELU, which is slower than both.
        bias = self.node("Unsqueeze", self._joined([layer.bias for layer in layers]), self.constant(np.array([0])))
        return str(self.node("Add", scaled, bias))

    def _joined(self, names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else str(self.node("Concat", *names, axis=0))

    def rows(self, table: _Weights, ids: str | None) -> str:
        """The rows of an embedding in fp32: those of some ids, or all if None."""
        values, scales = (
            (table.weight, table.scales)
            if ids is None
            else (self.node("Gather", name, ids) for name in (table.weight, table.scales))
        )
        values = self.node("Cast", values, to=self.onnx.TensorProto.FLOAT)
        return str(self.node("Mul", values, self.node("Unsqueeze", scales, self.constant(np.array([-1])))))

    def finish(self, output: str) -> bytes:
        """The graph with its inputs and its output."""
        make, kinds = self.onnx.helper, self.onnx.TensorProto
        self.nodes.append(make.make_node("Identity", [output], [ONNX_OUTPUT]))
        used = {name for node in self.nodes for name in node.input}
        inputs = (TOKEN_IDS, TOKEN_MASK)
        graph = make.make_graph(
            self.nodes,
            "dualmoco-int8",
            [make.make_tensor_value_info(name, kinds.INT64, ["sentences", "tokens"]) for name in inputs],
            [make.make_tensor_value_info(ONNX_OUTPUT, kinds.FLOAT, ["sentences", None])],
            [tensor for name, tensor in self.tensors.items() if name in used],
        )
        opsets = [make.make_opsetid("", INT8_OPSET)]
        model = make.make_model(graph, opset_imports=opsets, ir_version=INT8_IR, producer_name="dualmoco")
        written: bytes = model.SerializeToString(deterministic=True)
        return written


def _layers(prefix: str, names: Iterable[str]) -> dict[str, _Weights]:
    """The layers that some tensors belong to."""
    known = set(names)
    layers = {name.rpartition(".")[0] for name in known if not name.endswith(SCALE_SUFFIX)}
    parts = (".bias", BALANCE_SUFFIX, LIFT_SUFFIX)
    return {name: _Weights(prefix + name, *(name + part in known for part in parts)) for name in layers}


@dataclass(frozen=True)
class _Weights:
    """The tensors of a layer."""

    name: str
    has_bias: bool
    is_balanced: bool  # whether activations are multiplied by factors first
    is_lifted: bool  # whether activations have a minimum, which becomes zero

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"

    @property
    def scales(self) -> str:
        return f"{self.name}.weight{SCALE_SUFFIX}"

    @property
    def bias(self) -> str:
        return f"{self.name}.bias"

    @property
    def balance(self) -> str:
        return self.name + BALANCE_SUFFIX

    @property
    def lift(self) -> str:
        return self.name + LIFT_SUFFIX

    @property
    def zero_point(self) -> int:
        return 0 if self.is_lifted else ZERO_POINT


class _Bert:
    """Adds a BERT to a graph."""

    def __init__(self, graph: Int8GraphBuilder, source: PackedSource, shape: BertShape) -> None:
        self.graph, self.shape = graph, shape
        self.weights = graph.weights(source)
        constant = graph.constant
        mask = graph.node("Cast", TOKEN_MASK, to=graph.onnx.TensorProto.FLOAT)
        self.counted = graph.node("Unsqueeze", mask, constant(np.array([-1])))  # (N, L, 1)
        hidden = graph.node("Mul", graph.node("Sub", constant(np.float32(1)), mask), constant(np.float32(MASKED)))
        self.hidden = graph.node("Unsqueeze", hidden, constant(np.array([1, 2])))  # (N, 1, 1, L)

    def pooled(self) -> str:
        """The token vectors of the last layer, pooled, (N, E)."""
        graph, shape = self.graph, self.shape
        states = self._embedded()
        for number in range(shape.layers):
            first_alone = shape.pooling == "cls" and number == shape.layers - 1  # other tokens are not used
            states = self._layer(states, f"encoder.layer.{number}.", first_alone=first_alone)
        if shape.pooling == "cls":
            return states
        axis = graph.constant(np.array([1]))
        counted = graph.node("Mul", self._by_sentence(states, -1), self.counted)
        total = graph.node("ReduceSum", counted, axis, keepdims=0)
        return str(graph.node("Div", total, graph.node("ReduceSum", self.counted, axis, keepdims=0)))

    def _by_sentence(self, states: str, *sizes: int) -> str:
        """Vectors (T, .) as an array (N, L, ...) with the given sizes after L."""
        graph = self.graph
        shape = graph.node("Concat", graph.node("Shape", TOKEN_IDS), graph.constant(np.array(sizes)), axis=0)
        return str(graph.node("Reshape", states, shape))

    def _by_token(self, states: str) -> str:
        """Vectors (..., E), or (..., H, E / H), as an array (T, E)."""
        return str(self.graph.node("Reshape", states, self.graph.constant(np.array([-1, self._width()]))))

    def _embedded(self) -> str:
        graph = self.graph
        words, positions, types = (
            self.weights[f"embeddings.{name}_embeddings"] for name in ("word", "position", "token_type")
        )
        first = graph.node("Add", graph.rows(positions, None), graph.rows(types, graph.constant(np.array([0]))))
        length = graph.node("Shape", TOKEN_IDS, start=1, end=2)
        zero, axis = graph.constant(np.array([0])), graph.constant(np.array([0]))
        first = graph.node("Slice", first, zero, length, axis)  # (L, E)
        states = graph.node("Add", graph.rows(words, TOKEN_IDS), first)  # (N, L, E)
        return self._normalized(self._by_token(states), "embeddings.LayerNorm")

    def _layer(self, states: str, name: str, *, first_alone: bool) -> str:
        """Attention and the feed-forward network, each with its residual and normalization, (T, E)."""
        graph = self.graph
        mixed, states = self._attention(states, name, first_alone=first_alone)
        mixed = graph.dense(mixed, [self.weights[f"{name}attention.output.dense"]])
        states = self._normalized(graph.node("Add", mixed, states), f"{name}attention.output.LayerNorm")
        inner = self._gelu(graph.dense(states, [self.weights[f"{name}intermediate.dense"]]))
        output = graph.dense(inner, [self.weights[f"{name}output.dense"]])
        return self._normalized(graph.node("Add", output, states), f"{name}output.LayerNorm")

    def _attention(self, states: str, name: str, *, first_alone: bool) -> tuple[str, str]:
        """Mixed values of the tokens that are used, all or the first of each sentence, and these tokens' states."""
        graph, parts = self.graph, [self.weights[f"{name}attention.self.{part}"] for part in ("query", "key", "value")]
        sizes = self.shape.heads, self._width() // self.shape.heads
        if first_alone:
            quantized = graph.quantized(states, parts[0])  # as for all of them, because they share factors
            key, value = graph.node("Split", graph.linear(quantized, parts[1:]), outputs=2, axis=-1)
            states = graph.node("Gather", self._by_sentence(states, -1), graph.constant(np.array(0)), axis=1)  # (N, E)
            query = graph.node("Reshape", graph.dense(states, parts[:1]), graph.constant(np.array([-1, 1, *sizes])))
        else:
            query, key, value = graph.node("Split", graph.dense(states, parts), outputs=3, axis=-1)
            query = self._by_sentence(query, *sizes)
        key, value = (self._by_sentence(one, *sizes) for one in (key, value))
        query, key, value = (graph.node("Transpose", one, perm=[0, 2, 1, 3]) for one in (query, key, value))
        # onnxruntime multiplies by the transposed keys without making them; one transposition of both kinds is slow.
        key = graph.node("Transpose", key, perm=[0, 1, 3, 2])
        scale = graph.constant(np.float32(1 / math.sqrt(sizes[1])))
        scores = graph.node("Mul", graph.node("MatMul", query, key), scale)
        shares = graph.node("Softmax", graph.node("Add", scores, self.hidden), axis=-1)  # (N, H, L, L)
        mixed = graph.node("Transpose", graph.node("MatMul", shares, value), perm=[0, 2, 1, 3])
        return self._by_token(mixed), states

    def _width(self) -> int:
        return int(self.graph.tensors["embeddings.LayerNorm.weight"].dims[0])

    def _normalized(self, states: str, name: str) -> str:
        inputs = (states, f"{name}.weight", f"{name}.bias")
        return str(self.graph.node("LayerNormalization", *inputs, axis=-1, epsilon=self.shape.epsilon))

    def _gelu(self, values: str) -> str:
        graph = self.graph
        error = graph.node("Erf", graph.node("Div", values, graph.constant(np.float32(math.sqrt(2)))))
        product = graph.node("Mul", values, graph.node("Add", error, graph.constant(np.float32(1))))
        return str(graph.node("Mul", product, graph.constant(np.float32(0.5))))
