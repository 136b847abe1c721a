"""Runs a study: every run that is not done yet, one after the other or several at a time, then the tables.

Takes a `Study`; leaves in its folder `runs/`, `results/` (what came of each run), `logs/` and the report.
No library of sweeps: there is nothing to search, only a list to work through, and what is done is seen from the files.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualmoco.analysis.report import StudyResult, gather, write_report
from dualmoco.analysis.study import DONE, FAILED, RUNS, Run, Study, read_study
from dualmoco.core.errors import ConfigError, RunError
from dualmoco.core.progress import Progress, counting, showing
from dualmoco.core.storage import LOCK, locked, write_json
from dualmoco.embeddings.engine import Engine
from dualmoco.embeddings.ray_engine import open_engine
from dualmoco.evaluation.tasks import read_tasks

RECORD, RESULTS, LOGS, TASKS = "study.json", "results", "logs", "tasks"
logger = logging.getLogger(__name__)


def ablate(
    study: str | Path | Study,
    *overrides: str,
    data: str | None = None,
    parallel: int = 1,
    engine: str | Engine = "local",
    address: str | None = None,
    fresh: bool = False,
    retry: bool = False,
    progress: bool = True,
) -> StudyResult:
    """Trains and scores every run of a study that is not done yet.

    Args:
        study: A YAML file, or a study already read.
        overrides: Of the study, such as `seeds=[0]`.
        data: Folder of the corpora and of eval/; DUALMOCO_DATA if None.
        parallel: Runs at a time on this machine, each with a GPU of its own where there are GPUs.
        engine: `local`, or `ray` for a cluster whose nodes share the study folder; or one that is open.
        address: Of a running Ray cluster.
        fresh: Whether to throw away what the folder holds and to begin anew.
        retry: Whether to try runs again that failed or diverged.
        progress: Whether to show progress bars.

    Returns:
        Rows with means and spreads; also written to the study folder.

    Raises:
        ConfigError: A study that makes no sense, or test data that are not there.
        RunError: The folder holds another study, a recipe that changed since, or another process; a full disk.
    """
    read = study if isinstance(study, Study) else read_study(study, list(overrides), data)
    if parallel < 1:
        raise ConfigError(f"{parallel} runs at a time; expected at least 1")
    if read.config.tasks:
        read_tasks(read.config.tasks, data)  # missing test data are found before hours of training
    out = Path(read.config.out)
    with showing(progress), locked(out):
        _claim(read, out, fresh=fresh)
        waiting = [run for run in read.runs if _is_waiting(out, run, retry=retry)]
        logger.info("%d of %d runs are done, %d to do", len(read.runs) - len(waiting), len(read.runs), len(waiting))
        tasks = [_write_task(read, run, out, data) for run in waiting]
        with counting("study", len(tasks), " runs") as advance:
            for number, status in _work(tasks, parallel, engine, address, advance):
                logger.info("%s: %s", waiting[number].name, status)
        result = gather(read, {run.name: json.loads(_result_file(out, run).read_text("utf-8")) for run in read.runs})
        write_report(result, out)
    return result


def _claim(study: Study, out: Path, *, fresh: bool) -> None:
    """Makes the folder this study's, or finds that it is; runs may have been added since."""
    record = out / RECORD
    prints = {run.name: run.fingerprint for run in study.runs}
    known: dict[str, str] = {}
    if not record.is_file():
        if any(child.name != LOCK for child in out.iterdir()):
            raise RunError(f"{out}: holds files but no study; choose another out=FOLDER")
    elif fresh:  # only what a study has put there, and of a folder that is one
        for name in (RUNS, RESULTS, LOGS, TASKS):
            shutil.rmtree(out / name, ignore_errors=True)
    else:
        kept = json.loads(record.read_text(encoding="utf-8"))
        if (kept["title"], kept["tasks"]) != (study.config.title, study.config.tasks):
            raise RunError(
                f"{out}: holds the study {kept['title']!r} with tasks {kept['tasks']!r}; expected "
                f"{study.config.title!r} with {study.config.tasks!r}: choose another out=FOLDER, or add --fresh"
            )
        known = kept["runs"]
        changed = [name for name in prints if known.get(name, prints[name]) != prints[name]]
        if changed:
            raise RunError(
                f"{out}: the settings of {changed[0]} changed since it was started; put {study.config.recipe} and the "
                "study back as they were, or start anew with --fresh"
            )
    write_json(record, {"title": study.config.title, "tasks": study.config.tasks, "runs": known | prints})


