"""The pages about the keys of YAML files, from the dataclasses that hold them: part of `make reference`.

The description of a key is the comment after its field.
"""

from __future__ import annotations

import ast
import inspect
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from io import StringIO
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from dualmoco.analysis.study import StudyConfig
from dualmoco.data.config import PrepareConfig
from dualmoco.training.config import LanguageConfig, TrainConfig
from dualmoco.training.objectives import BUILT_IN, OBJECTIVES

RECIPE_HEAD = """# Recipe keys

Every key of a training recipe with its type, default and meaning. A key can be set in the recipe or
on the command line, such as `contrast.queue_size=8192`.
[Train a pair](../guides/training.md) explains how the keys work together. The values of `objective`
are listed [at the end](#values-of-objective).
"""
LANGUAGES_NOTE = "`encoder` has the same keys as `src` and `tgt`, and `data` the same keys as the section `data`.\n"
PREPARE_HEAD = """# Keys of `prepare`

Every key of a recipe for [`dualmoco prepare`](commands/prepare.md) with its type, default and
meaning. A key can be set in the recipe or on the command line, such as `heldout=2000`.
[Prepare a corpus](../guides/corpora.md) explains the steps.
"""
STUDY_HEAD = """# Keys of a study

Every key of a study for [`dualmoco ablate`](commands/ablate.md) with its type, default and meaning.
[Compare settings](../guides/studies.md) explains studies.
"""


def comments(schema: type) -> dict[str, str]:
    """The comment at the end of each field of a dataclass."""
    source = inspect.getsource(schema)
    found = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        node.target.id: found[node.end_lineno]
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in found
    }


def keys(schema: type, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields key, type, default and description of each field that is not itself a topic."""
    kinds, described = get_type_hints(schema), comments(schema)
    for field in fields(schema):
        kind = kinds[field.name]
        if is_dataclass(kind) or (schema is LanguageConfig and field.name in ("encoder", "data")):
            continue
        yield f"{prefix}{field.name}", _kind(kind), _default(field), described[field.name]


def _kind(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{choice.value}`" for choice in kind)
    inner = get_args(kind)
    if not inner:
        return str(kind.__name__)
    if isinstance(kind, UnionType):
        return " or ".join("null" if one is NoneType else str(one.__name__) for one in inner)
    names = ["items, see below" if is_dataclass(word) else str(getattr(word, "__name__", word)) for word in inner]
    return f"{kind.__origin__.__name__} of {', '.join(names)}"


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in ("", [], {}, None) else ""


def table(title: str, schema: type, prefix: str) -> str:
    """One topic as a section with a table."""
    rows = keys(schema, prefix)
    lines = [f"| `{key}` | {kind} | {default} | {words.replace('|', '&#124;')} |" for key, kind, default, words in rows]
    head = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", (schema.__doc__ or "").splitlines()[0], "", *head, *lines]) + "\n"


def dataclasses_of(schema: type) -> Iterator[tuple[str, type]]:
    """Yields name and class of the fields of a dataclass that are dataclasses themselves, or lists of some."""
    for name, kind in get_type_hints(schema).items():
        found = kind if is_dataclass(kind) else next(iter(get_args(kind)), None)
        if is_dataclass(found) and isinstance(found, type):
            yield name, found


def recipe_keys() -> str:
    """The page about the keys of a training recipe."""
    sections = [table("Run", TrainConfig, "")]
    shown = set()
    for name, kind in dataclasses_of(TrainConfig):
        if kind in shown:
            continue
        shown.add(kind)
        if kind is LanguageConfig:
            sections += [table(f"Items of `{name}`", kind, ""), LANGUAGES_NOTE]
            continue
        sections.append(table("`src` and `tgt`" if name == "src" else f"`{name}`", kind, _prefix(name)))
        for key, inner in dataclasses_of(kind):
            is_list = key == "curriculum"
            title = f"Items of `{name}.{key}`" if is_list else f"`{key}` of `src` and `tgt`"
            sections.append(table(title, inner, "" if is_list else f"{key}."))
    names = [
        f"| `{name}` | {(OBJECTIVES[name].__doc__ or '').splitlines()[0]} |" for name in OBJECTIVES if name in BUILT_IN
    ]
    objectives = "\n".join(["## Values of `objective`", "", "| Name | What it minimizes |", "|---|---|", *names])
    more = "[Your own](../contributing/add-a-loss.md) are registered from Python."
    return "\n".join([RECIPE_HEAD, *sections, objectives, "", more]) + "\n"


def _prefix(name: str) -> str:
    return "" if name == "src" else f"{name}."


def prepare_keys() -> str:
    """The page about the keys of `dualmoco prepare`."""
    sections = [table("Run", PrepareConfig, "")]
    for name, kind in dataclasses_of(PrepareConfig):
        is_list = name == "corpora"
        sections.append(table(f"Items of `{name}`" if is_list else f"`{name}`", kind, "" if is_list else f"{name}."))
    return "\n".join([PREPARE_HEAD, *sections])


def study_keys() -> str:
    """The page about the keys of a study."""
    return "\n".join([STUDY_HEAD, table("Study", StudyConfig, "")])
