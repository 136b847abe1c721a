"""Raw text in, clean pairs out: what each worker process does with its blocks."""

from __future__ import annotations

import os
import shutil
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
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.storage import new_folder, write_json, write_text
from dualmoco.data.config import CleanConfig, CorpusConfig, Duplicates, OnError, OneSided, PrepareConfig, check_recipe
from dualmoco.data.decontamination import Exclusion, TestFile, read_test_sets
from dualmoco.data.filters import drop, rewrite
from dualmoco.data.manifest import CorpusCounts, FileRecord, PreparedManifest, describe_file, versions
from dualmoco.data.readers.base import Problem, Raw, Source, follow
from dualmoco.data.readers.formats import check_format, read_blocks
from dualmoco.data.sampling import allot, drop_repeats, hold_out, keep_sample
from dualmoco.data.staging import KEY, SRC_ID, TGT_ID, CleanPart, PairStatus, TemporaryStore, mix, slices, write_shards
from dualmoco.data.text_column import PairBlock, hash_rows
from dualmoco.text.files import find_files
from dualmoco.text.languages import scripts_of

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


LISTED_PROBLEMS = 1000
STORE = ".store"


def prepare(config: PrepareConfig) -> PreparedManifest:
    """Turns raw corpora into training-ready pairs.

    Args:
        config: Corpora, steps, test sets, sampling and place of the result.

    Returns:
        What was read, dropped and written; also in `manifest.json`.

    Raises:
        ConfigError: Settings that make no sense.
        DataError: A file that cannot be read, unless `on_error` is `skip`; nothing left.
        RunError: The disk is full or not writable; what was at `config.out` before is then kept.
    """
    check_recipe(config)
    corpora = [_Corpus(corpus, config) for corpus in config.corpora]
    _check_names(corpora)
    if config.clean.min_script:
        for lang in (config.src, config.tgt):
            scripts_of(lang)
    out = Path(config.out)
    if out.exists() and not (out / "manifest.json").exists():
        raise DataError(f"{out}: exists and is not a result of prepare; choose another out or remove it")
    sentences, tests = read_test_sets(find_files(config.exclude.files, config.root), Path(config.root))
    exclusion = Exclusion(sentences, similarity=config.exclude.similarity, ngram=config.exclude.ngram)
    with new_folder(out) as folder:
        (folder / STORE).mkdir()
        exclusion.share(folder / STORE)
        with TemporaryStore(folder / STORE) as store:
            _fill(store, corpora, config, exclusion)
        if not store.rows:
            raise DataError(f"no pair left of {sum(c.counts.read for c in corpora)} read; {_most_dropped(corpora)}")
        _choose(store, corpora, config)
        left = _count_left(store, exclusion)
        names = [(corpus.name, corpus.rows) for corpus in corpora]
        shards = write_shards(store, names, folder, config.shard_pairs)
        shutil.rmtree(folder / STORE)
        manifest = _manifest(config, corpora, tests, exclusion, left, shards)
        write_json(folder / "manifest.json", manifest.to_dict())
        write_text(folder / "README.md", manifest.to_markdown())
    return manifest


class _Corpus:
    """One corpus while it is prepared."""

    def __init__(self, config: CorpusConfig, settings: PrepareConfig) -> None:
        check_format(config.format)
        self.config, self.settings = config, settings
        self.sources = list(self._find())
        self.counts = CorpusCounts(config.name or self.sources[0].path.name.split(".")[0])
        self.inputs: list[FileRecord] = []
        self.problems: list[str] = []
        self.rows = slice(0, 0)  # of the temporary store

    @property
    def name(self) -> str:
        return self.counts.name

    def _find(self) -> Iterator[Source]:
        root, config = self.settings.root, self.config
        columns = (config.columns[0], config.columns[1]) if config.columns else None
        langs = (self.settings.src, self.settings.tgt)
        if config.format == "dataset":
            for name in config.files:
                folder = Path(root) / name
                yield Source(folder if folder.is_dir() else Path(name), *langs, columns)
            return
        files = find_files(config.files, root, folders=True)
        tgt_files = find_files(config.tgt_files, root) if config.tgt_files else []
        if tgt_files and len(files) != len(tgt_files):
            raise DataError(
                f"files stand for {len(files)} files, tgt_files for {len(tgt_files)}; expected as many of both"
            )
        for number, file in enumerate(files):
            yield Source(file, *langs, columns, tgt_files[number] if tgt_files else None)

    def complain(self, where: str) -> None:
        """Stops at a problem, or counts it."""
        if self.settings.on_error == OnError.stop:
            raise DataError(f"{where}; on_error=skip leaves such lines out")
        self.counts.unreadable += 1
        if len(self.problems) < LISTED_PROBLEMS:
            self.problems.append(where)


