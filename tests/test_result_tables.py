"""Tables and figures of results show what is in the files and tables that they are made from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks import encode, figures, results

import reference_results
from dualmoco import load
from dualmoco.evaluation.metrics import Score
from dualmoco.models.embedded import EMBEDDED, FAST_MODEL, HOME, MANY_STATIC

SCORES = [
    Score("tatoeba", "cmn-eng", "zh-en", "accuracy", 96.312, 1000, "task:tatoeba|protocol:zh-en", 95.19, 97.41),
    Score("tatoeba", "cmn-eng", "zh-en", "xsim-ratio-error", 3.7, 1000, "other"),
]


def test_a_row_has_the_shown_scores_with_their_signatures() -> None:
    """Values are rounded; scores that no table shows are left out."""
    expected = {"value": 96.31, "low": 95.2, "high": 97.4, "signature": "task:tatoeba|protocol:zh-en"}
    assert results.shown_scores(SCORES) == {"Tatoeba zh-en": expected}


def test_results_resume_and_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are signed; a system whose scores are there is not evaluated again, and both systems are compared."""
    folder = tmp_path / "eval" / "tatoeba"
    folder.mkdir(parents=True)
    (folder / "tatoeba.cmn-eng.cmn").write_text("你好。\n下雪了。\n我喜欢茶。\n", encoding="utf-8")
    (folder / "tatoeba.cmn-eng.eng").write_text("Hello.\nIt is snowing.\nI like tea.\n", encoding="utf-8")
    file, scores = tmp_path / "systems.json", tmp_path / "scores"
    rows = [{"system": name, "tasks": "tatoeba", "scores": {}} for name in (FAST_MODEL, MANY_STATIC)]
    file.write_text(json.dumps({"rows": [*rows, {"name": "published", "scores": {}}]}), encoding="utf-8")
    words = ["results", "--data", str(tmp_path), "--file", str(file), "--scores", str(scores)]
    monkeypatch.setattr("sys.argv", words)
    results.main()
    first = json.loads(file.read_text(encoding="utf-8"))
    row = first["rows"][0]
    assert row["command"].startswith(f"dualmoco evaluate {FAST_MODEL} --tasks tatoeba --data DATA --out ")
    assert all(f"|model:{load(FAST_MODEL).identity.sha256[:12]}|" in one["signature"] for one in row["scores"].values())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]) and "cores" in row["machine"]
    assert [(one["a"], one["b"]) for one in first["comparisons"]] == [(MANY_STATIC, FAST_MODEL)]
    assert set(first["comparisons"][0]["differences"]["Tatoeba zh-en"]) == {"value", "low", "high", "p"}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("evaluated again")

    monkeypatch.setattr("dualmoco.evaluate", refuse)
    results.main()
    assert json.loads(file.read_text(encoding="utf-8")) == first
    monkeypatch.setattr("sys.argv", [*words, "--systems", "unknown"])
    with pytest.raises(SystemExit, match="--systems unknown: unknown; expected some of"):
        results.main()


def test_cells_of_the_table() -> None:
    """A score has one digit and its interval if wanted; what was not measured stays empty."""
    row = {"scores": results.shown_scores(SCORES)}
    assert reference_results.value(row, "Tatoeba zh-en", interval=True) == "96.3 [95.2, 97.4]"
    assert reference_results.value(row, "STS all") == ""
    assert reference_results.both(row, "Tatoeba zh-en", "Tatoeba en-zh") == "96.3"
    assert reference_results.both(row, "STS wmean", "STS all") == ""


def test_every_measured_row_has_its_command_date_and_machine() -> None:
    """A row is either measured, with its provenance, or published, with its source."""
    content = reference_results.read_results("systems")
    for row in content["rows"]:
        assert row["scores"] and row["name"]
        assert {"date", "machine"} <= set(row) if "system" in row else "source" in row
        assert "system" not in row or row["command"] == results.evaluate_command(row)
    assert all(one["command"].startswith("dualmoco compare ") for one in content["comparisons"])
    assert reference_results.systems_table().count("\n") == 1 + len(content["rows"])


@pytest.mark.parametrize("system", [name for name in EMBEDDED if name in reference_results.systems()])
def test_scores_are_of_the_shipped_weights(system: str) -> None:
    """The signatures and the card of a model name the checksum of its weights: otherwise run `make results`."""
    model = load(system).identity.sha256[:12]
    row = reference_results.systems()[system]
    assert all(f"|model:{model}|" in score["signature"] for score in row["scores"].values())
    assert model in (HOME / system / "README.md").read_text(encoding="utf-8")


def test_differences_are_bold_if_they_are_significant() -> None:
    """The p-value stands beside each difference."""
    assert reference_results.difference({"value": 1.12, "p": 0.002}) == "**+1.1** (p < 0.01)"
    assert reference_results.difference({"value": -0.7, "p": 0.5734}) == "-0.7 (p = 0.57)"
    assert reference_results.difference(None) == ""


def test_speeds_of_several_processes() -> None:
    """The median and the range of the rates, and CPU time per 1,000 sentences."""
    passes = [{"seconds": seconds, "CPU seconds": 2 * seconds} for seconds in (1.0, 2.0, 4.0)]
    assert encode.summary(passes, 2000) == {"rate": 1000, "low": 500, "high": 2000, "cpu": 2.0}


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
