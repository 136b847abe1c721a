"""Settings given as plain words, on the command line or in Python: one of several choices, a size in bytes."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

from dualmoco.core.errors import ConfigError

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
