"""Prompts: the text that a model expects before every sentence, in training and in every back-end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from dualmoco.core.errors import ConfigError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.embeddings.store import open_store
from dualmoco.models.backends.pytorch import run_in_torch
from dualmoco.models.build import build_encoder, build_encoders, load_teacher, ridge_regression, start_projection
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.folder import folder_sha256
from dualmoco.models.load import open_model
from dualmoco.models.network import Encoder, TokenParts, open_routes, save_encoders
from dualmoco.models.pack import pack_model
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train

EN, ZH = ([*side] for side in zip(*generate_pairs(120, seed=3), strict=True))
TEXTS = {"en": EN, "zh": ZH}
PROMPT = "Tom "
BERT = EncoderConfig("en", EncoderKind.bert, width=16, layers=1, heads=2, vocab_size=300, max_tokens=32)
TABLE = EncoderConfig("en", EncoderKind.static, width=16, vocab_size=300)


@pytest.fixture(scope="module")
def prompted(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that wants PROMPT before every sentence."""
    first: Any = Transformer(str(plain))
    model = SentenceTransformer(modules=[first, Pooling(16, pooling_mode="mean")], device="cpu")
    model.prompts, model.default_prompt_name = {"query": PROMPT, "document": "Mary "}, "query"
    folder = tmp_path_factory.mktemp("prompted") / "model"
    model.save(str(folder), create_model_card=False)
    return folder


def in_library(folder: Path, texts: list[str], **options: Any) -> Vectors:
    """Unit vectors of plain sentence-transformers."""
    return unit_vectors(SentenceTransformer(str(folder), device="cpu").encode(texts, **options))


def in_training(encoder: Encoder, texts: list[str]) -> Vectors:
    """Vectors of the tokens that training reads, in parts."""
    with torch.no_grad():
        return np.asarray(encoder.eval()(TokenParts.split(encoder.tokenize(texts))))


@pytest.mark.parametrize(("prompt", "expected"), [(None, PROMPT), ("", ""), ("Mary ", "Mary ")])
def test_training_reads_what_inference_reads(prompted: Path, prompt: str | None, expected: str) -> None:
    """The model's own prompt, none, or the recipe's: as sentence-transformers puts it before a sentence."""
    encoder = build_encoder(EncoderConfig("en", name=str(prompted), prompt=prompt), [])
    library = in_library(prompted, EN, prompt=expected)
    for found in (in_training(encoder, EN), run_in_torch(encoder).encode(EN)):
        np.testing.assert_allclose(found, library, atol=2e-6)
    if prompt is None:
        np.testing.assert_allclose(open_model(prompted).encode(EN, lang="en"), in_training(encoder, EN), atol=2e-6)
    other = in_library(prompted, EN, prompt="We see: ")
    assert np.einsum("nd,nd->n", other, library).min() < 0.999  # a prompt is seen


def test_a_teacher_and_a_ridge_start_take_the_prompt(prompted: Path) -> None:
    """Their vectors are those of sentence-transformers, and the projection is the closed form from these."""
    library = SentenceTransformer(str(prompted), device="cpu").encode(EN)
    teacher = load_teacher(str(prompted), EncoderConfig("en"))
    np.testing.assert_allclose(in_training(teacher, EN), unit_vectors(library), atol=2e-6)
    encoder = build_encoder(EncoderConfig("en", name=str(prompted), projection=8), [])
    goals = unit_vectors(np.random.default_rng(0).standard_normal((len(EN), 8), dtype=np.float32))
    start_projection(encoder, EN, goals, lang="en")
    projection: Any = encoder.layers[2]
    expected = ridge_regression(library, goals)
    np.testing.assert_allclose(projection.linear.weight.detach().numpy(), expected, rtol=1e-3, atol=1e-4)


def save(folder: Path, config: EncoderConfig, prompts: dict[str, str]) -> Path:
    """A random model of English and Chinese."""
    torch.manual_seed(0)
    src, tgt = (replace(config, lang=lang, prompt=prompt) for lang, prompt in prompts.items())
    save_encoders(build_encoders(src, replace(tgt, max_piece_length=4), TEXTS), folder)
    return folder


@pytest.mark.parametrize(
    ("config", "backend"), [(TABLE, "static"), (TABLE, "torch"), (BERT, "torch"), (BERT, "onnx"), (BERT, "onnx-int8")]
)
def test_a_prompt_per_language_in_every_backend(tmp_path: Path, config: EncoderConfig, backend: str) -> None:
    """As sentence-transformers does if the prompt is named; the encoders that are read back have it, too."""
    folder = save(tmp_path / "model", config, {"en": "Tom ", "zh": "我"})
    model = open_model(folder, backend)
    assert model.identity.pooling == "own, prompts en 'Tom ', zh '我'"
    assert {lang: encoder.prompt for lang, encoder in open_routes(folder).items()} == {"en": "Tom ", "zh": "我"}
    lowest = 0.99 if backend == "onnx-int8" else 0.999999
    for lang, texts in TEXTS.items():
        expected = in_library(folder, texts, task=lang, prompt_name=lang)
        assert np.einsum("nd,nd->n", model.encode(texts, lang=lang), expected).min() > lowest
    with_other = open_model(folder, backend, prompt="we ")
    expected = in_library(folder, EN, task="en", prompt="we ")
    assert np.einsum("nd,nd->n", with_other.encode(EN, lang="en"), expected).min() > lowest


