"""The objectives that come with the package: dual momentum contrast, and the systems the paper compares it with.

To add one, write a subclass of `Objective` and name it in `OBJECTIVES`, or call `register` from your own code.

Shapes: N pairs in a micro-batch, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from dualmoco.core.config_loader import Rule
from dualmoco.core.errors import ConfigError
from dualmoco.models.build import load_teacher
from dualmoco.models.network import Encoder, TokenParts
from dualmoco.training.batches import LanguageLoader, Loader, PairBatch, PairLoader
from dualmoco.training.config import TrainConfig
from dualmoco.training.contrast import DualMomentumContrast, KeyBatch
from dualmoco.training.distributed import gather_rows, gather_with_gradient, process_rank
from dualmoco.training.frozen import OneSidedMoco
from dualmoco.training.grad_cache import WholeBatchObjective
from dualmoco.training.infonce import is_false_negative, limit_temperature, unit_prefix
from dualmoco.training.nli import Nli, with_nli
from dualmoco.training.objective import Metrics, Objective, ObjectiveCost, RunInputs, queue_cost


class DualMoco(Objective):
    """The paper's method, which is in `contrast.py`."""

    frozen_variant = OneSidedMoco
    trains_prefixes = takes_languages = True

    def __init__(self, src: Encoder, tgt: Encoder, config: TrainConfig, others: Sequence[Encoder] = ()) -> None:
        super().__init__()
        self.batch_keys = config.contrast.batch_keys
        self.contrast = DualMomentumContrast(
            src,
            tgt,
            dimension=src.dimension,
            queue_size=config.contrast.queue_size,
            temperature=config.contrast.temperature,
            learn_temperature=config.contrast.learn_temperature,
            key_dropout=config.contrast.key_dropout,
            dimensions=config.contrast.prefixes(src.dimension),
        )
        self.others = nn.ModuleList(
            map(self.contrast.with_target, others)
        )  # contrasts of src with each further language
        self.language = 0  # language of the step; 0 is tgt
        self.langs = [encoder.lang for encoder in config.encoders]

    @property
    def current(self) -> DualMomentumContrast:
        """The contrast of the language of this step."""
        other: DualMomentumContrast = self.others[self.language - 1] if self.language else self.contrast  # type: ignore[assignment]
        return other

    def make_loader(self, inputs: RunInputs) -> Loader:
        """Pairs of the two languages, or of one language after another."""
        loader = super().make_loader(inputs)
        if not inputs.others:
            return loader
        mask, loaders = inputs.config.contrast.mask_repeats, [cast(PairLoader, loader)]
        parts = zip(inputs.split.others, inputs.other_orders, inputs.others, strict=True)
        for language, (split, order, encoder) in enumerate(parts, start=1):
            tokenizers = inputs.src.tokenize, encoder.tokenize
            loaders.append(
                PairLoader(split.train, order, *tokenizers, inputs.shard, mask_repeats=mask, language=language)
            )
        return LanguageLoader(loaders, [1.0, *(language.share for language in inputs.config.languages)])

    @classmethod
    def cost(cls, config: TrainConfig, dimension: int, devices: int = 1) -> ObjectiveCost:
        """Two queues, scored in blocks, and a momentum encoder per encoder."""
        return queue_cost(config, dimension, devices, directions=2)

    def begin_step(self, micro_batches: Sequence[PairBatch]) -> list[KeyBatch]:
        """Encodes the keys of the whole step, so that micro-batches see the same negatives as one batch would."""
        self.language = micro_batches[0].language
        keys = [self.current.encode_keys(part.src, part.tgt, part.src_ids, part.tgt_ids) for part in micro_batches]
        if self.batch_keys:
            self._enqueue(keys)
        return keys

    def forward(self, batch: PairBatch, prepared: KeyBatch) -> Metrics:
        """Equation 3 for one micro-batch."""
        metrics: Metrics = self.current(batch.src, batch.tgt, prepared)
        return metrics

    def update_momentum(self, momentum: float) -> None:
        """Equation 1 for the momentum encoders of the step's languages."""
        self.current.update_momentum(momentum)

    def end_step(self, prepared: Sequence[KeyBatch]) -> None:
        """Enqueues the keys unless `begin_step` has done so, and limits the temperature."""
        limit_temperature(self.contrast.log_temperature)
        if not self.batch_keys:
            self._enqueue(prepared)

    def state_metrics(self, batch_size: int) -> dict[str, float]:
        """How full the queues are, the age of their oldest row in steps, and the temperature."""
        filled = len(self.contrast.src_queue)
        return {
            "queue_fill": filled / len(self.contrast.src_queue.vectors),
            "queue_age": filled / batch_size,
            "temperature": self.contrast.log_temperature.exp().item(),
        }

    def momentum_encoders(self) -> dict[str, nn.Module]:
        """One for each language."""
        contrasts = [self.contrast, *self.others]
        encoders = [contrast.get_submodule("tgt_momentum_encoder") for contrast in contrasts]
        return dict(zip(self.langs, [self.contrast.src_momentum_encoder, *encoders], strict=True))

    def _enqueue(self, keys: Sequence[KeyBatch]) -> None:
        """Enqueues the keys of all micro-batches and processes in one order, so that all queue replicas stay equal."""
        joined = (gather_rows(torch.cat([getattr(part, name) for part in keys])) for name in ("src", "tgt", "ids"))
        self.current.enqueue(KeyBatch(*joined))


