"""Training against a frozen encoder: its keys, hard negatives, batches, and the objective.

The vectors of the frozen side's training sentences are computed once into the run folder, in the format of `dualmoco
encode`. Encoding resumes after an interruption, and vectors of another model or text are refused. Each step reads the
vectors of its pairs and of random negatives from disk.

Shapes: n rows, N pairs in a micro-batch, K negatives, D dimension.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from dualmoco.core.config_loader import Rule, VectorPrecision
from dualmoco.core.progress import counting
from dualmoco.core.storage import new_file
from dualmoco.core.vectors import Ids
from dualmoco.data.pairs import Pairs
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.store import ShardedVectors, Store, open_store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.models.load import open_model
from dualmoco.models.network import Encoder, TokenParts
from dualmoco.search.exact import Neighbors, nearest, rerank
from dualmoco.search.ivf import ProbedLists, require_faiss, sampled_recall, scan_lists
from dualmoco.training.batches import Curriculum, Loader, ShardSpec, Tokenize
from dualmoco.training.config import TrainConfig
from dualmoco.training.distributed import wait_for_all
from dualmoco.training.infonce import blockwise_info_nce, limit_temperature
from dualmoco.training.init_encoders import INITIAL
from dualmoco.training.objective import Metrics, Objective, ObjectiveCost, RunInputs, queue_cost

KEY_STORE = "keys"
KEY_PRECISION = VectorPrecision.fp16  # on disk
SENTENCES_PER_WRITE = 65_536
HARD_NEGATIVES_FILE = "hard-negatives.npy"
SAME_MEANING = 0.9  # keys with at least this cosine may be translations too, so they are not negatives
EXTRA_NEIGHBORS = 16  # searched in addition to the requested number, because some may be too close
NO_NEIGHBOR = -1
EXACT_KEYS = 100_000  # with more keys, neighbours are searched approximately
PROBES = 14  # inverted lists searched per key, on average
logger = logging.getLogger(__name__)


class FrozenKeys:
    """The vectors and ids of one side of the training pairs; the lines of the store are the pairs."""

    def __init__(self, store: Store, pairs: Pairs, side: str) -> None:
        self.vectors, self.lines = store.vectors(), store.lines
        sides = (pairs.src_ids, pairs.tgt_ids)
        self.ids, self.translation_ids = sides if side == "src" else sides[::-1]

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Unit vectors (n, D) of some pairs' sentences, and ids (n, 2) of the sentences and their translations."""
        ids = np.stack([self.ids[rows], self.translation_ids[rows]], axis=1)
        return torch.from_numpy(self.vectors.read(self.lines[rows])), torch.from_numpy(ids)


def encode_keys(config: TrainConfig, pairs: Pairs, out: Path) -> None:
    """Encodes the missing sentences of the frozen side into the run folder; DataError if it has keys of other text."""
    lang = (config.src if config.frozen == "src" else config.tgt).lang
    folder = out / KEY_STORE
    text = folder.with_suffix(".txt")
    _write_sentences(getattr(pairs, config.frozen), text)
    made: list[int] = []
    model, form = open_model(out / INITIAL), StoreForm(KEY_PRECISION)
    store = encode_file(TextFile(text, lang), folder, model, form, done=made.append)
    assert store.lines.min() >= 0, "training pairs have text on both sides"
    encoded = sum(store.shards[number].rows for number in made)
    logger.info("%s is frozen: %s keys in %s, %s of them encoded now", lang, f"{store.count:,}", folder, f"{encoded:,}")


def open_keys(config: TrainConfig, pairs: Pairs, out: Path) -> FrozenKeys:
    """Opens the keys that `encode_keys` wrote."""
    return FrozenKeys(open_store(out / KEY_STORE), pairs, config.frozen)


def _write_sentences(sentences: pa.LargeStringArray, path: Path) -> None:
    """Writes one sentence per line; a line break within a sentence becomes a space."""
    with new_file(path) as stream:
        for start in range(0, len(sentences), SENTENCES_PER_WRITE):
            lines = sentences.slice(start, SENTENCES_PER_WRITE).to_pylist()
            stream.write("".join(f"{line.replace(chr(10), ' ')}\n" for line in lines).encode("utf-8"))


