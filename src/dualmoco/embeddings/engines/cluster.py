"""Work on a Ray cluster, with the results of `LocalEngine`.

Pieces of work go to workers a few at a time; texts and results travel through Ray, vectors are read from the store's
files. A worker or node that is lost costs the pieces it had in hand: others do them again. Ray is imported when an
engine is made.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dualmoco.core.errors import ConfigError
from dualmoco.embeddings.engines.engine import Block, Encoding, Scanning
from dualmoco.embeddings.engines.pool import Pool
from dualmoco.embeddings.engines.worker import EncodingSetup, ScanningSetup, Setup
from dualmoco.search.neighbors import Candidates, Tell

REACH_SECONDS = 5.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of gRPC, which Ray's head speaks
SETTINGS = 4  # the kind of message that answers it


class RayEngine:
    """A Ray cluster: every CPU is a worker; every GPU one, where there are GPUs and the torch back-end encodes."""

    def __init__(self, address: str | None = None) -> None:
        """Joins or starts a cluster; a process that is in one already stays in it.

        Args:
            address: `HOST:PORT` of a running cluster's head, `auto` for the one this machine is in, None for a new one
                of this machine's cores, which ends with the process.

        Raises:
            ConfigError: Ray is not installed, or no cluster answers.
        """
        self.ray = _join(address)
        self.spare: list[Any] = []  # workers of the work before, which have all libraries loaded
        self.on_gpus = False

    def encode(
        self, work: Encoding, shards: Iterable[tuple[int, list[str]]], tell: Tell
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Packed vectors of each shard, as they are done."""
        model = str(Path(work.model).resolve()) if Path(work.model).exists() else work.model
        setup = EncodingSetup(model, work.lang, work.backend.name, work.precision, work.backend.sha256)
        on_gpus = setup.backend == "torch" and "GPU" in self.ray.cluster_resources()
        for number, packed in self._run(setup, shards, on_gpus):
            yield number, packed
            tell(len(packed))

    def scan(
        self, work: Scanning, blocks: Sequence[Block], tell: Tell
    ) -> Iterator[tuple[Block, Candidates, Candidates | None]]:
        """Candidates of each block, as they are done."""
        paths = [[str(path.resolve()) for path in side.paths] for side in (work.src, work.tgt)]
        cells = str(work.cells.resolve()) if work.cells else None
        setup = ScanningSetup(paths[0], paths[1], work.src.width, work.k, cells)
        by_number = {block.number: block for block in blocks}
        for number, arrays in self._run(setup, by_number.items(), on_gpus=False):
            block = by_number[number]
            forward, *backward = (Candidates(*(torch.from_numpy(array.copy()) for array in pair)) for pair in arrays)
            yield block, forward, backward[0] if backward else None
            tell(block.rows.stop - block.rows.start)

    def close(self) -> None:
        """Gives the workers' CPUs and GPUs back to the cluster, as the engine's end does too."""
        for actor in self.spare:
            self.ray.kill(actor)
        self.spare = []

    def _run(self, setup: Setup, pieces: Iterable[tuple[int, Any]], on_gpus: bool) -> Iterator[tuple[int, Any]]:
        if on_gpus != self.on_gpus:
            self.close()
        pool = Pool(self.ray, setup, on_gpus)
        self.on_gpus, self.spare, spare = on_gpus, [], self.spare
        try:
            yield from pool.run(pieces, spare)
        finally:
            self.spare = [member.actor for member in pool.members]


def _join(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or Ray's messages would stand among results
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError("the ray engine needs Ray; pip install 'dualmoco[ray]'") from None
    if address and address != "auto" and not os.environ.get("RAY_USE_TLS"):
        _reach(address)
    if ray.is_initialized():
        return ray
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        needed = "a node of it here (ray start), RAY_AUTH_MODE=token if it has a token" if address else "a new cluster"
        raise ConfigError(f"--address {address or 'not given'}: {reason}; expected {needed}") from None
    return ray


def _reach(address: str) -> None:
    """ConfigError if nothing like Ray answers; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65_536):
        raise ConfigError(f"--address {address}; expected auto, or HOST:PORT of the head of a Ray cluster")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_SECONDS) as connection:
            connection.sendall(GREETING)
            answer = connection.recv(9)
    except OSError as error:
        raise ConfigError(f"--address {address}: {error}; expected a running cluster: ray start --head") from None
    if len(answer) < 4 or answer[3] != SETTINGS:
        raise ConfigError(f"--address {address}: something else than Ray answers; expected the head's address")
