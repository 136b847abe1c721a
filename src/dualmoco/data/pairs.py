"""Sentence pairs as training takes them: Arrow strings, in memory or mapped from disk, with ids.

`pairs.py` reads raw files into them, `prepared.py` opens what `dualmoco prepare` made.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.storage import new_folder
from dualmoco.core.vectors import Ids
from dualmoco.data.config import DataConfig, StageConfig
from dualmoco.data.decontamination import Exclusion, read_test_sets
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.manifest import PREPARED_MANIFEST, read_prepared_manifest
from dualmoco.data.readers.base import Row, Source, follow, in_blocks
from dualmoco.data.readers.formats import check_format, find_shards, guess_format, read_blocks
from dualmoco.data.sampling import allot, drop_repeats, hold_out, keep_sample
from dualmoco.data.staging import HELDOUT, KEY, TRAIN, PairStatus, mix, slices
from dualmoco.data.text_column import PairBlock, sentence_ids
from dualmoco.text.files import find_files

SentencePair = tuple[str, str]
CORPUS = np.uint16


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs in memory, as Arrow strings, with the ids of their normalised texts."""

    src: pa.LargeStringArray
    tgt: pa.LargeStringArray
    src_ids: Ids
    tgt_ids: Ids
    corpus: np.ndarray  # (n,) of uint16: place in `corpora` of the corpus that each pair comes from
    corpora: tuple[str, ...]  # their names

    def __len__(self) -> int:
        return len(self.src_ids)

    @classmethod
    def from_texts(cls, pairs: Iterable[SentencePair]) -> Pairs:
        """Makes a corpus of (source, target) texts."""
        src, tgt = ([*side] for side in zip(*pairs, strict=True))
        return cls(_arrow(src), _arrow(tgt), sentence_ids(src), sentence_ids(tgt), *of_corpora(("", len(src))))

    @classmethod
    def concatenate(cls, parts: Sequence[Pairs]) -> Pairs:
        """The rows of at least one part after another; corpora of one name become one."""
        src, tgt = (pa.concat_arrays([getattr(part, side) for part in parts]) for side in ("src", "tgt"))
        src_ids, tgt_ids = (np.concatenate([getattr(part, side) for part in parts]) for side in ("src_ids", "tgt_ids"))
        names = list(dict.fromkeys(name for part in parts for name in part.corpora))
        places = [np.array([names.index(name) for name in part.corpora], dtype=CORPUS)[part.corpus] for part in parts]
        return cls(src, tgt, src_ids, tgt_ids, np.concatenate(places), tuple(names))

    def texts(self, rows: np.ndarray | slice = slice(None)) -> tuple[list[str], list[str]]:
        """The source and the target sentences of some rows."""
        rows = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return self.src.take(rows).to_pylist(), self.tgt.take(rows).to_pylist()

    def take(self, rows: np.ndarray) -> Pairs:
        """A corpus of some rows, in their order."""
        texts, ids = (self.src.take(rows), self.tgt.take(rows)), (self.src_ids[rows], self.tgt_ids[rows])
        return Pairs(*texts, *ids, self.corpus[rows], self.corpora)

    def digest(self) -> str:
        """A hash of all sentences and their order."""
        state = xxhash.xxh3_64(self.src_ids.tobytes())
        state.update(self.tgt_ids.tobytes())
        return str(state.hexdigest())


def of_corpora(*counts: tuple[str, int]) -> tuple[np.ndarray, tuple[str, ...]]:
    """`corpus` and `corpora` of pairs that lie corpus by corpus, given each one's name and number of pairs."""
    names = list(dict.fromkeys(name for name, _ in counts))
    places = np.array([names.index(name) for name, _ in counts], dtype=CORPUS)
    return np.repeat(places, [count for _, count in counts]), tuple(names)


def _arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, type=pa.large_string())


class WeightedRows(NamedTuple):
    """Pairs of one weight."""

    rows: np.ndarray
    weight: float
    """How often each is taken in one pass over the pairs: 0.25 in every fourth, 2 twice in each."""


