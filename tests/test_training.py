"""Training as a user runs it: real processes, real signals, exact resumption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dualmoco.core.errors import ConfigError, DataError, RunError
from dualmoco.models.saved import load_encoders
from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.config import load_config
from dualmoco.training.log import read_log
from dualmoco.training.loop import TrainResult, train

STEPS = 40
LONG = [f"schedule.steps={STEPS}", "schedule.evaluate_every=20"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(recipe: Path, *overrides: str, resume: bool = False) -> TrainResult:
    """Trains in this process."""
    return train(load_config(recipe, list(overrides)), resume=resume)


def command(recipe: Path, *words: str) -> list[str]:
    """The command line that trains in another process."""
    return [sys.executable, "-m", "dualmoco", "train", str(recipe), *words]


def losses(run_folder: Path) -> list[tuple[int, float]]:
    """Step and loss of every step in a run's log."""
    return [(record["step"], record["loss"]) for record in read_log(run_folder / "log.jsonl") if "loss" in record]


def state(run_folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a run's last checkpoint."""
    last = list_checkpoints(run_folder / "checkpoints")[-1]
    return {
        f"{file.stem}.{name}": value for file in last.glob("*.safetensors") for name, value in load_file(file).items()
    }


def assert_same_state(first: Path, second: Path) -> None:
    """Both runs ended in the same place, bit for bit."""
    one, other = state(first), state(second)
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert different == []


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A run that never stopped, made by its own process."""
    folder = tmp_path_factory.mktemp("unbroken")
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(corpus=corpus), encoding="utf-8")
    subprocess.run(command(path, f"out={folder / 'run'}", *LONG), check=True, env=ENVIRONMENT, capture_output=True)
    return folder / "run"


RECIPE = """
out: run
src: {{lang: en, kind: bert, width: 32, layers: 2, heads: 2, vocab_size: 400}}
tgt: {{lang: zh, kind: bert, width: 32, layers: 2, heads: 2, vocab_size: 400, max_piece_length: 4}}
data: {{train: ["{corpus}"], heldout: 50, bucket: 4}}
contrast: {{queue_size: 100, temperature: 0.05, momentum: 0.9, learn_temperature: true}}
optimizer: {{lr: 1e-3, warmup_steps: 2, batch_size: 16}}
schedule: {{steps: 12, evaluate_every: 6, checkpoint_every: 4, log_every: 1}}
"""


def interrupted_copy(unbroken: Path, folder: Path) -> Path:
    """A run folder with the same start as the unbroken run, so that tokenizers and first weights are the same."""
    out = folder / "run"
    out.mkdir(parents=True)
    shutil.copytree(unbroken / "initial", out / "initial")
    shutil.copy(unbroken / "config.yaml", out / "config.yaml")
    return out


def wait_for_checkpoint(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits until a checkpoint after the second is there."""
    end = time.monotonic() + 120
    while len(list_checkpoints(out / "checkpoints")) < 2:
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_resume_equals_never_having_stopped(unbroken: Path, tmp_path: Path, number: signal.Signals) -> None:
    """A run that a signal ended goes on to the same losses, weights, queues, moments and generators, bit for bit."""
    out = interrupted_copy(unbroken, tmp_path)
    words = command(unbroken / "config.yaml", f"out={out}", "--resume")
    process = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    wait_for_checkpoint(out, process)
    process.send_signal(number)
    code = process.wait(timeout=60)
    stopped = list_checkpoints(out / "checkpoints")[-1]
    assert code == (-9 if number == signal.SIGKILL else 128 + number)
    assert stopped.name < f"step-{STEPS:08d}"
    subprocess.run(words, check=True, env=ENVIRONMENT, capture_output=True)
    assert losses(out) == losses(unbroken)
    assert [step for step, _ in losses(out)] == list(range(1, STEPS + 1))
    assert_same_state(out, unbroken)
    assert not list((out / "checkpoints").glob(".*"))


def test_same_seed_same_run_other_seed_other_run(recipe: Path, tmp_path: Path) -> None:
    """The seed decides everything."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(recipe, f"out={tmp_path / name}", f"seed={seed}")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


def test_training_improves_held_out_retrieval_and_keeps_the_best_model(recipe: Path, tmp_path: Path) -> None:
    """After some steps the held-out pairs find each other, and the saved model is the best one."""
    result = run(recipe, "schedule.steps=150", "schedule.evaluate_every=50", "src.dropout=0", "tgt.dropout=0")
    assert result.stop == "finished"
    assert result.best > result.before.score + 0.2
    record = json.loads((tmp_path / "run" / "model" / "dualmoco.json").read_text())
    assert record["step"] == result.best_step
    scores = {r["step"]: r["heldout"]["score"] for r in read_log(tmp_path / "run" / "log.jsonl") if "heldout" in r}
    assert result.best == max(scores[step] for step in scores if step)
    assert list(load_encoders(tmp_path / "run" / "model")) == ["en", "zh"]


def test_log_holds_queue_health(recipe: Path, tmp_path: Path) -> None:
    """Fill, age, drift, spread, masked share, momentum and temperature are in every line."""
    run(recipe, "contrast.momentum_start=0.5", "contrast.momentum_ramp=10")
    lines = [record for record in read_log(tmp_path / "run" / "log.jsonl") if "loss" in record]
    assert [line["queue_fill"] for line in lines[:7]] == [0.16, 0.32, 0.48, 0.64, 0.8, 0.96, 1.0]
    assert lines[-1]["queue_age"] == 100 / 16
    assert [round(line["momentum"], 6) for line in lines[:3]] == [0.5, 0.54, 0.58]
    assert lines[-1]["momentum"] == 0.9
    assert all(line[name] >= 0 for line in lines for name in ("drift", "spread", "masked", "pairs_per_second"))
    assert lines[-1]["temperature"] == pytest.approx(0.05)


def test_warmup_and_cosine_decay(recipe: Path, tmp_path: Path) -> None:
    """The rate rises over the warm-up and ends near 0."""
    run(recipe, "optimizer.warmup_steps=3")
    rates = [record["lr"] for record in read_log(tmp_path / "run" / "log.jsonl") if "lr" in record]
    assert rates[0] == pytest.approx(1e-3 / 4)
    assert max(rates) == pytest.approx(max(rates[3:5]))
    assert rates[-1] < 1e-4


def test_pieces_of_a_batch_equal_one_batch(recipe: Path, tmp_path: Path) -> None:
    """Gradient accumulation gives the losses of the whole batch, the batch's keys among the negatives."""
    still = ("src.dropout=0", "tgt.dropout=0", "contrast.batch_keys=true")
    run(recipe, f"out={tmp_path / 'one'}", *still)
    run(recipe, f"out={tmp_path / 'four'}", *still, "optimizer.accumulate=4")
    one, four = (torch.tensor([loss for _, loss in losses(tmp_path / name)]) for name in ("one", "four"))
    torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing_changes_no_loss(recipe: Path, tmp_path: Path) -> None:
    """Computing activations twice is only slower."""
    run(recipe, f"out={tmp_path / 'plain'}")
    run(recipe, f"out={tmp_path / 'twice'}", "optimizer.gradient_checkpointing=true")
    plain, twice = (torch.tensor([loss for _, loss in losses(tmp_path / name)]) for name in ("plain", "twice"))
    torch.testing.assert_close(plain, twice, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", ["in-batch", "simcse", "nli", "distill"])
def test_every_objective_lowers_its_loss(recipe: Path, tmp_path: Path, objective: str, request: Any) -> None:
    """Each comparison objective trains on the same encoders and data by one key."""
    overrides = [f"objective={objective}", "schedule.steps=60", "schedule.evaluate_every=60", "contrast.margin=0.1"]
    if objective == "nli":
        overrides += [f"nli.train=[{request.getfixturevalue('nli_file')}]", "nli.heldout=60", "nli.batch_size=16"]
    if objective == "distill":
        run(recipe, f"out={tmp_path / 'teacher'}", "schedule.steps=2", "schedule.evaluate_every=2")
        overrides += [f"teacher={one_language(tmp_path / 'teacher' / 'model', tmp_path / 'english')}"]
    run(recipe, *overrides)
    values = [loss for _, loss in losses(tmp_path / "run")]
    assert sum(values[-10:]) < 0.9 * sum(values[:10])


def test_momentum_of_zero_shares_the_parameters(recipe: Path, tmp_path: Path) -> None:
    """The paper's run without momentum: after each step the momentum encoders are the encoders."""
    run(recipe, "contrast.momentum=0", "schedule.steps=4")
    tensors = state(tmp_path / "run")
    slow = {name: value for name, value in tensors.items() if "_momentum_encoder." in name}
    assert slow
    assert all(
        torch.equal(value, tensors[name.replace("_momentum_encoder", "_encoder")]) for name, value in slow.items()
    )


def one_language(model: Path, folder: Path) -> Path:
    """The English route of a model as a sentence-transformers folder."""
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=list(load_encoders(model)["en"].layers.children()), device="cpu").save(
        str(folder), create_model_card=False
    )
    return folder


@pytest.fixture(scope="session")
def nli_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples whose label can be told from the hypothesis."""
    path = tmp_path_factory.mktemp("nli") / "nli.tsv"
    ends = {"entailment": "It is so.", "neutral": "Tom likes it.", "contradiction": "It is not true."}
    rows = [f"Mary has {n} books.\t{end}\t{label}\n" for n in range(100) for label, end in ends.items()]
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_nli_beside_the_contrast(recipe: Path, tmp_path: Path, nli_file: Path) -> None:
    """The loss is the contrast plus alpha times NLI, and held-out NLI accuracy is reported."""
    settings = [f"nli.train=[{nli_file}]", "nli.heldout=60", "nli.batch_size=32", "nli.weight=1.0"]
    run(recipe, *settings, "schedule.steps=60", "schedule.evaluate_every=60", "optimizer.lr=3e-3")
    log = read_log(tmp_path / "run" / "log.jsonl")
    lines = [record for record in log if "nli_loss" in record]
    assert lines[-1]["nli_loss"] < 0.8 * lines[0]["nli_loss"]
    assert log[-1]["heldout"]["nli"] > 0.6 > log[0]["heldout"]["nli"]


def test_shared_encoder_trains_both_languages(recipe: Path, tmp_path: Path) -> None:
    """One encoder may serve both languages; it is saved once and resumed as one."""
    run(recipe, "tgt.kind=shared", "schedule.steps=4")
    model = tmp_path / "run" / "model"
    assert len(list(model.rglob("model.safetensors"))) == 1
    names = state(tmp_path / "run")
    assert not [name for name in names if "tgt_encoder" in name or "tgt_momentum" in name]


def test_early_stopping(recipe: Path) -> None:
    """Training ends when evaluations bring no better score."""
    result = run(recipe, "optimizer.lr=1e-12", "schedule.steps=50", "schedule.evaluate_every=1", "schedule.patience=3")
    assert result.stop == "no better for 3 evaluations"
    assert result.step < 50


def test_minutes_as_the_limit(recipe: Path) -> None:
    """A time limit ends training and the rate has decayed by then."""
    result = run(recipe, "schedule.steps=0", "schedule.minutes=0.03", "schedule.evaluate_every=100000")
    assert result.stop == "finished"
    assert 1.5 < result.seconds < 10
    assert result.best_step == result.step


def test_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(recipe: Path, tmp_path: Path) -> None:
    """The message says at which step, and what is left."""
    with pytest.raises(
        RunError, match=r"step \d+: the (loss|gradient_norm) is (nan|inf).*last good checkpoint is .*step-"
    ):
        run(
            recipe,
            "optimizer.lr=1e30",
            "optimizer.warmup_steps=0",
            "schedule.checkpoint_every=1",
            "optimizer.clip=1e30",
        )
    assert all(torch.isfinite(value).all() for name, value in state(tmp_path / "run").items() if "queue" not in name)


def test_folder_of_another_run_is_refused(recipe: Path) -> None:
    """A second run needs another folder or --resume."""
    run(recipe)
    with pytest.raises(RunError, match="already holds a run; add --resume"):
        run(recipe)


def test_resuming_with_other_settings_is_refused(recipe: Path) -> None:
    """The message names the first setting that differs."""
    run(recipe)
    with pytest.raises(RunError, match=r"was started with contrast\.momentum=0\.9, now contrast\.momentum=0\.5"):
        run(recipe, "contrast.momentum=0.5", resume=True)


def test_resuming_with_other_data_is_refused(recipe: Path, tmp_path: Path, corpus: Path) -> None:
    """The pairs must be the ones of the first sitting."""
    mine = tmp_path / "mine.tsv"
    shutil.copy(corpus, mine)
    run(recipe, f"data.train=[{mine}]")
    mine.write_text(mine.read_text(encoding="utf-8") + "One more.\t再来一个。\n", encoding="utf-8")
    with pytest.raises(RunError, match="written with other settings or training data"):
        run(recipe, f"data.train=[{mine}]", resume=True)


def test_resuming_a_finished_run_changes_nothing(recipe: Path, tmp_path: Path) -> None:
    """There is nothing left to do."""
    run(recipe)
    before = state(tmp_path / "run")
    result = run(recipe, resume=True)
    assert result.step == 12
    assert all(torch.equal(before[name], value) for name, value in state(tmp_path / "run").items())


def test_damaged_checkpoint_is_reported(recipe: Path, tmp_path: Path) -> None:
    """A file that was cut is not taken for a checkpoint."""
    run(recipe)
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "model.safetensors"
    last.write_bytes(last.read_bytes()[:100])
    with pytest.raises(RunError, match="damaged"):
        run(recipe, resume=True)


def test_fewer_pairs_than_a_batch(recipe: Path) -> None:
    """Found before anything is built."""
    with pytest.raises(DataError, match=r"\d+ training rows; expected at least one batch of 4096"):
        run(recipe, "optimizer.batch_size=4096")


WORKER = """
import sys
from pathlib import Path
from safetensors.torch import save_file
from dualmoco.training import loop
from dualmoco.training.config import load_config

kept = []
run_loop = loop._Sitting._loop
def remember(self, *arguments):
    kept.append(self)
    return run_loop(self, *arguments)
loop._Sitting._loop = remember
loop.train(load_config(sys.argv[1], sys.argv[2:]))
sitting = kept[0]
contrast = sitting.objective.contrast
queues = {f"{side}.{name}": value.contiguous() for side in ("src", "tgt")
          for name, value in getattr(contrast, f"{side}_queue").named_buffers()}
save_file(queues, str(Path(sitting.config.out) / f"queues-{sitting.accelerator.process_index}.safetensors"))
"""


@pytest.mark.parametrize("objective", ["dual-moco", "in-batch"])
def test_two_processes_equal_one(recipe: Path, tmp_path: Path, objective: str) -> None:
    """Two gloo processes with half the batch each give the losses of one, relative 1e-4, and identical queues."""
    still = ["src.dropout=0", "tgt.dropout=0", "contrast.batch_keys=true", f"objective={objective}"]
    run(recipe, f"out={tmp_path / 'one'}", *still)
    two = tmp_path / "two"
    two.mkdir()
    shutil.copytree(tmp_path / "one" / "initial", two / "initial")
    shutil.copy(tmp_path / "one" / "config.yaml", two / "config.yaml")
    worker = tmp_path / "worker.py"
    text = WORKER if objective == "dual-moco" else WORKER.split("sitting = kept", maxsplit=1)[0]
    worker.write_text(text.replace("sys.argv[2:])", "sys.argv[2:]), resume=True"), encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*launch, str(worker), str(recipe), f"out={two}", *still], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    one_losses, two_losses = (torch.tensor([loss for _, loss in losses(folder)]) for folder in (tmp_path / "one", two))
    torch.testing.assert_close(one_losses, two_losses, rtol=1e-4, atol=1e-5)
    if objective == "dual-moco":
        first, second = (load_file(two / f"queues-{rank}.safetensors") for rank in (0, 1))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert int(first["src.pushed"]) == 12 * 16


def test_batch_that_cannot_be_cut_evenly_is_refused(recipe: Path) -> None:
    """Every pair must weigh the same, so pieces must be equal."""
    with pytest.raises(ConfigError, match=r"optimizer\.batch_size is 16; expected a multiple of 3"):
        run(recipe, "optimizer.accumulate=3")


def test_run_killed_before_its_first_step_starts_again(recipe: Path, tmp_path: Path) -> None:
    """Encoders without settings beside them are an unborn run: they are built anew."""
    run(recipe)
    folder = tmp_path / "run"
    for name in ("config.yaml", "log.jsonl", "checkpoints", "model"):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    assert run(recipe, "src.width=16", "tgt.width=16").step == 12
    assert load_encoders(folder / "model")["en"].dimension == 16
