"""How a recipe describes the encoder of one language."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EncoderKind(StrEnum):
    """Where an encoder comes from."""

    pretrained = "pretrained"  # a Hugging Face or sentence-transformers folder or hub name
    bert = "bert"  # a small BERT from scratch, its tokenizer trained on the corpus
    static = "static"  # an average of token embeddings, its tokenizer trained on the corpus
    shared = "shared"  # target side only: the source encoder serves both languages


FIRST_LAST = "first-last"
"""A pooling for baselines alone: the average of the first and the last layer."""


class PoolingMode(StrEnum):
    """How token vectors become one sentence vector."""

    auto = "auto"  # the model's own; mean where it has none
    mean = "mean"
    max = "max"
    cls = "cls"


class ProjectionInit(StrEnum):
    """What the linear layer that `projection` names starts from."""

    random = "random"
    ridge = "ridge"  # ridge regression from its inputs to the other side's vectors of the same pairs


ALL, HEAD, LAST = "all", "head", "last:"
"""What `trainable` may be; a number of layers follows the last."""


@dataclass(frozen=True)
class EncoderConfig:
    """One language's encoder."""

    lang: str = ""  # the name of the language in the saved model, such as en
    kind: EncoderKind = EncoderKind.pretrained
    name: str = ""  # pretrained: folder or hub name
    pooling: PoolingMode = PoolingMode.auto  # any other replaces the pooling of a saved model
    projection: int = 0  # dimension of a linear layer after the others; 0: none, so both sides must have one dimension
    projection_init: ProjectionInit = ProjectionInit.random
    ridge_pairs: int = 8000  # training pairs that `projection_init: ridge` is computed from
    frozen: bool = False  # dual-moco: this side stays as it is, the other learns to meet it
    trainable: str = ALL  # what learns: all; head, the layers after pooling; last:N, also the last N transformer layers
    lr_scale: float = 1.0  # of optimizer.lr for this side: below 1 keeps a good encoder close to what it was
    dropout: float = 0.1  # of every dropout layer; static: of the averaged vector
    max_tokens: int = 128  # longer sentences are cut
    width: int = 256  # bert, static: dimension of a token vector
    layers: int = 4  # bert
    heads: int = 4  # bert
    vocab_size: int = 16_000  # bert, static: entries of the trained tokenizer
    max_piece_length: int = 16  # bert, static: characters in one entry; 4 suits Chinese
    entry_vectors: str = ""  # static: a model of dimension `width` whose vectors of the entries the table starts from
