"""A curriculum: which pairs each stage of a training run takes, and how often.

Takes pairs with their corpora from `bitext.py` and the stages of a recipe; `training/order.py` makes batches of what a
stage takes. Shapes: n pairs, S stages, C corpora.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from dualmoco.core.errors import DataError
from dualmoco.data.bitext import Pairs
from dualmoco.data.recipe import StageConfig
from dualmoco.data.sampling import allot
from dualmoco.data.temporary import Fate


class WeightedRows(NamedTuple):
    """Pairs of one weight."""

    rows: np.ndarray
    weight: float
    """How often each is taken in one pass over the pairs: 0.25 in every fourth, 2 twice in each."""


def stage_rows(pairs: Pairs, stages: Sequence[StageConfig], number: int) -> list[WeightedRows]:
    """What a stage takes.

    Args:
        pairs: The training pairs.
        stages: Of the curriculum.
        number: Which stage, from 0.

    Returns:
        The rows of the pairs that it takes, by weight; the weights are above 0.
    """
    weights = _corpus_weights(pairs, stages)[number][pairs.corpus]  # (n,)
    weights[_too_long(pairs, stages[number])] = 0
    return [WeightedRows(np.flatnonzero(weights == weight), float(weight)) for weight in np.unique(weights) if weight]


def sample_curriculum(
    pairs: Pairs, fates: np.ndarray, stages: Sequence[StageConfig], most: int, seed: Sequence[int]
) -> Sequence[StageConfig]:
    """Leaves for training what a stage takes, and of that a sample if it is too much.

    A pair's chance to be in the sample goes with its largest weight, so that a small corpus of great weight is not
    drowned by large ones before training begins. What weights remain to be applied in training is returned.

    Args:
        pairs: All pairs.
        fates: Shape (n,), changed in place: pairs for training that no stage takes, or that are not in the sample.
        stages: Of the recipe.
        most: Pairs in the sample; 0 for all.
        seed: Of the sample.

    Returns:
        The stages with weights as they count for the pairs that are left.

    Raises:
        DataError: Weights of a corpus that the pairs do not have.
    """
    weights = _corpus_weights(pairs, stages)  # (S, C)
    taken = np.zeros(len(pairs), dtype=bool)
    for own, stage in zip(weights, stages, strict=True):
        fits = ~_too_long(pairs, stage)
        own[np.bincount(pairs.corpus[fits], minlength=len(own)) == 0] = 0
        taken |= (own > 0)[pairs.corpus] & fits
    fates[(fates == Fate.train) & ~taken] = Fate.not_sampled
    left = np.flatnonzero(fates == Fate.train)
    if not 0 < most < len(left):
        return stages
    largest = weights.max(axis=0)  # (C,)
    available = np.bincount(pairs.corpus[left], minlength=len(largest))
    shares = allot(available.tolist(), [0] * len(largest), (available * largest).tolist(), most)
    generator = np.random.default_rng(seed)
    fates[left] = Fate.not_sampled
    for corpus, count in enumerate(shares):
        own = left[pairs.corpus[left] == corpus]
        fates[generator.choice(own, count, replace=False, shuffle=False)] = Fate.train
    rest = weights / np.where(largest, largest, 1)
    return [replace(stage, weights=dict(zip(pairs.corpora, own, strict=True)))
            for stage, own in zip(stages, rest.tolist(), strict=True)]  # fmt: skip


def _corpus_weights(pairs: Pairs, stages: Sequence[StageConfig]) -> np.ndarray:
    """How often each stage takes a pair of each corpus in one pass, shape (S, C)."""
    for number, stage in enumerate(stages):
        unknown = sorted(set(stage.weights) - set(pairs.corpora))
        if unknown:
            raise DataError(
                f"data.curriculum[{number}].weights has {unknown[0]!r}; expected corpora of the training pairs: "
                + ", ".join(pairs.corpora)
            )
    return np.array([[stage.weights.get(name, 1.0) for name in pairs.corpora] for stage in stages])


def _too_long(pairs: Pairs, stage: StageConfig) -> np.ndarray:
    """Whether a side of each pair is too long for a stage, shape (n,)."""
    if not stage.max_chars:
        return np.zeros(len(pairs), dtype=bool)
    longer = pc.max_element_wise(pc.utf8_length(pairs.src), pc.utf8_length(pairs.tgt))
    return np.asarray(longer.to_numpy() > stage.max_chars)
