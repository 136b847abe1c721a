"""Stopping and resuming: real signals, exact resumption, several processes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from commands import ForkedPython, Moment, run_command
from dualmoco.cli.main import main
from dualmoco.core.errors import ModelError, RunError
from dualmoco.core.storage import LOCK, locked
from dualmoco.data.config import DataConfig
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.pairs import load_pairs
from dualmoco.models.network import open_routes
from dualmoco.training import init_encoders, run
from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.objective import Metrics
from dualmoco.training.run import train
from dualmoco.training.run_folder import read_log
from dualmoco.training.trainer import Trainer
from runfolders import assert_same_state, losses, state

STEPS = 24
RECIPE = """
out: run
src: {{lang: en, kind: bert, width: 16, layers: 1, heads: 2, vocab_size: 300}}
tgt: {{lang: zh, kind: bert, width: 16, layers: 1, heads: 2, vocab_size: 300, max_piece_length: 4}}
data: {{train: ["{corpus}"], heldout: 50, bucket: 4}}
contrast: {{queue_size: 100, temperature: 0.05, momentum: 0.9, learn_temperature: true}}
optimizer: {{lr: 1e-3, warmup_steps: 2, batch_size: 16}}
schedule: {{steps: 24, evaluate_every: 12, checkpoint_every: 4, log_every: 1}}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A recipe for two very small BERTs with dropout."""
    path = tmp_path_factory.mktemp("small") / "recipe.yaml"
    path.write_text(RECIPE.format(corpus=corpus), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def frozen_small(small: Path, plain: Path) -> Path:
    """The same recipe with a frozen source side."""
    path = small.with_name("frozen.yaml")
    frozen = f"src: {{lang: en, kind: pretrained, name: {plain}, frozen: true}}"
    lines = small.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(frozen if line.startswith("src:") else line for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def several_small(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same recipe with a third language: English spelt backwards."""
    corpus = tmp_path_factory.mktemp("third") / "pairs.tsv"
    pairs = [(src, " ".join(word[::-1] for word in src.split())) for src, _ in generate_pairs(300, seed=2)]
    corpus.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    path = small.with_name("several.yaml")
    third = "{lang: xx, kind: bert, width: 16, layers: 1, heads: 2, vocab_size: 300, dropout: 0.0}"
    data = f'{{train: ["{corpus}"], heldout: 50, bucket: 4}}'
    more = f"\nlanguages:\n- {{encoder: {third}, data: {data}, share: 0.5}}\n"
    path.write_text(small.read_text(encoding="utf-8") + more, encoding="utf-8")
    return path


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many threads as the other processes have, so that sums are the same bit for bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same_start(run: Path, out: Path) -> Path:
    """A run folder with the same first weights and tokenizers as another run, to be resumed from its first step."""
    out.mkdir(parents=True)
    shutil.copytree(run / "initial", out / "initial")
    shutil.copy(run / "config.yaml", out / "config.yaml")
    return out


def signal_after(monkeypatch: pytest.MonkeyPatch, step: int, number: signal.Signals) -> None:
    """Makes training in this process receive a signal in a certain step."""
    usual = Trainer.step

    def signalled(self: Trainer, *arguments: Any) -> Metrics:
        values = usual(self, *arguments)
        if arguments[-1].step + 1 == step:
            os.kill(os.getpid(), number)
        return values

    monkeypatch.setattr(Trainer, "step", signalled)


KILLED = Moment(signal.SIGKILL, "dualmoco.training.trainer", "Trainer.step", call=9)  # step 15 if resumed after step 6


