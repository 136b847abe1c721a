"""Plans: counts against what PyTorch counts, memory against real tensors, refusals, and a plan of a real run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, DistilBertConfig, ModernBertConfig, PretrainedConfig

from dualmoco.analysis.plan import DEVICES, DryRunResult, RunPlan, StageTime, plan, read_devices
from dualmoco.analysis.study import read_study
from dualmoco.analysis.study_plan import plan_study
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, RunError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import PAPER_SHAPES, build_encoder, read_shape, shape_of
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import Encoder
from dualmoco.training import memory as fitting
from dualmoco.training.config import ContrastConfig, OptimizerConfig, TrainConfig
from dualmoco.training.memory import GPU_RESERVED, Lengths, device_memory, fitting_settings, saved_bytes, step_cost
from dualmoco.training.objectives import DualMoco
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train

TEXTS = [src for src, _ in generate_pairs(300, seed=3)]
PAPER = Path(__file__).parents[1] / "recipes" / "paper.yaml"
PAPER_TABLES = sorted((Path(__file__).parents[1] / "studies" / "paper-tables").glob("*.yaml"))


def make_encoder(kind: EncoderKind = EncoderKind.bert, *, dropout: float = 0.0, projection: int = 0) -> Encoder:
    """A small encoder in training mode."""
    config = EncoderConfig(lang="en", kind=kind, width=64, layers=3, heads=4, vocab_size=200, projection=projection)
    encoder = build_encoder(config, TEXTS)
    encoder.set_dropout(dropout)
    return encoder.train()


@pytest.mark.parametrize(
    ("kind", "projection"), [(EncoderKind.bert, 0), (EncoderKind.bert, 16), (EncoderKind.static, 0)]
)
def test_weights_are_those_of_the_encoder(kind: EncoderKind, projection: int) -> None:
    """To one, the pooler left out, which BERT carries and training does not use; the recipe's shape is the same."""
    encoder = make_encoder(kind, projection=projection)
    counted = sum(weight.numel() for name, weight in encoder.named_parameters() if "pooler" not in name)
    assert read_shape(encoder).parameters == counted
    config = EncoderConfig(kind=kind, width=64, layers=3, heads=4, vocab_size=200, projection=projection)
    assert shape_of(config) == replace(read_shape(encoder), vocab=200)


@pytest.mark.parametrize(
    "config",
    [
        DistilBertConfig(vocab_size=90, dim=32, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=40),
        ModernBertConfig(
            vocab_size=90,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
    ],
    ids=["distilbert", "modernbert"],
)
def test_shapes_of_other_architectures(config: PretrainedConfig) -> None:
    """Other names of the sizes, other layers: the count of weights is near."""
    model = AutoModel.from_config(config)
    encoder = make_encoder()
    encoder.layers[0].model = model
    counted = sum(weight.numel() for weight in model.parameters())
    assert replace(read_shape(encoder), dimension=32, positions=40).parameters == pytest.approx(counted, rel=0.25)


def test_shapes_of_the_papers_encoders() -> None:
    """BERT base and large have the weights that their authors give, without poolers."""
    assert PAPER_SHAPES["bert-base-uncased"].parameters == pytest.approx(109e6, rel=0.01)
    assert PAPER_SHAPES["roberta-large"].parameters == pytest.approx(354e6, rel=0.01)
    side = EncoderConfig(kind=EncoderKind.pretrained, name="bert-base-uncased", projection=256)
    assert shape_of(side).dimension == 256


@pytest.mark.parametrize("tokens", [8, 32])
def test_operations_are_what_pytorch_counts(tokens: int) -> None:
    """Forward and backward, with the attention of a long sentence."""
    encoder, sentences = make_encoder(dropout=0.1), 4
    features = {"input_ids": torch.ones(sentences, tokens, dtype=torch.long)}
    features["attention_mask"] = torch.ones_like(features["input_ids"])
    with FlopCounterMode(display=False) as counter:
        vectors = encoder(features)
        forward = counter.get_total_flops()
        vectors.sum().backward()
    wanted = sentences * read_shape(encoder).operations(tokens)
    assert forward == pytest.approx(wanted, rel=0.03)
    assert counter.get_total_flops() - forward == pytest.approx(2 * wanted, rel=0.06)


def count_saved_bytes(encoder: Encoder, forward: Callable[[], torch.Tensor]) -> int:
    """What autograd keeps of a forward pass, weights left out."""
    weights = {weight.untyped_storage()._cdata for weight in encoder.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert forward().requires_grad
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [8, 32])
def test_saved_bytes_are_those_of_the_graph(dropout: float, tokens: int) -> None:
    """What a CPU keeps, within a sixth."""
    encoder, sentences = make_encoder(dropout=dropout), 16
    features = {"input_ids": torch.ones(sentences, tokens, dtype=torch.long)}
    features["attention_mask"] = torch.ones_like(features["input_ids"])
    estimate = sentences * saved_bytes(read_shape(encoder), tokens, dropout)
    assert estimate == pytest.approx(count_saved_bytes(encoder, lambda: encoder(features)), rel=0.17)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [32, 128])
