"""Tests of approximate neighbours: nothing missed with every list probed, most found with few, on any side alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.embeddings.engine import LocalEngine
from dualmoco.embeddings.store import ShardedVectors
from dualmoco.mining.knn import probe_stores
from dualmoco.search.exact import UNSEEN, Candidates, Neighbors, nearest_both_ways
from dualmoco.search.ivf import PROBED_LISTS_PER_ROOT, ProbedLists, default_lists, sampled_recall, scan_lists

pytest.importorskip("faiss")

DIMENSION = 16


def topics(count: int, seed: int, first: int = 0) -> Vectors:
    """Vectors around 30 directions, of which the first is number `first`."""
    middles = np.random.default_rng(99).standard_normal((100, DIMENSION))[first : first + 30]
    generator = np.random.default_rng(seed)
    near = middles[generator.integers(30, size=count)] + 0.3 * generator.standard_normal((count, DIMENSION))
    return unit_vectors(near.astype(np.float32))


def stored(folder: Path, vectors: Vectors, name: str) -> ShardedVectors:
    """Vectors in two files."""
    paths = [folder / f"{name}.{part}.npy" for part in range(2)]
    for path, part in zip(paths, np.array_split(vectors, 2), strict=True):
        np.save(path, part)
    return ShardedVectors(paths, DIMENSION)


def recall(found: Neighbors, right: Neighbors) -> float:
    """Share of the true neighbours that were found."""
    pairs = zip(found.ids.tolist(), right.ids.tolist(), strict=True)
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in pairs]))


def test_every_list_probed_is_exact(tmp_path: Path) -> None:
    """With as many probes as lists, however the work is cut."""
    src, tgt = stored(tmp_path, topics(2500, 1), "src"), stored(tmp_path, topics(2100, 2), "tgt")
    expected = nearest_both_ways(src[:], tgt[:], 3)
    for memory in (1, 1 << 30):
        found = probe_stores(src, tgt, 3, 10_000, tmp_path / str(memory), LocalEngine(), memory=memory)
        for near, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(near.ids, right.ids)
            np.testing.assert_array_equal(near.scores, right.scores)


def test_blocks_change_nothing() -> None:
    """A pair is compared or not whatever block it is in, so merged blocks hold the whole's candidates."""
    src, tgt = topics(700, 1), topics(600, 2)
    lists = ProbedLists.train(src, tgt, 2, print)
    whole = scan_lists(src, tgt, slice(0, 700), slice(0, 600), 3, lists)
    halves = [scan_lists(src, tgt, slice(0, 700), columns, 3, lists) for columns in (slice(0, 250), slice(250, 600))]
    merged = halves[0]
    merged.merge(halves[1])
    np.testing.assert_allclose(merged.scores, whole.scores, rtol=1e-6)  # sums in fp32
    part = scan_lists(src, tgt, slice(100, 300), slice(0, 600), 3, lists)
    np.testing.assert_allclose(part.scores, whole.scores[100:300], rtol=1e-6)
    counted: list[int] = []
    scan_lists(src, tgt, slice(100, 300), slice(0, 600), 3, lists, progress=counted.append)
    assert sum(counted) == 200


def test_few_lists_find_most(tmp_path: Path) -> None:
    """A part of the comparisons finds nearly all neighbours, both ways, and scores are true cosines."""
    src, tgt = topics(6000, 1), topics(5000, 2)
    sides = stored(tmp_path, src, "src"), stored(tmp_path, tgt, "tgt")
    found = probe_stores(*sides, 3, 4, tmp_path / "probe", LocalEngine())
    assert default_lists(5000, PROBED_LISTS_PER_ROOT) >= 64
    expected = nearest_both_ways(src, tgt, 3)
    for near, right in zip(found, expected, strict=True):
        assert 0.97 < recall(near, right) <= 1
    assert sampled_recall(found[0], src, tgt) == pytest.approx(recall(found[0], expected[0]), abs=0.01)
    np.testing.assert_allclose(found[0].scores[:, 0], (src * tgt[found[0].ids[:, 0]]).sum(axis=1), atol=2e-6)


