"""Back-ends: different ways to run one model, the same unit vectors.

Gives `encode`, mining and search what turns one language's sentences into vectors (n, D). A back-end other than torch
is used only after it has agreed with the model itself on a fixed set of sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.vectors import Vectors, check_vectors, unit_vectors
from dualmoco.models.backends.agreement import SENTENCES, check_agreement
from dualmoco.models.backends.onnx_folder import is_onnx_folder, open_onnx_folder
from dualmoco.models.backends.onnx_runtime import ONNX, ONNX_INT8, OnnxBackend, make_graph
from dualmoco.models.backends.pytorch import TorchBackend
from dualmoco.models.backends.static import StaticBackend
from dualmoco.models.backends.tokens import token_source
from dualmoco.models.encoder import Encoder, encode_texts, static_table
from dualmoco.models.identity import SentenceEncoder, check_language
from dualmoco.models.network import NetworkEncoder
from dualmoco.models.opening import open_encoder

AUTO, TORCH, STATIC = "auto", "torch", "static"
BACKENDS = (AUTO, TORCH, STATIC, ONNX, ONNX_INT8)
CHECK_BATCH = 8


class Backend(Protocol):
    """Turns sentences of one language into unit vectors."""

    @property
    def name(self) -> str:
        """How it runs: torch, static, onnx or onnx-int8; package, words or embeddings for encoders of other kinds."""

    @property
    def sha256(self) -> str:
        """The checksum of the model, as evaluation gives it."""

    @property
    def width(self) -> int:
        """D."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D) of sentences in their order."""


class EncoderBackend:
    """An encoder that is no network: word vectors, vectors made elsewhere, a package with a runtime of its own.

    Args:
        encoder: Any encoder.
        name: Of its kind.
        lang: The language it is asked for.
    """

    def __init__(self, encoder: SentenceEncoder, name: str, lang: str) -> None:
        self.encoder, self.name, self.lang = encoder, name, lang
        self.sha256 = encoder.identity.sha256

    @property
    def width(self) -> int:
        """D."""
        return int(self.encoder.encode([], lang=self.lang).shape[1])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D) of sentences in their order."""
        vectors = self.encoder.encode(texts, lang=self.lang)
        return unit_vectors(check_vectors(vectors, len(texts), self.encoder.identity.name))


def open_backend(model: str, lang: str, name: str = AUTO, *, threads: int | None = None) -> Backend:
    """Opens a model to encode sentences of one language.

    Args:
        model: Anything that evaluation takes, or a folder of `dualmoco export --to onnx`.
        lang: The language; a model that tells languages apart must have it.
        name: One of BACKENDS; `auto` is static for a static encoder, torch for other networks, and what the folder
            holds for an exported one.
        threads: CPU threads of torch, for the whole process, or of onnxruntime; the libraries' choice if None.

    Returns:
        The back-end.

    Raises:
        ConfigError: An unknown back-end.
        ModelError: A model that cannot be opened or run so, a language it does not have, or a back-end whose vectors
            are not the model's.
    """
    folder = Path(model)
    if is_onnx_folder(folder):
        return _expect(open_onnx_folder(folder, lang, threads), name, model)
    encoder = open_encoder(model)
    check_language(encoder, lang)
    if not isinstance(encoder, NetworkEncoder):
        return _expect(EncoderBackend(encoder, model.partition(":")[0], lang), name, model)
    if name not in BACKENDS:
        raise ConfigError(f"back-end {name!r}; expected one of {', '.join(BACKENDS)}")
    network = encoder.encoders[lang] if isinstance(encoder.encoders, dict) else encoder.encoders
    if threads:
        torch.set_num_threads(threads)
    return open_network_backend(network, name, encoder.identity.sha256, prompt=encoder.prompt, threads=threads)


def open_network_backend(
    network: Encoder, name: str, sha256: str, *, prompt: str = "", threads: int | None = None
) -> Backend:
    """Runs a network in one of the ways that are known.

    Args:
        network: Of one language.
        name: One of BACKENDS.
        sha256: The model's checksum.
        prompt: Put before every sentence.
        threads: Of onnxruntime.

    Returns:
        The back-end, checked.

    Raises:
        ModelError: A way that does not fit the network, or whose vectors are not the network's.
    """
    table = static_table(network) if name in (AUTO, STATIC) else None
    if name == STATIC and table is None:
        raise ModelError("back-end static: the model is no table of token vectors; expected one, or --backend torch")
    if table is not None:
        tokenizer, vectors = table
        made: Backend = StaticBackend(tokenizer, vectors.numpy(), sha256, prompt)
    elif name in (ONNX, ONNX_INT8):
        source = token_source(network, prompt)
        if source is None:
            raise ModelError(f"back-end {name}: the model is no transformer of plain text; expected one, or use auto")
        made = OnnxBackend(name, make_graph(name, network, source), source, sha256, threads)
    else:
        return TorchBackend(network, token_source(network, prompt), sha256, prompt)
    check_agreement(made.name, made.encode, reference_vectors(network, prompt))
    return made


def reference_vectors(network: Encoder, prompt: str = "") -> Vectors:
    """The vectors of the sentences that back-ends are checked with, as the network itself makes them."""
    vectors: Vectors = encode_texts(network, [prompt + text for text in SENTENCES], CHECK_BATCH).numpy()
    return vectors


def _expect(backend: Backend, name: str, model: str) -> Backend:
    if name not in (AUTO, backend.name):
        raise ConfigError(f"{model}: back-end {name!r}; expected {backend.name}, the only one it has, or auto")
    return backend
