"""Studies: which runs they are, what is refused, what came of them, and that they go on after an interruption."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import ttest_ind

from commands import ForkedPython, Moment, run_command
from dualmoco.analysis import ablate as ablate_module
from dualmoco.analysis import study as study_worker
from dualmoco.analysis.ablate import Workers, _gpu_groups, ablate, run_task
from dualmoco.analysis.study import Study, read_study
from dualmoco.analysis.study_report import StudyResult, draw_rows, gather
from dualmoco.cli.main import build_parser, main
from dualmoco.core.errors import ConfigError, DataError, RunError
from dualmoco.core.storage import locked
from dualmoco.data.grammar import generate_pairs
from dualmoco.training.recipe import load_config
from dualmoco.training.run_folder import read_log
from testsets import write_tatoeba

FAST = [
    "data.train=[grammar:300]",
    "data.heldout=20",
    "schedule.steps=3",
    "schedule.evaluate_every=3",
    "schedule.log_every=1",
    "optimizer.batch_size=16",
    "contrast.queue_size=64",
    "src.width=8",
    "tgt.width=8",
]


def write_study(folder: Path, name: str = "study", **keys: object) -> Path:
    """A study of two temperatures of a static pair, three steps each, with some keys changed."""
    content = {
        "title": "Temperature",
        "recipe": "tiny",
        "out": str(folder / name),
        "set": FAST,
        "axis": "log",
        "vary": {"contrast.temperature": [0.05, 0.5]},
        "curves": ["loss"],
    } | keys
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")
    return path


@pytest.fixture(scope="module", autouse=True)
def forked_workers() -> Iterator[None]:
    """Studies of this process fork their workers; those of `run_command` start Python as users do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablate_module, "subprocess", SimpleNamespace(Popen=ForkedPython))
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    """A study of two rows and two seeds, two runs at a time."""
    path = write_study(tmp_path_factory.mktemp("studies"), seeds=[0, 1])
    return path, ablate(path, parallel=2, progress=False)


def test_a_study_leaves_run_folders_and_a_report(done: tuple[Path, StudyResult]) -> None:
    """Every run is an ordinary one; the table has a mean and spread of its held-out scores."""
    path, result = done
    out = path.with_suffix("")
    assert result.is_whole and [row.name for row in result.rows] == ["temperature 0.05", "temperature 0.5"]
    for row, value in zip(result.rows, ("0.05", "0.5"), strict=True):
        logs = [read_log(out / "runs" / f"temperature-{value}-seed{seed}" / "log.jsonl") for seed in (0, 1)]
        scores = [[line["heldout"]["score"] for line in log if "heldout" in line and line["step"]] for log in logs]
        assert row.metrics["held-out"].values == pytest.approx([100 * max(found) for found in scores])
        assert [line["temperature"] for log in logs for line in log if "loss" in line] == pytest.approx([row.value] * 6)
    assert (out / "figure.png").stat().st_size > 5000 and (out / "curves.png").stat().st_size > 5000
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "temperature 0.05" in page and page.count("<svg") == 2 and "Runs that failed" not in page
    assert json.loads((out / "results.json").read_text("utf-8"))["rows"][0]["metrics"]["held-out"]["spread"] is not None
    assert "| temperature 0.5 " in (out / "table.md").read_text("utf-8")


def test_what_is_done_is_not_done_again_and_seeds_can_be_added(done: tuple[Path, StudyResult]) -> None:
    """The same command trains nothing; another seed trains its own runs alone."""
    path, first = done
    runs = path.with_suffix("") / "runs"
    before = {folder.name: (folder / "log.jsonl").stat().st_mtime_ns for folder in runs.iterdir()}
    assert ablate(path, progress=False).rows == first.rows
    assert {folder.name: (folder / "log.jsonl").stat().st_mtime_ns for folder in runs.iterdir()} == before
    more = ablate(path, "seeds=[0,1,2]", parallel=2, progress=False)
    assert {folder.name for folder in runs.iterdir()} - before.keys() == {
        "temperature-0.05-seed2",
        "temperature-0.5-seed2",
    }
    assert [len(row.metrics["held-out"].values) for row in more.rows] == [3, 3]


