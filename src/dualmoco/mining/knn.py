"""Finds the nearest neighbours of every sentence on the other side, exactly or approximately, and can be resumed.

The similarities of n sources and m targets form a rectangle. A plan cuts it into blocks, an engine scans the blocks
anywhere and in any order, and the best candidates of each run of rows are kept in a file on disk. The plan depends only
on the sizes. Shapes: n sources, m targets, D dimension, k neighbours.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dualmoco.core import VERSION
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError
from dualmoco.core.progress import Progress, counting
from dualmoco.core.storage import file_sha256, write_bytes
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.engine import Engine
from dualmoco.embeddings.store import SHARD_ROWS, ShardedVectors, Store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.margins import Margin, Retrieval
from dualmoco.models.model import Model
from dualmoco.search.exact import SPARE, UNSEEN, Block, Candidates, Neighbors, nearest, rerank, scan
from dualmoco.search.ivf import PROBED_LISTS_PER_ROOT, ProbedLists, default_lists, sampled_recall, scan_lists

DEFAULT_MEMORY = 1 << 30  # bytes
DEFAULT_PROBES = 14
CANDIDATE_BYTES = 12  # a score and an id
CANDIDATE_COPIES = 4  # in memory at once: candidates of both sides of a block, and those they are merged with
LEAST_ROWS = 1024
BLOCK_FLOPS, MAX_BLOCK_FLOPS = 2e12, 6e13  # half a minute on two cores; a quarter of an hour for a cluster
MANY_BLOCKS = 20_000  # blocks grow beyond this number, because each costs network traffic

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MiningSettings:
    """Checked options of mining."""

    precision: VectorPrecision = VectorPrecision.fp32
    margin: Margin = Margin.distance
    k: int = 3
    retrieval: Retrieval = Retrieval.max
    threshold: float | None = None
    """Lowest score to accept; None accepts all pairs, unless a calibration sets a threshold."""
    approximate: bool = False
    probes: int = DEFAULT_PROBES
    memory: int = DEFAULT_MEMORY
    shard_rows: int = SHARD_ROWS

    @property
    def form(self) -> StoreForm:
        """Precision and shard size of stored vectors."""
        return StoreForm(self.precision, self.shard_rows)


def encode_sides(
    texts: Sequence[TextFile], model: Model, settings: MiningSettings, work: Path, engine: Engine
) -> list[Store]:
    """Encodes the source text and the target text into folders of the work folder."""
    return [
        encode_file(text, work / name, model, settings.form, engine)
        for name, text in zip(("src", "tgt"), texts, strict=True)
    ]


def find_neighbors(
    stores: Sequence[Store], settings: MiningSettings, work: Path, engine: Engine
) -> tuple[Neighbors, Neighbors, float | None]:
    """Neighbours of the sources and of the targets, and their recall if they are approximate."""
    src, tgt = stores[0].vectors(), stores[1].vectors()
    if not settings.approximate:
        return *scan_stores(src, tgt, settings.k, work / "scan", engine, memory=settings.memory), None
    src_near, tgt_near = probe_stores(
        src, tgt, settings.k, settings.probes, work / "probe", engine, memory=settings.memory
    )
    recall = sampled_recall(src_near, src, tgt)
    logger.info("approximate search: found %.1f %% of the true neighbours of a sample", 100 * recall)
    return src_near, tgt_near, recall


def scan_stores(
    src: ShardedVectors, tgt: ShardedVectors, k: int, folder: Path, engine: Engine, *, memory: int = DEFAULT_MEMORY
) -> tuple[Neighbors, Neighbors]:
    """Exact neighbours of every source (n, D) and every target (m, D), the same for any memory (bytes) and engine."""
    plan = make_plan(src.shape, tgt.shape, k, memory)
    src_files, tgt_files = scan_blocks(Scanning(src, tgt, k), plan, folder, engine)
    src_near = [
        rerank(file.candidates(), _Run(src, run), tgt, k) for file, run in zip(src_files, plan.src, strict=True)
    ]
    tgt_near = [
        rerank(file.candidates(), _Run(tgt, run), src, k) for file, run in zip(tgt_files, plan.tgt, strict=True)
    ]
    return Neighbors.concatenate(src_near), Neighbors.concatenate(tgt_near)


def probe_stores(
    src: ShardedVectors,
    tgt: ShardedVectors,
    k: int,
    probes: int,
    folder: Path,
    engine: Engine,
    *,
    memory: int = DEFAULT_MEMORY,
) -> tuple[Neighbors, Neighbors]:
    """Approximate neighbours of every source and every target, by inverted lists, `probes` per row on average.

    Sources probe the lists of the targets, and targets those of the sources. Retrieval is symmetrized, so a translation
    is missed only if neither side finds it.
    """
    count = default_lists(max(len(src), len(tgt)), PROBED_LISTS_PER_ROOT)
    compared = min(1.0, probes / count + count / max(len(src), len(tgt)))
    plan = make_plan(src.shape, tgt.shape, k, memory, compared)
    src_files, tgt_files = (
        scan_blocks(Scanning(queries, keys, k, _train_lists(queries, keys, probes, folder)), cut, folder, engine)[0]
        for queries, keys, cut in ((src, tgt, plan), (tgt, src, Plan(plan.tgt, plan.src)))
    )
    return (
        _rerank_probed(src_files, _stack(tgt_files).transposed(len(src)), plan.src, src, tgt, k),
        _rerank_probed(tgt_files, _stack(src_files).transposed(len(tgt)), plan.tgt, tgt, src, k),
    )


def _train_lists(src: ShardedVectors, tgt: ShardedVectors, probes: int, folder: Path) -> Path:
    """The file of the targets' inverted lists, which are trained if the file is missing or damaged."""
    path = folder / f"{_digest(sides=[(side.sha256, side.shape) for side in (src, tgt)], probes=probes)}.lists"
    try:
        ProbedLists.load(path)
    except DataError:
        with counting("training lists", len(tgt), " rows") as progress:
            ProbedLists.train(src, tgt, probes, progress).save(path)
    return path


