"""What came of a study: means and spreads over seeds, p-values against the first row, a table.

Takes the results of runs from `ablate.py`, gives them to `report.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmoco.analysis.study import Study
from dualmoco.analysis.worker import DONE
from dualmoco.evaluation.report.tables import Table

HELDOUT = "held-out"
HEADLINES = {
    ("tatoeba", "zh-en", "accuracy"): "Tatoeba zh-en",
    ("tatoeba", "en-zh", "accuracy"): "Tatoeba en-zh",
    ("bucc", "threshold cross-fitted", "f1"): "BUCC F1",
    ("sts", "wmean", "spearman"): "STS wmean",
    ("sts", "all", "spearman"): "STS all",
}
"""Task, protocol and metric of the scores that a table shows; of STS the average of the seven sets."""
STS_AVERAGE = "average of 7"
LOWEST_P = 0.01  # that is told from less


@dataclass(frozen=True)
class SeedMean:
    """One metric of one row."""

    values: list[float]  # one a seed that ended well
    mean: float
    spread: float | None  # standard deviation over seeds; None of one seed
    p: float | None  # that it differs from the first row's by chance; None of the first row, or of too few seeds


@dataclass(frozen=True)
class RowResult:
    """One row of a study."""

    name: str
    value: float | None
    group: str
    metrics: dict[str, SeedMean]
    seconds: list[float]
    troubles: dict[str, str]  # of runs that failed or diverged, by name


@dataclass(frozen=True)
class StudyResult:
    """All rows of a study; printed, they are a table."""

    study: Study
    rows: list[RowResult]

    @property
    def is_whole(self) -> bool:
        """Whether every run ended well."""
        return not any(row.troubles for row in self.rows)

    def table(self) -> Table:
        """Means, spreads over seeds and p-values."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.metrics))
        seeds = len(self.study.config.seeds)
        rows = []
        for row in self.rows:
            cells = [_cell(row.metrics.get(name)) for name in names]
            minutes = f"{np.mean(row.seconds) / 60:.1f}" if row.seconds else ""
            rows.append([row.name, *cells, minutes, f"{len(row.troubles)} of {seeds}" if row.troubles else ""])
        note = f"{seeds} seed{'s' if seeds > 1 else ''}; mean ± standard deviation"
        note += "; p against the first row, Welch's t-test over seeds" if seeds > 1 else "; one seed tells no noise"
        return Table(self.study.config.title, ["", *names, "minutes", "failed"], rows, note=note)

    def __str__(self) -> str:
        return self.table().as_text()


def gather(study: Study, results: Mapping[str, dict[str, Any]]) -> StudyResult:
    """Puts the results of runs together.

    Args:
        study: Whose they are.
        results: By the name of the run, as workers wrote them.

    Returns:
        The rows in the study's order.
    """
    rows: list[RowResult] = []
    first: dict[str, list[float]] = {}
    for row in study.rows:
        runs = [(run, results[run.name]) for run in study.runs if run.row is row]
        good = [found for _, found in runs if found["status"] == DONE]
        values: dict[str, list[float]] = {}
        for found in good:
            for name, value in _headlines(found).items():
                values.setdefault(name, []).append(value)
        metrics = {name: _measure(numbers, first.get(name)) for name, numbers in values.items()}
        troubles = {run.name: f"{found['status']}: {found['reason']}" for run, found in runs if found["status"] != DONE}
        rows.append(RowResult(row.name, row.value, row.group, metrics, [found["seconds"] for found in good], troubles))
        first = first or values
    return StudyResult(study, rows)


def _headlines(found: dict[str, Any]) -> dict[str, float]:
    """The numbers of a run that a table shows, in percent."""
    shown = {HELDOUT: 100 * found["heldout"]}
    for score in found["scores"]:
        name = HEADLINES.get((score["task"], score["protocol"], score["metric"]))
        if name and (score["task"] != "sts" or score["subset"] == STS_AVERAGE):
            shown[name] = score["value"]
    return shown


def _measure(values: Sequence[float], first: Sequence[float] | None) -> SeedMean:
    """Mean and spread of a metric, and how likely its difference from the first row's is chance."""
    from scipy.stats import ttest_ind

    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    p = None
    if first is not None and len(first) > 1 and len(values) > 1 and np.ptp([*first, *values]) > 0:
        p = float(ttest_ind(first, values, equal_var=False).pvalue)
    return SeedMean([float(value) for value in values], float(np.mean(values)), spread, p)


def _cell(measured: SeedMean | None) -> str:
    if measured is None:
        return ""
    spread = f" ± {measured.spread:.1f}" if measured.spread is not None else ""
    if measured.p is None:
        return f"{measured.mean:.1f}{spread}"
    return f"{measured.mean:.1f}{spread} (p {f'{measured.p:.2f}' if measured.p >= LOWEST_P else f'< {LOWEST_P}'})"
