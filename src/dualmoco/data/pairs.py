"""The sentence pairs of a training run: read from raw files or from a prepared folder, split and sampled.

`load_pairs` turns the `data` section of a recipe into training and held-out `Pairs`: Arrow strings, in memory or mapped
from disk, with ids. `stage_rows` says which pairs a stage of a curriculum uses. Shapes: n pairs, C corpora, S stages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from filelock import FileLock

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
from dualmoco.data.sampling import allot, count_training, drop_repeats, hold_out, keep_sample
from dualmoco.data.staging import HELDOUT_SPLIT, TRAIN_SPLIT, PairStatus, slices
from dualmoco.data.text_column import PairBlock, combine_ids, sentence_ids
from dualmoco.text.files import find_files

SentencePair = tuple[str, str]
CORPUS_DTYPE = np.uint16
GRAMMAR_PREFIX = "grammar:"
NUMBERED_FORMATS = ("tsv", "csv")  # `data.columns` numbers their columns; other formats have column names
MAPPED_FOLDER, MAPPED_SHARDS, UNPACKING_LOCK = "mapped", "shards.json", ".unpacking.lock"
UNPACKED_ROWS = 100_000  # at once
SIDE_COLUMNS = ("src", "tgt")


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs as Arrow strings, with the ids of their normalized sentences."""

    src: pa.LargeStringArray
    tgt: pa.LargeStringArray
    src_ids: Ids
    tgt_ids: Ids
    corpus: np.ndarray  # (n,) of uint16: index into `corpora`
    corpora: tuple[str, ...]  # names

    def __len__(self) -> int:
        return len(self.src_ids)

    @classmethod
    def from_texts(cls, pairs: Iterable[SentencePair]) -> Pairs:
        """Makes pairs of (source, target) strings."""
        src, tgt = ([*side] for side in zip(*pairs, strict=True))
        arrays = [pa.array(side, type=pa.large_string()) for side in (src, tgt)]
        return cls(arrays[0], arrays[1], sentence_ids(src), sentence_ids(tgt), *_corpus_column([("", len(src))]))

    @classmethod
    def concatenate(cls, parts: Sequence[Pairs]) -> Pairs:
        """Joins parts; corpora with the same name become one."""
        src, tgt = (pa.concat_arrays([getattr(part, side) for part in parts]) for side in SIDE_COLUMNS)
        src_ids, tgt_ids = (np.concatenate([getattr(part, f"{side}_ids") for part in parts]) for side in SIDE_COLUMNS)
        names = list(dict.fromkeys(name for part in parts for name in part.corpora))
        corpus = [np.array([names.index(name) for name in part.corpora], CORPUS_DTYPE)[part.corpus] for part in parts]
        return cls(src, tgt, src_ids, tgt_ids, np.concatenate(corpus), tuple(names))

    def texts(self, rows: np.ndarray | slice = slice(None)) -> tuple[list[str], list[str]]:
        """The source and the target sentences of some rows."""
        rows = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return self.src.take(rows).to_pylist(), self.tgt.take(rows).to_pylist()

    def take(self, rows: np.ndarray) -> Pairs:
        """The pairs of some rows, in their order."""
        texts, ids = (self.src.take(rows), self.tgt.take(rows)), (self.src_ids[rows], self.tgt_ids[rows])
        return Pairs(*texts, *ids, self.corpus[rows], self.corpora)

    def digest(self) -> str:
        """A hash of all sentences and their order."""
        state = xxhash.xxh3_64(self.src_ids.tobytes())
        state.update(self.tgt_ids.tobytes())
        return str(state.hexdigest())


def _corpus_column(counts: Sequence[tuple[str, int]]) -> tuple[np.ndarray, tuple[str, ...]]:
    """`corpus` and `corpora` of pairs stored corpus by corpus, from the name and size of each corpus."""
    names = list(dict.fromkeys(name for name, _ in counts))
    corpus = np.array([names.index(name) for name, _ in counts], dtype=CORPUS_DTYPE)
    return np.repeat(corpus, [count for _, count in counts]), tuple(names)


