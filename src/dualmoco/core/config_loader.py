"""Settings from plain text, YAML recipes and `key=value` overrides, checked against frozen dataclasses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Any, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

from dualmoco.core.errors import ConfigError, require

Choice = TypeVar("Choice", bound=StrEnum)
Schema = TypeVar("Schema")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
PATH_TYPES = re.compile(r"\b(Path|Texts|Bitext|DocumentInput)\b")  # annotations of parameters that take file names
MAX_REASON = 300  # characters of another library's message
AS_TYPED = {"as_typed": True}  # metadata of a field of any type whose scalars stay the text that was typed
PACKAGED_RECIPES = Path(__file__).parents[1] / "recipes"


class VectorPrecision(StrEnum):
    """Number format of stored vectors."""

    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"  # each vector is scaled by its largest number; the norm is 1 and is not stored


Rule = tuple[str, Any, bool, str]
"""A requirement on a setting: its key, its value, whether the value is allowed, and what is expected."""


def check_rules(rules: Sequence[Rule]) -> None:
    """Raises a ConfigError that names the first setting whose value is not allowed."""
    for key, value, holds, expected in rules:
        if not holds:
            raise ConfigError(f"{key} is {value!r}; expected {expected}")


def parse_choice(kind: type[Choice], text: str, name: str) -> Choice:
    """The member of an enumeration that the value of option `name` names; ConfigError lists the members."""
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(choice.value for choice in kind)
        raise ConfigError(f"{name} {text}; expected one of {known}") from None


def check_options(options: Mapping[str, object], known: type) -> None:
    """Raises TypeError for unknown keyword arguments of a function that takes `**options: Unpack[known]`."""
    _refuse_unknown(options, list(known.__annotations__))


def suggesting(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wraps a function to check its arguments before it runs.

    An unknown keyword argument is a TypeError that suggests the right one. A file name with a null character, which no
    operating system accepts, is a ConfigError.
    """
    parameters, known = signature(function).parameters, list[str]()
    names = {name for name, parameter in parameters.items() if PATH_TYPES.search(str(parameter.annotation))}
    for name, parameter in parameters.items():
        is_typed = parameter.kind == Parameter.VAR_KEYWORD  # annotated Unpack[SomeTypedDict]
        known += get_type_hints(get_args(get_type_hints(function)[name])[0]) if is_typed else [name]

    @wraps(function)
    def checked(*given: Parameters.args, **named: Parameters.kwargs) -> Result:
        _refuse_unknown(named, known)
        for name, value in (*zip(parameters, given, strict=False), *named.items()):
            if name in names and isinstance(value, str | Path) and "\0" in str(value):
                raise ConfigError(
                    f"{name} {str(value)!r}: contains a null character; expected the name of a file or folder"
                )
        return function(*given, **named)

    return checked


def _refuse_unknown(given: Mapping[str, object], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            close = get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(names)}"
            raise TypeError(f"unexpected keyword argument {name!r}; {hint}")


def parse_size(given: str | int, name: str) -> int:
    """Bytes of a size such as 500M (a number with an optional k, M or G); ConfigError if it is not above 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)i?b?", str(given).strip().lower())
    size = int(float(match[1]) * SIZE_UNITS[match[2]]) if match else 0
    if size < 1:
        raise ConfigError(f"{name} {given}; expected a size above 0, such as 500M or 4G")
    return size


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of a packaged one (`tiny`, `tiny.yaml`, `recipes/tiny.yaml`)."""
    path = Path(name)
    if path.is_file():
        return path
    packaged = {file.stem: file for file in sorted(PACKAGED_RECIPES.glob("*.yaml"), key=lambda file: file.stem)}
    if path.parent in (Path(), Path("recipes")) and path.suffix in ("", ".yaml") and path.stem in packaged:
        return packaged[path.stem]
    raise ConfigError(
        f"{path}: no such recipe; expected a YAML file such as recipes/tiny.yaml, or one that comes with dualmoco: "
        + ", ".join(packaged)
    )


def read_recipe(
    schema: type[Schema], recipe: str | Path | None, overrides: list[str] | None = None, *, extra: str = "data"
) -> Schema:
    """Reads a YAML file (None for the defaults) into a dataclass; overrides such as `clean.max_ratio=3` come last."""
    # ConfigError for unknown keys and wrong types; the values themselves are not checked here.
    # `extra` is the extra of dualmoco to install if omegaconf is missing.
    require("omegaconf", extra, "A recipe")
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = find_recipe(recipe) if recipe else None
    for override in overrides or []:
        if "=" not in override:
            raise ConfigError(f"{override!r}: expected key=value, for example optimizer.lr=1e-4")
    try:
        recipe_settings = OmegaConf.create(_parse(_read_mapping(path), schema)) if path else OmegaConf.create()
        texts = [_keep_text(override, schema) for override in overrides or []]
        given = OmegaConf.merge(recipe_settings, OmegaConf.from_dotlist(texts))
        _name_choices(given, schema)
        return cast(Schema, OmegaConf.to_object(OmegaConf.merge(_writable(OmegaConf.structured(schema)), given)))
    except (OmegaConfBaseException, YAMLError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]} ..."
        place = schema.__module__.replace(".", "/")
        raise ConfigError(f"{path or 'settings'}: {reason}; see {place}.py for every key and its type") from None


