"""The demo: from the source folder, and from an installed wheel in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError
from dualmoco.core.recipes import find_recipe

ROOT = Path(__file__).resolve().parents[1]
SHORT_DEMO = ["schedule.steps=60", "schedule.evaluate_every=60", "data.train=[grammar:3000]", "data.heldout=200"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the package as the wheel installs it, and nothing else."""
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True)
    shutil.rmtree(source)
    return target


def test_installed_demo_learns_and_finds_translations(installed: Path, tmp_path: Path) -> None:
    """On the installed package alone, in a folder with nothing but an older demo, which is replaced.

    The shortened demo retrieves far better after training, shows translations, mines, and writes a report that sets its
    toy model beside nobody else's.
    """
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import dualmoco; print(dualmoco.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert found.strip() == str(installed / "dualmoco" / "__init__.py")
    out = tmp_path / "runs" / "demo"
    out.mkdir(parents=True)
    (out / "config.yaml").write_text("out: an older demo\n", encoding="utf-8")
    (out / "rubbish").write_text("of the older demo", encoding="utf-8")
    words = [sys.executable, "-m", "dualmoco", "demo", *SHORT_DEMO]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    scores = re.search(r"held-out retrieval, .*: (\d+\.\d) % before, (\d+\.\d) % after 60 steps", shown)
    assert scores
    before, after = map(float, scores.groups())
    assert after > before + 30
    assert shown.count("<- its translation") >= 1
    assert "nearest of 200 held-out zh sentences for some en ones" in shown
    assert "Mining 66 pairs hidden in" in shown and "report.html" in shown
    assert "SentenceTransformer('runs/demo/model').encode(texts, task='zh')" in shown
    assert (out / "pairs.tsv").is_file() and (out / "model" / "modules.json").is_file()
    assert not (out / "rubbish").exists() and [path.name for path in tmp_path.iterdir()] == ["runs"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("held-out sentences of the demo&#39;s grammar") == 4  # its line, two tables, a caption
    for foreign in ("Tatoeba", "BUCC", "MoCo-BERT", "LASER", "EMNLP"):
        assert foreign not in page.partition('id="signatures"')[0]


@pytest.mark.parametrize("name", ["tiny", "tiny.yaml", "recipes/tiny.yaml"])
def test_recipes_come_with_the_package(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from the source folder a recipe is found by its name; a file of the user's goes before it."""
    monkeypatch.chdir(tmp_path)
    packaged = find_recipe(name)
    assert packaged.name == "tiny.yaml" and packaged.read_text(encoding="utf-8").startswith("# dualmoco train")
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("out: mine\n", encoding="utf-8")
    assert find_recipe(name).resolve() == own


@pytest.mark.parametrize("name", ["huge", "other/tiny.yaml", "tiny.yml", "recipes"])
def test_unknown_recipes_are_refused_with_those_there_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that lists the recipes of the package."""
    monkeypatch.chdir(tmp_path)
    names = sorted(path.stem for path in (Path(__file__).parents[1] / "recipes").glob("*.yaml"))
    assert {"tiny", "paper", "join-german"} < set(names)
    listed = ", ".join(names)
    with pytest.raises(ConfigError, match=rf"^{re.escape(name)}: no such recipe; expected .*: {listed}$"):
        find_recipe(name)


@pytest.mark.parametrize("content", ["thesis.txt", None], ids=["folder", "file"])
def test_demo_deletes_nothing_but_runs(content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without a run, or a file, is refused and left as it is."""
    out = tmp_path / "precious"
    if content:
        out.mkdir()
    file = out / content if content else out
    file.write_text("years of work", encoding="utf-8")
    assert main(["demo", "--out", str(out), *SHORT_DEMO]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        f"dualmoco: {out}: holds no run; the demo replaces only runs: choose another folder with --out\n"
    )
    assert captured.out == "" and file.read_text(encoding="utf-8") == "years of work"
