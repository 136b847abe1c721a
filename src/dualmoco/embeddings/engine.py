"""What an engine does, and the engine that every machine has: this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from dualmoco.core.progress import Progress


class Work(Protocol):
    """One kind of work on numbered pieces, which can be done anywhere and in any order."""

    @property
    def wants_gpu(self) -> bool:
        """Whether a GPU, where there is one, does it faster."""

    def open(self) -> Callable[[Any, Progress], Any]:
        """Makes ready; gives what does one piece, calling back as its units are done."""

    def size(self, piece: Any) -> int:
        """How many units of progress a piece counts."""

    def portable(self) -> Work:
        """The same work for another process: names and paths in place of what is open here."""


class Engine(Protocol):
    """Where work is done."""

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Does pieces of work.

        Args:
            work: What is done with each.
            pieces: Their numbers and what they are made of; taken only as fast as they are done.
            progress: Is called with the units that are done.

        Yields:
            The number and the result of each piece, as they are done.
        """


class LocalEngine:
    """This process, one piece after the other; the libraries below use all cores."""

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Does pieces of work in their order; see `Engine.run`."""
        do = work.open()
        for number, piece in pieces:
            yield number, do(piece, progress)
