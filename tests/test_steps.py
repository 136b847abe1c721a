"""What a training step costs and how it is computed: reads from the device, arithmetic, faults that are found late."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.loss import emulated_gradient
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dualmoco.core.errors import ConfigError, RunError
from dualmoco.data.pairs import load_pairs
from dualmoco.models.network import Encoder
from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.contrast import info_nce
from dualmoco.training.infonce import blockwise_info_nce, limit_temperature
from dualmoco.training.init_encoders import compile_encoders
from dualmoco.training.recipe import load_config
from dualmoco.training.run import arithmetic, build_trainer, check_workspace, start_accelerator, train
from dualmoco.training.run_folder import read_log
from dualmoco.training.schedule import RunProgress
from dualmoco.training.trainer import Trainer
from runfolders import losses, state

CUDA = torch.device("cuda")
READS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")


def make_trainer(recipe: Path, *settings: str, scaler: torch.amp.GradScaler | None = None) -> Trainer:
    """A trainer before its first step."""
    config = load_config(recipe, list(settings))
    split = load_pairs(config.data, langs=("en", "zh"), seed=config.seed)
    accelerator = start_accelerator(config)
    accelerator.scaler = scaler
    return build_trainer(config, split, accelerator)


class CountedOperators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts one operator and runs it."""
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """Counts what the host would wait for on a GPU: numbers of tensors, and results whose size depends on them."""
    reads: Counter[str] = Counter()

    def counting(name: str) -> Any:
        usual = getattr(Tensor, name)

        def read(self: Tensor, *given: Any, **named: Any) -> Any:
            reads[name] += 1
            return usual(self, *given, **named)

        return read

    with pytest.MonkeyPatch.context() as patch, CountedOperators() as operators:
        for name in READS:
            patch.setattr(Tensor, name, counting(name))
        yield reads
    reads.update({name: operators.counts[name] for name in ("nonzero", "_unique2", "masked_select")})


STATIC = ["src.kind=static", "tgt.kind=static"]


@pytest.mark.parametrize(
    ("settings", "directions", "passes"),
    [(STATIC, 2, 0), ([], 2, 2), (["optimizer.accumulate=2"], 2, 2), (["objective=in-batch"], 0, 1)],
)
def test_a_step_hardly_waits_for_the_device(recipe: Path, settings: list[str], directions: int, passes: int) -> None:
    """Each direction of the contrast looks for repeated texts, transformers for padding; metrics are not read."""
    trainer = make_trainer(recipe, *settings, "contrast.queue_size=32", "contrast.mask_repeats=false")
    progress = RunProgress()
    for progress.step in range(3):  # the queues of 32 pairs are full then
        trainer.step(trainer.batches(progress.step), progress)
    batches: Any = trainer.batches(3)
    with counted_reads() as reads:
        trainer.step(batches, progress)
    parts = sum(len(side.parts) for batch in batches for side in (batch.src, batch.tgt))
    assert reads == Counter({"nonzero": directions * len(batches), "__bool__": passes * parts})


def test_the_counter_sees_reads() -> None:
    """What the test above rests on."""
    with counted_reads() as reads:
        numbers = torch.arange(3.0)
        float(numbers[1]), numbers.tolist(), numbers[1].item(), bool(numbers[2] > 0), numbers.nonzero()
    assert reads["__float__"] == reads["tolist"] == reads["item"] == reads["__bool__"] == reads["nonzero"] == 1


def test_metrics_are_read_together_and_belong_to_their_step(recipe: Path, tmp_path: Path) -> None:
    """A log of every third step has the numbers that a log of every step has."""
    train(recipe, f"out={tmp_path / 'all'}")
    train(recipe, f"out={tmp_path / 'some'}", "schedule.log_every=3")
    every, some = (
        {line["step"]: line for line in read_log(tmp_path / name / "log.jsonl") if "loss" in line}
        for name in ("all", "some")
    )
    assert list(some) == [3, 6, 9, 12]
    for step, line in some.items():
        names = line.keys() - {"seconds", "pairs_per_second"}
        assert {name: line[name] for name in names} == {name: every[step][name] for name in names}


