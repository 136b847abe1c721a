"""Vectors of training sentences that do not change, computed once into the run folder.

They are the keys of a frozen side, for `onesided.py`, or what a teacher makes of both sides, for `teacher.py`: by row
of the pairs, mapped from disk. A store is one of `dualmoco encode`: resumed where it was interrupted, refused if of
another model or text. Shapes: n rows asked for, D dimension.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dualmoco.core.storage import new_file
from dualmoco.data.bitext import Pairs
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.lines import TextFile
from dualmoco.embeddings.store import Store, open_store
from dualmoco.models.model import Model
from dualmoco.models.opening import open_model
from dualmoco.training.complement import FixedModel
from dualmoco.training.recipe import TrainConfig
from dualmoco.training.starting import INITIAL

STORE = "keys"
CHUNK_SENTENCES = 65_536
logger = logging.getLogger(__name__)


class FrozenKeys:
    """The vectors and ids of one side of the training pairs.

    Args:
        store: Of that side's sentences, line by line those of the pairs.
        pairs: The training pairs.
        side: Which side it is, src or tgt.
    """

    def __init__(self, store: Store, pairs: Pairs, side: str) -> None:
        self.vectors, self.lines = store.vectors(), store.lines
        sides = (pairs.src_ids, pairs.tgt_ids)
        self.ids, self.translation_ids = sides if side == "src" else sides[::-1]

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Unit vectors (n, D) of some pairs' sentences, and the ids (n, 2) of the sentences and their translations."""
        ids = np.stack([self.ids[rows], self.translation_ids[rows]], axis=1)
        return torch.from_numpy(self.vectors.read(self.lines[rows])), torch.from_numpy(ids)


def encode_keys(config: TrainConfig, pairs: Pairs, out: Path, fixed: FixedModel | None = None) -> None:
    """Encodes the frozen side's sentences into the run folder, or what is still missing there; says so in one line.

    Args:
        config: The settings, one side of which is frozen.
        pairs: The training pairs.
        out: The run folder, with the encoders that the run starts from.
        fixed: The model that stands beside them, if there is one.

    Raises:
        DataError: The folder holds keys of another model or of other sentences.
    """
    lang = (config.src if config.frozen == "src" else config.tgt).lang
    model = open_model(out / INITIAL)
    form = StoreForm(config.contrast.key_precision)
    made = encode_sentences(
        getattr(pairs, config.frozen), lang, fixed.beside(model) if fixed else model, out / STORE, form
    )
    logger.info("%s is frozen: %s", lang, made)


def encode_sentences(sentences: pa.LargeStringArray, lang: str, model: Model, folder: Path, form: StoreForm) -> str:
    """Encodes training sentences, or those of them that are still missing.

    Args:
        sentences: One side of the pairs.
        lang: Their language.
        model: What encodes.
        folder: Of the store; the sentences are written beside it.
        form: Of the store.

    Returns:
        How many vectors are where and how many are new, for the log.

    Raises:
        DataError: The folder holds vectors of another model or of other sentences.
    """
    written = folder.with_suffix(".txt")
    _write_sentences(sentences, written)
    made: list[int] = []
    store = encode_file(TextFile(written, lang), folder, model, form, done=made.append)
    assert store.lines.min() >= 0, "training pairs have text on both sides"
    encoded = sum(store.shards[number].rows for number in made)
    return f"{store.count:,} keys in {folder}, {encoded:,} encoded now"


def open_keys(config: TrainConfig, pairs: Pairs, out: Path) -> FrozenKeys:
    """Maps the keys that `encode_keys` made; arguments and errors as there."""
    return FrozenKeys(open_store(out / STORE), pairs, config.frozen)


def _write_sentences(sentences: pa.LargeStringArray, path: Path) -> None:
    """One sentence a line: a line end inside one, which a text file cannot hold, becomes a space."""
    with new_file(path) as stream:
        for start in range(0, len(sentences), CHUNK_SENTENCES):
            lines = sentences.slice(start, CHUNK_SENTENCES).to_pylist()
            stream.write("".join(f"{line.replace(chr(10), ' ')}\n" for line in lines).encode("utf-8"))
