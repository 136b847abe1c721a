"""Devices that a plan knows: how fast they could be, how much of that is reached, and their memory.

Peaks and memory are those of NVIDIA's data sheets, dense products. The share that is reached with mixed precision is
that of the paper's own run, 15 hours on four V100s (docs/analysis.md counts it); that of fp32 is assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dualmoco.core.errors import ConfigError
from dualmoco.training.fitting import GIB
from dualmoco.training.recipe import MixedPrecision

MIXED_EFFICIENCY, FP32_EFFICIENCY = 0.13, 0.5
LAUNCH_SECONDS = 2e-5  # that PyTorch takes for each call of a GPU, assumed: small encoders wait for it
TERA = 1e12
HERE = "here"


@dataclass(frozen=True)
class Device:
    """One kind of GPU."""

    fp32: float  # operations a second
    mixed: float
    memory: float  # bytes

    def speed(self, precision: MixedPrecision) -> float:
        """Operations a second that training may reach."""
        if precision == MixedPrecision.fp32:
            return FP32_EFFICIENCY * self.fp32
        return MIXED_EFFICIENCY * self.mixed


DEVICES = {
    "v100": Device(15.7 * TERA, 125 * TERA, 32 * GIB),
    "t4": Device(8.1 * TERA, 65 * TERA, 16 * GIB),
    "a10": Device(31.2 * TERA, 125 * TERA, 24 * GIB),
    "l4": Device(30.3 * TERA, 121 * TERA, 24 * GIB),
    "rtx3090": Device(35.6 * TERA, 71 * TERA, 24 * GIB),
    "rtx4090": Device(82.6 * TERA, 165 * TERA, 24 * GIB),
    "a100": Device(19.5 * TERA, 312 * TERA, 40 * GIB),
    "h100": Device(67 * TERA, 989 * TERA, 80 * GIB),
}


def read_devices(names: str) -> list[tuple[str, int]]:
    """Reads what `--devices` names.

    Args:
        names: By commas: `here`, or a device of the table, with a number before it where there are several: 4xv100.

    Returns:
        Names and numbers of devices.

    Raises:
        ConfigError: A device that is not in the table.
    """
    found = []
    for word in names.split(","):
        match = re.fullmatch(r"(?:([1-9]\d*)x)?(\w+)", word.strip().lower())
        if not match or match[2] not in (HERE, *DEVICES) or (match[2] == HERE and match[1]):
            raise ConfigError(
                f"{word.strip()!r}: no device of a plan; expected here, or one of {', '.join(DEVICES)}; several as "
                "4xv100"
            )
        found.append((match[2], int(match[1] or 1)))
    return found
