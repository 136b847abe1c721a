"""Engines run pieces of work: in this process, or on a Ray cluster with the same results."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from dualmoco.core import VERSION
from dualmoco.core.errors import ConfigError, DualmocoError, RunError
from dualmoco.core.progress import Progress

ProcessPiece = Callable[[Any, Progress], Any]
"""Processes one piece and returns its result; reports units of progress as they are done."""


class Work(Protocol):
    """One kind of work on pieces, which can be done anywhere and in any order."""

    @property
    def wants_gpu(self) -> bool:
        """Whether a GPU would do the work faster."""

    def open(self) -> ProcessPiece:
        """Prepares the work in this process."""

    def opener(self) -> Callable[[], ProcessPiece]:
        """A function that prepares the work in another process: it carries names and paths, not open objects."""

    def size(self, piece: Any) -> int:
        """Units of progress of a piece."""


class Engine(Protocol):
    """A place where work is done."""

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Yields the number and the result of each numbered piece, in the order of completion.

        The engine takes pieces only as fast as it processes them, and reports the number of newly completed units.
        """


class LocalEngine:
    """This process, one piece after another; the underlying libraries use all cores."""

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Processes pieces in their order; see `Engine.run`."""
        process = work.open()
        for number, piece in pieces:
            yield number, process(piece, progress)


MAX_FAILURES = 5  # failures of one piece, or of starting workers, before the run fails
PIECES_PER_WORKER = 2  # one being processed and one waiting, so that the worker never idles
WORKERS_STARTING = 8  # workers started at once, or as many as are already open
POLL_SECONDS = 2.0  # how often the pool checks for results and free resources
PATIENT_POLLS = 30  # polls without any open worker before a warning
PING_SECONDS = 30.0  # how often workers are asked whether they are alive
FROZEN_SECONDS = 300.0  # time without an answer before a worker is replaced
LIVENESS = "liveness"  # group of calls that do not wait for the current piece
HEAD_ATTEMPTS = 3  # attempts to reach the head node before it counts as lost
WORKER_CPUS = 1
REACH_SECONDS = 5.0  # timeout for connecting to the head node
FAIL_FAST = {
    "RAY_gcs_server_port_wait_time_s": "1",  # attempts to reach the head node
    "RAY_py_gcs_connect_timeout_s": "5",  # duration of an attempt; read when Ray is imported
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
}
"""Settings of Ray that make `ray.init` give up after 10 s, not 13 minutes, if the address is not a Ray head node."""

logger = logging.getLogger(__name__)


class Worker:
    """The actor that runs in a process of the cluster."""

    def open(self, opener: Callable[[], ProcessPiece], version: str) -> None:
        """Prepares the work; ConfigError if the node has another version of dualmoco."""
        if version != VERSION:
            host = f"node {socket.gethostname()}"
            raise ConfigError(f"dualmoco {VERSION} on {host}; expected {version} on every node, as on this one")
        self.process = opener()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(WORKER_CPUS)

    def run(self, piece: Any) -> Any:
        """Processes one piece."""
        return self.process(piece, lambda count: None)

    def ping(self) -> None:
        """Confirms that the worker is alive, even while it processes a piece."""


@dataclass
class Piece:
    """One numbered piece of work."""

    number: int
    content: Any  # Ray's reference to the content
    failures: int = 0


@dataclass(eq=False)
class Member:
    """A worker of the pool."""

    actor: Any
    is_open: bool = False
    in_hand: int = 0
    ping: Any = None  # Ray's reference to the last liveness check
    asked: float = -math.inf  # time of that check
    has_answered: bool = False  # whether it ever answered, so its process has started


class Pool:
    """Workers for one kind of work, as many as the cluster has resources for."""

    def __init__(self, ray: Any, opener: Callable[[], ProcessPiece], on_gpus: bool = False) -> None:
        self.ray, self.opener, self.kind = ray, opener, "GPU" if on_gpus else "CPU"
        self.members: list[Member] = []
        self.waiting: deque[Piece] = deque()
        self.running: dict[Any, tuple[Member, Piece | None]] = {}  # by Ray's reference; None: the member opens the work
        self.failed_starts = self.idle_polls = 0
        self.head, self.slots, self.counted = Head(ray), 0, -math.inf

    def run(self, pieces: Iterable[tuple[int, Any]], actors: Sequence[Any] = ()) -> Iterator[tuple[int, Any]]:
        """Yields the number and the result of each piece as it completes, and takes pieces only as fast.

        RunError if a piece failed too often or no worker could be started. A worker's DualmocoError is raised here.
        """
        left = iter(pieces)
        try:
            for actor in actors:
                self._add(actor)
            while self._has_waiting(left) or any(piece for _, piece in self.running.values()):
                self.head.check()
                self._replace_frozen()
                self._start_members()
                self._hand_out(left)
                for done in self._finished():
                    yield from self._collect(done)
        finally:
            busy = [member for member in self.members if member.in_hand]  # only after an interruption
            self.members = [member for member in self.members if not member.in_hand]
            if self.ray.is_initialized() and not self.head.is_lost:
                for member in busy:
                    self.ray.kill(member.actor)

    def _replace_frozen(self) -> None:
        """Checks regularly whether workers are alive, and kills workers that do not answer."""
        now = time.monotonic()
        for member in list(self.members):
            if member.ping is not None and self.ray.wait([member.ping], timeout=0)[0]:
                member.ping, member.has_answered = None, True
            if member.ping is None and now - member.asked >= PING_SECONDS:
                ping = member.actor.ping.options(concurrency_group=LIVENESS)
                member.ping, member.asked = ping.remote(), now
            elif member.ping is not None and member.has_answered and now - member.asked >= FROZEN_SECONDS:
                logger.warning("a worker of the cluster has not answered for %.0f s; replacing it", FROZEN_SECONDS)
                self.members.remove(member)
                self.ray.kill(member.actor)  # its current pieces fail, and are queued again

    def _add(self, actor: Any) -> None:
        member = Member(actor)
        self.members.append(member)
        self._open(member)

    def _open(self, member: Member) -> None:
        self.running[member.actor.open.remote(self.opener, VERSION)] = (member, None)

    def _has_waiting(self, left: Iterator[tuple[int, Any]]) -> bool:
        """Whether a piece is waiting; takes one if none is."""
        if not self.waiting and (following := next(left, None)):
            self.waiting.append(Piece(following[0], self.ray.put(following[1])))
        return bool(self.waiting)

    def _start_members(self) -> None:
        """Starts workers while pieces wait and the cluster has free resources."""
        if not self.waiting or (self.failed_starts >= MAX_FAILURES and self.members):
            return
        now = time.monotonic()
        if now - self.counted >= POLL_SECONDS:  # this call never returns if the head node is lost
            self.slots, self.counted = int(self.ray.cluster_resources().get(self.kind, 0)), now
        opened = sum(member.is_open for member in self.members)
        room = max(WORKERS_STARTING, opened) - (len(self.members) - opened)
        options = {"num_cpus": WORKER_CPUS, "num_gpus": int(self.kind == "GPU")}
        for _ in range(min(room, self.slots - len(self.members))):
            self._add(self.ray.remote(concurrency_groups={LIVENESS: 1})(Worker).options(**options).remote())

    def _hand_out(self, left: Iterator[tuple[int, Any]]) -> None:
        while free := [member for member in self.members if member.is_open and member.in_hand < PIECES_PER_WORKER]:
            if not self._has_waiting(left):
                return
            member, piece = min(free, key=lambda member: member.in_hand), self.waiting.popleft()
            member.in_hand += 1
            self.running[member.actor.run.remote(piece.content)] = (member, piece)

    def _finished(self) -> list[Any]:
        """References whose results are ready, possibly none."""
        done: list[Any] = []
        if self.running:
            done = self.ray.wait(list(self.running), timeout=POLL_SECONDS)[0]
        else:
            time.sleep(POLL_SECONDS)
        self.idle_polls = 0 if done or any(member.is_open for member in self.members) else self.idle_polls + 1
        if self.idle_polls == PATIENT_POLLS:
            logger.warning("no worker has started yet; check that the cluster has a free %s", self.kind)
        return done

    def _collect(self, done: Any) -> Iterator[tuple[int, Any]]:
        """Yields the result behind a reference, if it belongs to a piece; a failed piece is queued again."""
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
        """Repeats a failed call on the same worker, or on another one if `worker` is None."""
        if piece:
            piece.failures += 1
            if piece.failures >= MAX_FAILURES:
                raise RunError(f"piece {piece.number} failed {MAX_FAILURES} times: {reason}; finished pieces are kept")
            self.waiting.append(piece)
            return
        self.failed_starts += 1
        if self.failed_starts < MAX_FAILURES and member:
            self._open(member)
        elif member:
            self.members.remove(member)
            self.ray.kill(member.actor)
        if self.failed_starts >= MAX_FAILURES and not self.members:
            raise RunError(
                f"no worker starts: {reason}; expected dualmoco {VERSION} and its dependencies on every node"
            )


class Head:
    """The head node of a cluster; without it, Ray's own calls block forever or end the process."""

    def __init__(self, ray: Any) -> None:
        self.address = str(ray.get_runtime_context().gcs_address)
        self.is_lost = False

    def check(self) -> None:
        """RunError if the address no longer accepts connections."""
        for attempt in range(HEAD_ATTEMPTS):
            try:
                _connect(self.address)
            except OSError as error:
                if attempt + 1 < HEAD_ATTEMPTS:
                    time.sleep(POLL_SECONDS / 2)
                    continue
                self.is_lost = True
                raise RunError(
                    f"the head node {self.address} of the Ray cluster is lost ({error}); finished pieces are kept: "
                    "start the cluster again, then run the same command"
                ) from None
            return


