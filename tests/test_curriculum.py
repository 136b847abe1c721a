"""A curriculum: what its stages take, when they begin, and runs that follow one."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.data.config import CorpusConfig, DataConfig, PrepareConfig, StageConfig
from dualmoco.data.pairs import Pairs, WeightedRows, load_pairs, sample_curriculum, stage_rows, temper_weights
from dualmoco.data.prepare import prepare
from dualmoco.data.staging import PairStatus
from dualmoco.training import trainer as loop
from dualmoco.training.batches import PREFETCH, BatchOrder, Curriculum, PairLoader, order_pairs
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train
from dualmoco.training.run_folder import read_log
from runfolders import assert_same_state

PARTS = st.tuples(st.integers(1, 60), st.sampled_from([0.1, 0.25, 0.5, 1.0, 1.5, 3.0]))


def corpus_of(name: str, count: int, chars: int) -> Pairs:
    """Pairs of one corpus whose longer side has so many characters."""
    made = Pairs.from_texts((f"{name}{i:0{chars - len(name)}d}", f"第{i}句"[: chars - 1]) for i in range(count))
    return Pairs(made.src, made.tgt, made.src_ids, made.tgt_ids, made.corpus, (name,))


@pytest.fixture
def mixed() -> Pairs:
    """300 pairs of three corpora, 100 of 10, 20 and 30 characters each, those of the second in two places."""
    parts = [corpus_of("a", 100, 10), corpus_of("b", 60, 20), corpus_of("c", 100, 30), corpus_of("b", 40, 21)]
    return Pairs.concatenate(parts)


def test_pairs_know_their_corpora(mixed: Pairs) -> None:
    """Corpora of one name are one, also after rows were taken."""
    assert mixed.corpora == ("a", "b", "c")
    assert np.bincount(mixed.corpus).tolist() == [100, 100, 100]
    part = mixed.take(np.array([0, 299, 160]))
    assert [part.corpora[place] for place in part.corpus] == ["a", "b", "c"]


def test_a_stage_takes_pairs_by_length_and_weight(mixed: Pairs) -> None:
    """Both sides must fit; a weight of 0 leaves a corpus out, corpora that are not named have weight 1."""
    stages = [StageConfig(0.5, 20, {"a": 0.25}), StageConfig(1.0, 0, {"b": 0, "c": 2})]
    first, second = (stage_rows(mixed, stages, number) for number in range(2))
    assert [(part.weight, part.rows.tolist()) for part in first] == [
        (0.25, list(range(100))),
        (1.0, list(range(100, 160))),
    ]
    assert [(part.weight, part.rows.tolist()) for part in second] == [
        (1.0, list(range(100))),
        (2.0, list(range(160, 260))),
    ]
    chinese = Pairs.from_texts([("a", "一二三四五"), ("abc", "一")])
    assert stage_rows(chinese, [StageConfig(1.0, 4)], 0)[0].rows.tolist() == [1]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.1, 0.25, 0.5, 1.0, 1.5, 3.0])), min_size=1, max_size=4)
)
def test_an_epoch_takes_rows_as_often_as_their_weight(parts: list[tuple[int, float]]) -> None:
    """Exactly so often in all, no row more than once oftener than another of its corpus, by lot where it is a part."""
    ends = np.cumsum([0, *(count for count, _ in parts)])
    rows = [
        WeightedRows(np.arange(start, end), weight)
        for start, end, (_, weight) in zip(ends, ends[1:], parts, strict=False)
    ]
    total = sum(round(weight * count) for count, weight in parts)
    if total < 1:
        return
    order = BatchOrder(np.ones(int(ends[-1])), 1, seed=3, bucket=1, parts=rows)
    assert order.batches_per_epoch == total
    seen = Counter(int(order.rows(step)[0]) for step in range(total))
    for part in rows:
        counts = [seen[row] for row in part.rows.tolist()]
        assert sum(counts) == round(part.weight * len(counts)) and max(counts) - min(counts) <= 1
    again = [BatchOrder(np.ones(int(ends[-1])), 1, seed=3, bucket=1, parts=rows).rows(step)[0] for step in range(total)]
    assert again == [order.rows(step)[0] for step in range(total)]


def test_stages_begin_when_their_time_has_come() -> None:
    """At the first step whose batch is not made yet; steps before it keep their rows, later ones count from there."""
    orders = [BatchOrder(np.ones(8), 2, seed=seed, bucket=1) for seed in range(3)]
    curriculum = Curriculum(orders, [0.3, 0.5, 1.0], 4)
    before = [curriculum.rows(step).tolist() for step in range(3 + PREFETCH)]
    assert not curriculum.advance(2, 0.2) and curriculum.progress.stage_starts == [0]
    assert curriculum.advance(3, 0.3) and curriculum.progress.stage_starts == [0, 3 + PREFETCH]
    assert [curriculum.rows(step).tolist() for step in range(3 + PREFETCH)] == before
    assert [curriculum.stage(step) for step in (0, 2 + PREFETCH, 3 + PREFETCH, 90)] == [0, 0, 1, 1]
    assert curriculum.rows(3 + PREFETCH).tolist() == orders[1].rows(0).tolist()
    assert not curriculum.advance(4, 0.4) and curriculum.advance(5, 1.0) and not curriculum.advance(6, 1.0)
    assert curriculum.rows(5 + PREFETCH).tolist() == orders[2].rows(0).tolist()


def test_a_stage_may_be_over_before_it_began() -> None:
    """After a long step the last stage whose time has come is the one that begins."""
    orders = [BatchOrder(np.ones(8), 2, seed=seed, bucket=1) for seed in range(3)]
    curriculum = Curriculum(orders, [0.3, 0.5, 1.0], 4)
    assert curriculum.advance(1, 0.9) and curriculum.stage(1 + PREFETCH) == 2


def test_stages_with_the_same_pairs_have_different_orders(mixed: Pairs) -> None:
    """A second stage does not begin with the pairs that the first began with."""
    curriculum = order_pairs(mixed, 10, seed=0, bucket=1, stages=[StageConfig(0.5), StageConfig(1.0)])
    first, second = (order.rows(0).tolist() for order in curriculum.orders)
    assert first != second and curriculum.batches_per_epoch == 30


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_sample_keeps_the_corpora_in_proportion_to_their_weights(mixed: Pairs, seed: int) -> None:
    """What a corpus gives goes with its largest weight; sample and stage together give the weights of the recipe."""
    stages = [StageConfig(0.5, 20, {"a": 1, "b": 0.5}), StageConfig(1.0, 0, {"a": 0.5, "b": 0.25, "c": 0.25})]
    status = np.zeros(len(mixed), dtype=np.uint8)
    rest = sample_curriculum(mixed, status, stages, 70, [seed, 1])
    kept = mixed.take(np.flatnonzero(status == PairStatus.train))
    assert np.bincount(kept.corpus).tolist() == [40, 20, 10]
    last = {kept.corpora[kept.corpus[part.rows[0]]]: part for part in stage_rows(kept, rest, 1)}
    taken = {part.weight: len(part.rows) for part in last.values()}
    assert taken == {0.5: 60, 1.0: 10}  # a 0.5 of 40 and b 0.5 of 20, c all of 10: as 0.5 to 0.25 to 0.25


def test_pairs_of_no_stage_are_left_out(mixed: Pairs) -> None:
    """Too long for every stage, or of a corpus that none takes; without a limit weights stay as they are."""
    status = np.zeros(len(mixed), dtype=np.uint8)
    status[0] = PairStatus.heldout
    stages = [StageConfig(0.5, 10), StageConfig(1.0, 20, {"a": 0})]
    assert sample_curriculum(mixed, status, stages, 0, [0]) == stages
    assert (
        np.flatnonzero(status == PairStatus.train).tolist() == list(range(1, 160)) and status[0] == PairStatus.heldout
    )


@pytest.mark.parametrize(("exponent", "drawn"), [(1.0, [900, 100]), (0.5, [750, 250]), (0.0, [500, 500])])
def test_an_epoch_draws_corpora_by_a_power_of_their_size(exponent: float, drawn: list[int]) -> None:
    """The roots of 900 and 100 are 30 and 10: three pairs of one corpus for each of the other, as many as before."""
    pairs = Pairs.concatenate([corpus_of("large", 900, 10), corpus_of("small", 100, 10)])
    stages = temper_weights([StageConfig()], {"large": 900, "small": 100}, exponent)
    order = order_pairs(pairs, 10, seed=0, bucket=1, stages=stages)
    rows = np.concatenate([order.rows(step) for step in range(order.batches_per_epoch)])
    assert np.bincount(pairs.corpus[rows]).tolist() == drawn
    uses = np.bincount(rows, minlength=1000)
    assert all(np.ptp(uses[part]) <= 1 for part in (slice(0, 900), slice(900, 1000)))  # no pair is preferred


def test_sampling_multiplies_the_weights_of_a_curriculum() -> None:
    """Corpora that a stage leaves out stay out; those that have no pairs are not counted."""
    stages = [StageConfig(0.5, 20, {"small": 2}), StageConfig(1.0, 0, {"large": 0})]
    first, second = temper_weights(stages, {"large": 900, "small": 100, "none": 0}, 0.5)
    assert (first.until, first.max_chars, second.until) == (0.5, 20, 1.0)
    assert first.weights == pytest.approx({"large": 750 / 900, "small": 5.0})
    assert second.weights == pytest.approx({"large": 0.0, "small": 2.5})


@pytest.mark.parametrize(
    ("most", "kept", "drawn"),
    [(0, [900, 100], [750, 250]), (200, [150, 50], [150, 50]), (600, [500, 100], [500, 167])],
)
def test_sampling_holds_for_a_sample_of_the_pairs(tmp_path: Path, most: int, kept: list[int], drawn: list[int]) -> None:
    """Three to one in all cases: by the pairs that are kept, and by their weights if a corpus has too few of them."""
    for name, count in (("large", 901), ("small", 101)):
        lines = (f"{name} sentence {i}\t{name} 第{i}句" for i in range(count))
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = [f"{name}.tsv" for name in ("large", "small")]
    config = DataConfig(root=str(tmp_path), train=names, heldout=2, sampling=0.5, max_pairs=most)
    split = next(
        found
        for seed in range(99)  # one pair of each corpus is held out
        if np.bincount((found := load_pairs(config, langs=("en", "zh"), seed=seed)).heldout.corpus).tolist() == [1, 1]
    )
    assert np.bincount(split.train.corpus).tolist() == kept
    order = order_pairs(split.train, 1, seed=0, bucket=1, stages=split.stages).orders[0]
    rows = np.concatenate([order.rows(step) for step in range(order.batches_per_epoch)])
    assert np.bincount(split.train.corpus[rows]).tolist() == drawn


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["data.sampling=1.5"], r"data.sampling is 1.5; expected from 0 \(corpora equally often\) to 1 \(pairs\)"),
        (["data.sampling=-0.1"], r"data.sampling is -0.1; expected from 0"),
        (
            ["data.sampling=0.5", "objective=nli", "nli.train=[x.tsv]"],
            "data.sampling is 0.5; expected 1 when objective is nli",
        ),
    ],
)
def test_wrong_exponents_are_refused(recipe: Path, settings: list[str], expected: str) -> None:
    """In one line, before anything is read."""
    with pytest.raises(ConfigError, match=rf"^{expected}"):
        load_config(recipe, settings)


@pytest.fixture
def two_files(tmp_path: Path, corpus: Path) -> list[str]:
    """Settings that train on two files, `short` and `long`, of which no pair of the second has less than 60 letters."""
    lines = corpus.read_text(encoding="utf-8").splitlines()
    (tmp_path / "short.tsv").write_text("\n".join(lines[:300]) + "\n", encoding="utf-8")
    longer = (f"{line.split(chr(9))[0]} {'very ' * 12}{i}\t{line.split(chr(9))[1]}" for i, line in enumerate(lines))
    (tmp_path / "long.tsv").write_text("\n".join(longer) + "\n", encoding="utf-8")
    return [f"data.train=[{tmp_path / 'short.tsv'},{tmp_path / 'long.tsv'}]"]


STAGES = "data.curriculum=[{until: 0.5, max_chars: 55},{until: 1, weights: {short: 0}}]"


def watch_batches(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """The source sentences of every step of runs to come."""
    seen: dict[int, list[str]] = {}
    usual = PairLoader.step

    def watched(self: Any, step: int) -> list[Any]:
        batches = usual(self, step)
        seen[step] = [text for batch in batches for text in batch.src_texts]
        return batches

    monkeypatch.setattr(PairLoader, "step", watched)
    return seen


def test_a_run_sees_short_sentences_first(
    recipe: Path,
    two_files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until half of the steps are over, then long ones; log and messages tell the stage."""
    seen = watch_batches(monkeypatch)
    with caplog.at_level("INFO", logger="dualmoco"):
        train(recipe, *two_files, STAGES)
    first = 6 + PREFETCH
    assert all(len(text) <= 55 for step in range(first) for text in seen[step])
    assert all(len(text) >= 60 for step in range(first, 12) for text in seen[step])
    stages = [record["stage"] for record in read_log(tmp_path / "run" / "log.jsonl") if "loss" in record]
    assert stages == [1] * first + [2] * (12 - first)
    assert f"stage 2 of 2 of the curriculum begins at step {first}" in caplog.text
    assert "in no stage" not in caplog.text and " not sampled" in caplog.text  # short.tsv has some longer than 55


