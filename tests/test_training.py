"""Training in this process: what a recipe's settings do, and what a run leaves behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opencc import OpenCC

from dualmoco.core.errors import ConfigError, DataError, RunError
from dualmoco.data.config import CleanConfig, CorpusConfig, PrepareConfig
from dualmoco.data.pairs import load_pairs
from dualmoco.data.prepare import prepare
from dualmoco.models.backends.pytorch import encode_by_itself
from dualmoco.models.load import open_model
from dualmoco.models.network import open_routes
from dualmoco.text.languages import Chinese
from dualmoco.training import trainer as trainer_module
from dualmoco.training.recipe import load_config
from dualmoco.training.run import build_trainer, start_accelerator, train
from dualmoco.training.run_folder import read_log
from dualmoco.training.trainer import Trainer
from runfolders import losses, state


def test_same_seed_same_run_other_seed_other_run(recipe: Path, tmp_path: Path) -> None:
    """The seed decides everything."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(recipe, f"out={tmp_path / name}", f"seed={seed}")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


def test_training_improves_held_out_retrieval_and_keeps_the_best_model(recipe: Path, tmp_path: Path) -> None:
    """After some steps the held-out pairs find each other, and the saved model is the best one."""
    result = train(
        recipe, "schedule.steps=90", "schedule.evaluate_every=30", "optimizer.lr=2e-3", "src.dropout=0", "tgt.dropout=0"
    )
    assert result.stop == "finished"
    assert result.best is not None and result.best > result.before.score + 0.2
    record = json.loads((tmp_path / "run" / "model" / "dualmoco.json").read_text())
    assert record["step"] == result.best_step
    scores = {r["step"]: r["heldout"]["score"] for r in read_log(tmp_path / "run" / "log.jsonl") if "heldout" in r}
    assert result.best == max(scores[step] for step in scores if step)
    assert list(open_routes(tmp_path / "run" / "model")) == ["en", "zh"]


def test_log_holds_queue_health(recipe: Path, tmp_path: Path) -> None:
    """Fill, age, drift, spread, masked share, momentum and temperature are in every line."""
    train(recipe)
    lines = [record for record in read_log(tmp_path / "run" / "log.jsonl") if "loss" in record]
    assert [line["queue_fill"] for line in lines[:7]] == [0.16, 0.32, 0.48, 0.64, 0.8, 0.96, 1.0]
    assert lines[-1]["queue_age"] == 100 / 16
    assert {line["momentum"] for line in lines} == {0.9}
    assert all(line[name] >= 0 for line in lines for name in ("drift", "spread", "masked", "pairs_per_second"))
    assert lines[-1]["temperature"] == pytest.approx(0.05)


def test_warmup_and_cosine_decay(recipe: Path, tmp_path: Path) -> None:
    """The rate rises over the warm-up and ends near 0."""
    train(recipe, "optimizer.warmup_steps=3")
    rates = [record["lr"] for record in read_log(tmp_path / "run" / "log.jsonl") if "lr" in record]
    assert rates[0] == pytest.approx(1e-3 / 4)
    assert max(rates) == pytest.approx(max(rates[3:5]))
    assert rates[-1] < 1e-4


def test_micro_batches_equal_one_batch(recipe: Path, tmp_path: Path) -> None:
    """Gradient accumulation gives the losses of the whole batch, the batch's keys among the negatives."""
    still = ("src.dropout=0", "tgt.dropout=0", "contrast.batch_keys=true")
    train(recipe, f"out={tmp_path / 'one'}", *still)
    train(recipe, f"out={tmp_path / 'four'}", *still, "optimizer.accumulate=4")
    one, four = (torch.tensor([loss for _, loss in losses(tmp_path / name)]) for name in ("one", "four"))
    torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-5)


