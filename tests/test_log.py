"""Tests of the log of a run: what is written, what a resumed run keeps, and TensorBoard's files."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from dualmoco.core.errors import ConfigError
from dualmoco.training.run_folder import RunLog, read_log


def _open(path: Path, **settings: Any) -> RunLog:
    usual: dict[str, Any] = {"step": 0, "total": 10, "unit": "steps", "is_first": True, "tensorboard": False}
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
    """Only the first process writes lines, event files and a bar; the others leave its log alone."""
    path = tmp_path / "log.jsonl"
    _write(path, [1, 2, 3])
    before = path.read_bytes()
    capsys.readouterr()
    log = _open(path, step=1, is_first=False, tensorboard=True)
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


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    """Event files hold each number at its step; without the setting there are none."""
    path = tmp_path / "log.jsonl"
    log = _open(path, tensorboard=True)
    for step in (1, 2):
        log.record({"step": step, "loss": step / 4, "note": "text"})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.25), (2, 0.5)]
    assert len(read_log(path)) == 2
    _write(tmp_path / "other" / "log.jsonl", [1])
    assert not (tmp_path / "other" / "tensorboard").exists()


def test_tensorboard_gets_the_heldout_scores(tmp_path: Path) -> None:
    """The score by which the best model is chosen is among the curves."""
    log = _open(tmp_path / "log.jsonl", tensorboard=True)
    log.record({"step": 1, "heldout": {"src_to_tgt": 0.5, "tgt_to_src": 0.25, "nli": None, "score": 0.375}})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [tag for tag in events.Tags()["scalars"] if tag.endswith("score")]


def test_missing_tensorboard_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for but not installed is an error that says what to install."""
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return original(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"tensorboard is not installed.*dualmoco\[train\]"):
        _open(tmp_path / "log.jsonl", tensorboard=True)