def test_exports_and_packed_models_keep_the_prompt(tmp_path: Path) -> None:
    """Of the exported language, in plain sentence-transformers without a name; in int8 of each language."""
    folder = save(tmp_path / "model", BERT, {"en": "Tom ", "zh": "我"})
    expected = in_library(folder, ZH, task="zh", prompt_name="zh")
    for target, lowest in (("sentence-transformers", 0.999999), ("onnx", 0.999999), ("onnx-int8", 0.99)):
        export_model(str(folder), "zh", target, tmp_path / target)
        model = open_model(tmp_path / target)
        assert np.einsum("nd,nd->n", model.encode(ZH, lang="zh"), expected).min() > lowest
        assert model.identity.pooling.endswith(", prompt '我'")
    np.testing.assert_allclose(in_library(tmp_path / "sentence-transformers", ZH), expected, atol=1e-6)
    pack_model(folder, tmp_path / "packed")
    packed = open_model(tmp_path / "packed", "int8")
    assert packed.identity.pooling == "own, prompts en 'Tom ', zh '我'"
    for lang, texts in TEXTS.items():
        expected = in_library(folder, texts, task=lang, prompt_name=lang)
        assert np.einsum("nd,nd->n", packed.encode(texts, lang=lang), expected).min() > 0.99


def test_one_prompt_for_both_languages_needs_no_name(tmp_path: Path) -> None:
    """sentence-transformers applies it by itself; it counts in the checksum of the model."""
    folder = save(tmp_path / "model", BERT, {"en": "we ", "zh": "we "})
    assert open_model(folder).identity.pooling == "own, prompt 'we '"
    for lang, texts in TEXTS.items():
        bare = in_library(folder, [f"we {text}" for text in texts], task=lang, prompt="")
        np.testing.assert_allclose(in_library(folder, texts, task=lang), bare, atol=1e-6)
        np.testing.assert_allclose(open_model(folder).encode(texts, lang=lang), bare, atol=1e-6)
    assert folder_sha256(save(tmp_path / "other", BERT, {"en": "we ", "zh": "us "})) != folder_sha256(folder)


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_pooling_may_leave_the_prompt_out(plain: Path, tmp_path: Path, pooling: str) -> None:
    """With `include_prompt: false` the prompt is read, but not averaged, in training and in ONNX too."""
    first: Any = Transformer(str(plain))
    model = SentenceTransformer(modules=[first, Pooling(16, pooling_mode=pooling, include_prompt=False)], device="cpu")
    model.prompts, model.default_prompt_name = {"query": "Tom and Mary "}, "query"
    model.save(str(tmp_path / "model"), create_model_card=False)
    expected = in_library(tmp_path / "model", EN)
    encoder = build_encoder(EncoderConfig("en", name=str(tmp_path / "model")), [])
    np.testing.assert_allclose(in_training(encoder, EN), expected, atol=2e-6)
    for backend in ("torch", "onnx"):
        np.testing.assert_allclose(open_model(tmp_path / "model", backend).encode(EN, lang="en"), expected, atol=1e-5)
    if pooling == "mean":
        first_model: Any = SentenceTransformer(str(tmp_path / "model"), device="cpu")
        first_model[1].include_prompt = True
        assert np.abs(unit_vectors(first_model.encode(EN)) - expected).max() > 1e-2


def test_a_run_keeps_the_prompts(recipe: Path, prompted: Path, tmp_path: Path) -> None:
    """Keys of a frozen side, its held-out score and the saved model are those of sentence-transformers; so resumed."""
    settings = [f"src.name={prompted}", "src.kind=pretrained", "src.frozen=true", "tgt.width=16", "tgt.prompt=我："]
    out, again = tmp_path / "run", tmp_path / "again"
    train(recipe, *settings, f"out={out}")
    sentences = (out / "keys.txt").read_text(encoding="utf-8").splitlines()
    store = open_store(out / "keys")
    keys = store.vectors().read(store.lines)
    assert np.einsum("nd,nd->n", keys, in_library(prompted, sentences)).min() > 0.9999  # stored in fp16
    np.testing.assert_allclose(
        in_library(out / "model", EN, task="en", prompt_name="en"), in_library(prompted, EN), atol=1e-6
    )
    expected = in_library(out / "model", ZH, task="zh", prompt_name="zh")
    np.testing.assert_allclose(open_model(out).encode(ZH, lang="zh"), expected, atol=1e-5)
    assert np.abs(in_library(out / "model", ZH, task="zh") - expected).max() > 1e-2
    card = (out / "model" / "README.md").read_text(encoding="utf-8")
    assert 'task="en", prompt_name="en")  # \'Tom \'' in card and 'task="zh", prompt_name="zh")  # \'我：\'' in card
    train(recipe, *settings, f"out={again}", "schedule.steps=8")
    train(recipe, *settings, f"out={again}", resume=True)
    assert open_model(again).identity.pooling == "own, prompts en 'Tom ', zh '我：'"
    further = build_encoder(EncoderConfig("zh", name=str(out)), [])  # a model of ours, trained further
    np.testing.assert_allclose(in_training(further, ZH), expected, atol=2e-6)


def test_prompts_in_recipes(recipe: Path) -> None:
    """Text stays as it was typed; a shared encoder has one prompt."""
    config = load_config(recipe, ["src.prompt=query: ", "tgt.prompt="])
    assert (config.src.prompt, config.tgt.prompt) == ("query: ", "")
    assert load_config(recipe, ["src.prompt=null"]).src.prompt is None
    with pytest.raises(ConfigError, match=r"tgt\.prompt is .*x.*; expected null when tgt\.kind is shared: src\.prompt"):
        load_config(recipe, ["tgt.kind=shared", "tgt.prompt=x"])
