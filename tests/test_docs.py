"""The README and the docs are correct: their tree, links, recipes and code."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest

from dualmoco.cli.main import build_parser
from testsets import write_all

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PYTHON = [
    page for page in PAGES if "```python" in page.read_text(encoding="utf-8") and page.parent.name != "tutorials"
]
"""Pages with Python blocks; test_tutorials.py runs those of the tutorials."""
OTHER_LIBRARIES = {"haystack", "lancedb", "langchain_core", "llama_index"}  # examples use them, dualmoco does not
COMMAND = re.compile(r"^(?:    )?(?:torchrun .*-m |accelerate launch .*-m )?dualmoco (.*)$", re.MULTILINE)


def page_name(page: Path) -> str:
    """The path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_name)
def test_python_examples_run(page: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs as printed, in a folder that has some runs; DATA is a folder of small test sets."""
    (tmp_path / "runs").mkdir()
    for run in ("demo", "tiny"):
        (tmp_path / "runs" / run).symlink_to(tiny_model.parent)
    write_all(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    absent = set[str]()
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        imported = set(re.findall(r"^(?:from|import) (\w+)", block, flags=re.MULTILINE))
        if missing := {name for name in imported & OTHER_LIBRARIES if not find_spec(name)}:
            absent |= missing
            continue
        # Inherited from this file, `annotations` of __future__ would turn the types of the page into strings.
        exec(compile(block, str(page), "exec", dont_inherit=True), {"__name__": "page", "DATA": str(tmp_path / "data")})
    if absent:
        pytest.skip(f"blocks were left out because these packages are not installed: {', '.join(sorted(absent))}")


def command_words(line: str) -> list[str]:
    """The words of a command as a shell sees them, up to a pipe, a redirection or a comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    return list(takewhile(lambda word: not set(word) <= set("|<>;&"), lexer))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every `dualmoco ...` line of a code block parses without a hint at a new spelling, and its recipes exist."""
    text = page.read_text(encoding="utf-8")
    code = "\n".join(
        [*re.findall(r"^    .*$", text, re.MULTILINE), *re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)]
    )
    for line in COMMAND.findall(code):
        words = command_words(line.replace("[--", "--").replace("]", "").removesuffix("\\"))
        if {"RECIPE.yaml", "COMMAND", "--print-completion", "--version"} & set(words):
            continue
        parsed = build_parser().parse_args(words)
        recipes = [word for word in words if word.endswith(".yaml")]
        assert parsed.command and all((ROOT / recipe).is_file() for recipe in recipes)
    assert capsys.readouterr().err == ""


def test_tree_names_every_folder_and_only_those() -> None:
    """The diagram of the page on architecture has the package's folders."""
    page = ROOT / "docs" / "contributing" / "architecture.md"
    diagram = page.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    named = re.findall(r"^(\w+)/ ", diagram, flags=re.MULTILINE)
    package = ROOT / "src" / "dualmoco"
    assert set(named) == {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings by GitHub's rule; a repeated heading gets a number."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: Counter[str] = Counter()
    result = set()
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)? *$", text, flags=re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        result.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return result


def test_anchors_follow_githubs_rule(tmp_path: Path) -> None:
    """Punctuation goes, spaces become hyphens, repeated headings are numbered, and code is no heading."""
    page = tmp_path / "page.md"
    page.write_text(
        "# The paper's `rows`\n## A - b\n## Rows\n## Rows\n### See [this](there.md) ##\n```\n# code\n```\n", "utf-8"
    )
    assert anchors(page) == {"the-papers-rows", "a---b", "rows", "rows-1", "see-this"}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    """Files and pictures of relative links exist, and so do the headings that their anchors name."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in (link for link in links if not re.match(r"\w+:", link)):
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), f"{link} leads to no file"
        assert not anchor or anchor in anchors(path), f"{link} leads to no heading; {path.name} has {anchors(path)}"
