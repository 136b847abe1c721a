"""Which weights learn, and projections in closed form: on real encoders, against other ways to the same result."""

from __future__ import annotations

import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

from dualmoco.core.errors import DataError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.pytorch import encode_by_itself
from dualmoco.models.build import build_encoder, build_encoders, ridge_regression, set_trainable, start_projection
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import Encoder, open_routes, save_encoders
from dualmoco.training.init_encoders import freeze_unused, weight_groups
from dualmoco.training.objectives import DualMoco
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train

TEXTS = [src for src, _ in generate_pairs(200, seed=2)]
BERT = EncoderConfig(lang="en", kind=EncoderKind.bert, width=16, layers=3, heads=2, vocab_size=300, projection=8)
STATIC = EncoderConfig(lang="en", kind=EncoderKind.static, width=16, vocab_size=300, projection=8)


def learning(config: EncoderConfig) -> set[str]:
    """Names of the weights that learn."""
    encoder = build_encoder(config, TEXTS)
    set_trainable(encoder, config)
    return {name for name, weight in encoder.named_parameters() if weight.requires_grad}


def test_all_learn_unless_told_otherwise() -> None:
    """The default leaves every weight to training, a frozen encoder none."""
    encoder = build_encoder(BERT, TEXTS)
    assert learning(BERT) == {name for name, _ in encoder.named_parameters()}
    assert learning(replace(BERT, frozen=True)) == set()
    assert not encoder.is_frozen


@pytest.mark.parametrize("config", [BERT, STATIC], ids=["bert", "static"])
def test_a_head_is_what_comes_after_pooling(config: EncoderConfig) -> None:
    """The projection alone learns."""
    assert [name.partition(".linear")[2] for name in learning(replace(config, trainable="head"))] == [".weight"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_last_layers_learn_with_the_head(count: int) -> None:
    """The layers of the highest numbers, whole, and the projection; no embedding and no unused pooler."""
    names = learning(replace(BERT, trainable=f"last:{count}"))
    numbers = {int(found[1]) for name in names if (found := re.search(r"encoder\.layer\.(\d+)\.", name))}
    assert numbers == set(range(3 - count, 3))
    others = {name for name in names if "encoder.layer." not in name}
    assert len(others) == 1 and "linear.weight" in others.pop()
    per_layer = [sum(f"encoder.layer.{number}." in name for name in names) for number in numbers]
    assert len(set(per_layer)) == 1 and per_layer[0] == 16


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (replace(BERT, trainable="last:4"), "trainable last:4 of a model with 3 transformer layers; expected at"),
        (replace(STATIC, trainable="last:1"), "trainable last:1 of a model with 0 transformer layers; expected all"),
        (replace(BERT, trainable="head", projection=0), "trainable head of a model without weights after pooling"),
        (replace(STATIC, trainable="head", projection=0), "trainable head of a model without weights after pooling"),
    ],
)
def test_what_cannot_learn_is_refused(config: EncoderConfig, expected: str) -> None:
    """More layers than there are, layers of a table, and a head without weights."""
    with pytest.raises(ModelError) as caught:
        learning(config)
    assert str(caught.value).startswith(f"en: {expected}") and "\n" not in str(caught.value)


