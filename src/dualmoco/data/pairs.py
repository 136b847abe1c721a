"""Sentence pairs for training: read, freed of test sentences and duplicates, split into training and held-out.

Takes files through `text.py`, gives `Pairs` to `batching.py`. Rows that are dropped are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Ids
from dualmoco.data.bitext import Pairs, SentencePair
from dualmoco.data.block import sentence_ids
from dualmoco.data.demo.grammar import generate_pairs
from dualmoco.data.prepared import open_prepared
from dualmoco.data.recipe import DataConfig
from dualmoco.data.text import find_files, read_lines

CHUNK_PAIRS = 50_000
GRAMMAR_PREFIX = "grammar:"


@dataclass(frozen=True)
class Split:
    """What `load_pairs` makes of the files: training and held-out pairs share no sentence."""

    train: Pairs
    heldout: Pairs
    counts: dict[str, int]  # read, and dropped by reason


def load_pairs(config: DataConfig, *, seed: int) -> Split:
    """Reads the pairs a recipe names.

    Args:
        config: Files, columns, test sets to exclude and number of held-out pairs.
        seed: Decides which pairs are held out or sampled.

    Returns:
        Training and held-out pairs without test sentences, empty sides and duplicates, and what was dropped.

    Raises:
        DataError: A file that cannot be read as pairs, or too few pairs.
    """
    if config.prepared:
        return _open_prepared(config, seed=seed)
    counts: Counter[str] = Counter()
    excluded = _excluded_ids(config)
    parts: list[Pairs] = []
    with tqdm(_read_sources(config), desc="reading pairs", unit=" pairs", unit_scale=True, delay=2) as bar:
        pairs = iter(bar)
        while chunk := list(islice(pairs, CHUNK_PAIRS)):
            counts["read"] += len(chunk)
            full = [pair for pair in chunk if pair[0].strip() and pair[1].strip()]
            counts["empty side"] += len(chunk) - len(full)
            if not full:
                continue
            part = Pairs.from_texts(full)
            clean = ~(np.isin(part.src_ids, excluded) | np.isin(part.tgt_ids, excluded))
            counts["test sentence"] += int((~clean).sum())
            parts.append(part.take(np.flatnonzero(clean)))
    corpus = _concatenate(parts)
    distinct = _first_occurrences(corpus)
    counts["duplicate"] = len(corpus) - len(distinct)
    return _split(corpus.take(distinct), config, counts, seed)


def _open_prepared(config: DataConfig, *, seed: int) -> Split:
    """Maps prepared pairs into memory; those held out by `prepare` are used, or else some are held out now."""
    folder = Path(config.prepared)
    corpus, heldout = open_prepared(folder)
    counts = Counter({"read": len(corpus) + len(heldout)})
    excluded = _excluded_ids(config)
    for part in (corpus, heldout):
        found = int((np.isin(part.src_ids, excluded) | np.isin(part.tgt_ids, excluded)).sum())
        if found:
            raise DataError(
                f"{folder}: {found} pairs hold a sentence of data.exclude; expected none: prepare the pairs again with "
                "these files in exclude.files"
            )
    if not len(heldout):
        return _split(corpus, config, counts, seed)
    if 0 < config.max_pairs < len(corpus):
        counts["not sampled"] = len(corpus) - config.max_pairs
        corpus = corpus.take(_sample(np.arange(len(corpus)), config.max_pairs, seed))
    counts["held out"], counts["train"] = len(heldout), len(corpus)
    return Split(corpus, heldout, dict(counts))


def _split(corpus: Pairs, config: DataConfig, counts: Counter[str], seed: int) -> Split:
    """Holds pairs out, and samples the rest if asked to."""
    if len(corpus) <= config.heldout:
        raise DataError(
            f"{len(corpus)} usable pairs of {counts['read']} read; expected more than data.heldout={config.heldout}: "
            "give more data or hold out less"
        )
    heldout, rest = _hold_out(corpus, config.heldout, seed)
    counts["shares a held-out sentence"] = len(corpus) - len(heldout) - len(rest)
    if 0 < config.max_pairs < len(rest):
        counts["not sampled"] = len(rest) - config.max_pairs
        rest = _sample(rest, config.max_pairs, seed)
    counts["held out"], counts["train"] = len(heldout), len(rest)
    return Split(corpus.take(rest), corpus.take(heldout), dict(counts))


def _sample(rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng([seed, 1]).choice(rows, count, replace=False))


def read_tsv_pairs(path: Path, columns: Iterable[int] = (0, 1)) -> Iterator[SentencePair]:
    """Yields the pairs of a tab-separated file.

    Args:
        path: The file, plain or compressed.
        columns: The source's and the target's column, from 0.

    Yields:
        Source and target sentence.

    Raises:
        DataError: A line with too few columns, or an unreadable file.
    """
    src, tgt = columns
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) <= max(src, tgt):
            if not line.strip():
                continue
            raise DataError(
                f"{path}:{number}: {len(cells)} tab-separated column{'s' * (len(cells) > 1)}; expected at least "
                f"{max(src, tgt) + 1} (source in {src}, target in {tgt}; set data.columns)"
            )
        yield cells[src], cells[tgt]


def read_aligned_pairs(src: Path, tgt: Path) -> Iterator[SentencePair]:
    """Yields the pairs of two files whose lines belong together.

    Args:
        src: Source sentences, one a line.
        tgt: Target sentences, one a line.

    Yields:
        Source and target sentence.

    Raises:
        DataError: Files of different length, or an unreadable one.
    """
    for number, (src_line, tgt_line) in enumerate(zip_longest(read_lines(src), read_lines(tgt)), start=1):
        if src_line is None or tgt_line is None:
            short, long = (src, tgt) if src_line is None else (tgt, src)
            raise DataError(f"{short} ends after line {number - 1} but {long} goes on; expected as many lines in both")
        yield src_line, tgt_line


def _read_sources(config: DataConfig) -> Iterator[SentencePair]:
    if config.src_files:
        src_files, tgt_files = (find_files(names, config.root) for names in (config.src_files, config.tgt_files))
        if len(src_files) != len(tgt_files):
            raise DataError(
                f"data.src_files stands for {len(src_files)} files, data.tgt_files for {len(tgt_files)}; "
                "expected as many of both"
            )
        for src, tgt in zip(src_files, tgt_files, strict=True):
            yield from read_aligned_pairs(src, tgt)
    grammars = [name for name in config.train if name.startswith(GRAMMAR_PREFIX)]
    files = find_files((name for name in config.train if name not in grammars), config.root)
    for name in grammars:
        yield from _generate(name)
    for file in files:
        yield from read_tsv_pairs(file, config.columns)


def _generate(name: str) -> list[SentencePair]:
    count = name.removeprefix(GRAMMAR_PREFIX)
    try:
        return generate_pairs(int(count))
    except ValueError as error:
        raise DataError(f"{name}: {error}; expected grammar:COUNT such as grammar:40000") from None


def _excluded_ids(config: DataConfig) -> Ids:
    """Ids of every tab-separated field of every line of the test sets."""
    fields = (
        field
        for path in find_files(config.exclude, config.root)
        for line in read_lines(path)
        for field in line.split("\t")
        if field.strip()
    )
    return np.unique(sentence_ids(fields))


def _concatenate(parts: list[Pairs]) -> Pairs:
    if not any(len(part) for part in parts):
        raise DataError("no usable pair in the training files; expected lines with a source and a target sentence")
    src, tgt = (pa.concat_arrays([getattr(part, side) for part in parts]) for side in ("src", "tgt"))
    ids = (np.concatenate([getattr(part, side) for part in parts]) for side in ("src_ids", "tgt_ids"))
    return Pairs(src, tgt, *ids)


def _first_occurrences(pairs: Pairs) -> np.ndarray:
    """Rows of the first occurrence of each (source, target) pair of ids, in order."""
    both = np.empty(len(pairs), dtype=[("src", np.int64), ("tgt", np.int64)])
    both["src"], both["tgt"] = pairs.src_ids, pairs.tgt_ids
    return np.sort(np.unique(both, return_index=True)[1])


def _hold_out(pairs: Pairs, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to hold out, no sentence twice among them, and the rows that share no sentence with these."""
    order = np.random.default_rng([seed, 0]).permutation(len(pairs))
    for ids in (pairs.src_ids, pairs.tgt_ids):
        order = order[np.sort(np.unique(ids[order], return_index=True)[1])]
    heldout = np.sort(order[:count])
    shares = np.isin(pairs.src_ids, pairs.src_ids[heldout]) | np.isin(pairs.tgt_ids, pairs.tgt_ids[heldout])
    return heldout, np.flatnonzero(~shares)
