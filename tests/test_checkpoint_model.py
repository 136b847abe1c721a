"""Checkpoints as models: the encoders and momentum encoders of every objective, and what a checkpoint leaves out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, ModelError, RunError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.load import open_model
from dualmoco.models.network import open_routes
from dualmoco.training.checkpoint import list_checkpoints
from dualmoco.training.run import train
from runfolders import assert_same_state

TO = "sentence-transformers"
SHORT = ["schedule.steps=2", "schedule.evaluate_every=2", "schedule.checkpoint_every=1"]
TEXTS = dict(zip(("en", "zh"), zip(*generate_pairs(12, seed=3), strict=True), strict=True))


@pytest.fixture
def nli_file(tmp_path: Path) -> Path:
    """Labelled examples."""
    path = tmp_path / "nli.tsv"
    labels = ("entailment", "neutral", "contradiction")
    rows = (
        f"{a}\t{b}\t{labels[i % 3]}\n" for i, (a, b) in enumerate(zip(TEXTS["en"] * 9, TEXTS["en"] * 9, strict=True))
    )
    path.write_text("".join(rows), encoding="utf-8")
    return path


def settings_of(case: str, plain: Path, nli_file: Path) -> list[str]:
    """The overrides of a recipe for an objective."""
    small = ["src.kind=pretrained", f"src.name={plain}", "tgt.width=16"]
    nli = [f"nli.train={nli_file}", "nli.heldout=20", "nli.batch_size=16"]
    return {
        "dual-moco": [],
        "shared": ["tgt.kind=shared"],
        "frozen": [*small, "src.frozen=true"],
        "frozen target": ["tgt.kind=pretrained", f"tgt.name={plain}", "src.width=16", "tgt.frozen=true"],
        "in-batch": ["objective=in-batch"],
        "simcse": ["objective=simcse"],
        "distill": ["objective=distill", *small, f"teacher={plain}"],
        "nli": ["objective=nli", *nli],
        "with nli": nli,
    }[case]


CASES = ["dual-moco", "shared", "frozen", "frozen target", "in-batch", "simcse", "distill", "nli", "with nli"]


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_the_model_of_its_step(
    recipe: Path, tmp_path: Path, plain: Path, nli_file: Path, case: str
) -> None:
    """The last checkpoint of a run gives the vectors of the model that was saved after the same step, bit for bit."""
    train(recipe, *SHORT, *settings_of(case, plain, nli_file))
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000002"
    done = dualmoco.export(str(checkpoint), None, TO, tmp_path / "out")
    assert done.lang == "en, zh" and done.lowest_cosine > 0.9999
    found, saved = open_model(tmp_path / "out"), open_model(tmp_path / "run")
    assert found.languages == saved.languages == ["en", "zh"]
    for lang, texts in TEXTS.items():
        assert np.array_equal(found.encode(list(texts), lang=lang), saved.encode(list(texts), lang=lang))
    before = open_model(tmp_path / "run" / "initial")
    learnt = {
        lang
        for lang, texts in TEXTS.items()
        if not np.array_equal(before.encode(list(texts), lang=lang), saved.encode(list(texts), lang=lang))
    }
    assert learnt == {"frozen": {"zh"}, "frozen target": {"en"}, "nli": {"en"}}.get(case, {"en", "zh"})


@pytest.mark.parametrize("trainable", ["all", "last:1"])
def test_momentum_encoders_follow_equation_1(recipe: Path, tmp_path: Path, trainable: str) -> None:
    """After the first step their weights are 0.9 times the first ones and 0.1 times those of the trained encoders."""
    train(recipe, *SHORT, f"src.trainable={trainable}")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    for name, options in (("trained", []), ("momentum", ["--momentum"])):
        words = ["export", str(checkpoint), "--to", TO, "--out", str(tmp_path / name), *options]
        assert main(words) == 0
    initial, trained, momentum = (
        open_routes(folder) for folder in (tmp_path / "run" / "initial", tmp_path / "trained", tmp_path / "momentum")
    )
    for lang in TEXTS:
        weights = [dict(routes[lang].named_parameters()) for routes in (initial, trained, momentum)]
        assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        for name, first in weights[0].items():
            expected = first.double() + 0.1 * (weights[1][name].double() - first.double())
            torch.testing.assert_close(weights[2][name].double(), expected, rtol=0, atol=1e-7)


def test_one_language_of_a_checkpoint_opens_in_sentence_transformers(recipe: Path, tmp_path: Path) -> None:
    """As the export of one language of a model does, with the name of the checkpoint in its record."""
    train(recipe, *SHORT)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000002"
    done = dualmoco.export(str(checkpoint), "zh", TO, tmp_path / "out")
    assert (done.lang, done.model) == ("zh", str(checkpoint))
    vectors = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(list(TEXTS["zh"]))
    expected = open_model(tmp_path / "run").encode(list(TEXTS["zh"]), lang="zh")
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert str(checkpoint) in (tmp_path / "out" / "dualmoco.json").read_text(encoding="utf-8")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    dualmoco.export(str(checkpoint), None, TO, tmp_path / "out")  # replaces an earlier export


def test_wrong_exports_of_checkpoints_are_refused(recipe: Path, tmp_path: Path) -> None:
    """Each in one line, and nothing is written."""
    train(recipe, *SHORT, "objective=in-batch")
    run, out = tmp_path / "run", tmp_path / "out"
    name = str(run / "checkpoints" / "step-00000002")
    with pytest.raises(ConfigError, match=r"step-00000002: has no momentum encoders; expected no --momentum"):
        dualmoco.export(name, None, TO, out, momentum=True)
    with pytest.raises(ConfigError, match=r"--to onnx without --lang; expected a language"):
        dualmoco.export(name, None, "onnx", out)
    with pytest.raises(ModelError, match=r"has no language 'de'; expected one of en, zh"):
        dualmoco.export(name, "de", TO, out)
    with pytest.raises(ConfigError, match=r"run: no language; expected --lang LANG"):
        dualmoco.export(str(run), None, TO, out)
    with pytest.raises(ConfigError, match=r"run: not a checkpoint; expected a checkpoint for --momentum, such as"):
        dualmoco.export(str(run), "en", TO, out, momentum=True)
    with pytest.raises(ModelError, match=r"step-00000002: a checkpoint; expected a model: .*dualmoco export"):
        dualmoco.load(name)
    shutil.copytree(name, tmp_path / "moved" / "checkpoints" / "step-00000002")
    with pytest.raises(RunError, match=r"moved is not a run folder; expected a checkpoint where training wrote it"):
        dualmoco.export(str(tmp_path / "moved" / "checkpoints" / "step-00000002"), None, TO, out)
    (run / "checkpoints" / "step-00000001" / "state.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RunError, match=r"step-00000001: damaged, or of another version .*'encoders'"):
        dualmoco.export(str(run / "checkpoints" / "step-00000001"), None, TO, out)
    assert not out.exists()


def test_checkpoints_hold_no_teacher(recipe: Path, tmp_path: Path, plain: Path) -> None:
    """A resumed run opens it by its name and continues bit for bit; another model in its place is refused."""
    teacher = tmp_path / "teacher"
    shutil.copytree(plain, teacher)
    settings = ["objective=distill", f"teacher={teacher}", "src.projection=16", "tgt.projection=16", "schedule.steps=8"]
    for name in ("whole", "parts"):
        train(recipe, f"out={tmp_path / name}", *settings)
    last = list_checkpoints(tmp_path / "parts" / "checkpoints")[-1]
    assert last.name == "step-00000008" and not [
        name for name in load_file(last / "model.safetensors") if "teacher" in name
    ]
    shutil.rmtree(last)
    train(recipe, f"out={tmp_path / 'parts'}", *settings, resume=True)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    (teacher / "config.json").write_text((teacher / "config.json").read_text().replace("}", " }", 1))
    with pytest.raises(RunError, match="other settings, training data or teacher"):
        train(recipe, f"out={tmp_path / 'parts'}", *settings, resume=True)
    shutil.rmtree(teacher)
    with pytest.raises(ModelError, match="teacher: no such folder"):
        train(recipe, f"out={tmp_path / 'parts'}", *settings, resume=True)