@pytest.mark.parametrize("objective", ["dual-moco", "in-batch", "simcse", "distill", "nli"])
@pytest.mark.parametrize("trainable", ["head", "last:1"])
def test_every_objective_moves_only_what_may_learn(
    recipe: Path, tmp_path: Path, plain: Path, objective: str, trainable: str
) -> None:
    """After some steps the other weights of that side are bit for bit those it started with, and these are not."""
    side, lang = ("src", "en") if objective == "nli" else ("tgt", "zh")
    settings = [f"objective={objective}", f"{side}.trainable={trainable}", "src.projection=16", "tgt.projection=16"]
    settings += [f"teacher={plain}"] if objective == "distill" else []
    if objective == "nli":
        path = tmp_path / "nli.tsv"
        labels = ("entailment", "neutral", "contradiction")
        path.write_text("".join(f"第{i}句。\t好。\t{labels[i % 3]}\n" for i in range(90)), encoding="utf-8")
        settings += [f"nli.train=[{path}]", "nli.heldout=30", "nli.batch_size=16"]
    train(recipe, *settings, "schedule.steps=3", "schedule.evaluate_every=3", "optimizer.gradient_checkpointing=true")
    first, last = (open_routes(tmp_path / "run" / name)[lang].state_dict() for name in ("initial", "model"))
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    assert any("linear.weight" in name for name in moved)
    layers = {name for name in moved if "encoder.layer.1." in name}
    assert bool(layers) is (trainable == "last:1")
    assert all("linear.weight" in name for name in moved - layers)


def test_ridge_regression_is_least_squares_with_a_penalty() -> None:
    """The same as plain least squares with one more row for each dimension, found another way."""
    generator = np.random.default_rng(0)
    inputs, goals = (generator.standard_normal((50, width)).astype(np.float32) for width in (7, 4))
    penalty = 0.3 * float((inputs.astype(np.float64) ** 2).sum()) / 7
    rows = np.concatenate([inputs, np.sqrt(penalty) * np.eye(7)])
    expected = np.linalg.lstsq(rows, np.concatenate([goals, np.zeros((7, 4))]), rcond=None)[0].T
    assert np.allclose(ridge_regression(inputs, goals, 0.3), expected, atol=1e-9)


@pytest.mark.parametrize("config", [BERT, STATIC], ids=["bert", "static"])
def test_a_projection_finds_the_map_that_made_the_goals(config: EncoderConfig) -> None:
    """Goals that are a linear map of the pooled vectors are met after it, and were not before."""
    torch.manual_seed(0)
    encoder = build_encoder(config, TEXTS)
    other = build_encoder(config, TEXTS)
    other.load_state_dict(encoder.state_dict())
    projection = other.layers[-2]
    assert isinstance(projection, Dense)
    nn.init.normal_(projection.linear.weight)
    goals = encode_by_itself(other, TEXTS)
    before = (encode_by_itself(encoder, TEXTS) * goals).sum(axis=1)
    start_projection(encoder, TEXTS, goals, lang="en")
    after = (encode_by_itself(encoder, TEXTS) * goals).sum(axis=1)
    assert after.mean() > 0.9 > 0.5 > before.mean()


def test_ridge_with_too_few_pairs_is_refused(recipe: Path) -> None:
    """One pair fewer than the pooled vectors have dimensions, or a corpus that is too small; as many are enough."""
    settings = ("tgt.projection=32", "tgt.projection_init=ridge", "schedule.steps=1")
    expected = r"^zh: projection_init ridge from 31 pairs; expected at least 32, one for each dimension [^\n]*$"
    with pytest.raises(DataError, match=expected):
        train(recipe, *settings, "tgt.ridge_pairs=31")
    with pytest.raises(DataError, match=r"^zh: projection_init ridge from 20 pairs; expected at least 32"):
        train(recipe, *settings, "data.max_pairs=20")
    assert train(recipe, *settings, "tgt.ridge_pairs=32").step == 1


def test_ridge_of_a_layer_that_is_more_than_a_matrix_is_refused(plain: Path, tmp_path: Path) -> None:
    """A saved layer with an activation is never overwritten."""
    dense = Dense(16, 8, activation_function=nn.Tanh())
    model = SentenceTransformer(modules=[Transformer(str(plain)), Pooling(16), dense], device="cpu")
    model.save(str(tmp_path / "model"), create_model_card=False)
    encoder = build_encoder(EncoderConfig(lang="en", name=str(tmp_path / "model"), projection=8), [])
    with pytest.raises(
        ModelError, match=r"^en: projection_init ridge of a model whose last layer, a Dense, is more than"
    ):
        start_projection(encoder, TEXTS, np.ones((200, 8), dtype=np.float32), lang="en")