@pytest.mark.parametrize("name", ["small", "frozen_small", "several_small"])
def test_resume_equals_never_having_stopped(
    name: str, tmp_path: Path, one_thread: None, request: pytest.FixtureRequest
) -> None:
    """Ended by SIGTERM, SIGKILL and SIGINT, a run comes to the losses and the state of an unbroken one, bit for bit.

    State is weights, momentum encoders, queues, moments and generators; a killed process loses the steps since its
    last checkpoint, the others none. A frozen side has no state: its keys and negatives are those of the step.
    """
    small: Path = request.getfixturevalue(name)
    unbroken = tmp_path / "unbroken"
    train(small, f"out={unbroken}")
    out = same_start(unbroken, tmp_path / "run")
    words = ["train", str(small), f"out={out}", "--quiet"]
    for number, step in ((signal.SIGTERM, 6), (signal.SIGINT, 18)):
        if number == signal.SIGINT:
            killed = run_command(words, tmp_path / "killed", moment=KILLED)
            assert killed.code == -signal.SIGKILL, killed.error
            assert list_checkpoints(out / "checkpoints")[-1].name == "step-00000012"
        with pytest.MonkeyPatch.context() as patch:
            signal_after(patch, step, number)
            assert main(words) == 128 + number
        assert list_checkpoints(out / "checkpoints")[-1].name == f"step-{step:08d}"
    assert main(words) == 0
    assert losses(out) == losses(unbroken)
    assert [step for step, _ in losses(out)] == list(range(1, STEPS + 1))
    assert_same_state(out, unbroken)
    assert not list((out / "checkpoints").glob(".*")) and not (out / LOCK).exists()


