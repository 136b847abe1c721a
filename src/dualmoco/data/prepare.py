"""`dualmoco prepare`: from raw bitext to clean, distinct, test-free pairs on disk, and a manifest of what was dropped.

One pass reads and cleans into a temporary store, one decides over ids which pairs stay, one writes Parquet. Everything
happens in a folder beside the place of the result, which is renamed when it is whole.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.storage import new_folder, write_json, write_text
from dualmoco.data.cleaning import Clean, Cleaner, start_workers
from dualmoco.data.exclusion import Exclusion, TestFile, read_test_sets
from dualmoco.data.languages import scripts_of
from dualmoco.data.manifest import CorpusCounts, FileRecord, PreparedManifest, describe_file, versions
from dualmoco.data.readers.formats import check_format, read_blocks
from dualmoco.data.readers.source import Source, follow
from dualmoco.data.recipe import CorpusConfig, Duplicates, OnError, OneSided, PrepareConfig, check_recipe
from dualmoco.data.sampling import allot, drop_repeats, hold_out, keep_sample
from dualmoco.data.shards import write_shards
from dualmoco.data.temporary import KEY, SRC_ID, TGT_ID, Fate, TemporaryStore, slices
from dualmoco.data.text import find_files

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
        drop_repeats(ids[KEY], fates, Fate.duplicate)
    for side, choice in ((SRC_ID, OneSided.src), (TGT_ID, OneSided.tgt)):
        if config.one_sided in (choice, OneSided.either):
            drop_repeats(ids[side], fates, Fate.repeated_side)
    available = [_count(fates, corpus.rows)[Fate.train] for corpus in corpora]
    limits = [corpus.config.max_pairs for corpus in corpora]
    allotted = allot(available, limits, [corpus.config.weight for corpus in corpora], config.total)
    for number, (corpus, count) in enumerate(zip(corpora, allotted, strict=True)):
        if count < available[number]:
            keep_sample(fates, corpus.rows, count, [config.seed, 1, number])
    hold_out(ids, fates, config.heldout, [config.seed, 0])
    for corpus in corpora:
        numbers = _count(fates, corpus.rows)
        corpus.counts.train, corpus.counts.heldout = numbers[Fate.train], numbers[Fate.heldout]
        for fate in (Fate.duplicate, Fate.repeated_side, Fate.not_sampled, Fate.shares_heldout):
            corpus.counts.dropped[FATE_NAMES[fate]] += numbers[fate]


FATE_NAMES = {
    Fate.duplicate: "duplicate",
    Fate.repeated_side: "repeated side",
    Fate.not_sampled: "not sampled",
    Fate.shares_heldout: "shares a held-out sentence",
}


def _count(fates: np.ndarray, rows: slice) -> list[int]:
    """How many rows of a corpus have each fate."""
    own, numbers = fates[rows], np.zeros(len(Fate), dtype=np.int64)
    for part in slices(len(own)):
        numbers += np.bincount(own[part], minlength=len(Fate))
    return [int(number) for number in numbers]


def _count_left(store: TemporaryStore, exclusion: Exclusion) -> int:
    """Pairs to be written that hold a test sentence: none, or exclusion has failed."""
    ids, fates = store.ids(), store.fates()
    left = 0
    for part in slices(store.rows):
        tested = exclusion.equal(ids[SRC_ID][part]) | exclusion.equal(ids[TGT_ID][part])
        left += int((tested & (fates[part] <= Fate.heldout)).sum())
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
    config: PrepareConfig, corpora: list[_Corpus], tests: list[TestFile], exclusion: Exclusion, left: int,
    shards: list[FileRecord],
) -> PreparedManifest:  # fmt: skip
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