def turned_model(model: Path, folder: Path) -> Path:
    """A model whose Chinese vectors are turned by a random rotation, so that English ones are nowhere near."""
    encoders = open_routes(model)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((128, 128)))[0]
    table = encoders["zh"].layers[0].embedding.weight  # type: ignore[union-attr]
    with torch.no_grad():
        table.copy_(table @ torch.from_numpy(turn).float())  # type: ignore[operator]
    save_encoders(encoders, folder)
    return folder


def test_a_ridge_start_finds_translations_before_training(recipe: Path, tmp_path: Path, tiny_model: Path) -> None:
    """A side that was turned away from the other is turned back by regression alone."""
    sides = [f"{side}.{key}" for side in ("src", "tgt") for key in ("kind=pretrained", f"name={tiny_model}")]
    settings = [*sides, "src.frozen=true", "tgt.projection=128", "schedule.steps=1", "data.train=[grammar:3000]"]
    scores = {}
    turned = turned_model(tiny_model, tmp_path / "turned")
    for init in ("random", "ridge"):
        result = train(recipe, *settings, f"tgt.name={turned}", f"out={tmp_path / init}", f"tgt.projection_init={init}")
        scores[init] = result.before.score
    straight = train(recipe, *settings, f"out={tmp_path / 'straight'}", "tgt.projection=0").before.score
    assert scores["random"] < 0.3 * straight
    assert scores["ridge"] > 0.8 * straight > 0.1


def test_dimensions_beside_a_frozen_side_name_the_way_out(plain: Path) -> None:
    """The side that learns is the one to project."""
    english = EncoderConfig(lang="en", name=str(plain), frozen=True)
    chinese = EncoderConfig(lang="zh", kind=EncoderKind.static, width=24, vocab_size=300)
    texts = {"en": TEXTS, "zh": TEXTS}
    with pytest.raises(ModelError, match=r"expected the same: set tgt\.projection=16$"):
        build_encoders(english, chinese, texts)
    with pytest.raises(ModelError, match=r"expected the same: set src\.projection=16$"):
        build_encoders(replace(chinese, lang="en"), replace(english, lang="zh"), texts)


def test_an_encoder_without_weights_that_learn_is_frozen() -> None:
    """One weight that learns is enough for it not to be."""
    encoder = Encoder([nn.Linear(2, 2)]).requires_grad_(False)
    assert encoder.is_frozen
    next(encoder.parameters()).requires_grad_(True)
    assert not encoder.is_frozen


def test_a_scaled_rate_moves_a_side_that_much_less(recipe: Path, tmp_path: Path) -> None:
    """After one step of Adam, whose size is the rate, English has moved a tenth as far; and a resumed run agrees."""
    settings = ["schedule.evaluate_every=1", "optimizer.warmup_steps=0", "optimizer.weight_decay=0"]
    moved = {}
    for scale in (1.0, 0.1):
        out = tmp_path / f"run-{scale}"
        train(recipe, f"out={out}", f"src.lr_scale={scale}", "schedule.steps=1", *settings)
        before, after = open_routes(out / "initial"), open_routes(out / "model")
        for lang in before:
            both = zip(before[lang].parameters(), after[lang].parameters(), strict=True)
            moved[lang, scale] = max((a - b).detach().abs().max().item() for a, b in both)
    assert moved["en", 0.1] == pytest.approx(0.1 * moved["en", 1.0], rel=0.01)
    assert moved["zh", 0.1] == pytest.approx(moved["zh", 1.0], rel=0.01)


