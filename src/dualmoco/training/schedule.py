"""The schedule of a run: its progress, and from it the learning rate and the end.

All functions are pure: the same progress gives the same answers on every process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dualmoco.training.config import TrainConfig

FINISHED = "finished"


@dataclass
class RunProgress:
    """The progress of a run."""

    step: int = 0  # optimizer steps done
    seconds: float = 0.0  # spent on training, without interruptions
    best: float = -1.0  # held-out score
    best_step: int = 0  # 0: not evaluated yet
    stale: int = 0  # evaluations since the best one
    stage_starts: list[int] = field(default_factory=lambda: [0])  # first steps of the curriculum stages so far

    def evaluated(self, score: float) -> bool:
        """Records the score of an evaluation; returns whether it is the best so far."""
        is_best = score > self.best
        if is_best:
            self.best, self.best_step = score, self.step
        self.stale = 0 if is_best else self.stale + 1
        return is_best


class Schedule:
    """Warm-up, decay and end of a run whose length is given in epochs, steps or minutes."""

    def __init__(self, config: TrainConfig, epoch_steps: int) -> None:
        self.optimizer, self.patience = config.optimizer, config.schedule.patience
        self.epoch_steps, self.in_seconds = epoch_steps, config.schedule.minutes > 0
        steps = config.schedule.steps or math.ceil(config.schedule.epochs * epoch_steps)
        self.total = config.schedule.minutes * 60 if self.in_seconds else float(steps)

    @property
    def unit(self) -> str:
        """The unit of `total` and `position`."""
        return "s" if self.in_seconds else "steps"

    def position(self, progress: RunProgress) -> float:
        """The finished part of the schedule, in `unit`."""
        return progress.seconds if self.in_seconds else progress.step

    def done(self, progress: RunProgress) -> float:
        """The finished share of the schedule."""
        return self.position(progress) / self.total

    def lr(self, progress: RunProgress) -> float:
        """The learning rate of the next step: linear warm-up times cosine decay."""
        warmup = min(1.0, (progress.step + 1) / (self.optimizer.warmup_steps + 1))
        return self.optimizer.lr * warmup * (1 + math.cos(math.pi * min(1.0, self.done(progress)))) / 2

    def stop(self, progress: RunProgress) -> str:
        """The reason why the run is over, or an empty string."""
        if self.done(progress) >= 1:
            return FINISHED
        return f"no better for {progress.stale} evaluations" if 0 < self.patience <= progress.stale else ""
