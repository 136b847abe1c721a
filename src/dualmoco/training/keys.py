"""The keys of a frozen side: its vectors of the training sentences, computed once into the run folder.

`onesided.py` reads them by row of the pairs, mapped from disk. The store is one of `dualmoco encode`: resumed where it
was interrupted, refused if it was made from another model or text. Shapes: n rows asked for, D dimension.
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
from dualmoco.models.opening import open_model
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


def encode_keys(config: TrainConfig, pairs: Pairs, out: Path) -> None:
    """Encodes the frozen side's sentences into the run folder, or what is still missing there; says so in one line.

    Args:
        config: The settings, one side of which is frozen.
        pairs: The training pairs.
        out: The run folder, with the encoders that the run starts from.

    Raises:
        DataError: The folder holds keys of another model or of other sentences.
    """
    lang = (config.src if config.frozen == "src" else config.tgt).lang
    folder = out / STORE
    written = folder.with_suffix(".txt")
    _write_sentences(getattr(pairs, config.frozen), written)
    made: list[int] = []
    form = StoreForm(config.contrast.key_precision)
    store = encode_file(TextFile(written, lang), folder, open_model(out / INITIAL), form, done=made.append)
    assert store.lines.min() >= 0, "training pairs have text on both sides"
    encoded = sum(store.shards[number].rows for number in made)
    logger.info("%s is frozen: %s keys in %s, %s encoded now", lang, f"{store.count:,}", folder, f"{encoded:,}")


def open_keys(config: TrainConfig, pairs: Pairs, out: Path) -> FrozenKeys:
    """Maps the keys that `encode_keys` made; arguments and errors as there."""
    return FrozenKeys(open_store(out / STORE), pairs, config.frozen)


def _write_sentences(sentences: pa.LargeStringArray, path: Path) -> None:
    """One sentence a line: a line end inside one, which a text file cannot hold, becomes a space."""
    with new_file(path) as stream:
        for start in range(0, len(sentences), CHUNK_SENTENCES):
            lines = sentences.slice(start, CHUNK_SENTENCES).to_pylist()
            stream.write("".join(f"{line.replace(chr(10), ' ')}\n" for line in lines).encode("utf-8"))
