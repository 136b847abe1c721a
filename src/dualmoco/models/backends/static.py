"""The static back-end: the average of token vectors from a table, without PyTorch.

Most of the time goes into tokenizing, so `WordCache` keeps the tokens of words. It works for tokenizers that treat the
text between two spaces independently. Other tokenizers, and text without spaces, are handled as usual, with the same
result. Shapes: n sentences, T tokens in all of them, V tokens in the table, D dimension.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Ids, Vectors, unit_vectors
from dualmoco.models.backends.st_format import (
    DENSE,
    LAYOUT_ERRORS,
    TABLE,
    Layer,
    UnknownLayoutError,
    pop_normalize,
    read_layout,
    read_projection,
    read_prompt,
    read_tensors,
    read_tokenizer,
)
from dualmoco.models.backends.tokens import WINDOW
from dualmoco.models.folder import TOKENIZER_FILE
from dualmoco.models.model import STATIC

LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "Lowercase", "StripAccents"}
SPACE_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
LOCAL_SPLITTERS = SPACE_SPLITTERS | {"Digits", "Punctuation"}
MOST_WORDS = 500_000
SUMMED_ROWS = 512  # sentences whose token vectors are added at once; their sums fit into the cache
NEW_SHARE = 0.25  # if a larger share of the words in a block is new, the cache saves no time


@dataclass(frozen=True)
class StaticTable:
    """An encoder that averages token vectors, with its projections multiplied in."""

    tokenizer: Tokenizer  # without padding and truncation
    vectors: Vectors  # token vectors of shape (V + 1, D); the last row is for a sentence without tokens
    normalize: bool  # whether the encoder scales its vectors to unit length
    prompt: str = ""  # text before every sentence


def check_vocabulary(shape: tuple[int, ...], tokenizer: Tokenizer, place: Path | str) -> None:
    """ModelError if the shape of token vectors is not (V, D) with one row per token."""
    needed = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if len(shape) != 2 or shape[0] < needed or not shape[1]:
        raise ModelError(
            f"{place}: token vectors of shape {shape}; expected at least {needed:,} rows, one per token of "
            f"{TOKENIZER_FILE}, and a dimension above 0"
        )


class StaticBackend:
    """Averages the token vectors of a table."""

    name = STATIC

    def __init__(self, table: StaticTable) -> None:
        self.table, self.is_unit, self.prompt = table.vectors, table.normalize, table.prompt
        self.words = WordCache(table.tokenizer)
        self.dimension = int(table.vectors.shape[1])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order; zeros for sentences without tokens."""
        windows = [self._encode_window(texts[start : start + WINDOW]) for start in range(0, len(texts), WINDOW)]
        if len(windows) == 1:
            return windows[0]
        return np.concatenate([np.empty((0, self.dimension), dtype=np.float32), *windows])

    def _encode_window(self, texts: Sequence[str]) -> Vectors:
        """Vectors of some sentences; equal sentences are averaged only once."""
        prompted = [self.prompt + text for text in texts] if self.prompt else list(texts)
        place = {text: row for row, text in enumerate(dict.fromkeys(prompted))}
        found = self._average(list(place))
        return found if len(place) == len(prompted) else found[[place[text] for text in prompted]]

    def _average(self, texts: list[str]) -> Vectors:
        """Means of token vectors; if they are scaled to unit length, sums give the same result."""
        tokens = self.words.tokens(texts)
        sums = sum_rows(self.table, tokens)
        if self.is_unit:
            return unit_vectors(sums)
        means: Vectors = sums / np.maximum(tokens.lengths, 1).astype(np.float32)[:, None]
        return means


class TokenRuns(NamedTuple):
    """The tokens of several sentences, one after another."""

    ids: Ids  # (T,)
    lengths: Ids  # (n,) number of tokens of each sentence

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | Ids]) -> TokenRuns:
        """The tokens of sentences given as separate lists."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return cls(np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())), lengths)


def sum_rows(table: Vectors, tokens: TokenRuns) -> Vectors:
    """Sums (n, D) of the table rows of each sentence's tokens; the last row for a sentence without tokens."""
    # The first tokens of many sentences are looked up together, then the second ones are added, and so on.
    starts = np.cumsum(tokens.lengths) - tokens.lengths
    order = np.argsort(-tokens.lengths, kind="stable")
    sums: Vectors = np.empty((len(order), table.shape[1]), dtype=np.float32)
    room: Vectors = np.empty((SUMMED_ROWS, table.shape[1]), dtype=np.float32)
    ids = np.append(tokens.ids, len(table) - 1)
    for first in range(0, len(order), SUMMED_ROWS):
        some = order[first : first + SUMMED_ROWS]
        lengths = tokens.lengths[some]  # descending
        places = np.where(lengths > 0, starts[some], len(ids) - 1)
        found = table.take(ids[places], axis=0)
        longer = len(some) - np.searchsorted(lengths[::-1], np.arange(1, lengths[0]), side="right")
        for position, count in enumerate(longer.tolist(), start=1):
            found[:count] += table.take(ids[places[:count] + position], axis=0, out=room[:count], mode="clip")
        sums[some] = found
    return sums


