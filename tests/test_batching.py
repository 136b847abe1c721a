"""Which rows each step sees, how they are shared out, and the batches made of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmoco.core.errors import DataError
from dualmoco.data.nli_examples import NliExample
from dualmoco.data.pairs import Pairs
from dualmoco.data.text_column import sentence_ids
from dualmoco.models.network import Features, TokenParts
from dualmoco.training.batches import BatchOrder, PairLoader, ShardSpec, order_pairs, prefetch
from dualmoco.training.nli import NliLoader

PAIRS = [(f"{'long ' * (i % 5)}sentence {i}", f"{'长' * (i % 7)}句子{i}") for i in range(23)]


def tokenize(texts: list[str]) -> Features:
    """Characters as tokens, padded with 0 to the longest text."""
    width = max(len(text) for text in texts)
    return {"input_ids": torch.tensor([[*map(ord, text), *[0] * (width - len(text))] for text in texts])}


def untokenize(tokens: TokenParts) -> list[str]:
    """The texts that `tokenize` was given."""
    rows = [row for part in tokens.parts for row in part["input_ids"].tolist()]
    texts = ["".join(chr(token) for token in row if token) for row in rows]
    return texts if tokens.places is None else [texts[place] for place in tokens.places.tolist()]


def random_lengths(count: int) -> np.ndarray:
    """Lengths (count,) from 1 to 99."""
    return np.random.default_rng(0).integers(1, 100, count)


def epoch_rows(order: BatchOrder, epoch: int) -> list[int]:
    """All rows of one epoch in their order."""
    first = epoch * order.batches_per_epoch
    return [row for step in range(first, first + order.batches_per_epoch) for row in order.rows(step).tolist()]


@pytest.mark.parametrize("bucket", [1, 3, 50])
@pytest.mark.parametrize("count", [40, 43])
def test_an_epoch_sees_every_row_once(count: int, bucket: int) -> None:
    """No row comes twice in an epoch, all come but the remainder, and the next epoch has another order."""
    order = BatchOrder(random_lengths(count), 4, seed=5, bucket=bucket)
    epochs = [epoch_rows(order, epoch) for epoch in range(3)]
    for rows in epochs:
        assert len(rows) == len(set(rows)) == 40
        assert set(rows) <= set(range(count))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_remainder_changes_with_the_epoch() -> None:
    """Rows left over in one epoch come in another: none is lost for good."""
    order = BatchOrder(random_lengths(11), 4, seed=0, bucket=1)
    assert {row for epoch in range(10) for row in epoch_rows(order, epoch)} == set(range(11))


@pytest.mark.parametrize("bucket", [1, 4])
def test_rows_are_a_function_of_seed_and_step(bucket: int) -> None:
    """Steps asked in any order, of any object, give the rows that a run from the start gives."""
    steps = range(35)
    sequential = BatchOrder(random_lengths(43), 4, seed=9, bucket=bucket)
    expected = [sequential.rows(step).tolist() for step in steps]
    jumping = BatchOrder(random_lengths(43), 4, seed=9, bucket=bucket)
    for step in np.random.default_rng(1).permutation(len(steps)).tolist():
        assert jumping.rows(step).tolist() == expected[step]
    other = BatchOrder(random_lengths(43), 4, seed=10, bucket=bucket)
    assert [other.rows(step).tolist() for step in steps] != expected


def test_a_bucket_sorts_its_window_by_length() -> None:
    """The batches of a bucket hold the rows that unsorted ones would, cut by length; the last bucket may be short."""
    lengths, bucket = random_lengths(43), 4
    plain, sorted_order = (BatchOrder(lengths, 4, seed=2, bucket=size) for size in (1, bucket))
    for first in range(0, sorted_order.batches_per_epoch, bucket):
        steps = range(first, min(first + bucket, sorted_order.batches_per_epoch))
        batches = [sorted_order.rows(step) for step in steps]
        assert set(np.concatenate(batches)) == set(np.concatenate([plain.rows(step) for step in steps]))
        batches.sort(key=lambda rows: tuple(sorted(lengths[rows])))
        for shorter, longer in pairwise(batches):
            assert lengths[shorter].max() <= lengths[longer].min()


def test_batches_of_a_bucket_come_in_random_order() -> None:
    """Short sentences are not always first: the order of lengths differs from bucket to bucket."""
    lengths = random_lengths(200)
    order = BatchOrder(lengths, 4, seed=0, bucket=5)
    ranks = {
        tuple(np.argsort([lengths[order.rows(step)].mean() for step in range(first, first + 5)]).tolist())
        for first in range(0, 50, 5)
    }
    assert len(ranks) > 3


def test_sorting_lowers_padding() -> None:
    """A wider bucket pads less."""
    lengths = random_lengths(400)

    def padding(bucket: int) -> int:
        order = BatchOrder(lengths, 8, seed=3, bucket=bucket)
        batches = [lengths[order.rows(step)] for step in range(order.batches_per_epoch)]
        return sum(int((batch.max() - batch).sum()) for batch in batches)

    assert padding(50) < padding(10) < padding(2) < padding(1)
    assert padding(50) < 0.1 * padding(1)


def test_a_bucket_of_one_keeps_batches_random() -> None:
    """Rows of a batch are in the order of the shuffle, as `unsorted` gives them, whatever their lengths."""
    order, unsorted = BatchOrder(random_lengths(40), 4, seed=1, bucket=1), BatchOrder.unsorted(40, 4, seed=1)
    assert epoch_rows(order, 0) == epoch_rows(unsorted, 0)
    lengths = [random_lengths(40)[order.rows(step)].tolist() for step in range(10)]
    assert any(batch != sorted(batch) for batch in lengths)


def test_fewer_rows_than_a_batch_are_refused() -> None:
    """The message names both numbers; one full batch is enough."""
    with pytest.raises(DataError, match=r"^3 training rows; expected at least one batch of 4$"):
        BatchOrder.unsorted(3, 4, seed=0)
    assert sorted(BatchOrder.unsorted(4, 4, seed=0).rows(7).tolist()) == [0, 1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 40), world=st.integers(1, 5), micro_batches=st.integers(1, 5))
def test_shares_joined_by_rank_restore_the_batch(count: int, world: int, micro_batches: int) -> None:
    """Ranks and micro-batches cut a batch into contiguous parts: nothing is lost, doubled or moved."""
    rows = np.random.default_rng(count).permutation(count)
    parts = [ShardSpec(rank, world, micro_batches).split(rows) for rank in range(world)]
    assert [len(part) for part in parts] == [micro_batches] * world
    assert np.concatenate([piece for part in parts for piece in part]).tolist() == rows.tolist()
    shares = [sum(map(len, part)) for part in parts]
    assert max(shares) - min(shares) <= 1


def test_pairs_are_ordered_by_the_bytes_of_both_sides() -> None:
    """The length of a pair is what UTF-8 makes of it."""
    order = order_pairs(Pairs.from_texts(PAIRS), 4, seed=0, bucket=2)
    assert order.orders[0].lengths.tolist() == [len((src + tgt).encode()) for src, tgt in PAIRS]


def test_pair_loader_gives_matching_texts_ids_and_tokens() -> None:
    """Every piece holds translations side by side, with their ids, in the order of the step's rows."""
    pairs = Pairs.from_texts(PAIRS)
    order = order_pairs(pairs, 6, seed=4, bucket=2)
    loaders = [PairLoader(pairs, order, tokenize, tokenize, ShardSpec(rank, 2, 2)) for rank in range(2)]
    for step in range(4):
        batches = [batch for loader in loaders for batch in loader.step(step)]
        assert [len(batch.src_ids) for batch in batches] == [2, 1, 2, 1]
        found = [pair for batch in batches for pair in zip(untokenize(batch.src), untokenize(batch.tgt), strict=True)]
        assert found == [PAIRS[row] for row in order.rows(step)]
        for batch in batches:
            assert batch.src_texts == untokenize(batch.src)
            assert batch.src_ids.tolist() == sentence_ids(batch.src_texts).tolist()
            assert batch.tgt_ids.tolist() == sentence_ids(untokenize(batch.tgt)).tolist()


