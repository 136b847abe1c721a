"""What every other folder needs: errors, atomic files, settings, progress, vectors, and the version."""

from __future__ import annotations

VERSION = "0.1.0"
"""Version of dualmoco; signatures of scores and runs include it."""
