"""Evaluation tasks during training: what the log holds, that they decide nothing, and what is refused."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path

import numpy as np
import pytest

import dualmoco
from dualmoco.analysis.study import Run, Study, StudyConfig, StudyRow
from dualmoco.analysis.study_report import draw_curves
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.data.grammar import generate_pairs
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.report import main_scores
from dualmoco.training import run
from dualmoco.training.run import train
from dualmoco.training.run_folder import read_log
from runfolders import assert_same_state
from test_resuming import same_start, signal_after
from testsets import write_lines

SHORT = ["schedule.steps=8", "schedule.evaluate_every=4"]
TASKS = ["Tatoeba zh-en", "Tatoeba en-zh"]


@pytest.fixture(scope="session")
def test_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a Tatoeba of 60 generated pairs."""
    folder = tmp_path_factory.mktemp("data")
    for side, lang in enumerate(("eng", "cmn")):
        lines = list(dict.fromkeys(generate_pairs(60, seed=8)))
        write_lines(folder / "eval" / "tatoeba" / f"tatoeba.cmn-eng.{lang}", [pair[side] for pair in lines])
    return folder


def logged_tasks(run_folder: Path) -> dict[int, dict[str, float]]:
    """The scores of the tasks in a log, by step."""
    return {record["step"]: record["tasks"] for record in read_log(run_folder / "log.jsonl") if "tasks" in record}


def test_tasks_are_scored_as_by_evaluate_and_change_nothing(recipe: Path, tmp_path: Path, test_sets: Path) -> None:
    """The log has the scores of the saved model; the run ends in the state of one without tasks, bit for bit."""
    usual = train(recipe, f"out={tmp_path / 'usual'}", *SHORT)
    scored = dualmoco.train(recipe, *SHORT, "schedule.evaluate=tatoeba", f"data.root={test_sets}")
    found = logged_tasks(tmp_path / "run")
    assert list(found) == [0, 4, 8] and all(list(scores) == TASKS for scores in found.values())
    assert_same_state(tmp_path / "run", tmp_path / "usual")
    assert (scored.best, scored.best_step) == (usual.best, usual.best_step)
    assert scored.best_step is not None
    for folder, step in (("model", scored.best_step), ("initial", 0)):
        again = evaluate(tmp_path / "run" / folder, "tatoeba", data=test_sets)
        assert found[step] == main_scores(score.to_json() for score in again.scores)
    assert not (tmp_path / "run" / ".scored").exists()


def test_a_resumed_run_has_the_same_scores(
    recipe: Path, tmp_path: Path, test_sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each evaluation is logged once, whether the run was interrupted or not; tasks may be added later."""
    settings = [*SHORT, "schedule.evaluate=[tatoeba]", f"data.root={test_sets}"]
    dualmoco.train(recipe, f"out={tmp_path / 'unbroken'}", *settings)
    for name, first in (("run", settings), ("later", [*SHORT])):
        same_start(tmp_path / "unbroken", tmp_path / name)
        with monkeypatch.context() as patch:
            signal_after(patch, 5, signal.SIGTERM)
            assert dualmoco.train(recipe, f"out={tmp_path / name}", *first, resume=True).stop == "SIGTERM"
        dualmoco.train(recipe, f"out={tmp_path / name}", *settings, resume=True)
    expected = logged_tasks(tmp_path / "unbroken")
    assert logged_tasks(tmp_path / "run") == expected
    assert logged_tasks(tmp_path / "later") == {8: expected[8]}


def test_scores_of_tasks_choose_no_model(recipe: Path, tmp_path: Path) -> None:
    """Scores that rise at each evaluation leave the best model to the held-out pairs."""
    usual = train(recipe, f"out={tmp_path / 'usual'}", "schedule.evaluate_every=2", "optimizer.lr=1e-9")
    rising = itertools.count()
    found = train(
        recipe,
        "schedule.evaluate_every=2",
        "optimizer.lr=1e-9",
        "schedule.evaluate=[any]",
        open_tasks=lambda config: lambda folder: {"any": float(next(rising))},
    )
    assert (found.best, found.best_step) == (usual.best, usual.best_step) and found.best_step != 12
    assert [scores["any"] for scores in logged_tasks(tmp_path / "run").values()] == list(range(7))
    assert json.loads((tmp_path / "run" / "model" / "dualmoco.json").read_text())["step"] == found.best_step


@pytest.mark.parametrize(
    ("tasks", "error", "expected"),
    [
        ("tatoebe", ConfigError, r"^task 'tatoebe': expected paper, or tasks from tatoeba, bucc"),
        ("[tatoeba, bucc]", DataError, r"bucc2018: .*expected"),
        ("sts", DataError, r"STS.*expected"),
        ("nli", ConfigError, r"^schedule.evaluate has nli, which needs a saved classifier"),
    ],
)
def test_tasks_are_checked_before_any_work(
    recipe: Path,
    tmp_path: Path,
    test_sets: Path,
    monkeypatch: pytest.MonkeyPatch,
    tasks: str,
    error: type[Exception],
    expected: str,
) -> None:
    """An unknown task or missing test data costs a second, not a run."""
    monkeypatch.setattr(run, "load_pairs", lambda *given, **named: pytest.fail("the data was read"))
    with pytest.raises(error, match=expected):
        dualmoco.train(recipe, f"schedule.evaluate={tasks}", f"data.root={test_sets}")
    with pytest.raises(
        ConfigError, match=r"^schedule.evaluate is \['tatoeba'\]; expected none here: use dualmoco.train"
    ):
        train(recipe, "schedule.evaluate=tatoeba")
    assert not (tmp_path / "run").exists()


def test_curves_show_scores_of_tasks(tmp_path: Path) -> None:
    """A panel of a study shows any number of the log, also of held-out pairs and tasks, where a line has it."""
    records = [
        {"step": 0, "heldout": {"score": 0.1, "nli": None}, "tasks": {"Tatoeba zh-en": 5.0}},
        {"step": 1, "loss": 0.5},
        {"step": 2, "heldout": {"score": 0.3, "nli": None}, "tasks": {"Tatoeba zh-en": 25.0}},
    ]
    write_lines(tmp_path / "a-seed0" / "log.jsonl", [json.dumps(record) for record in records])
    row = StudyRow("a", [], None)
    config = StudyConfig(curves=["loss", "heldout/score", "tasks/Tatoeba zh-en"])
    figure = draw_curves(Study(config, [row], [Run(row, 0, "a-seed0", [], "", "")]), tmp_path)
    shown = [np.asarray(panel.get_lines()[0].get_xydata()).tolist() for panel in figure.axes]
    assert shown == [[[1, 0.5]], [[0, 0.1], [2, 0.3]], [[0, 5.0], [2, 25.0]]]
