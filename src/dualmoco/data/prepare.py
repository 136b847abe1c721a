"""`dualmoco prepare`: raw bitext in, clean, deduplicated and decontaminated sentence pairs out.

The first pass reads and cleans all corpora, in several processes, into a temporary store. The second pass decides
which pairs to keep, and writes them as Parquet shards with a manifest.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.config_loader import read_recipe
from dualmoco.core.errors import ConfigError, DataError, RunError
from dualmoco.core.progress import counting, showing, working
from dualmoco.core.signals import exiting_on_sigterm
from dualmoco.core.storage import new_folder, write_json, write_text
from dualmoco.data.config import CleanConfig, CorpusConfig, Duplicates, OnError, OneSided, PrepareConfig, check_recipe
from dualmoco.data.decontamination import Exclusion, read_test_sets
from dualmoco.data.filters import drop, rewrite
from dualmoco.data.manifest import (
    PREPARED_MANIFEST,
    CorpusCounts,
    FileRecord,
    PreparedManifest,
    describe_file,
    is_prepared,
    versions,
)
from dualmoco.data.readers.base import Problem, Raw, Source, follow
from dualmoco.data.readers.formats import check_format, read_blocks
from dualmoco.data.sampling import allot, drop_repeats, hold_out, keep_sample
from dualmoco.data.staging import PAIR_ID, SRC_ID, TGT_ID, PairStatus, TemporaryStore, slices, write_shards
from dualmoco.data.text_column import PairBlock, combine_ids, hash_rows
from dualmoco.text.files import find_files
from dualmoco.text.languages import scripts_of

BLOCKS_PER_WORKER = 3  # read ahead
LISTED_PROBLEMS = 1000
RECIPE_ENDINGS = (".yaml", ".yml")
STORE_FOLDER = ".store"
DROPPED_STATUS = {
    PairStatus.duplicate: "duplicate",
    PairStatus.repeated_side: "repeated side",
    PairStatus.not_sampled: "not sampled",
    PairStatus.shares_heldout: "shares a held-out sentence",
}


def prepare_settings(
    given: str | Path | Sequence[str | Path],
    overrides: Sequence[str] = (),
    *,
    tgt_files: Sequence[str | Path] = (),
    format: str = "auto",
    columns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    **settings: object,
) -> PrepareConfig:
    """Returns the settings of `prepare`, read from a recipe or made for files; arguments as in `prepare`."""
    overrides = [
        *(f"{key}={json.dumps(str(value))}" for key, value in settings.items() if value is not None),
        *overrides,
    ]
    names = [str(given)] if isinstance(given, str | Path) else [str(name) for name in given]
    recipe = names[0] if len(names) == 1 and names[0].endswith(RECIPE_ENDINGS) else None
    config = read_recipe(PrepareConfig, recipe, overrides)
    if exclude:
        config = replace(config, exclude=replace(config.exclude, files=[*config.exclude.files, *exclude]))
    if recipe:
        return config
    if tgt_files and len(tgt_files) != len(names):
        raise ConfigError(f"{len(names)} files and {len(tgt_files)} target files; expected the same number")
    corpora = [
        CorpusConfig(
            files=[name], tgt_files=[str(tgt_files[row])] if tgt_files else [], format=format, columns=list(columns)
        )
        for row, name in enumerate(names)
    ]
    return replace(config, corpora=corpora)


def prepare(
    given: str | Path | Sequence[str | Path] | PrepareConfig,
    *overrides: str,
    src: str | None = None,
    tgt: str | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    tgt_files: Sequence[str | Path] = (),
    format: str = "auto",
    columns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    on_error: str | None = None,
    progress: bool = True,
) -> PreparedManifest:
    """Turns raw corpora into pairs that are ready for training.

    Args:
        given: Recipe (.yaml), or one or more bitext files; or the settings, without any other argument.
        overrides: Settings such as `clean.max_ratio=3`, which take precedence over the recipe.
        src: Source language.
        tgt: Target language.
        out: Output folder.
        root: Folder that relative names start from.
        tgt_files: Target sides of line-aligned files, one per file in `given`.
        format: Format of the files (default: by extension).
        columns: Source and target column of the files, by name or number.
        exclude: Test files, or globs, whose sentences must not be in the pairs.
        on_error: What to do with unreadable lines: stop (default) or skip.
        progress: Whether to show progress bars.

    Returns:
        The manifest: what was read, dropped and written; also in `manifest.json`.

    Raises:
        ConfigError: A setting is invalid.
        DataError: A file cannot be read, unless `on_error` is `skip`; or no pairs are left.
        RunError: The disk is full or not writable, or a worker process died; `config.out` is then unchanged.
    """
    if isinstance(given, PrepareConfig):
        config = given
    else:
        config = prepare_settings(
            given,
            overrides,
            tgt_files=tgt_files,
            format=format,
            columns=columns,
            exclude=exclude,
            src=src,
            tgt=tgt,
            out=out,
            root=root,
            on_error=on_error,
        )
    with showing(progress), exiting_on_sigterm():
        return _prepare(config)


def _prepare(config: PrepareConfig) -> PreparedManifest:
    check_recipe(config)
    corpora = [_Corpus(corpus, config) for corpus in config.corpora]
    _check_names(corpora)
    if config.clean.min_script:
        for lang in (config.src, config.tgt):
            scripts_of(lang)
    out = Path(config.out)
    if out.exists() and not is_prepared(out):
        raise DataError(f"{out}: exists and was not written by prepare; choose another out or remove it")
    with working("reading test sets"):
        sentences, tests = read_test_sets(find_files(config.exclude.files, config.root), Path(config.root))
        exclusion = Exclusion(sentences, similarity=config.exclude.similarity, ngram=config.exclude.ngram)
    with new_folder(out) as folder:
        (folder / STORE_FOLDER).mkdir()
        exclusion.share(folder / STORE_FOLDER)
        with TemporaryStore(folder / STORE_FOLDER) as store:
            _fill(store, corpora, config, exclusion)
        if not store.rows:
            raise DataError(f"no pairs left of {sum(c.counts.read for c in corpora)} read; {_most_dropped(corpora)}")
        with working("choosing pairs"):
            _choose(store, corpora, config)
            left = _count_test_sentences(store, exclusion)
        names = [(corpus.name, corpus.rows) for corpus in corpora]
        shards = write_shards(store, names, folder, config.shard_pairs)
        shutil.rmtree(folder / STORE_FOLDER)
        manifest = PreparedManifest(
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
        write_json(folder / PREPARED_MANIFEST, manifest.to_dict())
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
        self.rows = slice(0, 0)  # rows of the temporary store

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
        tgt_files = find_files(config.tgt_files, root) if config.tgt_files else [None] * len(files)
        if len(files) != len(tgt_files):
            raise DataError(
                f"files matches {len(files)} files, tgt_files {len(tgt_files)}; expected the same number of files"
            )
        for file, tgt_file in zip(files, tgt_files, strict=True):
            yield Source(file, *langs, columns, tgt_file)

    def count(self, problem: str) -> None:
        """Stops at a problem, or counts it."""
        if self.settings.on_error == OnError.stop:
            raise DataError(f"{problem}; fix the line, or skip unreadable lines with on_error=skip")
        self.counts.unreadable += 1

    def list(self, problems: Iterable[str]) -> None:
        """Adds problems to the manifest until it has enough of them."""
        self.problems += islice(problems, LISTED_PROBLEMS - len(self.problems))


def _check_names(corpora: list[_Corpus]) -> None:
    name, count = Counter(corpus.name for corpus in corpora).most_common(1)[0]
    if count > 1:
        raise DataError(f"corpus {name!r} is named twice; give each corpus its own name")


def _most_dropped(corpora: list[_Corpus]) -> str:
    dropped = sum((corpus.counts.dropped for corpus in corpora), Counter[str]())
    name, count = max(dropped.items(), key=lambda item: item[1], default=("", 0))
    return f"most were dropped as {name!r} ({count})" if count else "the files contain no pairs"


def _fill(store: TemporaryStore, corpora: list[_Corpus], config: PrepareConfig, exclusion: Exclusion) -> None:
    """Reads and cleans all corpora into the temporary store."""
    cleaner = _Cleaner(config.clean, (config.src, config.tgt), exclusion, config.duplicates)
    total = sum(source.size for corpus in corpora for source in corpus.sources)
    count = config.workers or os.cpu_count() or 1
    with _start_workers(cleaner, count) as clean, counting("reading", total, "B") as advance:
        for corpus in corpora:
            first = store.rows
            for source in follow(corpus.sources, advance):
                _read(source, corpus, clean, store)
                own = [path for path in (source.path, source.tgt_path) if path]
                corpus.inputs += [describe_file(path, Path(config.root)) for path in own]
            corpus.rows = slice(first, store.rows)


def _read(source: Source, corpus: _Corpus, clean: _Clean, store: TemporaryStore) -> None:
    """Reads and cleans a file into the store; pairs before an error count, whatever the number of workers."""
    reading = _Reading(source, corpus)
    for cleaned in clean(reading.blocks()):
        reading.finish_block(cleaned.problems)
        corpus.counts.read += cleaned.read
        corpus.counts.changed.update(cleaned.changed)
        corpus.counts.dropped.update(cleaned.dropped)
        store.append(cleaned.src, cleaned.tgt, cleaned.ids)
    reading.finish()


class _Reading:
    """A file that is being read, and its problems in line order."""

    def __init__(self, source: Source, corpus: _Corpus) -> None:
        self.source, self.corpus = source, corpus
        self.found: list[Problem] = []  # problems that the reader found since its last block
        self.before: deque[list[Problem]] = deque()  # the same for each block that is still being cleaned
        self.failure: DataError | None = None

    def blocks(self) -> Iterator[Raw]:
        """Yields the blocks before an error; `finish` handles the error."""
        try:
            for raw in read_blocks(self.source, self.corpus.config.format, self._report):
                self.before.append(self.found)
                self.found = []
                yield raw
        except DataError as error:
            self.failure = error

    def finish_block(self, problems: list[Problem]) -> None:
        """Counts the problems of the next block after it was cleaned."""
        for problem in sorted(problems):
            self.corpus.count(self._place(*problem))
        self.corpus.list(self._place(*problem) for problem in sorted(self.before.popleft() + problems))

    def finish(self) -> None:
        """Counts the error that ended the file, or raises it."""
        self.corpus.list(self._place(*problem) for problem in self.found)
        if self.failure:
            if self.corpus.settings.on_error == OnError.stop:
                raise self.failure
            self.corpus.count(str(self.failure))
            self.corpus.list([str(self.failure)])

    def _report(self, line: int, what: str) -> None:
        self.corpus.count(self._place(line, what))
        if len(self.found) < LISTED_PROBLEMS:
            self.found.append((line, what))

    def _place(self, line: int, what: str) -> str:
        return f"{self.source.path}:{line}: {what}"


@dataclass(frozen=True)
class _Cleaned:
    """The clean pairs of a block, and counts of the rest."""

    src: Any  # pyarrow.LargeStringArray
    tgt: Any
    ids: np.ndarray  # (rows, 3)
    read: int
    changed: Counter[str]
    dropped: Counter[str]
    problems: list[Problem]


@dataclass(frozen=True)
class _Cleaner:
    """The settings of cleaning, as a function of a block."""

    clean: CleanConfig
    langs: tuple[str, str]
    exclusion: Exclusion
    duplicates: Duplicates

    def __call__(self, raw: Raw) -> _Cleaned:
        block, problems = raw.parse()
        changed, dropped = Counter[str](), Counter[str]()
        read = len(block)
        block = drop(rewrite(block, self.clean, self.langs, changed), self.clean, self.langs, dropped)
        block, ids = self._exclude(block, dropped)
        return _Cleaned(block.src.to_arrow(), block.tgt.to_arrow(), ids, read, changed, dropped, problems)

    def _exclude(self, block: PairBlock, dropped: Counter[str]) -> tuple[PairBlock, np.ndarray]:
        """Drops test sentences; returns the pairs that are left and their ids (rows, 3)."""
        folded = block.src.fold(), block.tgt.fold()
        src_ids, tgt_ids = hash_rows(folded[0]), hash_rows(folded[1])
        equal = self.exclusion.equal(src_ids) | self.exclusion.equal(tgt_ids)
        similar = self.exclusion.similar(folded[0]) | self.exclusion.similar(folded[1])
        dropped["test sentence"] += int(equal.sum())
        dropped["similar to a test sentence"] += int((similar & ~equal).sum())
        left = ~(equal | similar)
        block, src_ids, tgt_ids = block.take(left), src_ids[left], tgt_ids[left]
        exact = self.duplicates == Duplicates.exact
        hashes = (hash_rows(block.src), hash_rows(block.tgt)) if exact else (src_ids, tgt_ids)
        return block, np.stack([src_ids, tgt_ids, combine_ids(*hashes)], axis=1)


_Clean = Callable[[Iterable[Raw]], Iterator[_Cleaned]]  # cleans blocks and returns them in order
_own: dict[str, _Cleaner] = {}  # the cleaner of a worker process, set once when it starts


@contextmanager
def _start_workers(cleaner: _Cleaner, count: int) -> Iterator[_Clean]:
    """Yields a function that cleans blocks in several processes, or in this one if the count is 1."""
    if count == 1:
        yield partial(map, cleaner)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_start, initargs=(cleaner,)) as pool:
        try:
            with _ignoring_interrupts():
                for _ in range(count):
                    pool.submit(int)  # starts a process
            yield partial(_distribute, pool, BLOCKS_PER_WORKER * count)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _distribute(pool: ProcessPoolExecutor, ahead: int, raws: Iterable[Raw]) -> Iterator[_Cleaned]:
    """Cleans blocks in other processes, at most `ahead` at a time; RunError if a process died."""
    waiting: list[Future[_Cleaned]] = []
    try:
        for raw in raws:
            waiting.append(pool.submit(_clean, raw))
            if len(waiting) >= ahead:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    except BrokenProcessPool:
        raise RunError("a worker process died, perhaps out of memory; try workers=1") from None
    finally:
        for future in waiting:
            future.cancel()


def _start(cleaner: _Cleaner) -> None:
    _own["cleaner"] = cleaner
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this worker when the main process ends, even if it was killed."""
    parent = parent_process()
    if parent:
        wait([parent.sentinel])
        os._exit(1)