class InBatch(WholeBatchObjective):
    """Translation ranking against the other pairs of the batch in both directions, with LaBSE's additive margin."""

    trains_prefixes = True

    def __init__(self, src: Encoder, tgt: Encoder, config: TrainConfig) -> None:
        super().__init__()
        self.src_encoder, self.tgt_encoder, self.dimensions = src, tgt, config.contrast.prefixes(src.dimension)
        self.temperature, self.margin = config.contrast.temperature, config.contrast.margin

    def encode_batch(self, batch: PairBatch) -> list[Tensor]:
        """Vectors of both sides."""
        return [self.src_encoder(batch.src), self.tgt_encoder(batch.tgt)]

    def compare(self, vectors: Sequence[Tensor], src_ids: Tensor, tgt_ids: Tensor) -> Metrics:
        """Cross-entropy over the pairs of the batch from all processes."""
        src, tgt = vectors
        how = self.temperature, self.margin, self.dimensions
        src_to_tgt = rank_translations(src, tgt, src_ids, tgt_ids, *how)
        tgt_to_src = rank_translations(tgt, src, tgt_ids, src_ids, *how)
        return {"loss": src_to_tgt[0] + tgt_to_src[0], "accuracy": (src_to_tgt[1] + tgt_to_src[1]) / 2}