def stage_rows(pairs: Pairs, stages: Sequence[StageConfig], number: int) -> list[WeightedRows]:
    """What a stage takes.

    Args:
        pairs: The training pairs.
        stages: Of the curriculum.
        number: Which stage, from 0.

    Returns:
        The rows of the pairs that it takes, by weight; the weights are above 0.
    """
    weights = _corpus_weights(pairs, stages)[number][pairs.corpus]  # (n,)
    weights[_too_long(pairs, stages[number])] = 0
    return [WeightedRows(np.flatnonzero(weights == weight), float(weight)) for weight in np.unique(weights) if weight]


def sample_curriculum(
    pairs: Pairs, fates: np.ndarray, stages: Sequence[StageConfig], most: int, seed: Sequence[int]
) -> Sequence[StageConfig]:
    """Leaves for training what a stage takes, and of that a sample if it is too much.

    A pair's chance to be in the sample goes with its largest weight, so that a small corpus of great weight is not
    drowned by large ones before training begins. What weights remain to be applied in training is returned.

    Args:
        pairs: All pairs.
        fates: Shape (n,), changed in place: pairs for training that no stage takes, or that are not in the sample.
        stages: Of the recipe.
        most: Pairs in the sample; 0 for all.
        seed: Of the sample.

    Returns:
        The stages with weights as they count for the pairs that are left.

    Raises:
        DataError: Weights of a corpus that the pairs do not have.
    """
    weights = _corpus_weights(pairs, stages)  # (S, C)
    taken = np.zeros(len(pairs), dtype=bool)
    for own, stage in zip(weights, stages, strict=True):
        fits = ~_too_long(pairs, stage)
        own[np.bincount(pairs.corpus[fits], minlength=len(own)) == 0] = 0
        taken |= (own > 0)[pairs.corpus] & fits
    fates[(fates == PairStatus.train) & ~taken] = PairStatus.not_sampled
    left = np.flatnonzero(fates == PairStatus.train)
    if not 0 < most < len(left):
        return stages
    largest = weights.max(axis=0)  # (C,)
    available = np.bincount(pairs.corpus[left], minlength=len(largest))
    shares = allot(available.tolist(), [0] * len(largest), (available * largest).tolist(), most)
    generator = np.random.default_rng(seed)
    fates[left] = PairStatus.not_sampled
    for corpus, count in enumerate(shares):
        own = left[pairs.corpus[left] == corpus]
        fates[generator.choice(own, count, replace=False, shuffle=False)] = PairStatus.train
    rest = weights / np.where(largest, largest, 1)
    return [
        replace(stage, weights=dict(zip(pairs.corpora, own, strict=True)))
        for stage, own in zip(stages, rest.tolist(), strict=True)
    ]


def _corpus_weights(pairs: Pairs, stages: Sequence[StageConfig]) -> np.ndarray:
    """How often each stage takes a pair of each corpus in one pass, shape (S, C)."""
    for number, stage in enumerate(stages):
        unknown = sorted(set(stage.weights) - set(pairs.corpora))
        if unknown:
            raise DataError(
                f"data.curriculum[{number}].weights has {unknown[0]!r}; expected corpora of the training pairs: "
                + ", ".join(pairs.corpora)
            )
    return np.array([[stage.weights.get(name, 1.0) for name in pairs.corpora] for stage in stages])


def _too_long(pairs: Pairs, stage: StageConfig) -> np.ndarray:
    """Whether a side of each pair is too long for a stage, shape (n,)."""
    if not stage.max_chars:
        return np.zeros(len(pairs), dtype=bool)
    longer = pc.max_element_wise(pc.utf8_length(pairs.src), pc.utf8_length(pairs.tgt))
    return np.asarray(longer.to_numpy() > stage.max_chars)


BATCH_ROWS = 100_000
MAPPED = "mapped"
SIDE_COLUMNS, KINDS = ("src", "tgt"), ("text", "offsets", "ids")


def open_prepared(folder: Path) -> tuple[Pairs, Pairs]:
    """Opens a prepared folder.

    Args:
        folder: Made by `dualmoco prepare`.

    Returns:
        The pairs for training, and those held out.

    Raises:
        DataError: A folder of another kind, or a shard that is missing or not the one of the manifest.
    """
    manifest = read_prepared_manifest(folder)
    mapped = folder / MAPPED
    shards = json.dumps(manifest["shards"])
    if not (mapped / "shards.json").is_file() or (mapped / "shards.json").read_text() != shards:
        _check_shards(folder, manifest["shards"])
        with new_folder(mapped) as new:
            for split in (TRAIN, HELDOUT):
                names = [shard["path"] for shard in manifest["shards"] if shard["path"].startswith(split)]
                _unpack([folder / name for name in names], new, split)
            (new / "shards.json").write_text(shards)
    return _map(mapped, TRAIN, manifest), _map(mapped, HELDOUT, manifest)


