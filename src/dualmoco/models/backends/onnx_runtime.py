"""The ONNX back-ends: a graph in onnxruntime on the CPU, in single precision or in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.agreement import SENTENCES
from dualmoco.models.backends.onnx_graph import OUTPUT, check_onnx, export_graph
from dualmoco.models.backends.quantization import quantize_graph
from dualmoco.models.backends.tokens import Arrays, TokenSource
from dualmoco.models.encoder import Encoder

ONNX, ONNX_INT8 = "onnx", "onnx-int8"
BUDGET = 512
"""Tokens in a batch."""


class OnnxBackend:
    """A graph in onnxruntime.

    Args:
        name: ONNX or ONNX_INT8.
        graph: Of inputs as `source` names them.
        source: Its tokens.
        sha256: The model's checksum.
        threads: Each of which takes a batch; as many as torch has if None.

    Raises:
        ModelError: onnxruntime is not installed or cannot read the graph.
    """

    def __init__(self, name: str, graph: bytes, source: TokenSource, sha256: str, threads: int | None = None) -> None:
        check_onnx()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a batch is too small to share: each core takes its own
        try:
            self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises classes of its own, without a common base
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(f"a graph that onnxruntime cannot read: {reason}; export it again") from None
        self.name, self.sha256, self.source = name, sha256, source
        self.workers = ThreadPoolExecutor(threads or torch.get_num_threads())
        self.width = self._run(next(source.batches(["a"], BUDGET))).shape[1]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D) of sentences in their order."""
        return unit_vectors(self.source.encode(texts, BUDGET, self.width, self._run, self.workers))

    def _run(self, arrays: Arrays) -> Vectors:
        vectors: Vectors = np.asarray(self.session.run([OUTPUT], arrays)[0])
        return vectors


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
    check_onnx()
    graph = export_graph(encoder.cpu(), source)
    return quantize_graph(graph, source.batches(SENTENCES, BUDGET)) if name == ONNX_INT8 else graph