@pytest.mark.parametrize("wrong", [7, 8])
def test_a_fault_between_two_lines_of_the_log_is_found(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """The message has the number of the step, and no checkpoint or model is written after it."""
    usual = Trainer.step

    def faulty(self: Trainer, *given: Any) -> Any:
        metrics = usual(self, *given)
        if given[-1].step + 1 == wrong:
            metrics["loss"] = metrics["loss"] * math.nan
        return metrics

    monkeypatch.setattr(Trainer, "step", faulty)
    with pytest.raises(RunError, match=rf"step {wrong}: the loss is nan; the last good checkpoint is .*step-00000004"):
        train(recipe, "schedule.log_every=100", "schedule.evaluate_every=100")
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-00000004"]
    assert not (tmp_path / "run" / "model").exists()


def autocast_fp16(trainer: Trainer) -> None:
    """Lets a trainer compute in fp16 as on a GPU."""
    trainer.accelerator.autocast = lambda: torch.autocast("cpu", torch.float16)
    usual = trainer.model.forward

    def forward(*given: Any) -> Any:
        with torch.autocast("cpu", torch.float16):
            return usual(*given)

    trainer.model.forward = forward


def test_fp16_skips_steps_that_overflow_and_learns_from_the_others(recipe: Path, tmp_path: Path) -> None:
    """The scale is halved until gradients fit; skipped steps change no weights and log no gradient."""
    still = ["src.dropout=0", "tgt.dropout=0", "contrast.batch_keys=true", "schedule.log_every=1"]
    trainer = make_trainer(recipe, *still, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**22))
    autocast_fp16(trainer)
    trainer.run(resume=False)
    train(recipe, f"out={tmp_path / 'plain'}", *still)
    half, plain = (
        [line for line in read_log(tmp_path / name / "log.jsonl") if "loss" in line] for name in ("run", "plain")
    )
    skipped = [line["gradient_norm"] is None for line in half]
    count = sum(skipped)
    assert 0 < count < 10 and skipped == sorted(skipped, reverse=True)  # only the first steps
    assert [line["loss_scale"] for line in half[:count]] == [2.0 ** (21 - step) for step in range(count)]
    assert half[0]["loss"] == pytest.approx(plain[0]["loss"], rel=1e-2)
    moments = {value.item() for name, value in state(tmp_path / "run").items() if name.endswith(".step")}
    assert moments == {12.0 - count}  # optimizer steps that were taken


def test_a_learned_temperature_has_a_lower_limit(recipe: Path, tmp_path: Path) -> None:
    """It stops at 0.01; a fixed one may be lower, a learned one may not start lower."""
    settings = ["contrast.learn_temperature=true", "contrast.temperature=0.0101", "contrast.batch_keys=true"]
    train(recipe, *settings, "optimizer.lr=0.5", "optimizer.clip=1e-3", "src.lr_scale=1e-6", "tgt.lr_scale=1e-6")
    lines = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "temperature" in line]
    assert min(line["temperature"] for line in lines) >= 0.01 - 1e-9
    for learned, expected in ((True, 0.01), (False, 0.001)):
        logarithm = nn.Parameter(torch.tensor(math.log(0.001)), requires_grad=learned)
        limit_temperature(logarithm)
        assert logarithm.exp().item() == pytest.approx(expected)
    with pytest.raises(ConfigError, match=r"temperature is 0\.005; expected at least 0\.01 when contrast\.learn"):
        load_config(recipe, ["contrast.temperature=0.005", "contrast.learn_temperature=true"])
    assert load_config(recipe, ["contrast.temperature=0.005"]).contrast.temperature == 0.005