def _check_shards(folder: Path, shards: list[dict[str, object]]) -> None:
    for shard in shards:
        path = folder / str(shard["path"])
        if not path.is_file() or path.stat().st_size != shard["bytes"]:
            raise DataError(f"{path}: missing or not as the manifest says; prepare the pairs again")


def _unpack(paths: list[Path], folder: Path, split: str) -> None:
    """Writes, for each side, one file of UTF-8, one of the places where sentences end, and one of ids."""
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    names = [f"{side}.{kind}" for side in SIDE_COLUMNS for kind in KINDS]
    position = dict.fromkeys(SIDE_COLUMNS, 0)
    with counting(f"unpacking {split} pairs", rows, " pairs") as advance, ExitStack() as stack:
        streams = {name: stack.enter_context((folder / f"{split}.{name}").open("wb")) for name in names}
        for side in SIDE_COLUMNS:
            streams[f"{side}.offsets"].write(bytes(8))
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=list(SIDE_COLUMNS)):
                for side in SIDE_COLUMNS:
                    texts = batch.column(side).to_pylist()
                    encoded = [text.encode() for text in texts]
                    ends = position[side] + np.cumsum([len(text) for text in encoded], dtype="<i8")
                    position[side] = int(ends[-1])
                    streams[f"{side}.text"].write(b"".join(encoded))
                    streams[f"{side}.offsets"].write(ends.tobytes())
                    streams[f"{side}.ids"].write(sentence_ids(texts).astype("<i8").tobytes())
                advance(len(batch))


def _map(folder: Path, split: str, manifest: dict[str, Any]) -> Pairs:
    counts = [(corpus["name"], corpus[split]) for corpus in manifest["corpora"]]  # shards lie corpus by corpus
    rows = sum(count for _, count in counts)
    src, tgt = (_map_texts(folder, f"{split}.{side}", rows) for side in SIDE_COLUMNS)
    src_ids, tgt_ids = (_map_ids(folder / f"{split}.{side}.ids", rows) for side in SIDE_COLUMNS)
    return Pairs(src, tgt, src_ids, tgt_ids, *of_corpora(*counts))


def _map_texts(folder: Path, name: str, count: int) -> pa.LargeStringArray:
    offsets, text = (_buffer(folder / f"{name}.{kind}") for kind in ("offsets", "text"))
    return pa.LargeStringArray.from_buffers(count, offsets, text)


def _buffer(path: Path) -> pa.Buffer:
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _map_ids(path: Path, count: int) -> Ids:
    return np.memmap(path, dtype="<i8", mode="r", shape=(count,)) if count else np.empty(0, dtype="<i8")


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
    drop_repeats(ids[KEY], fates, PairStatus.duplicate)
    counts["duplicate"] = int((fates == PairStatus.duplicate).sum())
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
        heldout = heldout.take(np.flatnonzero(used == PairStatus.train))
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
    counts["shares a held-out sentence"] = int((fates == PairStatus.shares_heldout).sum())
    return _finish(corpus, corpus.take(np.flatnonzero(fates == PairStatus.heldout)), fates, config, counts, seed)


def _finish(
    corpus: Pairs, heldout: Pairs, fates: np.ndarray, config: DataConfig, counts: Counter[str], seed: int
) -> Split:
    left = int((fates == PairStatus.train).sum())
    stages: Sequence[StageConfig] = ()
    if config.curriculum:
        stages = sample_curriculum(corpus, fates, config.curriculum, config.max_pairs, [seed, 1])
    elif 0 < config.max_pairs < left:
        keep_sample(fates, slice(0, len(fates)), config.max_pairs, [seed, 1])
    sampled = int((fates == PairStatus.train).sum())
    if sampled < left:
        counts["not sampled"] = left - sampled
    train = corpus.take(np.flatnonzero(fates == PairStatus.train)) if (fates != PairStatus.train).any() else corpus
    counts["held out"], counts["train"] = len(heldout), len(train)
    return Split(train, heldout, dict(counts), stages)
