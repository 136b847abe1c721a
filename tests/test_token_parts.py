"""Batches that are encoded in parts of similar length: the same vectors and gradients with fewer tokens."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dualmoco.data.pairs import Pairs
from dualmoco.models.build import build_encoder
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import PART_TOKENS, Encoder, Features, TokenParts, split_lengths
from dualmoco.training.batches import PairLoader, ShardSpec, order_pairs

TEXTS = [" ".join(["the small cat sees a bird"] * (1 + 2 * (i * i % 7))) + f" {i}" for i in range(96)]


@pytest.fixture(scope="module")
def bert() -> Encoder:
    """A small BERT of which no two sentences have the same vector."""
    torch.manual_seed(0)
    config = EncoderConfig(lang="en", kind=EncoderKind.bert, width=32, layers=2, heads=2, vocab_size=200)
    encoder = build_encoder(config, TEXTS)
    encoder.set_dropout(0.0)
    return encoder


def padded_tokens(lengths: list[int], splits: list[int]) -> int:
    """Tokens of sorted lengths that are split at some places, and the price of each part."""
    parts = np.split(np.array(lengths), splits)
    return sum(len(part) * int(part.max()) + PART_TOKENS for part in parts)


@pytest.mark.parametrize("seed", range(6))
def test_no_other_split_is_cheaper(seed: int) -> None:
    """The split is the best of all there are."""
    lengths = np.sort(np.random.default_rng(seed).integers(1, 9, 10) * 40).tolist()
    every = [list(splits) for count in range(10) for splits in itertools.combinations(range(1, 10), count)]
    found = split_lengths(np.array(lengths))
    assert padded_tokens(lengths, found) == min(padded_tokens(lengths, splits) for splits in every)


def test_equal_lengths_and_small_batches_stay_whole() -> None:
    """A part is not worth it if it saves no more than PART_TOKENS."""
    assert split_lengths(np.full(1000, 30)) == []
    assert split_lengths(np.array([2, 2, 60])) == []
    assert split_lengths(np.array([10] * 500 + [60] * 4)) == [500]


def gradients(encoder: Encoder, tokens: Features | TokenParts) -> tuple[Tensor, list[Tensor]]:
    """The vectors, and the gradients of a loss to which each sentence contributes something else."""
    learning = copy.deepcopy(encoder).train()
    vectors = learning(tokens)
    weights = torch.arange(vectors.numel()).reshape(vectors.shape).cos()
    (vectors * weights).sum().backward()
    return vectors.detach(), [weight.grad for weight in learning.parameters() if weight.grad is not None]


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_parts_have_the_vectors_and_gradients_of_the_whole(bert: Encoder, padding_side: str) -> None:
    """Every sentence keeps its place, whichever side is padded."""
    encoder = copy.deepcopy(bert)
    first: Any = encoder.layers[0]
    first.tokenizer.padding_side = padding_side
    whole = encoder.tokenize(TEXTS)
    tokens = TokenParts.split(whole)
    assert len(tokens.parts) > 1 and sum(len(part["input_ids"]) for part in tokens.parts) == len(TEXTS)
    assert int(whole["attention_mask"].sum()) <= tokens.count < 0.7 * whole["input_ids"].numel()
    for part in tokens.parts:
        assert bool(part["attention_mask"].any(dim=0).all())  # no column of padding alone
    if padding_side == "right":  # BERT numbers positions from the left, padding included
        vectors, found = gradients(encoder, tokens)
        expected_vectors, expected = gradients(encoder, whole)
        torch.testing.assert_close(vectors, expected_vectors, atol=1e-6, rtol=0)
        for gradient, goal in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, goal, atol=1e-5, rtol=1e-4)


def test_a_table_of_vectors_stays_whole() -> None:
    """Its tokens have no padding."""
    encoder = build_encoder(EncoderConfig(lang="en", kind=EncoderKind.static, width=8, vocab_size=200), TEXTS).eval()
    features = encoder.tokenize(TEXTS)
    tokens = TokenParts.split(features)
    assert tokens.places is None and tokens.parts == [features]
    assert torch.equal(encoder(tokens), encoder(features))


def test_each_side_of_a_batch_is_split_by_itself(bert: Encoder) -> None:
    """Long sentences of one side may be translations of short ones: both sides have little padding."""
    pairs = Pairs.from_texts(list(zip(TEXTS, TEXTS[48:] + TEXTS[:48], strict=True)))
    order = order_pairs(pairs, 96, seed=0, bucket=1)
    batch = PairLoader(pairs, order, bert.tokenize, bert.tokenize, ShardSpec()).step(0)[0]
    for tokens, texts in ((batch.src, batch.src_texts), (batch.tgt, batch.tgt_texts)):
        whole = bert.tokenize(texts)
        assert tokens.count < 0.7 * whole["input_ids"].numel()
        torch.testing.assert_close(bert(tokens), bert(whole), atol=1e-6, rtol=0)
    assert batch.pair_tokens == batch.src.count + batch.tgt.count
