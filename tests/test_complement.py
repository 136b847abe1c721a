"""Training beside a fixed model: the vectors that are compared, the loss on them, and runs."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import dualmoco
from dualmoco.core.errors import ConfigError, DataError, ModelError, RunError
from dualmoco.data.demo.grammar import generate_pairs
from dualmoco.data.pairs import load_pairs
from dualmoco.data.prepare import prepare
from dualmoco.data.recipe import Chinese, CleanConfig, CorpusConfig, PrepareConfig
from dualmoco.models.hybrid import join_vectors
from dualmoco.models.network import open_routes
from dualmoco.models.opening import open_model
from dualmoco.search.neighbors import nearest_both_ways
from dualmoco.training.complement import FIXED, Complement, FixedModel
from dualmoco.training.config import load_config
from dualmoco.training.order import order_pairs
from dualmoco.training.run import train
from runfolders import assert_same_state, losses, state

SENTENCES = [src for src, _ in generate_pairs(30, seed=3)] + [""]


def settings_for(kind: str, plain: Path, tiny_model: Path) -> list[str]:
    """Overrides that train beside the small static model: both sides, in-batch, or with a frozen source side."""
    beside = [f"complement.model={tiny_model}", "complement.weight=0.5", "src.dropout=0", "tgt.dropout=0"]
    frozen = ["src.kind=pretrained", f"src.name={plain}", "src.frozen=true", "tgt.projection=16"]
    return {
        "both": beside,
        "in-batch": [*beside, "objective=in-batch"],
        "frozen": [*beside, *frozen],
    }[kind]


@pytest.fixture
def fixed(tiny_model: Path) -> FixedModel:
    """The small static model with half the weight of an encoder beside it."""
    return FixedModel(open_model(tiny_model), 0.5)


def test_vectors_are_those_of_the_hybrid(recipe: Path, fixed: FixedModel, tmp_path: Path) -> None:
    """To rounding, also for a sentence of which the fixed model knows nothing; only the encoder's weights learn."""
    train(recipe, "schedule.steps=1")
    encoder = open_routes(tmp_path / "run" / "model")["en"].eval()
    wrapped = Complement(encoder, fixed, "en")
    features = wrapped.tokenize(SENTENCES)
    found = wrapped(features)
    own, other = encoder(encoder.tokenize(SENTENCES)).detach().numpy(), fixed.encode(SENTENCES, "en")
    expected = join_vectors([other, own], [0.5, 1.0])
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-6)
    assert wrapped.dimension == expected.shape[1] == other.shape[1] + encoder.dimension
    assert not other[-1].any() and np.linalg.norm(expected, axis=1) == pytest.approx(1)
    cosines = found @ found.T
    means = (0.5 * other @ other.T + own @ own.T) / 1.5
    np.testing.assert_allclose(cosines.detach().numpy()[:-1, :-1], means[:-1, :-1], atol=1e-6)
    found.sum().backward()
    assert set(wrapped.parameters()) == set(encoder.parameters()) and not features[FIXED].requires_grad
    assert copy.deepcopy(wrapped).fixed is fixed  # a momentum encoder has the same


