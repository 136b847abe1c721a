"""The PyTorch back-end: any network, on a GPU if there is one, fed with batches of like length.

On CPUs every core takes a batch of its own: batches that fit its cache are too small to share.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.models.backends.tokens import Arrays, TokenSource
from dualmoco.models.encoder import Encoder, encode_texts

CPU_BUDGET = 1024
"""Tokens in a batch: more fall out of a core's cache, fewer leave the matrix products too small."""
GPU_BUDGET = 16_384
FALLBACK_BATCH = 32


class TorchBackend:
    """A network as PyTorch runs it: the same operations, less padding.

    Args:
        encoder: The network of one language.
        source: Its tokens; None if it takes its input in a way of its own, which is then left to it.
        sha256: The model's checksum.
        prompt: Put before every sentence.
    """

    name = "torch"

    def __init__(self, encoder: Encoder, source: TokenSource | None, sha256: str, prompt: str = "") -> None:
        self.sha256, self.width = sha256, encoder.width
        self.encoder, self.source, self.prompt = encoder.eval(), source, prompt
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.encoder.to(self.device)
        threads = torch.get_num_threads() if self.device == "cpu" else 1
        self.workers = (
            ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) if threads > 1 else None
        )

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, D) of sentences in their order."""
        if self.source is None:
            vectors = encode_texts(self.encoder, [self.prompt + text for text in texts], FALLBACK_BATCH).numpy()
        else:
            budget = GPU_BUDGET if self.device == "cuda" else CPU_BUDGET
            vectors = self.source.encode(texts, budget, self.width, self._run, self.workers)
        return unit_vectors(vectors)

    @torch.inference_mode()
    def _run(self, arrays: Arrays) -> Vectors:
        features = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        vectors: Vectors = np.asarray(self.encoder(features).float().cpu())
        return vectors
