"""Metrics of the server's requests, in the text format of Prometheus."""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram of durations."""
OTHER_PATHS = "other"


class RequestMetrics:
    """Counts requests by path, method and status, and their durations by path.

    Args:
        app: Application that handles the requests.
        paths: Paths that are counted by name; all others are counted together.
        recorded: Counts to update.
    """

    def __init__(self, app: ASGIApp, paths: frozenset[str], recorded: RequestCounts) -> None:
        self.app, self.paths, self.recorded = app, paths, recorded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request and counts it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        finally:
            path = scope["path"] if scope["path"] in self.paths else OTHER_PATHS
            self.recorded.add(path, scope["method"], status, time.perf_counter() - start)


class RequestCounts:
    """The counts of a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()

    def add(self, path: str, method: str, status: int, seconds: float) -> None:
        """Counts a request."""
        method = method if method in ("GET", "HEAD", "POST", "PUT", "DELETE") else OTHER_PATHS
        with self._lock:
            self._requests[path, method, status] += 1
            self._durations.setdefault(path, [0] * (len(SECONDS) + 1))[bisect_left(SECONDS, seconds)] += 1
            self._seconds[path] += seconds  # type: ignore[assignment]

    def text(self, gauges: Mapping[str, tuple[str, str, float]]) -> str:
        """All counts, and other numbers by name with their help and type."""
        lines = ["# HELP dualmoco_requests_total Requests answered.", "# TYPE dualmoco_requests_total counter"]
        with self._lock:
            for (path, method, status), count in sorted(self._requests.items()):
                labels = f'path="{path}",method="{method}",status="{status}"'
                lines.append(f"dualmoco_requests_total{{{labels}}} {count}")
            name = "dualmoco_request_seconds"
            lines += [f"# HELP {name} Time from a request to the end of its answer.", f"# TYPE {name} histogram"]
            for path, counts in sorted(self._durations.items()):
                total = 0
                for bound, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
                    total += count
                    lines.append(f'{name}_bucket{{path="{path}",le="{bound}"}} {total}')
                lines.append(f'{name}_sum{{path="{path}"}} {self._seconds[path]:.6f}')
                lines.append(f'{name}_count{{path="{path}"}} {total}')
        for key, (help_text, kind, value) in gauges.items():
            lines += [f"# HELP {key} {help_text}", f"# TYPE {key} {kind}", f"{key} {value:g}"]
        return "\n".join(lines) + "\n"


def resident_memory() -> int | None:
    """The memory of this process in bytes; None if the system does not report it."""
    if sys.platform != "linux":
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