def test_a_side_that_nobody_finds(tmp_path: Path) -> None:
    """Targets far from all sources still have neighbours, by probing the sources' lists themselves."""
    src = topics(3000, 1)
    tgt = np.concatenate([topics(1500, 2), topics(1500, 3, first=60)])
    sides = stored(tmp_path, src, "src"), stored(tmp_path, tgt, "tgt")
    forward, backward = probe_stores(*sides, 3, 6, tmp_path / "probe", LocalEngine())
    expected = nearest_both_ways(src, tgt, 3)
    assert np.isfinite(forward.scores).all() and np.isfinite(backward.scores).all()
    assert recall(backward, expected[1]) > 0.9 and recall(forward, expected[0]) > 0.97


def test_a_row_whose_lists_hold_too_few_is_searched_everywhere(tmp_path: Path) -> None:
    """One list with one target: its visitors get all the neighbours they asked for."""
    lonely = np.full((1, DIMENSION), 5.0, dtype=np.float32) * np.where(np.arange(DIMENSION) % 2, 1, -1)
    src, tgt = (unit_vectors(np.concatenate([topics(800, seed), lonely]).astype(np.float32)) for seed in (1, 2))
    sides = stored(tmp_path, src, "src"), stored(tmp_path, tgt, "tgt")
    found = probe_stores(*sides, 20, 1, tmp_path / "probe", LocalEngine())
    for near, right in zip(found, nearest_both_ways(src, tgt, 20), strict=True):
        assert np.isfinite(near.scores).all()
        assert all(len(set(ids)) == 20 for ids in near.ids.tolist())
        np.testing.assert_array_equal(near.ids[-1][0], right.ids[-1][0])


def test_what_was_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists and finished blocks are read from the folder; what is damaged there is made again."""
    sides = stored(tmp_path, topics(900, 1), "src"), stored(tmp_path, topics(800, 2), "tgt")
    first = probe_stores(*sides, 3, 2, tmp_path / "probe", LocalEngine())
    with monkeypatch.context() as patch:
        patch.delattr(ProbedLists, "train")
        patch.setattr("dualmoco.mining.knn.scan_lists", None)
        again = probe_stores(*sides, 3, 2, tmp_path / "probe", LocalEngine())
    np.testing.assert_array_equal(first[0].ids, again[0].ids)
    next((tmp_path / "probe").glob("*/src-00000.safetensors")).unlink()
    for path in (tmp_path / "probe").glob("*.lists"):
        path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"\.lists: cannot be read as inverted lists"):
        ProbedLists.load(path)
    again = probe_stores(*sides, 3, 2, tmp_path / "probe", LocalEngine())
    np.testing.assert_array_equal(first[1].ids, again[1].ids)


def test_transposed_candidates() -> None:
    """Every row has the best that found it, and of no more than are kept."""
    scores = np.array([[0.9, 0.5], [0.8, UNSEEN], [0.7, 0.6]], dtype=np.float32)
    found = Candidates(scores, np.array([[0, 1], [0, 0], [0, 2]])).transposed(4)
    assert found.ids[0].tolist() == [0, 1] and found.ids[1, 0] == 0 and found.ids[2, 0] == 2
    np.testing.assert_array_equal(
        found.scores, np.array([[0.9, 0.8], [0.5, UNSEEN], [0.6, UNSEEN], [UNSEEN, UNSEEN]], dtype=np.float32)
    )


def test_union_counts_a_row_once() -> None:
    """A candidate of both is one candidate; a place without one takes none away; the best are kept."""
    one = Candidates(np.array([[0.9, 0.5, UNSEEN]], dtype=np.float32), np.array([[4, 7, 0]]))
    other = Candidates(np.array([[0.9, 0.3, 0.2]], dtype=np.float32), np.array([[4, 0, 2]]))
    both = one.union(other)
    assert both.ids.tolist() == [[4, 7, 0]] and one.scores[0, 2] == UNSEEN
    np.testing.assert_array_equal(both.scores, np.array([[0.9, 0.5, 0.3]], dtype=np.float32))
    assert other.union(one).ids.tolist() == [[4, 7, 0]]
