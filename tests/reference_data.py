"""Tables about file formats, models, recipes and Python names, from the code itself: part of `make reference`."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import dualmoco
from dualmoco import EXTRAS, LAZY_EXPORTS
from dualmoco.alignment.documents import PARAGRAPH_READERS
from dualmoco.alignment.output import ALIGNMENT_COLUMNS, ALIGNMENT_ENDINGS, AlignedPair
from dualmoco.cli.main import COMMAND_EXTRAS
from dualmoco.data.readers.formats import READERS
from dualmoco.mining.io import PACKED_ENDING, PAIRS_ENDINGS, MinedPair
from dualmoco.models import load
from dualmoco.models.embedded import CHECKSUMS, EMBEDDED, HOME, is_installed
from dualmoco.models.folder import CALIBRATION_FILE, HYBRID_FILE, MODEL_CARD
from reference_commands import in_cell
from reference_keys import comments

ROOT = Path(__file__).parents[1]
RECIPES = HOME.parent / "recipes"
TOPICS = {
    "models": "Models",
    "embeddings": "Vectors",
    "search": "Search",
    "mining": "Mining",
    "alignment": "Alignment",
    "data": "Data",
    "training": "Training",
    "evaluation": "Evaluation",
    "analysis": "Planning and studies",
    "server": "Studio",
    "core": "Errors",
}
"""Title of the page about the public names of each folder of the package."""


def rows(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *cells])


def first_line(name: Callable[..., object]) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(name) or "").splitlines()[0]


def summary_in_source(module: str, name: str) -> str:
    """The first line of the docstring of a public function or class, read from its file, which takes no import."""
    path = HOME.parent.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").splitlines()[0]
    raise LookupError(f"{path}: has no {name}")


def bitext_formats() -> str:
    """What `prepare` and others read."""
    cells = [[f"`{name}`", " ".join(endings), first_line(reader)] for name, (reader, endings) in READERS.items()]
    return rows(["Format", "Extensions", "What is read"], cells)


def document_formats() -> str:
    """What `align` reads."""
    text = f"Plain text, `.pdf`, {', '.join(f'`{ending}`' for ending in PARAGRAPH_READERS)}."
    return textwrap.fill(text, 100, break_on_hyphens=False)


def pair_files() -> str:
    """What `mine`, `score` and `paraphrases` write."""
    packed = ", ".join(f"`{ending}`" for ending in PAIRS_ENDINGS)
    return f"{packed}. All but `.parquet` may be followed by `{PACKED_ENDING}`."


def pair_columns() -> str:
    """The columns of a file of pairs."""
    described = comments(MinedPair)
    return rows(["Column", "Meaning"], [[f"`{name}`", described[name]] for name in MinedPair._fields])


def alignment_files() -> str:
    """What `align` writes, and the columns of a row."""
    described = comments(AlignedPair)
    table = rows(["Column", "Meaning"], [[f"`{name}`", in_cell(described[name])] for name in ALIGNMENT_COLUMNS])
    return f"{', '.join(f'`{ending}`' for ending in ALIGNMENT_ENDINGS)}.\n\n{table}"


def model_names() -> str:
    """The forms of a model's name, as the module that opens models lists them."""
    lines = [line.strip() for line in (load.__doc__ or "").splitlines() if line.startswith("    ")]
    cells = [re.split(r" {2,}", line) for line in lines]
    return rows(["Name", "What it opens"], [[f"`{name}`", meaning] for name, meaning in cells])


def embedded_models() -> str:
    """The models that come with the package, from their files; a model that needs another package is left out."""
    checksums = json.loads((HOME / CHECKSUMS).read_text(encoding="utf-8"))
    cells = []
    for name in EMBEDDED:
        if not is_installed(name) or not {*_parts(name)} <= {
            *EMBEDDED,
            *(path.name for path in (HOME / name).iterdir()),
        }:
            continue
        model = dualmoco.load(name)
        found = json.loads((HOME / name / CALIBRATION_FILE).read_text(encoding="utf-8"))["calibrations"]
        thresholds = sorted({f"{calibration['threshold']:.4f}" for calibration in found})
        folders = [HOME / name, *(HOME / part for part in _parts(name) if part in EMBEDDED)]
        cells.append(
            [
                f"`{name}`",
                ", ".join(model.languages or ()),
                str(model.dimension),
                f"{sum(map(_size, folders)) / 1e6:.1f}",
                " to ".join(dict.fromkeys([thresholds[0], thresholds[-1]])),
                f"`{checksums[name][:12]}`",
            ]
        )
    return rows(["Name", "Languages", "Dimension", "MB", "Threshold", "Checksum"], cells)


def _parts(name: str) -> list[str]:
    """The parts of a hybrid: folders in its own, other embedded models, or installed packages."""
    hybrid = HOME / name / HYBRID_FILE
    parts = json.loads(hybrid.read_text(encoding="utf-8"))["parts"] if hybrid.is_file() else []
    return [part.get("folder") or part["model"] for part in parts]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != MODEL_CARD)


def extras() -> str:
    """The optional dependencies of the package, and the commands that need them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cells = []
    for extra, packages in project["optional-dependencies"].items():
        names = [re.split(r"[<>=]", package)[0] for package in packages if package != "dualmoco[all]"]
        needed = [f"`{command}`" for command, name in COMMAND_EXTRAS.items() if name == extra]
        cells.append([f"`{extra}`", ", ".join(names), ", ".join(needed)])
    return rows(["Extra", "Packages", "Commands that need it"], cells)


def recipes() -> str:
    """The recipes of the package, with the first sentence of their comments."""
    cells = []
    for path in sorted(RECIPES.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        command = lines[0].removeprefix("# ")
        found = [line for line in lines[2:] if re.match(r"# (?!after:|  )", line)]
        text = " ".join(line.removeprefix("# ") for line in found)
        sentence = re.split(r"\.(?: |$)", text)[0].removesuffix(":")
        cells.append([f"`{path.name}`", f"`{command.split()[1]}`", in_cell(f"{sentence}.")])
    return rows(["Recipe", "Command", "What it does"], cells)


def public_names() -> dict[str, list[str]]:
    """The public names by the folder of the package that they come from; those of models first."""
    found: dict[str, list[str]] = {folder: [] for folder in TOPICS}
    for name, (module, _) in sorted(LAZY_EXPORTS.items()):
        found["training" if name == "train" else module.partition(".")[0]].append(name)
    return found


def python_table() -> str:
    """One row per public name."""
    cells = [
        [
            f"[`{name}`](python/{folder}.md)",
            in_cell(summary_in_source(*LAZY_EXPORTS[name])),
            f"`{EXTRAS[name]}`" if name in EXTRAS else "",
        ]
        for folder, names in public_names().items()
        for name in names
    ]
    return rows(["Name", "What it is or does", "Extra"], cells)


def python_page(folder: str) -> str:
    """The page about the public names of a folder; mkdocstrings fills in signatures and docstrings."""
    parts = [f"# {TOPICS[folder]}", "", f"The public names of `dualmoco` from `src/dualmoco/{folder}/`."]
    return "\n".join([*parts, *(f"\n::: dualmoco.{name}" for name in public_names()[folder])]) + "\n"
