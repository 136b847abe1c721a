"""Engines run work on numbered pieces: here in this process, or on a Ray cluster (ray_engine.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

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
        """A function that prepares the work in another process: it carries names and paths, not what is open here."""

    def size(self, piece: Any) -> int:
        """Units of progress of a piece."""


class Engine(Protocol):
    """A place where work is done."""

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Yields the number and the result of each numbered piece, in the order of completion.

        The engine takes pieces only as fast as it processes them, and reports the number of newly completed units.
        """


class LocalEngine:
    """This process, one piece after the other; the libraries underneath use all cores."""

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Processes pieces in their order; see `Engine.run`."""
        process = work.open()
        for number, piece in pieces:
            yield number, process(piece, progress)
