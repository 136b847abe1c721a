"""Memory that this process has used."""

from __future__ import annotations

import sys


def peak_memory() -> int:
    """Peak resident memory of this process, in bytes, on Linux, macOS and Windows."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB
