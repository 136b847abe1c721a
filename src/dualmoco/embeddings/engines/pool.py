"""Workers on the nodes of a Ray cluster: started where there is room, given pieces of work, replaced when lost."""

# Not ray.util.ActorPool: it is of fixed size, never does the work of a dead actor again, and takes all pieces at once.
# Not Ray's own restarts: a piece stays with its actor, so that one whose node is gone waits for a node, not a worker.

from __future__ import annotations

import logging
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dualmoco.core.errors import ConfigError, DualmocoError, RunError
from dualmoco.core.version import VERSION
from dualmoco.embeddings.engines.engine import Work

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
