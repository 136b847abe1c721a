"""The README and the docs tell the truth: their tree, links, recipes and code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualmoco.cli.main import build_parser
from testsets import write_all

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs as printed, in a folder that has some runs; DATA is a folder of small test sets."""
    (tmp_path / "runs").mkdir()
    for run in ("demo", "tiny"):
        (tmp_path / "runs" / run).symlink_to(tiny_model.parent)
    write_all(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), {"DATA": str(tmp_path / "data")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path) -> None:
    """Every `dualmoco ...` line of a code block parses, and the recipes it names exist."""
    lines = re.findall(
        r"^    (?:torchrun .*-m |accelerate launch .*-m )?dualmoco (.*)$",
        page.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    for line in lines:
        words = line.split("#")[0].replace("[--", "--").replace("]", "").split()
        if "RECIPE.yaml" in words:
            continue
        parsed = build_parser().parse_args(words)
        recipes = [word for word in words if word.endswith(".yaml")]
        assert parsed.verb and all((ROOT / recipe).is_file() for recipe in recipes)


def test_tree_names_every_folder_and_only_those() -> None:
    """The README's tree is the package's, in at most fifteen lines."""
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("src/dualmoco/\n")[1].split("```")[0]
    named = re.findall(r"^  (\w+)/ ", tree, flags=re.MULTILINE)
    package = ROOT / "src" / "dualmoco"
    assert set(named) == {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert len(tree.splitlines()) <= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links and pictures exist."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
