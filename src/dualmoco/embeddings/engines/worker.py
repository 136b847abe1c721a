"""What runs in a process of a cluster: a worker, and what it must be told before its first piece of work."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.version import VERSION
from dualmoco.embeddings.arrays import ShardedVectors, VectorPrecision
from dualmoco.embeddings.engines.engine import Block, Scanning, encode_shard
from dualmoco.models.backend import open_backend

THREADS = 1  # of a worker, which takes one CPU


class Setup(Protocol):
    """What a worker needs to know before its first piece; sent to other machines."""

    def open(self) -> Callable[[Any], Any]:
        """What does a piece."""


@dataclass(frozen=True)
class EncodingSetup:
    """A back-end, and the checksum of its model."""

    model: str
    lang: str
    backend: str
    precision: VectorPrecision
    sha256: str

    def open(self) -> Callable[[list[str]], np.ndarray]:
        """What makes sentences packed vectors; ModelError if the model is not on this machine, or another is."""
        model = Path(self.model)
        if model.is_absolute() and not model.exists():
            raise ModelError(f"{model}: not found on {_host()}; expected a model folder that every node sees")
        backend = open_backend(self.model, self.lang, self.backend, threads=THREADS)
        if backend.sha256 != self.sha256:
            raise ModelError(
                f"{model}: checksum {backend.sha256[:12]} on {_host()}; expected {self.sha256[:12]}, "
                "the same model on every node"
            )
        return lambda texts: encode_shard(backend, texts, self.precision)


@dataclass(frozen=True)
class ScanningSetup:
    """Files of vectors; never the vectors themselves."""

    src: Sequence[str]
    tgt: Sequence[str]
    width: int
    k: int
    cells: str | None

    def open(self) -> Callable[[Block], list[tuple[np.ndarray, np.ndarray]]]:
        """What makes a block scores and ids, of sources and perhaps of targets; DataError if files are not here."""
        for path in (*self.src, *self.tgt, *([self.cells] if self.cells else [])):
            if not Path(path).is_file():
                raise DataError(f"{path}: not found on {_host()}; expected a work folder that every node sees (--work)")
        src, tgt = (ShardedVectors([Path(path) for path in side], self.width) for side in (self.src, self.tgt))
        scan = Scanning(src, tgt, self.k, Path(self.cells) if self.cells else None).open()
        return lambda block: [(found.scores.numpy(), found.ids.numpy()) for found in scan(block) if found]


class Worker:
    """What runs in a process of the cluster."""

    def open(self, setup: Setup, version: str) -> None:
        """Makes ready; ConfigError if another version of dualmoco is installed there."""
        if version != VERSION:
            raise ConfigError(f"dualmoco {VERSION} on {_host()}; expected {version} on every node, as on this one")
        torch.set_num_threads(THREADS)
        self.work = setup.open()

    def do(self, given: Any) -> Any:
        """One piece."""
        return self.work(given)


def _host() -> str:
    return f"node {socket.gethostname()}"