def test_another_study_or_recipe_is_refused_in_its_folder(done: tuple[Path, StudyResult], tmp_path: Path) -> None:
    """One line, and nothing is touched."""
    path, _ = done
    out = str(path.with_suffix(""))
    with pytest.raises(RunError, match=r"contains the study 'Temperature' .*; expected 'Queue'.*--overwrite"):
        ablate(write_study(tmp_path, title="Queue", out=out), progress=False)
    changed = write_study(tmp_path, out=out, set=[*FAST, "optimizer.lr=1e-4"])
    with pytest.raises(RunError, match=r"temperature-0.05-seed0 have changed since .*restore tiny .*--overwrite"):
        ablate(changed, progress=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="contains files but no study"):
        ablate(write_study(tmp_path, out=str(tmp_path / "other")), progress=False)


def test_overwrite_starts_again_and_deletes_nothing_else(tmp_path: Path) -> None:
    """A study is thrown away and done again; a folder that is no study keeps its files."""
    path = write_study(tmp_path, vary={"contrast.temperature": [0.05]})
    ablate(path, progress=False)
    other = write_study(tmp_path, vary={"contrast.temperature": [0.5]}, title="Another")
    assert [row.name for row in ablate(other, overwrite=True, progress=False).rows] == ["temperature 0.5"]
    assert [run.name for run in (tmp_path / "study" / "runs").iterdir()] == ["temperature-0.5-seed0"]
    mine = tmp_path / "mine" / "runs" / "precious.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    with pytest.raises(RunError, match="contains files but no study"):
        ablate(write_study(tmp_path, out=str(tmp_path / "mine")), overwrite=True, progress=False)
    assert mine.read_text() == "precious"


