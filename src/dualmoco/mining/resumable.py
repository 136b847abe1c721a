"""A scan that can be resumed: candidates of finished blocks on disk, in a folder of this very scan.

Candidates of every run of rows lie in a file that says which blocks are in it; blocks that are missing are scanned. The
folder's name is a digest of all that decides the candidates, the cut into blocks included, so that another scan's files
are never read. Takes a `Plan` and `Scanning`, gives files of candidates. Shapes: n rows, c candidates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.storage import file_sha256, write_bytes
from dualmoco.core.version import VERSION
from dualmoco.embeddings.engines.engine import Engine
from dualmoco.mining.blocks import Plan, Scanning
from dualmoco.search.candidates import SPARE, Candidates

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
        sides=[(side.sha256, side.shape) for side in (work.src, work.tgt)], kept=work.k + SPARE,
        runs=[[run.stop for run in side] for side in (plan.src, plan.tgt)],
        lists=file_sha256(work.lists) if work.lists else None,
    )  # fmt: skip
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