def test_pair_loader_can_leave_repeats_unknown() -> None:
    """A sentence that stands in two pairs has one id, or with `mask_repeats` off one in each pair."""
    pairs = Pairs.from_texts([("Yes.", "是。"), ("Yes.", "对。"), ("No.", "不。"), ("Thanks.", "是。")])
    order = order_pairs(pairs, 4, seed=0, bucket=1)

    def tokenize(texts: list[str]) -> dict[str, torch.Tensor]:
        return {"lengths": torch.tensor([len(text) for text in texts])}

    known, unknown = (
        PairLoader(pairs, order, tokenize, tokenize, ShardSpec(), mask_repeats=mask).step(0)[0]
        for mask in (True, False)
    )
    assert len({*known.src_ids.tolist()}) == len({*known.tgt_ids.tolist()}) == 3
    assert len({*unknown.src_ids.tolist(), *unknown.tgt_ids.tolist()}) == 8 and unknown.src_ids.dtype == torch.long
    again = PairLoader(pairs, order, tokenize, tokenize, ShardSpec(), mask_repeats=False).step(1)[0]
    by_text = dict(zip(zip(unknown.src_texts, unknown.src_ids.tolist(), strict=True), range(4), strict=True))
    assert all(pair in by_text for pair in zip(again.src_texts, again.src_ids.tolist(), strict=True))


