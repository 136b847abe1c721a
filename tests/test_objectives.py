"""What a step minimises: each objective against its formula, on small real encoders."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualmoco.core.errors import ConfigError
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.nli_examples import NliExample
from dualmoco.data.text_column import sentence_ids
from dualmoco.models.build import build_encoder
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import Encoder, TokenParts
from dualmoco.training import objectives
from dualmoco.training.batches import PairBatch
from dualmoco.training.config import ContrastConfig, NliConfig, NliFeatures, TrainConfig
from dualmoco.training.infonce import BLOCK_ROWS, choose_block_rows
from dualmoco.training.nli import MultiTask, MultiTaskBatch, Nli, NliBatch, NliHead, make_nli_batch, with_nli
from dualmoco.training.objective import Objective
from dualmoco.training.objectives import Distill, DualMoco, InBatch, SimCse, rank_translations

PAIRS = generate_pairs(40, seed=7)
WIDTH = 8


@cache
def trained_encoder(side: int, kind: EncoderKind, width: int, dropout: float) -> Encoder:
    """An encoder of one side of PAIRS, to be copied."""
    torch.manual_seed(side)
    config = EncoderConfig(
        lang=("en", "zh")[side], kind=kind, width=width, layers=1, heads=2, vocab_size=60, dropout=dropout
    )
    encoder = build_encoder(config, [pair[side] for pair in PAIRS])
    encoder.set_dropout(dropout)
    return encoder


def make_encoder(
    side: int = 0, *, kind: EncoderKind = EncoderKind.static, width: int = WIDTH, dropout: float = 0.0
) -> Encoder:
    """A small encoder of English (0) or Chinese (1)."""
    return copy.deepcopy(trained_encoder(side, kind, width, dropout))


def make_batch(src: Encoder, tgt: Encoder, pairs: list[tuple[str, str]]) -> PairBatch:
    """Pairs as a batch."""
    src_texts, tgt_texts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    src_ids, tgt_ids = (torch.from_numpy(sentence_ids(texts)) for texts in (src_texts, tgt_texts))
    src_tokens, tgt_tokens = TokenParts.split(src.tokenize(src_texts)), TokenParts.split(tgt.tokenize(tgt_texts))
    return PairBatch(src_tokens, tgt_tokens, src_ids, tgt_ids, src_texts, tgt_texts)


def settings(**contrast: Any) -> TrainConfig:
    """Settings of a run that differ from the defaults in how pairs are contrasted."""
    return TrainConfig(contrast=ContrastConfig(**contrast))


def make_nli(encoder: Encoder, count: int = 5) -> NliBatch:
    """NLI examples as a batch, of all three labels."""
    return make_nli_batch([NliExample(PAIRS[i][0], PAIRS[i + 9][0], i % 3) for i in range(count)], encoder.tokenize)


def gradients(module: nn.Module) -> list[Tensor]:
    """The gradients of what a module trains."""
    found = [weight.grad for weight in module.parameters() if weight.requires_grad]
    assert found
    return [gradient for gradient in found if gradient is not None]


def learns(module: nn.Module) -> bool:
    """Whether gradients other than 0 arrived."""
    return any(bool(gradient.any()) for gradient in gradients(module))


def loop_ranking(
    query: Tensor, key: Tensor, query_ids: list[int], key_ids: list[int], temperature: float, margin: float
) -> tuple[float, float]:
    """Mean loss and accuracy of in-batch ranking in Python numbers, duplicates left out."""
    losses, hits = [], []
    for i in range(len(query)):
        positive = (math.fsum((query[i].double() * key[i].double()).tolist()) - margin) / temperature
        negatives = [
            math.fsum((query[i].double() * key[j].double()).tolist()) / temperature
            for j in range(len(key))
            if j != i and key_ids[j] not in (key_ids[i], query_ids[i]) and query_ids[j] != query_ids[i]
        ]
        losses.append(math.log(math.fsum(math.exp(logit - positive) for logit in [positive, *negatives])))
        hits.append(all(positive > logit for logit in negatives))
    return math.fsum(losses) / len(losses), sum(hits) / len(hits)


def run_step(objective: Objective, micro_batches: list[PairBatch], momentum: float) -> float:
    """One step without an optimiser: gradients are left on the encoders; gives the mean loss."""
    objective.zero_grad()
    prepared = objective.begin_step(micro_batches)
    losses = [objective(batch, keys)["loss"] for batch, keys in zip(micro_batches, prepared, strict=True)]
    for loss in losses:
        (loss / len(micro_batches)).backward()
    objective.update_momentum(momentum)
    objective.end_step(prepared)
    return math.fsum(loss.item() for loss in losses) / len(losses)


@pytest.mark.parametrize(
    ("chosen", "dropout", "dimensions"),
    [(InBatch, 0.0, []), (InBatch, 0.3, []), (InBatch, 0.3, [4, 2]), (SimCse, 0.3, []), (SimCse, 0.3, [4, 2])],
)
@pytest.mark.parametrize("kind", [EncoderKind.static, EncoderKind.bert])
def test_whole_batch_objectives_in_micro_batches_equal_one_batch(
    kind: EncoderKind, chosen: type[InBatch | SimCse], dropout: float, dimensions: list[int]
) -> None:
    """All pairs of a batch are candidates, with the gradients of the whole, for micro-batches of any size."""
    results = []
    for micro_batched in (False, True):
        src, tgt = make_encoder(0, kind=kind, dropout=dropout), make_encoder(1, kind=kind, dropout=dropout)
        objective = chosen(src, tgt, settings(temperature=0.1, dimensions=dimensions)).train()
        parts = [make_batch(src, tgt, PAIRS[start : start + size]) for start, size in ((0, 2), (2, 7), (9, 3))]
        torch.manual_seed(3)
        if micro_batched:
            loss = run_step(objective, parts, 0.0)
        else:  # the same vectors, dropout included, with one graph for all of them
            vectors = [torch.cat(views) for views in zip(*map(objective.encode_batch, parts), strict=True)]
            src_ids, tgt_ids = (torch.cat([getattr(part, name) for part in parts]) for name in ("src_ids", "tgt_ids"))
            whole = objective.compare(vectors, src_ids, tgt_ids)["loss"]
            whole.backward()
            loss = whole.item()
        results.append((loss, gradients(objective), torch.rand(3)))
    (loss, grads, drawn), (cached_loss, cached_grads, cached_drawn) = results
    assert cached_loss == pytest.approx(loss, rel=1e-6) and loss > 0.1
    assert learns(objective) and torch.equal(drawn, cached_drawn)
    for found, expected in zip(cached_grads, grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("batch_keys", "dimensions"), [(False, []), (True, []), (True, [4, 2])])
@pytest.mark.parametrize("kind", [EncoderKind.static, EncoderKind.bert])
def test_dual_moco_in_micro_batches_equals_one_batch(
    kind: EncoderKind, batch_keys: bool, dimensions: list[int]
) -> None:
    """Two steps computed in four micro-batches give the loss, gradients, queues and copies of undivided ones."""
    config = settings(queue_size=21, temperature=0.1, batch_keys=batch_keys, dimensions=dimensions)
    results = []
    for count in (1, 4):
        src, tgt = make_encoder(0, kind=kind), make_encoder(1, kind=kind)
        objective = DualMoco(src, tgt, config).train()
        losses = []
        for first in (0, 12):
            size = 12 // count
            starts = range(first, first + 12, size)
            losses.append(run_step(objective, [make_batch(src, tgt, PAIRS[i : i + size]) for i in starts], 0.9))
        results.append((losses, gradients(objective), objective.state_dict()))
    (losses, grads, state), (cut_losses, cut_grads, cut_state) = results
    assert (losses[0] > 0) is batch_keys
    assert losses[1] > 0
    assert cut_losses == pytest.approx(losses, rel=1e-5)
    assert any(bool(gradient.any()) for gradient in grads)
    for found, expected in zip(cut_grads, grads, strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    for name, expected in state.items():
        assert torch.allclose(cut_state[name], expected, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("batch_keys", [False, True])
def test_dual_moco_enqueues_before_or_after_the_loss(batch_keys: bool) -> None:
    """Keys enter the queues once a step: before the loss if they shall be negatives, after it if not."""
    src, tgt = make_encoder(0), make_encoder(1)
    objective = DualMoco(src, tgt, settings(queue_size=10, batch_keys=batch_keys)).train()
    micro_batches = [make_batch(src, tgt, PAIRS[:2]), make_batch(src, tgt, PAIRS[2:4])]
    prepared = objective.begin_step(micro_batches)
    assert len(objective.contrast.src_queue) == len(objective.contrast.tgt_queue) == (4 if batch_keys else 0)
    objective.end_step(prepared)
    assert len(objective.contrast.src_queue) == len(objective.contrast.tgt_queue) == 4
    assert torch.equal(objective.contrast.src_queue.vectors[:4], torch.cat([keys.src for keys in prepared]))
    assert torch.equal(objective.contrast.tgt_queue.ids[:4], torch.cat([keys.ids for keys in prepared]).flip(1))


def test_the_block_depends_on_the_device_and_not_on_its_free_memory() -> None:
    """A CPU keeps the scores in its cache; on a GPU they take 64 MiB, and as many rows as on a CPU at least."""
    assert choose_block_rows(1024, torch.device("cpu")) == BLOCK_ROWS == 2048
    assert choose_block_rows(1024, torch.device("cuda")) == 16_384  # rows of 1,024 scores of 4 bytes
    assert choose_block_rows(1 << 20, torch.device("cuda")) == BLOCK_ROWS


def test_dual_moco_with_batch_keys_ranks_the_batch() -> None:
    """Into an empty queue go the batch's own keys: the loss is cross-entropy over them, no key counted twice."""
    src, tgt = make_encoder(0), make_encoder(1)
    objective = DualMoco(src, tgt, settings(queue_size=50, temperature=0.2, batch_keys=True)).train()
    batch = make_batch(src, tgt, PAIRS[:6])
    keys = objective.begin_step([batch])[0]
    metrics = objective(batch, keys)
    x, y, labels = src(batch.src), tgt(batch.tgt), torch.arange(6)
    expected = cross_entropy(x @ keys.tgt.T / 0.2, labels) + cross_entropy(y @ keys.src.T / 0.2, labels)
    assert metrics["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["masked"].item() == pytest.approx(1 / 6)


def test_dual_moco_without_momentum_copies_the_encoders() -> None:
    """A momentum of 0 leaves the momentum encoders equal to their bases, one near 1 leaves them apart."""
    src, tgt = make_encoder(0), make_encoder(1)
    objective = DualMoco(src, tgt, settings(queue_size=10)).train()
    contrast = objective.contrast
    sides = ((src, contrast.src_momentum_encoder), (tgt, contrast.tgt_momentum_encoder))
    with torch.no_grad():
        for encoder, _ in sides:
            next(encoder.parameters()).mul_(1.5)
    for momentum, equal in ((0.999, False), (0.0, True)):
        objective.update_momentum(momentum)
        for encoder, slow in sides:
            assert torch.equal(next(encoder.parameters()), next(slow.parameters())) is equal


def test_dual_moco_health_is_the_state_of_the_queue() -> None:
    """Fill, age in steps and temperature, by hand."""
    src, tgt = make_encoder(0), make_encoder(1)
    objective = DualMoco(src, tgt, settings(queue_size=20, temperature=0.07)).train()
    objective.end_step(objective.begin_step([make_batch(src, tgt, PAIRS[:5])]))
    assert objective.state_metrics(2) == pytest.approx({"queue_fill": 0.25, "queue_age": 2.5, "temperature": 0.07})


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_in_batch_equals_a_loop(margin: float) -> None:
    """Both directions, margin off the positives, and duplicates of either side no negatives."""
    src, tgt = make_encoder(0), make_encoder(1)
    pairs = [*PAIRS[:5], (PAIRS[0][0], PAIRS[5][1]), (PAIRS[6][0], PAIRS[1][1]), PAIRS[2]]
    batch = make_batch(src, tgt, pairs)
    metrics = InBatch(src, tgt, settings(temperature=0.1, margin=margin)).train()(batch, None)
    x, y = src(batch.src).detach(), tgt(batch.tgt).detach()
    src_ids, tgt_ids = batch.src_ids.tolist(), batch.tgt_ids.tolist()
    src_to_tgt = loop_ranking(x, y, src_ids, tgt_ids, 0.1, margin)
    tgt_to_src = loop_ranking(y, x, tgt_ids, src_ids, 0.1, margin)
    assert metrics["loss"].item() == pytest.approx(src_to_tgt[0] + tgt_to_src[0], rel=1e-5)
    assert metrics["accuracy"].item() == pytest.approx((src_to_tgt[1] + tgt_to_src[1]) / 2)
    without_masks = InBatch(src, tgt, settings(temperature=0.1, margin=margin))(
        PairBatch(batch.src, batch.tgt, torch.arange(8), torch.arange(8, 16), batch.src_texts, batch.tgt_texts), None
    )
    assert without_masks["loss"].item() > metrics["loss"].item()


def test_in_batch_masks_pairs_by_hand() -> None:
    """Of equal vectors each candidate counts once: log of how many are left."""
    same = torch.ones(4, 2) / 2**0.5
    query_ids, key_ids = torch.tensor([1, 1, 2, 3]), torch.tensor([11, 12, 13, 11])
    loss, _ = rank_translations(same, same, query_ids, key_ids, temperature=0.1)
    left = [2, 3, 4, 3]  # query 0 loses 1 (same text) and 3 (same key), 1 loses 0, 2 none, 3 loses 0
    assert loss.item() == pytest.approx(sum(math.log(count) for count in left) / 4, rel=1e-5)


def test_in_batch_trains_both_encoders() -> None:
    """Gradients arrive on both sides, from both directions."""
    src, tgt = make_encoder(0), make_encoder(1)
    InBatch(src, tgt, settings(temperature=0.1))(make_batch(src, tgt, PAIRS[:4]), None)["loss"].backward()
    assert learns(src) and learns(tgt)
    query, key = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    rank_translations(query, key, torch.arange(3), torch.arange(3, 6), temperature=0.5)[0].backward()
    assert query.grad is not None and bool(query.grad.any())
    assert key.grad is not None and bool(key.grad.any())


def test_distill_is_the_squared_distance_from_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over pairs of both students' squared distances from the teacher's source vectors."""
    src, tgt, teacher = make_encoder(0), make_encoder(1), make_encoder(0, kind=EncoderKind.bert, dropout=0.5)
    monkeypatch.setattr(objectives, "load_teacher", lambda name, side: teacher)
    objective = Distill(src, tgt, settings()).train()
    batch = make_batch(src, tgt, PAIRS[:5])
    metrics = objective(batch, None)
    teacher.eval()
    goal = teacher(teacher.tokenize(batch.src_texts)).double()
    students = [src(batch.src).double(), tgt(batch.tgt).double()]
    distances = [sum(((student[i] - goal[i]) ** 2).sum().item() for student in students) for i in range(5)]
    assert metrics["loss"].item() == pytest.approx(sum(distances) / 5, rel=1e-5)
    scores = (students[0] @ students[1].T).tolist()
    hits = [row.index(max(row)) == i for i, row in enumerate(scores)]
    assert metrics["accuracy"].item() == pytest.approx(sum(hits) / 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_distill_compares_in_fp32_under_autocast(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Loss and accuracy are those of double precision from the vectors that the encoders give under autocast."""
    kind = EncoderKind.bert
    src, tgt, teacher = make_encoder(0, kind=kind), make_encoder(1, kind=kind), make_encoder(0, kind=kind, width=8)
    monkeypatch.setattr(objectives, "load_teacher", lambda name, side: teacher)
    objective = Distill(src, tgt, settings())
    pairs = PAIRS[:30]
    batch = make_batch(src, tgt, pairs)
    with torch.autocast("cpu", dtype=dtype):
        metrics = objective(batch, None)
        goal = teacher(TokenParts.split(teacher.tokenize(batch.src_texts))).double()
        x, y = src(batch.src).double(), tgt(batch.tgt).double()
    expected = ((x - goal) ** 2).sum(dim=1).mean() + ((y - goal) ** 2).sum(dim=1).mean()
    assert metrics["loss"].dtype == torch.float32
    assert metrics["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    labels = torch.arange(30)
    assert metrics["accuracy"].item() == pytest.approx(((x @ y.T).argmax(dim=1) == labels).double().mean().item())


def test_distill_leaves_the_teacher_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher stays in evaluation mode and gets no gradient; both students do."""
    src, tgt, teacher = make_encoder(0), make_encoder(1), make_encoder(0, kind=EncoderKind.bert, dropout=0.5)
    monkeypatch.setattr(objectives, "load_teacher", lambda name, side: teacher)
    before = copy.deepcopy(teacher.state_dict())
    objective = Distill(src, tgt, settings()).train()
    assert src.training and tgt.training
    assert not any(module.training for module in teacher.modules())
    objective(make_batch(src, tgt, PAIRS[:4]), None)["loss"].backward()
    assert learns(src) and learns(tgt)
    assert all(not weight.requires_grad and weight.grad is None for weight in teacher.parameters())
    assert all(torch.equal(before[name], value) for name, value in teacher.state_dict().items())


def test_distill_refuses_another_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names both dimensions and the settings that make them equal."""
    monkeypatch.setattr(objectives, "load_teacher", lambda name, side: make_encoder(0, width=12))
    with pytest.raises(ConfigError) as caught:
        Distill(make_encoder(0), make_encoder(1), settings())
    assert all(part in str(caught.value) for part in ("dimension 12", "encoders' 8", "tgt.projection=12"))


def test_simcse_in_evaluation_mode_ranks_identical_views() -> None:
    """Each language's sentences against themselves, equal sentences not counted as negatives."""
    src, tgt = make_encoder(0, dropout=0.5), make_encoder(1, dropout=0.5)
    batch = make_batch(src, tgt, [*PAIRS[:4], (PAIRS[0][0], PAIRS[4][1])])
    metrics = SimCse(src, tgt, settings(temperature=0.1)).eval()(batch, None)
    x, y = src(batch.src).detach(), tgt(batch.tgt).detach()
    src_ids, tgt_ids = batch.src_ids.tolist(), batch.tgt_ids.tolist()
    expected = loop_ranking(x, x, src_ids, src_ids, 0.1, 0.0)[0] + loop_ranking(y, y, tgt_ids, tgt_ids, 0.1, 0.0)[0]
    assert metrics["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert metrics["accuracy"].item() == 1.0


@pytest.mark.parametrize("without", [0, 1])
def test_simcse_refuses_an_encoder_without_dropout(without: int) -> None:
    """Two views would be equal; a model may have no dropout layers whatever the recipe says."""
    encoders = [make_encoder(side, dropout=0.0 if side == without else 0.5) for side in (0, 1)]
    config = TrainConfig(objective="simcse", src=EncoderConfig(lang="en"), tgt=EncoderConfig(lang="zh"))
    with pytest.raises(ConfigError, match=rf"the {('en', 'zh')[without]} encoder has no dropout layers; expected some"):
        SimCse(encoders[0], encoders[1], config)


def test_simcse_compares_two_views_under_dropout() -> None:
    """In training the views of a sentence differ, so their likeness and the loss vary from call to call."""
    src, tgt = make_encoder(0, dropout=0.5), make_encoder(1, dropout=0.5)
    objective = SimCse(src, tgt, settings(temperature=0.1))
    batch = make_batch(src, tgt, PAIRS[:6])
    torch.manual_seed(0)
    still = [objective.eval()(batch, None)["loss"].item() for _ in range(2)]
    noisy = [objective.train()(batch, None)["loss"].item() for _ in range(2)]
    assert still[0] == still[1]
    assert noisy[0] != noisy[1]
    assert min(noisy) > still[0]
    objective(batch, None)["loss"].backward()
    assert learns(src) and learns(tgt)


@pytest.mark.parametrize(
    ("features", "parts"), [(NliFeatures.concat, 2), (NliFeatures.sbert, 3), (NliFeatures.infersent, 4)]
)
def test_nli_head_scores_by_hand(features: NliFeatures, parts: int) -> None:
    """Two layers over u, v, |u-v| and u*v, as many of them as the setting names."""
    encoder = make_encoder(0)
    torch.manual_seed(3)
    head = NliHead(encoder, NliConfig(features=features, hidden=7, dropout=0.5)).eval()
    first, last = head.classifier[0], head.classifier[-1]
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    assert first.weight.shape == (7, parts * WIDTH)
    batch = make_nli(encoder)
    logits = head(batch)
    assert logits.shape == (5, 3)
    for i, (u, v) in enumerate(zip(encoder(batch.premise).tolist(), encoder(batch.hypothesis).tolist(), strict=True)):
        pairs = list(zip(u, v, strict=True))
        inputs = [*u, *v, *(abs(a - b) for a, b in pairs), *(a * b for a, b in pairs)][: parts * WIDTH]
        hidden = [
            max(0.0, bias + math.fsum(w * x for w, x in zip(row, inputs, strict=True)))
            for row, bias in zip(first.weight.tolist(), first.bias.tolist(), strict=True)
        ]
        expected = [
            bias + math.fsum(w * h for w, h in zip(row, hidden, strict=True))
            for row, bias in zip(last.weight.tolist(), last.bias.tolist(), strict=True)
        ]
        assert logits[i].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


class NliStep(NamedTuple):
    """Dual momentum contrast with NLI on its source encoder, that encoder, and a batch of both tasks."""

    objective: MultiTask
    base: DualMoco
    src: Encoder
    batch: MultiTaskBatch


def make_nli_step(weight: float) -> NliStep:
    """A step on six pairs and five NLI examples."""
    src, tgt = make_encoder(0), make_encoder(1)
    torch.manual_seed(5)
    contrast = ContrastConfig(queue_size=30, temperature=0.1, batch_keys=True)
    config = TrainConfig(contrast=contrast, nli=NliConfig(hidden=7, dropout=0.0, weight=weight))
    objective = with_nli(DualMoco)(src, tgt, config).train()
    assert isinstance(objective, MultiTask) and isinstance(objective.base, DualMoco)
    batch = MultiTaskBatch(make_batch(src, tgt, PAIRS[:6]), make_nli(src))
    return NliStep(objective, objective.base, src, batch)


def test_nli_is_added_with_its_weight() -> None:
    """The loss is the base's plus alpha times NLI's, both reported, both trained."""
    objective, moco, _, batch = make_nli_step(weight=0.25)
    prepared = objective.begin_step([batch])
    assert len(moco.contrast.src_queue) == 6
    metrics = objective(batch, prepared[0])
    base = moco(batch.base, prepared[0])
    logits = objective.head(batch.nli)
    nli_loss = cross_entropy(logits, batch.nli.labels).item()
    assert base["loss"].item() > 0 and nli_loss > 0
    assert metrics["loss"].item() == pytest.approx(base["loss"].item() + 0.25 * nli_loss, rel=1e-5)
    assert metrics["nli_loss"].item() == pytest.approx(nli_loss, rel=1e-5)
    hits = (logits.argmax(dim=1) == batch.nli.labels).float().mean().item()
    assert metrics["nli_accuracy"].item() == pytest.approx(hits)
    assert metrics["accuracy"].item() == pytest.approx(base["accuracy"].item())
    metrics["loss"].backward()
    assert learns(objective.head.classifier) and learns(moco.contrast.tgt_encoder)


def test_nli_hands_steps_on_to_its_base() -> None:
    """The base's momentum encoders move at the end of a step, and its state is reported."""
    objective, moco, src, batch = make_nli_step(weight=0.1)
    with torch.no_grad():
        next(src.parameters()).mul_(2.0)
    objective.update_momentum(0.0)
    objective.end_step(objective.begin_step([batch]))
    assert torch.equal(next(moco.contrast.src_momentum_encoder.parameters()), next(src.parameters()))
    assert objective.state_metrics(3) == moco.state_metrics(3)
    assert objective.state_metrics(3)["queue_fill"] == pytest.approx(0.2)


def test_nli_alone_needs_no_pairs() -> None:
    """The loss is NLI's, whatever the weight, and the target encoder does not learn."""
    src, tgt = make_encoder(0), make_encoder(1)
    objective = Nli(src, tgt, TrainConfig(nli=NliConfig(hidden=7, dropout=0.0, weight=0.25))).train()
    batch = make_nli(src)
    metrics = objective(batch, *objective.begin_step([batch]))
    expected = cross_entropy(objective.head(batch), batch.labels).item()
    assert metrics["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert metrics["accuracy"].item() == metrics["nli_accuracy"].item()
    metrics["loss"].backward()
    assert learns(src) and not any(weight.requires_grad for weight in tgt.parameters())
    assert objective.state_metrics(3) == {} and with_nli(Nli) is Nli


def test_objectives_without_state_prepare_nothing() -> None:
    """The three calls of a step are there for every objective."""
    objective = Objective()
    assert objective.begin_step([1, 2, 3]) == [None, None, None]
    assert objective.state_metrics(4) == {}
