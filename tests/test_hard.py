"""Hard negatives: which keys they are, where they go, and runs that use them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualmoco.cli.demo import read_demo_pairs
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import ConfigError
from dualmoco.core.vectors import unit_vectors
from dualmoco.data.pairs import Pairs
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.store import ShardedVectors, open_store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.models.load import open_model
from dualmoco.search.exact import Neighbors
from dualmoco.search.ivf import scan_lists
from dualmoco.training import frozen as hard
from dualmoco.training.batches import ShardSpec, order_pairs
from dualmoco.training.config import TrainConfig
from dualmoco.training.frozen import (
    HARD_NEGATIVES_FILE,
    NO_NEIGHBOR,
    FrozenKeys,
    HardNegatives,
    OneSidedLoader,
    find_hard_negatives,
    open_hard_negatives,
)
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train

HARD = 3
FROZEN = ["src.kind=pretrained", "src.name=a", "src.frozen=true"]


@pytest.fixture
def keys(tmp_path: Path) -> FrozenKeys:
    """English keys of sentences of the demo, one of which has two translations and one nearly a double."""
    pairs = [(pair.src, pair.tgt) for pair in read_demo_pairs()[:80]]
    rows = [*pairs, (pairs[0][0], "又一句。"), (pairs[1][0].rstrip(".!?") + "!!", "再一句。")]
    text = tmp_path / "keys.txt"
    text.write_text("".join(f"{src}\n" for src, _ in rows), encoding="utf-8")
    form = StoreForm(VectorPrecision.fp32)
    store = encode_file(TextFile(text, "en"), tmp_path / "keys", open_model("en-zh-static"), form)
    return FrozenKeys(store, Pairs.from_texts(rows), "src")


@pytest.fixture
def found(keys: FrozenKeys, tmp_path: Path) -> HardNegatives:
    """The three of each key."""
    find_hard_negatives(keys, HARD, tmp_path)
    return open_hard_negatives(keys, tmp_path)


def test_they_are_the_nearest_keys_that_mean_something_else(keys: FrozenKeys, found: HardNegatives) -> None:
    """By a loop over all cosines: never the key itself, never one nearly the same, the nearest of all others."""
    vectors = keys.vectors[np.arange(len(keys.vectors))].astype(np.float64)
    cosines = vectors @ vectors.T
    left_out = 0
    for row, near in enumerate(found.near.tolist()):
        fitting = [other for other in np.argsort(-cosines[row]) if other != row and cosines[row, other] < 0.9]
        left_out += int((cosines[row] >= 0.9).sum()) - 1
        assert np.allclose(cosines[row, near], cosines[row, fitting[:HARD]], atol=1e-5)
        assert len(set(near)) == HARD and row not in near
    assert left_out >= 2  # the sentence that differs by a mark, both ways


def test_they_are_added_to_the_random_negatives(keys: FrozenKeys, found: HardNegatives) -> None:
    """A step has the pairs of all hard negatives of its batch, none of them twice; pairs of one text share a key."""
    pairs = Pairs.from_texts([(f"{row}", f"{row}") for row in range(len(keys))])
    config = replace(TrainConfig(), contrast=replace(TrainConfig().contrast, queue_size=10))
    order = order_pairs(pairs, 12, seed=0, bucket=1, frozen="src")
    steps = OneSidedLoader(config, pairs, order, keys, lambda texts: {}, ShardSpec(), found)
    for step in range(5):
        rows = order.rows(step)
        negatives = steps.negative_rows(step, rows)
        wanted = {store_row for pair in rows for store_row in found.near[keys.lines[pair]].tolist()}
        assert wanted <= set(keys.lines[negatives].tolist())
        assert len(set(negatives.tolist())) == len(negatives) <= 10 + len(wanted)


def test_many_keys_are_searched_approximately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Above a size, most of the neighbours of exact search are found, and the log says how many."""
    pytest.importorskip("faiss")
    generator = np.random.default_rng(4)
    middles = generator.standard_normal((60, 16))
    vectors = unit_vectors((middles[np.arange(6000) % 60] + generator.standard_normal((6000, 16))).astype(np.float32))
    np.save(tmp_path / "keys.npy", vectors)
    stored = ShardedVectors([tmp_path / "keys.npy"], 16)
    exact = hard.neighbor_keys(stored, 8)
    assert "found" not in caplog.text
    monkeypatch.setattr(hard, "EXACT_KEYS", 5999)
    calls: list[int] = []
    monkeypatch.setattr(hard, "scan_lists", partial(_counted, calls, scan_lists))
    with caplog.at_level("INFO", logger="dualmoco"):
        found = hard.neighbor_keys(stored, 8)
    same = [len(set(a) & set(b)) for a, b in zip(found.ids.tolist(), exact.ids.tolist(), strict=True)]
    assert len(calls) == 1 and 0.9 < sum(same) / (6000 * 8) < 1
    said = float(caplog.text.partition("found ")[2].partition(" %")[0])
    assert said == pytest.approx(100 * sum(same) / (6000 * 8), abs=1.5)
    np.testing.assert_allclose(found.scores, np.einsum("nd,nkd->nk", vectors, vectors[found.ids]), atol=2e-6)


