"""Options of `Model.encode`, blank and long sentences, containers, and copies of models in other processes."""

from __future__ import annotations

import copy
import json
import logging
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sentence_transformers import SentenceTransformer

import spawned
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends import tokens
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.models.network import save_encoders
from dualmoco.models.pack import pack_model
from dualmoco.training.combine import combine

EN, ZH = ([*side] for side in zip(*generate_pairs(60, seed=8), strict=True))
BLANK = ["", " ", "\n\t", "\u3000\u00a0"]
SHORT = "Tom was sick."
LONG = " ".join(EN[:2])  # more than LIMIT tokens, fewer than POSITIONS
LIMIT, POSITIONS = 16, 64
PROCESS_SECONDS = 120


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random BERTs of 64 positions that cut sentences after 16 tokens; not to be changed."""
    torch.manual_seed(3)
    src, tgt = (
        EncoderConfig(lang, EncoderKind.bert, width=16, layers=1, heads=2, vocab_size=400, max_tokens=POSITIONS)
        for lang in ("en", "zh")
    )
    folder = tmp_path_factory.mktemp("bert") / "model"
    save_encoders(build_encoders(src, tgt, {"en": EN, "zh": ZH}), folder)
    for path in folder.rglob("tokenizer_config.json"):
        content = json.loads(path.read_text(encoding="utf-8")) | {"model_max_length": LIMIT}
        path.write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random tables of dimension 12 whose tokenizers would cut sentences after 16 tokens; not to be changed."""
    torch.manual_seed(4)
    src, tgt = (
        EncoderConfig(lang, EncoderKind.static, width=12, vocab_size=300, max_tokens=LIMIT) for lang in ("en", "zh")
    )
    folder = tmp_path_factory.mktemp("static") / "model"
    save_encoders(build_encoders(src, tgt, {"en": EN, "zh": ZH}), folder)
    return folder


@pytest.fixture(scope="module")
def models(bert: Path, static: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Model]]:
    """How to open the same encoders with each back-end."""
    place = tmp_path_factory.mktemp("models")
    pack_model(bert, place / "packed")
    combine([static, place / "packed"], place / "hybrid")
    export_model(str(bert), "en", "onnx", place / "onnx")
    return {
        "static": lambda: open_model(static),
        "static in torch": lambda: open_model(static, "torch"),
        "torch": lambda: open_model(bert),
        "int8": lambda: open_model(place / "packed", "int8"),
        "hybrid": lambda: open_model(place / "hybrid", "int8"),
        "onnx": lambda: open_model(place / "onnx"),
    }


BACKENDS = ["static", "static in torch", "torch", "int8", "hybrid", "onnx"]
NETWORKS = ["torch", "int8", "hybrid", "onnx"]


@pytest.mark.parametrize("name", BACKENDS)
def test_blank_sentences_are_zero_vectors(models: dict[str, Callable[[], Model]], name: str) -> None:
    """Nothing and spaces alone have no direction, also between other sentences, whose vectors stay the same."""
    model = models[name]()
    assert not model.encode(BLANK, lang="en").any()
    mixed = model.encode([BLANK[0], EN[0], BLANK[1], EN[1], BLANK[3]], lang="en")
    np.testing.assert_allclose(mixed[[1, 3]], model.encode(EN[:2], lang="en"), atol=1e-6)
    assert not mixed[[0, 2, 4]].any()
    assert model.similarity(mixed, mixed)[0].tolist() == [0.0] * 5
    assert not model.encode([""], lang="en", normalize=False).any()


@pytest.mark.parametrize("name", ["static", "static in torch"])
def test_static_models_take_all_tokens(
    models: dict[str, Callable[[], Model]], static: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The vector of a long sentence is the average of all its tokens, as in sentence-transformers without a limit."""
    plain: Any = SentenceTransformer(str(static), device="cpu")
    tokenizer = plain[0].sub_modules["en"][0].tokenizer
    tokenizer.no_truncation()
    text = " ".join(EN)
    assert len(tokenizer.encode(text)) > 300
    found = models[name]().encode([text, EN[0]], lang="en")
    np.testing.assert_allclose(found, plain.encode([text, EN[0]], task="en"), atol=1e-5)
    assert not caplog.records


@pytest.mark.parametrize("name", NETWORKS)
def test_cut_sentences_are_counted_in_one_warning(
    models: dict[str, Callable[[], Model]], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Repeated sentences count, those of exactly the limit do not, and the second call says nothing."""
    model = models[name]()
    model.encode([SHORT, ""], lang="en")
    assert not caplog.records
    model.encode([LONG, SHORT, LONG, " ".join(EN[3:6])], lang="en")
    advice = f"split them, or encode with max_tokens up to {POSITIONS}"
    expected = f"{model.identity.name}: 3 of 4 sentences were cut after {LIMIT} tokens; {advice}"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, expected)]
    model.encode([LONG], lang="en")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("length", [LIMIT - 1, LIMIT, LIMIT + 1])
