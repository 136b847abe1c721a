"""The order of the package's files, and what none of them may do, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dualmoco

ROOT = Path(dualmoco.__file__).parent
FOLDERS = "core text data models embeddings search mining alignment training evaluation analysis server cli"
LAYERS = [*FOLDERS.split(), "__init__", "__main__"]
"""The folders in import order; each imports only from itself and from those before it."""
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
    for path in sorted(ROOT.rglob("*.py"))
}
PICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}


def imports(source: str) -> Iterator[str]:
    """Yields every module, or module.name, that a file imports, at its head or inside a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def own_imports(source: str) -> set[str]:
    """Names, as in FILES, of the package's files that a file imports."""
    found = set()
    for name in imports(source):
        parts = name.split(".")
        assert parts[0], f"{name}: expected absolute imports"
        if parts[0] == "dualmoco":
            starts = (".".join(parts[1:end]) for end in range(len(parts), 1, -1))
            files = (file for start in starts for file in (start, f"{start}.__init__") if file in FILES)
            found.add(next(files, "__init__"))
    return found


def calls(source: str) -> Iterator[str]:
    """Yields the dotted name of everything a file calls."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def rank(name: str) -> int:
    """The layer of a file."""
    return LAYERS.index(name.partition(".")[0])


def test_readers_see_every_form_of_import_and_call() -> None:
    """What the tests below rest on finds imports of all kinds, and calls."""
    source = """
import torch, dualmoco.core.errors
from dualmoco import load
from dualmoco.core import storage
from dualmoco.data.pairs import Pairs
def f():
    from dualmoco.text import files
    return torch.load(print("x"))
"""
    assert own_imports(source) == {"core.errors", "core.storage", "__init__", "data.pairs", "text.files"}
    assert "torch" in set(imports(source))
    assert sorted(calls(source)) == ["print", "torch.load"]


def test_every_file_has_its_layer() -> None:
    """A new file must be given a place in the order, a removed one leaves it."""
    assert {name.partition(".")[0] for name in FILES} == set(LAYERS)


def test_files_import_only_from_folders_before_theirs() -> None:
    """A file imports from its own folder or from one nearer the top."""
    wrong = {
        name: sorted(other for other in own_imports(source) if rank(other) > rank(name))
        for name, source in FILES.items()
    }
    assert not {name: others for name, others in wrong.items() if others}


def test_imports_have_no_cycle() -> None:
    """Files of one layer may import each other, but never in a circle."""
    left = {name: own_imports(source) for name, source in FILES.items()}
    while left:
        free = {name for name, needs in left.items() if not needs & left.keys()}
        assert free, f"import each other: {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_files_never_unpickle() -> None:
    """Nothing is read or written in a format that can run code."""
    used = {name: {*imports(source), *calls(source)} for name, source in FILES.items()}
    assert not {name for name, found in used.items() if {part.partition(".")[0] for part in found} & PICKLES}
    assert not {name for name, found in used.items() if found & {"torch.load", "torch.save"}}


def test_only_encoders_know_sentence_transformers() -> None:
    """The library that saves models is imported where encoders are made, saved and opened."""
    roots = {name: {module.partition(".")[0] for module in imports(source)} for name, source in FILES.items()}
    users = [name for name, found in roots.items() if "sentence_transformers" in found]
    assert users and all(name.startswith("models.") for name in users)


def test_files_never_print() -> None:
    """Results are written to stdout on purpose, logs through logging."""
    assert not [name for name, source in FILES.items() if "print" in calls(source)]


def public_names(source: str) -> Iterator[str]:
    """Yields the public classes, functions and constants of a file."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        else:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        yield from (name for name in names if not name.startswith("_"))


def test_one_name_means_one_thing() -> None:
    """No two modules share a name, nor a class, function or constant, except for what every command or page has."""
    homes: dict[str, list[str]] = {}
    for file, source in FILES.items():
        for name in public_names(source):
            homes.setdefault(name, []).append(file)
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert not {name: files for name, files in shared.items() if name not in ("add", "run", "routes", "logger")}
    modules = [name.rpartition(".")[2] for name in FILES if not name.startswith("cli.")]
    assert not {name for name in modules if modules.count(name) > 1} - {"__init__", "config"}
