"""The errors a user can cause and repair: each says what was given, what was expected and what to do.

The command line prints them as one line and exits with code 2.
"""

from __future__ import annotations


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
