"""The demo: from the source folder, and from an installed wheel in an empty folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dualmoco.cli.demo import hide_pairs, read_demo_pairs
from dualmoco.cli.main import main
from dualmoco.core.config_loader import find_recipe
from dualmoco.core.errors import ConfigError

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


def test_installed_demo_finds_translations_and_learns(installed: Path, tmp_path: Path) -> None:
    """On the installed package alone, in a folder with nothing but an older demo, which is replaced.

    The embedded model compares, searches and mines back what was hidden; the tiny one retrieves far better after
    training; the report sets figures of the demo's sentences beside nobody else's.
    """
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import dualmoco; print(dualmoco.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert found.strip() == str(installed / "dualmoco" / "__init__.py")
    out = tmp_path / "runs" / "demo"
    out.mkdir(parents=True)
    (out / "demo.json").write_text("{}", encoding="utf-8")
    (out / "rubbish").write_text("of the older demo", encoding="utf-8")
    words = [sys.executable, "-m", "dualmoco", "demo", *SHORT_DEMO]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    cosines = [float(line.split()[0]) for line in shown.splitlines() if "The ferry was cancelled" in line]
    assert cosines[0] == cosines[1] > cosines[2] > cosines[3]  # both scripts, the same topic, another
    assert "640 English and Chinese sentences" in shown and "threshold" in shown
    record = json.loads((out / "demo.json").read_text(encoding="utf-8"))
    assert record["mined"]["precision"] > 0.9 and record["mined"]["recall"] > 0.9
    assert record["tiny"]["after"] > record["tiny"]["before"] + 0.3
    assert "SentenceTransformer('runs/demo/tiny/model').encode(texts, task='zh')" in shown
    assert shown.rstrip().endswith("dualmoco serve my-project")
    assert (out / "pairs.tsv").is_file() and (out / "tiny" / "model" / "modules.json").is_file()
    assert not (out / "rubbish").exists() and [path.name for path in tmp_path.iterdir()] == ["runs"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("sentences written for the demo") == 4  # its line, two tables, a caption
    for foreign in ("Tatoeba", "BUCC", "MoCo-BERT", "LASER", "EMNLP"):
        assert foreign not in page.partition('id="signatures"')[0]


def test_hidden_pairs_are_where_they_are_said_to_be() -> None:
    """Of every other sentence the translation is missing; nothing stands in order."""
    pairs = read_demo_pairs()
    (src, tgt), gold = hide_pairs(pairs)
    translations = {pair.src: pair.tgt for pair in pairs}
    assert len(pairs) == len(translations) == 320 and len(gold) == 100 and len(src) == len(tgt) == 210
    assert all(translations[src[a - 1]] == tgt[b - 1] for a, b in gold)
    assert sum(translations[text] in tgt for text in src) == 100
    assert sum(a == b for a, b in gold) < 5


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
def test_demo_deletes_only_demos(content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without a demo, or a file, is refused and left as it is."""
    out = tmp_path / "precious"
    if content:
        out.mkdir()
    file = out / content if content else out
    file.write_text("years of work", encoding="utf-8")
    assert main(["demo", "--out", str(out), *SHORT_DEMO]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"dualmoco: {out}: not a demo") and captured.err.count("\n") == 1
    assert captured.out == "" and file.read_text(encoding="utf-8") == "years of work"
