"""The work of scanning: a rectangle of n sources by m targets, cut into blocks that can be scanned anywhere.

The cut depends on the sizes alone. Shapes: D dimension, k neighbours.
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
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import DataError
from dualmoco.core.progress import Progress, counting
from dualmoco.core.storage import file_sha256, write_bytes
from dualmoco.core.version import VERSION
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.engine import Engine
from dualmoco.embeddings.store import SHARD_ROWS, ShardedVectors, Store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.margins import Margin, Retrieval
from dualmoco.models.model import Model
from dualmoco.search.exact import SPARE, UNSEEN, Candidates, Neighbors, nearest, rerank, scan
from dualmoco.search.ivf import PROBED_LISTS_PER_ROOT, ProbedLists, default_lists, sampled_recall, scan_lists

CANDIDATE_BYTES = 12  # a score and an id
HELD = 4  # candidates of a row held at once: a block's of both sides, and what they are merged with
LEAST_ROWS = 1024
BLOCK_FLOPS = 6e13  # about ten minutes of two cores


class Block(NamedTuple):
    """Some sources against some targets."""

    number: int
    rows: slice
    columns: slice


BlockCandidates = tuple[Candidates, Candidates | None]
"""Candidates of a block's sources, and of its targets unless lists are probed."""


@dataclass(frozen=True)
class Plan:
    """Runs of sources and runs of targets; every pair of runs is a block."""

    src: Sequence[slice]
    tgt: Sequence[slice]

    def blocks(self) -> list[Block]:
        """All blocks, one run of targets after the other."""
        pairs = [(rows, columns) for columns in self.tgt for rows in self.src]
        return [Block(number, rows, columns) for number, (rows, columns) in enumerate(pairs)]

    def place(self, block: Block) -> tuple[int, int]:
        """Which run of sources and which of targets a block is of."""
        return block.number % len(self.src), block.number // len(self.src)

    def turned(self) -> Plan:
        """The same cuts with the sides exchanged."""
        return Plan(self.tgt, self.src)


