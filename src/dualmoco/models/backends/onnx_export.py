"""Make an ONNX graph of a network, in fp32 or with int8 matrix products."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dualmoco.core.errors import ModelError
from dualmoco.models.backends.int8_export import quantize_network
from dualmoco.models.backends.onnx_runtime import GRAPH_FILE, ONNX_OUTPUT, check_onnx
from dualmoco.models.backends.pytorch import CHECK_SENTENCES
from dualmoco.models.backends.tokens import TOKEN_MASK, Arrays, TokenSource
from dualmoco.models.model import ONNX_INT8
from dualmoco.models.network import Encoder

OPSET = 17
MOST_GRAPH_BYTES = (1 << 31) - (1 << 20)  # a graph is one protobuf message, which is limited to two GiB


class _UnitVectors(nn.Module):
    """An encoder with positional inputs, as the exporter expects."""

    def __init__(self, encoder: Encoder, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder, self.inputs = encoder, inputs

    def forward(self, *tensors: Tensor) -> Tensor:
        return normalize(self.encoder(dict(zip(self.inputs, tensors, strict=True))), dim=-1)


def make_graph(name: str, encoder: Encoder, source: TokenSource) -> bytes:
    """Makes the graph of a network for the back-end ONNX or ONNX_INT8; equal networks give byte-identical graphs."""
    check_onnx("onnx", "onnxruntime")
    if name == ONNX_INT8:
        return quantize_network(encoder.cpu(), source, CHECK_SENTENCES)
    return export_graph(encoder.cpu(), source)


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
            warnings.simplefilter("ignore")  # the exporter warns about every constant in the example
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
