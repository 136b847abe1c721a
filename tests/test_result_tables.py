"""Tables and figures of results show what is in the files and tables that they are made from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks import figures, results

import reference_results

SCORES = [
    {
        "task": "tatoeba",
        "subset": "cmn-eng",
        "protocol": "zh-en",
        "metric": "accuracy",
        "value": 96.312,
        "low": 95.19,
        "high": 97.41,
        "signature": "task:tatoeba|protocol:zh-en",
    },
    {"task": "tatoeba", "subset": "cmn-eng", "protocol": "zh-en", "metric": "xsim", "value": 3.7, "signature": "other"},
]


def test_a_row_has_the_main_scores_with_their_signatures() -> None:
    """Other scores of the evaluation are left out; values are rounded, and the date and the machine are noted."""
    row = results.measured(SCORES)
    expected = {"value": 96.31, "low": 95.2, "high": 97.4, "signature": "task:tatoeba|protocol:zh-en"}
    assert row["scores"] == {"Tatoeba zh-en": expected}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]) and "cores" in row["machine"]


def test_cells_of_the_table() -> None:
    """A score has one digit and its interval if wanted; what was not measured stays empty."""
    row = results.measured(SCORES)
    assert reference_results.value(row, "Tatoeba zh-en", interval=True) == "96.3 [95.2, 97.4]"
    assert reference_results.value(row, "STS all") == ""
    assert reference_results.both(row, "Tatoeba zh-en", "Tatoeba en-zh") == "96.3"
    assert reference_results.both(row, "STS wmean", "STS all") == ""


def test_every_measured_row_has_its_command_date_and_machine() -> None:
    """A row is either measured, with its provenance, or published, with its source."""
    for row in reference_results.read_systems()["rows"]:
        assert row["scores"] and row["name"]
        assert {"command", "date", "machine", "tasks"} <= set(row) if "system" in row else "source" in row
    table = reference_results.systems_table()
    assert table.count("\n") == 1 + len(json.loads((reference_results.RESULTS / "systems.json").read_text())["rows"])


def test_figures_show_the_numbers_of_their_tables() -> None:
    """Means and standard deviations come from the first tables of the section, in their order or by number."""
    by_name = {wanted.file: figures.read_panels(wanted) for wanted in figures.STUDY_FIGURES}
    points = by_name["study-momentum"]["held-out"][""]
    assert [name for name, *_ in points] == ["0.0", "0.9", "0.99", "0.999", "0.9999"] and points[2][1:] == (58.6, 2.6)
    assert by_name["study-momentum"]["STS wmean"][""][0][1:] == (7.5, 1.2)
    assert by_name["study-queue"]["held-out"]["3,000 steps"][0] == ("32", 58.6, 2.2)
    lines = by_name["study-batch"]["held-out"]
    assert list(lines) == ["dual-moco", "in-batch"] and lines["in-batch"][0] == ("16", 31.2, 0.7)
    assert all((figures.FIGURES / f"{name}.svg").is_file() for name in by_name)


def test_a_cell_without_a_number_is_an_error() -> None:
    """A table that changed its form is noticed, not drawn wrongly."""
    with pytest.raises(AssertionError, match="expected a mean"):
        figures._measured("none")


def test_every_figure_is_on_a_page() -> None:
    """No figure is left that no page shows."""
    pages = "".join(page.read_text(encoding="utf-8") for page in Path(figures.RESULTS.parent).rglob("*.md"))
    assert {path.name for path in figures.FIGURES.iterdir()} <= set(re.findall(r"figures/([\w.-]+)", pages))