def make_plan(src: tuple[int, int], tgt: tuple[int, int], k: int, memory: int, compared: float = 1.0) -> Plan:
    """Cuts the work into nearly square blocks that fit the memory and take ten minutes or so.

    Args:
        src: n and D.
        tgt: m and D.
        k: Neighbours wanted.
        memory: Bytes for candidates.
        compared: The share of all pairs that is compared.

    Returns:
        The plan.
    """
    most = max(LEAST_ROWS, memory // (HELD * (k + SPARE) * CANDIDATE_BYTES))
    pairs = BLOCK_FLOPS / (2 * src[1] * compared)
    rows = _run_length(src[0], most, pairs**0.5)
    columns = _run_length(tgt[0], most, pairs / rows)
    return Plan(_cut(src[0], _run_length(src[0], most, pairs / columns)), _cut(tgt[0], columns))


def _run_length(total: int, most: int, wanted: float) -> int:
    return min(total, most, max(LEAST_ROWS, int(wanted)))


def _cut(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


@dataclass(frozen=True)
class Scanning:
    """The work of an engine: candidates of blocks of two sides' vectors."""

    src: ShardedVectors
    tgt: ShardedVectors
    k: int
    lists: Path | None = None
    """File of the targets' inverted lists, from which alone candidates come; everything is compared if None."""
    wants_gpu = False

    def open(self) -> Callable[[Block, Progress], BlockCandidates]:
        """What scans a block."""
        if self.lists is None:
            return lambda block, progress: scan(
                self.src, self.tgt, block.rows, block.columns, self.k, progress=progress
            )
        lists = ProbedLists.load(self.lists)
        return lambda block, progress: (
            scan_lists(self.src, self.tgt, block.rows, block.columns, self.k, lists, progress=progress),
            None,
        )

    def size(self, piece: Block) -> int:
        """Sources."""
        return int(piece.rows.stop - piece.rows.start)

    def opener(self) -> Callable[[], Callable[[Block, Progress], BlockCandidates]]:
        """Opens the files of vectors in another process."""
        src, tgt = ([path.resolve() for path in side.paths] for side in (self.src, self.tgt))
        return partial(_open_scanning, src, tgt, self.src.dimension, self.k, self.lists and self.lists.resolve())


def _open_scanning(
    src: Sequence[Path], tgt: Sequence[Path], dimension: int, k: int, lists: Path | None
) -> Callable[[Block, Progress], BlockCandidates]:
    for path in (*src, *tgt, *([lists] if lists else [])):
        if not path.is_file():
            host = f"node {socket.gethostname()}"
            raise DataError(f"{path}: not found on {host}; expected a work folder that every node sees (--work)")
    return Scanning(ShardedVectors(src, dimension), ShardedVectors(tgt, dimension), k, lists).open()


DIGEST_LENGTH = 32


class RunFile:
    """Candidates of a run of rows among those rows of the other side that were scanned so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[int] = set()  # runs of the other side
        loaded = _read(path) if path.is_file() else None
        if loaded:
            self.done = {int(word) for word in loaded[1]["done"].split()}

    def add(self, other: int, found: Candidates) -> None:
        """Takes the candidates of one more block; the file on disk is always whole."""
        if other in self.done:
            return
        if self.done:
            found.merge(self.candidates())
        self.done.add(other)
        tensors = {"scores": found.scores.contiguous(), "ids": found.ids.contiguous()}
        write_bytes(self.path, save(tensors, {"done": " ".join(map(str, sorted(self.done)))}))

    def candidates(self) -> Candidates:
        """All of them; DataError if the file was damaged in the meantime."""
        loaded = _read(self.path)
        if loaded is None:
            raise DataError(f"{self.path}: was damaged while in use; run the command again")
        return loaded[0]


@dataclass(frozen=True)
class Scanned:
    """Files of candidates, one a run: of the sources, and of the targets if everything is compared."""

    src: Sequence[RunFile]
    tgt: Sequence[RunFile]


def scan_blocks(work: Scanning, plan: Plan, folder: Path, engine: Engine) -> Scanned:
    """Scans the blocks of a plan that are missing.

    Args:
        work: The vectors of both sides, and what is compared.
        plan: The blocks.
        folder: For this and other scans.
        engine: Where blocks are scanned.

    Returns:
        The candidates of all blocks.

    Raises:
        RunError: The disk is full or not writable; finished blocks are kept.
    """
    place = folder / digest(
        sides=[(side.sha256, side.shape) for side in (work.src, work.tgt)],
        kept=work.k + SPARE,
        runs=[[run.stop for run in side] for side in (plan.src, plan.tgt)],
        lists=file_sha256(work.lists) if work.lists else None,
    )
    found = Scanned(
        [RunFile(place / f"src-{number:05d}.safetensors") for number in range(len(plan.src))],
        [RunFile(place / f"tgt-{number:05d}.safetensors") for number in range(len(plan.tgt))],
    )
    left = []
    for block in plan.blocks():
        row, column = plan.place(block)
        if column not in found.src[row].done or (work.lists is None and row not in found.tgt[column].done):
            left.append(block)
    pieces = {block.number: block for block in left}
    with counting("scanning", sum(map(work.size, left)), " rows") as progress:
        for number, (forward, backward) in engine.run(work, pieces.items(), progress):
            row, column = plan.place(pieces[number])
            found.src[row].add(column, forward)
            if backward:
                found.tgt[column].add(row, backward)
    return found


def stacked(files: Sequence[RunFile]) -> Candidates:
    """The candidates of all runs of a side, one run after the other, shape (n, c)."""
    parts = [file.candidates() for file in files]
    return Candidates(torch.cat([part.scores for part in parts]), torch.cat([part.ids for part in parts]))


def digest(**decides: object) -> str:
    """What names a result on disk: all that decides it, and the version that made it."""
    return hashlib.sha256(json.dumps({"version": VERSION, **decides}).encode()).hexdigest()[:DIGEST_LENGTH]


def _read(path: Path) -> tuple[Candidates, dict[str, str]] | None:
    """Candidates and notes of a file; None if it is damaged, so that its blocks are scanned again."""
    try:
        with safe_open(path, framework="pt") as file:
            return Candidates(file.get_tensor("scores"), file.get_tensor("ids")), file.metadata() or {}
    except (OSError, SafetensorError):
        return None


DEFAULT_MEMORY = 1 << 30  # bytes
PROBES = 14
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MiningSettings:
    """How two files are mined."""

    precision: VectorPrecision = VectorPrecision.fp32
    margin: Margin = Margin.distance
    k: int = 3
    retrieval: Retrieval = Retrieval.max
    threshold: float | None = None
    """Lowest score to accept; all pairs if None and nothing calibrates it."""
    approximate: bool = False
    probes: int = PROBES
    memory: int = DEFAULT_MEMORY
    shard_rows: int = SHARD_ROWS

    @property
    def form(self) -> StoreForm:
        """How vectors are stored."""
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
    """Neighbours of two stores both ways, and their recall where they are approximate.

    Args:
        stores: Of the sources and the targets.
        settings: Exact or approximate, k, memory.
        work: Folder for finished blocks.
        engine: Where it runs.

    Returns:
        Neighbours of the sources, of the targets, and the recall.
    """
    src, tgt = stores[0].vectors(), stores[1].vectors()
    if not settings.approximate:
        return *scan_stores(src, tgt, settings.k, work / "scan", engine, memory=settings.memory), None
    forward, backward = probe_stores(
        src, tgt, settings.k, settings.probes, work / "probe", engine, memory=settings.memory
    )
    recall = sampled_recall(forward, src, tgt)
    logger.info("approximate search: %.1f %% of the true neighbours found, on a sample", 100 * recall)
    return forward, backward, recall


def scan_stores(
    src: ShardedVectors, tgt: ShardedVectors, k: int, folder: Path, engine: Engine, *, memory: int = DEFAULT_MEMORY
) -> tuple[Neighbors, Neighbors]:
    """Exact neighbours of every source and every target.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        k: How many neighbours.
        folder: For the candidates of finished blocks, of this scan and of others.
        engine: Where blocks are scanned.
        memory: Bytes for candidates.

    Returns:
        Neighbours of the sources and of the targets, the same for any memory and engine.
    """
    plan = make_plan(src.shape, tgt.shape, k, memory)
    found = scan_blocks(Scanning(src, tgt, k), plan, folder, engine)
    sides = ((found.src, plan.src, src, tgt), (found.tgt, plan.tgt, tgt, src))
    forward, backward = (
        _joined([rerank(file.candidates(), _Run(queries, run), keys, k) for file, run in zip(files, runs, strict=True)])
        for files, runs, queries, keys in sides
    )
    return forward, backward


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
    """Neighbours of every source and every target, some of which may be missed.

    The sources probe inverted lists of the targets, and the targets those of the sources; what has found a row is a
    candidate of that row too. So a translation is missed only if neither side finds it.

    Args:
        src: Unit vectors (n, D).
        tgt: Unit vectors (m, D).
        k: How many neighbours.
        probes: Lists that a row probes on average.
        folder: For lists and candidates of finished blocks, of this search and of others.
        engine: Where blocks are scanned.
        memory: Bytes for candidates.

    Returns:
        Neighbours of the sources and of the targets.

    Raises:
        ConfigError: FAISS is not installed.
    """
    count = default_lists(max(len(src), len(tgt)), PROBED_LISTS_PER_ROOT)
    compared = min(1.0, probes / count + count / max(len(src), len(tgt)))
    plan = make_plan(src.shape, tgt.shape, k, memory, compared)
    there, back = (
        scan_blocks(Scanning(queries, keys, k, _lists(queries, keys, probes, folder)), cut, folder, engine)
        for queries, keys, cut in ((src, tgt, plan), (tgt, src, plan.turned()))
    )
    return (
        _rerank_probed(there.src, stacked(back.src).transposed(len(src)), plan.src, src, tgt, k),
        _rerank_probed(back.src, stacked(there.src).transposed(len(tgt)), plan.tgt, tgt, src, k),
    )


class _Run:
    """Some rows of a store as if they were all."""

    def __init__(self, vectors: ShardedVectors, run: slice) -> None:
        self.vectors, self.run = vectors, run

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.vectors.dimension

    def __len__(self) -> int:
        return _length(self.run)

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, slice):
            return self.vectors[np.asarray(rows) + self.run.start]
        start, stop, _ = rows.indices(len(self))
        return self.vectors[self.run.start + start : self.run.start + stop]


def _lists(src: ShardedVectors, tgt: ShardedVectors, probes: int, folder: Path) -> Path:
    """The file of the targets' inverted lists, made if it is not there or damaged."""
    path = folder / f"{digest(sides=[(side.sha256, side.shape) for side in (src, tgt)], probes=probes)}.lists"
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
    """The best k of a side's own candidates and of others; a row that has fewer is searched everywhere."""
    k = min(k, len(keys))
    parts = []
    for file, run in zip(files, runs, strict=True):
        found = file.candidates().union(Candidates(others.scores[run], others.ids[run]))
        rows = _Run(queries, run)
        near = rerank(found, rows, keys, k, exact=False)
        short = np.flatnonzero(((found.scores > UNSEEN).sum(dim=1) < k).numpy())
        if len(short):
            again = nearest(rows[short], keys, k)
            near.ids[short], near.scores[short] = again.ids, again.scores
        parts.append(near)
    return _joined(parts)


def _joined(parts: Sequence[Neighbors]) -> Neighbors:
    return Neighbors(np.concatenate([near.ids for near in parts]), np.concatenate([near.scores for near in parts]))


def _length(run: slice) -> int:
    return int(run.stop - run.start)
