"""The keys of a frozen side: its vectors of the training sentences, computed once into the run folder.

`onesided.py` reads them by row of the pairs, mapped from disk. The store is one of `dualmoco encode`: resumed where it
was interrupted, refused if it was made from another model or text. Shapes: n rows asked for, D dimension.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from dualmoco.core.progress import counting
from dualmoco.core.storage import new_file
from dualmoco.core.vectors import Ids
from dualmoco.data.pairs import Pairs
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.store import Store, open_store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.models.load import open_model
from dualmoco.models.network import Encoder, Features
from dualmoco.search.exact import nearest
from dualmoco.training.batches import Curriculum, ShardSpec, Tokenize, move_features
from dualmoco.training.config import ContrastConfig, TrainConfig
from dualmoco.training.infonce import blockwise_info_nce
from dualmoco.training.init_encoders import INITIAL
from dualmoco.training.objectives import Metrics, Objective

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


FILE = "hard-negatives.npy"
SAME_MEANING = 0.9  # cosine of keys from which a sentence may be a translation as well, so no negative
MORE = 16  # neighbours looked at beyond those wanted, for some may be too close
NONE = -1


class HardNegatives:
    """The pairs whose keys are nearest to each pair's own.

    Args:
        keys: Of the frozen side.
        near: Rows of the store (n, h), `NONE` where there are fewer.
    """

    def __init__(self, keys: FrozenKeys, near: Ids) -> None:
        self.lines, self.near = keys.lines, near
        self.pairs = np.empty(len(near), dtype=np.int64)  # a pair of every key
        self.pairs[keys.lines] = np.arange(len(keys.lines))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the pairs that are hard negatives of any pair of a batch (m,), sorted."""
        near = np.unique(self.near[self.lines[rows]])
        return np.sort(self.pairs[near[near != NONE]])


def find_hard_negatives(keys: FrozenKeys, count: int, out: Path) -> None:
    """Searches the neighbours of every key among all keys and writes them into the run folder, unless they are there.

    Args:
        keys: Of the frozen side.
        count: Hard negatives a key, at most.
        out: The run folder.
    """
    if (out / FILE).exists():
        return
    vectors = keys.vectors
    with counting("searching hard negatives", len(vectors), " keys") as progress:
        found = nearest(vectors, vectors, count + MORE, progress=progress)
    unfit = (found.ids == np.arange(len(found.ids))[:, None]) | (found.scores >= SAME_MEANING)  # (n, k)
    order = np.argsort(unfit, axis=1, kind="stable")[:, :count]  # the nearest that fit, then those that do not
    near = np.where(unfit, NONE, found.ids)
    with new_file(out / FILE) as stream:
        np.save(stream, np.take_along_axis(near, order, axis=1), allow_pickle=False)


def open_hard_negatives(keys: FrozenKeys, out: Path) -> HardNegatives:
    """Opens what `find_hard_negatives` wrote."""
    return HardNegatives(keys, np.load(out / FILE, allow_pickle=False))


@dataclass(frozen=True)
class OneSidedBatch:
    """Sentences of the side that learns as tokens, the keys of their translations, and negatives."""

    features: Features
    keys: Tensor  # (N, D)
    ids: Tensor  # (N, 2): of a sentence, of its translation
    negatives: Tensor  # (K, D)
    negative_ids: Tensor  # (K, 2): of a negative's sentence, of its translation

    def to(self, device: torch.device) -> OneSidedBatch:
        """The batch on a device."""
        rest = (self.keys, self.ids, self.negatives, self.negative_ids)
        moved = (tensor.to(device, non_blocking=True) for tensor in rest)
        return OneSidedBatch(move_features(self.features, device), *moved)


class OneSidedLoader:
    """The micro-batches of each step that this process computes; all of a step have the same negatives.

    Args:
        config: The settings, one side of which is frozen.
        pairs: The training pairs.
        order: Of their batches.
        keys: Of the frozen side.
        tokenize: Of the other side.
        share: Of this process.
        hard: Negatives close to each pair's key, if they are to be beside the random ones.
    """

    def __init__(
        self,
        config: TrainConfig,
        pairs: Pairs,
        order: Curriculum,
        keys: FrozenKeys,
        tokenize: Tokenize,
        share: ShardSpec,
        hard: HardNegatives | None = None,
    ) -> None:
        self.sentences = pairs.tgt if config.frozen == "src" else pairs.src
        self.contrast, self.seed = config.contrast, config.seed
        self.order, self.keys, self.tokenize, self.share, self.hard = order, keys, tokenize, share, hard

    def step(self, step: int) -> list[OneSidedBatch]:
        """This process's micro-batches of a step."""
        rows = self.order.rows(step)
        negatives = self.keys.take(self.negative_rows(step, rows))
        return [self._batch(part, *negatives) for part in self.share.split(rows)]

    def negative_rows(self, step: int, rows: np.ndarray) -> np.ndarray:
        """Pairs (K,) whose keys are the negatives of a step: random, by seed and step; with `batch_keys` its own first.

        Hard negatives come with them, if there are any.

        Args:
            step: From 0.
            rows: Of the step's batch.

        Returns:
            Rows of the pairs: `queue_size` of them, or all there are; hard ones besides.
        """
        own = rows[: self.contrast.queue_size if self.contrast.batch_keys else 0]
        count = min(self.contrast.queue_size - len(own), len(self.keys))
        generator = np.random.default_rng([self.seed, step, 0, 1])  # `BatchOrder` seeds with three numbers at most
        drawn = generator.choice(len(self.keys), count, replace=False, shuffle=False)
        parts = [own, np.sort(drawn)]  # in the order of the disk
        if self.hard is not None:
            parts.append(np.setdiff1d(self.hard.of(rows), np.concatenate(parts)))  # each key counts once
        return np.concatenate(parts)

    def _batch(self, rows: np.ndarray, negatives: Tensor, negative_ids: Tensor) -> OneSidedBatch:
        keys, ids = self.keys.take(rows)
        features = self.tokenize(self.sentences.take(rows).to_pylist())
        return OneSidedBatch(features, keys, ids.flip(1), negatives, negative_ids)


class OneSidedMoco(Objective):
    """InfoNCE of one side's sentences against the keys of a frozen side."""

    def __init__(self, encoder: Encoder, config: ContrastConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(config.temperature)), requires_grad=config.learn_temperature
        )

    def forward(self, batch: OneSidedBatch, prepared: None) -> Metrics:
        """Equation 2 for one micro-batch."""
        query = self.encoder(batch.features)  # (N, D)
        losses, correct, masked = blockwise_info_nce(
            query, batch.keys, batch.negatives, self.log_temperature.exp(), batch.ids, batch.negative_ids
        )
        with torch.no_grad():
            spread = query.var(dim=0, correction=0).sum().sqrt()  # 0 collapsed, 1 in all directions
        share = masked / (len(query) * len(batch.negatives))
        return {"loss": losses.mean(), "accuracy": correct.float().mean(), "spread": spread, "masked": share}

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """The temperature, which may be learnt."""
        return {"temperature": self.log_temperature.exp().item()}
