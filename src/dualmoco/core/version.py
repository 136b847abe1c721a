"""The version, which every signature carries."""

from __future__ import annotations

VERSION = "0.1.0"
