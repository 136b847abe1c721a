"""Sentence pairs for training: read, freed of test sentences and duplicates, split into training and held-out.

Takes the files a recipe names through `readers/`, or a folder of `prepared.py`; gives `Pairs` to
`training/batching.py`. Tests, duplicates, held-out pairs and samples are found by the functions that `prepare` uses;
what is dropped is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.vectors import Ids
from dualmoco.data.bitext import Pairs, of_corpora
from dualmoco.data.block import PairBlock
from dualmoco.data.curriculum import sample_curriculum
from dualmoco.data.demo.grammar import generate_pairs
from dualmoco.data.exclusion import Exclusion, read_test_sets
from dualmoco.data.manifest import PREPARED_MANIFEST
from dualmoco.data.prepared import open_prepared
from dualmoco.data.readers.formats import check_format, find_shards, guess_format, read_blocks
from dualmoco.data.readers.raw import Row, in_blocks
from dualmoco.data.readers.source import Source, follow
from dualmoco.data.recipe import DataConfig, StageConfig
from dualmoco.data.sampling import drop_repeats, hold_out, keep_sample
from dualmoco.data.shards import HELDOUT
from dualmoco.data.temporary import KEY, Fate, mix, slices
from dualmoco.data.text import find_files

GRAMMAR_PREFIX = "grammar:"
NUMBERED = ("tsv", "csv")  # formats in which `data.columns` counts columns; others name the languages


@dataclass(frozen=True)
class Split:
    """What `load_pairs` makes of the files: training and held-out pairs share no sentence."""

    train: Pairs
    heldout: Pairs
    counts: dict[str, int]  # read, and dropped by reason
    stages: Sequence[StageConfig] = ()  # of the curriculum, with weights as they count for these pairs


def load_pairs(config: DataConfig, *, langs: tuple[str, str], seed: int) -> Split:
    """Reads the pairs a recipe names.

    Args:
        config: Files, columns, test sets to exclude and number of held-out pairs.
        langs: Source and target language, which some formats name.
        seed: Decides which pairs are held out or sampled.

    Returns:
        Training and held-out pairs without test sentences, empty sides and duplicates, and what was dropped.

    Raises:
        DataError: A file that cannot be read as pairs, or too few pairs.
    """
    sentences, _ = read_test_sets(find_files(config.exclude, config.root), Path(config.root))
    exclusion = Exclusion(sentences, similarity=0)
    if config.prepared:
        return _open_prepared(config, exclusion, seed=seed)
    counts: Counter[str] = Counter()
    parts: list[Pairs] = []
    for name, block in _read_all(config, langs):
        parts.append(_usable(name, block, exclusion, counts))
    if not any(map(len, parts)):
        raise DataError("no usable pair in the training files; expected lines with a source and a target sentence")
    corpus = Pairs.concatenate(parts)
    fates = np.zeros(len(corpus), dtype=np.uint8)
    ids = (corpus.src_ids, corpus.tgt_ids, mix(corpus.src_ids, corpus.tgt_ids))
    drop_repeats(ids[KEY], fates, Fate.duplicate)
    counts["duplicate"] = int((fates == Fate.duplicate).sum())
    return _split(corpus, ids, fates, config, counts, seed)


def _read_all(config: DataConfig, langs: tuple[str, str]) -> Iterator[tuple[str, PairBlock]]:
    """Names and pairs of aligned files, grammars and other files; what is named must be there before any is read."""
    check_format(config.format)
    aligned, files = list(_aligned_sources(config, langs)), list(_sources(config, langs))
    with counting("reading pairs", sum(source.size for source in (*aligned, *files)), "B") as advance:
        for source in follow(aligned, advance):
            yield from ((_corpus_name(source.path), block) for block in _parse(source, "aligned"))
        for name in config.train:
            if name.startswith(GRAMMAR_PREFIX):
                yield from ((name, rows.parse()[0]) for rows in in_blocks(Row(*pair, 0) for pair in _generate(name)))
        for source in follow(files, advance):
            yield from ((_corpus_name(source.path), block) for block in _parse(source, config.format))


def _corpus_name(path: Path) -> str:
    """Of a file of pairs: `tvsub` of `parallel/tvsub.tsv.xz`, the folder's of a shard that `prepare` wrote."""
    return (path.parent if (path.parent / PREPARED_MANIFEST).is_file() else path).name.split(".")[0]


def _parse(source: Source, form: str) -> Iterator[PairBlock]:
    """The pairs of a file; the first line that cannot be read is an error."""

    def refuse(line: int, what: str) -> None:
        raise DataError(f"{source.path}:{line}: {what}")

    for raw in read_blocks(source, form, refuse):
        block, problems = raw.parse()
        for problem in problems:
            refuse(*problem)
        yield block