def test_scaled_rates_resume_bit_for_bit(recipe: Path, tmp_path: Path) -> None:
    """The optimiser's state finds its weights again although they are in two groups."""
    scaled = ["src.lr_scale=0.1", "schedule.evaluate_every=8", "schedule.steps=8"]
    train(recipe, f"out={tmp_path / 'whole'}", *scaled)
    train(recipe, f"out={tmp_path / 'parts'}", *scaled)
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000008")
    train(recipe, f"out={tmp_path / 'parts'}", *scaled, resume=True)
    whole, parts = (open_routes(tmp_path / name / "model") for name in ("whole", "parts"))
    for lang in whole:
        for a, b in zip(whole[lang].parameters(), parts[lang].parameters(), strict=True):
            assert torch.equal(a, b)


def test_groups_hold_every_weight_once(recipe: Path) -> None:
    """Those of the objective itself, such as a temperature that is learnt, at the full rate."""
    config = load_config(recipe, ["src.lr_scale=0.5", "contrast.learn_temperature=true", "optimizer.decay_all=true"])
    encoders = build_encoders(config.src, config.tgt, {"en": TEXTS, "zh": TEXTS})
    objective = DualMoco(encoders["en"], encoders["zh"], config)
    groups = {group["lr_scale"]: group["params"] for group in weight_groups(config, encoders, objective)}
    assert {id(weight) for weight in groups[0.5]} == {id(weight) for weight in encoders["en"].parameters()}
    others = {id(weight) for weight in encoders["zh"].parameters()} | {id(objective.contrast.log_temperature)}
    assert {id(weight) for weight in groups[1.0]} == others and sum(map(len, groups.values())) == len(
        [weight for weight in objective.parameters() if weight.requires_grad]
    )


@pytest.mark.parametrize("everything", [False, True])
def test_biases_norms_and_the_temperature_decay_only_if_asked(recipe: Path, everything: bool) -> None:
    """By name: matrices and embeddings always decay."""
    settings = ["contrast.learn_temperature=true", f"optimizer.decay_all={everything}", "optimizer.weight_decay=0.3"]
    config = load_config(recipe, settings)
    encoders = build_encoders(config.src, config.tgt, {"en": TEXTS, "zh": TEXTS})
    objective = DualMoco(encoders["en"], encoders["zh"], config)
    names = {weight: name for name, weight in objective.named_parameters()}
    decays = {
        names[weight]: group["weight_decay"]
        for group in weight_groups(config, encoders, objective)
        for weight in group["params"]
    }
    light = {name for name in decays if name.endswith((".bias", "LayerNorm.weight", "log_temperature"))}
    assert len(decays) == sum(weight.requires_grad for weight in objective.parameters()) > len(light) > 20
    assert {decays[name] for name in light} == {0.3 if everything else 0.0}
    assert {decays[name] for name in decays.keys() - light} == {0.3}


def test_weights_without_influence_are_frozen_and_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """BERT's pooler gets no gradient; it stays in the model, which the libraries open without a word."""
    encoder = build_encoder(BERT, TEXTS)
    freeze_unused(encoder)
    frozen = {name for name, weight in encoder.named_parameters() if not weight.requires_grad}
    assert frozen and all(".pooler." in name for name in frozen)
    encoder.train()(encoder.tokenize(TEXTS[:4])).sum().backward()
    assert all((weight.grad is None) is (name in frozen) for name, weight in encoder.named_parameters())
    save_encoders({"en": encoder, "zh": build_encoder(replace(BERT, lang="zh"), TEXTS)}, tmp_path / "model")
    with warnings.catch_warnings(), caplog.at_level("WARNING"):
        warnings.simplefilter("error")
        opened = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert caplog.messages == []
    vectors = opened.encode(TEXTS[:3], task="en")
    np.testing.assert_allclose(vectors, encode_by_itself(encoder, TEXTS[:3]), atol=1e-6)
    known = encoder.state_dict()
    assert all(
        torch.equal(value, known[name]) for name, value in open_routes(tmp_path / "model")["en"].state_dict().items()
    )