def test_only_longer_sentences_count_as_cut(bert: Path, length: int) -> None:
    """A sentence that just fits is not cut; two of its tokens are [CLS] and [SEP]."""
    backend: Any = open_model(bert).backend("en")
    backend.encode([" ".join(["a"] * (length - 2))])
    assert backend.cut == (1 if length > LIMIT else 0)


@pytest.mark.parametrize("name", NETWORKS)
def test_max_tokens_takes_more_of_a_sentence(
    models: dict[str, Callable[[], Model]], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sentences that fit have the same vector, longer ones another one, up to the positions of the network."""
    model = models[name]()
    texts = [SHORT, LONG]
    short, more, most = (model.encode(texts, lang="en", max_tokens=limit) for limit in (LIMIT, 50, POSITIONS))
    assert np.array_equal(short, model.encode(texts, lang="en"))
    np.testing.assert_allclose(short[0], most[0], atol=1e-6)
    np.testing.assert_allclose(more[1], most[1], atol=1e-6)
    assert short[1] @ most[1] < 0.999
    cut = model.encode([LONG, " ".join(LONG.split(" ")[:2])], lang="en", max_tokens=4)
    assert (cut[0] @ cut[1] > 0.99) == (name != "hybrid")  # its static part takes everything
    assert len(caplog.records) == 1  # whoever sets a limit is not warned


def test_max_tokens_is_that_of_sentence_transformers(bert: Path) -> None:
    """The vector of a longer sentence is the one that the network's own library makes."""
    plain: Any = SentenceTransformer(str(bert), device="cpu")
    plain[0].sub_modules["en"][0].tokenizer.model_max_length = 40
    found = open_model(bert).encode([LONG], lang="en", max_tokens=40)
    np.testing.assert_allclose(found, plain.encode([LONG], task="en"), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("torch", {"max_tokens": 65}, r"^max_tokens 65; expected from 3 to 64, the positions of the model$"),
        ("int8", {"max_tokens": 65}, r"^max_tokens 65; expected from 3 to 64, the positions of the model$"),
        ("onnx", {"max_tokens": 65}, r"^max_tokens 65; expected from 3 to 64, the positions of the model$"),
        ("hybrid", {"max_tokens": 65}, r"^max_tokens 65; expected from 3 to 64, the positions of the model$"),
        ("int8", {"max_tokens": 2}, r"^max_tokens 2; expected from 3 to 64"),
        ("int8", {"max_tokens": 0}, r"^max_tokens 0; expected at least 1$"),
        ("static", {"max_tokens": 9}, r"model: max_tokens 9 with back-end static, which has no such limit; remove it"),
        ("static in torch", {"max_tokens": 9}, r"with back-end torch, which has no such limit; remove it$"),
        ("int8", {"batch_size": 0}, r"^batch_size 0; expected at least 1$"),
        ("static", {"dimension": 13}, r"^dimension 13; expected from 1 to 12, the dimension of .*model$"),
        ("static", {"dimension": 0}, r"^dimension 0; expected from 1 to 12"),
        ("hybrid", {"dimension": 4}, r"hybrid: dimension 4 of a hybrid, .* expected no dimension, or one of the parts"),
        ("static", {"convert": "list"}, r"^convert 'list'; expected one of numpy, torch$"),
    ],
)
def test_options_that_cannot_be_are_refused(
    models: dict[str, Callable[[], Model]], name: str, options: dict[str, Any], message: str
) -> None:
    """One line says what was given and what is possible."""
    with pytest.raises(ConfigError, match=message):
        models[name]().encode(EN[:2], lang="en", **options)


@pytest.mark.parametrize("name", ["torch", "int8", "onnx"])
def test_batch_size_is_the_most_sentences_at_once(models: dict[str, Callable[[], Model]], name: str) -> None:
    """Batches are no larger, and vectors are the same."""
    model = models[name]()
    backend: Any = model.backend("en")
    sizes: list[int] = []
    run = type(backend).run

    def count(self: Any, arrays: tokens.Arrays) -> Vectors:
        sizes.append(len(arrays[tokens.TOKEN_IDS]))
        found: Vectors = run(self, arrays)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(backend), "run", count)
        few, usual = (model.encode(EN[:20], lang="en", batch_size=size) for size in (3, None))
    assert max(sizes[:7]) == 3 and sum(sizes[:7]) == len(set(EN[:20])) == 20
    assert len(sizes) < 14 and max(sizes) > 3
    np.testing.assert_allclose(few, usual, atol=1e-6)