def _fill(store: TemporaryStore, corpora: list[_Corpus], config: PrepareConfig, exclusion: Exclusion) -> None:
    """Reads and cleans all corpora into the temporary store."""
    cleaner = Cleaner(config.clean, (config.src, config.tgt), exclusion, config.duplicates)
    total = sum(source.size for corpus in corpora for source in corpus.sources)
    count = config.workers or os.cpu_count() or 1
    with start_workers(cleaner, count) as clean, counting("reading", total, "B") as advance:
        for corpus in corpora:
            first = store.rows
            for source in follow(corpus.sources, advance):
                _read(source, corpus, clean, store)
                own = [path for path in (source.path, source.tgt_path) if path]
                corpus.inputs += [describe_file(path, Path(config.root)) for path in own]
            corpus.rows = slice(first, store.rows)


def _read(source: Source, corpus: _Corpus, clean: Clean, store: TemporaryStore) -> None:
    def report(line: int, what: str) -> None:
        corpus.complain(f"{source.path}:{line}: {what}")

    try:
        for cleaned in clean(read_blocks(source, corpus.config.format, report)):
            for problem in cleaned.problems:
                report(*problem)
            corpus.counts.read += cleaned.read
            corpus.counts.changed.update(cleaned.changed)
            corpus.counts.dropped.update(cleaned.dropped)
            store.append(cleaned.part)
    except DataError as error:
        if corpus.settings.on_error == OnError.stop:
            raise
        corpus.complain(str(error))


def _choose(store: TemporaryStore, corpora: list[_Corpus], config: PrepareConfig) -> None:
    """Decides the fate of every pair, and counts them."""
    ids, fates = store.ids(), store.fates()
    if config.duplicates != Duplicates.keep:
        drop_repeats(ids[KEY], fates, PairStatus.duplicate)
    for side, choice in ((SRC_ID, OneSided.src), (TGT_ID, OneSided.tgt)):
        if config.one_sided in (choice, OneSided.either):
            drop_repeats(ids[side], fates, PairStatus.repeated_side)
    available = [_count(fates, corpus.rows)[PairStatus.train] for corpus in corpora]
    limits = [corpus.config.max_pairs for corpus in corpora]
    allotted = allot(available, limits, [corpus.config.weight for corpus in corpora], config.total)
    for number, (corpus, count) in enumerate(zip(corpora, allotted, strict=True)):
        if count < available[number]:
            keep_sample(fates, corpus.rows, count, [config.seed, 1, number])
    hold_out(ids, fates, config.heldout, [config.seed, 0])
    for corpus in corpora:
        numbers = _count(fates, corpus.rows)
        corpus.counts.train, corpus.counts.heldout = numbers[PairStatus.train], numbers[PairStatus.heldout]
        for fate in (PairStatus.duplicate, PairStatus.repeated_side, PairStatus.not_sampled, PairStatus.shares_heldout):
            corpus.counts.dropped[FATE_NAMES[fate]] += numbers[fate]


FATE_NAMES = {
    PairStatus.duplicate: "duplicate",
    PairStatus.repeated_side: "repeated side",
    PairStatus.not_sampled: "not sampled",
    PairStatus.shares_heldout: "shares a held-out sentence",
}


def _count(fates: np.ndarray, rows: slice) -> list[int]:
    """How many rows of a corpus have each fate."""
    own, numbers = fates[rows], np.zeros(len(PairStatus), dtype=np.int64)
    for part in slices(len(own)):
        numbers += np.bincount(own[part], minlength=len(PairStatus))
    return [int(number) for number in numbers]


def _count_left(store: TemporaryStore, exclusion: Exclusion) -> int:
    """Pairs to be written that hold a test sentence: none, or exclusion has failed."""
    ids, fates = store.ids(), store.fates()
    left = 0
    for part in slices(store.rows):
        tested = exclusion.equal(ids[SRC_ID][part]) | exclusion.equal(ids[TGT_ID][part])
        left += int((tested & (fates[part] <= PairStatus.heldout)).sum())
    return left


def _check_names(corpora: list[_Corpus]) -> None:
    twice = [name for name, count in Counter(corpus.name for corpus in corpora).items() if count > 1]
    if twice:
        raise DataError(f"corpus {twice[0]!r} is named twice; give each corpus its own name")


def _most_dropped(corpora: list[_Corpus]) -> str:
    dropped = sum((corpus.counts.dropped for corpus in corpora), Counter[str]())
    name, count = max(dropped.items(), key=lambda item: item[1], default=("", 0))
    return f"most were dropped as {name!r} ({count})" if count else "the files hold no pair"


def _manifest(
    config: PrepareConfig,
    corpora: list[_Corpus],
    tests: list[TestFile],
    exclusion: Exclusion,
    left: int,
    shards: list[FileRecord],
) -> PreparedManifest:
    return PreparedManifest(
        src=config.src,
        tgt=config.tgt,
        settings=config,
        inputs={corpus.name: corpus.inputs for corpus in corpora},
        test_files=tests,
        test_sentences=len(exclusion),
        test_sentences_left=left,
        corpora=[corpus.counts for corpus in corpora],
        problems=[problem for corpus in corpora for problem in corpus.problems],
        shards=shards,
        versions=versions(),
    )