@dataclass(frozen=True)
class Split:
    """Training and held-out pairs, which share no sentence."""

    train: Pairs
    heldout: Pairs
    counts: dict[str, int]  # pairs read, and dropped by reason
    stages: Sequence[StageConfig] = ()  # stages of the curriculum, with the weights that remain after sampling
    others: Sequence[Split] = ()  # splits of the further languages of a run

    def digest(self) -> str:
        """A hash of all training pairs."""
        return "-".join(split.train.digest() for split in (self, *self.others))


def load_pairs(config: DataConfig, *, langs: tuple[str, str], seed: int) -> Split:
    """Training and held-out pairs of a recipe, without test sentences, empty sides and duplicates."""
    # DataError if a file cannot be read, or there are too few pairs.
    sentences, _ = read_test_sets(find_files(config.exclude, config.root), Path(config.root))
    exclusion = Exclusion(sentences, similarity=0)
    if config.prepared:
        return _load_prepared(config, exclusion, seed)
    counts: Counter[str] = Counter()
    parts = [_keep_usable(name, block, exclusion, counts) for name, block in _read_all(config, langs)]
    if not any(map(len, parts)):
        raise DataError("no usable pair in the training files; expected lines with a source and a target sentence")
    pairs = Pairs.concatenate(parts)
    status = np.zeros(len(pairs), dtype=np.uint8)
    drop_repeats(combine_ids(pairs.src_ids, pairs.tgt_ids), status, PairStatus.duplicate)
    counts["duplicate"] = int((status == PairStatus.duplicate).sum())
    return _split(pairs, status, config, counts, seed)


def _read_all(config: DataConfig, langs: tuple[str, str]) -> Iterator[tuple[str, PairBlock]]:
    """Yields blocks with the name of their corpus; all files are looked up before the first is read."""
    check_format(config.format)
    aligned, files = list(_find_aligned(config, langs)), list(_find_sources(config, langs))
    with counting("reading pairs", sum(source.size for source in (*aligned, *files)), "B") as advance:
        for source in follow(aligned, advance):
            yield from _read_source(source, "aligned")
        for name in config.train:
            if name.startswith(GRAMMAR_PREFIX):
                yield from ((name, rows.parse()[0]) for rows in in_blocks(Row(*pair, 0) for pair in _generate(name)))
        for source in follow(files, advance):
            yield from _read_source(source, config.format)


def _read_source(source: Source, form: str) -> Iterator[tuple[str, PairBlock]]:
    """Yields the blocks of a file; the first line that cannot be read is an error."""
    in_prepared = (source.path.parent / PREPARED_MANIFEST).is_file()
    name = (source.path.parent if in_prepared else source.path).name.split(".")[0]  # tvsub for parallel/tvsub.tsv.xz

    def refuse(line: int, what: str) -> None:
        raise DataError(f"{source.path}:{line}: {what}")

    for raw in read_blocks(source, form, refuse):
        block, problems = raw.parse()
        for problem in problems:
            refuse(*problem)
        yield name, block


def _find_sources(config: DataConfig, langs: tuple[str, str]) -> Iterator[Source]:
    """The files of `data.train`; of prepared folders only the training shards."""
    names = (name for name in config.train if not name.startswith(GRAMMAR_PREFIX))
    for path in find_files(names, config.root, folders=True):
        for source in find_shards(Source(path, *langs)):
            form = guess_format(source) if config.format == "auto" else config.format
            if form in NUMBERED_FORMATS:
                first, second = map(str, config.columns)
                source = Source(source.path, *langs, (first, second))
            if not (path.is_dir() and source.path.name.startswith(HELDOUT_SPLIT)):
                yield source


