"""Back-ends against one sentence at a time, and token vectors added by hand."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends import pytorch, static, tokens
from dualmoco.models.backends.pytorch import CHECK_SENTENCES, LOWEST_COSINE, check_agreement, run_in_torch, token_source
from dualmoco.models.backends.static import StaticBackend
from dualmoco.models.backends.tokens import TOKEN_IDS, TOKEN_MASK, TokenSource, batch_by_length
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.load import open_model, run_network
from dualmoco.models.network import Encoder, open_routes, save_encoders

PAIRS = generate_pairs(200, seed=3)
EN, ZH = ([*side] for side in zip(*PAIRS, strict=True))
TEXTS = [*EN[:30], "", "a", EN[2], " ".join(EN[:20]), *EN[5:9], "zzz ### 我们"]
BERT = EncoderConfig(
    lang="en", kind=EncoderKind.bert, width=32, layers=2, heads=2, vocab_size=300, max_tokens=40, projection=24
)


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random BERTs with projections, in a folder of one route a language."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("transformers") / "model"
    save_encoders(build_encoders(BERT, replace(BERT, lang="zh", max_piece_length=4), {"en": EN, "zh": ZH}), path)
    return path


@pytest.fixture(scope="module")
def statics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random tables, with dropout and projections."""
    torch.manual_seed(2)
    path = tmp_path_factory.mktemp("statics") / "model"
    src = EncoderConfig(lang="en", kind=EncoderKind.static, width=16, projection=12, vocab_size=300, dropout=0.5)
    tgt = EncoderConfig(lang="zh", kind=EncoderKind.static, width=24, projection=12, vocab_size=300, max_piece_length=4)
    save_encoders(build_encoders(src, tgt, {"en": EN, "zh": ZH}), path)
    return path


def one_at_a_time(path: Path, texts: list[str], lang: str) -> Vectors:
    """What sentence-transformers gives for each sentence alone."""
    model = SentenceTransformer(str(path), device="cpu")
    rows = [model.encode([text], task=lang, batch_size=1)[0] for text in texts]
    return unit_vectors(np.stack(rows))


def lowest_cosine(a: Vectors, b: Vectors) -> float:
    """Of two arrays' rows; two rows of zeros agree."""
    cosines = [1.0 if not x.any() and not y.any() else float(x @ y) for x, y in zip(a, b, strict=True)]
    return min(cosines)