def _rerank_probed(
    files: Sequence[RunFile],
    others: Candidates,
    runs: Sequence[slice],
    queries: ShardedVectors,
    keys: ShardedVectors,
    k: int,
) -> Neighbors:
    """The best k of both candidates and `others`; rows with fewer candidates are searched exhaustively."""
    k = min(k, len(keys))
    parts = []
    for file, run in zip(files, runs, strict=True):
        found = file.candidates().union(Candidates(others.scores[run], others.ids[run]))
        rows = _Run(queries, run)
        near = rerank(found, rows, keys, k, exact=False)
        short = np.flatnonzero((found.scores > UNSEEN).sum(axis=1) < k)
        if len(short):
            again = nearest(rows[short], keys, k)
            near.ids[short], near.scores[short] = again.ids, again.scores
        parts.append(near)
    return Neighbors.concatenate(parts)


def _stack(files: Sequence[RunFile]) -> Candidates:
    """The candidates of all runs of a side, shape (n, c)."""
    parts = [file.candidates() for file in files]
    return Candidates(np.concatenate([part.scores for part in parts]), np.concatenate([part.ids for part in parts]))


class _Run:
    """A run of rows of a store, as `VectorRows`."""

    def __init__(self, vectors: ShardedVectors, run: slice) -> None:
        self.vectors, self.run = vectors, run

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.vectors.dimension

    def __len__(self) -> int:
        return int(self.run.stop - self.run.start)

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, slice):
            return self.vectors[np.asarray(rows) + self.run.start]
        start, stop, _ = rows.indices(len(self))
        return self.vectors[self.run.start + start : self.run.start + stop]


@dataclass(frozen=True)
class Plan:
    """Runs of sources and runs of targets; each run of sources with each run of targets is a block."""

    src: Sequence[slice]
    tgt: Sequence[slice]

    def blocks(self) -> list[Block]:
        """All blocks; block number b has source run b % len(src) and target run b // len(src)."""
        return [Block(rows, columns) for columns in self.tgt for rows in self.src]


