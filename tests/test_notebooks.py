"""The notebooks run from the first cell to the last; their own asserts check what they show."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat.v4
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


def run_notebook(path: Path, folder: Path) -> None:
    """Runs a notebook in a folder of its own within a copy of the examples."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new `examples/notebooks` next to the example texts; the kernel imports this copy of the package."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "src"))
    return tmp_path / "examples" / "notebooks"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, folder: Path) -> None:
    """Every cell of a notebook succeeds, and the file in the repository has no outputs that could be stale."""
    assert not any(cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells)
    run_notebook(path, folder)


def test_a_failing_cell_is_noticed(tmp_path: Path) -> None:
    """A cell whose assertion is wrong fails the test."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    with pytest.raises(CellExecutionError, match="assert 1 == 2"):
        run_notebook(tmp_path / "wrong.ipynb", tmp_path)