def test_interruption_before_the_first_evaluation_is_honest(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no score and no model yet, and none is named; resuming brings both."""
    words = ["train", str(small), f"out={tmp_path / 'run'}", "--quiet"]
    with monkeypatch.context() as patch:
        signal_after(patch, 2, signal.SIGINT)
        assert main(words) == 130
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("SIGINT at step 2 after ")
    assert second.startswith("held-out retrieval ") and second.endswith(" % before, not evaluated since")
    assert "same command again" in third
    assert not (tmp_path / "run" / "model").exists()
    with monkeypatch.context() as patch:
        signal_after(patch, 4, signal.SIGINT)
        assert main([*words, "--json"]) == 130
    result = json.loads(capsys.readouterr().out)
    assert (result["step"], result["best"], result["best_step"]) == (4, None, None)
    assert train(small, f"out={tmp_path / 'run'}", resume=True).best_step in (12, 24)
    assert (tmp_path / "run" / "model" / "modules.json").is_file()


def test_resuming_after_early_stopping_changes_nothing(recipe: Path, tmp_path: Path) -> None:
    """A run that patience ended is over: it stays at its step each time it is resumed, for the same reason."""
    settings = ("optimizer.lr=1e-12", "schedule.steps=50", "schedule.evaluate_every=1", "schedule.patience=3")
    stopped = train(recipe, *settings)
    assert stopped.stop == "no better for 3 evaluations" and stopped.step < 50
    before = state(tmp_path / "run")
    for _ in range(2):
        again = train(recipe, *settings, resume=True)
        assert (again.step, again.stop, again.best_step) == (stopped.step, stopped.stop, stopped.best_step)
    assert all(torch.equal(before[name], value) for name, value in state(tmp_path / "run").items())


def test_a_run_folder_in_use_is_refused(recipe: Path, tmp_path: Path) -> None:
    """Two runs never write into one folder; a run that ended leaves it free."""
    out = tmp_path / "run"
    with locked(out), pytest.raises(RunError, match=r"run: .*another process"):
        train(recipe)
    assert not out.exists()
    held = []

    def second(self: Trainer, *arguments: Any) -> Metrics:
        with pytest.raises(RunError, match="another process"):
            train(recipe, "schedule.steps=1", resume=True)
        held.append(list_checkpoints(out / "checkpoints"))
        return usual(self, *arguments)

    usual = Trainer.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", second)
        train(recipe, "schedule.steps=1")
    assert held == [[]]
    assert train(recipe, "schedule.steps=1", resume=True).step == 1


def test_folder_of_another_run_is_refused(recipe: Path) -> None:
    """A second run needs another folder or `resume=True`."""
    train(recipe, "schedule.steps=1")
    with pytest.raises(RunError, match="already contains a run"):
        train(recipe, "schedule.steps=1")


def test_resuming_with_other_settings_is_refused(recipe: Path) -> None:
    """The message names the first setting that differs."""
    train(recipe, "schedule.steps=1")
    with pytest.raises(RunError, match=r"was started with contrast\.momentum=0\.9, now contrast\.momentum=0\.5"):
        train(recipe, "schedule.steps=1", "contrast.momentum=0.5", resume=True)


@pytest.mark.parametrize(
    "setting",
    [
        "schedule.evaluate_every=4",  # compares other models
        "schedule.patience=2",
        "optimizer.batch_size=8",
        "optimizer.compile=true",
        "data.sampling=0.5",
    ],
)
def test_settings_that_can_change_the_result_are_refused(recipe: Path, setting: str) -> None:
    """Each is named, with both values."""
    train(recipe, "schedule.steps=1")
    key, value = setting.split("=")
    with pytest.raises(RunError, match=rf"was started with {key}=\S+, now {key}={value}; ".replace("true", "True")):
        train(recipe, "schedule.steps=1", setting, resume=True)


FREE = [
    "schedule.log_every=2",
    "schedule.checkpoint_every=5",
    "schedule.keep=1",
    "schedule.trackers=[tensorboard]",
    "optimizer.gradient_checkpointing=true",
]


def test_settings_that_cannot_change_the_result_may_differ(
    small: Path, tmp_path: Path, one_thread: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is resumed with other ones ends in the same state, bit for bit, and its folder has the new ones."""
    train(small, f"out={tmp_path / 'unbroken'}", "schedule.steps=12")
    out = same_start(tmp_path / "unbroken", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        signal_after(patch, 6, signal.SIGTERM)
        train(small, f"out={out}", "schedule.steps=12", resume=True)
    with caplog.at_level("INFO", "dualmoco"):
        assert train(small, f"out={out}", "schedule.steps=12", *FREE, resume=True).step == 12
    assert_same_state(out, tmp_path / "unbroken")
    assert losses(out) == [(step, loss) for step, loss in losses(tmp_path / "unbroken") if step <= 6 or step % 2 == 0]
    assert [folder.name for folder in list_checkpoints(out / "checkpoints")] == ["step-00000012"]
    assert "schedule.log_every is now 2, was 1" in caplog.text and "rounding" not in caplog.text
    assert (out / "trackers").is_dir() and "log_every: 2\n" in (out / "config.yaml").read_text(encoding="utf-8")
    caplog.clear()
    with caplog.at_level("INFO", "dualmoco"):
        train(small, f"out={out}", "schedule.steps=12", *FREE, resume=True)
    assert "is now" not in caplog.text


def test_micro_batches_may_differ(small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without dropout the losses are those of the unbroken run up to rounding, and a line says what changes."""
    still = ["schedule.steps=12", "src.dropout=0", "tgt.dropout=0"]
    train(small, f"out={tmp_path / 'unbroken'}", *still)
    out = same_start(tmp_path / "unbroken", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        signal_after(patch, 6, signal.SIGTERM)
        train(small, f"out={out}", *still, resume=True)
    with caplog.at_level("INFO", "dualmoco"):
        train(small, f"out={out}", *still, "optimizer.accumulate=4", resume=True)
    assert "optimizer.accumulate is now 4, was 1; from here on the result changes by rounding" in caplog.text
    one, other = (torch.tensor([loss for _, loss in losses(folder)]) for folder in (tmp_path / "unbroken", out))
    assert torch.equal(one[:6], other[:6]) and len(other) == 12
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_finished_or_interrupted_run_is_resumed_with_more_steps(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training continues at the last step, at the learning rate of the longer schedule, and says so once."""
    train(recipe)
    with caplog.at_level("INFO", "dualmoco"):
        assert train(recipe, "schedule.steps=16", resume=True).step == 16
    assert "schedule.steps is now 16, was 12; from here on the learning rate decays to the new end" in caplog.text
    rates = {record["step"]: record["lr"] for record in read_log(tmp_path / "run" / "log.jsonl") if "lr" in record}
    assert list(rates) == list(range(1, 17))
    assert rates[12] == pytest.approx(1e-3 * (1 + math.cos(math.pi * 11 / 12)) / 2)
    assert rates[13] == pytest.approx(1e-3 * (1 + math.cos(math.pi * 12 / 16)) / 2)
    caplog.clear()
    with caplog.at_level("INFO", "dualmoco"):
        assert train(recipe, "schedule.steps=16", resume=True).step == 16
    assert "schedule" not in caplog.text
    signal_after(monkeypatch, 18, signal.SIGTERM)
    assert train(recipe, "schedule.steps=20", resume=True).stop == "SIGTERM"
    assert train(recipe, "schedule.steps=22", resume=True).step == 22


@pytest.mark.parametrize("settings", [["schedule.steps=11"], ["schedule.steps=0", "schedule.epochs=9"]])
def test_resuming_with_a_shorter_or_other_schedule_is_refused(recipe: Path, settings: list[str]) -> None:
    """Only more of the same unit can be asked for."""
    train(recipe)
    with pytest.raises(
        RunError, match="only a longer schedule, and settings that cannot change the result, may differ"
    ):
        train(recipe, *settings, resume=True)


@pytest.mark.parametrize("key", ["src.name", "teacher", "tgt.entry_vectors"])
def test_models_that_do_not_exist_are_refused_before_the_data_is_read(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """A misspelled name costs a second, not the reading of the corpus."""
    monkeypatch.setattr(run, "load_pairs", lambda *given, **named: pytest.fail("the data was read"))
    kinds = {"src.name": ["src.kind=pretrained"], "teacher": ["objective=distill"]}
    settings = kinds.get(key, ["tgt.kind=static", "src.kind=static"])
    with pytest.raises(ModelError, match="no such folder"):
        train(recipe, f"{key}={tmp_path / 'absent'}", *settings)


def test_resuming_with_other_data_is_refused(recipe: Path, tmp_path: Path, corpus: Path) -> None:
    """The pairs must be the ones the run was started with."""
    mine = tmp_path / "mine.tsv"
    shutil.copy(corpus, mine)
    train(recipe, f"data.train=[{mine}]", "schedule.steps=1")
    mine.write_text(mine.read_text(encoding="utf-8") + "One more.\t再来一个。\n", encoding="utf-8")
    with pytest.raises(RunError, match="written with other settings, training data or teacher"):
        train(recipe, f"data.train=[{mine}]", "schedule.steps=1", resume=True)


def test_resuming_a_finished_run_changes_nothing(recipe: Path, tmp_path: Path) -> None:
    """There is nothing left to do."""
    train(recipe)
    before = state(tmp_path / "run")
    result = train(recipe, resume=True)
    assert result.step == 12
    assert all(torch.equal(before[name], value) for name, value in state(tmp_path / "run").items())


def test_damaged_checkpoint_is_reported(recipe: Path, tmp_path: Path) -> None:
    """A file that was cut is not taken for a checkpoint."""
    train(recipe, "schedule.steps=1")
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "model.safetensors"
    last.write_bytes(last.read_bytes()[:100])
    with pytest.raises(RunError, match="damaged"):
        train(recipe, "schedule.steps=1", resume=True)


def test_run_killed_before_its_first_step_starts_again(recipe: Path, tmp_path: Path) -> None:
    """Encoders without settings beside them are those of a run that never began: they are built anew."""
    train(recipe, "schedule.steps=1")
    folder = tmp_path / "run"
    for name in ("config.yaml", "log.jsonl", "checkpoints", "model"):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    (folder / LOCK).touch()
    assert train(recipe, "src.width=16", "tgt.width=16", "schedule.steps=1").step == 1
    assert open_routes(folder / "model")["en"].dimension == 16


SEVERAL = """
import json, sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from dualmoco.training import heldout
from dualmoco.training.trainer import Trainer
from dualmoco.training.distributed import process_rank
from dualmoco.training.run import train

recipe, folder, only, still = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
kept = []
loop = Trainer._loop
def remember(self, *arguments):
    kept.append(self)
    return loop(self, *arguments)
Trainer._loop = remember

def run(name, *words, recipe=recipe, resume=False, open_tasks=None):
    if only not in ("all", name):
        return
    result = train(recipe, f"out={folder / name}", *words, resume=resume, open_tasks=open_tasks)
    (folder / f"{name}-{process_rank()}.json").write_text(json.dumps(asdict(result)))

run("in-batch", *still, "objective=in-batch", resume=True)
short = "contrast.dimensions=[8,4]"
run("micro-batches", *still, "objective=in-batch", "optimizer.accumulate=2", short, resume=True)
for other in ("frozen", "several"):
    run(other, *still, recipe=Path(recipe).with_name(f"{other}.yaml"), resume=True)
run("dual-moco", *still, "objective=dual-moco", resume=True)
if only in ("all", "dual-moco"):
    queues = {f"{side}.{name}": value.contiguous() for side in ("src", "tgt")
              for name, value in getattr(kept[-1].objective.contrast, f"{side}_queue").named_buffers()}
    save_file(queues, str(folder / f"queues-{process_rank()}.safetensors"))

run("grown", *still, resume=True)

scored = []
def score(model):
    assert (model / "modules.json").is_file()
    scored.append(model.name)
    return {"task": float(len(scored))}
run("scored", *still, "schedule.evaluate=[task]", open_tasks=lambda config: score)
(folder / f"scored-models-{process_rank()}.json").write_text(json.dumps(scored))

calls = []
def encode(encoder, texts, count):  # the first process finds nothing new, the other one more sentence each time
    calls.append(texts)
    good = 0 if process_rank() == 0 else len(calls) // 2
    return np.eye(len(texts), max(1, good), dtype=np.float32) if good else np.ones((len(texts), 1), dtype=np.float32)
heldout.encode_heldout = encode
run("patience", "schedule.evaluate_every=1", "schedule.patience=2")
"""


STILL = ["src.dropout=0", "tgt.dropout=0", "contrast.batch_keys=true", "schedule.steps=12"]


@pytest.fixture(scope="module")
def two_processes(
    small: Path, frozen_small: Path, several_small: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Runs of one process, and the same with two gloo processes, with what each process saw."""
    folder = tmp_path_factory.mktemp("two")
    runs: dict[str, tuple[Path, list[str]]] = {"dual-moco": (small, []), "in-batch": (small, ["objective=in-batch"])}
    runs["frozen"] = (frozen_small, [])
    runs["several"] = (several_small, [])
    runs["micro-batches"] = (small, ["objective=in-batch", "optimizer.accumulate=2", "contrast.dimensions=[8,4]"])
    for name, (recipe, settings) in runs.items():
        train(recipe, f"out={folder / 'one' / name}", *STILL, *settings)
        same_start(folder / "one" / name, folder / name)
    same_start(folder / "one" / "dual-moco", folder / "grown")
    with pytest.MonkeyPatch.context() as patch:
        signal_after(patch, 6, signal.SIGTERM)
        train(small, f"out={folder / 'grown'}", *STILL, resume=True)
    run_processes(2, small, folder, "all")
    return folder


def run_processes(count: int, recipe: Path, folder: Path, only: str) -> None:
    """Trains with several gloo processes, from the starts in a folder, all runs or one of them.

    The processes have what torchrun gives them; a test of studies starts torchrun itself.
    """
    (folder / "worker.py").write_text(SEVERAL, encoding="utf-8")
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    together = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    together |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    words = [str(folder / "worker.py"), str(recipe), str(folder), only, *STILL]
    with (folder / "errors.txt").open("wb") as errors:
        processes = [
            ForkedPython(
                [sys.executable, *words],
                stdout=errors,
                stderr=errors,
                env={**together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(count)
        ]
        for process in processes:
            process.wait()


def results(folder: Path, name: str, count: int = 2) -> list[dict[str, Any]]:
    """What the processes gave back."""
    errors = (folder / "errors.txt").read_text(encoding="utf-8")
    files = [folder / f"{name}-{rank}.json" for rank in range(count)]
    assert all(file.is_file() for file in files), errors
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


@pytest.mark.parametrize("objective", ["dual-moco", "in-batch", "micro-batches", "frozen", "several"])
def test_two_processes_equal_one(two_processes: Path, objective: str) -> None:
    """Two processes with half the batch each give the losses of one, relative 1e-4, and identical queues."""
    first, second = results(two_processes, objective)
    assert (first["step"], first["stop"], first["best"]) == (second["step"], second["stop"], second["best"])
    folders = (two_processes / "one" / objective, two_processes / objective)
    one, two = (torch.tensor([loss for _, loss in losses(folder)]) for folder in folders)
    assert len(one) == 12
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    if objective == "dual-moco":
        left, right = (load_file(two_processes / f"queues-{rank}.safetensors") for rank in (0, 1))
        assert all(torch.equal(left[name], right[name]) for name in left)
        assert int(left["src.pushed"]) == 12 * 16


def test_four_processes_equal_one(two_processes: Path, small: Path, tmp_path: Path) -> None:
    """A quarter of the batch each: the losses of one process, relative 1e-4, and four identical queues."""
    one = two_processes / "one" / "dual-moco"
    same_start(one, tmp_path / "dual-moco")
    run_processes(4, small, tmp_path, "dual-moco")
    answers = results(tmp_path, "dual-moco", 4)
    assert all({**answer, "seconds": 0} == {**answers[0], "seconds": 0} for answer in answers)
    expected, found = (torch.tensor([loss for _, loss in losses(folder)]) for folder in (one, tmp_path / "dual-moco"))
    torch.testing.assert_close(expected, found, rtol=1e-4, atol=1e-5)
    queues = [load_file(tmp_path / f"queues-{rank}.safetensors") for rank in range(4)]
    assert all(torch.equal(queues[0][name], queue[name]) for queue in queues for name in queue)


def test_processes_that_read_other_pairs_are_refused(monkeypatch: pytest.MonkeyPatch, corpus: Path) -> None:
    """Nodes may have different files under one path."""
    split = load_pairs(DataConfig(train=[str(corpus)], heldout=50), langs=("en", "zh"), seed=0)
    run.check_same_pairs(split)
    monkeypatch.setattr(run, "first_numbers", lambda numbers: numbers + 1)
    with pytest.raises(RunError, match=r"process 0 on .* read other training pairs than the first process; expected"):
        run.check_same_pairs(split)


def test_a_node_that_does_not_share_the_run_folder_is_refused(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoders that the first process wrote are not there."""
    monkeypatch.setattr(init_encoders, "wait_for_all", lambda: shutil.rmtree(tmp_path / "run" / "initial"))
    with pytest.raises(
        RunError, match=r"initial: not found on .*; expected a run folder that all nodes share: set out"
    ):
        train(recipe)


def test_a_run_of_one_process_is_resumed_by_two(two_processes: Path) -> None:
    """Six steps by one process and six by two give the losses of twelve by one, relative 1e-4."""
    assert [result["step"] for result in results(two_processes, "grown")] == [12, 12]
    folders = (two_processes / "one" / "dual-moco", two_processes / "grown")
    one, grown = (torch.tensor([loss for _, loss in losses(folder)]) for folder in folders)
    assert torch.equal(one[:6], grown[:6])
    torch.testing.assert_close(one, grown, rtol=1e-4, atol=1e-5)


def test_the_first_process_scores_tasks_and_the_other_waits(two_processes: Path) -> None:
    """Before the first step and at each evaluation; results and state of the run are as without tasks."""
    first, second = results(two_processes, "scored")
    assert (first["step"], first["best"]) == (second["step"], second["best"]) == (12, first["best"])
    counts = [
        len(json.loads((two_processes / f"scored-models-{rank}.json").read_text(encoding="utf-8"))) for rank in (0, 1)
    ]
    assert counts == [2, 0]
    log = read_log(two_processes / "scored" / "log.jsonl")
    assert {record["step"]: record["tasks"] for record in log if "tasks" in record} == {
        0: {"task": 1.0},
        12: {"task": 2.0},
    }


def test_the_first_process_decides_when_to_stop(two_processes: Path) -> None:
    """Processes whose held-out scores differ stop at the same step, by the first one's scores."""
    first, second = results(two_processes, "patience")
    assert first["stop"] == second["stop"] == "no better for 2 evaluations"
    assert first["step"] == second["step"] == 3
    assert first["best"] == second["best"] == 1 / 50
    assert first["before"] == second["before"]
