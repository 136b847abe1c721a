"""The version of dualmoco; signatures of scores and runs include it."""

from __future__ import annotations

VERSION = "0.1.0"
