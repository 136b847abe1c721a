"""Plans a study: operations, memory and hours of each of its rows, before the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dualmoco.analysis.plan import DRY_RUN_SECONDS, PLAN_COLUMNS, RunPlan, plan
from dualmoco.analysis.study import Study, read_study
from dualmoco.evaluation.report import Table
from dualmoco.training.recipe import load_config


@dataclass(frozen=True)
class StudyPlan:
    """The cost of a study; printing it shows a table."""

    title: str
    rows: dict[str, RunPlan]  # plan of one run, by the name of the row
    seeds: int  # runs of each row

    @property
    def fits(self) -> bool:
        """Whether all runs fit into the memory of all devices."""
        return all(planned.fits for planned in self.rows.values())

    def hours(self, place: int) -> float | None:
        """Hours of all runs, one after another, on the device at this position of the list; None if unknown."""
        found = [planned.devices[place].hours for planned in self.rows.values()]
        known = [hours for hours in found if hours is not None]
        return self.seeds * sum(known) if len(known) == len(found) else None

    def __str__(self) -> str:
        plans = [(name, device) for name, planned in self.rows.items() for device in planned.devices]
        columns = ["", "on", *PLAN_COLUMNS]
        table = Table(f"Plan of {self.title}", columns, [[name, *device.cells()] for name, device in plans])
        lines = []
        for place, device in enumerate(next(iter(self.rows.values())).devices):
            hours = self.hours(place)
            took = "unknown" if hours is None else f"{hours:,.2f} hours" if hours < 10 else f"{hours:,.0f} hours"
            lines.append(f"{len(self.rows) * self.seeds} runs, one after another, on {device.name}: {took}")
        misfits = [f"{name} on {device.name}: does not fit; {device.advice}" for name, device in plans if device.advice]
        return "\n".join([table.as_text(), *lines, *misfits]) + "\n"


def plan_study(
    study: str | Path | Study,
    *overrides: str,
    data: str | None = None,
    devices: str = "",
    pairs: int = 0,
    tokens: Sequence[float] = (),
    seconds: float = DRY_RUN_SECONDS,
    progress: bool = True,
) -> StudyPlan:
    """Estimates the cost of each row of a study; see `plan`.

    Args:
        study: A YAML file, or a study that was already read.
        overrides: Settings that override the study, such as `seeds=[0]`.
        data: Folder that data files of the recipe are relative to.
        devices: Comma-separated list of `here` and known GPUs such as `4xv100`, which share the batches of one run.
        pairs: Number of training pairs, to plan without the data.
        tokens: Average tokens of a source and a target sentence, to plan without the data.
        seconds: Seconds to spend on steps of the dry run of each row.
        progress: Whether to show progress bars.

    Returns:
        A plan for one run of each row.

    Raises:
        ConfigError: The study is invalid, a device is unknown, or `here` is given without the data.
        DataError: The pairs cannot be read.
        ModelError: A model cannot be opened.
    """
    read = study if isinstance(study, Study) else read_study(study, list(overrides), data)
    rows = {}
    for row in read.rows:
        first = next(run for run in read.runs if run.row is row)
        config = load_config(read.config.recipe, first.settings)
        rows[row.name] = plan(config, devices=devices, pairs=pairs, tokens=tokens, seconds=seconds, progress=progress)
    return StudyPlan(read.config.title, rows, len(read.config.seeds))