def test_saved_bytes_of_the_kernels_of_a_gpu(dropout: float, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA's kernels keep of padded sentences, within a sixth: PyTorch knows their shapes without a GPU."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        assert options["dropout_p"] == dropout
        bias = torch.zeros_like(options["attn_mask"], dtype=query.dtype).expand(-1, query.shape[1], -1, -1)
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        output: torch.Tensor = kernel(query, key, value, bias, True, dropout)[0]
        return output

    def drop(given: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(given, p, training)[0] if p and training else given

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(torch.nn.functional, "dropout", drop)
    encoder, sentences = make_encoder(dropout=dropout), 16
    estimates = [sentences * saved_bytes(read_shape(encoder), tokens, dropout, kind=kind) for kind in ("cuda", "cpu")]
    bert: Any = encoder.to("meta").layers[0]
    ids = torch.ones(sentences, tokens, dtype=torch.long, device="meta")
    mask = torch.ones(sentences, 1, tokens, tokens, dtype=torch.bool, device="meta")
    seen = count_saved_bytes(encoder, lambda: bert.model(input_ids=ids, attention_mask=mask).last_hidden_state)
    assert estimates[0] == pytest.approx(seen, rel=0.17)
    assert not dropout or estimates[1] > 1.3 * seen


def test_memory_that_stays_is_that_of_the_objective() -> None:
    """Weights, momentum encoders and queues are the parameters and buffers of a real one; AdamW's are two a weight."""
    src, tgt = make_encoder(), make_encoder()
    config = TrainConfig(contrast=ContrastConfig(queue_size=500), optimizer=OptimizerConfig(batch_size=8))
    objective = DualMoco(src, tgt, config)
    shape, lengths = read_shape(src), Lengths(8, 8, 8, 8)
    memory = device_memory(config, (shape, shape), lengths)
    tensors = [*objective.named_parameters(), *objective.named_buffers()]
    own = [tensor for name, tensor in tensors if "pooler" not in name and "position_ids" not in name]
    seen = sum(tensor.numel() * tensor.element_size() for tensor in own if tensor.numel() > 1)
    ids = sum(tensor.numel() * 8 for name, tensor in tensors if name.endswith(("position_ids", "token_type_ids")))
    assert memory.weights + memory.momentum + memory.queue == pytest.approx(seen, abs=ids)
    assert memory.learning == 12 * 2 * shape.parameters
    assert (
        device_memory(config, (shape, shape), lengths, 2).learning == memory.learning
    )  # gradients are in DDP's buckets


def test_frozen_sides_cost_less() -> None:
    """No momentum encoder, one direction, no gradient and no step of the frozen side."""
    shape, lengths = read_shape(make_encoder()), Lengths(10, 10, 20, 20)
    both = TrainConfig(optimizer=OptimizerConfig(batch_size=8))
    frozen = replace(both, src=replace(both.src, frozen=True))
    costs = [step_cost(config, (shape, shape), lengths) for config in (both, frozen)]
    assert costs[0].encoders == pytest.approx(2 * 8 * 4 * shape.operations(10))
    assert costs[1].encoders == pytest.approx(8 * 3 * shape.operations(10))
    assert costs[1].scores == costs[0].scores / 2
    memories = [device_memory(config, (shape, shape), lengths) for config in (both, frozen)]
    assert memories[1].momentum == 0 and memories[1].learning == memories[0].learning / 2
    assert memories[1].activations == memories[0].activations / 2


def test_settings_that_fit() -> None:
    """First micro-batches, then checkpointing, then a smaller queue; what is named does fit, what is less does not."""
    config = load_config(PAPER, ["optimizer.accumulate=1"])
    shapes, lengths = (shape_of(config.src), shape_of(config.tgt)), Lengths(28, 33, 56, 66)
    needed = device_memory(config, shapes, lengths).total
    assert fitting_settings(config, shapes, lengths, 1, needed) == []
    settings = fitting_settings(config, shapes, lengths, 1, needed / 2)
    assert settings == ["optimizer.accumulate=4"]
    assert device_memory(load_config(PAPER, settings), shapes, lengths).total <= needed / 2
    assert device_memory(load_config(PAPER, ["optimizer.accumulate=2"]), shapes, lengths).total > needed / 2
    small = fitting_settings(config, shapes, lengths, 1, 5.5 * 2**30)
    assert small[0].startswith("optimizer.accumulate=") and small[-1].startswith("contrast.queue_size=")
    assert device_memory(load_config(PAPER, small), shapes, lengths).total <= 5.5 * 2**30
    assert fitting_settings(config, shapes, lengths, 1, 2**30) == []


def test_a_run_that_cannot_fit_is_refused(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, with settings that fit; with more room the same run starts."""
    monkeypatch.setattr(fitting, "used_here", lambda: 0.0)
    monkeypatch.setattr(fitting, "memory_here", lambda: 1e5)
    with pytest.raises(RunError, match=r"needs about 0\.0 GiB on each device, which has 0\.0 GiB free; "):
        train(recipe, "schedule.steps=1")
    run = recipe.parent / "run"
    assert not (run / "log.jsonl").exists() and not (run / "model").exists()
    monkeypatch.setattr(fitting, "memory_here", lambda: 1e12)
    assert train(recipe, "schedule.steps=1").step == 1


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number below the machine's memory; no limit is the word max."""
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(fitting, "CGROUP_LIMITS", [str(limit)])
    machine = fitting.memory_here()
    limit.write_text("max\n", encoding="ascii")
    assert fitting.memory_here() == machine
    limit.write_text("1000000\n", encoding="ascii")
    assert fitting.memory_here() == 1_000_000


@pytest.mark.parametrize("name", ["paper.yaml", "paper-nli.yaml"])
def test_the_papers_recipes_fit_on_its_gpus(name: str) -> None:
    """Four V100s of 32 GB hold a step of sentences of the greatest length, as `train` demands before it starts."""
    config = load_config(PAPER.with_name(name))
    longest = float(config.src.max_tokens), float(config.tgt.max_tokens)
    shapes = shape_of(config.src), shape_of(config.tgt)
    memory = device_memory(config, shapes, Lengths(28, 33, *longest), 4, "cuda")
    assert memory.total + GPU_RESERVED <= DEVICES["v100"].memory == 32 * 2**30


def test_the_papers_own_cost() -> None:
    """15 hours on four V100s for 5 million pairs and 15 epochs; longer sentences and fewer GPUs take longer."""
    found = plan(PAPER, devices="4xv100,v100,t4", pairs=5_000_000, tokens=(28, 33))
    four, one, small = found.devices
    assert four.hours == pytest.approx(15, rel=0.2) and not four.advice
    assert four.steps == 15 * (5_000_000 // 1024)
    assert four.hours is not None and one.hours == pytest.approx(4 * four.hours, rel=1e-6)
    assert "optimizer.accumulate" in small.advice and not found.fits and small.advice in str(found)


def test_a_plan_of_a_real_run(recipe: Path) -> None:
    """Measured here: seconds, memory and lengths; nothing stays behind, and the run itself is not begun."""
    before = sorted(recipe.parent.rglob("*"))
    found = plan(recipe, "schedule.steps=40", devices="here", seconds=0.5)
    assert sorted(recipe.parent.rglob("*")) == before
    assert isinstance(found, RunPlan) and found.fits and found.step_seconds is not None and found.step_seconds > 0
    here = found.devices[0]
    assert here.measured and here.steps == 40 and here.hours is not None
    assert here.hours * 3600 > 40 * found.step_seconds
    assert found.start_seconds is not None and "seconds here before the first step" in str(found)
    assert 2 < found.lengths.src <= found.lengths.longest_src <= 128
    assert here.memory.total < here.needed <= fitting.peak_here() + here.memory.total + 1e8


def test_minutes_tell_the_steps(recipe: Path) -> None:
    """Of a schedule in minutes the steps are what a device decides."""
    found = plan(recipe, "schedule.steps=0", "schedule.minutes=10", devices="here", seconds=0.2)
    here = found.devices[0]
    assert found.step_seconds is not None and 0 < here.steps <= 600 / found.step_seconds
    assert here.hours is not None and here.hours == pytest.approx(1 / 6, rel=0.2)


def test_stages_are_shares_of_steps_or_of_minutes() -> None:
    """Half the steps at one second and half at three take two each; half the time at each does three steps to one."""
    lengths = Lengths(1, 2, 3, 4)
    stages = [StageTime(0.5, 1.0, lengths), StageTime(0.5, 3.0, replace(lengths, longest_src=9))]
    encoder = make_encoder(EncoderKind.static)
    found = DryRunResult(10, stages, 0, 0, 0, 1, 0, 0, (encoder, encoder))
    assert found.step_seconds(in_minutes=False) == 2
    assert found.step_seconds(in_minutes=True) == pytest.approx(60 / (30 / 1 + 30 / 3))
    assert found.lengths == Lengths(1, 2, 9, 4)


@pytest.mark.parametrize("path", PAPER_TABLES, ids=lambda path: path.stem)
def test_the_papers_tables_fit_on_its_gpus(path: Path) -> None:
    """Each run fits on four V100s and takes about the paper's time; a study takes as long as its runs together."""
    found = plan_study(path, devices="4xv100", pairs=5_000_000, tokens=(28, 33))
    assert found.fits and len(found.rows) == len(read_study(path).rows)
    hours = [planned.devices[0].hours for planned in found.rows.values()]
    assert all(taken == pytest.approx(15, rel=0.2) for taken in hours)
    assert found.hours(0) == pytest.approx(sum(taken for taken in hours if taken))
    assert f"{len(hours)} runs, one after another, on 4 x v100: {found.hours(0):,.0f} hours" in str(found)


def test_a_plan_of_a_study_counts_its_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """The command takes a study and its overrides; twice the seeds take twice as long; a misfit is named."""
    words = ["plan", str(PAPER_TABLES[-1]), "--pair-count", "5000000", "--tokens", "28,33", "--devices"]
    assert main([*words, "4xv100", "seeds=[0,1]", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["seeds"] == 2 and list(page["rows"]) == ["mean pooling", "max pooling", "[CLS]"]
    assert main([*words, "4xv100,t4", "seeds=[0,1]"]) == 1
    text = capsys.readouterr().out
    hours = 2 * sum(row["devices"][0]["hours"] for row in page["rows"].values())
    assert f"6 runs, one after another, on 4 x v100: {hours:,.0f} hours" in text
    assert "max pooling on t4: does not fit; it would fit with optimizer.accumulate=" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON for machines, and the exit code of a run that does not fit."""
    without_data = ["plan", str(PAPER), "--pair-count", "5000000", "--tokens", "28,33"]
    assert main([*without_data, "--devices", "t4", "--json"]) == 1
    page = json.loads(capsys.readouterr().out)
    assert page["devices"][0]["device"] == "t4" and "accumulate" in page["devices"][0]["advice"]
    assert page["cost"]["scores"] == 2 * 2 * 2 * 1024 * 409_600 * 768
    assert main([*without_data, "--devices", "4xv100"]) == 0
    assert "4 x v100  73,230" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"devices": "v1000"}, r"'v1000': unknown device; expected here, or one of v100, t4"),
        ({"devices": "2xhere"}, r"'2xhere': unknown device"),
        ({"devices": "v100", "tokens": (28.0,), "pairs": 5}, r"--tokens 28.0: expected two numbers above 0"),
        ({"devices": "v100", "tokens": (28.0, 3.0)}, r"--pair-count 0 .*expected a number of pairs"),
        ({"devices": "here", "tokens": (28.0, 3.0), "pairs": 5}, r"nothing can be timed here"),
    ],
)
def test_bad_input(given: dict[str, object], expected: str) -> None:
    """One line says what was given and what was expected."""
    with pytest.raises(ConfigError, match=expected):
        plan(PAPER, **given)  # type: ignore[arg-type]


def test_several_devices_of_a_kind() -> None:
    """A number before the name."""
    assert read_devices("here, 4xV100,a100") == [("here", 1), ("v100", 4), ("a100", 1)]