def _result_file(out: Path, run: Run) -> Path:
    return out / RESULTS / f"{run.name}.json"


def _is_waiting(out: Path, run: Run, *, retry: bool) -> bool:
    """Whether a run has no result yet, or one that is to be tried again, which is then forgotten."""
    path = _result_file(out, run)
    if not path.is_file():
        return True
    if retry and json.loads(path.read_text(encoding="utf-8"))["status"] != DONE:
        path.unlink()
        shutil.rmtree(out / RUNS / run.name, ignore_errors=True)
        return True
    return False


def _write_task(study: Study, run: Run, out: Path, data: str | None) -> Path:
    """What a worker is to do, as a file."""
    out, recipe = out.absolute(), Path(study.config.recipe)
    path = out / TASKS / f"{run.name}.json"
    write_json(
        path,
        {
            "recipe": str(recipe.absolute() if recipe.is_file() else recipe),
            "settings": run.settings,
            "tasks": study.config.tasks,
            "data": str(Path(data).absolute()) if data else None,
            "run": str(out / RUNS / run.name),
            "result": str(_result_file(out, run)),
            "log": str(out / LOGS / f"{run.name}.log"),
        },
    )
    return path


def _work(
    tasks: list[Path], parallel: int, engine: str | Engine, address: str | None, progress: Progress
) -> Iterator[tuple[int, str]]:
    """Does tasks; yields the number and status of each as it ends."""
    work = RunWork()
    if engine != "local":
        yield from open_engine(engine, address).run(work, enumerate(map(str, tasks)), progress)
        return
    gpus = itertools.cycle(_gpus())
    with _stopping(), ThreadPoolExecutor(parallel) as pool:
        begun = {pool.submit(run_task, str(task), next(gpus), work.workers): place for place, task in enumerate(tasks)}
        try:
            for future in as_completed(begun):
                yield begun[future], future.result()
                progress(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            work.workers.interrupt()
            raise


@dataclass
class Workers:
    """The processes at work; once interrupted, so are those that begin after it."""

    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    interrupted: bool = False

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Takes a process that has begun."""
        self.running.add(child)
        if self.interrupted:
            child.send_signal(signal.SIGINT)

    def interrupt(self) -> None:
        """Lets all of them write their checkpoints and end."""
        self.interrupted = True
        for child in list(self.running):
            child.send_signal(signal.SIGINT)


@dataclass
class RunWork:
    """The runs of a study as work of an engine: one worker process each."""

    wants_gpu: bool = True
    workers: Workers = field(default_factory=Workers)

    def open(self) -> Callable[[Any, Progress], str]:
        """Gives what does one task."""
        return lambda task, progress: run_task(task, None, self.workers)

    def size(self, task: Any) -> int:
        """Every run counts one."""
        return 1

    def opener(self) -> Callable[[], Callable[[Any, Progress], str]]:
        """The same work in another process, without the processes started here."""
        return RunWork().open


def run_task(task_file: str, gpu: str | None, workers: Workers) -> str:
    """Runs a worker and waits for it.

    Args:
        task_file: What it is to do.
        gpu: The number of the GPU that it alone sees; None for all there are.
        workers: Have the process while it runs.

    Returns:
        The status of the run; a worker that ends without a result is recorded as failed, with its last line.

    Raises:
        KeyboardInterrupt: The worker was interrupted.
    """
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    log = Path(task["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {})
    with log.open("ab") as stream:
        command = [sys.executable, "-m", "dualmoco.analysis.study", task_file]
        child = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, start_new_session=True)
        workers.add(child)
        try:
            code = child.wait()
        finally:
            workers.running.discard(child)
    result = Path(task["result"])
    if workers.interrupted or code in (130, -signal.SIGINT):  # one that has hardly begun ends with another code
        raise KeyboardInterrupt
    if not result.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        write_json(result, {"status": FAILED, "reason": f"the process ended with code {code}: {last}"})
    return str(json.loads(result.read_text(encoding="utf-8"))["status"])


def _gpus() -> list[str | None]:
    """Numbers of the GPUs that runs take in turns; one None where there are none."""
    import torch

    return [str(number) for number in range(torch.cuda.device_count())] or [None]


@contextmanager
def _stopping() -> Iterator[None]:
    """Makes SIGTERM an interruption, which is passed on to the workers, so that they write their checkpoints."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
