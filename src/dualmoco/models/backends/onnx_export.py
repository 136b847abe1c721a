"""Make an ONNX graph of a network, in fp32 or with int8 matrix products.

The weights of an int8 graph are quantized once, activations per row as they come. Each token has its own scale, so the
vector of a sentence does not depend on the other sentences of a batch; one scale for a whole batch, as in onnxruntime's
own quantizer, also loses more precision than everything else. Channels are first balanced between activations and
weights as in SmoothQuant (Xiao et al. 2023). Shapes: K channels in, M out.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dualmoco.core.errors import ModelError
from dualmoco.models.backends.onnx_runtime import GRAPH_FILE, ONNX_BATCH_TOKENS, ONNX_OUTPUT, check_onnx
from dualmoco.models.backends.pytorch import CHECK_SENTENCES
from dualmoco.models.backends.tokens import TOKEN_MASK, Arrays, TokenSource
from dualmoco.models.model import ONNX_INT8
from dualmoco.models.network import Encoder

OPSET = 17
MOST_GRAPH_BYTES = (1 << 31) - (1 << 20)  # a graph is one protobuf message, which cannot hold two GiB
SMOOTHING = 0.5  # the exponent of SmoothQuant: the share of a channel's range that moves from activations to weights
WEIGHT_STEPS = 110
"""Of 127: without VNNI two int8 products are added in 16 bits, where larger weights would often saturate."""
FLOOR_SHARE = 0.2
"""An activation whose minimum is above minus this share of its peak, as GELU's, is quantized from its minimum."""
LARGEST_BALANCE = 1e3
LEAST_SCALE = 1e-9
CONTRIB = "com.microsoft"


