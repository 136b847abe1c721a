"""Text conversion as part of a model: applied on every back-end, counted in the checksum, kept by exports."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import opencc
import pytest
import torch
from opencc import OpenCC
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, BertTokenizer

from dualmoco.core.errors import ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import build_encoders
from dualmoco.models.card import CardSubject, write_card
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.folder import folder_sha256, read_conversion
from dualmoco.models.load import open_model
from dualmoco.models.network import Encoder, add_nfkc_normalizer, carries_nfkc, open_network, save_encoders
from dualmoco.models.text_normalization import TextConversion
from dualmoco.text.languages import Chinese

EN, ZH = ([*side] for side in zip(*generate_pairs(200, seed=4), strict=True))
TRADITIONAL = list(map(OpenCC("s2t").convert, ZH[:30]))
BERT = EncoderConfig("en", EncoderKind.bert, width=16, layers=1, heads=2, vocab_size=300, max_tokens=32)
TABLE = EncoderConfig("en", EncoderKind.static, width=16, vocab_size=300)
BOTH = {"chinese": "simplified", "nfkc": True}


def without_normalizer(encoder: Encoder) -> None:
    """Makes a tokenizer treat every width of a character as another character."""
    first: Any = encoder.layers[0]
    tokenizer = first.tokenizer if isinstance(first.tokenizer, Tokenizer) else first.tokenizer.backend_tokenizer
    tokenizer.normalizer = None


def save(folder: Path, kind: EncoderConfig, text: dict[str, Any] | None) -> Path:
    """A random model of English and Chinese whose tokenizers convert nothing, with a record of its conversion."""
    torch.manual_seed(0)
    zh = EncoderConfig("zh", kind.kind, width=16, layers=1, heads=2, vocab_size=900, max_piece_length=1, max_tokens=32)
    encoders = build_encoders(kind, zh, {"en": EN, "zh": ZH})
    for encoder in encoders.values():
        without_normalizer(encoder)
    save_encoders(encoders, folder)
    if text is not None:
        (folder / "dualmoco.json").write_text(json.dumps({"step": 3, "text": text}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("kind", "backend"), [(TABLE, "auto"), (TABLE, "torch"), (BERT, "torch"), (BERT, "onnx"), (BERT, "onnx-int8")]
)
def test_a_traditional_sentence_has_the_vector_of_its_simplified_form(
    tmp_path: Path, kind: EncoderConfig, backend: str
) -> None:
    """On every back-end; sentences of another language are left alone, and so is a model without the record."""
    if backend.startswith("onnx"):
        pytest.importorskip("onnxruntime")
    model = open_model(save(tmp_path / "model", kind, {"chinese": "simplified"}), backend)
    changed = [row for row, text in enumerate(TRADITIONAL) if text != ZH[row]]
    assert len(changed) > 5
    expected = model.encode(ZH[:30], lang="zh")
    np.testing.assert_array_equal(model.encode(TRADITIONAL, lang="zh"), expected)
    bare = open_model(save(tmp_path / "bare", kind, None), backend)
    np.testing.assert_array_equal(bare.encode(ZH[:30], lang="zh"), expected)
    assert np.abs(bare.encode(TRADITIONAL, lang="zh") - expected)[changed].max(axis=1).min() > 1e-3
    mixed = ["He wrote 書 here.", "He wrote 书 here."]
    np.testing.assert_array_equal(model.encode(mixed, lang="en"), bare.encode(mixed, lang="en"))


def test_conversions_of_text() -> None:
    """NFKC for all, characters for Chinese whatever its name, both in that order, nothing unless asked."""
    simplified, traditional = TextConversion(Chinese.simplified), TextConversion(Chinese.traditional)
    assert simplified.apply(["說Ａ", "说"], "zh-TW") == ["说Ａ", "说"] == simplified.apply(["說Ａ", "说"], "cmn")
    assert simplified.apply(["說"], "ja") == ["說"] and TextConversion().apply(["說Ａ"], "zh") == ["說Ａ"]
    assert traditional.apply(["说头发"], "zh") == ["說頭髮"]
    assert TextConversion(Chinese.simplified, nfkc=True).apply(["說Ａ", "\uf9d7"], "zh") == ["说A", "轮"]  # U+F9D7: 輪
    assert TextConversion(nfkc=True).apply(["ﬁ①"], "en") == ["fi1"]


def test_the_checksum_counts_the_conversion_alone(tmp_path: Path) -> None:
    """Models that differ in it are different; the rest of the record changes nothing."""
    folder = save(tmp_path / "model", TABLE, None)
    bare, seen = folder_sha256(folder), list[str]()
    for text in ({}, {"chinese": "keep"}, {"chinese": "simplified"}, {"chinese": "traditional"}, BOTH):
        (folder / "dualmoco.json").write_text(json.dumps({"step": len(seen), "text": text}), encoding="utf-8")
        seen.append(folder_sha256(folder))
    assert seen[:2] == [bare, bare] and len(set(seen)) == 4
    (folder / "dualmoco.json").write_text(json.dumps({"text": dict(reversed(BOTH.items()))}), encoding="utf-8")
    assert folder_sha256(folder) == seen[-1] == open_model(folder).identity.sha256


@pytest.mark.parametrize("kind", [TABLE, BERT], ids=["static", "bert"])
def test_exports_keep_the_conversion(tmp_path: Path, kind: EncoderConfig) -> None:
    """NFKC goes into the tokenizer, for plain sentence-transformers too; the card says what it cannot carry."""
    source = save(tmp_path / "model", kind, BOTH)
    texts = [text.replace("。", "！Ａ１") for text in TRADITIONAL]
    expected = open_model(source).encode(texts, lang="zh")
    export_model(str(source), "zh", "sentence-transformers", tmp_path / "zh")
    np.testing.assert_allclose(open_model(tmp_path / "zh").encode(texts, lang="zh"), expected, atol=1e-6)
    plain = SentenceTransformer(str(tmp_path / "zh"), device="cpu")
    simplified = list(map(OpenCC("t2s").convert, texts))
    np.testing.assert_allclose(plain.encode(simplified), expected, atol=1e-6)
    card = (tmp_path / "zh" / "README.md").read_text(encoding="utf-8")
    assert 'OpenCC("t2s")' in card and "NFKC" not in card
    record = json.loads((tmp_path / "zh" / "dualmoco.json").read_text(encoding="utf-8"))
    assert record["text"] == BOTH and record["sha256"] == open_model(source).identity.sha256
    export_model(str(source), "en", "sentence-transformers", tmp_path / "en")
    assert read_conversion(tmp_path / "en") == TextConversion(nfkc=True)
    assert "How to give sentences" not in (tmp_path / "en" / "README.md").read_text(encoding="utf-8")


def test_onnx_exports_keep_the_conversion(tmp_path: Path) -> None:
    """In config.json, which opening reads, and in the tokenizer as far as it can."""
    pytest.importorskip("onnxruntime")
    source = save(tmp_path / "model", BERT, BOTH)
    export_model(str(source), "zh", "onnx", tmp_path / "out")
    texts = [text.replace("。", "！Ａ１") for text in TRADITIONAL]
    expected = open_model(source).encode(texts, lang="zh")
    np.testing.assert_allclose(open_model(tmp_path / "out").encode(texts, lang="zh"), expected, atol=1e-5)
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["text"] == BOTH
    tokenizer: Tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("Ａ１！").ids == tokenizer.encode("A1!").ids
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    config["text"] = {"chinese": "cursive"}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=r'config.json: text conversion \{"chinese": "cursive"\}; expected chinese'):
        open_model(tmp_path / "out")


def test_tokenizers_are_tried_for_nfkc(tmp_path: Path) -> None:
    """One that knows widths apart does not carry it before, and does after."""
    for kind in (TABLE, BERT):
        encoder = open_network(save(tmp_path / kind.kind, kind, None)).encoders["en"]
        assert not carries_nfkc(encoder)
        add_nfkc_normalizer(encoder)
        assert carries_nfkc(encoder)


def test_cards_say_what_is_left_to_do(tmp_path: Path) -> None:
    """Nothing left, no word of it; else the steps in their order."""
    subject = CardSubject(tmp_path, "x", ["zh"], 4)
    write_card(subject, TextConversion())
    assert "before encoding" not in (tmp_path / "README.md").read_text(encoding="utf-8")
    write_card(subject, TextConversion(Chinese.traditional, nfkc=True))
    steps = [line for line in (tmp_path / "README.md").read_text(encoding="utf-8").splitlines() if line[:4] == "    "]
    names: dict[str, Any] = {"unicodedata": unicodedata, "opencc": opencc, "sentence": "Ａ说"}
    exec("\n".join(step.strip() for step in steps), names)
    assert names["sentence"] == "A說"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"text": {"chinese": "cursive"}}', r'text conversion \{"chinese": "cursive"\}; expected chinese: simplified'),
        ('{"text": {"nfkc": "yes"}}', "expected chinese: simplified or traditional, and nfkc: true or false"),
        ('{"text": {"lower": true}}', r'text conversion \{"lower": true\}; expected'),
        ('{"text": ["nfkc"]}', r'text conversion \["nfkc"\]; expected'),
        ('{"text": ', "not a record of a model"),
    ],
)
def test_a_conversion_that_is_not_known_is_refused(tmp_path: Path, record: str, message: str) -> None:
    """A model that would give other vectors than it was trained for does not open."""
    folder = save(tmp_path / "model", TABLE, None)
    (folder / "dualmoco.json").write_text(record, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        open_model(folder)


def test_records_of_others_are_no_conversion(tmp_path: Path) -> None:
    """No record, none of ours, or one without the key."""
    assert read_conversion(tmp_path) == TextConversion()
    for content in ("{}", "[1]", '{"text": {}}'):
        (tmp_path / "dualmoco.json").write_text(content, encoding="utf-8")
        assert read_conversion(tmp_path) == TextConversion()


def test_the_card_says_what_a_library_takes_out_of_the_tokenizer(tmp_path: Path) -> None:
    """The library makes a BertTokenizer anew from its vocabulary, so NFKC is left to the user, who is told."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "1", "b", "!", "?", ",", "fi"]
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(tmp_path / "model")
    shape = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    BertModel(shape).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "dualmoco.json").write_text('{"text": {"nfkc": true}}', encoding="utf-8")
    export_model(str(tmp_path / "model"), "en", "sentence-transformers", tmp_path / "out")
    assert 'unicodedata.normalize("NFKC", sentence)' in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    found, expected = (open_model(tmp_path / name).encode(["Ａ１ ﬁ！", "b"], lang="en") for name in ("out", "model"))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    plain = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["a1 fi!"], normalize_embeddings=True)
    np.testing.assert_allclose(plain, found[:1], atol=1e-6)
