"""Tests of a trained model in use: sentences in, vectors and similarities out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dualmoco
from dualmoco.core.errors import DataError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.pytorch import encode_by_itself
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.model import Model
from dualmoco.models.network import Encoder, save_encoders

SRC_TEXTS, TGT_TEXTS = ([*side] for side in zip(*generate_pairs(200, seed=2), strict=True))


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder]:
    """Two untrained static encoders, 16 wide."""
    torch.manual_seed(3)
    src, tgt = (EncoderConfig(lang=lang, kind=EncoderKind.static, width=16, vocab_size=300) for lang in ("en", "zh"))
    return build_encoders(src, tgt, {"en": SRC_TEXTS, "zh": TGT_TEXTS})


@pytest.fixture(scope="module")
def model(encoders: dict[str, Encoder], tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The model of those encoders, opened from its folder."""
    folder = tmp_path_factory.mktemp("model") / "model"
    save_encoders(encoders, folder)
    return dualmoco.load(str(folder))


def test_load_opens_a_folder(model: Model) -> None:
    """The model knows its languages in the order they were saved."""
    assert isinstance(model, Model)
    assert model.languages == ["en", "zh"]


@pytest.mark.parametrize(("lang", "texts"), [("en", SRC_TEXTS), ("zh", TGT_TEXTS)])
def test_encode_gives_the_vectors_of_the_language(
    encoders: dict[str, Encoder], model: Model, lang: str, texts: list[str]
) -> None:
    """One row a sentence, in order, from the encoder of that language."""
    vectors = model.encode(texts[:10], lang=lang)
    assert vectors.shape == (10, 16) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, encode_by_itself(encoders[lang], texts[:10]), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_encode_takes_one_sentence_or_several(model: Model) -> None:
    """A string is one sentence, not a list of letters; tuples and arrays are lists."""
    one = model.encode(SRC_TEXTS[0], lang="en")
    assert one.shape == (1, 16)
    several = model.encode(tuple(SRC_TEXTS[:3]), lang="en")
    assert np.array_equal(several[:1], one) and several.shape == (3, 16)


def test_encode_takes_no_sentence(model: Model) -> None:
    """An empty list gives no rows, and these can be compared."""
    nothing = model.encode([], lang="zh")
    assert nothing.shape == (0, 16) and nothing.dtype == np.float32
    assert model.similarity(nothing, model.encode(TGT_TEXTS[:2], lang="zh")).shape == (0, 2)


@pytest.mark.parametrize("lang", ["fr", "", "xx-EN"])
def test_unknown_language_is_refused(model: Model, lang: str) -> None:
    """The error names the language that was asked for and those there are."""
    with pytest.raises(ModelError, match=rf"^[^\n]*model: has no language '{lang}'; .*one of en, zh, or .*train$"):
        model.encode("Bonjour", lang=lang)


def test_similarity_is_the_matrix_of_dot_products(model: Model) -> None:
    """Row i, column j is the product of vector i and vector j, worked out one by one."""
    a, b = model.encode(SRC_TEXTS[:3], lang="en"), model.encode(TGT_TEXTS[:5], lang="zh")
    scores = model.similarity(a, b)
    assert scores.shape == (3, 5)
    for i in range(3):
        for j in range(5):
            assert scores[i, j] == pytest.approx(sum(float(x) * float(y) for x, y in zip(a[i], b[j], strict=True)))
    np.testing.assert_allclose(np.diag(model.similarity(a, a)), 1.0, atol=1e-6)


def test_vectors_can_be_left_as_the_model_makes_them(encoders: dict[str, Encoder], tmp_path: Path) -> None:
    """Without normalisation lengths are the model's own, with it they are one, and the direction is the same."""
    save_encoders({lang: Encoder(list(encoder.layers)[:1]) for lang, encoder in encoders.items()}, tmp_path / "model")
    model = dualmoco.load(tmp_path / "model")
    raw, unit = (model.encode(SRC_TEXTS[:9], lang="en", normalize=normalize) for normalize in (False, True))
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.1
    np.testing.assert_allclose(unit, raw / lengths, atol=1e-6)


def test_only_sentences_are_encoded(model: Model) -> None:
    """The error names the place and the kind of what is no sentence."""
    with pytest.raises(DataError, match=r"^sentences: item 1 is 0.5, a float; expected a string$"):
        model.encode(["a", 0.5], lang="en")  # type: ignore[list-item]


def test_progress_can_be_turned_off(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar moves with the sentences that are encoded unless it is not wanted."""
    monkeypatch.setattr("dualmoco.core.progress.DELAY_SECONDS", 0.0)
    model.encode(SRC_TEXTS, lang="en", progress=False)
    assert capsys.readouterr().err == ""
    model.encode(SRC_TEXTS, lang="en")
    assert f"{len(SRC_TEXTS)}/{len(SRC_TEXTS)}" in capsys.readouterr().err


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    """The error names the folder and what a model folder is called."""
    with pytest.raises(ModelError) as caught:
        dualmoco.load(tmp_path / "nothing")
    assert str(caught.value) == (
        f"{tmp_path / 'nothing'}: no such folder; expected a model folder such as runs/tiny/model, or a hub name"
    )


def test_run_folder_stands_for_its_model(encoders: dict[str, Encoder], model: Model, tmp_path: Path) -> None:
    """A run without a model yet is refused; with one, it opens as the model folder does."""
    (tmp_path / "config.yaml").write_text("out: x", encoding="utf-8")
    with pytest.raises(
        ModelError, match=r": a run without a model yet; expected a run that was evaluated at least once$"
    ):
        dualmoco.load(tmp_path)
    save_encoders(encoders, tmp_path / "model")
    again = dualmoco.load(tmp_path)
    assert again.identity.name == str(tmp_path) and again.identity.sha256 == model.identity.sha256
    assert np.array_equal(again.encode(SRC_TEXTS[:3], lang="en"), model.encode(SRC_TEXTS[:3], lang="en"))
