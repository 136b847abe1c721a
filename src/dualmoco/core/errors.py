"""Errors that users can cause and fix. Each message is one line: what was given, what was expected, what to do.

The command line prints the message and exits with status 2.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class DualmocoError(Exception):
    """Base class of every error that dualmoco raises on purpose."""

    def __str__(self) -> str:
        """The message on one line, even if it quotes line breaks or escape sequences of a damaged file."""
        return CONTROL_CHARACTERS.sub(" ", super().__str__())


class ConfigError(DualmocoError):
    """An option, a recipe or an override is invalid."""


class DataError(DualmocoError):
    """A data file is missing, damaged or not in the expected format."""


class ModelError(DualmocoError):
    """A model cannot be loaded, or does not have the requested language."""


class RunError(DualmocoError):
    """A job cannot be started, resumed or saved."""


class DivergenceError(RunError):
    """The loss or the gradient of a training run is no longer a finite number."""


def missing_package(module: str | None, extra: str, what: str) -> ConfigError:
    """The error for a package that is not installed; see `require` for the arguments."""
    package = (module or "").partition(".")[0]
    return ConfigError(f"{what} needs the package {package}; pip install 'dualmoco[{extra}]'")


def require(module: str, extra: str, what: str) -> Any:
    """Imports a module of an optional package; ConfigError says that `what` (such as "Parquet") needs the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there, but one of its own dependencies is missing
        raise missing_package(module, extra, what) from None