def test_failed_and_diverged_runs_are_recorded_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code tells; the table counts them; --retry tries them again."""
    rows = {
        "no data": ["data.train=[missing.tsv]"],
        "too fast": ["optimizer.lr=1e30", "optimizer.clip=1e30"],
        "good": [],
    }
    path = write_study(tmp_path, vary=None, rows=rows, axis="names")
    assert main(["ablate", str(path), "--parallel", "2", "--json"]) == 1
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["good"]["metrics"] and not found["good"]["troubles"]
    assert "missing.tsv" in found["no data"]["troubles"]["no-data-seed0"]
    assert found["too fast"]["troubles"]["too-fast-seed0"].startswith("diverged: step")
    assert "Runs that failed" in (tmp_path / "study" / "report.html").read_text("utf-8")
    task = tmp_path / "study" / "results" / "no-data-seed0.json"
    task.write_text(json.dumps({"status": "failed", "reason": "before"}), encoding="utf-8")
    again = ablate(path, retry=True, parallel=2, progress=False)
    assert "missing.tsv" in again.rows[0].troubles["no-data-seed0"]


def test_several_processes_share_a_run(tmp_path: Path, done: tuple[Path, StudyResult]) -> None:
    """Two processes give the losses of one, and the first one writes the result."""
    path = write_study(tmp_path, vary={"contrast.temperature": [0.05]}, seeds=[0])
    result = ablate(path, processes=2, progress=False)
    assert result.is_whole, result.rows[0].troubles
    folders = [study / "runs" / "temperature-0.05-seed0" for study in (tmp_path / "study", done[0].with_suffix(""))]
    two, one = ([line["loss"] for line in read_log(folder / "log.jsonl") if "loss" in line] for folder in folders)
    assert len(two) == 3 and two == pytest.approx(one, rel=1e-4)
    states = [load_file(next(folder.glob("checkpoints/*/generators.safetensors")))["cpu"] for folder in folders]
    assert [len(state) for state in states] == [2, 1]  # one row per process


@pytest.mark.parametrize(("rank", "reason"), [("0", "of the first"), ("1", "of the second")])
def test_a_process_that_fails_says_why_and_ends_the_others(
    rank: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 1, for torchrun; the second process writes only if the first one does not."""

    def fail(task: dict[str, Any]) -> None:
        raise DataError(reason)

    monkeypatch.setattr(study_worker, "_train_and_score", fail)
    monkeypatch.setattr(study_worker, "RECORD_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(study_worker, "_interrupt_when_orphaned", lambda parent: None)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    result, task = tmp_path / "result.json", tmp_path / "task.json"
    task.write_text(json.dumps({"result": str(result)}), encoding="utf-8")
    assert study_worker.train_and_record(str(task)) == 1
    assert json.loads(result.read_text("utf-8")) == {"status": "failed", "reason": reason}
    monkeypatch.setenv("RANK", "1")
    reason = "another"
    assert study_worker.train_and_record(str(task)) == 1
    assert json.loads(result.read_text("utf-8"))["reason"] != "another"


def test_each_process_has_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GPUs are given out in groups; too few of them, no process, or a cluster are refused in one line."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    assert _gpu_groups(2) == ["0,1", "2,3"] and _gpu_groups(1) == ["0", "1", "2", "3", "4"]
    with pytest.raises(ConfigError, match="6 processes per run, and 5 GPUs; expected one GPU per"):
        _gpu_groups(6)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert _gpu_groups(4) == []
    path = write_study(tmp_path)
    for options in ({"processes": 0}, {"processes": 2, "engine": "ray"}):
        with pytest.raises(ConfigError, match=r"processes per run; expected at least 1, and 1 with --engine ray"):
            ablate(path, **options)


def test_a_study_goes_on_after_a_kill(tmp_path: Path, done: tuple[Path, StudyResult]) -> None:
    """Killed between two runs and, while one is at work, interrupted; the results are those of a study that was not."""
    path = write_study(tmp_path, seeds=[0])
    moment = Moment(signal.SIGKILL, "dualmoco.analysis.ablate", "run_task", call=1)
    assert run_command(["ablate", str(path)], tmp_path / "out.txt", moment=moment).code == -signal.SIGKILL
    assert len(list((tmp_path / "study" / "results").iterdir())) == 1
    moment = Moment(signal.SIGINT, "subprocess", "Popen", call=1)
    assert run_command(["ablate", str(path)], tmp_path / "out.txt", moment=moment).code == 128 + signal.SIGINT
    result = ablate(path, progress=False)
    assert result.is_whole
    wanted = [row.metrics["held-out"].values[0] for row in done[1].rows]
    assert [row.metrics["held-out"].values[0] for row in result.rows] == wanted


def test_a_worker_that_breaks_while_interrupted_has_not_failed(tmp_path: Path) -> None:
    """Python ends with any code if it is interrupted as it begins; the run then has no result and is done again."""
    task = {"run": str(tmp_path / "run"), "result": str(tmp_path / "result.json"), "log": str(tmp_path / "log")}
    (tmp_path / "task.json").write_text(json.dumps(task), encoding="utf-8")  # without a recipe: it ends with code 1
    with pytest.raises(KeyboardInterrupt):
        run_task(str(tmp_path / "task.json"), None, Workers(interrupted=True))
    assert not (tmp_path / "result.json").exists()


def test_a_worker_started_in_the_background_can_be_interrupted(tmp_path: Path) -> None:
    """Shells without job control start such processes with SIGINT ignored, which a worker must not inherit."""
    run = tmp_path / "run"
    task = {
        "recipe": "tiny",
        "settings": [f"out={run}"],
        "tasks": "",
        "data": None,
        "run": str(run),
        "result": str(tmp_path / "result.json"),
    }
    (tmp_path / "task.json").write_text(json.dumps(task), encoding="utf-8")
    command = [sys.executable, "-m", "dualmoco.analysis.study", str(tmp_path / "task.json")]
    with locked(run):  # it waits for the folder, and so does nothing else meanwhile
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            worker = subprocess.Popen(command, stderr=subprocess.PIPE)
        finally:
            signal.signal(signal.SIGINT, before)
        deadline = time.monotonic() + 60
        while worker.poll() is None and time.monotonic() < deadline:
            worker.send_signal(signal.SIGINT)
            time.sleep(0.2)
        worker.kill()  # does nothing if the worker has ended
        worker.communicate(timeout=30)
    assert worker.returncode in (130, -signal.SIGINT) and not (tmp_path / "result.json").exists()


def test_a_full_disk_is_recorded(tmp_path: Path) -> None:
    """As the reason of the run that it ended; with room again, --retry brings the study to its end."""
    path = write_study(tmp_path, vary={"contrast.temperature": [0.05]}, seeds=[0])
    finished = run_command(["ablate", str(path), "--json"], tmp_path / "out.json", largest=8_000)
    assert finished.code in (1, 2), finished.error
    (result,) = (tmp_path / "study" / "results").iterdir()
    found = json.loads(result.read_text("utf-8"))
    assert found["status"] == "failed" and "disk" in found["reason"], found
    assert ablate(path, retry=True, progress=False).is_whole


def test_two_processes_in_one_study_are_refused(tmp_path: Path) -> None:
    """One line, and nothing is touched."""
    path = write_study(tmp_path, seeds=[0])
    with (
        locked(tmp_path / "study"),
        pytest.raises(RunError, match="another process"),
    ):
        ablate(path, progress=False)
    assert not (tmp_path / "study" / "results").exists()


def _study(tmp_path: Path, seeds: int = 3) -> Study:
    return read_study(write_study(tmp_path, seeds=list(range(seeds))))


def test_rows_of_two_keys_are_lines_of_a_figure(tmp_path: Path) -> None:
    """A line for each value of the first key and each metric, from left to right over the values of the last."""
    vary = {"objective": ["dual-moco", "in-batch"], "optimizer.batch_size": [16, 8]}
    study = read_study(write_study(tmp_path, vary=vary, seeds=[0]))
    assert [row.group for row in study.rows] == ["objective dual-moco"] * 2 + ["objective in-batch"] * 2
    done = {"status": "done", "heldout": 0.5, "seconds": 1.0, "scores": []}
    (axes,) = draw_rows(gather(study, {run.name: done for run in study.runs})).axes
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "optimizer.batch_size"
    drawn: list[Any] = axes.containers
    lines = {container.get_label(): container.lines[0].get_xdata().tolist() for container in drawn}
    assert lines == {"held-out, objective dual-moco": [8, 16], "held-out, objective in-batch": [8, 16]}


def test_means_spreads_and_p_values(tmp_path: Path) -> None:
    """Against scipy; a row of which a seed failed counts the others; one seed has no spread."""
    study = _study(tmp_path)
    values: list[float | None] = [0.80, 0.81, 0.82, 0.70, 0.74, None]
    results = {
        run.name: {"status": "done", "heldout": value, "seconds": 60.0, "scores": []}
        if value is not None
        else {"status": "failed", "reason": "full disk"}
        for run, value in zip(study.runs, values, strict=True)
    }
    first, second = (row.metrics["held-out"] for row in gather(study, results).rows)
    assert first.mean == pytest.approx(81.0) and first.spread == pytest.approx(1.0) and first.p is None
    assert second.mean == pytest.approx(72.0) and second.values == pytest.approx([70.0, 74.0])
    assert second.p == pytest.approx(ttest_ind([80, 81, 82], [70, 74], equal_var=False).pvalue)
    text = str(gather(study, results))
    assert "81.0 ± 1.0" in text and "1 of 3" in text and "p 0." in text
    alone = replace(study, config=replace(study.config, seeds=[0]), runs=study.runs[::3])
    assert "single seed" in str(gather(alone, {run.name: results[run.name] for run in alone.runs}))


def test_scores_of_tasks_are_columns(tmp_path: Path) -> None:
    """Tatoeba both ways, F1 of mining, and of STS the averages of seven."""
    study = _study(tmp_path, seeds=1)
    names = [
        ("tatoeba", "cmn-eng", "zh-en", "accuracy"),
        ("bucc", "zh-en dev", "threshold cross-fitted", "f1"),
        ("sts", "STS12", "wmean", "spearman"),
        ("sts", "average of 7", "wmean", "spearman"),
    ]
    scores = [
        {"task": task, "subset": subset, "protocol": protocol, "metric": metric, "value": 10.0 * (place + 1)}
        for place, (task, subset, protocol, metric) in enumerate(names)
    ]
    found = {"status": "done", "heldout": 0.5, "seconds": 1.0, "scores": scores}
    result = gather(study, {run.name: found for run in study.runs})
    shown = {name: measured.mean for name, measured in result.rows[0].metrics.items()}
    assert shown == {"held-out": 50.0, "Tatoeba zh-en": 10.0, "BUCC zh-en F1": 20.0, "STS wmean": 40.0}


def test_a_study_of_other_languages_has_its_columns(tmp_path: Path) -> None:
    """An English-German study is evaluated on German-English test sets, whatever the threshold of BUCC comes from."""
    write_tatoeba(tmp_path / "eval" / "tatoeba", pair="deu-eng")
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in generate_pairs(300)), encoding="utf-8")
    german = [*FAST, f"data.train=[{tmp_path / 'pairs.tsv'}]", "data.format=tsv", "tgt.lang=de"]
    path = write_study(tmp_path, vary={"contrast.temperature": [0.05]}, set=german, tasks="tatoeba", curves=[])
    result = ablate(path, data=str(tmp_path), progress=False)
    assert result.is_whole, result.rows[0].troubles
    assert list(result.rows[0].metrics) == ["held-out", "Tatoeba de-en", "Tatoeba en-de"]
    assert "Tatoeba de-en" in result.table().columns
    with pytest.raises(DataError, match="no gold of de-en"):
        (tmp_path / "eval" / "bucc2018").mkdir()
        ablate(path, "tasks=bucc", data=str(tmp_path), progress=False)
    mined = {
        "task": "bucc",
        "subset": "de-en test",
        "protocol": "threshold from training",
        "metric": "f1",
        "value": 7.0,
    }
    best = mined | {"protocol": "gold-optimal threshold", "value": 9.0}
    found = {"status": "done", "heldout": 0.5, "seconds": 1.0, "scores": [mined, best]}
    (row,) = gather(result.study, {run.name: found for run in result.study.runs}).rows
    assert {name: measured.mean for name, measured in row.metrics.items()} == {"held-out": 50.0, "BUCC de-en F1": 7.0}


