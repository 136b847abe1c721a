"""A network as one ONNX graph: tokens in, unit vectors out.

Takes an encoder, gives the bytes of a graph with inputs (N, L) of any size, named as its tokenizer names them, and the
output `sentence_embedding` (N, D). Needs the extra `onnx`.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dualmoco.core.errors import ModelError
from dualmoco.models.backends.agreement import SENTENCES
from dualmoco.models.backends.onnx_runtime import BUDGET, OUTPUT, check_onnx
from dualmoco.models.backends.quantization import quantize_graph
from dualmoco.models.backends.tokens import TOKEN_MASK, Arrays, TokenSource
from dualmoco.models.encoder import Encoder
from dualmoco.models.model import ONNX_INT8

OPSET = 17
LARGEST = (1 << 31) - (1 << 20)
"""Bytes; a graph is one protobuf message, which cannot hold two GiB."""


class _UnitVectors(nn.Module):
    """An encoder that takes its inputs by position, as an exporter gives them."""

    def __init__(self, encoder: Encoder, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder, self.inputs = encoder, inputs

    def forward(self, *tensors: Tensor) -> Tensor:
        return normalize(self.encoder(dict(zip(self.inputs, tensors, strict=True))), dim=-1)


def make_graph(name: str, encoder: Encoder, source: TokenSource) -> bytes:
    """The graph of a network.

    Args:
        name: ONNX or ONNX_INT8.
        encoder: The network.
        source: Its tokens.

    Returns:
        The graph; the same bytes for the same network.

    Raises:
        ModelError: The extra is not installed, or a network that cannot become a graph.
    """
    check_onnx("onnx", "onnxruntime")
    graph = export_graph(encoder.cpu(), source)
    return quantize_graph(graph, source.batches(SENTENCES, BUDGET)) if name == ONNX_INT8 else graph


def export_graph(encoder: Encoder, source: TokenSource) -> bytes:
    """Writes a network down as a graph in single precision.

    Args:
        encoder: The network, on the CPU.
        source: Its tokens.

    Returns:
        The graph.

    Raises:
        ModelError: A network that is too large, or that the exporter cannot follow.
    """
    size = sum(weight.numel() * weight.element_size() for weight in encoder.parameters())
    if size > LARGEST:
        raise ModelError(f"a network of {size / 2**30:.1f} GiB; expected less than 2 GiB for ONNX: use --backend torch")
    example = _example(source)
    axes = {name: {0: "sentences", 1: "tokens"} for name in source.inputs}
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.inference_mode():
            path = Path(folder) / "model.onnx"
            warnings.simplefilter("ignore")  # the exporter warns of every constant it takes from the example
            torch.onnx.export(
                _UnitVectors(encoder, source.inputs).eval(), tuple(map(torch.from_numpy, example.values())), path,
                dynamo=False, opset_version=OPSET, input_names=list(source.inputs), output_names=[OUTPUT],
                dynamic_axes={**axes, OUTPUT: {0: "sentences"}},
            )  # fmt: skip
            return path.read_bytes()
    except (RuntimeError, TypeError, ValueError, torch.onnx.OnnxExporterError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"a network that cannot become ONNX: {reason}; use --backend torch") from None


def _example(source: TokenSource) -> Arrays:
    """Two sentences of five and three tokens; which tokens does not matter."""
    example = {name: np.zeros((2, 5), dtype=np.int64) for name in source.inputs}
    if TOKEN_MASK in example:
        example[TOKEN_MASK][:] = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    return example
