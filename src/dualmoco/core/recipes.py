"""YAML recipes and `key=value` overrides into frozen dataclasses; unknown keys and wrong types are errors.

Takes a file, or the name of a recipe that comes with the package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar, cast

from dualmoco.core.errors import ConfigError, require

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


def read_recipe(schema: type[T], recipe: str | Path | None, overrides: list[str] | None = None) -> T:
    """Reads a YAML file into a dataclass.

    Args:
        schema: The dataclass, whose fields give keys, types and defaults.
        recipe: The file or the name of a packaged recipe; None for defaults and overrides alone.
        overrides: Settings such as `clean.max_ratio=3`, stronger than the file.

    Returns:
        The settings, not yet checked for sense.

    Raises:
        ConfigError: No such recipe, an unreadable file, an unknown key or a wrong type.
    """
    require("omegaconf", "data", "A recipe")
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = find_recipe(recipe) if recipe else None
    for override in overrides or []:
        if "=" not in override:
            raise ConfigError(f"{override!r}: expected key=value, for example optimizer.lr=1e-4")
    try:
        given = OmegaConf.load(path) if path else OmegaConf.create()
        config = OmegaConf.merge(OmegaConf.structured(schema), given, OmegaConf.from_dotlist(overrides or []))
        return cast(T, OmegaConf.to_object(config))
    except (OmegaConfBaseException, YAMLError, OSError, UnicodeDecodeError, TypeError) as error:
        reason = " ".join(str(error).split())
        place = sys.modules[schema.__module__].__name__.replace(".", "/")
        raise ConfigError(f"{path or 'settings'}: {reason}; see {place}.py for every key and its type") from None
