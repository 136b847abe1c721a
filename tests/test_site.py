"""The site builds without a warning, a broken link ends the build, and what is generated is current."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dualmoco
import reference
import reference_commands
import reference_keys
from dualmoco.training.config import ContrastConfig

MOST_LINES = 150
GENERATED = set(reference.whole_pages())
WRITTEN = sorted(set(reference.DOCS.rglob("*.md")) - GENERATED)


def build(folder: Path, pages: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Builds a site of a few pages with the settings of ours."""
    for name, text in pages.items():
        (folder / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    settings = (reference.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = "".join(f"  - {name}\n" for name in pages)
    (folder / "mkdocs.yml").write_text(f"{settings.split('nav:')[0]}nav:\n{nav}", encoding="utf-8")
    return run_zensical(folder)


def run_zensical(folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of a folder strictly."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_whole_site_builds_strictly(tmp_path: Path) -> None:
    """Every page is built, with its links and anchors checked, and shows the docstrings of the Python reference."""
    shutil.copytree(reference.DOCS, tmp_path / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md"):  # paths in a linked file would be relative to its own folder
        shutil.copy(reference.ROOT / name, tmp_path / name)
    (tmp_path / "src").symlink_to(reference.ROOT / "src")
    done = run_zensical(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.relative_to(tmp_path / "build" / "site") for path in (tmp_path / "build" / "site").rglob("*.html")}
    expected = {path.relative_to(reference.DOCS).with_suffix(".html") for path in reference.DOCS.rglob("*.md")}
    assert expected <= built
    shown = (tmp_path / "build/site/reference/python/mining.html").read_text(encoding="utf-8")
    assert 'id="dualmoco.mine"' in shown and "min_precision" in shown


@pytest.mark.parametrize(
    ("link", "passes"), [("other.md#a-heading", True), ("other.md#no-heading", False), ("missing.md", False)]
)
def test_broken_links_end_the_build(tmp_path: Path, link: str, passes: bool) -> None:
    """A link to a page or a heading that does not exist is an error, and one that exists is not."""
    done = build(tmp_path, {"index.md": f"# Home\n\nSee [this]({link}).\n", "other.md": "# Other\n\n## A heading\n"})
    assert (done.returncode == 0) == passes, done.stdout + done.stderr
    assert passes or "index.md:3" in done.stdout + done.stderr


def test_navigation_has_every_page_once() -> None:
    """No page is left out of the site, except the pages of single commands and names, which their index links to."""
    pages = [page for _, _, page in reference.titled_pages(reference.read_config()["nav"])]
    assert len(pages) == len(set(pages))
    below = {path for path in GENERATED if path.parent.name in ("commands", "python")}
    expected = {path.relative_to(reference.DOCS).as_posix() for path in set(reference.DOCS.rglob("*.md")) - below}
    assert set(pages) == expected


def test_generated_pages_and_tables_are_current() -> None:
    """Every generated page and table is what `make reference` writes, and no page is left from a removed command."""
    for path, text in reference.expected_files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `make reference`"
    folders = [reference.DOCS / "reference" / "commands", reference.DOCS / "reference" / "python"]
    assert {page for folder in folders for page in folder.glob("*.md")} <= GENERATED
    assert (reference.DOCS / "llms.txt").read_text(encoding="utf-8") == reference.llms_txt(), "run `make reference`"


def test_reference_is_complete() -> None:
    """Each key, option and public name is on the page where a reader looks for it."""
    assert reference_keys.recipe_keys().count("| `contrast.") == len(reference_keys.comments(ContrastConfig)) > 5
    page = reference_commands.command_page("mine")
    leaf = reference_commands.leaves()["mine"]
    assert all(f"`{option}`" in page for action in leaf._actions for option in action.option_strings)
    names = set(dualmoco.__all__) - {"__version__"}
    python = (reference.DOCS / "reference" / "python").glob("*.md")
    shown = re.findall(r"^::: dualmoco\.(\w+)$", "".join(page.read_text("utf-8") for page in python), re.MULTILINE)
    assert sorted(shown) == sorted(names)


def test_markers_are_replaced_and_unknown_ones_refused() -> None:
    """Only what stands between two markers changes, and a name that nothing generates is an error."""
    page = "before\n<!-- generated: exit-statuses -->\nold\n<!-- end: exit-statuses -->\nafter\n"
    new = reference.fill_in(page)
    assert new.startswith("before\n<!-- generated: ") and new.endswith("-->\nafter\n")
    assert "old" not in new and "| 70 |" in new and reference.fill_in(new) == new
    with pytest.raises(KeyError):
        reference.fill_in(page.replace("exit-statuses", "nothing"))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(reference.DOCS)))
def test_pages_are_short(page: Path) -> None:
    """A page has one subject and at most 150 lines, wrapped at 100 characters except tables, code and links."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    is_code = False
    for number, line in enumerate(lines, start=1):
        is_code ^= line.startswith("```")
        assert is_code or len(line) <= 100 or re.match(r"[|<!]|\[|    |```", line), f"{page.name}:{number} is too long"
