"""A study: a recipe, the settings to vary, seeds, and what to score.

Takes a YAML file, gives `ablate.py` the runs of it, all checked before the first begins.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from dualmoco.core.config_loader import read_recipe
from dualmoco.core.errors import ConfigError, DivergenceError, DualmocoError, RunError
from dualmoco.core.storage import locked, write_json
from dualmoco.training.recipe import load_config

RUNS = "runs"


class Axis(StrEnum):
    """How a figure places the rows."""

    names = "names"  # side by side, each with its name
    linear = "linear"  # by the value of the one key that is varied
    log = "log"


@dataclass(frozen=True)
class StudyConfig:
    """Everything `dualmoco ablate` needs to know."""

    title: str = ""  # above tables and figures
    paper: str = ""  # what the paper found, to stand beside what was seen
    recipe: str = ""  # of the runs, as `dualmoco train` takes it
    out: str = ""  # the study folder
    set: list[str] = field(default_factory=list)  # settings of all runs, such as schedule.minutes=5
    vary: dict[str, list[Any]] = field(default_factory=dict)  # values of keys: a row for each combination
    rows: dict[str, list[str]] = field(default_factory=dict)  # or: rows by name, each with its settings
    seeds: list[int] = field(default_factory=lambda: [0])
    tasks: str = ""  # of `dualmoco evaluate`, by commas; held-out pairs are scored always
    axis: Axis = Axis.names
    curves: list[str] = field(default_factory=list)  # metrics of the log to draw over the steps, such as loss, spread


@dataclass(frozen=True)
class StudyRow:
    """One set of settings."""

    name: str
    settings: list[str]
    value: float | None  # of the last key that is varied, where it is a number
    group: str = ""  # the values of the other keys: rows of one group are a line of the figure


@dataclass(frozen=True)
class Run:
    """A row with a seed: one ordinary run folder."""

    row: StudyRow
    seed: int
    name: str  # of its folder
    settings: list[str]  # all of them, stronger than the recipe
    fingerprint: str


@dataclass(frozen=True)
class Study:
    """Rows and runs of a checked study."""

    config: StudyConfig
    rows: list[StudyRow]
    runs: list[Run]


def read_study(path: str | Path, overrides: list[str] | None = None, data: str | None = None) -> Study:
    """Reads a study and checks the settings of every run.

    Args:
        path: A YAML file.
        overrides: Of the study itself, such as `seeds=[0]`, stronger than the file.
        data: Folder that data files of the recipe are relative to.

    Returns:
        The study.

    Raises:
        ConfigError: An unreadable file, an unknown key of the study or of the recipe, a value that cannot be.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path}: no such study; expected a YAML file such as studies/temperature.yaml")
    config = read_recipe(StudyConfig, path, overrides, extra="train")
    named = config.axis == Axis.names
    rules = [
        ("title", config.title, bool(config.title), "a few words"),
        ("out", config.out, bool(config.out), "a folder for the study"),
        ("recipe", config.recipe, bool(config.recipe), "a recipe such as recipes/small-cpu.yaml"),
        ("seeds", config.seeds, 0 < len({*config.seeds}) == len(config.seeds), "one or more, each once"),
        ("rows", list(config.rows), bool(config.rows) != bool(config.vary), "rows or vary, and only one of them"),
        ("vary", config.vary, all(config.vary.values()), "at least one value for each key"),
        ("axis", config.axis.value, named or bool(config.vary), "names unless keys are varied"),
    ]
    for key, value, holds, expected in rules:
        if not holds:
            raise ConfigError(f"{path}: {key} is {value!r}; expected {expected}")
    rows = list(_named_rows(config))
    for row in rows:
        if not named and row.value is None:
            raise ConfigError(f"{path}: axis is {config.axis.value} but {row.name} is no number; expected axis: names")

    runs = [_run(config, row, seed, data) for row in rows for seed in config.seeds]
    twice = [name for name in {run.name for run in runs} if sum(run.name == name for run in runs) > 1]
    if twice:
        raise ConfigError(f"{path}: two rows would share the folder {twice[0]}; expected names that differ in letters")
    return Study(config, rows, runs)


def _named_rows(config: StudyConfig) -> Iterator[StudyRow]:
    """Rows as they are named, or one for each combination of the values to vary."""
    for name, settings in config.rows.items():
        yield StudyRow(name, settings, None)
    if not config.vary:
        return
    for values in itertools.product(*config.vary.values()):
        chosen = dict(zip(config.vary, values, strict=True))
        value = float(values[-1]) if type(values[-1]) in (int, float) else None
        parts = [f"{key.rpartition('.')[2]} {given}" for key, given in chosen.items()]
        settings = [f"{key}={given}" for key, given in chosen.items()]
        yield StudyRow(", ".join(parts), settings, value, ", ".join(parts[:-1]))


def _run(config: StudyConfig, row: StudyRow, seed: int, data: str | None) -> Run:
    """A run with all its settings, which are checked here."""
    name = f"{re.sub(r'[^A-Za-z0-9.]+', '-', row.name).strip('-')}-seed{seed}"
    root = [f"data.root={Path(data).absolute()}"] if data else []  # a worker may have another working folder
    out = (Path(config.out) / RUNS / name).absolute()
    settings = [*root, *config.set, *row.settings, f"seed={seed}", f"out={out}"]
    try:
        fingerprint = load_config(config.recipe, settings).fingerprint()
    except ConfigError as error:
        raise ConfigError(f"row {row.name}: {error}") from None
    return Run(row, seed, name, settings, fingerprint)


DONE, FAILED, DIVERGED = "done", "failed", "diverged"
INTERRUPTED = 130
WATCH_SECONDS = 1.0
WAIT_SECONDS = 60


def train_and_record(task_file: str) -> int:
    """Does a task.

    Args:
        task_file: JSON with `recipe`, `settings`, `tasks`, `data`, the folder of the `run`, and the `result` to write.

    Returns:
        The exit code: 0 if the result is written, also that of a run that failed; 130 after an interruption.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        found = _train_and_score(task)
    except DualmocoError as error:
        found = {"status": DIVERGED if isinstance(error, DivergenceError) else FAILED, "reason": str(error)}
    except KeyboardInterrupt:
        return INTERRUPTED
    if found is None:
        return INTERRUPTED
    write_json(Path(task["result"]), found)
    return 0


def _train_and_score(task: dict[str, Any]) -> dict[str, Any] | None:
    """What came of a run; None if a signal stopped it."""
    from dualmoco.evaluation.evaluate import evaluate
    from dualmoco.training.run import train

    _wait_for(Path(task["run"]))
    trained = train(task["recipe"], *task["settings"], resume=True)
    if trained.stop.startswith("SIG"):
        return None
    found: dict[str, Any] = {
        "status": DONE,
        "heldout": trained.best,
        "before": trained.before.score,
        "step": trained.step,
        "seconds": trained.seconds,
        "scores": [],
    }
    if task["tasks"]:
        scored = evaluate(Path(trained.out), task["tasks"], data=task["data"])
        found["scores"] = [score.to_json() | {"sample": None} for score in scored.scores]
    return found


def _wait_for(run: Path) -> None:
    """Waits until a process whose starter is gone has left the run folder; train says so if it does not."""
    for _ in range(WAIT_SECONDS):
        try:
            with locked(run):
                return
        except RunError:
            time.sleep(1)


def _end_with(parent: int) -> None:
    """Interrupts this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts start what runs in the background without it
    raise SystemExit(train_and_record(sys.argv[1]))
