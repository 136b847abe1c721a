"""Make the ONNX graph of a packed BERT: int8 matrices as they are stored, activations quantized per token as they come.

A token's scale depends on that token alone, so the vector of a sentence does not depend on its batch. Products are
summed exactly, in int32; everything else is fp32. The graph holds no weights: they are external data of ONNX, and their
file is `model.int8.safetensors` beside or below the graph, so any onnxruntime opens both. Only standard operators are
used. Shapes: N sentences, L tokens, E width, H heads, O rows and I columns of a matrix, D dimension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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
LEAST_PEAK = 1e-12  # a row of activations with a lower peak counts as zero
MASKED = -1e30  # added to attention scores of padding
LEAST_LENGTH = 1e-12  # of a vector that is scaled to unit length


@dataclass(frozen=True)
class BertShape:
    """The settings of a BERT that the shapes of its tensors do not show."""

    layers: int
    heads: int
    epsilon: float  # of layer normalization
    pooling: str  # cls or mean


def make_int8_graph(home: Path, bert: Path, shape: BertShape, projections: Sequence[Path], *, unit: bool) -> bytes:
    """The graph of a packed BERT and the dense layers after its pooling, whose folders are in or below `home`."""
    check_onnx("onnx")
    graph = Int8GraphBuilder(home)
    pooled = _Bert(graph, bert, shape).pooled()
    for number, folder in enumerate(projections):
        pooled = graph.linear(graph.quantized(pooled), [graph.weights(folder, f"dense{number}/")["linear"]])
    if unit:
        length = graph.node("ReduceL2", pooled, axes=[-1], keepdims=1)
        pooled = graph.node("Div", pooled, graph.node("Max", length, graph.constant(np.float32(LEAST_LENGTH))))
    return graph.finish(pooled)


class Int8GraphBuilder:
    """Nodes and tensors of a graph; each method returns the name of its output."""

    def __init__(self, home: Path) -> None:
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

    def weights(self, folder: Path, prefix: str = "") -> dict[str, _Weights]:
        """The layers of a packed file, by the name of their tensors without the ending."""
        file = folder / INT8_FILE
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header: dict[str, Any] = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        location = file.relative_to(self.home).as_posix()
        for name, about in header.items():
            self._external(prefix + name, about, location, 8 + length)
        layers = {name.rpartition(".")[0] for name in header if not name.endswith(SCALE_SUFFIX)}
        return {name: _Weights(prefix + name, has_bias=f"{name}.bias" in header) for name in layers}

    def _external(self, name: str, about: dict[str, Any], location: str, start: int) -> None:
        kinds = {"I8": self.onnx.TensorProto.INT8, "F32": self.onnx.TensorProto.FLOAT}
        tensor = self.onnx.TensorProto(name=name, data_type=kinds[about["dtype"]], dims=about["shape"])
        tensor.data_location = self.onnx.TensorProto.EXTERNAL
        first, last = about["data_offsets"]
        for key, value in (("location", location), ("offset", start + first), ("length", last - first)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors[name] = tensor

    def quantized(self, values: str) -> tuple[str, str]:
        """Activations (..., I) as unsigned bytes with a zero of ZERO_POINT, and their steps (..., 1)."""
        peak = self.node("ReduceMax", self.node("Abs", values), axes=[-1], keepdims=1)
        top = self.node("Max", peak, self.constant(np.float32(LEAST_PEAK)))
        most = self.constant(np.float32(INT8_MAX))
        counts = self.node("Mul", values, self.node("Div", most, top))
        zero = self.constant(np.uint8(ZERO_POINT))
        return self.node("QuantizeLinear", counts, self.constant(np.float32(1)), zero), self.node("Div", top, most)

    def linear(self, quantized: tuple[str, str], layers: Sequence[_Weights]) -> str:
        """Quantized activations (..., I) times the transposed matrices of some layers (O, I), plus biases, (..., O)."""
        values, steps = quantized
        matrix = self.node("Transpose", self._joined([layer.weight for layer in layers]), perm=[1, 0])
        product = self.node("MatMulInteger", values, matrix, self.constant(np.uint8(ZERO_POINT)))
        scaled = self.node("Mul", self.node("Cast", product, to=self.onnx.TensorProto.FLOAT), steps)
        scaled = self.node("Mul", scaled, self._joined([layer.scales for layer in layers]))
        if not layers[0].has_bias:
            return str(scaled)
        return str(self.node("Add", scaled, self._joined([layer.bias for layer in layers])))

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


@dataclass(frozen=True)
class _Weights:
    """The tensors of a layer."""

    name: str
    has_bias: bool

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"

    @property
    def scales(self) -> str:
        return f"{self.name}.weight{SCALE_SUFFIX}"

    @property
    def bias(self) -> str:
        return f"{self.name}.bias"


class _Bert:
    """Adds a BERT to a graph."""

    def __init__(self, graph: Int8GraphBuilder, folder: Path, shape: BertShape) -> None:
        self.graph, self.shape = graph, shape
        self.weights = graph.weights(folder)
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
            return str(graph.node("Squeeze", states, graph.constant(np.array([1]))))
        axis = graph.constant(np.array([1]))
        total = graph.node("ReduceSum", graph.node("Mul", states, self.counted), axis, keepdims=0)
        return str(graph.node("Div", total, graph.node("ReduceSum", self.counted, axis, keepdims=0)))

    def _embedded(self) -> str:
        graph = self.graph
        words, positions, types = (
            self.weights[f"embeddings.{name}_embeddings"] for name in ("word", "position", "token_type")
        )
        first = graph.node("Add", graph.rows(positions, None), graph.rows(types, graph.constant(np.array([0]))))
        length = graph.node("Shape", TOKEN_IDS, start=1, end=2)
        zero, axis = graph.constant(np.array([0])), graph.constant(np.array([0]))
        first = graph.node("Slice", first, zero, length, axis)  # (L, E)
        return self._normalized(graph.node("Add", graph.rows(words, TOKEN_IDS), first), "embeddings.LayerNorm")

    def _layer(self, states: str, name: str, *, first_alone: bool) -> str:
        """Attention and the feed-forward network, each with its residual and normalization, (N, L, E)."""
        graph = self.graph
        mixed, states = self._attention(states, name, first_alone=first_alone)
        mixed = graph.linear(graph.quantized(mixed), [self.weights[f"{name}attention.output.dense"]])
        states = self._normalized(graph.node("Add", mixed, states), f"{name}attention.output.LayerNorm")
        inner = self._gelu(graph.linear(graph.quantized(states), [self.weights[f"{name}intermediate.dense"]]))
        output = graph.linear(graph.quantized(inner), [self.weights[f"{name}output.dense"]])
        return self._normalized(graph.node("Add", output, states), f"{name}output.LayerNorm")

    def _attention(self, states: str, name: str, *, first_alone: bool) -> tuple[str, str]:
        """Mixed values of the tokens that are used, all or the first one, and these tokens' states."""
        graph, parts = self.graph, [self.weights[f"{name}attention.self.{part}"] for part in ("query", "key", "value")]
        quantized = graph.quantized(states)
        if first_alone:
            ends = [graph.constant(np.array([place])) for place in (0, 1, 1)]
            states, values, steps = (graph.node("Slice", one, *ends) for one in (states, *quantized))  # (N, 1, .)
            query = graph.linear((values, steps), parts[:1])
            key, value = graph.node("Split", graph.linear(quantized, parts[1:]), outputs=2, axis=-1)
        else:
            query, key, value = graph.node("Split", graph.linear(quantized, parts), outputs=3, axis=-1)
        split = graph.constant(np.array([0, 0, self.shape.heads, -1]))
        query, key, value = (
            graph.node("Transpose", graph.node("Reshape", one, split), perm=order)
            for one, order in ((query, [0, 2, 1, 3]), (key, [0, 2, 3, 1]), (value, [0, 2, 1, 3]))
        )
        scores = graph.node("Mul", graph.node("MatMul", query, key), graph.constant(np.float32(self._scale())))
        shares = graph.node("Softmax", graph.node("Add", scores, self.hidden), axis=-1)  # (N, H, L, L)
        mixed = graph.node("Transpose", graph.node("MatMul", shares, value), perm=[0, 2, 1, 3])
        return graph.node("Reshape", mixed, graph.constant(np.array([0, 0, -1]))), states

    def _scale(self) -> float:
        width = self.graph.tensors["embeddings.LayerNorm.weight"].dims[0]
        return 1 / math.sqrt(width / self.shape.heads)

    def _normalized(self, states: str, name: str) -> str:
        inputs = (states, f"{name}.weight", f"{name}.bias")
        return str(self.graph.node("LayerNormalization", *inputs, axis=-1, epsilon=self.shape.epsilon))

    def _gelu(self, values: str) -> str:
        graph = self.graph
        error = graph.node("Erf", graph.node("Div", values, graph.constant(np.float32(math.sqrt(2)))))
        product = graph.node("Mul", values, graph.node("Add", error, graph.constant(np.float32(1))))
        return str(graph.node("Mul", product, graph.constant(np.float32(0.5))))
