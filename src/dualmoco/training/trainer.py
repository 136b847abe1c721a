"""The training loop: optimizer steps on accelerate, evaluations, checkpoints and the end.

`objectives.py` defines the losses, `schedule.py` the learning rate and the end, and `checkpoint.py` the saved state.
"""

from __future__ import annotations

import logging
import math
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dualmoco.core.errors import DivergenceError
from dualmoco.models.folder import read_conversion
from dualmoco.training.batches import Batch, prefetch
from dualmoco.training.checkpoint import (
    MOMENTUM,
    TRAINED,
    caught_signals,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from dualmoco.training.distributed import highest_numbers, wait_for_all
from dualmoco.training.heldout import Heldout, HeldoutScore, share_score
from dualmoco.training.init_encoders import INITIAL, teacher_digest, weight_groups
from dualmoco.training.objective import Metrics, Objective, RunInputs
from dualmoco.training.run_folder import RunLog, read_log, save_model, start_trackers
from dualmoco.training.schedule import FINISHED, RunProgress, Schedule

ScoreModel = Callable[[Path], dict[str, float]]
"""Scores a model folder on test sets; the results, by name, are only logged."""
SCORED = ".scored"  # folder of a model while it is scored
MOST_SKIPPED = 50  # steps in a row whose gradients overflow in fp16; each halves the loss scale, which starts at 2^16
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """The progress of training, and the scores on held-out pairs."""

    out: str
    step: int
    seconds: float
    before: HeldoutScore  # score of the untrained encoders
    best: float | None  # None before the first evaluation, when there is no model yet
    best_step: int | None
    stop: str  # "finished", "no better for ...", or the name of a signal


class Trainer:
    """Trains from the start, or from the last checkpoint, until the schedule, a signal or a failure ends the run."""

    def __init__(self, inputs: RunInputs, objective: Objective, score_model: ScoreModel | None = None) -> None:
        config, accelerator = inputs.config, inputs.accelerator
        self.config, self.accelerator, self.encoders, self.order = config, accelerator, inputs.encoders, inputs.order
        self.out, self.skipped = Path(config.out), 0  # steps in a row
        self.lr = 0.0  # of the last step
        self.clock: Callable[[], float] = time.monotonic  # seconds; a benchmark may count CPU time instead
        self.unread: list[Metrics] = []  # metrics of the last steps, on the device, because reading waits for it
        self.score_model = score_model
        self.text = read_conversion(self.out / INITIAL).to_json()
        self.objective = objective.to(accelerator.device)
        src, *others = (encoder.to(accelerator.device) for encoder in (inputs.src, inputs.tgt, *inputs.others))
        self.loader = objective.make_loader(inputs)
        pairs = [split.heldout for split in (inputs.split, *inputs.split.others)]
        self.heldout = Heldout(pairs, src, others, objective.make_heldout_task(inputs))
        self.schedule = Schedule(config, self.loader.batches_per_epoch)
        optimizer = torch.optim.AdamW(weight_groups(config, self.encoders, objective), fused=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*broadcast_buffers")  # accelerate has no newer name for this
            self.model, self.optimizer = accelerator.prepare(self.objective, optimizer)
        data = f"{inputs.split.digest()}{teacher_digest(config)}"
        self.signature = f"{config.fingerprint()}-{data}"
        self.resumable = f"{config.fingerprint(with_length=False)}-{data}"  # the schedule may become longer

    def run(self, *, resume: bool) -> TrainResult:
        """Trains until the schedule, patience or a signal ends the run."""
        torch.manual_seed(self.config.seed + self.accelerator.process_index)
        progress = self._resume() if resume else RunProgress()
        self.order.progress = progress
        log = RunLog(
            self.out / "log.jsonl",
            step=progress.step,
            total=self.schedule.total,
            unit=self.schedule.unit,
            is_first=self.accelerator.is_main_process,
            trackers=start_trackers(self.accelerator, self.config, progress.step),
        )
        try:
            before = self._score_before(log)
            with caught_signals() as signals:
                stop = self._loop(progress, log, signals)
        finally:
            log.close()
        self.checkpoint(progress)
        best, best_step = (progress.best, progress.best_step) if progress.best_step else (None, None)
        return TrainResult(str(self.out), progress.step, progress.seconds, before, best, best_step, stop)

    def _loop(self, progress: RunProgress, log: RunLog, signals: list[str]) -> str:
        every = self.config.schedule
        began = self.clock() - progress.seconds
        stop = self.schedule.stop(progress)
        with closing(prefetch(self.batches, progress.step)) as batches:
            while not stop:
                self.unread.append(self.step(next(batches), progress))
                progress.step += 1
                progress.seconds = self.clock() - began
                stop = self._agree(progress, signals)
                self._advance(progress)
                due = (every.log_every, every.evaluate_every, every.checkpoint_every)
                if stop or any(progress.step % steps == 0 for steps in due):
                    metrics = self._read_metrics(progress)
                if progress.step % every.log_every == 0 or stop:
                    self._log(log, metrics, progress)
                if progress.step % every.evaluate_every == 0 or stop == FINISHED:
                    self._evaluate(progress, log)
                    stop = stop or self.schedule.stop(progress)
                if progress.step % every.checkpoint_every == 0 and not stop:
                    self.checkpoint(progress)
        return stop

    def batches(self, step: int) -> list[Batch]:
        """The micro-batches of a step, on the device."""
        return [batch.to(self.accelerator.device) for batch in self.loader.step(step)]

    def step(self, micro_batches: Sequence[Batch], progress: RunProgress) -> Metrics:
        """Runs one optimizer step; returns its metrics, averaged over micro-batches, on the device."""
        self.lr = self.schedule.lr(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group["lr_scale"]
        self.model.train()
        with self.accelerator.autocast():
            prepared = self.objective.begin_step(micro_batches)
        metrics: list[Metrics] = []
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                metrics.append(self.model(batch, prepared[index]))
                self.accelerator.backward(metrics[-1]["loss"] / len(micro_batches))
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.objective.update_momentum(self.config.contrast.momentum)  # equation 1
        self.objective.end_step(prepared)
        table = torch.stack([torch.stack([value.detach().float() for value in part.values()]) for part in metrics])
        return dict(zip(metrics[0], table.mean(dim=0), strict=True)) | {"gradient_norm": norm.detach().float()}

    def _read_metrics(self, progress: RunProgress) -> dict[str, float]:
        """The metrics of the last step, averaged over processes; DivergenceError if an unread step diverged."""
        names, first = list(self.unread[0]), progress.step - len(self.unread) + 1
        table = torch.stack([torch.stack(list(metrics.values())) for metrics in self.unread])  # one step per row
        self.unread = []
        values: dict[str, float] = {}
        for step, row in enumerate(self.accelerator.reduce(table, "mean").tolist(), start=first):
            values = dict(zip(names, row, strict=True))
            self._check_finite(values, step)
        return values | {"lr": self.lr, "momentum": self.config.contrast.momentum}

    def _check_finite(self, values: dict[str, float], step: int) -> None:
        """Refuses a loss or gradient that is not finite, except that fp16 may skip some steps whose gradients are."""
        wrong = [name for name in ("loss", "gradient_norm") if not math.isfinite(values[name])]
        self.skipped = self.skipped + 1 if wrong else 0
        may_skip = self.accelerator.scaler is not None and "loss" not in wrong
        if not wrong or (may_skip and self.skipped < MOST_SKIPPED):
            return
        last = last_checkpoint(self.out)
        kept = f"the last good checkpoint is {last}" if last else "no checkpoint was written before"
        found, advice = f"the {wrong[0]} is {values[wrong[0]]}", "lower optimizer.lr or optimizer.clip"
        if may_skip:
            found = f"the gradients of the last {self.skipped} steps overflowed in fp16, so these steps were skipped"
            advice = "set optimizer.precision=bf16 or fp32"
        raise DivergenceError(f"step {step}: {found}; {kept}; {advice} and start another run")

    def _agree(self, progress: RunProgress, signals: list[str]) -> str:
        """The reason to stop now, if any: the same reason and the same clock on every process."""
        number = signal.Signals[signals[0]].value if signals else 0
        numbers = highest_numbers(torch.tensor([number, progress.seconds], dtype=torch.float64)).tolist()
        number, progress.seconds = int(numbers[0]), numbers[1]
        return signal.Signals(number).name if number else self.schedule.stop(progress)

    def _advance(self, progress: RunProgress) -> None:
        """Begins the next stage of the curriculum when it is due."""
        if self.order.advance(progress.step, self.schedule.done(progress)) and self.accelerator.is_main_process:
            stage, first = len(progress.stage_starts), progress.stage_starts[-1]
            logger.info("stage %d of %d of the curriculum begins at step %d", stage, len(self.order.orders), first)

    def _log(self, log: RunLog, values: dict[str, float], progress: RunProgress) -> None:
        batch = self.config.optimizer.batch_size
        record = {
            "step": progress.step,
            "epoch": progress.step / self.schedule.epoch_steps,
            "stage": self.order.stage(progress.step - 1) + 1,
            **values,
            **self.objective.state_metrics(batch),
            **({"loss_scale": self.accelerator.scaler.get_scale()} if self.accelerator.scaler else {}),
            "seconds": round(progress.seconds, 3),
            "pairs_per_second": round(batch * progress.step / progress.seconds, 1),
        }
        log.record(record)
        shown = {name: f"{value:.3f}" for name, value in values.items() if name in ("loss", "accuracy")}
        shown["pairs/s"] = f"{record['pairs_per_second']:.0f}"
        if progress.best_step:
            shown["best"] = f"{progress.best:.3f}"
        log.show(self.schedule.position(progress), shown)

    def _evaluate(self, progress: RunProgress, log: RunLog) -> None:
        """Scores the held-out pairs and keeps the model if it is the best so far; the first process decides."""
        first = self.accelerator.is_main_process
        score = share_score(self.heldout.score() if first else None)
        if first:
            if self.config.languages:
                langs = (encoder.lang for encoder in self.config.encoders[1:])
                parts = zip(langs, self.heldout.scores, strict=True)
                logger.info("held-out pairs: %s", ", ".join(f"{lang} {100 * part:.1f} %" for lang, part in parts))
            log.record({"step": progress.step, "heldout": asdict(score), **self._score_tasks(progress.step)})
        if progress.evaluated(score.score) and first:
            self._save_model(self.out / "model", {"step": progress.step, "heldout": asdict(score)})
        wait_for_all()

    def _score_tasks(self, step: int) -> dict[str, dict[str, float]]:
        """The scores of the tasks of `schedule.evaluate`, only for the log; call it on the first process."""
        if self.score_model is None:
            return {}
        folder = self.out / SCORED
        try:
            self._save_model(folder, {"step": step})
            with torch.random.fork_rng(devices=[]):  # opening a model draws random numbers on the CPU
                return {"tasks": self.score_model(folder)}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _save_model(self, folder: Path, record: dict[str, Any]) -> None:
        record = record | {"signature": self.signature}
        save_model(folder, self.encoders, self.objective, record, self.text, self.config)

    def _score_before(self, log: RunLog) -> HeldoutScore:
        """The score of the untrained encoders, measured once and then read from the log."""
        score = None
        if self.accelerator.is_main_process:
            known = [HeldoutScore(**record["heldout"]) for record in read_log(log.path) if record["step"] == 0]
            score = known[0] if known else self.heldout.score()
            if not known:
                log.record({"step": 0, "heldout": asdict(score), **self._score_tasks(0)})
        return share_score(score)

    def checkpoint(self, progress: RunProgress) -> None:
        """Writes a checkpoint."""
        save_checkpoint(
            self.out / "checkpoints",
            progress,
            self.objective,
            self.optimizer,
            self.accelerator.scaler,
            keep=self.config.schedule.keep,
            signature=self.resumable,
            encoders={
                TRAINED: self.encoders,
                MOMENTUM: self.objective.momentum_encoders(),
            },
        )
        wait_for_all()

    def _resume(self) -> RunProgress:
        checkpoint = last_checkpoint(self.out)
        if checkpoint is None:
            logger.debug("%s: no checkpoint yet, starting at the first step", self.out)
            return RunProgress()
        progress = load_checkpoint(
            checkpoint, self.objective, self.optimizer, self.accelerator.scaler, signature=self.resumable
        )
        logger.info("%s: resuming after step %d", self.out, progress.step)
        return progress