def _read_mapping(path: Path) -> str:
    """The text of a recipe; ConfigError if the file contains something else, such as sentence pairs."""
    from yaml import YAMLError, safe_load

    try:
        text = path.read_text(encoding="utf-8")
        content = safe_load(text)
    except (YAMLError, ValueError, RecursionError):
        if path.suffix in (".yaml", ".yml"):
            raise
        content = ""
    if content is None or isinstance(content, dict):
        return text
    raise ConfigError(
        f"{path}: not a recipe; expected a YAML file of keys and values. If it contains sentence pairs, run dualmoco "
        f"prepare {path} --src LANG --tgt LANG --out FOLDER, and train a recipe with data.prepared=FOLDER"
    )


def _keep_text(override: str, schema: Any) -> str:
    """An override whose value stays text where text is expected: `src=no` is not a boolean."""
    key, _, value = override.partition("=")
    kind = schema
    for part in key.split("."):
        kind = _field_kinds(kind).get(part) if is_dataclass(kind) else None
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if kind is str or (kind == str | None and value != "null"):
        return override if is_quoted else f"{key}={json.dumps(value, ensure_ascii=False)}"
    if value[:1] in ("[", "{"):
        return f"{key}={json.dumps(_parse(value, kind), ensure_ascii=False)}"
    if kind == list[str] and value:  # a single text instead of a list
        return f"{key}={json.dumps([value[1:-1] if is_quoted else value], ensure_ascii=False)}"
    return override


def _parse(text: str, kind: Any) -> Any:
    """The content of a YAML text, with the scalars as they were typed where `kind` expects text."""
    from omegaconf import OmegaConf
    from yaml import BaseLoader, load

    content = OmegaConf.to_container(OmegaConf.create(text))
    return _restore_texts(content, load(text, Loader=BaseLoader), kind)  # BaseLoader makes only strings


def _restore_texts(content: Any, typed: Any, kind: Any) -> Any:
    """Replaces scalars where `kind` expects text by those of `typed`, the same content with all scalars as text."""
    inner = get_args(kind)
    if kind is AS_TYPED:
        return typed
    if kind == list[str] and isinstance(typed, str) and content is not None:
        return [typed]
    if kind is str or (str in inner and NoneType in inner):
        return content if content is None or isinstance(content, dict | list) else typed
    if isinstance(content, dict) and isinstance(typed, dict) and len(content) == len(typed):
        kinds = _field_kinds(kind) if is_dataclass(kind) else {}
        values = inner[1] if get_origin(kind) is dict else None
        return {
            key: _restore_texts(value, other, kinds.get(str(key), values))
            for (key, value), other in zip(content.items(), typed.values(), strict=True)
        }
    if isinstance(content, list) and isinstance(typed, list):
        values = inner[0] if get_origin(kind) is list else None
        return [_restore_texts(value, other, values) for value, other in zip(content, typed, strict=True)]
    return content


def _field_kinds(schema: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass, or AS_TYPED."""
    typed = {field.name: AS_TYPED for field in fields(schema) if field.metadata == AS_TYPED}
    return get_type_hints(schema) | typed


def _writable(settings: Any) -> Any:
    """Allows merging into the settings of frozen dataclasses, which OmegaConf 2.3 makes read-only."""
    from omegaconf import DictConfig, OmegaConf

    OmegaConf.set_readonly(settings, False)
    for child in settings.values():
        if isinstance(child, DictConfig):
            _writable(child)
    return settings


def _name_choices(given: Any, schema: Any) -> None:
    """Replaces values of enumerations, such as `dual-moco`, by their names: OmegaConf 2.3 accepts only names."""
    from omegaconf import DictConfig

    for key, kind in get_type_hints(schema).items():
        value = given._get_node(key) if isinstance(given, DictConfig) else None
        if isinstance(value, DictConfig) and is_dataclass(kind):
            _name_choices(value, kind)
        elif value is not None and isinstance(kind, type) and issubclass(kind, StrEnum):
            given[key] = next((choice.name for choice in kind if choice.value == value), value)