def _connect(address: str) -> None:
    """OSError if HOST:PORT does not accept connections."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()


class RayEngine:
    """A Ray cluster with one worker per CPU, or per GPU if there are GPUs and the work can use them."""

    def __init__(self, address: str | None = None) -> None:
        """Joins or starts a cluster; a process that is already in a cluster stays in it.

        `address` is `HOST:PORT` of the head node, `auto` for the cluster of this machine, or None for a new one.
        """
        self.ray = _join(address)
        self.spare: list[Any] = []  # workers of earlier work, which already loaded all libraries
        self.on_gpus = False

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Processes pieces on all nodes; see `Engine.run`."""
        sizes: dict[int, int] = {}

        def measured() -> Iterator[tuple[int, Any]]:
            for number, piece in pieces:
                sizes[number] = work.size(piece)
                yield number, piece

        on_gpus = work.wants_gpu and "GPU" in self.ray.cluster_resources()
        if on_gpus != self.on_gpus:
            self.close()
        pool = Pool(self.ray, work.opener(), on_gpus)
        self.on_gpus, self.spare, spare = on_gpus, [], self.spare
        try:
            for number, result in pool.run(measured(), spare):
                yield number, result
                progress(sizes.pop(number))
        finally:
            self.spare = [member.actor for member in pool.members]

    def close(self) -> None:
        """Returns the workers' CPUs and GPUs to the cluster. This also happens when the process ends."""
        for actor in self.spare:
            self.ray.kill(actor)
        self.spare = []