def _clean(raw: Raw) -> _Cleaned:
    return _own["cleaner"](raw)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that are started inside the block ignore Ctrl-C: the main process handles it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _choose(store: TemporaryStore, corpora: list[_Corpus], config: PrepareConfig) -> None:
    """Decides the status of every pair, and counts the pairs of each status."""
    ids, status = store.ids(), store.status()
    if config.duplicates != Duplicates.keep:
        drop_repeats(ids[PAIR_ID], status, PairStatus.duplicate)
    for side, choice in ((SRC_ID, OneSided.src), (TGT_ID, OneSided.tgt)):
        if config.one_sided in (choice, OneSided.either):
            drop_repeats(ids[side], status, PairStatus.repeated_side)
    available = [_count(status, corpus.rows)[PairStatus.train] for corpus in corpora]
    limits = [corpus.config.max_pairs for corpus in corpora]
    allotted = allot(available, limits, [corpus.config.weight for corpus in corpora], config.total)
    for number, (corpus, count) in enumerate(zip(corpora, allotted, strict=True)):
        if count < available[number]:
            keep_sample(status, corpus.rows, count, [config.seed, 1, number])
    hold_out(ids, status, config.heldout, [config.seed, 0])
    for corpus in corpora:
        numbers = _count(status, corpus.rows)
        corpus.counts.train, corpus.counts.heldout = numbers[PairStatus.train], numbers[PairStatus.heldout]
        for dropped, name in DROPPED_STATUS.items():
            corpus.counts.dropped[name] += numbers[dropped]


def _count(status: np.ndarray, rows: slice) -> list[int]:
    """How many rows of a corpus have each status."""
    own, numbers = status[rows], np.zeros(len(PairStatus), dtype=np.int64)
    for part in slices(len(own)):
        numbers += np.bincount(own[part], minlength=len(PairStatus))
    return [int(number) for number in numbers]


def _count_test_sentences(store: TemporaryStore, exclusion: Exclusion) -> int:
    """Pairs with a test sentence among those that will be written: 0 unless the exclusion failed."""
    ids, status = store.ids(), store.status()
    left = 0
    for part in slices(store.rows):
        is_test = exclusion.equal(ids[SRC_ID][part]) | exclusion.equal(ids[TGT_ID][part])
        left += int((is_test & (status[part] <= PairStatus.heldout)).sum())
    return left