def _counted(calls: list[int], usual: Any, *given: Any, **named: Any) -> Any:
    calls.append(1)
    return usual(*given, **named)


def test_places_that_no_key_fills_are_none(keys: FrozenKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An approximate search may find fewer keys than asked for."""
    count = len(keys.vectors)
    lonely = Neighbors(np.tile([1, 2, 0], (count, 1)), np.tile([0.5, -np.inf, -np.inf], (count, 1)))
    monkeypatch.setattr(hard, "neighbor_keys", lambda vectors, k: lonely)
    find_hard_negatives(keys, HARD, tmp_path)
    near = open_hard_negatives(keys, tmp_path).near
    assert near[0].tolist() == [1, NO_NEIGHBOR, NO_NEIGHBOR] and set(near[1].tolist()) == {NO_NEIGHBOR}


def test_keys_without_neighbours_have_none(keys: FrozenKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all others are too close nothing is added."""
    monkeypatch.setattr(hard, "SAME_MEANING", -1.0)
    find_hard_negatives(keys, HARD, tmp_path)
    none = open_hard_negatives(keys, tmp_path)
    assert (none.near == NO_NEIGHBOR).all() and len(none.of(np.arange(12))) == 0


def test_a_run_takes_them_and_keeps_them_for_its_resumption(recipe: Path, plain: Path) -> None:
    """They are searched once; settings and losses are those of a run that was not interrupted."""
    settings = [
        "src.kind=pretrained",
        f"src.name={plain}",
        "src.frozen=true",
        "tgt.projection=16",
        "contrast.hard_negatives=2",
    ]
    train(recipe, *settings, "schedule.steps=2")
    run = recipe.parent / "run"
    near = np.load(run / HARD_NEGATIVES_FILE, allow_pickle=False)
    assert near.shape == (open_store(run / "keys").count, 2)
    written = (run / HARD_NEGATIVES_FILE).stat().st_mtime_ns
    train(recipe, *settings, "schedule.steps=2", resume=True)
    assert (run / HARD_NEGATIVES_FILE).stat().st_mtime_ns == written


@pytest.mark.parametrize("given", [2, -1])
def test_they_need_a_frozen_side(recipe: Path, given: int) -> None:
    """One line says so before any work."""
    with pytest.raises(
        ConfigError, match=f"hard_negatives is {given}; expected 0, or more if src.frozen or tgt.frozen"
    ):
        load_config(recipe, [f"contrast.hard_negatives={given}"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([*FROZEN, "contrast.mask_repeats=false"], r"mask_repeats is False; expected true when src\.frozen"),
        (
            ["src.entry_vectors=en-zh-static"],
            r"src\.entry_vectors is 'en-zh-static'; expected nothing unless src\.kind",
        ),
    ],
)
def test_settings_that_belong_elsewhere(recipe: Path, settings: list[str], expected: str) -> None:
    """One line names the key and what it needs."""
    with pytest.raises(ConfigError, match=expected):
        load_config(recipe, settings)
