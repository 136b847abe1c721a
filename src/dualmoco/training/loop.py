"""Training: a plain loop on accelerate, from a recipe to a run folder.

Takes the settings, gives a folder with `config.yaml`, `data.json`, `log.jsonl`, `checkpoints/` and `model/`, the best
model so far. What is minimised is in `objectives.py`, what is remembered in `checkpoint.py`.
"""

from __future__ import annotations

import logging
import math
import signal
import time
import warnings
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from dualmoco.core.errors import RunError
from dualmoco.core.storage import new_folder, write_json
from dualmoco.data.nli import NliExample, load_nli
from dualmoco.data.pairs import Split, load_pairs
from dualmoco.models.encoder import Encoder
from dualmoco.models.network import save_encoders
from dualmoco.training.batching import (
    BatchOrder,
    NliBatch,
    NliLoader,
    PairBatch,
    PairLoader,
    Share,
    order_pairs,
    prefetch,
)
from dualmoco.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from dualmoco.training.config import MixedPrecision, ObjectiveName, TrainConfig
from dualmoco.training.heldout import Heldout, HeldoutScore
from dualmoco.training.interruption import caught_signals
from dualmoco.training.log import RunLog, read_log
from dualmoco.training.nli import WithNli, save_classifier
from dualmoco.training.run import (
    build_objective,
    check_division,
    check_run_folder,
    last_checkpoint,
    start_encoders,
    write_inputs,
)

