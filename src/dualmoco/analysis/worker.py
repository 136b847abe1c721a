"""One run of a study in a process of its own: trains, scores, writes what came of it.

    python -m dualmoco.analysis.worker TASK.json

A run that fails, even one that the system kills, so takes nothing else with it. The process ends soon after the one
that started it, and can be resumed as any run.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from dualmoco.core.errors import DivergenceError, DualmocoError, RunError
from dualmoco.core.storage import locked, write_json

DONE, FAILED, DIVERGED = "done", "failed", "diverged"
INTERRUPTED = 130
WATCH_SECONDS = 1.0
WAIT_SECONDS = 60


def train_and_record(task_file: str) -> int:
    """Does a task.

    Args:
        task_file: JSON with `recipe`, `settings`, `tasks`, `data`, the folder of the `run`, and the `result` to write.

    Returns:
        The exit code: 0 if the result is written, also that of a run that failed; 130 after an interruption.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        found = _train_and_score(task)
    except DualmocoError as error:
        found = {"status": DIVERGED if isinstance(error, DivergenceError) else FAILED, "reason": str(error)}
    except KeyboardInterrupt:
        return INTERRUPTED
    if found is None:
        return INTERRUPTED
    write_json(Path(task["result"]), found)
    return 0


def _train_and_score(task: dict[str, Any]) -> dict[str, Any] | None:
    """What came of a run; None if a signal stopped it."""
    from dualmoco.evaluation.evaluate import evaluate
    from dualmoco.training.run import train

    _wait_for(Path(task["run"]))
    trained = train(task["recipe"], *task["settings"], resume=True)
    if trained.stop.startswith("SIG"):
        return None
    found: dict[str, Any] = {
        "status": DONE, "heldout": trained.best, "before": trained.before.score, "step": trained.step,
        "seconds": trained.seconds, "scores": [],
    }  # fmt: skip
    if task["tasks"]:
        scored = evaluate(Path(trained.out), task["tasks"], data=task["data"])
        found["scores"] = [score.to_json() | {"sample": None} for score in scored.scores]
    return found


def _wait_for(run: Path) -> None:
    """Waits until a process whose starter is gone has left the run folder; train says so if it does not."""
    for _ in range(WAIT_SECONDS):
        try:
            with locked(run):
                return
        except RunError:
            time.sleep(1)


def _end_with(parent: int) -> None:
    """Interrupts this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts start what runs in the background without it
    raise SystemExit(train_and_record(sys.argv[1]))
