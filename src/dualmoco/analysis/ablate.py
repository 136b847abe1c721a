"""Runs a study: all runs without a result, one after another or in parallel, then the report.

The study folder contains `runs/`, `results/` (one JSON file per run), `logs/`, `tasks/` and the report. No sweep
library is used, because there is no search, only a list of runs, and the files show which are done.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualmoco.analysis.study import DONE, FAILED, INTERRUPTED, RUNS_FOLDER, Run, Study, read_study
from dualmoco.analysis.study_report import StudyResult, gather, write_report
from dualmoco.core.errors import ConfigError, RunError
from dualmoco.core.progress import Progress, counting, showing
from dualmoco.core.signals import exiting_on_sigterm
from dualmoco.core.storage import LOCK, locked, write_json
from dualmoco.embeddings.engine import Engine, open_engine
from dualmoco.evaluation.tasks import read_tasks

STUDY_FILE, RESULTS_FOLDER, LOGS_FOLDER, TASKS_FOLDER = "study.json", "results", "logs", "tasks"
logger = logging.getLogger(__name__)


def ablate(
    study: str | Path | Study,
    *overrides: str,
    data: str | None = None,
    parallel: int = 1,
    processes: int = 1,
    engine: str | Engine = "local",
    address: str | None = None,
    overwrite: bool = False,
    retry: bool = False,
    progress: bool = True,
) -> StudyResult:
    """Trains and evaluates all runs of a study that have no result yet.

    Args:
        study: A YAML file, or a study that was already read.
        overrides: Settings that override the study, such as `seeds=[0]`.
        data: Folder of the corpora and of eval/; DUALMOCO_DATA if None.
        parallel: Number of simultaneous runs on this machine, each with its own GPUs if there are GPUs.
        processes: Number of processes that share the batches of one run, each with its own GPU if there are GPUs.
        engine: `local`, or `ray` for a cluster whose nodes share the study folder; or an open engine.
        address: Address of a running Ray cluster.
        overwrite: Whether to delete the previous results in the folder and start again.
        retry: Whether to repeat runs that failed or diverged.
        progress: Whether to show progress bars.

    Returns:
        Rows with means and standard deviations, which are also written to the study folder.

    Raises:
        ConfigError: An invalid study, missing test data, or more processes per run than GPUs.
        RunError: The folder contains another study, the recipe has changed since, another process is using the folder,
            or the disk is full.
    """
    read = study if isinstance(study, Study) else read_study(study, list(overrides), data)
    if parallel < 1:
        raise ConfigError(f"{parallel} runs at a time; expected at least 1")
    if processes < 1 or (processes > 1 and engine != "local"):
        raise ConfigError(f"{processes} processes per run; expected at least 1, and 1 with --engine ray")
    for pairs in {run.pairs for run in read.runs} if read.config.tasks else ():
        read_tasks(read.config.tasks, data, pairs)  # finds missing test data before hours of training
    out = Path(read.config.out)
    with showing(progress), locked(out):
        _claim(read, out, overwrite=overwrite)
        waiting = [run for run in read.runs if _is_waiting(out, run, retry=retry)]
        logger.info("%d of %d runs are done, %d to do", len(read.runs) - len(waiting), len(read.runs), len(waiting))
        tasks = [_write_task(read, run, out, data) for run in waiting]
        with counting("study", len(tasks), " runs") as advance:
            for number, status in _work(tasks, parallel, processes, engine, address, advance):
                logger.info("%s: %s", waiting[number].name, status)
        result = gather(read, {run.name: json.loads(_result_file(out, run).read_text("utf-8")) for run in read.runs})
        write_report(result, out)
    return result


def _claim(study: Study, out: Path, *, overwrite: bool) -> None:
    """Claims the folder for this study, which may have more runs than before; RunError if it has other contents."""
    record = out / STUDY_FILE
    prints = {run.name: run.fingerprint for run in study.runs}
    known: dict[str, str] = {}
    if not record.is_file():
        if any(child.name != LOCK for child in out.iterdir()):
            raise RunError(f"{out}: contains files but no study; choose another out=FOLDER")
    elif overwrite:  # deletes only what a study wrote
        for name in (RUNS_FOLDER, RESULTS_FOLDER, LOGS_FOLDER, TASKS_FOLDER):
            shutil.rmtree(out / name, ignore_errors=True)
    else:
        kept = json.loads(record.read_text(encoding="utf-8"))
        if (kept["title"], kept["tasks"]) != (study.config.title, study.config.tasks):
            raise RunError(
                f"{out}: contains the study {kept['title']!r} with tasks {kept['tasks']!r}; expected "
                f"{study.config.title!r} with {study.config.tasks!r}: choose another out=FOLDER, or add --overwrite"
            )
        known = kept["runs"]
        changed = [name for name in prints if known.get(name, prints[name]) != prints[name]]
        if changed:
            raise RunError(
                f"{out}: the settings of {changed[0]} have changed since it was started; restore {study.config.recipe} "
                "and the study, or start again with --overwrite"
            )
    write_json(record, {"title": study.config.title, "tasks": study.config.tasks, "runs": known | prints})


def _result_file(out: Path, run: Run) -> Path:
    return out / RESULTS_FOLDER / f"{run.name}.json"


def _is_waiting(out: Path, run: Run, *, retry: bool) -> bool:
    """Whether a run has no result yet, or has one to retry, which is deleted."""
    path = _result_file(out, run)
    if not path.is_file():
        return True
    if retry and json.loads(path.read_text(encoding="utf-8"))["status"] != DONE:
        path.unlink()
        shutil.rmtree(out / RUNS_FOLDER / run.name, ignore_errors=True)
        return True
    return False


def _write_task(study: Study, run: Run, out: Path, data: str | None) -> Path:
    """Writes the JSON file that a worker process reads."""
    out, recipe = out.absolute(), Path(study.config.recipe)
    path = out / TASKS_FOLDER / f"{run.name}.json"
    write_json(
        path,
        {
            "recipe": str(recipe.absolute() if recipe.is_file() else recipe),
            "settings": run.settings,
            "tasks": study.config.tasks,
            "pairs": run.pairs,
            "data": str(Path(data).absolute()) if data else None,
            "run": str(out / RUNS_FOLDER / run.name),
            "result": str(_result_file(out, run)),
            "log": str(out / LOGS_FOLDER / f"{run.name}.log"),
        },
    )
    return path


def _work(
    tasks: list[Path], parallel: int, processes: int, engine: str | Engine, address: str | None, progress: Progress
) -> Iterator[tuple[int, str]]:
    """Runs the tasks; yields the number and status of each one as it ends."""
    work = RunWork()
    if engine != "local":
        yield from open_engine(engine, address).run(work, enumerate(map(str, tasks)), progress)
        return
    gpus = itertools.cycle(_gpu_groups(processes) or [None])  # runs use them in turn
    with exiting_on_sigterm(), ThreadPoolExecutor(parallel) as pool:
        begun = {
            pool.submit(run_task, str(task), next(gpus), work.workers, processes): place
            for place, task in enumerate(tasks)
        }
        try:
            for future in as_completed(begun):
                yield begun[future], future.result()
                progress(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            work.workers.interrupt()
            raise


def _gpu_groups(processes: int) -> list[str]:
    """The numbers of the GPUs of this machine, in groups of one GPU per process of a run; none without GPUs."""
    import torch

    count = torch.cuda.device_count()
    if 0 < count < processes:
        raise ConfigError(f"{processes} processes per run, and {count} GPUs; expected one GPU per process")
    starts = range(0, count - processes + 1, processes)
    return [",".join(map(str, range(start, start + processes))) for start in starts]


@dataclass
class Workers:
    """The running worker processes; after an interruption, later workers are interrupted too."""

    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    interrupted: bool = False

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Registers a process that was started."""
        self.running.add(child)
        if self.interrupted:
            child.send_signal(signal.SIGINT)

    def interrupt(self) -> None:
        """Makes all processes write their checkpoints and exit."""
        self.interrupted = True
        for child in list(self.running):
            child.send_signal(signal.SIGINT)