class _UnitVectors(nn.Module):
    """An encoder that takes its inputs by position, as the exporter passes them."""

    def __init__(self, encoder: Encoder, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder, self.inputs = encoder, inputs

    def forward(self, *tensors: Tensor) -> Tensor:
        return normalize(self.encoder(dict(zip(self.inputs, tensors, strict=True))), dim=-1)


def make_graph(name: str, encoder: Encoder, source: TokenSource) -> bytes:
    """Makes the graph of a network for the back-end ONNX or ONNX_INT8; the same network gives the same bytes."""
    check_onnx("onnx", "onnxruntime")
    graph = export_graph(encoder.cpu(), source)
    return quantize_graph(graph, source.batches(CHECK_SENTENCES, ONNX_BATCH_TOKENS)) if name == ONNX_INT8 else graph


def export_graph(encoder: Encoder, source: TokenSource) -> bytes:
    """The graph of a network on the CPU, in fp32."""
    size = sum(weight.numel() * weight.element_size() for weight in encoder.parameters())
    if size > MOST_GRAPH_BYTES:
        raise ModelError(f"a network of {size / 2**30:.1f} GiB; expected less than 2 GiB for ONNX: use --backend torch")
    example = _example(source)
    axes = {name: {0: "sentences", 1: "tokens"} for name in source.inputs}
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.inference_mode():
            path = Path(folder) / GRAPH_FILE
            warnings.simplefilter("ignore")  # the exporter warns about every constant that it takes from the example
            torch.onnx.export(
                _UnitVectors(encoder, source.inputs).eval(),
                tuple(map(torch.from_numpy, example.values())),
                path,
                dynamo=False,
                opset_version=OPSET,
                input_names=list(source.inputs),
                output_names=[ONNX_OUTPUT],
                dynamic_axes={**axes, ONNX_OUTPUT: {0: "sentences"}},
            )
            return path.read_bytes()
    except (RuntimeError, TypeError, ValueError, torch.onnx.OnnxExporterError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"cannot export the network to ONNX: {reason}; use --backend torch") from None


def _example(source: TokenSource) -> Arrays:
    """Two sentences of five and three tokens; the tokens do not matter."""
    example = {name: np.zeros((2, 5), dtype=np.int64) for name in source.inputs}
    if TOKEN_MASK in example:
        example[TOKEN_MASK][:] = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    return example


@dataclass(frozen=True)
class _Range:
    """The observed range of an activation."""

    peaks: np.ndarray  # (K,) largest absolute values
    floor: float  # lowest value

    @property
    def lift(self) -> float:
        """The number to add so that no value is negative; 0 for an activation of both signs."""
        return -self.floor if -self.floor < FLOOR_SHARE * float(self.peaks.max()) else 0.0

    def merge(self, other: _Range) -> _Range:
        return _Range(np.maximum(self.peaks, other.peaks), min(self.floor, other.floor))


def quantize_graph(graph: bytes, batches: Iterable[Arrays]) -> bytes:
    """Quantizes products with constant matrices, for onnxruntime only; `batches` are inputs to balance channels by."""
    import onnx

    model: Any = onnx.load_model_from_string(graph)
    products = _products(model)
    ranges = _ranges(model, list(products), batches)
    rewriter = _Rewriter(model)
    replaced: dict[str, list[Any]] = {}  # the nodes in place of a product, by the product's output
    for name, nodes in products.items():
        matrices = [onnx.numpy_helper.to_array(rewriter.tensors[node.input[1]]) for node in nodes]  # (K, M) each
        balance = _balance(ranges[name].peaks, matrices)
        before = rewriter.quantize_rows(name, balance, ranges[name].lift)
        for node, matrix in zip(nodes, matrices, strict=True):
            replaced[node.output[0]] = before + rewriter.product(
                name, node.output[0], matrix, balance, ranges[name].lift
            )
            before = []
    return rewriter.finish(replaced)


class _Rewriter:
    """Adds nodes and tensors to a graph."""

    def __init__(self, model: Any) -> None:
        import onnx

        self.onnx, self.model = onnx, model
        self.node = onnx.helper.make_node
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.one = self._tensor("row_one", np.array(1, dtype=np.float32))
        self.tiny = self._tensor("row_tiny", np.array(LEAST_SCALE, dtype=np.float32))

    def quantize_rows(self, name: str, balance: np.ndarray, lift: float) -> list[Any]:
        """Nodes from an activation to NAME_int8, with a zero at NAME_zero, and NAME_scale, one number per row."""
        inverse = self._tensor(f"{name}_balance", 1 / balance)  # (K,)
        zero = self._tensor(f"{name}_zero", np.array(0 if lift else 128, dtype=np.uint8))
        steps = self._tensor(f"{name}_steps", np.array(255 if lift else 127, dtype=np.float32))
        lifted = self._tensor(f"{name}_lift", np.array(lift, dtype=np.float32))
        start = [self.node("Add", [name, lifted], [f"{name}_lifted"])] if lift else []
        return [
            *start,
            self.node("Mul", [f"{name}_lifted" if lift else name, inverse], [f"{name}_balanced"]),
            self.node("Identity" if lift else "Abs", [f"{name}_balanced"], [f"{name}_sizes"]),
            self.node("ReduceMax", [f"{name}_sizes"], [f"{name}_peak"], axes=[-1], keepdims=1),
            self.node("Max", [f"{name}_peak", self.tiny], [f"{name}_top"]),
            self.node("Div", [f"{name}_top", steps], [f"{name}_scale"]),
            self.node("Div", [steps, f"{name}_top"], [f"{name}_factor"]),
            self.node("Mul", [f"{name}_balanced", f"{name}_factor"], [f"{name}_counts"]),
            self.node("QuantizeLinear", [f"{name}_counts", self.one, zero], [f"{name}_int8"]),
        ]

    def product(self, name: str, output: str, matrix: np.ndarray, balance: np.ndarray, lift: float) -> list[Any]:
        """Nodes from NAME_int8 to the output of a product with a matrix (K, M)."""
        balanced = matrix * balance[:, None]
        scale = np.maximum(np.abs(balanced).max(axis=0), LEAST_SCALE).astype(np.float32) / np.float32(
            WEIGHT_STEPS
        )  # (M,)
        weight = self._tensor(f"{output}_weight", np.rint(balanced / scale).astype(np.int8))
        scales = self._tensor(f"{output}_weight_scale", scale)
        lowered = self._tensor(f"{output}_lowered", -np.float32(lift) * matrix.sum(axis=0, dtype=np.float32))  # (M,)
        inputs = [f"{name}_int8", weight, self.one, scales, f"{name}_zero"]
        scaled = f"{output}_scaled" if lift else output
        end = [self.node("Add", [scaled, lowered], [output])] if lift else []
        return [
            self.node("MatMulIntegerToFloat", inputs, [f"{output}_unscaled"], domain=CONTRIB),
            self.node("Mul", [f"{output}_unscaled", f"{name}_scale"], [scaled]),
            *end,
        ]

    def finish(self, replaced: dict[str, list[Any]]) -> bytes:
        """The graph with some nodes replaced, without unused tensors."""
        graph = self.model.graph
        nodes = [new for node in graph.node for new in replaced.get(node.output[0], [node])]
        used = {name for node in nodes for name in node.input}
        del graph.node[:], graph.initializer[:]
        graph.node.extend(nodes)
        graph.initializer.extend(tensor for name, tensor in self.tensors.items() if name in used)
        self.model.opset_import.append(self.onnx.helper.make_opsetid(CONTRIB, 1))
        written: bytes = self.model.SerializeToString(deterministic=True)
        return written

    def _tensor(self, name: str, array: np.ndarray) -> str:
        self.tensors[name] = self.onnx.numpy_helper.from_array(array, name)
        return name


def _products(model: Any) -> dict[str, list[Any]]:
    """Products with a constant matrix, grouped by activation."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    found: dict[str, list[Any]] = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            found.setdefault(node.input[0], []).append(node)
    return found


def _ranges(model: Any, names: list[str], batches: Iterable[Arrays]) -> dict[str, _Range]:
    """The ranges of some activations on typical inputs."""
    import onnx
    import onnxruntime

    watched: Any = onnx.ModelProto()
    watched.CopyFrom(model)
    for name in names:
        watched.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    ranges: dict[str, _Range] = {}
    for arrays in batches:
        for name, values in zip(names, session.run(names, arrays), strict=True):
            seen = _Range(np.abs(values).reshape(-1, values.shape[-1]).max(axis=0), float(values.min()))
            ranges[name] = ranges[name].merge(seen) if name in ranges else seen
    return ranges


def _balance(peaks: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
    """The factors (K,) that move range from the channels of an activation to the rows of the matrices."""
    weights = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    balance = np.maximum(peaks, LEAST_SCALE) ** SMOOTHING / np.maximum(weights, LEAST_SCALE) ** (1 - SMOOTHING)
    limited: np.ndarray = np.clip(balance / np.exp(np.log(balance).mean()), 1 / LARGEST_BALANCE, LARGEST_BALANCE)
    return limited.astype(np.float32)
