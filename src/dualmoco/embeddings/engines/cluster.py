"""Work on a Ray cluster, with the results of `LocalEngine`.

Pieces of work go to workers a few at a time; texts and results travel through Ray, vectors are read from the store's
files. A worker or node that is lost costs the pieces it had in hand: others do them again. Ray is imported when an
engine is made.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from dualmoco.core.errors import ConfigError
from dualmoco.core.progress import Progress
from dualmoco.embeddings.engines.engine import Engine, LocalEngine, Work
from dualmoco.embeddings.engines.pool import Pool

REACH_SECONDS = 5.0
ATTEMPTS = "RAY_gcs_server_port_wait_time_s"  # how often `ray.init` tries to reach a head, 40 s each


class RayEngine:
    """A Ray cluster: every CPU is a worker; every GPU one, where there are GPUs and the work wants them."""

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

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Does pieces of work on all nodes; see `Engine.run`."""
        sizes: dict[int, int] = {}

        def measured() -> Iterator[tuple[int, Any]]:
            for number, piece in pieces:
                sizes[number] = work.size(piece)
                yield number, piece

        on_gpus = work.wants_gpu and "GPU" in self.ray.cluster_resources()
        if on_gpus != self.on_gpus:
            self.close()
        pool = Pool(self.ray, work.portable(), on_gpus)
        self.on_gpus, self.spare, spare = on_gpus, [], self.spare
        try:
            for number, result in pool.run(measured(), spare):
                yield number, result
                progress(sizes.pop(number))
        finally:
            self.spare = [member.actor for member in pool.members]

    def close(self) -> None:
        """Gives the workers' CPUs and GPUs back to the cluster, as the engine's end does too."""
        for actor in self.spare:
            self.ray.kill(actor)
        self.spare = []


def open_engine(engine: str | Engine, address: str | None = None) -> Engine:
    """The engine that is named.

    Args:
        engine: `local`, `ray`, or one that is open.
        address: Of a running Ray cluster; a new local one if None.

    Returns:
        The engine.

    Raises:
        ConfigError: An unknown engine, or one that is not installed or does not answer.
    """
    if not isinstance(engine, str):
        return engine
    if engine not in ("local", "ray"):
        raise ConfigError(f"engine {engine}; expected local or ray")
    return LocalEngine() if engine == "local" else RayEngine(address)


def _join(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or Ray's messages would stand among results
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError("the ray engine needs Ray; pip install 'dualmoco[ray]'") from None
    if address and address != "auto":
        _check_address(address)
    if ray.is_initialized():
        return ray
    try:
        with _one_attempt() if address else nullcontext():
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        if reason.startswith("Failed to connect"):
            raise ConfigError(f"--address {address}: this address is not a Ray head node ({reason})") from None
        needed = "a node of it here (ray start), RAY_AUTH_MODE=token if it has a token" if address else "a new cluster"
        raise ConfigError(f"--address {address or 'not given'}: {reason}; expected {needed}") from None
    return ray


def _check_address(address: str) -> None:
    """ConfigError at once if nothing listens there, where Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65_536):
        raise ConfigError(f"--address {address}; expected auto, or HOST:PORT of the head of a Ray cluster")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise ConfigError(f"--address {address}: {error}; expected a running cluster: ray start --head") from None


@contextmanager
def _one_attempt() -> Iterator[None]:
    """Lets Ray try once, not 20 times, to reach the head of a cluster, unless the user chose a number."""
    chosen = ATTEMPTS in os.environ
    os.environ.setdefault(ATTEMPTS, "1")
    try:
        yield
    finally:
        if not chosen:
            del os.environ[ATTEMPTS]
