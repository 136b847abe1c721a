"""The ONNX back-ends: a graph in onnxruntime on the CPU, in single precision or int8, without PyTorch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.tokens import Arrays, TokenSource

BUDGET = 512
"""Tokens in a batch."""
OUTPUT = "sentence_embedding"


class OnnxBackend:
    """A graph in onnxruntime.

    Args:
        name: onnx or onnx-int8.
        graph: Of inputs as `source` names them.
        source: Its tokens.
        threads: Each of which takes a batch; one a core, or what OMP_NUM_THREADS says, if None.

    Raises:
        ModelError: onnxruntime is not installed or cannot read the graph.
    """

    is_unit = False

    def __init__(self, name: str, graph: bytes, source: TokenSource, threads: int | None = None) -> None:
        check_onnx("onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a batch is too small to share: each core takes its own
        try:
            self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises classes of its own, without a common base
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(f"a graph that onnxruntime cannot read: {reason}; export it again") from None
        self.name, self.source = name, source
        self.workers = ThreadPoolExecutor(threads or int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        self.dimension = int(self._run(next(source.batches(["a"], BUDGET))).shape[1])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, of unit length but for rounding."""
        return self.source.encode(texts, BUDGET, self.dimension, self._run, self.workers)

    def _run(self, arrays: Arrays) -> Vectors:
        vectors: Vectors = np.asarray(self.session.run([OUTPUT], arrays)[0])
        return vectors


def check_onnx(*packages: str) -> None:
    """Refuses to work without the extra.

    Args:
        packages: Some of onnx and onnxruntime.

    Raises:
        ModelError: One is not installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"{' and '.join(missing)} not installed; expected for ONNX: pip install 'dualmoco[onnx]'")
