"""`dualmoco inspect`: lengths, duplicates, languages and suspicious pairs of a bitext."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from dualmoco.core.config_loader import parse_choice
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.progress import counting, showing
from dualmoco.data.config import CleanConfig, OnError
from dualmoco.data.filters import TextStats, apply_filters, rewrite
from dualmoco.data.readers.base import SkippedLines, Source, follow
from dualmoco.data.readers.formats import check_format, find_shards, parse_blocks
from dualmoco.data.text_column import PairBlock, combine_ids
from dualmoco.text.files import find_files
from dualmoco.text.languages import identify

LENGTH_BINS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 500)  # lower bounds, in tokens
SAMPLED_PAIRS = 500  # number of sentences whose languages are identified
SHOWN_EXAMPLES = 10


@dataclass
class SideView:
    """Statistics of one side."""

    lang: str
    chars: int = 0
    tokens: int = 0
    longest: int = 0  # tokens
    histogram: list[int] = field(
        default_factory=lambda: [0] * (len(LENGTH_BINS) + 1)
    )  # below the first bin, then in each bin
    duplicates: float = 0.0  # share of sentences that repeat another
    languages: dict[str, float] = field(default_factory=dict)  # shares of a sample


@dataclass
class Inspection:
    """Statistics and examples of a bitext."""

    files: list[str]
    pairs: int
    unreadable: int
    duplicates: float  # share of pairs that repeat another
    sides: list[SideView]
    suspicious: dict[str, int]  # number of pairs by the filter that would drop them
    random_pairs: list[tuple[str, str]]
    suspicious_pairs: list[tuple[str, str, str]]  # reason and both sides


def inspect(
    files: str | Path | Sequence[str | Path],
    *,
    src_lang: str = "en",
    tgt_lang: str = "zh",
    tgt_file: str | Path | None = None,
    format: str = "auto",
    columns: tuple[str, str] | None = None,
    seed: int = 0,
    on_error: str = OnError.skip,
    progress: bool = True,
) -> Inspection:
    """Computes statistics of bitext files: lengths, duplicates, languages, suspicious pairs.

    Args:
        files: One or more files, globs, or folders written by `prepare`.
        src_lang: Source language.
        tgt_lang: Target language.
        tgt_file: Target side, if `files` is one line-aligned source file.
        format: Format of the files (default: by extension).
        columns: Source and target column, by name or number.
        seed: Random seed.
        on_error: What to do with unreadable lines: skip and count them, or stop.
        progress: Whether to show progress bars.

    Returns:
        Counts, lengths, duplicates, languages and examples.

    Raises:
        ConfigError: An option value is invalid.
        DataError: A file cannot be read, or there are no pairs.
    """
    check_format(format)
    parse_choice(OnError, on_error, "on_error")
    names = [str(files)] if isinstance(files, str | Path) else [str(name) for name in files]
    paths = find_files(names, ".", folders=True)
    if tgt_file and len(paths) != 1:
        raise ConfigError(f"{len(paths)} files with one target file; expected one source file")
    tgt_path = Path(tgt_file) if tgt_file else None
    with showing(progress):
        return inspect_sources(
            [Source(path, src_lang, tgt_lang, columns, tgt_path) for path in paths],
            format,
            seed=seed,
            skip=on_error == OnError.skip,
        )


def inspect_sources(sources: list[Source], form: str = "auto", *, seed: int = 0, skip: bool = True) -> Inspection:
    """Computes statistics of files or prepared folders; DataError if one cannot be read or there are no pairs."""
    view = _Viewer((sources[0].src, sources[0].tgt), seed)
    skipped = SkippedLines(skip=skip)
    shards = [shard for source in sources for shard in find_shards(source)]
    with counting("inspecting", sum(shard.size for shard in shards), "B") as advance:
        for source in follow(shards, advance):
            for block, _ in parse_blocks(source, form, partial(skipped.report, source.path)):
                view.add(block)
    if not view.pairs:
        raise DataError(f"{sources[0].path}: no pairs; expected sentence pairs")
    return view.finish([str(source.path) for source in sources], skipped.count)


class _Viewer:
    """Collects statistics block by block."""

    def __init__(self, langs: tuple[str, str], seed: int) -> None:
        self.langs, self.random = langs, np.random.default_rng(seed)
        self.pairs = 0
        self.sides = [SideView(lang) for lang in langs]
        self.ids: list[list[np.ndarray]] = [[], []]
        self.reasons: Counter[str] = Counter()
        self.suspicious: list[tuple[str, str, str]] = []
        self.sample: list[tuple[float, str, str]] = []

    def add(self, block: PairBlock) -> None:
        clean = CleanConfig()
        self._sample(block)
        block = rewrite(block, clean, self.langs, Counter())
        stats = (TextStats(block.src.compact(), self.langs[0]), TextStats(block.tgt.compact(), self.langs[1]))
        self.pairs += len(block)
        for place, (view, side) in enumerate(zip(self.sides, stats, strict=True)):
            view.chars += int(side.column.lengths.sum())
            view.tokens += int(side.tokens.sum())
            view.longest = max(view.longest, int(side.tokens.max(initial=0)))
            for bin_number, count in Counter(np.searchsorted(LENGTH_BINS, side.tokens, side="right").tolist()).items():
                view.histogram[bin_number] += count
            self.ids[place].append(side.column.ids())
        for name, dropped in apply_filters(stats, clean):
            self._suspect(name, block.take(dropped))

    def finish(self, files: list[str], unreadable: int) -> Inspection:
        ids = [np.concatenate(parts) for parts in self.ids]
        texts = [(src, tgt) for _, src, tgt in sorted(self.sample)]
        for place, view in enumerate(self.sides):
            view.duplicates = 1 - len(np.unique(ids[place])) / self.pairs
            found = Counter(identify(pair[place]) for pair in texts)
            view.languages = {lang: count / len(texts) for lang, count in found.most_common(6)}
        repeated = 1 - len(np.unique(combine_ids(*ids))) / self.pairs
        reasons, examples = dict(self.reasons.most_common()), texts[:SHOWN_EXAMPLES]
        return Inspection(files, self.pairs, unreadable, repeated, self.sides, reasons, examples, self.suspicious)

    def _sample(self, block: PairBlock) -> None:
        """Keeps the pairs with the lowest random numbers: a uniform sample of all pairs seen so far."""
        numbers = self.random.random(len(block))
        best = np.argsort(numbers)[:SAMPLED_PAIRS]
        chosen = block.take(best)
        self.sample += zip(numbers[best].tolist(), chosen.src.texts(), chosen.tgt.texts(), strict=True)
        self.sample = sorted(self.sample)[:SAMPLED_PAIRS]

    def _suspect(self, reason: str, block: PairBlock) -> None:
        self.reasons[reason] += len(block)
        room = 2 - sum(known == reason for known, _, _ in self.suspicious)
        if len(block) and room > 0:
            some = block.take(np.arange(min(room, len(block))))
            self.suspicious += zip([reason] * len(some), some.src.texts(), some.tgt.texts(), strict=True)
