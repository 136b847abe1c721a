"""How a recipe describes the encoder of one language."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FIRST_LAST = "first-last"
"""A pooling for baselines only: the average of the first and the last layer."""
ALL, HEAD, LAST = "all", "head", "last:"
"""Values of `trainable`; a number of layers follows the last one."""


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
    kind: EncoderKind = EncoderKind.pretrained
    name: str = ""  # pretrained: folder or hub name
    pooling: PoolingMode = PoolingMode.auto  # any other replaces the pooling of a saved model
    projection: int = 0  # dimension of a final linear layer; 0: none, so both sides must have the same dimension
    projection_init: ProjectionInit = ProjectionInit.random
    ridge_pairs: int = 8000  # training pairs from which `projection_init: ridge` is computed
    frozen: bool = False  # dual-moco: this encoder stays as it is, and the other one learns to match it
    trainable: str = ALL  # all; head: the layers after pooling; last:N: also the last N transformer layers
    lr_scale: float = 1.0  # factor on optimizer.lr for this encoder: below 1 keeps a good encoder close to its start
    dropout: float = 0.1  # probability of every dropout layer; static: of the averaged vector
    max_tokens: int = 128  # longer sentences are truncated
    width: int = 256  # bert, static: dimension of a token vector
    layers: int = 4  # bert
    heads: int = 4  # bert
    vocab_size: int = 16_000  # bert, static: entries of the trained tokenizer
    max_piece_length: int = 16  # bert, static: characters per entry; 4 suits Chinese
    entry_vectors: str = ""  # static: a model of dimension `width` that initializes the vectors of the entries