@pytest.mark.parametrize("kind", ["both", "in-batch", "frozen"])
def test_a_run_is_scored_as_the_hybrid_it_makes(
    recipe: Path, plain: Path, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    """Held-out pairs are found as often as by the model that `combine` makes of both, and the model alone is plain."""
    settings = settings_for(kind, plain, tiny_model)
    result = train(recipe, *settings)
    dualmoco.combine([tiny_model, tmp_path / "run"], tmp_path / "hybrid", weights=[0.5, 1])
    config = load_config(recipe, settings)
    src, tgt = load_pairs(config.data, langs=("en", "zh"), seed=config.seed).heldout.texts()
    hybrid, alone = (open_model(tmp_path / name) for name in ("hybrid", "run"))
    sides = [hybrid.encode(src, lang="en"), hybrid.encode(tgt, lang="zh")]
    found = [float((near.ids[:, 0] == np.arange(len(src))).mean()) for near in nearest_both_ways(sides[0], sides[1], 1)]
    assert result.best == pytest.approx(sum(found) / 2)
    assert alone.encode(src[0], lang="en").shape[1] == (16 if kind == "frozen" else 32)
    assert sides[0].shape[1] == alone.encode(src[0], lang="en").shape[1] + fixed_dimension(tiny_model)


def fixed_dimension(model: Path) -> int:
    """Of its English vectors."""
    return open_model(model).backend("en").dimension


def test_the_loss_is_that_of_the_weighted_mean_of_cosines(
    recipe: Path, plain: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """The first step of a run with a frozen side, in Python numbers."""
    settings = [*settings_for("frozen", plain, tiny_model), "schedule.steps=1", "contrast.queue_size=10000"]
    train(recipe, *settings, "contrast.key_precision=fp32")
    config = load_config(recipe, settings)
    pairs = load_pairs(config.data, langs=("en", "zh"), seed=config.seed).train
    src, tgt = pairs.texts()
    models = (open_model(tiny_model), open_model(tmp_path / "run" / "initial"))
    cosines = [model.encode(tgt, lang="zh") @ model.encode(src, lang="en").T for model in models]
    scores = (0.5 * cosines[0] + cosines[1]) / 1.5 / config.contrast.temperature

    def loss(row: int) -> float:
        same = (pairs.src_ids == pairs.src_ids[row]) | (pairs.tgt_ids == pairs.tgt_ids[row])
        others = scores[row][~same].astype(float)
        return math.log(np.exp(others - scores[row, row]).sum() + 1)

    rows = order_pairs(pairs, 16, seed=config.seed, bucket=4, frozen="src").rows(0)
    assert losses(tmp_path / "run")[0][1] == pytest.approx(sum(loss(row) for row in rows.tolist()) / 16, rel=1e-3)


@pytest.mark.parametrize("kind", ["both", "frozen"])
def test_a_run_beside_a_model_resumes_bit_for_bit(
    recipe: Path, plain: Path, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    """From a checkpoint in its middle, with dropout."""
    settings = [word for word in settings_for(kind, plain, tiny_model) if "dropout" not in word]
    train(recipe, f"out={tmp_path / 'unbroken'}", *settings, "schedule.keep=5")
    shutil.copytree(tmp_path / "unbroken", tmp_path / "broken")
    for step in (8, 12):
        shutil.rmtree(tmp_path / "broken" / "checkpoints" / f"step-{step:08d}")
    train(recipe, f"out={tmp_path / 'broken'}", *settings, "schedule.keep=5", resume=True)
    assert_same_state(tmp_path / "unbroken", tmp_path / "broken")


@pytest.mark.parametrize(("kind", "error"), [("both", RunError), ("frozen", DataError)])
def test_a_fixed_model_that_changed_is_refused(
    recipe: Path, plain: Path, tiny_model: Path, tmp_path: Path, kind: str, error: type[Exception]
) -> None:
    """By its checksum, before a step is made."""
    shutil.copytree(tiny_model, tmp_path / "fixed")
    settings = [*settings_for(kind, plain, tmp_path / "fixed"), "schedule.steps=4"]
    train(recipe, *settings)
    weights = next(path for path in (tmp_path / "fixed").rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x00\x80\x3f")
    with pytest.raises(error, match=r"^[^\n]*(written with other settings or training data|holds vectors with model)"):
        train(recipe, *settings, resume=True)


def test_queues_hold_vectors_of_the_hybrid(recipe: Path, tiny_model: Path, plain: Path, tmp_path: Path) -> None:
    """Unit vectors, the fixed model's columns of the length that its weight gives them; its table is not saved."""
    train(recipe, *settings_for("both", plain, tiny_model))
    tensors = state(tmp_path / "run")
    queue, width = tensors["model.contrast.src_queue.vectors"], fixed_dimension(tiny_model)
    assert queue.shape == (100, width + 32)
    assert queue.norm(dim=1).numpy() == pytest.approx(1, abs=1e-5)
    assert queue[:, :width].norm(dim=1).numpy() == pytest.approx(math.sqrt(0.5 / 1.5), abs=1e-5)
    assert not any("fixed" in name for name in tensors)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["complement.weight=0"], "complement.weight is 0.0; expected above 0"),
        (["complement.weight=-1"], "complement.weight is -1.0; expected above 0"),
        (
            ["complement.model=x", "objective=simcse"],
            "complement.model is 'x'; expected empty when objective is simcse",
        ),
        (["complement.model=x", "tgt.kind=shared"], "complement.model is 'x'; expected empty when tgt.kind is shared"),
    ],
)
def test_wrong_settings_are_refused(recipe: Path, overrides: list[str], expected: str) -> None:
    """In one line."""
    with pytest.raises(ConfigError, match=rf"^{expected}[^\n]*$"):
        load_config(recipe, overrides)


def test_a_model_of_other_languages_is_refused(recipe: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Before anything is built."""
    with pytest.raises(
        ModelError, match=r"^complement.model [^\n]*: has the languages en, zh; expected en and de, those"
    ):
        train(recipe, f"complement.model={tiny_model}", "tgt.lang=de")
    assert not (tmp_path / "run" / "initial").exists()


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
    settings = [*(f"{side}.{key}" for side in ("src", "tgt") for key in ("kind=pretrained", f"name={base}")),
                "schedule.steps=1"]  # fmt: skip
    with pytest.raises(DataError, match=r"^[^\n]*base: converts Chinese to simplified characters, the pairs were not"):
        train(recipe, *settings)
    clean = CleanConfig(chinese=Chinese.simplified)
    named = [CorpusConfig(files=[str(corpus)])]
    prepare(PrepareConfig(out=str(tmp_path / "prepared"), corpora=named, heldout=40, workers=1, clean=clean))
    train(recipe, *settings, "data.train=[]", f"data.prepared={tmp_path / 'prepared'}")
    trained = open_model(tmp_path / "run")
    assert trained.conversion == open_model(base).conversion != open_model(tiny_model).conversion
    assert torch.equal(*(torch.from_numpy(trained.encode(text, lang="zh")) for text in ("書", "书")))
