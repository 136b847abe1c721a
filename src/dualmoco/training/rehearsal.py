"""A rehearsal: some steps of a run, timed on the device that is here, of which nothing stays.

Takes settings, gives `dualmoco plan` seconds and tokens. The steps are real ones of a sample of the pairs, with queues
as full as they will be; an evaluation and a checkpoint are timed as well.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize

from dualmoco.core.progress import counting
from dualmoco.data.pairs import Split, load_pairs
from dualmoco.models.encoder import Encoder
from dualmoco.training.batching import NliBatch, PairBatch, prefetch
from dualmoco.training.contrast import Queue
from dualmoco.training.cost import Lengths
from dualmoco.training.fitting import count_tokens, peak_here, survey_lengths, used_here, whole_run
from dualmoco.training.loop import Batch, Trainer
from dualmoco.training.onesided import OneSidedBatch
from dualmoco.training.recipe import ObjectiveName, TrainConfig
from dualmoco.training.run import build_trainer, order_of, start_accelerator
from dualmoco.training.schedule import RunProgress
from dualmoco.training.starting import TOKENIZER_SENTENCES, TRAINS_TOKENIZER

SAMPLE_BATCHES = 64  # of pairs that a rehearsal takes
FEWEST_STEPS = 4  # of each stage, the first of which warms up
TOKENIZER_SAMPLE = 100_000  # pairs of a sample on which tokenizers are trained, which takes memory of its own
STRING_BYTES = 120  # of a sentence as a Python string, more or less
STAGE_STEPS = 10**9  # steps are numbered from a multiple of it on in each stage


@dataclass(frozen=True)
class StageTime:
    """What a stage of the curriculum takes."""

    share: float  # of the schedule
    step_seconds: float  # of a mean step
    lengths: Lengths


@dataclass(frozen=True)
class Rehearsal:
    """What was timed."""

    pairs: int
    stages: list[StageTime]
    start_seconds: float  # before the first step: reading, encoders, keys of a frozen side, the first evaluation
    evaluation_seconds: float
    checkpoint_seconds: float
    epoch_steps: int
    used: float  # bytes taken when the pairs were read, before the encoders were built
    seen: float  # the most bytes that were taken on the way
    encoders: tuple[Encoder, Encoder]

    def step_seconds(self, *, in_minutes: bool) -> float:
        """Of a mean step of the whole run, whose stages are shares of its steps, or of its minutes."""
        if in_minutes:
            return 1 / sum(stage.share / stage.step_seconds for stage in self.stages)
        return sum(stage.share * stage.step_seconds for stage in self.stages)

    @property
    def lengths(self) -> Lengths:
        """Of the whole run."""
        return whole_run([stage.lengths for stage in self.stages], [stage.share for stage in self.stages])


def rehearse(config: TrainConfig, seconds: float) -> Rehearsal:
    """Times steps of a run.

    Args:
        config: The settings.
        seconds: To spend on steps, more or less.

    Returns:
        Seconds of a mean step of each stage, of the start, of an evaluation and of a checkpoint.

    Raises:
        DataError: Files that cannot be read.
        ModelError: A model that cannot be loaded safely.
        RunError: The loss is not a number, or the run does not fit into the memory that is here.
    """
    clock, before = Clock(), peak_here()
    split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
    order, used, reading = order_of(config, split), used_here(), clock.lap()
    size = max(SAMPLE_BATCHES * config.optimizer.batch_size, config.contrast.queue_size if config.frozen else 0)
    if _trains_tokenizers(config):
        size = max(size, TOKENIZER_SAMPLE)
    with tempfile.TemporaryDirectory(prefix="dualmoco-plan-") as folder:
        config = replace(config, out=folder)
        sample = _sample(split, min(size, len(split.train)), config.seed)
        clock.lap()
        trainer = build_trainer(config, sample, start_accelerator(config))
        built = clock.lap()
        trainer.heldout.score()
        evaluation = clock.lap()
        timed = _time_steps(trainer, seconds)
        clock.lap()
        trainer.checkpoint(RunProgress())
        checkpoint = clock.lap()
        src, tgt = (trainer.encoders[side.lang] for side in (config.src, config.tgt))
        stages = []
        for number, share in enumerate(order.shares):
            lengths = survey_lengths(order, split, (src, tgt), number)
            own = [step for step in timed if step.stage == number]
            per_token = sum(step.seconds for step in own) / sum(step.pair_tokens + step.nli_tokens for step in own)
            tokens = _pair_tokens(config, lengths) + fmean(step.nli_tokens for step in own)
            stages.append(StageTime(share, per_token * tokens, lengths))
    more = len(split.train) - len(sample.train)
    if config.frozen:  # all its sentences are encoded before the first step
        built += 0.5 * more * evaluation / len(split.heldout)
    seen = peak_here() if peak_here() > before else used_here()  # a peak of other work says nothing
    seen += _tokenizer_bytes(config, more)
    epoch_steps = order.batches_per_epoch if trainer.pairs else trainer.schedule.epoch_steps
    return Rehearsal(
        pairs=len(split.train), stages=stages, start_seconds=reading + built + evaluation,
        evaluation_seconds=evaluation, checkpoint_seconds=checkpoint, epoch_steps=epoch_steps, used=used, seen=seen,
        encoders=(src, tgt),
    )  # fmt: skip


class Clock:
    """Tells how long it is since it was asked before."""

    def __init__(self) -> None:
        self.asked = time.monotonic()

    def lap(self) -> float:
        """Seconds since then."""
        before, self.asked = self.asked, time.monotonic()
        return self.asked - before


def _sample(split: Split, count: int, seed: int) -> Split:
    rows = np.sort(np.random.default_rng([seed, 5]).permutation(len(split.train))[:count])
    return replace(split, train=split.train.take(rows))


def _tokenizer_bytes(config: TrainConfig, more: int) -> float:
    """What the sentences of so many more pairs take as Python strings, where tokenizers are trained on them."""
    return 2.0 * STRING_BYTES * min(more, TOKENIZER_SENTENCES) if _trains_tokenizers(config) else 0.0


def _trains_tokenizers(config: TrainConfig) -> bool:
    return bool(TRAINS_TOKENIZER & {config.src.kind, config.tgt.kind})


def _pair_tokens(config: TrainConfig, lengths: Lengths) -> float:
    """Tokens of the pairs of a mean step."""
    if config.objective == ObjectiveName.nli:
        return 0.0
    sides = {"src": lengths.src, "tgt": lengths.tgt}
    return config.optimizer.batch_size * sum(length for side, length in sides.items() if side != config.frozen)


class TimedStep(NamedTuple):
    """One step of a rehearsal."""

    stage: int
    seconds: float
    pair_tokens: int
    nli_tokens: int


def _time_steps(trainer: Trainer, seconds: float) -> list[TimedStep]:
    """Does steps of all stages in turns; the first of each warms up and does not count."""
    stages = trainer.order.orders
    trainer.order.progress = RunProgress(stage_starts=[number * STAGE_STEPS for number in range(len(stages))])
    for module in trainer.objective.modules():
        if isinstance(module, Queue):
            _fill(module)
    generator, progress = np.random.default_rng(trainer.config.seed), RunProgress()
    timed: list[TimedStep] = []

    def draw(number: int) -> tuple[int, tuple[list[Batch], list[NliBatch]]]:
        stage = number % len(stages)
        step = stage * STAGE_STEPS + int(generator.integers(stages[stage].batches_per_epoch))
        return stage, trainer.batches(step)

    began, shown = time.monotonic(), 0
    with counting("rehearsing", round(seconds), " s") as advance, closing(prefetch(draw, 0)) as batches:
        while len(timed) < FEWEST_STEPS * len(stages) or time.monotonic() - began < seconds:
            before = time.monotonic()
            stage, (pairs, nli) = next(batches)
            trainer.step(pairs, nli, progress)
            taken = time.monotonic() - before
            progress.step += 1
            inference = sum(count_tokens(batch.premise) + count_tokens(batch.hypothesis) for batch in nli)
            timed.append(TimedStep(stage, taken, sum(map(_batch_tokens, pairs)), inference))
            advance(int(time.monotonic() - began) - shown)
            shown = int(time.monotonic() - began)
    return timed[len(stages) :]


def _fill(queue: Queue) -> None:
    """Fills a queue with random unit vectors, whose ids are no sentence's."""
    size, dimension = queue.vectors.shape
    ids = -1 - torch.arange(2 * size, device=queue.ids.device).reshape(size, 2)
    queue.enqueue(normalize(torch.randn(size, dimension, device=queue.vectors.device)), ids)


def _batch_tokens(batch: Batch) -> int:
    if isinstance(batch, PairBatch):
        return count_tokens(batch.src) + count_tokens(batch.tgt)
    return count_tokens(batch.features) if isinstance(batch, OneSidedBatch) else 0
