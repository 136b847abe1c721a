"""Work on a Ray cluster: a pool of worker processes on its nodes, with the results of `LocalEngine`.

Pieces of work go to workers a few at a time; texts and results travel through Ray, vectors are read from the store's
files. A worker or node that is lost costs the pieces it had in hand: others do them again. Ray is imported when an
engine is made.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dualmoco.embedding.arrays import ShardedVectors
from dualmoco.embedding.backend import open_backend
from dualmoco.engines.engine import Block, Encoding, Scanning, encode_shard
from dualmoco.errors import ConfigError, DataError, DualmocoError, ModelError, RunError
from dualmoco.neighbors import Candidates, Tell
from dualmoco.version import VERSION

FAILURES = 5  # of one piece, or of starting workers, until the run is given up
IN_HAND = 2  # pieces of a worker: one under work, one waiting, so that it never idles
STARTING = 8  # workers started at once, or as many as are at work already
THREADS = 1  # of a worker, which takes one CPU
LOOK_SECONDS = 2.0  # after which the cluster is looked at anew
PATIENT_LOOKS = 30  # without any worker, until that is told
REACH_SECONDS = 5.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of gRPC, which Ray's head speaks
SETTINGS = 4  # the kind of message that answers it

logger = logging.getLogger(__name__)


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
        if Path(work.model).exists():
            work = replace(work, model=str(Path(work.model).resolve()))
        on_gpus = work.backend == "torch" and "GPU" in self.ray.cluster_resources()
        for number, packed in self._run(EncodingSetup(work), shards, on_gpus):
            yield number, packed
            tell(len(packed))

    def scan(
        self, work: Scanning, blocks: Sequence[Block], tell: Tell
    ) -> Iterator[tuple[Block, Candidates, Candidates]]:
        """Candidates of each block, as they are done."""
        paths = [[str(path.resolve()) for path in side.paths] for side in (work.src, work.tgt)]
        cells = str(work.cells.resolve()) if work.cells else None
        setup = ScanningSetup(paths[0], paths[1], work.src.width, work.k, cells, work.probes)
        by_number = {block.number: block for block in blocks}
        for number, arrays in self._run(setup, by_number.items(), on_gpus=False):
            block = by_number[number]
            scores, ids, back_scores, back_ids = (torch.from_numpy(array.copy()) for array in arrays)
            yield block, Candidates(scores, ids), Candidates(back_scores, back_ids)
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


class Setup(Protocol):
    """What a worker needs to know before its first piece; sent to other machines."""

    def open(self) -> Callable[[Any], Any]:
        """What does a piece."""


@dataclass(frozen=True)
class EncodingSetup:
    """A back-end."""

    work: Encoding

    def open(self) -> Callable[[list[str]], np.ndarray]:
        """What makes sentences packed vectors; ModelError if the model is not on this machine."""
        model = Path(self.work.model)
        if model.is_absolute() and not model.exists():
            raise ModelError(f"{model}: not found on {_host()}; expected a model folder that every node sees")
        backend = open_backend(self.work.model, self.work.lang, self.work.backend, threads=THREADS)
        return lambda texts: encode_shard(backend, texts, self.work.precision)


@dataclass(frozen=True)
class ScanningSetup:
    """Files of vectors; never the vectors themselves."""

    src: Sequence[str]
    tgt: Sequence[str]
    width: int
    k: int
    cells: str | None
    probes: int

    def open(self) -> Callable[[Block], list[np.ndarray]]:
        """What makes a block scores and ids, forward and backward; DataError if files are not on this machine."""
        for path in (*self.src, *self.tgt, *([self.cells] if self.cells else [])):
            if not Path(path).is_file():
                raise DataError(f"{path}: not found on {_host()}; expected a work folder that every node sees (--work)")
        src, tgt = (ShardedVectors([Path(path) for path in side], self.width) for side in (self.src, self.tgt))
        scan = Scanning(src, tgt, self.k, Path(self.cells) if self.cells else None, self.probes).open()
        return lambda block: [tensor.numpy() for found in scan(block) for tensor in (found.scores, found.ids)]


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


@dataclass
class Piece:
    """One numbered piece of work."""

    number: int
    given: Any
    """Where Ray keeps what it is made of."""
    failures: int = 0


@dataclass(eq=False)
class Member:
    """A worker as the pool sees it."""

    actor: Any
    is_open: bool = False
    in_hand: int = 0


class Pool:
    """Workers for one kind of work, as many as the cluster has room for."""

    def __init__(self, ray: Any, setup: Setup, on_gpus: bool = False) -> None:
        self.ray, self.setup, self.kind = ray, setup, "GPU" if on_gpus else "CPU"
        self.members: list[Member] = []
        self.waiting: deque[Piece] = deque()
        self.running: dict[Any, tuple[Member, Piece | None]] = {}  # by Ray's reference; None: the member makes ready
        self.failed_starts = self.idle_looks = 0

    def run(self, pieces: Iterable[tuple[int, Any]], actors: Sequence[Any] = ()) -> Iterator[tuple[int, Any]]:
        """Does pieces of work, taking them only as fast as they are done.

        Args:
            pieces: Their numbers and what they are made of.
            actors: Workers that are there already.

        Yields:
            The number and the result of each, as they are done.

        Raises:
            DualmocoError: One that a worker raised, as it was.
            RunError: A piece failed too often, or no worker could be started.
        """
        left = iter(pieces)
        try:
            for actor in actors:
                self._take(actor)
            while self._more(left) or any(piece for _, piece in self.running.values()):
                self._start_members()
                self._hand_out(left)
                for done in self._finished():
                    yield from self._collect(done)
        finally:
            busy = [member for member in self.members if member.in_hand]  # some are only after an interruption
            self.members = [member for member in self.members if not member.in_hand]
            if self.ray.is_initialized():
                for member in busy:
                    self.ray.kill(member.actor)

    def _take(self, actor: Any) -> None:
        member = Member(actor)
        self.members.append(member)
        self._open(member)

    def _open(self, member: Member) -> None:
        self.running[member.actor.open.remote(self.setup, VERSION)] = (member, None)

    def _more(self, left: Iterator[tuple[int, Any]]) -> bool:
        """Whether a piece is waiting; takes one if none is."""
        if not self.waiting and (following := next(left, None)):
            self.waiting.append(Piece(following[0], self.ray.put(following[1])))
        return bool(self.waiting)

    def _start_members(self) -> None:
        """Starts workers while pieces wait and the cluster has room."""
        if not self.waiting or (self.failed_starts >= FAILURES and self.members):
            return
        slots = int(self.ray.cluster_resources().get(self.kind, 0))
        opened = sum(member.is_open for member in self.members)
        room = max(STARTING, opened) - (len(self.members) - opened)
        options = {"num_cpus": THREADS, "num_gpus": int(self.kind == "GPU")}
        for _ in range(min(room, slots - len(self.members))):
            self._take(self.ray.remote(Worker).options(**options).remote())

    def _hand_out(self, left: Iterator[tuple[int, Any]]) -> None:
        while free := [member for member in self.members if member.is_open and member.in_hand < IN_HAND]:
            if not self._more(left):
                return
            member, piece = min(free, key=lambda member: member.in_hand), self.waiting.popleft()
            member.in_hand += 1
            self.running[member.actor.do.remote(piece.given)] = (member, piece)

    def _finished(self) -> list[Any]:
        """References whose results are there, perhaps none yet."""
        done: list[Any] = []
        if self.running:
            done = self.ray.wait(list(self.running), timeout=LOOK_SECONDS)[0]
        else:
            time.sleep(LOOK_SECONDS)
        self.idle_looks = 0 if done or any(member.is_open for member in self.members) else self.idle_looks + 1
        if self.idle_looks == PATIENT_LOOKS:
            logger.warning("no worker has started yet; is a %s of the cluster free?", self.kind)
        return done

    def _collect(self, done: Any) -> Iterator[tuple[int, Any]]:
        """The result behind a reference, if it is one of a piece; a failed piece waits again."""
        member, piece = self.running.pop(done)
        member.in_hand -= piece is not None
        try:
            result = self.ray.get(done)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DualmocoError):
                raise error.cause from None
            self._fail(member, piece, str(error).strip().splitlines()[-1])
        except self.ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            if member in self.members:
                self.members.remove(member)
                logger.warning("a worker of the cluster was lost: %s", reason)
            self._fail(None, piece, reason)
        else:
            if piece:
                yield piece.number, result
            else:
                member.is_open, self.failed_starts = True, 0

    def _fail(self, member: Member | None, piece: Piece | None, reason: str) -> None:
        """Tries again what failed, with the same worker or, without one, with another."""
        if piece:
            piece.failures += 1
            if piece.failures >= FAILURES:
                raise RunError(f"piece {piece.number} failed {FAILURES} times: {reason}; what is done is kept")
            self.waiting.append(piece)
            return
        self.failed_starts += 1
        if self.failed_starts < FAILURES and member:
            self._open(member)
        elif member:
            self.members.remove(member)
            self.ray.kill(member.actor)
        if self.failed_starts >= FAILURES and not self.members:
            raise RunError(f"no worker starts: {reason}; expected dualmoco {VERSION} and its needs on every node")


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


def _host() -> str:
    return f"node {socket.gethostname()}"