class HardNegatives:
    """The pairs whose keys are nearest to each pair's own key."""

    def __init__(self, keys: FrozenKeys, near: Ids) -> None:
        self.lines, self.near = keys.lines, near  # near: rows of the store (n, h), or NO_NEIGHBOR
        self.pairs = np.empty(len(near), dtype=np.int64)  # one pair for each key
        self.pairs[keys.lines] = np.arange(len(keys.lines))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The pairs (m,) that are hard negatives of any pair of a batch, sorted."""
        near = np.unique(self.near[self.lines[rows]])
        return np.sort(self.pairs[near[near != NO_NEIGHBOR]])


def find_hard_negatives(keys: FrozenKeys, count: int, out: Path) -> None:
    """Writes up to `count` nearest neighbours of every key into the run folder, unless they are already there."""
    if (out / HARD_NEGATIVES_FILE).exists():
        return
    found = neighbor_keys(keys.vectors, count + EXTRA_NEIGHBORS)
    itself = found.ids == np.arange(len(found.ids))[:, None]  # (n, k)
    unfit = itself | (found.scores >= SAME_MEANING) | np.isneginf(found.scores)  # also empty places
    order = np.argsort(unfit, axis=1, kind="stable")[:, :count]  # the nearest allowed keys come first
    near = np.where(unfit, NO_NEIGHBOR, found.ids)
    with new_file(out / HARD_NEGATIVES_FILE) as stream:
        np.save(stream, np.take_along_axis(near, order, axis=1), allow_pickle=False)


def neighbor_keys(vectors: ShardedVectors, k: int) -> Neighbors:
    """The k nearest keys of every key (n, D); approximate, by inverted lists, if n is above EXACT_KEYS."""
    count = len(vectors)
    if count <= EXACT_KEYS:
        with counting("searching hard negatives", count, " keys") as progress:
            return nearest(vectors, vectors, k, progress=progress)
    with counting("training lists", count, " keys") as progress:
        lists = ProbedLists.train(vectors, vectors, PROBES, progress)
    with counting("searching hard negatives", count, " keys") as progress:
        found = scan_lists(vectors, vectors, slice(0, count), slice(0, count), k, lists, progress=progress)
    near = rerank(found, vectors, vectors, k, exact=False)
    recall = 100 * sampled_recall(near, vectors, vectors)
    logger.info("hard negatives: found %.1f %% of the nearest keys of a sample", recall)
    return near


def open_hard_negatives(keys: FrozenKeys, out: Path) -> HardNegatives:
    """Opens what `find_hard_negatives` wrote."""
    return HardNegatives(keys, np.load(out / HARD_NEGATIVES_FILE, allow_pickle=False))


@dataclass(frozen=True)
class Negatives:
    """The negatives that all micro-batches of a step share."""

    vectors: Tensor  # (K, D)
    ids: Tensor  # (K, 2): of a negative's sentence, of its translation

    def to(self, device: torch.device) -> Negatives:
        """The negatives on a device."""
        return Negatives(self.vectors.to(device, non_blocking=True), self.ids.to(device, non_blocking=True))

    def pinned(self) -> Negatives:
        """The negatives in pinned memory if there is a CUDA GPU."""
        if not torch.cuda.is_available():
            return self
        return Negatives(self.vectors.pin_memory(), self.ids.pin_memory())


@dataclass(frozen=True)
class OneSidedBatch:
    """Sentences of the trained side as tokens, the keys of their translations, and negatives."""

    features: TokenParts
    keys: Tensor  # (N, D)
    ids: Tensor  # (N, 2): of a sentence, of its translation
    negatives: Negatives  # of the whole step

    @property
    def pair_tokens(self) -> int:
        """Tokens of the trained side, including padding."""
        return self.features.count

    tokens = pair_tokens

    def to(self, device: torch.device) -> OneSidedBatch:
        """The batch on a device, except for the negatives, which `OneSidedMoco.begin_step` moves once for a step."""
        keys, ids = (tensor.to(device, non_blocking=True) for tensor in (self.keys, self.ids))
        return OneSidedBatch(self.features.to(device), keys, ids, self.negatives)


class OneSidedLoader:
    """The micro-batches that this process computes; all micro-batches of a step have the same negatives."""

    def __init__(
        self,
        config: TrainConfig,
        pairs: Pairs,
        order: Curriculum,
        keys: FrozenKeys,
        tokenize: Tokenize,
        shard: ShardSpec,
        hard: HardNegatives | None = None,
    ) -> None:
        self.sentences = pairs.tgt if config.frozen == "src" else pairs.src
        self.contrast, self.seed = config.contrast, config.seed
        self.order, self.keys, self.tokenize, self.shard, self.hard = order, keys, tokenize, shard, hard
        self.batches_per_epoch = order.batches_per_epoch

    def step(self, step: int) -> list[OneSidedBatch]:
        """The micro-batches of a step."""
        rows = self.order.rows(step)
        negatives = Negatives(*self.keys.take(self.negative_rows(step, rows))).pinned()
        return [self._batch(part, negatives) for part in self.shard.split(rows)]

    def negative_rows(self, step: int, rows: np.ndarray) -> np.ndarray:
        """The pairs (K,) whose keys are the negatives of a step with the pairs `rows`.

        `queue_size` pairs (or all, if there are fewer) are drawn by seed and step. With `batch_keys` they include the
        step's own pairs, which come first. Hard negatives are added. No pair is used twice.
        """
        own = np.unique(rows)[: self.contrast.queue_size if self.contrast.batch_keys else 0]
        others = len(self.keys) - len(own)
        generator = np.random.default_rng([self.seed, step, 0, 1])  # `BatchOrder` seeds with three numbers at most
        drawn = generator.choice(others, min(self.contrast.queue_size - len(own), others), replace=False, shuffle=False)
        drawn += np.searchsorted(
            own - np.arange(len(own)), drawn, side="right"
        )  # numbers of other pairs, without the step's own
        parts = [own, np.sort(drawn)]  # in the order on disk
        if self.hard is not None:
            parts.append(np.setdiff1d(self.hard.of(rows), np.concatenate(parts)))  # no key is used twice
        return np.concatenate(parts)

    def _batch(self, rows: np.ndarray, negatives: Negatives) -> OneSidedBatch:
        keys, ids = self.keys.take(rows)
        features = TokenParts.split(self.tokenize(self.sentences.take(rows).to_pylist()))
        return OneSidedBatch(features, keys, ids.flip(1), negatives)


class OneSidedMoco(Objective):
    """Dual momentum contrast with one frozen encoder: InfoNCE of the other encoder against its keys."""

    trains_prefixes = True

    def __init__(self, src: Encoder, tgt: Encoder, config: TrainConfig) -> None:
        super().__init__()
        self.encoder = tgt if config.frozen == "src" else src
        self.dimensions = config.contrast.prefixes(src.dimension)
        log_temperature = torch.tensor(math.log(config.contrast.temperature))
        self.log_temperature = nn.Parameter(log_temperature, requires_grad=config.contrast.learn_temperature)

    @classmethod
    def rules(cls, config: TrainConfig) -> list[Rule]:
        """Requirements on settings of momentum encoders and queues, which a frozen encoder does not have."""
        contrast, frozen = config.contrast, f"when {config.frozen}.frozen is true"
        return [
            ("contrast.mask_repeats", False, contrast.mask_repeats, f"true {frozen}"),
            ("contrast.key_dropout", True, not contrast.key_dropout, f"false {frozen}: there is no momentum encoder"),
        ]

    @classmethod
    def cost(cls, config: TrainConfig, dimension: int, devices: int = 1) -> ObjectiveCost:
        """One direction against random keys."""
        return queue_cost(config, dimension, devices, directions=1)

    def make_loader(self, inputs: RunInputs) -> Loader:
        """Encodes the keys and searches hard negatives on the first process, then opens them on all."""
        config, pairs, out = inputs.config, inputs.split.train, Path(inputs.config.out)
        count = config.contrast.hard_negatives
        if count and len(pairs) > EXACT_KEYS:
            require_faiss()  # for the approximate search after the keys are encoded
        if inputs.accelerator.is_main_process:
            encode_keys(config, pairs, out)
            if count:
                find_hard_negatives(open_keys(config, pairs, out), count, out)
        wait_for_all()
        keys = open_keys(config, pairs, out)
        hard = open_hard_negatives(keys, out) if count else None
        return OneSidedLoader(config, pairs, inputs.order, keys, self.encoder.tokenize, inputs.shard, hard)

    def begin_step(self, micro_batches: Sequence[OneSidedBatch]) -> list[Negatives]:
        """Moves the negatives of this step to the device, one copy for all micro-batches."""
        return [micro_batches[0].negatives.to(self.log_temperature.device)] * len(micro_batches)

    def forward(self, batch: OneSidedBatch, prepared: Negatives) -> Metrics:
        """Equation 2 for one micro-batch."""
        query = self.encoder(batch.features)  # (N, D)
        losses, correct, masked = blockwise_info_nce(
            *(query, batch.keys, prepared.vectors, self.log_temperature.exp(), batch.ids, prepared.ids),
            dimensions=self.dimensions,
        )
        with torch.no_grad():
            spread = query.var(dim=0, correction=0).sum().sqrt()  # 0 if the queries collapse, 1 in all directions
        share = masked / (len(query) * len(prepared.vectors))
        return {"loss": losses.mean(), "accuracy": correct.float().mean(), "spread": spread, "masked": share}

    def end_step(self, prepared: Sequence[Negatives]) -> None:
        """Limits the temperature."""
        limit_temperature(self.log_temperature)

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """The temperature, which may be learned."""
        return {"temperature": self.log_temperature.exp().item()}