def test_a_run_with_a_curriculum_resumes_bit_for_bit(recipe: Path, two_files: list[str], tmp_path: Path) -> None:
    """From a checkpoint before a stage, between its planning and its beginning, and after it."""
    train(recipe, f"out={tmp_path / 'unbroken'}", *two_files, STAGES, "schedule.checkpoint_every=1", "schedule.keep=20")
    for step in (4, 6, 7, 10):
        out = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "unbroken", out)
        for later in range(step + 1, 13):
            shutil.rmtree(out / "checkpoints" / f"step-{later:08d}")
        settings = [*two_files, STAGES, "schedule.checkpoint_every=1", "schedule.keep=20"]
        train(recipe, f"out={out}", *settings, resume=True)
        assert_same_state(tmp_path / "unbroken", out)


def test_a_resumed_run_by_the_clock_keeps_its_stages(
    recipe: Path, two_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step at which a stage began is remembered, not computed again from minutes."""
    seen = watch_batches(monkeypatch)
    ticks = itertools.count()  # a tenth of a second a step, however fast the machine
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: 0.1 * next(ticks)))
    minutes = [*two_files, STAGES, "schedule.steps=0", "schedule.minutes=0.05", "schedule.checkpoint_every=1"]
    train(recipe, *minutes)
    before = dict(seen)
    checkpoints = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    shutil.rmtree(checkpoints[-1])
    seen.clear()
    train(recipe, *minutes, resume=True)
    assert seen and all(before[step] == texts for step, texts in seen.items() if step in before)


def test_prepared_pairs_keep_the_names_of_their_corpora(recipe: Path, two_files: list[str], tmp_path: Path) -> None:
    """Weights count for the corpora of `prepare`."""
    named = [CorpusConfig(name=name, files=[str(tmp_path / f"{name}.tsv")]) for name in ("long", "short")]
    prepare(PrepareConfig(out=str(tmp_path / "prepared"), corpora=named, heldout=40, workers=1))
    prepared = ["data.train=[]", f"data.prepared={tmp_path / 'prepared'}", "schedule.steps=2"]
    train(recipe, *prepared, "data.curriculum=[{weights: {long: 0}}]")
    record = (tmp_path / "run" / "data.json").read_text(encoding="utf-8")
    with pytest.raises(DataError, match=r"weights has 'news'; expected corpora of the training pairs: long, short$"):
        train(recipe, f"out={tmp_path / 'other'}", *prepared, "data.curriculum=[{weights: {news: 2}}]")
    assert '"train": 2' in record


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (
            "[{until: 0.5}]",
            r"data.curriculum is 'until 0.5'; expected shares of the schedule above 0 that increase",
        ),
        ("[{until: 0.5},{until: 0.5},{until: 1}]", "data.curriculum is 'until 0.5, 0.5, 1.0'; expected shares"),
        ("[{until: 0},{until: 1}]", "data.curriculum is 'until 0.0, 1.0'; expected shares"),
        ("[{until: 1},{until: 2}]", "data.curriculum is 'until 1.0, 2.0'; expected shares"),
        ("[{max_chars: -1}]", r"data.curriculum\[0\].max_chars is -1; expected at least 0"),
        (
            "[{weights: {news: -0.5}}]",
            r"data.curriculum\[0\].weights.news is -0.5; expected at least 0; 0 excludes the corpus",
        ),
        ("[{weights: {news: .inf}}]", r"data.curriculum\[0\].weights.news is inf; expected at least 0"),
        ("[{longest: 5}]", "Key 'longest' not in 'StageConfig'"),
    ],
)
def test_wrong_curricula_are_refused(recipe: Path, stages: str, expected: str) -> None:
    """In one line, before anything is read."""
    with pytest.raises(ConfigError, match=rf"^[^\n]*{expected}[^\n]*$"):
        load_config(recipe, [f"data.curriculum={stages}"])


def test_nli_alone_takes_no_curriculum(recipe: Path) -> None:
    """It has no pairs."""
    with pytest.raises(ConfigError, match=r"^data.curriculum is 1; expected no stages when objective is nli"):
        load_config(recipe, ["objective=nli", "nli.train=[x.tsv]", "data.curriculum=[{until: 1}]"])


@pytest.mark.parametrize("stage", ["{max_chars: 2}", "{weights: {pairs: 0}}", "{weights: {pairs: 0.001}}"])
def test_a_curriculum_that_leaves_no_pairs_is_refused(recipe: Path, stage: str, tmp_path: Path) -> None:
    """The stage is named, and nothing is written."""
    expected = r"^data.curriculum\[1\] leaves \d+ training rows; expected at least one batch of 16: raise its max_chars"
    with pytest.raises(DataError, match=expected):
        train(recipe, f"data.curriculum=[{{until: 0.5}},{stage}]")
    assert not (tmp_path / "run" / "config.yaml").exists()