def test_a_grid_has_a_row_for_each_combination(tmp_path: Path) -> None:
    """In the order of the keys, named by their last words; settings of a run are checked ones."""
    vary = {"contrast.momentum": [0.9, 0.99], "objective": ["dual-moco", "in-batch"]}
    study = read_study(write_study(tmp_path, vary=vary, axis="names", seeds=[0, 5]))
    assert [row.name for row in study.rows] == [
        "momentum 0.9, objective dual-moco",
        "momentum 0.9, objective in-batch",
        "momentum 0.99, objective dual-moco",
        "momentum 0.99, objective in-batch",
    ]
    assert len(study.runs) == 8 and len({run.fingerprint for run in study.runs}) == 8
    assert "seed=5" in study.runs[1].settings and study.runs[1].name == "momentum-0.9-objective-dual-moco-seed5"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"vary": {"contrast.heat": [1]}}, "row heat 1: .*heat"),
        ({"vary": {"contrast.temperature": ["warm"]}, "axis": "names"}, "row temperature warm: .*warm"),
        (
            {"vary": {"contrast.temperature": [-1.0]}},
            "contrast.temperature is -1.0; expected above 0",
        ),
        ({"recipe": "nowhere.yaml"}, "nowhere.yaml: no such recipe"),
        ({"rows": {"a": []}}, "rows or vary, and only one of them"),
        ({"vary": {"objective": ["in-batch"]}}, "axis is log but objective in-batch"),
        ({"vary": {"contrast.temperature": []}}, "at least one value for each key"),
        ({"seeds": [1, 1]}, "one or more, each once"),
        ({"vary": None, "rows": {"a b": [], "a-b": []}, "axis": "names"}, "two rows would share the folder a-b-seed0"),
        ({"surprise": 1}, "surprise"),
        ({"title": ""}, "title is ''; expected a few words"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path: Path, keys: dict[str, object], expected: str) -> None:
    """One line before anything is trained."""
    with pytest.raises(ConfigError, match=expected):
        ablate(write_study(tmp_path, "study", **keys), progress=False)
    assert not (tmp_path / "study").exists()


