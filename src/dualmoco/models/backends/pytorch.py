"""The PyTorch back-end, which is the reference for all other back-ends.

A back-end other than PyTorch is used only if its vectors of `CHECK_SENTENCES` agree with those of PyTorch. Shapes: n
sentences, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.tokens import (
    CPU_BATCH_TOKENS,
    TOKEN_IDS,
    TOKEN_MASK,
    TOKEN_TYPES,
    Arrays,
    Padding,
    TokenBackend,
    TokenSource,
    check_length,
    one_thread_workers,
)
from dualmoco.models.model import ONNX, ONNX_INT8, STATIC, TORCH
from dualmoco.models.network import Encoder, count_positions, text_tokenizer

GPU_BATCH_TOKENS = 16_384
LIBRARY_BATCH = 32  # sentences per batch if the network's own library tokenizes them
CHECK_BATCH = 8
UNLIMITED_TOKENS = 1_000_000  # libraries write a far larger number if a model has no maximum length

LOWEST_COSINE = {"sentence-transformers": 0.99999, STATIC: 0.999, ONNX: 0.999, ONNX_INT8: 0.99}
CHECK_SENTENCES = (
    "a",
    "?",
    "。",
    "7",
    "我",
    "Yes.",
    "好的",
    "Thank you.",
    "It's raining again, isn't it?",
    "今天天气很好。",
    "The committee will publish its report on water quality next Thursday.",
    "她把那本旧书放回了图书馆三楼靠窗的书架上。",
    "I don't know what you're talking about!",
    "你为什么不早点告诉我？",
    "HELLO WORLD",
    "e = mc^2; f(x) = x ** 2 + 3 * x - 1",
    "sudo apt install python3-venv && python3 -m venv .venv",
    "https://example.org/a/b?c=1&d=2#e",
    "Der Zug nach München hat heute leider zwanzig Minuten Verspätung.",
    "¿Dónde está la biblioteca más cercana?",
    "Она читает книгу в саду, пока дети играют.",
    "東京の桜は三月の終わりに咲きます。",
    "나는 내일 아침 일찍 떠날 거예요.",
    "قرأت الكتاب الذي أعطيتني إياه.",
    "मुझे चाय पसंद है, कॉफ़ी नहीं।",
    "Η θάλασσα ήταν ήρεμη.",
    "Two 猫 and one dog 在花园里 play together.",
    "😀 great news 🎉🎉",
    "1,234.56 kg (approx. 2,721 lb) @ 35 °C",
    "Although the first results looked promising, the team repeated the whole experiment three times before they "
    "allowed themselves to write about it, because one of the instruments had been replaced in between.",
    "虽然最初的结果看起来很有希望，但由于期间更换过一台仪器，研究小组还是把整个实验重复了三遍，才允许自己把它写下来。",
    "The river was long, and so was the story that the old sailor told about it. " * 40,
)
"""Sentences of several lengths and scripts, from one character to more tokens than a network can take."""


class TorchBackend(TokenBackend):
    """Runs a network with PyTorch on its device: the same operations as its own library, with less padding."""

    name = TORCH

    def __init__(self, encoder: Encoder, source: TokenSource) -> None:
        self.encoder, self.device = encoder, next(encoder.parameters()).device
        is_cpu = self.device.type == "cpu"
        batch_tokens = CPU_BATCH_TOKENS if is_cpu else GPU_BATCH_TOKENS
        super().__init__(source, encoder.dimension, batch_tokens, one_thread_workers if is_cpu else lambda: None)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, without normalization."""
        self.encoder.eval()
        return super().encode(texts)

    @torch.inference_mode()
    def run(self, arrays: Arrays) -> Vectors:
        """Vectors (N, D) of a padded batch (N, L)."""
        features = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        vectors: Vectors = np.asarray(self.encoder(features).float().cpu())
        return vectors


class LibraryBackend:
    """Runs a network whose own library must tokenize: a table of token vectors, or a network with special inputs."""

    name, is_unit = TORCH, False

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.dimension = encoder, encoder.dimension

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, without normalization."""
        return encode_by_itself(self.encoder, texts)


def run_in_torch(encoder: Encoder) -> TorchBackend | LibraryBackend:
    """The back-end of a network, on its current device."""
    source = token_source(encoder)
    return LibraryBackend(encoder) if source is None else TorchBackend(encoder, source)


def token_source(encoder: Encoder) -> TokenSource | None:
    """The tokens of a transformer; None for an encoder that needs more than ids, mask and types of plain text."""
    tokenizer = text_tokenizer(encoder)
    inputs = tuple(encoder.tokenize(["a"])) if tokenizer else ()
    if tokenizer is None or not set(inputs) <= {TOKEN_IDS, TOKEN_MASK, TOKEN_TYPES}:
        return None
    own: Tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # a copy: the original keeps its settings
    own.no_padding()
    own.no_truncation()
    if tokenizer.model_max_length < UNLIMITED_TOKENS:
        longest = check_length(tokenizer.model_max_length, None, tokenizer.name_or_path)
        own.enable_truncation(longest, direction=tokenizer.truncation_side)
    padding = Padding(tokenizer.pad_token_id, tokenizer.pad_token_type_id, tokenizer.padding_side == "left")
    return TokenSource(own, inputs, padding, encoder.prompt, count_positions(encoder))


@torch.inference_mode()
def encode_by_itself(encoder: Encoder, texts: Sequence[str], batch_size: int = LIBRARY_BATCH) -> Vectors:
    """Vectors (n, D) of sentences, tokenized and padded by the network's own library: slow, but the reference."""
    encoder.eval()
    device = next(encoder.parameters()).device
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    vectors: Vectors = np.empty((len(texts), encoder.dimension), dtype=np.float32)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        features = encoder.tokenize([texts[row] for row in rows])
        vectors[rows] = encoder({name: value.to(device) for name, value in features.items()}).float().cpu().numpy()
    return vectors


def reference_vectors(encoder: Encoder, sentences: Sequence[str] = CHECK_SENTENCES) -> Vectors:
    """The vectors of the check sentences from the network itself."""
    return encode_by_itself(encoder, sentences, CHECK_BATCH)


def check_agreement(name: str, encode: Callable[[Sequence[str]], Vectors], reference: Vectors) -> float:
    """The lowest cosine between vectors of a back-end and of the network for CHECK_SENTENCES; ModelError if too low."""
    expected, found = unit_vectors(reference), unit_vectors(encode(CHECK_SENTENCES))
    cosines = np.einsum("nd,nd->n", expected, found, dtype=np.float64)  # (n,)
    cosines[~expected.any(axis=1) & ~found.any(axis=1)] = 1.0
    worst = int(cosines.argmin())
    if not cosines[worst] >= LOWEST_COSINE[name]:
        raise ModelError(
            f"{name}: cosine {cosines[worst]:.4f} with the model itself for {CHECK_SENTENCES[worst][:40]!r}; expected "
            f"at least {LOWEST_COSINE[name]}: use back-end torch"
        )
    return float(cosines[worst])
