"""The errors a user can cause and repair: each says what was given, what was expected and what to do.

The command line prints them as one line and exits with code 2.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class DualmocoError(Exception):
    """Base of every error that dualmoco raises on purpose."""


class ConfigError(DualmocoError):
    """A recipe or an override that cannot be used."""


class DataError(DualmocoError):
    """A data file that cannot be read as what it should be."""


class ModelError(DualmocoError):
    """A model folder or hub name that cannot be used, or a language it does not have."""


class RunError(DualmocoError):
    """A training run that cannot be started, continued or saved."""


class DivergenceError(RunError):
    """The loss or the gradient of a training run is no longer a finite number."""


def missing_package(module: str | None, extra: str, what: str) -> ConfigError:
    """What to say of a package that only some installations have.

    Args:
        module: Name of the module that was not found.
        extra: Extra of dualmoco that installs its package, such as `data`.
        what: What needs it, as the beginning of a sentence: "Parquet".

    Returns:
        The error that says how to install it.
    """
    package = (module or "").partition(".")[0]
    return ConfigError(f"{what} needs the package {package}; pip install 'dualmoco[{extra}]'")


def require(module: str, extra: str, what: str) -> Any:
    """Imports a package that only some installations have.

    Args:
        module: Name of the module, such as `pyarrow.parquet`.
        extra: Extra of dualmoco that installs its package, such as `data`.
        what: What needs it, as the beginning of a sentence: "Parquet".

    Returns:
        The module.

    Raises:
        ConfigError: The package is not installed; says how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there, but something it needs is not
        raise missing_package(module, extra, what) from None
