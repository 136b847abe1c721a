"""How a recipe describes the encoder of one language."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from dualmoco.core.config_loader import Rule

FIRST_LAST = "first-last"  # a pooling for baselines only: the average of the first and the last layer
ALL, HEAD, LAST = "all", "head", "last:"  # values of `trainable`; a number of layers follows the last one


class EncoderKind(StrEnum):
    """Where an encoder comes from."""

    pretrained = "pretrained"  # a Hugging Face or sentence-transformers folder or hub name
    bert = "bert"  # a small BERT from scratch, its tokenizer trained on the corpus
    static = "static"  # an average of token embeddings, its tokenizer trained on the corpus
    shared = "shared"  # target side only: the source encoder serves both languages


class PoolingMode(StrEnum):
    """How token vectors become one sentence vector."""

    auto = "auto"  # the model's own; mean if it has none
    mean = "mean"
    max = "max"
    cls = "cls"


class ProjectionInit(StrEnum):
    """The initial weights of the projection."""

    random = "random"
    ridge = "ridge"  # ridge regression from its inputs to the other side's vectors of the same pairs


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder of one language."""

    lang: str = ""  # name of the language in the saved model, such as en
    kind: EncoderKind = EncoderKind.pretrained  # where the encoder comes from
    name: str = ""  # pretrained: folder or hub name
    pooling: PoolingMode = PoolingMode.auto  # any other replaces the pooling of a saved model
    projection: int = 0  # dimension of a final linear layer; 0: none, so both sides must have the same dimension
    projection_init: ProjectionInit = ProjectionInit.random  # initial weights of that layer
    ridge_pairs: int = 8000  # training pairs from which `projection_init: ridge` is computed
    frozen: bool = False  # dual-moco: this encoder stays as it is, and the other one learns to match it
    trainable: str = ALL  # all; head: the layers after pooling; last:N: also the last N transformer layers
    lr_scale: float = 1.0  # factor on optimizer.lr for this encoder: below 1 keeps a good encoder close to its start
    dropout: float = 0.1  # probability of every dropout layer; static: of the averaged vector
    max_tokens: int = 128  # longer sentences are truncated
    width: int = 256  # bert, static: dimension of a token vector
    layers: int = 4  # bert: transformer layers
    heads: int = 4  # bert: attention heads
    vocab_size: int = 16_000  # bert, static: entries of the trained tokenizer
    max_piece_length: int = 16  # bert, static: characters per entry; 4 suits Chinese
    entry_vectors: str = ""  # static: a model of dimension `width` that initializes the vectors of the entries

    def rules(self, side: str) -> list[Rule]:
        """What must be true of the encoder of a side, src or tgt."""
        is_static, is_shared = self.kind == EncoderKind.static, self.kind == EncoderKind.shared
        is_bert, is_pretrained = self.kind == EncoderKind.bert, self.kind == EncoderKind.pretrained
        last = re.fullmatch(rf"{LAST}([1-9]\d*)", self.trainable)
        layers = self.layers if is_bert else math.inf
        frozen, trains_all = f"when {side}.frozen is true", self.trainable == ALL
        divides = self.heads > 0 and self.width % self.heads == 0
        averages = self.pooling in (PoolingMode.auto, PoolingMode.mean)
        is_ridge = self.projection_init == ProjectionInit.ridge
        rules: list[tuple[str, bool, str]] = [  # key, whether its value is allowed, what is expected
            ("lang", bool(self.lang), "a language name such as en or zh"),
            ("name", not is_pretrained or bool(self.name), "a model folder or hub name such as bert-base-uncased"),
            ("kind", not self.frozen or is_pretrained, f"pretrained {frozen}: a new encoder must learn"),
            ("pooling", not is_static or averages, f"auto or mean when {side}.kind is static"),
            ("projection", self.projection >= 0, "at least 0"),
            ("projection", not (self.frozen and self.projection), f"0 {frozen}: a new layer must learn"),
            ("projection", not is_ridge or self.projection > 0, f"a dimension when {side}.projection_init is ridge"),
            ("ridge_pairs", self.ridge_pairs > 0, "at least 1"),
            ("trainable", trains_all or self.trainable == HEAD or bool(last), "all, head or last:N such as last:2"),
            ("trainable", trains_all or not self.frozen, f"all {frozen}"),
            ("trainable", trains_all or not is_shared, "all when tgt.kind is shared: src.trainable is for both"),
            ("trainable", not (last and is_static), f"all or head when {side}.kind is static: it has no layers"),
            ("trainable", not last or int(last[1]) <= layers, f"at most last:{layers}, the number of {side}.layers"),
            ("lr_scale", 0 < self.lr_scale <= 1, "above 0, at most 1; use frozen=true for 0"),
            ("lr_scale", self.lr_scale == 1 or not is_shared, "1 when tgt.kind is shared: src.lr_scale is for both"),
            ("dropout", 0 <= self.dropout < 1, "from 0 to below 1"),
            ("max_tokens", self.max_tokens > 2, "at least 3"),
            ("width", self.width > 0, "at least 1"),
            ("layers", self.layers > 0, "at least 1"),
            ("heads", not is_bert or divides, f"a divisor of {side}.width={self.width}"),
            ("vocab_size", self.vocab_size > 10, "at least 11"),
            ("max_piece_length", self.max_piece_length > 1, "at least 2"),
            ("entry_vectors", not self.entry_vectors or is_static, f"nothing unless {side}.kind is static"),
        ]
        given = vars(self) | {"kind": self.kind.value, "pooling": self.pooling.value}
        return [(f"{side}.{key}", given[key], holds, expected) for key, holds, expected in rules]
