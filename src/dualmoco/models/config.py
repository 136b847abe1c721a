"""How a recipe describes the encoder of one language."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from dualmoco.core.config_loader import Rule

FIRST_LAST = "first-last"  # pooling for baselines only: the average of the first and the last layer
ALL, HEAD, LAST = "all", "head", "last:"  # values of `trainable`; a number of layers follows the last one


class EncoderKind(StrEnum):
    """Where an encoder comes from."""

    pretrained = "pretrained"  # a Hugging Face or sentence-transformers folder or hub name
    bert = "bert"  # a small BERT from scratch, with a tokenizer trained on the corpus
    static = "static"  # an average of token embeddings, with a tokenizer trained on the corpus
    shared = "shared"  # target side only: the source encoder serves both languages


class PoolingMode(StrEnum):
    """How token vectors become one sentence vector."""

    auto = "auto"  # the model's own; mean if it has none
    mean = "mean"
    max = "max"
    cls = "cls"
    last = "last"  # the vector of the last token, as in decoders


class Attention(StrEnum):
    """How a transformer computes attention while it trains."""

    auto = "auto"  # sdpa if the model supports it
    eager = "eager"
    sdpa = "sdpa"  # PyTorch's scaled_dot_product_attention
    flash_attention_2 = "flash_attention_2"  # from the package flash-attn, on CUDA GPUs in bf16 or fp16


class ProjectionInit(StrEnum):
    """The initial weights of the projection."""

    random = "random"
    ridge = "ridge"  # ridge regression from its inputs to the vectors of the other side


@dataclass(frozen=True)
class AdapterConfig:
    """LoRA: small matrices that are trained instead of a transformer's weights, and added to them when it is saved."""

    rank: int = 0  # rank of the two matrices per layer; 0: no adapter, train the weights
    alpha: float = 16.0  # the adapter is multiplied by alpha / rank
    dropout: float = 0.0  # probability of dropout on the adapter's inputs
    target_modules: list[str] = field(default_factory=list)  # names of layers with adapters; none: all linear layers


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder of one language."""

    lang: str = ""  # name of the language in the saved model, such as en
    kind: EncoderKind = EncoderKind.pretrained  # where the encoder comes from
    name: str = ""  # pretrained: folder or hub name
    prompt: str | None = None  # text before every sentence, such as "query: "; null: the model's own, if it has one
    pooling: PoolingMode = PoolingMode.auto  # auto: the model's own; others override it
    projection: int = 0  # dimension of a final linear layer; 0: none, so both sides must have the same dimension
    projection_init: ProjectionInit = ProjectionInit.random  # initial weights of that layer
    ridge_pairs: int = 8000  # training pairs to compute `projection_init: ridge` on
    frozen: bool = False  # dual-moco: this encoder is not trained, and the other one learns to match it
    trainable: str = ALL  # all; head: the layers after pooling; last:N: also the last N transformer layers
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    lr_scale: float = 1.0  # factor on optimizer.lr for this encoder; below 1 keeps it close to its initial weights
    dropout: float = 0.1  # dropout probability of all layers; static: of the averaged vector
    attention: Attention = Attention.auto  # implementation of attention while training
    max_tokens: int = 128  # longer sentences, with their prompt, are truncated
    width: int = 256  # bert, static: dimension of a token vector
    layers: int = 4  # bert: transformer layers
    heads: int = 4  # bert: attention heads
    vocab_size: int = 16_000  # bert, static: entries of the trained tokenizer
    max_piece_length: int = 16  # bert, static: characters per entry; 4 suits Chinese
    entry_vectors: str = ""  # static: a model of dimension `width` that initializes the vectors of the entries

    def rules(self, side: str) -> list[Rule]:
        """The requirements on the settings of a side, src or tgt."""
        is_static, is_shared = self.kind == EncoderKind.static, self.kind == EncoderKind.shared
        is_bert, is_pretrained = self.kind == EncoderKind.bert, self.kind == EncoderKind.pretrained
        last = re.fullmatch(rf"{LAST}([1-9]\d*)", self.trainable)
        layers = self.layers if is_bert else math.inf
        frozen, trains_all = f"when {side}.frozen is true", self.trainable == ALL
        divides = self.heads > 0 and self.width % self.heads == 0
        averages = self.pooling in (PoolingMode.auto, PoolingMode.mean)
        has_adapter, is_auto = self.adapter.rank != 0, self.attention == Attention.auto
        is_ridge = self.projection_init == ProjectionInit.ridge
        rules: list[tuple[str, bool, str]] = [  # key, whether its value is allowed, what is expected
            ("lang", bool(self.lang), "a language name such as en or zh"),
            ("name", not is_pretrained or bool(self.name), "a model folder or hub name such as bert-base-uncased"),
            (
                "prompt",
                self.prompt is None or not is_shared,
                "null when tgt.kind is shared: src.prompt applies to both",
            ),
            ("kind", not self.frozen or is_pretrained, f"pretrained {frozen}: a new encoder must be trained"),
            ("pooling", not is_static or averages, f"auto or mean when {side}.kind is static"),
            ("projection", self.projection >= 0, "at least 0"),
            ("projection", not (self.frozen and self.projection), f"0 {frozen}: a new layer must be trained"),
            ("projection", not is_ridge or self.projection > 0, f"a dimension when {side}.projection_init is ridge"),
            ("ridge_pairs", self.ridge_pairs > 0, "at least 1"),
            ("trainable", trains_all or self.trainable == HEAD or bool(last), "all, head or last:N such as last:2"),
            ("trainable", trains_all or not self.frozen, f"all {frozen}"),
            ("trainable", trains_all or not is_shared, "all when tgt.kind is shared: src.trainable applies to both"),
            ("trainable", not (last and is_static), f"all or head when {side}.kind is static: it has no layers"),
            ("trainable", not last or int(last[1]) <= layers, f"at most last:{layers}, the number of {side}.layers"),
            ("adapter.rank", self.adapter.rank >= 0, "at least 0"),
            ("adapter.rank", not (has_adapter and is_static), f"0 when {side}.kind is static: it has no linear layers"),
            ("adapter.rank", not (has_adapter and is_shared), "0 when tgt.kind is shared: src.adapter applies to both"),
            ("adapter.rank", not (has_adapter and self.frozen), f"0 {frozen}: an adapter must be trained"),
            ("trainable", trains_all or not has_adapter, f"all when {side}.adapter.rank is above 0"),
            ("adapter.alpha", self.adapter.alpha > 0, "above 0"),
            ("adapter.dropout", 0 <= self.adapter.dropout < 1, "from 0 to below 1"),
            ("attention", is_auto or not is_static, f"auto when {side}.kind is static: it has no attention"),
            ("attention", is_auto or not is_shared, "auto when tgt.kind is shared: src.attention applies to both"),
            ("lr_scale", 0 < self.lr_scale <= 1, "above 0, at most 1; use frozen=true for 0"),
            (
                "lr_scale",
                self.lr_scale == 1 or not is_shared,
                "1 when tgt.kind is shared: src.lr_scale applies to both",
            ),
            ("dropout", 0 <= self.dropout < 1, "from 0 to below 1"),
            ("max_tokens", self.max_tokens > 2, "at least 3"),
            ("width", self.width > 0, "at least 1"),
            ("layers", self.layers > 0, "at least 1"),
            ("heads", not is_bert or divides, f"a divisor of {side}.width={self.width}"),
            ("vocab_size", self.vocab_size > 10, "at least 11"),
            ("max_piece_length", self.max_piece_length > 1, "at least 2"),
            ("entry_vectors", not self.entry_vectors or is_static, f"nothing unless {side}.kind is static"),
        ]
        given = vars(self) | {f"adapter.{key}": value for key, value in vars(self.adapter).items()}
        given |= {"kind": self.kind.value, "pooling": self.pooling.value, "attention": self.attention.value}
        return [(f"{side}.{key}", given[key], holds, expected) for key, holds, expected in rules]