def test_missing_test_data_are_found_before_training(tmp_path: Path) -> None:
    """Tasks whose files are not there, an unknown task, no such study, no run at a time."""
    path = write_study(tmp_path, tasks="tatoeba")
    (tmp_path / "empty" / "eval").mkdir(parents=True)
    with pytest.raises(Exception, match="tatoeba"):
        ablate(path, data=str(tmp_path / "empty"), progress=False)
    with pytest.raises(ConfigError, match="no such study"):
        ablate(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="0 runs at a time"):
        ablate(path, parallel=0)
    assert not (tmp_path / "study").exists()


def test_masking_of_repeats_can_be_varied(tmp_path: Path) -> None:
    """Off, only the pair itself is masked among the keys of its batch; on, its repeats are too."""
    corpus = tmp_path / "repeats.tsv"
    pairs = generate_pairs(200, seed=3)
    lines = [f"{src}\t{tgt}\n" for src, tgt in pairs] + [f"{src}\t第{row}句。\n" for row, (src, _) in enumerate(pairs)]
    corpus.write_text("".join(lines), encoding="utf-8")
    data = [
        f"data.train=[{corpus}]",
        "data.bucket=100",
    ]  # pairs of one length come together
    rows = {"masked": data, "not masked": [*data, "contrast.mask_repeats=false"]}
    ablate(write_study(tmp_path, vary=None, rows=rows, axis="names", curves=["masked"]), parallel=2, progress=False)
    logs = [read_log(tmp_path / "study" / "runs" / f"{name}-seed0" / "log.jsonl") for name in ("masked", "not-masked")]
    on, off = ([line["masked"] for line in log if "masked" in line] for log in logs)
    assert off == pytest.approx([1 / 16, 1 / 32, 1 / 48]) and sum(on) > sum(off)