def open_engine(engine: str | Engine, address: str | None = None) -> Engine:
    """Opens the engine `local` or `ray`, or returns an open engine; `address` None starts a local cluster."""
    if not isinstance(engine, str):
        return engine
    if engine not in ("local", "ray"):
        raise ConfigError(f"engine {engine}; expected local or ray")
    return LocalEngine() if engine == "local" else RayEngine(address)


def _join(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # keep Ray's messages out of results
    with _environment(FAIL_FAST if address else {}):
        try:
            import ray
        except ModuleNotFoundError:
            raise ConfigError("the ray engine needs Ray; pip install 'dualmoco[ray]'") from None
        if address and address != "auto":
            _check_address(address)
        if ray.is_initialized():
            return ray
        try:
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0].partition(". ")[0]
            if reason.startswith("Failed to connect"):
                raise ConfigError(f"--address {address}: this address is not a Ray head node ({reason})") from None
            needed = (
                "a local node (ray start), and RAY_AUTH_MODE=token if it has a token" if address else "a new cluster"
            )
            raise ConfigError(f"--address {address or 'not given'}: {reason}; expected {needed}") from None
        return ray


def _check_address(address: str) -> None:
    """ConfigError if the address does not accept connections; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65_536):
        raise ConfigError(f"--address {address}; expected auto, or HOST:PORT of the head node of a Ray cluster")
    try:
        _connect(address)
    except OSError as error:
        raise ConfigError(f"--address {address}: {error}; expected a running cluster: ray start --head") from None


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables that the user did not set, and removes them at the end."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
