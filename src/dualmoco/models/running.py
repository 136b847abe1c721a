"""The ways to run a network of ours or of sentence-transformers: PyTorch, a table of token vectors, ONNX.

A way other than PyTorch is used only after it has agreed with the network itself on a fixed set of sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.agreement import SENTENCES, check_agreement
from dualmoco.models.backends.pytorch import TorchBackend, encode_by_itself, token_source
from dualmoco.models.encoder import Encoder, static_table
from dualmoco.models.model import AUTO, BACKENDS, BF16, FP16, FP32, INT8, ONNX, ONNX_INT8, STATIC, TORCH, Backend

CHECK_BATCH = 8
TORCH_TYPES = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}


def run_network(
    encoder: Encoder, name: str = AUTO, *, prompt: str = "", compute: str = FP32, threads: int | None = None
) -> Backend:
    """Makes what runs the network of one language.

    Args:
        encoder: The network.
        name: One of BACKENDS.
        prompt: Put before every sentence.
        compute: One of PRECISIONS; other than fp32 for PyTorch on a GPU alone.
        threads: Of onnxruntime.

    Returns:
        The back-end, checked.

    Raises:
        ConfigError: An unknown way, or a precision that it does not compute in.
        ModelError: A way that does not fit the network, or whose vectors are not the network's.
    """
    if name == INT8:
        raise ModelError("back-end int8 is for packed BERT models; expected one, or back-end auto")
    if name not in BACKENDS:
        raise ConfigError(f"back-end {name!r}; expected one of {', '.join(BACKENDS)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if compute != FP32 and (device == "cpu" or name not in (AUTO, TORCH)):
        raise ConfigError(f"compute {compute} with back-end {name} on a {device}; expected {FP32}, or torch on a GPU")
    made = _other_than_torch(encoder, name, prompt, threads) if compute == FP32 else None
    if made is None:
        return TorchBackend(encoder.to(device, TORCH_TYPES[compute]), prompt)
    check_agreement(made.name, made.encode, reference_vectors(encoder, prompt))
    return made


def _other_than_torch(encoder: Encoder, name: str, prompt: str, threads: int | None) -> Backend | None:
    if name in (AUTO, STATIC):
        return _static(encoder, name, prompt)
    return _onnx(encoder, name, prompt, threads) if name in (ONNX, ONNX_INT8) else None


def reference_vectors(encoder: Encoder, prompt: str = "", sentences: Sequence[str] = SENTENCES) -> Vectors:
    """The vectors of the sentences that back-ends are checked with, as the network itself makes them."""
    return encode_by_itself(encoder, [prompt + text for text in sentences], CHECK_BATCH)


def _static(encoder: Encoder, name: str, prompt: str) -> Backend | None:
    from dualmoco.models.backends.static import StaticBackend, StaticTable

    found = static_table(encoder)
    if found is None and name == STATIC:
        raise ModelError("back-end static: the model is no table of token vectors; expected one, or --backend torch")
    return StaticBackend(StaticTable(found[0], found[1].numpy(), found[2]), prompt) if found else None


def _onnx(encoder: Encoder, name: str, prompt: str, threads: int | None) -> Backend:
    from dualmoco.models.backends.onnx_graph import make_graph
    from dualmoco.models.backends.onnx_runtime import OnnxBackend

    source = token_source(encoder, prompt)
    if source is None:
        raise ModelError(f"back-end {name}: the model is no transformer of plain text; expected one, or use auto")
    return OnnxBackend(name, make_graph(name, encoder, source), source, threads)