STUDIES = sorted((Path(__file__).parents[1] / "studies").rglob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_studies_that_come_with_it_are_whole(path: Path, tmp_path: Path) -> None:
    """Every run's settings pass; the head names the command; folders do not meet."""
    study = read_study(path, data=str(tmp_path))
    folder = "paper-tables/" if path.parent.name == "paper-tables" else ""
    assert path.read_text("utf-8").startswith(f"# dualmoco ablate studies/{folder}{path.name} --data DATA")
    assert study.config.out == f"studies-out/{folder}{path.stem}"
    assert len(study.runs) == len(study.rows) * len(study.config.seeds)


PAPER_TABLES = [path for path in STUDIES if path.parent.name == "paper-tables"]


@pytest.mark.parametrize("path", PAPER_TABLES, ids=lambda path: path.stem)
def test_the_papers_tables_have_a_small_size(path: Path, tmp_path: Path) -> None:
    """At full size the paper's encoders and queue; the command of the head turns the same file into small runs."""
    full = [load_config("paper", run.settings) for run in read_study(path).runs]
    sizes = {config.contrast.queue_size for config in full}
    assert sizes == {204_800} or (path.stem == "figure-2" and max(sizes) == 409_600)
    assert {config.src.name for config in full} == {"bert-base-uncased"}
    head = path.read_text("utf-8").split("\ntitle:")[0].replace(" \\\n#  ", "").replace("\n#   ", "\n")
    (command,) = re.findall(r"^dualmoco (ablate .*recipe=small-cpu.*)$", head, re.MULTILINE)
    parsed = build_parser().parse_args(shlex.split(command))
    small = read_study(path, parsed.overrides, str(tmp_path))
    assert len(small.rows) == (3 if path.stem == "figure-2" else len(full))
    configs = [load_config(small.config.recipe, run.settings) for run in small.runs]
    assert {config.schedule.steps for config in configs} == {300} and {config.src.width for config in configs} == {128}


def test_paper_tables_vary_what_the_paper_varies() -> None:
    """Temperatures of table 4, momentum 0 in table 5, three poolings in table 6."""
    tables = {path.stem: [load_config("paper", run.settings) for run in read_study(path).runs] for path in PAPER_TABLES}
    assert [config.contrast.temperature for config in tables["table-4"]] == [0.01, 0.04, 0.07, 0.1]
    assert [config.contrast.momentum for config in tables["table-5"]] == [0.999, 0.0]
    assert [(config.src.pooling, config.tgt.pooling) for config in tables["table-6"]] == [
        ("mean", "mean"),
        ("max", "max"),
        ("cls", "cls"),
    ]


def test_varied_values_stay_as_typed_where_text_is_expected(tmp_path: Path) -> None:
    """Norwegian is not a boolean, in a file or as an override; numbers are still numbers on the axis."""
    path = write_study(tmp_path, vary=None, axis="names")
    keys = "{title: A, recipe: tiny, out: study, vary: {optimizer.lr: [1e-4, 2_0e-4], tgt.lang: [no, de]}}"
    path.write_text(keys, encoding="utf-8")
    rows = read_study(path).rows
    assert [row.settings[1] for row in rows] == ["tgt.lang=no", "tgt.lang=de"] * 2
    assert [run.pairs for run in read_study(path, ["seeds=[0]"]).runs] == ["no-en", "de-en"] * 2
    path.write_text(keys.partition(", vary")[0] + "}", encoding="utf-8")
    varied = read_study(path, ["vary={tgt.lang: [no], contrast.temperature: [5e-2, 0.50]}", "axis=log"])
    assert [(row.name, row.value) for row in varied.rows] == [
        ("lang no, temperature 5e-2", 0.05),
        ("lang no, temperature 0.50", 0.5),
    ]
