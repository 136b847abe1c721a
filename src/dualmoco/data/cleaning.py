"""Raw text in, clean pairs out: what each worker process does with its blocks."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.data.block import PairBlock, hash_rows
from dualmoco.data.dropping import drop
from dualmoco.data.exclusion import Exclusion
from dualmoco.data.readers.raw import Problem, Raw
from dualmoco.data.recipe import CleanConfig, Duplicates
from dualmoco.data.rewriting import rewrite
from dualmoco.data.temporary import CleanPart, mix

AHEAD = 3  # blocks a worker that wait for it


@dataclass(frozen=True)
class Cleaner:
    """The settings of cleaning, as a function of a block."""

    clean: CleanConfig
    langs: tuple[str, str]
    exclusion: Exclusion
    duplicates: Duplicates

    def __call__(self, raw: Raw) -> Cleaned:
        """Cleans one part of a file."""
        block, problems = raw.parse()
        changed, dropped = Counter[str](), Counter[str]()
        read = len(block)
        block = drop(rewrite(block, self.clean, self.langs, changed), self.clean, self.langs, dropped)
        block, ids = self._exclude(block, dropped)
        part = CleanPart(block.src.to_arrow(), block.tgt.to_arrow(), ids)
        return Cleaned(part, read, changed, dropped, problems)

    def _exclude(self, block: PairBlock, dropped: Counter[str]) -> tuple[PairBlock, np.ndarray]:
        """Drops test sentences; gives the pairs left and their ids (rows, 3)."""
        folded = block.src.fold(), block.tgt.fold()
        src_ids, tgt_ids = hash_rows(folded[0]), hash_rows(folded[1])
        equal = self.exclusion.equal(src_ids) | self.exclusion.equal(tgt_ids)
        similar = self.exclusion.similar(folded[0]) | self.exclusion.similar(folded[1])
        dropped["test sentence"] += int(equal.sum())
        dropped["similar to a test sentence"] += int((similar & ~equal).sum())
        left = ~(equal | similar)
        block, src_ids, tgt_ids = block.take(left), src_ids[left], tgt_ids[left]
        exact = self.duplicates == Duplicates.exact
        keys = mix(hash_rows(block.src), hash_rows(block.tgt)) if exact else mix(src_ids, tgt_ids)
        return block, np.stack([src_ids, tgt_ids, keys], axis=1)


@dataclass(frozen=True)
class Cleaned:
    """What is left of a part of a file, and what became of the rest."""

    part: CleanPart
    read: int
    changed: Counter[str]
    dropped: Counter[str]
    problems: list[Problem]


Clean = Callable[[Iterable[Raw]], Iterator[Cleaned]]  # cleans parts of a file, and gives them back in their order


@contextmanager
def start_workers(cleaner: Cleaner, count: int) -> Iterator[Clean]:
    """Starts processes that clean, each with its own copy of the settings, and ends them.

    Args:
        cleaner: The settings.
        count: How many; one is this process.

    Yields:
        A function that cleans parts of a file; it reads only as far ahead as the workers need.
    """
    if count == 1:
        yield partial(map, cleaner)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=partial(_start, cleaner)) as pool:
        try:
            with _deaf_to_interruption():
                for _ in range(count):
                    pool.submit(int)  # starts a process
            yield partial(_share_out, pool, AHEAD * count)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _share_out(pool: ProcessPoolExecutor, ahead: int, raws: Iterable[Raw]) -> Iterator[Cleaned]:
    """Cleans parts of a file in other processes; DataError if one of them died."""
    waiting: list[Future[Cleaned]] = []
    try:
        for raw in raws:
            waiting.append(pool.submit(_clean, raw))
            if len(waiting) >= ahead:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    except BrokenProcessPool:
        raise DataError("a worker process died, perhaps for want of memory; try workers=1") from None
    finally:
        for future in waiting:
            future.cancel()


@contextmanager
def _deaf_to_interruption() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C from their first moment: the main process decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_own: dict[str, Cleaner] = {}  # a worker's settings, set once when it starts


def _start(cleaner: Cleaner) -> None:
    _own["cleaner"] = cleaner


def _clean(raw: Raw) -> Cleaned:
    return _own["cleaner"](raw)