def rank_translations(
    query: Tensor,
    key: Tensor,
    query_ids: Tensor,
    key_ids: Tensor,
    temperature: float,
    margin: float = 0.0,
    dimensions: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """In-batch InfoNCE with gradients on both sides, in fp32; the keys of all processes are candidates.

    Args:
        query: Unit vectors (N, D).
        key: Unit vectors (N, D); row i is the translation of query i.
        query_ids: Text ids (N,) of the queries.
        key_ids: Text ids (N,) of the keys.
        temperature: Positive scalar.
        margin: Margin to subtract from the scores of the positives.
        dimensions: D, then fewer components, as in `blockwise_info_nce`.

    Returns:
        The mean loss, and the share of queries whose whole vectors are nearest to their translation.
    """
    first = process_rank() * len(query)
    ids = torch.stack([query_ids, key_ids], dim=1)  # (N, 2)
    with torch.autocast(query.device.type, enabled=False):
        vectors, keys = query.float(), gather_with_gradient(key.float())  # (N, D), (processes * N, D)
        scores = [unit_prefix(vectors, d) @ unit_prefix(keys, d).T for d in dimensions or (query.shape[1],)]
    labels = torch.arange(first, first + len(query), device=query.device)
    positive = torch.zeros_like(scores[0], dtype=torch.bool).scatter_(1, labels[:, None], True)
    false = is_false_negative(ids, gather_rows(ids.flip(1))) & ~positive
    lowest = torch.finfo(torch.float32).min
    logits = [((part - margin * positive) / temperature).masked_fill(false, lowest) for part in scores]
    loss = torch.stack([cross_entropy(part, labels) for part in logits]).mean()
    return loss, (logits[0].argmax(dim=1) == labels).float().mean()


class Distill(Objective):
    """SBERT-p (Reimers and Gurevych, 2020): both encoders learn a teacher's vectors of the source sentences."""

    def __init__(self, src: Encoder, tgt: Encoder, config: TrainConfig) -> None:
        super().__init__()
        teacher = load_teacher(config.teacher, config.src)
        if teacher.dimension != src.dimension:
            raise ConfigError(
                f"the teacher's vectors have dimension {teacher.dimension}, the encoders' {src.dimension}; expected "
                f"the same: set src.projection={teacher.dimension} and tgt.projection={teacher.dimension}"
            )
        self.src_encoder, self.tgt_encoder = src, tgt
        self.teacher = teacher.requires_grad_(False).eval()

    @classmethod
    def rules(cls, config: TrainConfig) -> list[Rule]:
        """A teacher must be named."""
        expected = f"a model folder or hub name when objective is {config.objective}"
        return [("teacher", config.teacher, bool(config.teacher), expected)]

    def train(self, mode: bool = True) -> Distill:
        """Sets training mode; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def constant_modules(self) -> list[nn.Module]:
        """The teacher, which the recipe names."""
        return [self.teacher]

    def forward(self, batch: PairBatch, prepared: None) -> Metrics:
        """Squared distance between both students' unit vectors and the teacher's, summed over D."""
        src, tgt = self.src_encoder(batch.src).float(), self.tgt_encoder(batch.tgt).float()  # (N, D) each
        with torch.no_grad():
            tokens = TokenParts.split(self.teacher.tokenize(batch.src_texts))
            goal = self.teacher(tokens.to(src.device)).float()  # (N, D)
        labels = torch.arange(len(src), device=src.device)
        with torch.autocast(src.device.type, enabled=False):
            loss = (mse_loss(src, goal) + mse_loss(tgt, goal)) * goal.shape[1]
            accuracy = ((src @ tgt.T).argmax(dim=1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy}


class SimCse(WholeBatchObjective):
    """Unsupervised SimCSE (Gao et al., 2021) per language: each sentence against itself under different dropout."""

    trains_prefixes = True

    def __init__(self, src: Encoder, tgt: Encoder, config: TrainConfig) -> None:
        super().__init__()
        for lang, encoder in ((config.src.lang, src), (config.tgt.lang, tgt)):
            if not encoder.has_dropout:
                raise ConfigError(
                    f"the {lang} encoder has no dropout layers; expected some when objective is {config.objective}, "
                    "because dropout makes the two views of a sentence differ: use another model or objective"
                )
        self.src_encoder, self.tgt_encoder = src, tgt
        self.temperature, self.dimensions = config.contrast.temperature, config.contrast.prefixes(src.dimension)

    @classmethod
    def rules(cls, config: TrainConfig) -> list[Rule]:
        """Dropout makes the two views differ."""
        expected = f"src.dropout and tgt.dropout above 0 when objective is {config.objective}"
        return [("dropout", 0.0, config.src.dropout * config.tgt.dropout > 0, expected)]

    @classmethod
    def cost(cls, config: TrainConfig, dimension: int, devices: int = 1) -> ObjectiveCost:
        """Every sentence is encoded twice."""
        return replace(super().cost(config, dimension, devices), passes=2)

    def encode_batch(self, batch: PairBatch) -> list[Tensor]:
        """Two views of each sentence in both languages."""
        sides = ((self.src_encoder, batch.src), (self.tgt_encoder, batch.tgt))
        return [encoder(tokens) for encoder, tokens in sides for _ in range(2)]

    def compare(self, vectors: Sequence[Tensor], src_ids: Tensor, tgt_ids: Tensor) -> Metrics:
        """Cross-entropy over the sentences of the batch in both languages."""
        how = self.temperature, 0.0, self.dimensions
        src = rank_translations(vectors[0], vectors[1], src_ids, src_ids, *how)
        tgt = rank_translations(vectors[2], vectors[3], tgt_ids, tgt_ids, *how)
        return {"loss": src[0] + tgt[0], "accuracy": (src[1] + tgt[1]) / 2}


OBJECTIVES: dict[str, type[Objective]] = {
    "dual-moco": DualMoco,
    "in-batch": InBatch,
    "distill": Distill,
    "nli": Nli,
    "simcse": SimCse,
}
"""The class of each name that a recipe's `objective` may have."""
BUILT_IN = frozenset(OBJECTIVES)


def register(name: str, objective: type[Objective]) -> None:
    """Makes a loss of your own available to recipes.

    Args:
        name: Value of `objective` in a recipe.
        objective: Class of the objective; it replaces a class that was registered under this name.

    Raises:
        ConfigError: The name belongs to an objective of the package.
    """
    if name in BUILT_IN:
        raise ConfigError(f"objective {name!r} comes with the package; expected another name for {objective.__name__}")
    OBJECTIVES[name] = objective


def objective_class(config: TrainConfig) -> type[Objective]:
    """The class for the objective of a recipe, including frozen encoders and NLI."""
    if config.objective not in OBJECTIVES:
        raise ConfigError(f"objective is {config.objective!r}; expected one of {', '.join(OBJECTIVES)}")
    chosen = OBJECTIVES[config.objective]
    if config.frozen:
        chosen = chosen.frozen_variant or chosen
    return with_nli(chosen) if config.nli.train else chosen