def test_momentum_encoders_are_compiled_too(recipe: Path) -> None:
    """A copy of a compiled encoder is not compiled, so all encoders are compiled when the objective has them."""
    trainer = make_trainer(recipe, "optimizer.compile=true")
    encoders = [module for module in trainer.objective.modules() if isinstance(module, Encoder)]
    assert len(encoders) == 4
    assert all(encoder.layers._compiled_call_impl is not None for encoder in encoders)
    assert not any(
        encoder.layers._compiled_call_impl
        for encoder in make_trainer(recipe, f"out={recipe.parent / 'other'}").encoders.values()
    )
    lonely = nn.ModuleList([encoders[0], nn.Linear(2, 2)])
    compile_encoders(lonely)
    assert lonely[1]._compiled_call_impl is None


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_matrix_products_on_a_gpu_have_the_precision_of_the_recipe(
    recipe: Path, caplog: pytest.LogCaptureFixture, precision: str
) -> None:
    """Within a run, which says so; the setting of the process is restored, and a CPU is left alone."""
    config = load_config(recipe, [f"optimizer.matmul_precision={precision}"])
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with caplog.at_level("INFO", logger="dualmoco"), arithmetic(config, CUDA):
        assert matmul.allow_tf32 is (precision == "tf32")
    assert caplog.messages == [f"matrix products in fp32, such as scores, are computed in {precision}"]
    assert matmul.allow_tf32 is before
    with arithmetic(config, torch.device("cpu")):
        assert matmul.allow_tf32 is before


def test_deterministic_runs(recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch is set accordingly during the run; on a CPU the result is the same."""
    seen = []
    usual = Trainer.step

    def watched(self: Trainer, *given: Any) -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return usual(self, *given)

    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO", logger="dualmoco"):
        patch.setattr(Trainer, "step", watched)
        train(recipe, "deterministic=true", "schedule.steps=3")
    assert seen == [True] * 3 and not torch.are_deterministic_algorithms_enabled()
    assert caplog.messages.count("only deterministic algorithms are used") == 1
    train(recipe, f"out={tmp_path / 'usual'}", "schedule.steps=3")
    assert losses(tmp_path / "run") == losses(tmp_path / "usual")


def test_a_workspace_that_is_not_deterministic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA needs an environment variable, which must be set before the process starts."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with pytest.raises(ConfigError, match=r"CUBLAS_WORKSPACE_CONFIG is ''; expected :4096:8 or :16:8: set it"):
        check_workspace(CUDA)
    check_workspace(torch.device("cpu"))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    check_workspace(CUDA)


def test_tf32_scores_change_gradients_less_than_mixed_precision() -> None:
    """Inputs with mantissas of 10 bits at temperature 0.04: an error below 1e-4, and eight times that with bf16."""
    generator = torch.Generator().manual_seed(0)
    query, noise, queue = (torch.randn(size, 256, generator=generator) for size in (64, 64, 8192))
    query, key, queue = (nn.functional.normalize(vectors, dim=1) for vectors in (query, query + 3 * noise, queue))
    ids, queue_ids = torch.arange(128).reshape(64, 2), torch.arange(1000, 1000 + 2 * 8192).reshape(8192, 2)
    leaf = query.double().requires_grad_()
    info_nce(leaf, key.double(), queue.double(), torch.tensor(0.04).double(), ids, queue_ids).sum().backward()
    own = query.clone().requires_grad_()
    blockwise_info_nce(own, key, queue, torch.tensor(0.04), ids, queue_ids)[0].sum().backward()
    assert leaf.grad is not None and own.grad is not None
    exact = leaf.grad

    def error(gradient: Tensor) -> float:
        return float((gradient.double() - exact).norm() / exact.norm())

    tf32, bf16 = (error(emulated_gradient(query, key, queue, 0.04, bits)) for bits in (10, 7))
    assert error(own.grad) < 1e-6 < 1e-5 < tf32 < 1e-4 < bf16
    assert bf16 / tf32 == pytest.approx(8, rel=0.3)  # three bits
