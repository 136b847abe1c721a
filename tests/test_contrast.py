"""Dual momentum contrast: its loss against closed forms, loops and cross-entropy, its queues against a deque."""

from __future__ import annotations

import ast
import math
import sys
from collections import deque
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import normalize

from dualmoco.training import contrast
from dualmoco.training.contrast import DualMomentumContrast, KeyBatch, Queue, info_nce, update_momentum
from dualmoco.training.infonce import BLOCK_ROWS, blockwise_info_nce, is_false_negative

DIMENSION = 6
KERNEL = "dualmoco.training.infonce"
TEXTS = 12


class Lookup(nn.Module):
    """An encoder of one trained vector for each text."""

    def __init__(self, seed: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(TEXTS, DIMENSION)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.table.weight.copy_(torch.randn(TEXTS, DIMENSION, generator=torch.Generator().manual_seed(seed)))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        """Unit vectors (N, D) of the texts."""
        return normalize(self.dropout(self.table(features["input_ids"])), dim=1)


def unit(count: int, *, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random unit vectors (count, DIMENSION)."""
    return normalize(torch.randn(count, DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=1)


def distinct_ids(count: int, first: int = 0) -> Tensor:
    """Ids (count, 2) of which no two are equal."""
    return torch.arange(first, first + 2 * count).reshape(count, 2)


def few_ids(count: int, *, seed: int) -> Tensor:
    """Ids (count, 2) from so small a range that many collide."""
    return torch.randint(0, 9, (count, 2), generator=torch.Generator().manual_seed(seed))


def tokens(*texts: int) -> dict[str, Tensor]:
    """Features that `Lookup` reads."""
    return {"input_ids": torch.tensor(texts)}


def make_contrast(
    *, queue_size: int = 8, dropout: float = 0.0, learn_temperature: bool = False, key_dropout: bool = False
) -> DualMomentumContrast:
    """Two lookup encoders in contrast, in training mode."""
    return DualMomentumContrast(
        Lookup(0, dropout),
        Lookup(1, dropout),
        dimension=DIMENSION,
        queue_size=queue_size,
        temperature=0.1,
        learn_temperature=learn_temperature,
        key_dropout=key_dropout,
    ).train()


def encode_keys(model: DualMomentumContrast, src: list[int], tgt: list[int]) -> KeyBatch:
    """Keys of pairs whose target ids are 100 above their target texts."""
    return model.encode_keys(tokens(*src), tokens(*tgt), torch.tensor(src), torch.tensor(tgt) + 100)


def loop_oracle(
    query: Tensor, key: Tensor, queue: Tensor, temperature: float, query_ids: Tensor, queue_ids: Tensor
) -> tuple[list[float], list[bool], int]:
    """Equation 2 in Python numbers, one query and one row at a time."""
    losses, correct, masked = [], [], 0
    for vector, translation, (text, translation_text) in zip(
        query.tolist(), key.tolist(), query_ids.tolist(), strict=True
    ):
        positive = math.fsum(a * b for a, b in zip(vector, translation, strict=True)) / temperature
        negatives = []
        for row, (row_text, row_translation) in zip(queue.tolist(), queue_ids.tolist(), strict=True):
            if row_text in (translation_text, text) or row_translation == text:
                masked += 1
            else:
                negatives.append(math.fsum(a * b for a, b in zip(vector, row, strict=True)) / temperature)
        losses.append(math.log(math.fsum(math.exp(logit - positive) for logit in [positive, *negatives])))
        correct.append(all(positive > logit for logit in negatives))
    return losses, correct, masked


def relative_error(found: Tensor | None, expected: Tensor | None) -> float:
    """Norm of the difference by norm of what was expected."""
    assert found is not None and expected is not None
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("rows", [0, 1, 5, BLOCK_ROWS, BLOCK_ROWS + 3])
def test_equal_vectors_cost_log_of_one_plus_rows(rows: int) -> None:
    """All vectors equal: log(1 + K) for every query."""
    one = unit(1, seed=0)
    losses, _, masked = blockwise_info_nce(
        one.expand(3, -1),
        one.expand(3, -1),
        one.expand(rows, -1),
        torch.tensor(0.04),
        distinct_ids(3),
        distinct_ids(rows, first=100),
    )
    assert losses.tolist() == pytest.approx([math.log(1 + rows)] * 3, rel=1e-5, abs=1e-7)
    assert int(masked) == 0


def test_a_tie_with_a_negative_is_not_correct() -> None:
    """The key must beat all negatives; along an axis scores are exact, so equal rows tie."""
    axes = torch.eye(DIMENSION)
    for rows, expected in ((axes[:0], True), (axes[1:], True), (axes[:1], False), (axes, False)):
        ids = distinct_ids(len(rows), first=100)
        correct = blockwise_info_nce(axes[:1], axes[:1], rows, torch.tensor(0.25), distinct_ids(1), ids)[1]
        assert correct.tolist() == [expected]


@pytest.mark.parametrize(("rows", "seed"), [(3, 0), (7, 1), (25, 2), (40, 3)])
def test_losses_equal_a_loop(rows: int, seed: int) -> None:
    """Losses, hits and the count of masked scores are those of a loop, over one to several blocks."""
    query, queue = unit(9, seed=seed), unit(rows, seed=seed + 20)
    key = normalize(query + 0.8 * unit(9, seed=seed + 10), dim=1)
    query_ids, queue_ids = few_ids(9, seed=seed), few_ids(rows, seed=seed + 10)
    expected, expected_correct, expected_masked = loop_oracle(query, key, queue, 0.07, query_ids, queue_ids)
    losses, correct, masked = blockwise_info_nce(
        query, key, queue, torch.tensor(0.07), query_ids, queue_ids, block_rows=7
    )
    assert losses.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert correct.tolist() == expected_correct
    assert int(masked) == expected_masked
    assert 0 < expected_masked < 9 * rows
    assert {True, False} == set(expected_correct)


def test_queue_of_false_negatives_only_costs_nothing() -> None:
    """Blocks with no row left to score leave a loss of 0 and a finite gradient."""
    query = unit(1, seed=0).requires_grad_()
    queue_ids = torch.tensor([[0, 50], [1, 51], [60, 0], [0, 52], [1, 0]])
    losses, correct, masked = blockwise_info_nce(
        query,
        unit(1, seed=1),
        unit(5, seed=2),
        torch.tensor(0.1),
        torch.tensor([[0, 1]]),
        queue_ids,
        block_rows=2,
    )
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([0.0], abs=1e-6)
    assert correct.tolist() == [True]
    assert int(masked) == 5
    assert query.grad is not None
    assert torch.allclose(query.grad, torch.zeros(1, DIMENSION), atol=1e-5)


@pytest.mark.parametrize("collide", [False, True])
def test_gradients_equal_those_of_cross_entropy(collide: bool) -> None:
    """Loss and gradients of query and temperature are those of cross-entropy over all logits, in any weighting."""
    weights = torch.linspace(0.5, 2.0, 5)
    key, queue = unit(5, seed=1), unit(30, seed=2)
    ids = (few_ids(5, seed=4), few_ids(30, seed=5)) if collide else (distinct_ids(5), distinct_ids(30, first=100))
    results = []
    for dtype in (torch.float32, torch.float64):
        query = unit(5, seed=0).to(dtype).requires_grad_()
        temperature = torch.tensor(0.05, dtype=torch.float32).to(dtype).requires_grad_()
        if dtype is torch.float32:
            losses = blockwise_info_nce(query, key, queue, temperature, *ids, block_rows=7)[0]
        else:
            losses = info_nce(query, key.double(), queue.double(), temperature, *ids)
        (losses * weights).sum().backward()
        results.append((losses.detach(), query.grad, temperature.grad))
    for found, expected in zip(*results, strict=True):
        assert relative_error(found, expected) < 1e-5


def test_gradcheck() -> None:
    """Gradients in double precision are those of finite differences, masked rows included."""
    query = unit(4, seed=0, dtype=torch.float64).requires_grad_()
    key, queue = unit(4, seed=1, dtype=torch.float64), unit(8, seed=2, dtype=torch.float64)
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    query_ids, queue_ids = few_ids(4, seed=3), few_ids(8, seed=4)

    def losses(query: Tensor, temperature: Tensor) -> Tensor:
        return blockwise_info_nce(query, key, queue, temperature, query_ids, queue_ids, block_rows=3)[0]

    assert is_false_negative(query_ids, queue_ids).any()
    assert torch.autograd.gradcheck(losses, (query, temperature))


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 0.0), (-1.0, 200 + math.log(10))])
def test_extreme_logits_stay_finite(sign: float, expected: float) -> None:
    """Logits of 100 against -100 give the exact loss and gradient, neither infinite nor undefined."""
    query = unit(2, seed=0)[:1].requires_grad_()
    key, queue = sign * query.detach(), -sign * query.detach().expand(10, -1)
    temperature = torch.tensor(0.01, requires_grad=True)
    losses, correct, _ = blockwise_info_nce(
        query, key, queue, temperature, distinct_ids(1), distinct_ids(10, first=100)
    )
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([expected], rel=1e-5, abs=1e-6)
    assert correct.tolist() == [sign > 0]
    pulled = torch.zeros(1, DIMENSION) if sign > 0 else 200 * query.detach()
    assert query.grad is not None and temperature.grad is not None
    assert torch.allclose(query.grad, pulled, rtol=1e-4, atol=1e-4)
    assert float(temperature.grad) == pytest.approx(0.0 if sign > 0 else -20_000, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("block_rows", [1, 7, 32, 33, 1000])
def test_result_does_not_depend_on_the_block(block_rows: int) -> None:
    """Any number of rows in a block gives the same losses, hits, masked scores and gradients."""
    results = []
    for rows in (BLOCK_ROWS, block_rows):
        query, temperature = unit(5, seed=0).requires_grad_(), torch.tensor(0.05, requires_grad=True)
        losses, correct, masked = blockwise_info_nce(
            query,
            unit(5, seed=1),
            unit(33, seed=2),
            temperature,
            few_ids(5, seed=3),
            few_ids(33, seed=4),
            block_rows=rows,
        )
        losses.sum().backward()
        assert query.grad is not None and temperature.grad is not None
        results.append((losses, correct, masked, query.grad, temperature.grad))
    for found, expected in zip(*results, strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


WAITS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::_unique2"}


@pytest.mark.parametrize("collide", [False, True])
def test_the_host_waits_before_the_blocks_only(collide: bool) -> None:
    """However many blocks there are, the host asks the device for numbers as often as for one."""
    ids = (few_ids(5, seed=3), few_ids(100, seed=4)) if collide else (distinct_ids(5), distinct_ids(100, first=100))
    waits = []
    for rows in (100, 7):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            blockwise_info_nce(
                unit(5, seed=0), unit(5, seed=1), unit(100, seed=2), torch.tensor(0.05), *ids, block_rows=rows
            )
        counts = {event.key: event.count for event in profile.key_averages()}
        assert counts["aten::mm"] == 2 * math.ceil(100 / rows)
        waits.append({name: counts[name] for name in WAITS & counts.keys()})
    assert waits[0] == waits[1]
    assert waits[0]["aten::nonzero"] == 1


def rounded_inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries with keys near them and a queue, rounded to a precision."""
    query, queue = unit(9, seed=0), unit(50, seed=2)
    return query.to(dtype), normalize(query + unit(9, seed=1), dim=1).to(dtype), queue.to(dtype)


@pytest.mark.parametrize("temperature", [0.04, 0.01])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_loses_nothing_but_the_rounding_of_the_inputs(dtype: torch.dtype, temperature: float) -> None:
    """Loss and gradients under autocast are those of double precision from the same inputs, logits of 100 included."""
    ids, queue_ids = few_ids(9, seed=3), few_ids(50, seed=4)
    query, key, queue = rounded_inputs(dtype)
    query.requires_grad_()
    slow = torch.tensor(temperature, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        losses = blockwise_info_nce(query, key, queue, slow, ids, queue_ids, block_rows=20)[0]
        losses.sum().backward()
    exact_query = query.detach().double().requires_grad_()
    exact_slow = slow.detach().double().requires_grad_()
    exact = info_nce(exact_query, key.double(), queue.double(), exact_slow, ids, queue_ids)
    exact.sum().backward()
    assert losses.dtype == torch.float32 and relative_error(losses.detach(), exact.detach()) < 1e-5
    assert query.grad is not None and query.grad.dtype == dtype
    assert relative_error(query.grad, exact_query.grad) < 2 * torch.finfo(dtype).eps
    assert relative_error(slow.grad, exact_slow.grad) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_does_not_overflow(dtype: torch.dtype) -> None:
    """A collapsed queue of 70,000 equal rows, more than fp16 can count, costs log(1 + K) with a finite gradient."""
    one = torch.ones(1, 1, dtype=dtype)
    query = one.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        losses = blockwise_info_nce(
            query,
            one,
            one.expand(70_000, 1),
            torch.tensor(0.01),
            distinct_ids(1),
            distinct_ids(70_000, first=10),
            block_rows=70_000,
        )[0]
        losses.sum().backward()
    assert losses.tolist() == pytest.approx([math.log(70_001)], rel=1e-5)
    assert query.grad is not None and query.grad.tolist() == [[pytest.approx(0.0, abs=1e-3)]]


def test_contrast_trains_under_autocast() -> None:
    """With momentum encoders, queues and bf16 matrices the loss stays near that of fp32 and gradients are finite."""
    losses = []
    for enabled in (False, True):
        model = make_contrast()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            model.enqueue(encode_keys(model, [2, 3, 4], [2, 3, 4]))
            result = model(tokens(0, 1), tokens(0, 1), encode_keys(model, [0, 1], [0, 1]))
        result["loss"].backward()
        gradient = next(model.src_encoder.parameters()).grad
        assert gradient is not None and bool(gradient.isfinite().all()) and bool(gradient.any())
        losses.append(result["loss"].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_keys_and_queue_receive_no_gradient() -> None:
    """Only the query and the temperature learn."""
    query, key, queue = (unit(rows, seed=rows).requires_grad_() for rows in (2, 2, 9))
    temperature = torch.tensor(0.1, requires_grad=True)
    blockwise_info_nce(query, key[:2], queue, temperature, distinct_ids(2), distinct_ids(9, first=100))[
        0
    ].sum().backward()
    assert key.grad is None and queue.grad is None
    assert query.grad is not None and bool(query.grad.any())
    assert temperature.grad is not None and bool(temperature.grad)


def test_false_negatives_by_hand() -> None:
    """A row is false if it is the query's translation, its text, or another translation of its text."""
    queries = torch.tensor([[10, 20], [11, 21]])
    table = {
        (20, 12): [True, False],  # the first query's translation, met with another source
        (10, 99): [True, False],  # the first query's own text, left untranslated in the corpus
        (30, 10): [True, False],  # another translation of the first query's text
        (30, 11): [False, True],  # another translation of the second query's text
        (21, 10): [True, True],  # the second's translation, which translates the first too
        (31, 20): [False, False],  # a row whose translation happens to equal the first's: nothing known
        (40, 50): [False, False],  # unrelated
    }
    found = is_false_negative(queries, torch.tensor(list(table)))
    assert found.T.tolist() == list(table.values())


def test_queue_fills_then_wraps_around() -> None:
    """Three batches of 3 in a queue of 5, each row where the count of pushed rows says."""
    queue = Queue(5, 1)
    assert len(queue) == 0
    filled = []
    for first in (0, 3, 6):
        rows = torch.arange(first, first + 3)
        queue.enqueue(rows[:, None].float(), torch.stack([rows, rows + 100], dim=1))
        filled.append(len(queue))
    assert filled == [3, 5, 5]
    assert queue.vectors[:, 0].tolist() == [5, 6, 7, 8, 4]
    assert queue.ids.tolist() == [[5, 105], [6, 106], [7, 107], [8, 108], [4, 104]]
    assert int(queue.pushed) == 9


def test_length_of_a_full_queue_is_not_read_from_the_device() -> None:
    """While it fills, the count on the device is asked; a full queue stays full."""
    queue = Queue(4, DIMENSION)
    for rows, waits in ((3, True), (3, True), (3, False)):
        queue.enqueue(unit(rows, seed=0), distinct_ids(rows))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            filled = len(queue)
        assert filled == min(4, int(queue.pushed))
        assert ("aten::item" in {event.key for event in profile.key_averages()}) is waits


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 9), batches=st.lists(st.integers(0, 20), max_size=8))
def test_queue_keeps_what_a_deque_keeps(size: int, batches: list[int]) -> None:
    """Whatever the sizes of the batches, the last K rows are there, row i at place i modulo K, with their ids."""
    queue, oracle, pushed = Queue(size, 2), deque[int](maxlen=size), 0
    for count in batches:
        rows = torch.arange(pushed, pushed + count)
        queue.enqueue(torch.stack([rows, -rows], dim=1).float(), torch.stack([rows, rows + 1000], dim=1))
        oracle.extend(rows.tolist())
        pushed += count
    assert len(queue) == len(oracle)
    assert int(queue.pushed) == pushed
    for row in oracle:
        assert queue.vectors[row % size].tolist() == [row, -row]
        assert queue.ids[row % size].tolist() == [row, row + 1000]


def test_queue_survives_its_state_dict() -> None:
    """A queue loaded from a state goes on where the saved one was."""
    saved, loaded = Queue(4, DIMENSION), Queue(4, DIMENSION)
    saved.enqueue(unit(6, seed=0), distinct_ids(6))
    loaded.load_state_dict(saved.state_dict())
    assert int(loaded.pushed) == 6
    for queue in (saved, loaded):
        queue.enqueue(unit(1, seed=1), torch.tensor([[77, 78]]))
    assert loaded.ids[6 % 4].tolist() == [77, 78]
    assert torch.equal(loaded.vectors, saved.vectors) and torch.equal(loaded.ids, saved.ids)


def test_momentum_update_is_equation_1() -> None:
    """Slow weights become m * slow + (1 - m) * base; the base stays."""
    base, slow = nn.Linear(3, 2), nn.Linear(3, 2)
    before = [(a.clone(), b.clone()) for a, b in zip(base.parameters(), slow.parameters(), strict=True)]
    update_momentum(base, slow, 0.9)
    for (old_base, old_slow), a, b in zip(before, base.parameters(), slow.parameters(), strict=True):
        assert torch.equal(a, old_base)
        assert torch.allclose(b, 0.9 * old_slow + 0.1 * old_base, atol=1e-7)


def test_momentum_of_zero_copies() -> None:
    """Without momentum the slow weights are exactly the base's."""
    base, slow = nn.Linear(3, 2), nn.Linear(3, 2)
    update_momentum(base, slow, 0.0)
    assert torch.equal(base.weight, slow.weight) and torch.equal(base.bias, slow.bias)


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_repeated_momentum_updates_have_a_closed_form(steps: int) -> None:
    """From 0 towards 1, t updates arrive at 1 - m^t."""
    base, slow = nn.Linear(1, 1), nn.Linear(1, 1)
    nn.init.ones_(base.weight)
    nn.init.zeros_(slow.weight)
    for _ in range(steps):
        update_momentum(base, slow, 0.95)
    assert slow.weight.item() == pytest.approx(1 - 0.95**steps, rel=1e-5)


def test_loss_is_the_sum_of_both_directions() -> None:
    """Equation 3: source against target queue plus target against source queue, ids swapped."""
    model = make_contrast(queue_size=6)
    model.enqueue(encode_keys(model, [2, 3, 4, 0, 8], [2, 3, 4, 9, 1]))  # 0 has another target, 1 another source
    update_momentum(Lookup(50), model.src_momentum_encoder, 0.5)  # keys then differ from queries
    update_momentum(Lookup(51), model.tgt_momentum_encoder, 0.5)
    keys = encode_keys(model, [0, 1], [0, 1])
    result = model(tokens(0, 1), tokens(0, 1), keys)

    src, tgt = model.src_encoder(tokens(0, 1)), model.tgt_encoder(tokens(0, 1))
    temperature, ids = torch.tensor(0.1), torch.tensor([[0, 100], [1, 101]])
    tgt_ids = torch.tensor([[102, 2], [103, 3], [104, 4], [109, 0], [101, 8]])
    src_to_tgt = blockwise_info_nce(src, keys.tgt, model.tgt_queue.vectors[:5], temperature, ids, tgt_ids)
    tgt_to_src = blockwise_info_nce(
        tgt, keys.src, model.src_queue.vectors[:5], temperature, ids.flip(1), tgt_ids.flip(1)
    )
    assert result["loss"].item() == pytest.approx((src_to_tgt[0].mean() + tgt_to_src[0].mean()).item(), rel=1e-6)
    assert float(result["accuracy"]) == pytest.approx(float(torch.cat([src_to_tgt[1], tgt_to_src[1]]).float().mean()))
    assert int(src_to_tgt[2]) == int(tgt_to_src[2]) == 2
    assert float(result["masked"]) == pytest.approx(2 / 10)


def test_queues_hold_the_momentum_encoders_vectors() -> None:
    """Each language's queue gets its own keys, with the ids of text and translation in this order."""
    model = make_contrast()
    model.enqueue(encode_keys(model, [2, 3], [5, 6]))
    assert torch.equal(model.src_queue.vectors[:2], model.src_momentum_encoder(tokens(2, 3)))
    assert torch.equal(model.tgt_queue.vectors[:2], model.tgt_momentum_encoder(tokens(5, 6)))
    assert model.src_queue.ids[:2].tolist() == [[2, 105], [3, 106]]
    assert model.tgt_queue.ids[:2].tolist() == [[105, 2], [106, 3]]


def test_empty_queues_cost_nothing() -> None:
    """Before the first key is enqueued there is no negative: unwritten rows are not scored."""
    model = make_contrast()
    result = model(tokens(0, 1), tokens(0, 1), encode_keys(model, [0, 1], [0, 1]))
    assert result["loss"].item() == 0.0
    assert float(result["masked"]) == 0.0


def test_momentum_encoders_receive_no_gradient() -> None:
    """The base encoders learn from the loss, their copies do not."""
    model = make_contrast()
    model.enqueue(encode_keys(model, [2, 3, 4], [2, 3, 4]))
    keys = encode_keys(model, [0, 1], [0, 1])
    assert not keys.src.requires_grad and not keys.tgt.requires_grad
    model(tokens(0, 1), tokens(0, 1), keys)["loss"].backward()
    for encoder in (model.src_encoder, model.tgt_encoder):
        assert all(weight.grad is not None and bool(weight.grad.any()) for weight in encoder.parameters())
    for encoder in (model.src_momentum_encoder, model.tgt_momentum_encoder):
        assert all(not weight.requires_grad and weight.grad is None for weight in encoder.parameters())


@pytest.mark.parametrize("key_dropout", [False, True])
def test_dropout_of_keys_is_a_choice(key_dropout: bool) -> None:
    """Keys of a sentence vary in training only if asked for; evaluation switches dropout off everywhere."""
    model = make_contrast(dropout=0.5, key_dropout=key_dropout)
    assert model.src_encoder.training and model.tgt_encoder.training
    assert model.src_momentum_encoder.training is key_dropout
    assert model.tgt_momentum_encoder.training is key_dropout
    torch.manual_seed(0)
    first, second = (encode_keys(model, list(range(8)), list(range(8))) for _ in range(2))
    assert torch.equal(first.src, second.src) is not key_dropout
    assert torch.equal(first.tgt, second.tgt) is not key_dropout
    model.eval()
    assert not any(module.training for module in model.modules())


def test_one_encoder_for_both_languages_has_one_momentum_encoder() -> None:
    """A shared encoder is copied once and moved once a step."""
    encoder = Lookup(0)
    model = DualMomentumContrast(encoder, encoder, dimension=DIMENSION, queue_size=4, temperature=0.1)
    assert model.src_momentum_encoder is model.tgt_momentum_encoder
    assert model.src_momentum_encoder is not encoder
    before = encoder.table.weight.detach().clone()
    with torch.no_grad():
        encoder.table.weight.add_(1.0)
    model.update_momentum(0.9)
    moved = next(model.src_momentum_encoder.parameters()) - before
    assert torch.allclose(moved, torch.full_like(moved, 0.1), atol=1e-5)


def test_both_momentum_encoders_move() -> None:
    """Two encoders have two copies, each moved towards its own base."""
    model = make_contrast()
    assert model.src_momentum_encoder is not model.tgt_momentum_encoder
    with torch.no_grad():
        next(model.src_encoder.parameters()).add_(1.0)
        next(model.tgt_encoder.parameters()).add_(-2.0)
    model.update_momentum(0.75)
    for base, slow, gap in (
        (model.src_encoder, model.src_momentum_encoder, 0.75),
        (model.tgt_encoder, model.tgt_momentum_encoder, -1.5),
    ):
        left = next(base.parameters()) - next(slow.parameters())
        assert torch.allclose(left, torch.full_like(left, gap), atol=1e-5)


def test_masking_duplicates_changes_the_loss() -> None:
    """A batch met again in the queue costs nothing when known by its ids, and much when not."""
    losses, masked = [], []
    for shift in (0, 500):
        model = make_contrast(queue_size=2)
        keys = encode_keys(model, [0, 1], [0, 1])
        model.enqueue(KeyBatch(keys.src[:1], keys.tgt[:1], keys.ids[:1] + shift))
        result = model(tokens(0), tokens(0), KeyBatch(keys.src[:1], keys.tgt[:1], keys.ids[:1]))
        losses.append(result["loss"].item())
        masked.append(float(result["masked"]))
    assert losses == pytest.approx([0.0, 2 * math.log(2)], abs=1e-6)
    assert masked == [1.0, 0.0]


@pytest.mark.parametrize("learn", [False, True])
def test_temperature_learns_only_if_asked(learn: bool) -> None:
    """A learned temperature gets the gradient of the loss by its logarithm, a fixed one none."""
    model = make_contrast(learn_temperature=learn)
    model.enqueue(encode_keys(model, [2, 3, 4], [2, 3, 4]))
    keys = encode_keys(model, [0, 1], [0, 1])
    model(tokens(0, 1), tokens(0, 1), keys)["loss"].backward()
    assert model.log_temperature.exp().item() == pytest.approx(0.1)
    if not learn:
        assert model.log_temperature.grad is None
        return
    losses = []
    for shift in (-0.01, 0.02):
        with torch.no_grad():
            model.log_temperature.add_(shift)
        losses.append(model(tokens(0, 1), tokens(0, 1), keys)["loss"].item())
    assert model.log_temperature.grad is not None
    assert float(model.log_temperature.grad) == pytest.approx((losses[1] - losses[0]) / 0.02, rel=1e-2)


def test_spread_tells_a_collapse() -> None:
    """0 when all queries are one vector, 1 when they come in opposite pairs."""
    model = make_contrast()
    spreads = []
    for texts in ((3, 3, 3, 3), (0, 1, 2, 3)):
        with torch.no_grad():
            for encoder in (model.src_encoder, model.tgt_encoder):
                table = next(encoder.parameters())
                table[1], table[3] = -table[0], -table[2]
        spreads.append(float(model(tokens(*texts), tokens(*texts), encode_keys(model, [*texts], [*texts]))["spread"]))
    assert spreads == pytest.approx([0.0, 1.0], abs=1e-5)


def test_drift_is_the_distance_of_the_momentum_encoders() -> None:
    """0 while they equal their bases, 2 when one has turned around in both languages, 1 in one of them."""
    model = make_contrast()
    drifts = []
    for turned in (None, model.src_encoder, model.tgt_encoder):
        if turned is not None:
            with torch.no_grad():
                next(turned.parameters()).neg_()
        drifts.append(float(model(tokens(0, 1), tokens(0, 1), encode_keys(model, [0, 1], [0, 1]))["drift"]))
    assert drifts == pytest.approx([0.0, 1.0, 2.0], abs=1e-6)


def test_the_algorithm_is_one_short_file() -> None:
    """At most 200 lines, importing torch, the standard library and the blockwise loss."""
    source = Path(contrast.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 200
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            roots.add(str(node.module) if node.module == KERNEL else str(node.module).partition(".")[0])
    assert {"torch", KERNEL} <= roots
    assert roots - {"torch", KERNEL} <= sys.stdlib_module_names