def make_plan(src: tuple[int, int], tgt: tuple[int, int], k: int, memory: int, compared: float = 1.0) -> Plan:
    """Cuts the rectangle into nearly square blocks that fit into memory and take half a minute each, more if many."""
    most = max(LEAST_ROWS, memory // (CANDIDATE_COPIES * (k + SPARE) * CANDIDATE_BYTES))
    per_pair = 2 * src[1] * compared
    pairs = min(max(BLOCK_FLOPS, src[0] * tgt[0] * per_pair / MANY_BLOCKS), MAX_BLOCK_FLOPS) / per_pair
    rows = _run_length(src[0], most, pairs**0.5)
    columns = _run_length(tgt[0], most, pairs / rows)
    rows = _run_length(src[0], most, pairs / columns)
    return Plan(_cut(src[0], rows), _cut(tgt[0], columns))


def _run_length(total: int, most: int, wanted: float) -> int:
    return min(total, most, max(LEAST_ROWS, int(wanted)))


def _cut(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


BlockCandidates = tuple[Candidates, Candidates | None]
"""Candidates of the sources of a block, and of its targets unless lists are probed."""


@dataclass(frozen=True)
class Scanning:
    """Work for an engine: find the candidates of blocks."""

    src: ShardedVectors
    tgt: ShardedVectors
    k: int
    lists: Path | None = None
    """File of the targets' inverted lists; a source is compared with the lists that it probes, or with all if None."""
    wants_gpu = False

    def open(self) -> Callable[[Block, Progress], BlockCandidates]:
        """The function that scans a block."""
        if self.lists is None:
            return lambda block, progress: scan(self.src, self.tgt, *block, self.k, progress=progress)
        lists = ProbedLists.load(self.lists)
        return lambda block, progress: (
            scan_lists(self.src, self.tgt, *block, self.k, lists, progress=progress),
            None,
        )

    def opener(self) -> Callable[[], Callable[[Block, Progress], BlockCandidates]]:
        """Opens the files of vectors in another process."""
        src, tgt = ([path.resolve() for path in side.paths] for side in (self.src, self.tgt))
        return partial(_open_scanning, src, tgt, self.src.dimension, self.k, self.lists and self.lists.resolve())

    def size(self, piece: Block) -> int:
        """Number of sources."""
        return int(piece.rows.stop - piece.rows.start)


def _open_scanning(
    src: Sequence[Path], tgt: Sequence[Path], dimension: int, k: int, lists: Path | None
) -> Callable[[Block, Progress], BlockCandidates]:
    for path in (*src, *tgt, *([lists] if lists else [])):
        if not path.is_file():
            host = f"node {socket.gethostname()}"
            raise DataError(f"{path}: not found on {host}; expected a work folder that every node can read (--work)")
    return Scanning(ShardedVectors(src, dimension), ShardedVectors(tgt, dimension), k, lists).open()


class RunFile:
    """The candidates of a run of rows, merged from the blocks that were scanned so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        loaded = self._read() if path.is_file() else None
        self.done = {int(word) for word in loaded[1]["done"].split()} if loaded else set()  # runs of the other side

    def add(self, other: int, found: Candidates) -> None:
        """Adds the candidates of one block; the file on disk is complete at any time."""
        if other in self.done:
            return
        if self.done:
            found = Candidates(np.array(found.scores), np.array(found.ids))  # arrays from another process are read-only
            found.merge(self.candidates())
        self.done.add(other)
        tensors: dict[str, np.ndarray] = {
            "scores": np.ascontiguousarray(found.scores),
            "ids": np.ascontiguousarray(found.ids),
        }
        write_bytes(self.path, save(tensors, {"done": " ".join(map(str, sorted(self.done)))}))

    def candidates(self) -> Candidates:
        """All candidates; DataError if the file was damaged after it was opened."""
        loaded = self._read()
        if loaded is None:
            raise DataError(f"{self.path}: was damaged while in use; run the command again")
        return loaded[0]

    def _read(self) -> tuple[Candidates, dict[str, str]] | None:
        """Candidates and metadata; None if the file is damaged, so that its blocks are scanned again."""
        try:
            with safe_open(self.path, framework="np") as file:
                return Candidates(file.get_tensor("scores"), file.get_tensor("ids")), file.metadata() or {}
        except (OSError, SafetensorError):
            return None


def scan_blocks(
    work: Scanning, plan: Plan, folder: Path, engine: Engine
) -> tuple[Sequence[RunFile], Sequence[RunFile]]:
    """Scans the unfinished blocks; returns a file per run of sources, and of targets (empty if lists are probed)."""
    place = folder / _digest(
        sides=[(side.sha256, side.shape) for side in (work.src, work.tgt)],
        kept=work.k + SPARE,
        runs=[[run.stop for run in side] for side in (plan.src, plan.tgt)],
        lists=file_sha256(work.lists) if work.lists else None,
    )
    src = [RunFile(place / f"src-{number:05d}.safetensors") for number in range(len(plan.src))]
    tgt = [RunFile(place / f"tgt-{number:05d}.safetensors") for number in range(len(plan.tgt))]
    left = []
    for number, block in enumerate(plan.blocks()):
        column, row = divmod(number, len(src))
        if column not in src[row].done or (work.lists is None and row not in tgt[column].done):
            left.append((number, block))
    with counting("scanning", sum(work.size(block) for _, block in left), " rows") as progress:
        for number, (src_found, tgt_found) in engine.run(work, left, progress):
            column, row = divmod(number, len(src))
            src[row].add(column, src_found)
            if tgt_found:
                tgt[column].add(row, tgt_found)
    return src, tgt


def _digest(**decisive: object) -> str:
    """A file name from everything that determines a result, including the version of dualmoco."""
    return hashlib.sha256(json.dumps({"version": VERSION, **decisive}).encode()).hexdigest()[:32]
