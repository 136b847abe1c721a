"""Tests of the log of a run: what is written, what a resumed run keeps, and what trackers get."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import TensorBoardTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from dualmoco.core.errors import ConfigError, RunError
from dualmoco.training import run, run_folder
from dualmoco.training.run import train
from dualmoco.training.run_folder import RunLog, logged_metrics, read_log


def _open(path: Path, **settings: Any) -> RunLog:
    usual: dict[str, Any] = {"step": 0, "total": 10, "unit": "steps", "is_first": True}
    return RunLog(path, **(usual | settings))


def _write(path: Path, steps: list[int]) -> None:
    log = _open(path)
    for step in steps:
        log.record({"step": step, "loss": step / 2})
    log.close()


def test_records_are_appended(tmp_path: Path) -> None:
    """Each record is a line of JSON, on the disk before the next one comes."""
    path = tmp_path / "run" / "log.jsonl"
    log = _open(path)
    log.record({"step": 1, "loss": 0.5})
    assert path.read_text(encoding="utf-8") == '{"step": 1, "loss": 0.5}\n'
    log.record({"step": 1, "heldout": {"score": 0.25, "nli": None}})
    log.close()
    records = [{"step": 1, "loss": 0.5}, {"step": 1, "heldout": {"score": 0.25, "nli": None}}]
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == records == read_log(path)


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    """A gradient that overflows in fp16 is not finite; the log stays valid JSON, also one that was written before."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "gradient_norm": Infinity}\n', encoding="utf-8")
    log = _open(path, step=1)
    log.record(
        {"step": 2, "gradient_norm": float("nan"), "loss": 0.5, "heldout": {"score": float("-inf"), "nli": None}}
    )
    log.close()
    first, second = path.read_text(encoding="utf-8").splitlines()
    assert first == '{"step": 1, "gradient_norm": null}'
    assert second == '{"step": 2, "gradient_norm": null, "loss": 0.5, "heldout": {"score": null, "nli": null}}'


@pytest.mark.parametrize(("step", "kept"), [(4, [0, 2, 4]), (5, [0, 2, 4]), (0, [0]), (99, [0, 2, 4, 6, 8])])
def test_lines_after_the_resumed_step_are_dropped(tmp_path: Path, step: int, kept: list[int]) -> None:
    """A run that resumes from a checkpoint repeats the steps after it, so their old lines go."""
    path = tmp_path / "log.jsonl"
    _write(path, [0, 2, 4, 6, 8])
    log = _open(path, step=step)
    log.record({"step": 100, "loss": 0.0})
    log.close()
    assert [record["step"] for record in read_log(path)] == [*kept, 100]
    assert read_log(path)[:-1] == [{"step": number, "loss": number / 2} for number in kept]


@pytest.mark.parametrize("rest", ['{"step": 3, "lo', "{", '{"step": 3, "loss": 1.5}'[:-1], "\x00\x00"])
def test_cut_last_line_is_tolerated(tmp_path: Path, rest: str) -> None:
    """A line that a kill cut short is left out, and the next record does not run into it."""
    path = tmp_path / "log.jsonl"
    _write(path, [1, 2])
    with path.open("a", encoding="utf-8") as stream:
        stream.write(rest)
    assert [record["step"] for record in read_log(path)] == [1, 2]
    log = _open(path, step=2)
    log.record({"step": 3, "loss": 9.0})
    log.close()
    assert [record["step"] for record in read_log(path)] == [1, 2, 3]
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_missing_log_is_empty(tmp_path: Path) -> None:
    """A run that never logged has no records, and opening its log makes an empty file."""
    path = tmp_path / "log.jsonl"
    assert read_log(path) == []
    _open(path).close()
    assert path.read_bytes() == b""


def test_other_processes_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the first process writes lines and a bar; the others leave its log alone."""
    path = tmp_path / "log.jsonl"
    _write(path, [1, 2, 3])
    before = path.read_bytes()
    capsys.readouterr()
    log = _open(path, step=1, is_first=False)
    log.record({"step": 2, "loss": 1.0})
    log.show(2, {"loss": "1.0"})
    log.close()
    assert path.read_bytes() == before
    assert [child.name for child in tmp_path.iterdir()] == ["log.jsonl"]
    assert capsys.readouterr() == ("", "")


def test_bar_shows_progress_and_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bar goes to standard error, with the unit and the metrics, and never beyond its end."""
    log = _open(tmp_path / "log.jsonl", total=200, unit="s")
    log.show(50, {"loss": "1.234"})
    log.show(201.5, {"loss": "0.987"})
    log.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "25%" in shown.err and "50/200 s" in shown.err and "loss=1.234" in shown.err
    assert "200/200 s" in shown.err and "loss=0.987" in shown.err and "202" not in shown.err


def scalars(run: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard shows of a run: the values by name and step."""
    events = EventAccumulator(str(run / "trackers" / "dualmoco"))
    events.Reload()
    names = events.Tags()["scalars"]
    assert all(len({event.step for event in events.Scalars(name)}) == len(events.Scalars(name)) for name in names)
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in names}


def test_records_become_metrics_of_one_level() -> None:
    """Groups are part of the name; what is not a number, and the step, is left out."""
    record = {"step": 3, "loss": 0.5, "note": "text", "heldout": {"score": 0.25, "nli": None}, "tasks": {"STS": 7}}
    assert logged_metrics(record) == {"loss": 0.5, "heldout/score": 0.25, "tasks/STS": 7}


def test_tensorboard_gets_the_log_of_a_run(recipe: Path, tmp_path: Path) -> None:
    """Event files hold the numbers of `log.jsonl`, also after a checkpoint was lost and its steps were repeated."""
    train(recipe, "schedule.trackers=tensorboard")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000012")
    train(recipe, "schedule.trackers=[tensorboard]", resume=True)
    log, shown = read_log(tmp_path / "run" / "log.jsonl"), scalars(tmp_path / "run")
    losses = {record["step"]: record["loss"] for record in log if "loss" in record}
    assert shown["loss"] == pytest.approx(losses) and list(losses) == list(range(1, 13))
    scores = {record["step"]: record["heldout"]["score"] for record in log if "heldout" in record}
    assert shown["heldout/score"] == pytest.approx(scores) and list(scores) == [0, 6, 12]
    assert "heldout/nli" not in shown and "step" not in shown


def test_trackers_are_checked_before_any_work(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown one is answered with those that accelerate supports, one without its package with what to install."""
    monkeypatch.setattr(run, "load_pairs", lambda *given, **named: pytest.fail("the data was read"))
    with pytest.raises(ConfigError, match=r"^schedule.trackers has 'visdom'; expected only .*tensorboard.*wandb"):
        train(recipe, "schedule.trackers=[visdom]")
    monkeypatch.setattr(run_folder, "get_available_trackers", list)
    with pytest.raises(ConfigError, match=r"^schedule.trackers has 'wandb', whose package .* pip install wandb$"):
        train(recipe, "schedule.trackers=wandb")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_does_not_start_is_one_line(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example one that asks for an account."""

    def refuse(self: Any) -> None:
        raise ValueError("no account\nrun login")

    monkeypatch.setattr(TensorBoardTracker, "start", refuse)
    with pytest.raises(RunError, match=r"^schedule.trackers is \['tensorboard'\]: one cannot be started: no account$"):
        train(recipe, "schedule.trackers=tensorboard")
