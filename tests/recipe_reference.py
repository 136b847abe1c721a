"""Writes docs/recipe-keys.md from the dataclasses of a training recipe: `make reference`.

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
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from dualmoco.training.config import LanguageConfig, TrainConfig
from dualmoco.training.objectives import BUILT_IN, OBJECTIVES

PAGE = Path(__file__).parents[1] / "docs" / "recipe-keys.md"
HEAD = """# Recipe keys

Every key of a training recipe with its type, default and meaning. This page is generated from the
dataclasses in `training/config.py`, `models/config.py` and `data/config.py` by `make reference`. Keys can
be set in a recipe or on the command line, such as `contrast.queue_size=8192`.
[training.md](training.md) explains how they work together.
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
        if is_dataclass(kind) or (field.name in ("encoder", "data") and schema is LanguageConfig):
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
    return f"{kind.__origin__.__name__} of {', '.join(word.__name__ for word in inner)}"


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in ("", [], {}, None) else ""


def table(title: str, text: str | None, rows: Iterator[tuple[str, str, str, str]]) -> str:
    """One topic as a section with a table."""
    lines = [f"| `{key}` | {kind} | {default} | {words.replace('|', '&#124;')} |" for key, kind, default, words in rows]
    head = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", (text or "").splitlines()[0], "", *head, *lines]) + "\n"


def make_page() -> str:
    """The whole page."""
    sections = [table("Run", TrainConfig.__doc__, keys(TrainConfig, ""))]
    shown = set()
    for name, kind in get_type_hints(TrainConfig).items():
        if is_dataclass(kind) and kind not in shown:
            assert isinstance(kind, type)
            shown.add(kind)
            title = "`src` and `tgt`" if name == "src" else f"`{name}`"
            sections.append(table(title, kind.__doc__, keys(kind, "" if name == "src" else f"{name}.")))
            for key, inner in get_type_hints(kind).items():
                if is_dataclass(inner) and isinstance(inner, type):
                    sections.append(table(f"`{key}` of `src` and `tgt`", inner.__doc__, keys(inner, f"{key}.")))
                item = next(iter(get_args(inner)), None)
                if is_dataclass(item) and isinstance(item, type):
                    sections.append(table(f"Items of `{name}.curriculum`", item.__doc__, keys(item, "")))
    about = "A further language of a run: `encoder` has the keys of `src` and `tgt`, `data` those of `data`."
    sections.append(table("Items of `languages`", about, keys(LanguageConfig, "")))
    names = [
        f"| `{name}` | {(OBJECTIVES[name].__doc__ or '').splitlines()[0]} |" for name in OBJECTIVES if name in BUILT_IN
    ]
    objectives = "\n".join(["## Values of `objective`", "| Name | What it minimizes |", "|---|---|", *names])
    more = "[Your own](add-a-loss.md) are registered from Python."
    return "\n".join([HEAD, *sections, objectives, "", more]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
