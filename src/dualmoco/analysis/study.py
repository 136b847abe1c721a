"""A study: a recipe, the settings to vary, the seeds and the tasks; and the worker process of one run.

`read_study` reads a YAML file and checks the settings of every run before the first one begins. `ablate.py` starts
`python -m dualmoco.analysis.study TASK.json` for each run, which trains, evaluates and writes the result as JSON.
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

from dualmoco.core.config_loader import AS_TYPED, read_recipe
from dualmoco.core.errors import ConfigError, DivergenceError, DualmocoError, RunError, require
from dualmoco.core.storage import locked, write_json
from dualmoco.training.recipe import load_config

RUNS_FOLDER = "runs"
DONE, FAILED, DIVERGED = "done", "failed", "diverged"
INTERRUPTED = 130  # exit code
PARENT_CHECK_SECONDS = 1.0
LOCK_WAIT_SECONDS = 60
RECORD_WAIT_SECONDS = 10


class Axis(StrEnum):
    """Horizontal axis of the figure."""

    names = "names"  # one position per row, labelled with its name
    linear = "linear"  # by the value of the last varied key
    log = "log"


@dataclass(frozen=True)
class StudyConfig:
    """The keys of a study file."""

    title: str = ""  # title of tables and figures
    paper: str = ""  # what the paper found, shown on the report page
    recipe: str = ""  # recipe file or name, as for `dualmoco train`
    out: str = ""  # the study folder
    set: list[str] = field(default_factory=list)  # settings of all runs, such as schedule.minutes=5
    vary: dict[str, list[Any]] = field(default_factory=dict, metadata=AS_TYPED)  # values: one row per combination
    rows: dict[str, list[str]] = field(default_factory=dict)  # or rows by name, each with its settings
    seeds: list[int] = field(default_factory=lambda: [0])  # one run of each row per seed
    tasks: str = ""  # tasks of `dualmoco evaluate`; held-out pairs are always scored
    axis: Axis = Axis.names  # horizontal axis of the figure
    curves: list[str] = field(default_factory=list)  # logged metrics to draw over the steps, such as loss


@dataclass(frozen=True)
class StudyRow:
    """One set of settings."""

    name: str
    settings: list[str]
    value: float | None  # of the last varied key, if it is a number
    group: str = ""  # values of the other keys: one line of the figure per group


@dataclass(frozen=True)
class Run:
    """One row with one seed: an ordinary run folder."""

    row: StudyRow
    seed: int
    name: str  # name of its folder
    settings: list[str]  # all overrides of the recipe
    fingerprint: str
    pairs: str  # language pair of the tasks


@dataclass(frozen=True)
class Study:
    """A checked study with its rows and runs."""

    config: StudyConfig
    rows: list[StudyRow]
    runs: list[Run]


def is_study(path: str | Path) -> bool:
    """Whether a YAML file is a study and not a recipe: only a study has the key `recipe`."""
    require("omegaconf", "train", "A recipe")
    from yaml import YAMLError, safe_load

    try:
        content = safe_load(Path(path).read_text(encoding="utf-8")) if Path(path).is_file() else None
    except (YAMLError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "recipe" in content


def read_study(path: str | Path, overrides: list[str] | None = None, data: str | None = None) -> Study:
    """Reads a study and checks the settings of every run.

    Overrides such as `seeds=[0]` replace keys of the file. Data files of the recipe are relative to the folder `data`.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path}: no such study; expected a YAML file such as studies/temperature.yaml")
    config = read_recipe(StudyConfig, path, overrides, extra="train")
    named = config.axis == Axis.names
    rules = [
        ("title", config.title, bool(config.title), "a few words"),
        ("out", config.out, bool(config.out), "a folder for the study"),
        ("recipe", config.recipe, bool(config.recipe), "a recipe such as recipes/small-cpu.yaml"),
        ("seeds", config.seeds, 0 < len({*map(str, config.seeds)}) == len(config.seeds), "one or more, each once"),
        ("seeds", config.seeds, all(isinstance(seed, int) for seed in config.seeds), "whole numbers"),
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
            raise ConfigError(
                f"{path}: axis is {config.axis.value} but {row.name} is not a number; expected axis: names"
            )
    runs = [_run(config, row, seed, data) for row in rows for seed in config.seeds]
    twice = [name for name in {run.name for run in runs} if sum(run.name == name for run in runs) > 1]
    if twice:
        raise ConfigError(
            f"{path}: two rows would share the folder {twice[0]}; expected names that differ in letters or digits"
        )
    return Study(config, rows, runs)


def _named_rows(config: StudyConfig) -> Iterator[StudyRow]:
    """The named rows, or one row per combination of the values to vary."""
    for name, settings in config.rows.items():
        yield StudyRow(name, settings, None)
    if not config.vary:
        return
    for values in itertools.product(*config.vary.values()):
        chosen = dict(zip(config.vary, values, strict=True))
        value = _as_number(values[-1])
        parts = [f"{key.rpartition('.')[2]} {given}" for key, given in chosen.items()]
        settings = [f"{key}={given}" for key, given in chosen.items()]
        yield StudyRow(", ".join(parts), settings, value, ", ".join(parts[:-1]))


def _as_number(typed: Any) -> float | None:
    try:
        return float(typed)
    except (ValueError, TypeError):
        return None


def _run(config: StudyConfig, row: StudyRow, seed: int, data: str | None) -> Run:
    """A run with all its settings, which are checked here."""
    name = f"{re.sub(r'[^A-Za-z0-9.]+', '-', row.name).strip('-')}-seed{seed}"
    root = [f"data.root={Path(data).absolute()}"] if data else []  # a worker may have a different working directory
    out = (Path(config.out) / RUNS_FOLDER / name).absolute()
    settings = [*root, *config.set, *row.settings, f"seed={seed}", f"out={out}"]
    try:
        training = load_config(config.recipe, settings)
    except ConfigError as error:
        raise ConfigError(f"row {row.name}: {error}") from None
    return Run(row, seed, name, settings, training.fingerprint(), training.language_pair)


def train_and_record(task_file: str) -> int:
    """Trains and evaluates one run, given the JSON file that `ablate.py` wrote.

    The exit code is 0 if the result was written, even if the run failed, and INTERRUPTED after an interruption. If
    several processes share the run, the first one evaluates and writes. A process that fails writes the reason and
    exits with 1, so that torchrun ends the others.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    threading.Thread(target=_interrupt_when_orphaned, args=(_parent(),), daemon=True).start()
    try:
        found = _train_and_score(task)
    except DualmocoError as error:
        logging.error("%s", error)
        found = {"status": DIVERGED if isinstance(error, DivergenceError) else FAILED, "reason": str(error)}
    except KeyboardInterrupt:
        return INTERRUPTED
    if found is None:
        return INTERRUPTED
    failed = found["status"] != DONE
    if _rank() == 0 or failed:
        _record(Path(task["result"]), found)
    return int(failed and _processes() > 1)


def _record(path: Path, found: dict[str, Any]) -> None:
    """Writes the result of a run; a process first waits for processes of lower rank to do that."""
    deadline = time.monotonic() + _rank() * RECORD_WAIT_SECONDS
    while not path.is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    if not path.is_file():
        write_json(path, found)


def _rank() -> int:
    """The rank of this process among those that share the run, from 0."""
    return int(os.environ.get("RANK", "0"))


def _processes() -> int:
    """The number of processes that share the run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _train_and_score(task: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a run; None if a signal stopped it."""
    from dualmoco.evaluation.evaluate import evaluate
    from dualmoco.evaluation.training_scores import train_and_score

    if _rank() == 0:
        _wait_for_lock(Path(task["run"]))
    trained = train_and_score(task["recipe"], *task["settings"], resume=True)
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
    if task["tasks"] and _rank() == 0:
        scored = evaluate(Path(trained.out), task["tasks"], data=task["data"], pairs=task["pairs"])
        found["scores"] = [score.to_json() | {"sample": None} for score in scored.scores]
    return found


def _wait_for_lock(run: Path) -> None:
    """Waits for an orphaned worker to release the run folder; `train` raises if it does not."""
    for _ in range(LOCK_WAIT_SECONDS):
        try:
            with locked(run):
                return
        except RunError:
            time.sleep(1)


def _parent() -> int:
    """The process that started this one, or the one that started torchrun."""
    import psutil

    return psutil.Process(os.getppid()).ppid() if _processes() > 1 else os.getppid()


def _interrupt_when_orphaned(parent: int) -> None:
    """Interrupts this process when its parent has ended."""
    while _parent() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of scripts ignore SIGINT
    raise SystemExit(train_and_record(sys.argv[1]))