def test_micro_batches_do_not_divide_in_batch_negatives(recipe: Path, tmp_path: Path) -> None:
    """The losses of a run do not depend on `accumulate`, also if the batch itself has the negatives."""
    still = ("src.dropout=0", "tgt.dropout=0", "objective=in-batch")
    train(recipe, f"out={tmp_path / 'one'}", *still)
    train(recipe, f"out={tmp_path / 'four'}", *still, "optimizer.accumulate=4")
    one, four = (torch.tensor([loss for _, loss in losses(tmp_path / name)]) for name in ("one", "four"))
    torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing_changes_no_loss(recipe: Path, tmp_path: Path) -> None:
    """Computing activations twice is only slower."""
    train(recipe, f"out={tmp_path / 'plain'}")
    train(recipe, f"out={tmp_path / 'twice'}", "optimizer.gradient_checkpointing=true")
    plain, twice = (torch.tensor([loss for _, loss in losses(tmp_path / name)]) for name in ("plain", "twice"))
    torch.testing.assert_close(plain, twice, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", ["in-batch", "simcse", "nli", "distill"])
def test_every_objective_lowers_its_loss(recipe: Path, tmp_path: Path, objective: str, request: Any) -> None:
    """Each comparison objective trains on the same encoders and data by one key."""
    overrides = [f"objective={objective}", "schedule.steps=60", "schedule.evaluate_every=60", "contrast.margin=0.1"]
    if objective == "nli":
        overrides += [f"nli.train=[{request.getfixturevalue('nli_file')}]", "nli.heldout=60", "nli.batch_size=16"]
    if objective == "distill":
        train(recipe, f"out={tmp_path / 'teacher'}", "schedule.steps=2", "schedule.evaluate_every=2")
        overrides += [f"teacher={one_language(tmp_path / 'teacher' / 'model', tmp_path / 'english')}"]
    train(recipe, *overrides)
    values = [loss for _, loss in losses(tmp_path / "run")]
    assert sum(values[-10:]) < 0.9 * sum(values[:10])


def test_momentum_of_zero_shares_the_parameters(recipe: Path, tmp_path: Path) -> None:
    """The paper's run without momentum: after each step the momentum encoders are the encoders."""
    train(recipe, "contrast.momentum=0", "schedule.steps=4")
    tensors = state(tmp_path / "run")
    slow = {name: value for name, value in tensors.items() if "_momentum_encoder." in name}
    assert slow
    assert all(
        torch.equal(value, tensors[name.replace("_momentum_encoder", "_encoder")]) for name, value in slow.items()
    )


def one_language(model: Path, folder: Path) -> Path:
    """The English route of a model as a sentence-transformers folder."""
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=list(open_routes(model)["en"].layers.children()), device="cpu").save(
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
    train(recipe, *settings, "schedule.steps=60", "schedule.evaluate_every=60", "optimizer.lr=3e-3")
    log = read_log(tmp_path / "run" / "log.jsonl")
    lines = [record for record in log if "nli_loss" in record]
    assert lines[-1]["nli_loss"] < 0.8 * lines[0]["nli_loss"]
    assert log[-1]["heldout"]["nli"] > 0.6 > log[0]["heldout"]["nli"]


def test_shared_encoder_trains_both_languages(recipe: Path, tmp_path: Path) -> None:
    """One encoder may serve both languages; it is saved once and resumed as one."""
    train(recipe, "tgt.kind=shared", "schedule.steps=4")
    model = tmp_path / "run" / "model"
    assert len(list(model.rglob("model.safetensors"))) == 1
    names = state(tmp_path / "run")
    assert not [name for name in names if "tgt_encoder" in name or "tgt_momentum" in name]


def test_nli_alone_trains_a_shared_encoder(recipe: Path, tmp_path: Path, nli_file: Path) -> None:
    """One encoder for both languages learns from NLI, not the classifier alone."""
    settings = (f"nli.train=[{nli_file}]", "nli.heldout=60", "nli.batch_size=16", "objective=nli")
    train(recipe, "tgt.kind=shared", *settings, "schedule.steps=2", "schedule.evaluate_every=2")
    first, last = (open_routes(tmp_path / "run" / name)["en"].state_dict() for name in ("initial", "model"))
    changed = [name for name in first if not torch.equal(first[name], last[name])]
    assert any("word_embeddings" in name for name in changed) and any("attention" in name for name in changed)


def test_training_further_starts_from_the_saved_model(recipe: Path, tmp_path: Path) -> None:
    """A model with projections is trained further from the very vectors it gave; no tokenizer is trained."""
    first = train(recipe, f"out={tmp_path / 'first'}", "src.projection=8", "tgt.projection=8", "schedule.steps=6")
    name = tmp_path / "first" / "model"
    further = [f"{side}.{key}" for side in ("src", "tgt") for key in ("kind=pretrained", f"name={name}")]
    second = train(recipe, *further, "schedule.steps=1")
    assert second.before.score == first.best
    given, taken = (open_routes(folder)["zh"] for folder in (name, tmp_path / "run" / "initial"))
    sentences = ["我喜欢看书。", "汤姆在家。"]
    assert np.array_equal(encode_by_itself(given, sentences, 2), encode_by_itself(taken, sentences, 2))
    assert taken.dimension == 8


@pytest.mark.parametrize("pretrained", [False, True])
def test_tokenizers_are_mentioned_where_they_are_trained(
    recipe: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture, pretrained: bool
) -> None:
    """A run of saved encoders says nothing of tokenizers."""
    further = [f"{side}.{key}" for side in ("src", "tgt") for key in ("kind=pretrained", f"name={tiny_model}")]
    with caplog.at_level("INFO", logger="dualmoco"):
        train(recipe, "schedule.steps=1", *(further if pretrained else []))
    said = [message for message in caplog.messages if "tokenizer" in message]
    assert said == ([] if pretrained else ["training tokenizers on 550 pairs"])


@pytest.mark.parametrize("script", ["keep", "simplified", "traditional"])
def test_converted_text_is_reported_and_recorded(
    recipe: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    """What `prepare` did to Chinese is said in one line and kept in the model's provenance."""
    prepared = tmp_path / "prepared"
    settings = PrepareConfig(out=str(prepared), corpora=[CorpusConfig(files=[str(corpus)])], heldout=40, workers=1)
    prepare(replace(settings, clean=CleanConfig(chinese=Chinese(script))))
    train(recipe, "data.train=[]", f"data.prepared={prepared}", "schedule.steps=1")
    record = json.loads((tmp_path / "run" / "model" / "dualmoco.json").read_text(encoding="utf-8"))
    said = [message for message in caplog.messages if "characters" in message]
    if script == "keep":
        card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
        assert said == [] and record["text"] == {} and "OpenCC" not in card
        return
    assert said == [
        f"Chinese was converted to {script} characters; the model converts what it encodes likewise, but in plain "
        "sentence-transformers it cannot"
    ]
    assert record["text"] == {"chinese": script}
    config = {"simplified": "t2s", "traditional": "s2t"}[script]
    assert f'OpenCC("{config}")' in (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    converted = OpenCC(config).convert("書書书书")
    model = open_model(tmp_path / "run")
    np.testing.assert_array_equal(model.encode("書書书书", lang="zh"), model.encode(converted, lang="zh"))


def converting(model: Path, folder: Path) -> Path:
    """A copy of a model that converts Chinese to simplified characters."""
    shutil.copytree(model, folder)
    record = json.loads((folder / "dualmoco.json").read_text(encoding="utf-8"))
    (folder / "dualmoco.json").write_text(json.dumps(record | {"text": {"chinese": "simplified"}}), encoding="utf-8")
    return folder


def test_conversion_of_a_base_is_handed_on_or_refused(
    recipe: Path, tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    """A model trained further converts as the one it came from; pairs that were not converted so are refused."""
    base = converting(tiny_model, tmp_path / "base")
    settings = [
        *(f"{side}.{key}" for side in ("src", "tgt") for key in ("kind=pretrained", f"name={base}")),
        "schedule.steps=1",
    ]
    with pytest.raises(DataError, match=r"^[^\n]*base: converts Chinese to simplified characters, the pairs were not"):
        train(recipe, *settings)
    clean = CleanConfig(chinese=Chinese.simplified)
    named = [CorpusConfig(files=[str(corpus)])]
    prepare(PrepareConfig(out=str(tmp_path / "prepared"), corpora=named, heldout=40, workers=1, clean=clean))
    train(recipe, *settings, "data.train=[]", f"data.prepared={tmp_path / 'prepared'}")
    trained = open_model(tmp_path / "run")
    assert trained.conversion == open_model(base).conversion != open_model(tiny_model).conversion
    assert torch.equal(*(torch.from_numpy(trained.encode(text, lang="zh")) for text in ("書", "书")))


def test_settings_may_be_given_as_such(recipe: Path) -> None:
    """A recipe that was read serves as well as its file, but takes no overrides and is checked again."""
    config = load_config(recipe, ["schedule.steps=1"])
    with pytest.raises(ConfigError, match=r"'seed=1': overrides are for recipe files; expected none"):
        train(config, "seed=1")
    with pytest.raises(ConfigError, match="seed is -1; expected at least 0"):
        train(replace(config, seed=-1))
    assert train(config).step == 1


def test_minutes_as_the_limit(recipe: Path) -> None:
    """A time limit ends training and the rate has decayed by then."""
    result = train(recipe, "schedule.steps=0", "schedule.minutes=0.03", "schedule.evaluate_every=100000")
    assert result.stop == "finished"
    assert 1.5 < result.seconds < 100  # on an idle machine, 2
    assert result.best_step == result.step


def test_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(recipe: Path, tmp_path: Path) -> None:
    """The message says at which step, and what is left."""
    with pytest.raises(
        RunError, match=r"step \d+: the (loss|gradient_norm) is (nan|inf).*last good checkpoint is .*step-"
    ):
        train(
            recipe,
            "optimizer.lr=1e30",
            "optimizer.warmup_steps=0",
            "schedule.checkpoint_every=1",
            "optimizer.clip=1e30",
        )
    assert all(torch.isfinite(value).all() for name, value in state(tmp_path / "run").items() if "queue" not in name)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="fp16 is for GPUs")
def test_fp16_without_a_gpu_is_refused(recipe: Path, tmp_path: Path) -> None:
    """It would be ignored, and with it the check of gradients."""
    with pytest.raises(ConfigError) as caught:
        train(recipe, "optimizer.precision=fp16")
    assert str(caught.value) == "optimizer.precision is fp16, but PyTorch finds no GPU here; expected fp32 on a CPU"
    assert not (tmp_path / "run").exists()


def scaled_trainer(recipe: Path, *settings: str, scale: float) -> Trainer:
    """A trainer with the loss scale of fp16, which hardly shrinks when gradients overflow."""
    config = load_config(recipe, list(settings))
    accelerator = start_accelerator(config)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=0.999)
    split = load_pairs(config.data, langs=("en", "zh"), seed=config.seed)
    return build_trainer(config, split, accelerator)


def test_a_run_that_skips_every_step_stops(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that always overflow leave the weights alone, and after some steps the run ends with one line."""
    monkeypatch.setattr(trainer_module, "MOST_SKIPPED", 5)
    trainer = scaled_trainer(recipe, "optimizer.lr=0.1", "contrast.batch_keys=true", scale=3e38)
    before = {name: weight.clone() for name, weight in trainer.encoders["en"].state_dict().items()}
    with pytest.raises(RunError) as caught:
        trainer.run(resume=False)
    assert str(caught.value) == (
        "step 5: the gradients of the last 5 steps overflowed in fp16, so these steps were skipped; the last good "
        f"checkpoint is {tmp_path / 'run' / 'checkpoints' / 'step-00000004'}; set optimizer.precision=bf16 or fp32 "
        "and start another run"
    )
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.encoders["en"].state_dict().items())
    lines = [record for record in read_log(tmp_path / "run" / "log.jsonl") if "loss" in record]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["gradient_norm"] is None and line["loss"] > 0 for line in lines)
    assert [line["loss_scale"] for line in lines] == pytest.approx([3e38 * 0.999**step for step in range(1, 5)])


def test_a_run_with_a_loss_scale_learns(recipe: Path, tmp_path: Path) -> None:
    """A scale that fits is in the log and changes no loss; without one there is no such number."""
    still = ["src.dropout=0", "tgt.dropout=0", "optimizer.clip=1e9"]
    scaled_trainer(recipe, *still, scale=1024.0).run(resume=False)
    train(recipe, f"out={tmp_path / 'plain'}", *still)
    scaled, plain = (
        [record for record in read_log(tmp_path / name / "log.jsonl") if "loss" in record] for name in ("run", "plain")
    )
    assert {line["loss_scale"] for line in scaled} == {1024.0} and "loss_scale" not in plain[0]
    assert [line["loss"] for line in scaled] == pytest.approx([line["loss"] for line in plain], rel=1e-4)


def test_fewer_pairs_than_a_batch(recipe: Path) -> None:
    """Found before anything is built."""
    with pytest.raises(DataError, match=r"\d+ training rows; expected at least one batch of 4096"):
        train(recipe, "optimizer.batch_size=4096")


def test_batch_that_cannot_be_cut_evenly_is_refused(recipe: Path) -> None:
    """Every pair must weigh the same, so micro-batches must be equal."""
    with pytest.raises(ConfigError, match=r"optimizer\.batch_size is 16; expected a multiple of 3"):
        train(recipe, "optimizer.accumulate=3")
