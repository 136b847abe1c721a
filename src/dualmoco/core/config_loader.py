"""Settings from plain words, YAML files and `key=value` overrides, checked against frozen dataclasses."""

from __future__ import annotations

import re
import sys
from dataclasses import is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from dualmoco.core.errors import ConfigError, require

Choice = TypeVar("Choice", bound=StrEnum)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class VectorPrecision(StrEnum):
    """How a stored vector's numbers are kept."""

    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"
    """Each vector scaled to its largest number; its length, one, needs no keeping."""


def parse_choice(kind: type[Choice], text: str, name: str) -> Choice:
    """One of several choices.

    Args:
        kind: The choices.
        text: What was given.
        name: Of the setting, for the error.

    Returns:
        The choice.

    Raises:
        ConfigError: Says which there are.
    """
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(choice.value for choice in kind)
        raise ConfigError(f"{name} {text}; expected one of {known}") from None


def parse_size(given: str | int, name: str) -> int:
    """Bytes of a size such as 500M.

    Args:
        given: A number, or one as text with perhaps k, M or G.
        name: Of the setting, for the error.

    Returns:
        The number of bytes.

    Raises:
        ConfigError: Something else, or nothing.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)i?b?", str(given).strip().lower())
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if size < 1:
        raise ConfigError(f"{name} {given}; expected a size above 0, such as 500M or 4G")
    return size


T = TypeVar("T")
PACKAGED = Path(__file__).parents[1] / "recipes"


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe.

    Args:
        name: A file; or, where there is none, a recipe of the package: `tiny`, `tiny.yaml` or `recipes/tiny.yaml`.

    Returns:
        The file.

    Raises:
        ConfigError: Neither a file nor a recipe of the package.
    """
    path = Path(name)
    if path.is_file():
        return path
    packaged = {file.stem: file for file in sorted(PACKAGED.glob("*.yaml"), key=lambda file: file.stem)}
    if path.parent in (Path(), Path("recipes")) and path.suffix in ("", ".yaml") and path.stem in packaged:
        return packaged[path.stem]
    raise ConfigError(
        f"{path}: no such recipe; expected a YAML file such as recipes/tiny.yaml, or one that comes with dualmoco: "
        + ", ".join(packaged)
    )


def read_recipe(
    schema: type[T], recipe: str | Path | None, overrides: list[str] | None = None, *, extra: str = "data"
) -> T:
    """Reads a YAML file into a dataclass.

    Args:
        schema: The dataclass, whose fields give keys, types and defaults.
        recipe: The file or the name of a packaged recipe; None for defaults and overrides alone.
        overrides: Settings such as `clean.max_ratio=3`, stronger than the file.
        extra: What to install where the package that reads recipes is missing.

    Returns:
        The settings, not yet checked for sense.

    Raises:
        ConfigError: No such recipe, an unreadable file, an unknown key or a wrong type.
    """
    require("omegaconf", extra, "A recipe")
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = find_recipe(recipe) if recipe else None
    for override in overrides or []:
        if "=" not in override:
            raise ConfigError(f"{override!r}: expected key=value, for example optimizer.lr=1e-4")
    try:
        recipe_settings = OmegaConf.load(path) if path else OmegaConf.create()
        given = OmegaConf.merge(recipe_settings, OmegaConf.from_dotlist(overrides or []))
        _name_choices(given, schema)
        return cast(T, OmegaConf.to_object(OmegaConf.merge(_writable(OmegaConf.structured(schema)), given)))
    except (OmegaConfBaseException, YAMLError, OSError, UnicodeDecodeError, TypeError) as error:
        reason = " ".join(str(error).split())
        place = sys.modules[schema.__module__].__name__.replace(".", "/")
        raise ConfigError(f"{path or 'settings'}: {reason}; see {place}.py for every key and its type") from None


def _writable(settings: Any) -> Any:
    """Settings that can be merged into: OmegaConf 2.3 takes those of frozen dataclasses for read-only."""
    from omegaconf import DictConfig, OmegaConf

    OmegaConf.set_readonly(settings, False)
    for child in settings.values():
        if isinstance(child, DictConfig):
            _writable(child)
    return settings


def _name_choices(given: Any, schema: Any) -> None:
    """Puts the names of choices in the place of their values, such as `dual-moco`: OmegaConf 2.3 knows names only."""
    from omegaconf import DictConfig

    for key, kind in get_type_hints(schema).items():
        value = given._get_node(key) if isinstance(given, DictConfig) else None
        if isinstance(value, DictConfig) and is_dataclass(kind):
            _name_choices(value, kind)
        elif value is not None and isinstance(kind, type) and issubclass(kind, StrEnum):
            given[key] = next((choice.name for choice in kind if choice.value == value), value)
