"""The tutorials work: their blocks are run in order, in a new folder, and print what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from dualmoco.cli.main import main

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PLAIN_COMMAND = re.compile(r"dualmoco [^|<>&;$`]*")
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_block(kind: str, code: str, names: dict[str, Any]) -> str:
    """Runs a block, every part of which must succeed; gives what it printed to standard output."""
    if kind == "sh":
        return "".join(run_line(line) for line in code.replace("\\\n", " ").splitlines() if line.strip())
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "tutorial", "exec"), names)
    return printed.getvalue()


def run_line(line: str) -> str:
    """Runs a line of a shell: `dualmoco` alone in this process, which has imported the libraries, others in bash."""
    if PLAIN_COMMAND.fullmatch(line):
        printed = StringIO()
        with redirect_stdout(printed):
            assert main(["--quiet", *shlex.split(line, comments=True)[1:]]) == 0, line
        return printed.getvalue()
    done = subprocess.run(["bash", "-e", "-o", "pipefail"], input=line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def masked(text: str) -> str:
    """A text without its decimal digits, which differ in the last places between machines."""
    return re.sub(r"\d+\.\d+", "0.0", text)


def run_tutorial(text: str) -> Iterator[tuple[str, str]]:
    """Runs the blocks of a page; yields each output that it shows, and what the block before printed."""
    names: dict[str, Any] = {}
    printed = ""
    for kind, code in BLOCK.findall(text):
        if kind == "text":
            yield code, printed
        else:
            printed = run_block(kind, code, names)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples and the recipes, in which `dualmoco` is this copy of the package."""
    for name in ("examples", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = tmp_path / "bin" / "dualmoco"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dualmoco --quiet "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("workshop")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page: Path) -> None:
    """Every command and Python block succeeds, and each output that the page shows is among what was printed."""
    for shown, printed in run_tutorial(page.read_text(encoding="utf-8")):
        missing = [line for line in masked(shown).splitlines() if line.strip() not in masked(printed)]
        assert not missing, f"{missing} not in\n{printed}"


@pytest.mark.usefixtures("workshop")
@pytest.mark.parametrize(
    "code",
    [
        "```sh\nfalse\n```\n",
        "```sh\nfalse | true\n```\n",
        "```sh\ndualmoco nothing\n```\n",
        "```python\nassert False\n```\n",
    ],
)
def test_a_failing_block_is_noticed(code: str) -> None:
    """A command that fails, also within a pipe, and an error in Python end the tutorial."""
    with pytest.raises(AssertionError):
        list(run_tutorial(code))