def _find_aligned(config: DataConfig, langs: tuple[str, str]) -> Iterator[Source]:
    src_files, tgt_files = (find_files(names, config.root) for names in (config.src_files, config.tgt_files))
    if len(src_files) != len(tgt_files):
        raise DataError(
            f"data.src_files matches {len(src_files)} files, data.tgt_files {len(tgt_files)}; "
            "expected the same number of files"
        )
    for src, tgt in zip(src_files, tgt_files, strict=True):
        yield Source(src, *langs, tgt_path=tgt)


def _generate(name: str) -> list[SentencePair]:
    try:
        return generate_pairs(int(name.removeprefix(GRAMMAR_PREFIX)))
    except ValueError as error:
        raise DataError(f"{name}: {error}; expected grammar:COUNT such as grammar:40000") from None


def _keep_usable(name: str, block: PairBlock, exclusion: Exclusion, counts: Counter[str]) -> Pairs:
    """The pairs of a block with text on both sides and no test sentence."""
    full = ~(block.src.blank() | block.tgt.blank())
    counts["read"] += len(block)
    counts["empty side"] += int((~full).sum())
    block = block.take(full)
    src_ids, tgt_ids = block.src.ids(), block.tgt.ids()
    left = ~(exclusion.equal(src_ids) | exclusion.equal(tgt_ids))
    counts["test sentence"] += int((~left).sum())
    block = block.take(left)
    texts = (block.src.to_arrow(), block.tgt.to_arrow())
    return Pairs(*texts, src_ids[left], tgt_ids[left], *_corpus_column([(name, len(block))]))


def _load_prepared(config: DataConfig, exclusion: Exclusion, seed: int) -> Split:
    """Opens a prepared folder; at most `data.heldout` of its held-out pairs are used."""
    folder = Path(config.prepared)
    pairs, heldout = open_prepared(folder)
    counts = Counter({"read": len(pairs) + len(heldout)})
    found = _count_test_sentences(pairs, exclusion) + _count_test_sentences(heldout, exclusion)
    if found:
        raise DataError(
            f"{folder}: pairs with a sentence of data.exclude: {found}; expected none: prepare the pairs again with "
            "these files in exclude.files"
        )
    status = np.zeros(len(pairs), dtype=np.uint8)
    if not len(heldout):
        return _split(pairs, status, config, counts, seed)
    if config.heldout < len(heldout):
        used = np.zeros(len(heldout), dtype=np.uint8)
        keep_sample(used, slice(0, len(heldout)), config.heldout, [seed, 2])
        counts["held out, not used"] = len(heldout) - config.heldout
        heldout = heldout.take(np.flatnonzero(used == PairStatus.train))
    return _sample(pairs, heldout, status, config, counts, seed)


def _count_test_sentences(pairs: Pairs, exclusion: Exclusion) -> int:
    """Number of pairs with a test sentence."""
    found = 0
    for part in slices(len(pairs)):
        found += int((exclusion.equal(pairs.src_ids[part]) | exclusion.equal(pairs.tgt_ids[part])).sum())
    return found


def _split(pairs: Pairs, status: np.ndarray, config: DataConfig, counts: Counter[str], seed: int) -> Split:
    """Holds out pairs, and samples the rest."""
    hold_out((pairs.src_ids, pairs.tgt_ids), status, config.heldout, [seed, 0])
    counts["shares a held-out sentence"] = int((status == PairStatus.shares_heldout).sum())
    return _sample(pairs, pairs.take(np.flatnonzero(status == PairStatus.heldout)), status, config, counts, seed)


