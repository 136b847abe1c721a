"""Compares the estimates of `dualmoco plan` with a real run: seconds and peak memory.

    python -m benchmarks.plan recipes/small-cpu.yaml --data DATA --steps 600
    python -m benchmarks.plan recipes/en-zh-static.yaml --steps 300

The plan and the run are separate processes, one after another. Seconds are those of the training loop, including
evaluations and checkpoints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

import psutil

from benchmarks.measure import print_machine, print_table

GIB = 2**30


def main() -> None:
    """Plans a run, runs it, and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="of the run")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the recipe")
    parser.add_argument("--data", help="folder of the corpora")
    parser.add_argument("--steps", type=int, default=300, help="of the run")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for the plan to spend on steps")
    parsed = parser.parse_args()
    print_machine()
    length = [f"schedule.steps={parsed.steps}", "schedule.minutes=0", "schedule.epochs=0"]
    words = [parsed.recipe, *parsed.overrides, *length, *(["--data", parsed.data] if parsed.data else []), "--json"]
    plan = ["plan", *words, "--devices", "here", "--seconds", str(parsed.seconds)]
    planned_in, printed, _ = _timed([sys.executable, "-m", "dualmoco", *plan])
    planned = json.loads(printed)
    here = planned["devices"][0]
    with tempfile.TemporaryDirectory() as folder:
        _, printed, peak = _timed([sys.executable, "-m", "dualmoco", "train", *words, f"out={folder}/run"])
    run = json.loads(printed)
    pairs = [("seconds", here["hours"] * 3600, run["seconds"]), ("GiB", here["needed"] / GIB, peak / GIB)]
    print_table([{"what": what, "planned": said, "seen": seen, "ratio": said / seen} for what, said, seen in pairs])
    print(f"{run['step']} steps; the plan took {planned_in:.0f} s")


def _timed(command: list[str]) -> tuple[float, str, float]:
    """Runs a command, and returns its seconds, its output, and its peak memory in bytes."""
    began, peak = time.monotonic(), 0.0
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while child.poll() is None:
        with suppress(psutil.Error):
            peak = max(peak, psutil.Process(child.pid).memory_info().rss)
        time.sleep(0.05)
    assert child.stdout is not None and child.returncode == 0, f"{' '.join(command)}: code {child.returncode}"
    return time.monotonic() - began, child.stdout.read(), peak


if __name__ == "__main__":
    main()