class WordCache:
    """Tokenizes sentences, and looks up words that it has seen before. The tokenizer neither pads nor truncates."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.by_words = splits_at_spaces(tokenizer)
        self.known: dict[str, list[int]] = {}

    def tokens(self, texts: list[str]) -> TokenRuns:
        """The token ids of a block of sentences, without special tokens; blocks of several hundred are fastest."""
        words = [text.split(" ") for text in texts] if self.by_words else []
        known = self._learn(words)
        if known is None:
            return TokenRuns.of(self._tokenize(texts))
        by_word = TokenRuns.of([known[word] for word in chain.from_iterable(words)])
        ends = np.cumsum(by_word.lengths)[np.cumsum([len(sentence) for sentence in words]) - 1]
        return TokenRuns(by_word.ids, np.diff(ends, prepend=0))

    def _learn(self, words: list[list[str]]) -> dict[str, list[int]] | None:
        """A cache that has the words of some sentences; None if too many are new."""
        # Other threads may read the cache at the same time, so words are added, and never removed.
        known = self.known
        if len(known) > MOST_WORDS:
            self.known = known = {}
        new = [word for word in set(chain.from_iterable(words)) if word not in known]
        if len(new) > NEW_SHARE * sum(map(len, words)) or not words:
            return None
        known.update(zip(new, self._tokenize(new), strict=True))
        return known

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def splits_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a text are the tokens of its words; True only if that is known for every component."""
    normalizers = _component_types(tokenizer.normalizer, "normalizers")
    splitters = _component_types(tokenizer.pre_tokenizer, "pretokenizers")
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        set(normalizers) <= LOCAL_NORMALIZERS
        and bool(SPACE_SPLITTERS.intersection(splitters[:1]))
        and set(splitters) <= LOCAL_SPLITTERS
        and not getattr(tokenizer.model, "dropout", None)
        and not any(" " in token.content or token.lstrip or token.rstrip for token in added)
    )


def _component_types(component: Any, inner: str) -> list[str]:
    """The type of a normalizer or splitter, and if it is a sequence, the types of its members."""
    if component is None:
        return []
    part = json.loads(component.__getstate__())
    return [str(one["type"]) for one in (part[inner] if part["type"] == "Sequence" else [part])]


def read_static_folder(folder: Path, prompt: str = "") -> dict[str, StaticTable] | None:
    """The tables of a sentence-transformers folder; None if an encoder is not static.

    Languages that share an encoder and its prompt get the same table. The key of a single encoder is ANY_LANGUAGE. An
    empty prompt means the model's own.
    """
    try:
        layout = read_layout(folder)
        tables = {layers: _read_table(layers) for layers in dict.fromkeys(layout.values())}
        used = {lang: (layers, prompt or read_prompt(folder, lang)) for lang, layers in layout.items()}
        prompted = {key: replace(tables[key[0]], prompt=key[1]) for key in dict.fromkeys(used.values())}
        return {lang: prompted[key] for lang, key in used.items()}
    except LAYOUT_ERRORS:
        return None  # sentence-transformers opens it, or reports what is wrong


def _read_table(layers: Sequence[Layer]) -> StaticTable:
    """The table of one encoder, with the projections after it multiplied in."""
    (first, folder), *rest = layers
    if first != TABLE:
        raise UnknownLayoutError
    normalize = pop_normalize(rest)
    tensors = read_tensors(folder, spare=1)
    if set(tensors) != {"embedding.weight"}:
        raise UnknownLayoutError
    vectors = tensors["embedding.weight"]
    tokenizer = read_tokenizer(folder)
    check_vocabulary((len(vectors) - 1, *vectors.shape[1:]), tokenizer, folder)
    for kind, place in rest:
        if kind != DENSE:
            raise UnknownLayoutError
        matrix, bias = read_projection(place)
        if matrix.shape[1] != vectors.shape[1]:
            raise ModelError(f"{place}: a matrix of shape {matrix.shape}; expected {vectors.shape[1]} columns")
        vectors = vectors @ matrix.T if bias is None else vectors @ matrix.T + bias
    tokenizer.no_padding()
    tokenizer.no_truncation()  # long sentences cost nothing
    return StaticTable(tokenizer, np.ascontiguousarray(vectors), normalize)
