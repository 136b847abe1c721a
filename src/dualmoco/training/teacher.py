"""A teacher beside the contrast: its vectors of the training sentences, from which `objectives.py` makes soft labels.

What is learnt from it is which sentences of a batch are similar, so its dimension may be any. Takes a model and pairs
from `run.py`, gives `batching.py` vectors by row, mapped from disk: a slow teacher is asked once for each sentence.
Shapes: N rows asked for, T dimension of the teacher.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from torch import Tensor

from dualmoco.core.options import VectorPrecision
from dualmoco.data.bitext import Pairs
from dualmoco.embeddings.encode import StoreForm
from dualmoco.embeddings.store import open_store
from dualmoco.training.complement import open_for_both
from dualmoco.training.keys import FrozenKeys, encode_sentences
from dualmoco.training.recipe import TrainConfig

FOLDER = "teacher"
PRECISION = VectorPrecision.int8  # similarities need no more, and two sides of millions of pairs shall fit on a disk
logger = logging.getLogger(__name__)


class Teacher:
    """What a teacher makes of both sides of the training pairs.

    Args:
        src: Its vectors of the source sentences.
        tgt: Its vectors of the target sentences.
    """

    def __init__(self, src: FrozenKeys, tgt: FrozenKeys) -> None:
        self.src, self.tgt = src, tgt

    def vectors(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Unit vectors (N, T) of the source and target sentences of some pairs."""
        return self.src.take(rows)[0], self.tgt.take(rows)[0]


def ask_teacher(config: TrainConfig, pairs: Pairs, out: Path) -> None:
    """Encodes both sides by the teacher into the run folder, or what is still missing there.

    Args:
        config: The settings, which name a teacher.
        pairs: The training pairs.
        out: The run folder.

    Raises:
        ModelError: A teacher that cannot be opened, or that lacks a language of the recipe.
        DataError: The folder holds vectors of another teacher or of other sentences.
    """
    model = open_for_both("teacher", config.teacher, config)
    langs = {"src": config.src.lang, "tgt": config.tgt.lang}
    for side, lang in langs.items():
        made = encode_sentences(getattr(pairs, side), lang, model, out / FOLDER / side, StoreForm(PRECISION))
        logger.info("teacher %s, %s: %s", config.teacher, lang, made)


def open_teacher(pairs: Pairs, out: Path) -> Teacher:
    """Maps what `ask_teacher` made."""
    return Teacher(*(FrozenKeys(open_store(out / FOLDER / side), pairs, side) for side in ("src", "tgt")))
