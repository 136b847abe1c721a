"""Workers on the nodes of a Ray cluster: started where there is room, given pieces of work, replaced when lost."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dualmoco.core.errors import ConfigError, DualmocoError, RunError
from dualmoco.core.progress import Progress
from dualmoco.core.version import VERSION
from dualmoco.embeddings.engine import Engine, LocalEngine, Work

# Not ray.util.ActorPool: it is of fixed size, never does the work of a dead actor again, and takes all pieces at once.
# Not Ray's own restarts: a piece stays with its actor, so that one whose node is gone waits for a node, not a worker.


FAILURES = 5  # of one piece, or of starting workers, until the run is given up
IN_HAND = 2  # pieces of a worker: one under work, one waiting, so that it never idles
STARTING = 8  # workers started at once, or as many as are at work already
LOOK_SECONDS = 2.0  # after which the cluster is looked at again
PATIENT_LOOKS = 30  # without any worker, until that is logged

THREADS = 1  # of a worker, which takes one CPU

logger = logging.getLogger(__name__)


class Worker:
    """What runs in a process of the cluster."""

    def open(self, work: Work, version: str) -> None:
        """Makes ready; ConfigError if another version of dualmoco is installed there."""
        if version != VERSION:
            host = f"node {socket.gethostname()}"
            raise ConfigError(f"dualmoco {VERSION} on {host}; expected {version} on every node, as on this one")
        self.do = work.open()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(THREADS)

    def run(self, piece: Any) -> Any:
        """One piece."""
        return self.do(piece, lambda count: None)


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

    def __init__(self, ray: Any, work: Work, on_gpus: bool = False) -> None:
        self.ray, self.work, self.kind = ray, work, "GPU" if on_gpus else "CPU"
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
        self.running[member.actor.open.remote(self.work, VERSION)] = (member, None)

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
            self.running[member.actor.run.remote(piece.given)] = (member, piece)

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