FINISHED = "finished"
MIXED = {MixedPrecision.fp32: "no", MixedPrecision.bf16: "bf16", MixedPrecision.fp16: "fp16"}  # accelerate's names
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What a sitting of training came to."""

    out: str
    step: int
    seconds: float
    before: HeldoutScore  # of the untrained encoders
    best: float
    best_step: int
    stop: str  # "finished", that it got no better, or the name of a signal


def train(config: TrainConfig, *, resume: bool = False) -> TrainResult:
    """Trains two encoders as a recipe says.

    Args:
        config: The settings.
        resume: Go on from the last checkpoint in `config.out`, if there is one.

    Returns:
        How far training came and how well it did on held-out pairs.

    Raises:
        RunError: The run folder holds another run, a checkpoint does not fit or cannot be written, or the loss is not
            a number.
    """
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision=MIXED[config.optimizer.precision],
        # Queues are equal on all processes by construction; pretrained encoders often carry a pooler that is not used.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False, find_unused_parameters=True)],
    )
    out = Path(config.out)
    check_division(config, accelerator.num_processes)
    check_run_folder(config, out, resume=resume)
    with accelerator.main_process_first() if config.data.prepared else nullcontext():  # the first unpacks for all
        split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
    logger.info("pairs: %s", ", ".join(f"{count:,} {reason}" for reason, count in split.counts.items() if count))
    nli = _load_nli(config)
    order = order_pairs(split.train, config.optimizer.batch_size, seed=config.seed, bucket=config.data.bucket)
    encoders = start_encoders(config, split, out, accelerator)
    return _Sitting(config, accelerator, encoders, split, order, *nli).run(resume=resume)


def _load_nli(config: TrainConfig) -> tuple[list[NliExample], list[NliExample]]:
    """Training and held-out NLI examples, none without NLI files."""
    if not config.nli.train:
        return [], []
    settings = config.nli
    return load_nli(
        settings.train, root=config.data.root, heldout=settings.heldout, batch_size=settings.batch_size,
        seed=config.seed,
    )  # fmt: skip


class _Sitting:
    """From start or resumption to the end, a signal or a failure: the objects of the loop, and the loop."""

    def __init__(
        self, config: TrainConfig, accelerator: Accelerator, encoders: dict[str, Encoder], split: Split,
        order: BatchOrder, nli: list[NliExample], nli_heldout: list[NliExample],
    ) -> None:  # fmt: skip
        self.config, self.accelerator, self.encoders, self.out = config, accelerator, encoders, Path(config.out)
        src, tgt = encoders.values()
        share = Share(accelerator.process_index, accelerator.num_processes, config.optimizer.accumulate)
        self.objective = build_objective(config, src, tgt).to(accelerator.device)
        self.heldout = Heldout(split.heldout, src, tgt)
        self.pairs: PairLoader | None = PairLoader(split.train, order, src.tokenize, tgt.tokenize, share)
        self.nli: NliLoader | None = None
        if isinstance(self.objective, WithNli):
            head, alone = self.objective.head, config.objective == ObjectiveName.nli
            nli_order = BatchOrder.unsorted(len(nli), config.nli.batch_size, seed=config.seed)
            self.nli = NliLoader(nli, nli_order, head.encoder.tokenize, share)
            self.heldout.add_nli(nli_heldout, head, choose_by_it=alone)
            if alone:
                self.pairs, order = None, nli_order
        self.epoch_steps = order.batches_per_epoch
        self.total_steps = config.schedule.steps or math.ceil(config.schedule.epochs * self.epoch_steps)
        trained = [weight for weight in self.objective.parameters() if weight.requires_grad]
        settings = config.optimizer
        optimizer = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*broadcast_buffers")  # accelerate has no newer name for it
            self.model, self.optimizer = accelerator.prepare(self.objective, optimizer)
        self.signature = f"{config.fingerprint()}-{split.train.digest()}"
        if accelerator.is_main_process:
            write_inputs(config, split, self.out)

    def run(self, *, resume: bool) -> TrainResult:
        """Trains until the schedule, patience or a signal ends it."""
        torch.manual_seed(self.config.seed + self.accelerator.process_index)
        progress = self._resume() if resume else Progress()
        minutes = self.config.schedule.minutes
        log = RunLog(
            self.out / "log.jsonl", step=progress.step, total=minutes * 60 or self.total_steps,
            unit="s" if minutes else "steps", is_first=self.accelerator.is_main_process,
            tensorboard=self.config.schedule.tensorboard,
        )  # fmt: skip
        try:
            before = self._before(log)
            with caught_signals() as signals:
                stop = self._loop(progress, log, signals)
        finally:
            log.close()
        self._checkpoint(progress)
        return TrainResult(
            str(self.out), progress.step, progress.seconds, before, progress.best, progress.best_step, stop
        )

    def _loop(self, progress: Progress, log: RunLog, signals: list[str]) -> str:
        schedule = self.config.schedule
        began = time.monotonic() - progress.seconds
        stop = FINISHED if self._done(progress) >= 1 else ""
        with closing(prefetch(self._batches, progress.step)) as batches:
            while not stop:
                figures = self._step(*next(batches), progress)
                progress.step += 1
                progress.seconds = time.monotonic() - began
                stop = self._agree(progress, signals)
                if progress.step % schedule.log_every == 0 or stop:
                    self._log(log, figures, progress)
                if progress.step % schedule.evaluate_every == 0 or stop == FINISHED:
                    self._evaluate(progress, log)
                    if 0 < schedule.patience <= progress.stale and not stop:
                        stop = f"no better for {progress.stale} evaluations"
                if progress.step % schedule.checkpoint_every == 0 and not stop:
                    self._checkpoint(progress)
        return stop

    def _step(self, pieces: list[PairBatch | None], nli: list[NliBatch], progress: Progress) -> dict[str, float]:
        """One optimiser step over all pieces of a batch; gives its figures, averaged over pieces and processes."""
        lr, momentum = self._lr(progress), self._momentum(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        with self.accelerator.autocast():
            prepared = self.objective.begin_step(pieces)
        figures: list[dict[str, torch.Tensor]] = []
        for index, piece in enumerate(pieces):
            is_last = index == len(pieces) - 1
            with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                figures.append(self.model(piece, prepared[index], *nli[index : index + 1]))
                self.accelerator.backward(figures[-1]["loss"] / len(pieces))
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.optimizer.clip)
        table = torch.stack([torch.stack([value.detach().float() for value in part.values()]) for part in figures])
        means = self.accelerator.reduce(table.mean(dim=0), "mean").tolist()  # a figure a column
        values = dict(zip(figures[0], means, strict=True))
        values |= {"gradient_norm": float(norm), "lr": lr, "momentum": momentum}
        self._check_finite(values, progress)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.objective.end_step(prepared, momentum)
        return values

    def _batches(self, step: int) -> tuple[list[PairBatch | None], list[NliBatch]]:
        device = self.accelerator.device
        pieces: list[PairBatch | None] = [None] * self.config.optimizer.accumulate
        if self.pairs:
            pieces = [piece.to(device) for piece in self.pairs.step(step)]
        return pieces, [piece.to(device) for piece in self.nli.step(step)] if self.nli else []

    def _done(self, progress: Progress) -> float:
        """The share of the schedule that is behind us."""
        minutes = self.config.schedule.minutes
        return progress.seconds / (60 * minutes) if minutes else progress.step / self.total_steps

    def _lr(self, progress: Progress) -> float:
        """Linear warm-up times cosine decay."""
        warmup = min(1.0, (progress.step + 1) / (self.config.optimizer.warmup_steps + 1))
        return self.config.optimizer.lr * warmup * (1 + math.cos(math.pi * min(1.0, self._done(progress)))) / 2

    def _momentum(self, progress: Progress) -> float:
        """The momentum of equation 1, ramped up linearly if the recipe says so."""
        contrast = self.config.contrast
        if progress.step >= contrast.momentum_ramp:
            return contrast.momentum
        share = progress.step / contrast.momentum_ramp
        return contrast.momentum_start + share * (contrast.momentum - contrast.momentum_start)

    def _agree(self, progress: Progress, signals: list[str]) -> str:
        """Why to stop now, if at all: the same answer, and the same clock, on every process."""
        numbers = torch.tensor(
            [signal.Signals[signals[0]].value if signals else 0, progress.seconds], dtype=torch.float64
        )
        if self.accelerator.num_processes > 1:
            numbers = numbers.to(self.accelerator.device)
            dist.all_reduce(numbers, dist.ReduceOp.MAX)
        number, progress.seconds = int(numbers[0]), float(numbers[1])
        if number:
            return signal.Signals(number).name
        return FINISHED if self._done(progress) >= 1 else ""

    def _check_finite(self, values: dict[str, float], progress: Progress) -> None:
        scaled = self.config.optimizer.precision == MixedPrecision.fp16  # its scaler skips steps that overflow
        wrong = [name for name in ("loss", "gradient_norm") if not math.isfinite(values[name])]
        if "loss" in wrong or (wrong and not scaled):
            last = last_checkpoint(self.out)
            kept = f"the last good checkpoint is {last}" if last else "no checkpoint was written before"
            raise RunError(
                f"step {progress.step + 1}: the {wrong[0]} is {values[wrong[0]]}; {kept}; "
                "lower optimizer.lr or optimizer.clip and start another run"
            )

    def _log(self, log: RunLog, values: dict[str, float], progress: Progress) -> None:
        batch = self.config.optimizer.batch_size
        record = {
            "step": progress.step, "epoch": progress.step / self.epoch_steps, **values,
            **self.objective.health(batch), "seconds": round(progress.seconds, 3),
            "pairs_per_second": round(batch * progress.step / progress.seconds, 1),
        }  # fmt: skip
        log.record(record)
        shown = {"loss": f"{values['loss']:.3f}", "accuracy": f"{values['accuracy']:.3f}"}
        shown["pairs/s"] = f"{record['pairs_per_second']:.0f}"
        if progress.best_step:
            shown["best"] = f"{progress.best:.3f}"
        log.show(progress.seconds if self.config.schedule.minutes else progress.step, shown)

    def _evaluate(self, progress: Progress, log: RunLog) -> None:
        """Scores the held-out pairs and keeps the model if it is the best so far."""
        score = self.heldout.score()
        log.record({"step": progress.step, "heldout": asdict(score)})
        progress.stale += 1
        if score.score > progress.best:
            progress.best, progress.best_step, progress.stale = score.score, progress.step, 0
            if self.accelerator.is_main_process:
                with new_folder(self.out / "model") as folder:
                    save_encoders(self.encoders, folder)
                    if isinstance(self.objective, WithNli):
                        side = self.config.src if self.config.nli.side == "src" else self.config.tgt
                        save_classifier(self.objective.head.classifier, side.lang, folder)
                    write_json(folder / "dualmoco.json", self._provenance(progress, score))
        self.accelerator.wait_for_everyone()

    def _provenance(self, progress: Progress, score: HeldoutScore) -> dict[str, Any]:
        return {
            "step": progress.step,
            "heldout": asdict(score),
            "signature": self.signature,
            "settings": self.config.to_dict(),
        }

    def _before(self, log: RunLog) -> HeldoutScore:
        """The score of the untrained encoders: measured in the first sitting, remembered in the log."""
        for record in read_log(log.path):
            if record["step"] == 0:
                return HeldoutScore(**record["heldout"])
        score = self.heldout.score()
        log.record({"step": 0, "heldout": asdict(score)})
        return score

    def _checkpoint(self, progress: Progress) -> None:
        save_checkpoint(
            self.out / "checkpoints", progress, self.objective, self.optimizer, self.accelerator.scaler,
            keep=self.config.schedule.keep, signature=self.signature,
        )  # fmt: skip
        self.accelerator.wait_for_everyone()

    def _resume(self) -> Progress:
        checkpoint = last_checkpoint(self.out)
        if checkpoint is None:
            logger.info("%s: no checkpoint yet, starting at the first step", self.out)
            return Progress()
        progress = load_checkpoint(
            checkpoint, self.objective, self.optimizer, self.accelerator.scaler,
            rank=self.accelerator.process_index, signature=self.signature,
        )  # fmt: skip
        logger.info("%s: going on after step %d", self.out, progress.step)
        return progress