def _sample(
    pairs: Pairs, heldout: Pairs, status: np.ndarray, config: DataConfig, counts: Counter[str], seed: int
) -> Split:
    """Keeps `data.max_pairs` of the training pairs."""
    left = count_training(status)
    stages: Sequence[StageConfig] = config.curriculum
    if config.sampling != 1:
        sizes = np.bincount(pairs.corpus[status == PairStatus.train], minlength=len(pairs.corpora))
        stages = temper_weights(
            stages or [StageConfig()], dict(zip(pairs.corpora, sizes, strict=True)), config.sampling
        )
    if stages:
        stages = sample_curriculum(pairs, status, stages, config.max_pairs, [seed, 1])
    elif 0 < config.max_pairs < left:
        keep_sample(status, slice(0, len(status)), config.max_pairs, [seed, 1])
    sampled = count_training(status)
    if sampled < left:
        counts["not sampled"] = left - sampled
    train = pairs.take(np.flatnonzero(status == PairStatus.train)) if sampled < len(pairs) else pairs
    counts["held out"], counts["train"] = len(heldout), len(train)
    return Split(train, heldout, dict(counts), stages)


def open_prepared(folder: Path) -> tuple[Pairs, Pairs]:
    """Memory-maps the training and held-out pairs of a prepared folder, which is unpacked the first time."""
    manifest = read_prepared_manifest(folder)
    mapped = folder / MAPPED_FOLDER
    shards = json.dumps(manifest["shards"])

    def is_unpacked() -> bool:
        return (mapped / MAPPED_SHARDS).is_file() and (mapped / MAPPED_SHARDS).read_text() == shards

    if not is_unpacked():
        for shard in manifest["shards"]:
            path = folder / shard["path"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise DataError(f"{path}: missing, or not as in the manifest; prepare the pairs again")
        with FileLock(folder / UNPACKING_LOCK):  # of several runs that start at once, one unpacks and the others wait
            if not is_unpacked():
                with new_folder(mapped) as new:
                    for split in (TRAIN_SPLIT, HELDOUT_SPLIT):
                        names = [shard["path"] for shard in manifest["shards"] if shard["path"].startswith(split)]
                        _unpack([folder / name for name in names], new, split)
                    (new / MAPPED_SHARDS).write_text(shards)
    return _map_split(mapped, TRAIN_SPLIT, manifest), _map_split(mapped, HELDOUT_SPLIT, manifest)


def _unpack(paths: list[Path], folder: Path, split: str) -> None:
    """Writes three files per side: UTF-8 text, the offsets of the sentences in it, and ids."""
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    names = [f"{side}.{kind}" for side in SIDE_COLUMNS for kind in ("text", "offsets", "ids")]
    position = dict.fromkeys(SIDE_COLUMNS, 0)
    with counting(f"unpacking {split} pairs", rows, " pairs") as advance, ExitStack() as stack:
        streams = {name: stack.enter_context((folder / f"{split}.{name}").open("wb")) for name in names}
        for side in SIDE_COLUMNS:
            streams[f"{side}.offsets"].write(bytes(8))
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches(UNPACKED_ROWS, columns=list(SIDE_COLUMNS)):
                for side in SIDE_COLUMNS:
                    texts = batch.column(side).to_pylist()
                    encoded = [text.encode() for text in texts]
                    ends = position[side] + np.cumsum([len(text) for text in encoded], dtype="<i8")
                    position[side] = int(ends[-1])
                    streams[f"{side}.text"].write(b"".join(encoded))
                    streams[f"{side}.offsets"].write(ends.tobytes())
                    streams[f"{side}.ids"].write(sentence_ids(texts).astype("<i8").tobytes())
                advance(len(batch))


def _map_split(folder: Path, split: str, manifest: dict[str, Any]) -> Pairs:
    counts = [(corpus["name"], corpus[split]) for corpus in manifest["corpora"]]  # shards are stored corpus by corpus
    rows = sum(count for _, count in counts)
    texts, ids = [], []
    for side in SIDE_COLUMNS:
        offsets, text, own_ids = (_map_file(folder / f"{split}.{side}.{kind}") for kind in ("offsets", "text", "ids"))
        texts.append(pa.LargeStringArray.from_buffers(rows, offsets, text))
        ids.append(np.frombuffer(own_ids, dtype="<i8"))
    return Pairs(texts[0], texts[1], ids[0], ids[1], *_corpus_column(counts))


def _map_file(path: Path) -> pa.Buffer:
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


class WeightedRows(NamedTuple):
    """Pairs of the same weight."""

    rows: np.ndarray
    weight: float  # uses of each pair per pass: 0.25 is every fourth pass, 2 is twice per pass


def stage_rows(pairs: Pairs, stages: Sequence[StageConfig], number: int) -> list[WeightedRows]:
    """The pairs that stage `number` of a curriculum uses, by weight; weights are above 0."""
    weights = _corpus_weights(pairs, stages)[number][pairs.corpus]  # (n,)
    weights[_too_long(pairs, stages[number])] = 0
    return [WeightedRows(np.flatnonzero(weights == weight), float(weight)) for weight in np.unique(weights) if weight]


def temper_weights(stages: Sequence[StageConfig], sizes: Mapping[str, int], exponent: float) -> list[StageConfig]:
    """Stages that sample corpora in proportion to size ** exponent times their weights; passes keep their length."""
    total, powers = sum(sizes.values()), {name: size**exponent for name, size in sizes.items() if size}
    factors = {name: total * power / sum(powers.values()) / sizes[name] for name, power in powers.items()}
    return [
        replace(stage, weights=stage.weights | {name: stage.weights.get(name, 1.0) * factors[name] for name in factors})
        for stage in stages
    ]


def sample_curriculum(
    pairs: Pairs, status: np.ndarray, stages: Sequence[StageConfig], most: int, seed: Sequence[int]
) -> Sequence[StageConfig]:
    """Keeps the pairs that any stage uses, or a sample of `most` pairs; changes `status` (n,) in place."""
    # Returns the stages with the weights that remain to be applied to the sample. The probability of a pair is
    # proportional to its largest weight, so that a small corpus with a large weight is not lost among large ones.
    weights = _corpus_weights(pairs, stages)  # (S, C)
    used = np.zeros(len(pairs), dtype=bool)
    for own, stage in zip(weights, stages, strict=True):
        fits = ~_too_long(pairs, stage)
        own[np.bincount(pairs.corpus[fits], minlength=len(own)) == 0] = 0
        used |= (own > 0)[pairs.corpus] & fits
    status[(status == PairStatus.train) & ~used] = PairStatus.not_sampled
    left = np.flatnonzero(status == PairStatus.train)
    if not 0 < most < len(left):
        return stages
    largest = weights.max(axis=0)  # (C,)
    available = np.bincount(pairs.corpus[left], minlength=len(largest))
    shares = allot(available.tolist(), [0] * len(largest), (available * largest).tolist(), most)
    generator = np.random.default_rng(seed)
    status[left] = PairStatus.not_sampled
    for corpus, count in enumerate(shares):
        own = left[pairs.corpus[left] == corpus]
        status[generator.choice(own, count, replace=False, shuffle=False)] = PairStatus.train
    rest = (
        weights / np.where(largest, largest, 1) * _repeats(np.array(shares), available, available * largest)
    ).tolist()
    new_weights = [dict(zip(pairs.corpora, own, strict=True)) for own in rest]
    return [replace(stage, weights=own) for stage, own in zip(stages, new_weights, strict=True)]


def _repeats(kept: np.ndarray, available: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """How often to use each pair of a sample, by corpus (C,): more than once if a corpus is too small for its goal."""
    whole = (kept == available) & (available > 0)
    unit = goals[~whole].sum() / max(1, kept[~whole].sum())  # uses per sampled pair of the other corpora
    return np.where(whole, goals / np.maximum(kept, 1) / unit, 1.0)


def _corpus_weights(pairs: Pairs, stages: Sequence[StageConfig]) -> np.ndarray:
    """How often each stage uses a pair of each corpus in one pass, shape (S, C)."""
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