@pytest.mark.parametrize("budget", [1, 12, 40, 10_000])
def test_batches_hold_every_sentence_once_and_keep_the_budget(budget: int) -> None:
    """Padded batches stay within the budget, and no two neighbours could have been one batch."""
    lengths = np.random.default_rng(budget).integers(0, 15, 60)
    batches = batch_by_length(lengths, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(60))
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget
        if following is not None:
            assert lengths[batch].max() <= lengths[following].min()
            assert (len(batch) + 1) * lengths[following].min() > budget
    assert batch_by_length(lengths[:0], budget) == []


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_on_the_side_that_the_model_wants(transformers: Path, left: bool) -> None:
    """Ids of a shorter sentence stand at one end, its mask with them."""
    source = token_source(open_routes(transformers)["en"])
    assert source is not None
    sided = TokenSource(source.tokenizer, source.inputs, tokens.Padding(7, left=left))
    arrays = next(sided.batches([EN[0], "a"], 1000))
    short = int(arrays[TOKEN_MASK].sum(axis=1).argmin())
    ids = source.tokenizer.encode("a").ids
    rest = arrays[TOKEN_IDS].shape[1] - len(ids)
    assert rest > 0
    assert arrays[TOKEN_IDS][short].tolist() == ([7] * rest + ids if left else ids + [7] * rest)
    assert arrays[TOKEN_MASK][short].tolist() == ([0] * rest + [1] * len(ids) if left else [1] * len(ids) + [0] * rest)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_torch_gives_each_sentence_its_own_vector(
    transformers: Path, lang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, batches, repeated and overlong sentences change nothing."""
    monkeypatch.setattr(tokens, "WINDOW", 11)
    model = open_model(str(transformers))
    found, backend = model.encode(TEXTS, lang=lang), model.backend(lang)
    assert (backend.name, backend.dimension, str(found.dtype)) == ("torch", 24, "float32")
    expected = one_at_a_time(transformers, TEXTS, lang)
    expected[TEXTS.index("")] = 0
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert lowest_cosine(expected, np.roll(expected, 1, axis=0)) < 0.99


@pytest.mark.parametrize("name", ["torch", "onnx"])
def test_threads_change_nothing(transformers: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread takes whole batches, so vectors are the same, bit for bit; torch's own threads are left alone."""
    if name == "onnx":
        pytest.importorskip("onnxruntime")
    monkeypatch.setattr(tokens, "WINDOW", 50)
    before, texts = torch.get_num_threads(), EN * 3
    try:
        one, three = (
            open_model(str(transformers), name, threads=count).backend("en").encode(texts) for count in (1, 3)
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(one, three)


def test_a_network_with_an_input_of_its_own_still_runs(transformers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tokens to batch, the network's own path gives the same vectors, prompt included."""
    encoder = open_routes(transformers)["en"]
    prompted = Encoder(encoder.layers, "we ")
    usual = run_in_torch(prompted).encode(TEXTS)
    monkeypatch.setattr(pytorch, "token_source", lambda encoder: None)
    own = run_in_torch(prompted).encode(TEXTS)
    np.testing.assert_allclose(own, usual, atol=2e-6)
    assert not np.allclose(own, run_in_torch(encoder).encode(TEXTS), atol=1e-3)


def test_static_is_a_sum_of_token_vectors(statics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over all tokens and sentence-transformers give the same, a sentence without tokens is zeros."""
    monkeypatch.setattr(static, "WINDOW", 7)
    backend = open_model(str(statics)).backend("en")
    assert isinstance(backend, StaticBackend) and backend.name == "static" and backend.dimension == 12
    found = backend.encode(TEXTS)
    layers: Any = open_routes(statics)["en"].layers
    first, projection = layers[0], layers[2]
    short = [row for row, text in enumerate(TEXTS) if len(first.tokenizer.encode(text)) < 128]
    assert len(short) == len(TEXTS) - 1
    np.testing.assert_allclose(found[short], one_at_a_time(statics, [TEXTS[row] for row in short], "en"), atol=1e-6)
    first.tokenizer.no_truncation()
    table, matrix = (weight.detach().double().numpy() for weight in (first.embedding.weight, projection.linear.weight))
    for text, vector in zip(TEXTS, found, strict=True):
        total = np.zeros(16)
        for token in first.tokenizer.encode(text, add_special_tokens=False).ids:
            total += table[token]
        projected = matrix @ total
        size = np.linalg.norm(projected)
        np.testing.assert_allclose(vector, projected / size if size else projected, atol=1e-6)
    assert not found[TEXTS.index("")].any()


def test_a_projection_with_a_bias_moves_empty_sentences_too(statics: Path) -> None:
    """A sentence without tokens has the bias for its vector, as in the network."""
    encoder = open_routes(statics)["en"]
    linear: Any = encoder.layers[2]
    linear.linear.bias = torch.nn.Parameter(torch.randn(12, generator=torch.Generator().manual_seed(0)))
    backend = run_network(encoder, "static")
    bias = linear.linear.bias.detach().numpy()
    np.testing.assert_allclose(backend.encode([""])[0], bias / np.linalg.norm(bias), atol=1e-6)


def test_onnx_agrees_with_torch(transformers: Path) -> None:
    """In fp32 vectors are equal; in int8 they are near, and do not depend on the other sentences."""
    pytest.importorskip("onnxruntime")
    expected = open_model(str(transformers)).backend("zh").encode(TEXTS)
    exact, small = (open_model(str(transformers), name, threads=1).backend("zh") for name in ("onnx", "onnx-int8"))
    assert (exact.name, small.name, exact.dimension, small.dimension) == ("onnx", "onnx-int8", 24, 24)
    np.testing.assert_allclose(exact.encode(TEXTS), expected, atol=1e-5)
    found = small.encode(TEXTS)
    assert 0.99 < lowest_cosine(found, expected) < 0.999999
    alone = np.concatenate([small.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(found, alone, atol=1e-5)


def test_a_back_end_that_disagrees_is_refused() -> None:
    """The error names the cosine, the sentence and what to do."""
    generator = np.random.default_rng(0)
    reference = unit_vectors(generator.standard_normal((len(CHECK_SENTENCES), 8)).astype(np.float32))
    near = reference.copy()
    near[5] += 0.1 * np.roll(near[5], 1)
    cosine = float(unit_vectors(near)[5] @ reference[5])
    assert LOWEST_COSINE["onnx-int8"] < cosine < LOWEST_COSINE["onnx"]
    assert check_agreement("onnx-int8", lambda texts: near, reference) == pytest.approx(cosine, abs=1e-6)
    with pytest.raises(
        ModelError, match=r"onnx: cosine 0\.99\d+ .*'Yes\.'; expected at least 0.999: use back-end torch"
    ):
        check_agreement("onnx", lambda texts: near, reference)
    near[5] = np.nan
    with pytest.raises(ModelError, match=r"cosine nan .*expected at least 0.99"):
        check_agreement("onnx-int8", lambda texts: near, reference)


def test_what_cannot_be_run_is_refused(statics: Path, transformers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown back-end, one that does not fit, a language that is not there, a library that is not installed."""
    with pytest.raises(ConfigError, match="back-end 'fast'; expected one of auto, torch, static, int8, onnx"):
        open_model(str(statics), "fast")
    with pytest.raises(ConfigError, match="back-end 'words'; expected one of auto, torch, static, int8, onnx"):
        run_network(open_routes(statics)["en"], "words")
    with pytest.raises(ModelError, match=r"back-end static: .*table of token vectors"):
        open_model(str(transformers), "static").backend("en")
    with pytest.raises(ModelError, match=r"back-end onnx: .*transformer"):
        open_model(str(statics), "onnx").backend("en")
    with pytest.raises(ModelError, match="has no language 'de'; expected one of en, zh"):
        open_model(str(statics)).backend("de")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"onnx and onnxruntime not installed; .*pip install 'dualmoco\[onnx\]'"):
        open_model(str(transformers), "onnx").backend("en")


def test_static_models_run_in_torch_if_asked(statics: Path) -> None:
    """The same vectors, by another name."""
    backend = open_model(str(statics), "torch").backend("zh")
    assert backend.name == "torch"
    np.testing.assert_allclose(backend.encode(ZH), open_model(str(statics)).backend("zh").encode(ZH), atol=1e-6)


def test_vectors_made_elsewhere_have_one_back_end(tmp_path: Path) -> None:
    """It is named after its kind, gives unit vectors, and opens again by its name."""
    (tmp_path / "en.txt").write_text("one\ntwo\n", encoding="utf-8")
    np.save(tmp_path / "en.npy", np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32))
    model = open_model(f"embeddings:{tmp_path}")
    backend = model.backend("en")
    assert (backend.name, backend.dimension) == ("embeddings", 2)
    again = open_model(f"embeddings:{tmp_path}", backend.name)
    assert again.identity == model.identity
    np.testing.assert_allclose(again.encode(["two", "one"], lang="en"), np.array([[0, 1], [0.6, 0.8]]), atol=1e-7)
    with pytest.raises(ConfigError, match="back-end 'torch'; expected embeddings, its only back-end, or auto"):
        open_model(f"embeddings:{tmp_path}", "torch")


def test_no_sentences_give_no_vectors(statics: Path, transformers: Path) -> None:
    """An empty list has shape (0, D)."""
    assert open_model(str(statics)).backend("en").encode([]).shape == (0, 12)
    assert open_model(str(transformers)).backend("en").encode([]).shape == (0, 24)


def test_an_encoder_that_does_more_than_average_is_no_table(statics: Path) -> None:
    """A projection with an activation is left to torch."""
    encoder: Encoder = open_routes(statics)["en"]
    layer: Any = encoder.layers[2]
    layer.activation_function = torch.nn.Tanh()
    assert run_network(encoder, "auto").name == "torch"