def _sources(config: DataConfig, langs: tuple[str, str]) -> Iterator[Source]:
    """The files of `data.train`; of a prepared folder those that are not held out."""
    names = (name for name in config.train if not name.startswith(GRAMMAR_PREFIX))
    for path in find_files(names, config.root, folders=True):
        for source in find_shards(Source(path, *langs)):
            form = guess_format(source) if config.format == "auto" else config.format
            if form in NUMBERED:
                first, second = map(str, config.columns)
                source = Source(source.path, *langs, (first, second))
            if not (path.is_dir() and source.path.name.startswith(HELDOUT)):
                yield source


def _aligned_sources(config: DataConfig, langs: tuple[str, str]) -> Iterator[Source]:
    src_files, tgt_files = (find_files(names, config.root) for names in (config.src_files, config.tgt_files))
    if len(src_files) != len(tgt_files):
        raise DataError(
            f"data.src_files stands for {len(src_files)} files, data.tgt_files for {len(tgt_files)}; "
            "expected as many of both"
        )
    for src, tgt in zip(src_files, tgt_files, strict=True):
        yield Source(src, *langs, tgt_path=tgt)


def _generate(name: str) -> list[tuple[str, str]]:
    count = name.removeprefix(GRAMMAR_PREFIX)
    try:
        return generate_pairs(int(count))
    except ValueError as error:
        raise DataError(f"{name}: {error}; expected grammar:COUNT such as grammar:40000") from None


def _usable(name: str, block: PairBlock, exclusion: Exclusion, counts: Counter[str]) -> Pairs:
    """The pairs of a block of one corpus with text on both sides and no test sentence."""
    full = ~(block.src.blank() | block.tgt.blank())
    counts["read"] += len(block)
    counts["empty side"] += int((~full).sum())
    block = block.take(full)
    src_ids, tgt_ids = block.src.ids(), block.tgt.ids()
    left = ~(exclusion.equal(src_ids) | exclusion.equal(tgt_ids))
    counts["test sentence"] += int((~left).sum())
    block = block.take(left)
    texts = (block.src.to_arrow(), block.tgt.to_arrow())
    return Pairs(*texts, src_ids[left], tgt_ids[left], *of_corpora((name, len(block))))


def _open_prepared(config: DataConfig, exclusion: Exclusion, *, seed: int) -> Split:
    """Maps prepared pairs into memory; up to `data.heldout` of those held out by `prepare` are used.

    If it held none out, some are held out now.
    """
    folder = Path(config.prepared)
    corpus, heldout = open_prepared(folder)
    counts = Counter({"read": len(corpus) + len(heldout)})
    found = sum(_count_tested(part, exclusion) for part in (corpus, heldout))
    if found:
        raise DataError(
            f"{folder}: pairs with a sentence of data.exclude: {found}; expected none: prepare the pairs again with "
            "these files in exclude.files"
        )
    fates = np.zeros(len(corpus), dtype=np.uint8)
    if not len(heldout):
        return _split(corpus, (corpus.src_ids, corpus.tgt_ids), fates, config, counts, seed)
    used = np.zeros(len(heldout), dtype=np.uint8)
    if config.heldout < len(heldout):
        keep_sample(used, slice(0, len(heldout)), config.heldout, [seed, 2])
        counts["held out, not used"] = len(heldout) - config.heldout
        heldout = heldout.take(np.flatnonzero(used == Fate.train))
    return _finish(corpus, heldout, fates, config, counts, seed)


def _count_tested(pairs: Pairs, exclusion: Exclusion) -> int:
    """Pairs with a test sentence."""
    parts = slices(len(pairs))
    return sum(
        int((exclusion.equal(pairs.src_ids[part]) | exclusion.equal(pairs.tgt_ids[part])).sum()) for part in parts
    )


def _split(
    corpus: Pairs, ids: Sequence[Ids], fates: np.ndarray, config: DataConfig, counts: Counter[str], seed: int
) -> Split:
    """Holds pairs out, and samples the rest if asked to."""
    hold_out(ids, fates, config.heldout, [seed, 0])
    counts["shares a held-out sentence"] = int((fates == Fate.shares_heldout).sum())
    return _finish(corpus, corpus.take(np.flatnonzero(fates == Fate.heldout)), fates, config, counts, seed)


def _finish(
    corpus: Pairs, heldout: Pairs, fates: np.ndarray, config: DataConfig, counts: Counter[str], seed: int
) -> Split:
    left = int((fates == Fate.train).sum())
    stages: Sequence[StageConfig] = ()
    if config.curriculum:
        stages = sample_curriculum(corpus, fates, config.curriculum, config.max_pairs, [seed, 1])
    elif 0 < config.max_pairs < left:
        keep_sample(fates, slice(0, len(fates)), config.max_pairs, [seed, 1])
    sampled = int((fates == Fate.train).sum())
    if sampled < left:
        counts["not sampled"] = left - sampled
    train = corpus.take(np.flatnonzero(fates == Fate.train)) if (fates != Fate.train).any() else corpus
    counts["held out"], counts["train"] = len(heldout), len(train)
    return Split(train, heldout, dict(counts), stages)
