"""Long-running work: commands of dualmoco that run in separate processes, one at a time, and resume after a restart.

A job is a folder `jobs/ID`: `job.json` has the command to run, `output` and `log` are what the command prints, and
`result.json` appears when it has ended. An interrupted job resumes when the server is started again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.routing import Route

from dualmoco.core.errors import DualmocoError, RunError
from dualmoco.core.storage import read_json, write_json
from dualmoco.server.handlers import json_route
from dualmoco.server.project import Project

logger = logging.getLogger(__name__)
JOB_WAITING, JOB_RUNNING, JOB_DONE, JOB_FAILED, JOB_CANCELLED = "waiting", "running", "done", "failed", "cancelled"
PROGRESS_BAR = re.compile(r"([^\r\n]*?):\s+(\d+)%\|")  # as tqdm draws it
LOG_TAIL = 4000  # bytes at the end of the log that are read for the progress and the error
STOP_SECONDS = 20.0  # time for a command to save its work


@dataclass(frozen=True)
class Job:
    """A job, as shown on pages."""

    id: str
    kind: str
    """Kind of work: `mine`, `align`, `index` ..."""
    title: str
    words: list[str]
    """The command line after `dualmoco`; paths are relative to the project."""
    created: float
    state: str = JOB_WAITING
    progress: float | None = None
    """Finished share of the current step; None if it cannot be counted."""
    step: str = ""
    message: str = ""
    """Reason of a failure."""
    result: Any = None
    """Output of the command, decoded if it is JSON."""
    ended: float | None = None


class Jobs:
    """The jobs of a project.

    Args:
        project: Project that contains the jobs.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._current = ""
        self._thread: threading.Thread | None = None

    def start(self, kind: str, title: str, words: Sequence[str]) -> Job:
        """Adds a job, which runs after those that are waiting.

        Args:
            kind: Kind of work, such as `mine`, which is part of the id.
            title: Title to show.
            words: Command line after `dualmoco`, with paths relative to the project's folder.
        """
        with self._changing:
            numbers = [int(name.rpartition("-")[2]) for name in self._names()]
            job = Job(f"{kind}-{max(numbers, default=0) + 1}", kind, title, list(words), time.time())
            stored = {"id": job.id, "kind": kind, "title": title, "words": job.words, "created": job.created}
            write_json(self.project.path("jobs", job.id, "job.json"), stored)
        self.resume()
        return job

    def get(self, name: str) -> Job:
        """A job by id; NotFoundError if it does not exist."""
        folder = self.project.existing("jobs", name)
        job = Job(**read_json(self.project.existing("jobs", name, "job.json")))
        state: dict[str, Any] = {}
        log = _tail(folder / "log")
        with suppress(OSError, ValueError):
            result = read_json(folder / "result.json")
            output = _output(folder / "output")
            state = {"state": _ended_state(result["status"], output), "ended": result["ended"]}
        if state.get("state") == JOB_FAILED:
            state["message"] = (log.strip().splitlines() or ["no message"])[-1].removeprefix("dualmoco: ")
        elif state.get("state") == JOB_DONE:
            state |= {"progress": 1.0, "result": output}
        elif not state and self._current == name:
            bars = PROGRESS_BAR.findall(log)
            step, percent = bars[-1] if bars else ("", None)
            state = {"state": JOB_RUNNING, "step": step.strip(), "progress": percent and int(percent) / 100}
        return Job(**asdict(job) | state)

    def all(self) -> list[Job]:
        """All jobs, the newest first."""
        jobs = [self.get(name) for name in self._names()]
        return sorted(jobs, key=lambda job: job.created, reverse=True)

    def cancel(self, name: str) -> Job:
        """Ends a waiting or running job; the command keeps its finished work."""
        job = self.get(name)
        with self._changing:
            if job.state in (JOB_WAITING, JOB_RUNNING):
                self._write_result(name, JOB_CANCELLED)
            if self._current == name and self._process:
                _interrupt(self._process)
        return self.get(name)

    def resume(self) -> None:
        """Runs the unfinished jobs in a separate thread."""
        with self._changing:
            if not self._stopped.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run_waiting, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Interrupts the running job, which resumes when the server is started again."""
        self._stopped.set()
        with self._changing:
            if self._process:
                _interrupt(self._process)
        if self._thread:
            self._thread.join(STOP_SECONDS)
        if self._process and self._process.poll() is None:
            self._process.kill()

    def _names(self) -> list[str]:
        names = [name for name in self.project.names("jobs") if re.fullmatch(r"[a-z]+-\d+", name)]
        return [name for name in names if self.project.path("jobs", name, "job.json").is_file()]

    def _run_waiting(self) -> None:
        try:
            self._run_each()
        except DualmocoError as error:  # the project was deleted, or the disk is full
            logger.warning("%s", error)

    def _run_each(self) -> None:
        while not self._stopped.is_set():
            with self._changing:
                waiting = [job for job in reversed(self.all()) if job.state == JOB_WAITING]
                if not waiting:
                    self._thread = None
                    return
                self._process, self._current = self._launch(waiting[0]), waiting[0].id
            status = self._process.wait()
            if self._process.stdin:
                self._process.stdin.close()
            with self._changing:
                is_interrupted = status in (128 + signal.SIGINT, 128 + signal.SIGTERM) or status < 0
                if not (is_interrupted and self._stopped.is_set()):
                    self._write_result(self._current, status)
                self._process, self._current = None, ""

    def _launch(self, job: Job) -> subprocess.Popen[bytes]:
        folder = self.project.path("jobs", job.id)
        with (folder / "output").open("wb") as output, (folder / "log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dualmoco.server.worker", *job.words],
                cwd=self.project.folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                stdin=subprocess.PIPE,  # ends with this process, so that the command never outlives it
                stdout=output,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C only reaches the server, which ends the job properly
            )

    def _write_result(self, name: str, status: int | str) -> None:
        path = self.project.path("jobs", name, "result.json")
        if not path.exists():
            with suppress(RunError):
                write_json(path, {"status": status, "ended": time.time()})


def _ended_state(status: int | str, output: Any) -> str:
    if status == JOB_CANCELLED:
        return JOB_CANCELLED
    return JOB_DONE if status == 0 or (status == 1 and output) else JOB_FAILED  # 1: some of several documents failed


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)


def _tail(path: Path) -> str:
    with suppress(OSError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LOG_TAIL))
        return stream.read().decode("utf-8", "replace")
    return ""


def _output(path: Path) -> Any:
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    try:
        return json.loads(text)
    except ValueError:
        return text


def job_routes(jobs: Jobs) -> list[Route]:
    """`/api/jobs`."""
    return [
        json_route("/api/jobs", lambda request, body: {"jobs": [asdict(job) for job in jobs.all()]}),
        json_route("/api/jobs/{id}", lambda request, body: asdict(jobs.get(request.path_params["id"]))),
        json_route(
            "/api/jobs/{id}/cancel", lambda request, body: asdict(jobs.cancel(request.path_params["id"])), "POST"
        ),
    ]