def test_nli_loader_gives_matching_labels() -> None:
    """Every piece holds premises, hypotheses and labels of the same examples."""
    examples = [NliExample(f"premise {i}", f"hypothesis {i}", i % 3) for i in range(17)]
    order = BatchOrder.unsorted(17, 5, seed=1)
    loader = NliLoader(examples, 5, tokenize, ShardSpec(micro_batches=2), seed=1)
    for step in range(5):
        batches = loader.step(step)
        assert [len(batch.labels) for batch in batches] == [3, 2]
        found = [
            NliExample(*example)
            for batch in batches
            for example in zip(
                untokenize(batch.premise), untokenize(batch.hypothesis), batch.labels.tolist(), strict=True
            )
        ]
        assert found == [examples[row] for row in order.rows(step)]


def test_prefetch_yields_in_order() -> None:
    """Steps come one after the other from the first asked for."""
    batches = prefetch(lambda step: step * step, 3)
    assert [next(batches) for _ in range(6)] == [9, 16, 25, 36, 49, 64]
    batches.close()


def test_prefetch_works_ahead_in_a_thread() -> None:
    """The next step is made while the first is still in use."""
    made = [threading.Event() for _ in range(50)]
    makers: list[threading.Thread] = []

    def make(step: int) -> int:
        makers.append(threading.current_thread())
        made[step].set()
        return step

    batches = prefetch(make, 0)
    assert next(batches) == 0
    assert made[1].wait(timeout=10)
    assert makers[0] is not threading.current_thread()
    batches.close()


def test_prefetch_hands_on_an_error() -> None:
    """What the maker raises comes out at its step, not before; the thread ends."""
    makers: set[threading.Thread] = set()

    def make(step: int) -> int:
        makers.add(threading.current_thread())
        if step == 2:
            raise DataError("row 2 is broken")
        return step

    def consume(batches: Iterator[int]) -> list[int]:
        return [next(batches), next(batches)]

    batches = prefetch(make, 0)
    assert consume(batches) == [0, 1]
    with pytest.raises(DataError, match="row 2 is broken"):
        next(batches)
    assert not any(thread.is_alive() for thread in makers)


def test_closing_prefetch_stops_its_thread() -> None:
    """After `close` nothing more is made and the thread is gone."""
    makers: list[threading.Thread] = []

    def make(step: int) -> int:
        makers.append(threading.current_thread())
        return step

    batches = prefetch(make, 0)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    assert makers[0].is_alive()
    batches.close()
    made = len(makers)
    assert not any(thread.is_alive() for thread in makers)
    assert next(batches, None) is None
    assert len(makers) == made <= 6