@dataclass
class RunWork:
    """The runs of a study as work for an engine, one worker process per run."""

    wants_gpu: bool = True
    workers: Workers = field(default_factory=Workers)

    def open(self) -> Callable[[Any, Progress], str]:
        """The function that runs one task."""
        return lambda task, progress: run_task(task, None, self.workers)

    def size(self, task: Any) -> int:
        """One unit per run."""
        return 1

    def opener(self) -> Callable[[], Callable[[Any, Progress], str]]:
        """The same work for another process, without the processes started here."""
        return RunWork().open


def run_task(task_file: str, gpus: str | None, workers: Workers, processes: int = 1) -> str:
    """Runs a worker process and returns the status of its run; KeyboardInterrupt if it was interrupted.

    A worker that ends without a result is recorded as failed, with the last line of its log. It sees only the GPUs in
    `gpus`, or all GPUs if that is None. With several processes the worker is torchrun.
    """
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    log = Path(task["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {})
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    with log.open("ab") as stream:
        launch = [sys.executable, *(torchrun if processes > 1 else [])]
        command = [*launch, "-m", "dualmoco.analysis.study", task_file]
        child = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, start_new_session=True)
        workers.add(child)
        try:
            code = child.wait()
        finally:
            workers.running.discard(child)
    result = Path(task["result"])
    if workers.interrupted or code in (INTERRUPTED, -signal.SIGINT):  # during startup Python may exit with another code
        raise KeyboardInterrupt
    if not result.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        write_json(result, {"status": FAILED, "reason": f"the process ended with code {code}: {last}"})
    return str(json.loads(result.read_text(encoding="utf-8"))["status"])
