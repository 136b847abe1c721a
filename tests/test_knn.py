"""Scanning in blocks: exact however the work is cut, resumed only where it is the very same scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualmoco.core.progress import Progress
from dualmoco.core.vectors import unit_vectors
from dualmoco.embeddings.engine import LocalEngine, Work
from dualmoco.embeddings.store import ShardedVectors
from dualmoco.mining.knn import make_plan, probe_stores, scan_stores
from dualmoco.search.exact import nearest_both_ways


def shards(folder: Path, count: int, seed: int, parts: int = 3) -> ShardedVectors:
    """Random unit vectors in several files."""
    vectors = unit_vectors(np.random.default_rng(seed).standard_normal((count, 12)).astype(np.float32))
    paths = []
    for number, part in enumerate(np.array_split(vectors, parts)):
        paths.append(folder / f"{seed}-{number}.npy")
        np.save(paths[-1], part)
    return ShardedVectors(paths, 12)


class Stopping(LocalEngine):
    """Stops after some blocks, as a killed process does."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Scans until it stops."""
        for found in super().run(work, pieces, progress):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield found


class Backwards(LocalEngine):
    """Does the last piece first."""

    def run(self, work: Work, pieces: Iterable[tuple[int, Any]], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Scans."""
        yield from super().run(work, list(pieces)[::-1], progress)


@pytest.mark.parametrize("memory", [1, 100_000_000])
def test_scanning_in_blocks_is_searching_everything(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the rectangle is cut, and in whichever order blocks come."""
    monkeypatch.setattr("dualmoco.mining.knn.BLOCK_FLOPS", 2 * 12 * 1024 * 2100)
    src, tgt = shards(tmp_path, 2500, 1), shards(tmp_path, 2100, 2)
    plan = make_plan(src.shape, tgt.shape, 3, memory)
    assert len(plan.blocks()) == (9 if memory == 1 else 4)
    expected = nearest_both_ways(src[:], tgt[:], 3)

    for engine in (LocalEngine(), Backwards()):
        found = scan_stores(src, tgt, 3, tmp_path / type(engine).__name__, engine, memory=memory)
        for near, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(near.ids, right.ids)
            np.testing.assert_array_equal(near.scores, right.scores)


def test_scanning_equal_vectors(tmp_path: Path) -> None:
    """More copies of a vector than candidates are kept: the unsure rows of every block are searched again."""
    vectors = unit_vectors(np.random.default_rng(0).standard_normal((9, 12)).astype(np.float32))
    sides = []
    for name, rows in (("src", np.arange(2200) % 9), ("tgt", np.arange(2100) % 7)):
        np.save(tmp_path / f"{name}.npy", vectors[rows])
        sides.append(ShardedVectors([tmp_path / f"{name}.npy"], 12))
    found = scan_stores(sides[0], sides[1], 3, tmp_path / "scan", LocalEngine(), memory=1)
    for near, right in zip(found, nearest_both_ways(sides[0][:], sides[1][:], 3), strict=True):
        np.testing.assert_array_equal(near.ids, right.ids)


def test_scanning_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    """Finished blocks are not scanned again; a damaged one is."""
    src, tgt = shards(tmp_path, 2500, 1), shards(tmp_path, 2100, 2)
    expected = nearest_both_ways(src[:], tgt[:], 3)
    folder = tmp_path / "scan"
    with pytest.raises(KeyboardInterrupt):
        scan_stores(src, tgt, 3, folder, Stopping(4), memory=1)
    (scanned,) = folder.iterdir()
    (scanned / "src-00001.safetensors").unlink()
    (scanned / "tgt-00001.safetensors").write_bytes(b"damaged")
    counted = Stopping(7)
    found = scan_stores(src, tgt, 3, folder, counted, memory=1)
    assert counted.left == 0  # nine blocks: four were done, one of them is in the removed file, one in the damaged
    for near, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(near.ids, right.ids)


@pytest.mark.parametrize(
    ("rows", "expected"), [((10**8, 10**8), (358, 358)), ((10**7, 50), (3, 1)), ((9, 10**9), (1, 224))]
)
def test_blocks_are_nearly_square(rows: tuple[int, int], expected: tuple[int, int]) -> None:
    """Files of candidates are rewritten for every block, so a block is as long on both sides as its time allows."""
    plan = make_plan((rows[0], 384), (rows[1], 384), 3, 1 << 30)
    assert (len(plan.src), len(plan.tgt)) == expected
    assert sum(run.stop - run.start for run in plan.tgt) == rows[1] and len(plan.blocks()) == expected[0] * expected[1]


CHANGES: dict[str, tuple[str, object]] = {
    "shorter runs": ("dualmoco.mining.knn.LEAST_ROWS", 512),
    "longer runs": ("dualmoco.mining.knn.LEAST_ROWS", 2048),
    "another version": ("dualmoco.mining.knn.VERSION", "99"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_scan_of_another_plan_is_not_resumed(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of an interrupted scan that was cut otherwise, or made by another version, are not mixed in."""
    src, tgt = shards(tmp_path, 2500, 1), shards(tmp_path, 2100, 2)
    folder = tmp_path / "scan"
    with pytest.raises(KeyboardInterrupt):
        scan_stores(src, tgt, 3, folder, Stopping(4), memory=1)
    monkeypatch.setattr(*CHANGES[change])
    counted = Stopping(1000)
    found = scan_stores(src, tgt, 3, folder, counted, memory=1)
    assert 1000 - counted.left == len(make_plan(src.shape, tgt.shape, 3, 1).blocks())
    for near, right in zip(found, nearest_both_ways(src[:], tgt[:], 3), strict=True):
        np.testing.assert_array_equal(near.ids, right.ids)
        np.testing.assert_array_equal(near.scores, right.scores)


def test_a_scan_of_other_vectors_is_not_resumed(tmp_path: Path) -> None:
    """As many vectors of another model, back-end or precision are another scan."""
    src, tgt, other = (shards(tmp_path, 2500, seed) for seed in (1, 2, 3))
    scan_stores(src, tgt, 3, tmp_path / "scan", LocalEngine(), memory=1)
    counted = Stopping(1000)
    found = scan_stores(other, tgt, 3, tmp_path / "scan", counted, memory=1)
    assert counted.left == 1000 - 9
    np.testing.assert_array_equal(found[0].ids, nearest_both_ways(other[:], tgt[:], 3)[0].ids)


@pytest.mark.parametrize("change", CHANGES)
def test_an_approximate_search_of_another_plan_is_not_resumed(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No candidate comes twice: with every list visited, the neighbours are exact after a change as well."""
    pytest.importorskip("faiss")
    src, tgt = shards(tmp_path, 2500, 1), shards(tmp_path, 2100, 2)
    with pytest.raises(KeyboardInterrupt):
        probe_stores(src, tgt, 3, 10_000, tmp_path / "probe", Stopping(12), memory=1)
    monkeypatch.setattr(*CHANGES[change])
    found = probe_stores(src, tgt, 3, 10_000, tmp_path / "probe", LocalEngine(), memory=1)
    for near, right in zip(found, nearest_both_ways(src[:], tgt[:], 3), strict=True):
        np.testing.assert_array_equal(near.ids, right.ids)
