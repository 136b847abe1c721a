"""How PyTorch's work on a CPU is shared: every core takes a batch of its own, for one that fits its cache is small."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from tokenizers import Tokenizer

from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.tokens import TOKEN_IDS, TOKEN_MASK, TOKEN_TYPES, Arrays, Padding, TokenSource
from dualmoco.models.model import TORCH
from dualmoco.models.network import Encoder, text_tokenizer

CPU_BUDGET = 1024
"""Tokens in a batch: more fall out of a core's cache, fewer leave the matrix products too small."""


def one_thread_workers() -> ThreadPoolExecutor | None:
    """As many workers of one thread each as PyTorch has threads; None if that is one."""
    threads = torch.get_num_threads()
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) if threads > 1 else None


def set_threads(threads: int | None) -> None:
    """Sets the CPU threads of PyTorch in this process, if a number is given."""
    if threads:
        torch.set_num_threads(threads)


GPU_BUDGET = 16_384
OWN_BATCH = 32
"""Sentences in a batch that the network tokenizes itself."""
UNLIMITED = 1_000_000
"""A length that libraries write where a model names none is far above this."""


class TorchBackend:
    """A network as PyTorch runs it: the same operations, less padding.

    Args:
        encoder: The network of one language; it is left in evaluation mode, on the device it is on.
        prompt: Put before every sentence.
    """

    name, is_unit = TORCH, False

    def __init__(self, encoder: Encoder, prompt: str = "") -> None:
        self.encoder, self.prompt, self.dimension = encoder, prompt, encoder.dimension
        self.source = token_source(encoder, prompt)  # None if the network takes its input in a way of its own
        self.device = next(encoder.parameters()).device
        self.workers = one_thread_workers() if self.device.type == "cpu" else None

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, as the network makes them."""
        self.encoder.eval()
        if self.source is None:
            return encode_by_itself(self.encoder, [self.prompt + text for text in texts])
        budget = CPU_BUDGET if self.device.type == "cpu" else GPU_BUDGET
        return self.source.encode(texts, budget, self.dimension, self._run, self.workers)

    @torch.inference_mode()
    def _run(self, arrays: Arrays) -> Vectors:
        features = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        vectors: Vectors = np.asarray(self.encoder(features).float().cpu())
        return vectors


@torch.inference_mode()
def encode_by_itself(encoder: Encoder, texts: Sequence[str], batch_size: int = OWN_BATCH) -> Vectors:
    """Vectors (n, D) of sentences, tokenized and padded by the network's own library: slow, and the reference."""
    encoder.eval()
    device = next(encoder.parameters()).device
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    vectors: Vectors = np.empty((len(texts), encoder.dimension), dtype=np.float32)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        features = encoder.tokenize([texts[row] for row in rows])
        vectors[rows] = encoder({name: value.to(device) for name, value in features.items()}).float().cpu().numpy()
    return vectors


def token_source(encoder: Encoder, prompt: str = "") -> TokenSource | None:
    """The tokens of a transformer.

    Args:
        encoder: Any encoder.
        prompt: Put before every sentence.

    Returns:
        Its tokens; None if it takes more than ids, mask and types of plain text.
    """
    tokenizer = text_tokenizer(encoder)
    inputs = tuple(encoder.tokenize(["a"])) if tokenizer else ()
    if tokenizer is None or not set(inputs) <= {TOKEN_IDS, TOKEN_MASK, TOKEN_TYPES}:
        return None
    own: Tokenizer = Tokenizer.from_str(
        tokenizer.backend_tokenizer.to_str()
    )  # settings of the original stay as they are
    own.no_padding()
    own.no_truncation()
    if tokenizer.model_max_length < UNLIMITED:
        own.enable_truncation(tokenizer.model_max_length, direction=tokenizer.truncation_side)
    padding = Padding(tokenizer.pad_token_id, tokenizer.pad_token_type_id, tokenizer.padding_side == "left")
    return TokenSource(own, inputs, padding, prompt)