def test_dimension_keeps_leading_components(models: dict[str, Callable[[], Model]]) -> None:
    """They are scaled to unit length again, unless the vectors are wanted as they are."""
    model = models["static"]()
    assert model.dimension == 12 and models["hybrid"]().dimension == 28
    whole = model.encode(EN[:5], lang="en")
    found = model.encode(EN[:5], lang="en", dimension=4)
    np.testing.assert_allclose(found, whole[:, :4] / np.linalg.norm(whole[:, :4], axis=1, keepdims=True), atol=1e-6)
    raw = model.encode(EN[:5], lang="en", normalize=False, dimension=4)
    assert np.array_equal(raw, model.encode(EN[:5], lang="en", normalize=False)[:, :4])


def test_vectors_can_be_a_tensor(models: dict[str, Callable[[], Model]]) -> None:
    """It holds the same numbers."""
    model = models["static"]()
    found = model.encode(EN[:3], lang="en", convert="torch", dimension=5)
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float32
    assert np.array_equal(found.numpy(), model.encode(EN[:3], lang="en", dimension=5))


def test_sentences_come_in_any_container(models: dict[str, Callable[[], Model]]) -> None:
    """Arrays, Arrow columns and generators are lists of sentences; a dict is not."""
    model = models["static"]()
    expected = model.encode(EN[:3], lang="en")
    for given in (np.array(EN[:3]), pa.chunked_array([EN[:1], EN[1:3]]), (text for text in EN[:3])):
        assert np.array_equal(model.encode(given, lang="en"), expected)
    for wrong in ({"en": EN[:3]}, b"abc", pa.table({"en": EN[:3]})):
        with pytest.raises(DataError, match=r"expected (strings in a list|one column)"):
            model.encode(wrong, lang="en")  # type: ignore[arg-type]


def test_half_characters_are_refused(models: dict[str, Callable[[], Model]]) -> None:
    """As the command line gets them from bytes that are not UTF-8."""
    for name in ("static", "int8"):
        with pytest.raises(
            DataError, match=r"^'ab\\udcff': an unpaired surrogate, as from invalid UTF-8; expected text$"
        ):
            models[name]().encode(["ab\udcff"], lang="en")


@pytest.mark.parametrize("name", ["static", "int8", "hybrid"])
def test_models_can_be_copied(models: dict[str, Callable[[], Model]], name: str) -> None:
    """By pickling and copying: the copy is opened again, with the same back-end."""
    model = models[name]()
    expected = model.encode(EN[:5], lang="en")
    for again in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        assert again is not model and again.identity == model.identity
        assert again.backend("en").name == model.backend("en").name
        assert np.array_equal(again.encode(EN[:5], lang="en"), expected)


def test_models_go_to_other_processes(models: dict[str, Callable[[], Model]]) -> None:
    """A process that is started afresh opens the model again."""
    model = models["static"]()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply_async(spawned.encode, (model, EN[:5])).get(PROCESS_SECONDS)
    assert np.array_equal(found, model.encode(EN[:5], lang="en"))


def test_a_model_without_a_name_is_not_copied(models: dict[str, Callable[[], Model]], static: Path) -> None:
    """Nor is one whose folder has changed since."""
    model = models["static"]()
    pickled = pickle.dumps(model)
    model.reopen = None
    with pytest.raises(ModelError, match="was not opened by name, so it cannot be copied or pickled"):
        copy.copy(model)
    record = static / "dualmoco.json"
    record.write_text('{"text": {"nfkc": true}}', encoding="utf-8")
    try:
        with pytest.raises(ModelError, match="changed since it was opened; open it again by its name"):
            pickle.loads(pickled)
    finally:
        record.unlink()


def test_the_device_is_that_of_pytorch(bert: Path, static: Path) -> None:
    """Any device that works here is taken and kept by copies; others are refused in one line."""
    model = open_model(bert, device="cpu")
    assert copy.copy(model).reopen.keywords["device"] == "cpu"  # type: ignore[union-attr]
    assert np.array_equal(model.encode(EN[:3], lang="en"), open_model(bert).encode(EN[:3], lang="en"))
    for device, backend, message in (
        ("cuda:99", "auto", r"^device cuda:99: cannot be used here \("),
        ("nowhere", "torch", r"^device nowhere: cannot be used here \(Expected one of cpu, cuda"),
        ("cuda", "int8", r"^device cuda with back-end int8, which runs on the CPU; expected back-end torch$"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_model(bert, backend, device=device)


def test_a_call_can_name_a_device(bert: Path) -> None:
    """The model is opened there once, and gives the same vectors; a device that is not there is refused."""
    model = open_model(str(bert), "torch")
    texts = ["Tom bought two books.", "It rains."]
    expected = model.encode(texts, progress=False)
    np.testing.assert_array_equal(model.encode(texts, device="cpu", progress=False), expected)
    np.testing.assert_array_equal(model.encode(texts, device="cpu", progress=False), expected)
    assert list(model._elsewhere) == ["cpu"]
    with pytest.raises(ConfigError, match="device xpu:9: cannot be used here"):
        model.encode(texts, device="xpu:9")
    model.reopen = None
    with pytest.raises(ModelError, match="was not opened by name"):
        model.encode(texts, device="cuda")
