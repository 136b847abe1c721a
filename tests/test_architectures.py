"""Encoders other than BERT: decoders pooled at their last token, ModernBERT, kinds of attention and dropout."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers.processors import TemplateProcessing
from transformers import (
    LlamaConfig,
    LlamaModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
)

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import build_encoder
from dualmoco.models.config import Attention, EncoderConfig, EncoderKind, PoolingMode
from dualmoco.models.export import export_model
from dualmoco.models.load import open_model
from dualmoco.models.network import Encoder, TokenParts
from dualmoco.models.tokenizer import train_tokenizer
from dualmoco.training import init_encoders
from dualmoco.training.init_encoders import check_attention, set_attention, set_dropout
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train
from dualmoco.training.trainer import Trainer
from runfolders import assert_same_state

EN = [src for src, _ in generate_pairs(60, seed=2)]
END = "[SEP]"
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
DECODER: dict[str, Any] = SIZES | {"num_key_value_heads": 1, "head_dim": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random networks as transformers saves them; Qwen pads on the left, Llama has no padding token."""
    place = tmp_path_factory.mktemp("architectures")
    tokenizer = train_tokenizer(EN, 300, 16, special_tokens=True)
    ids: dict[str, Any] = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": tokenizer.token_to_id("[PAD]")}
    ends: dict[str, Any] = {"eos_token_id": tokenizer.token_to_id(END), "bos_token_id": None}
    torch.manual_seed(4)
    ModernBertModel(ModernBertConfig(**SIZES, **ids, local_attention=8)).save_pretrained(place / "modernbert")
    Qwen3Model(Qwen3Config(**DECODER, **ids, **ends)).save_pretrained(place / "qwen")
    LlamaModel(LlamaConfig(**DECODER, **ids, **ends)).save_pretrained(place / "llama")
    shared: dict[str, Any] = {"model_max_length": 32, "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", **shared
    ).save_pretrained(place / "modernbert")
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    for name, more in (("qwen", {"pad_token": "[PAD]", "padding_side": "left"}), ("llama", {})):
        made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, **shared, **more)
        made.save_pretrained(place / name)
    return {path.name: path for path in place.iterdir()}


def build(folder: Path, pooling: PoolingMode = PoolingMode.auto, **more: Any) -> Encoder:
    """The encoder that training would start from."""
    return build_encoder(EncoderConfig("en", name=str(folder), pooling=pooling, **more), [])


def vectors(encoder: Encoder, texts: list[str]) -> Vectors:
    """Vectors as training computes them, without dropout."""
    with torch.no_grad():
        return np.asarray(encoder.eval()(TokenParts.split(encoder.tokenize(texts))))


@pytest.mark.parametrize("name", ["qwen", "llama"])
def test_the_last_token_is_the_end_of_the_text(folders: dict[str, Path], name: str) -> None:
    """Alone or padded in a batch, on either side, a sentence has the state of the network at its end token."""
    encoder = build(folders[name], PoolingMode.last)
    first: Any = encoder.layers[0]
    texts = [*EN[:20], "Tom", " ".join(EN[:30])]
    expected = []
    for text in texts:
        ids = first.tokenizer(text, truncation=True, max_length=32)["input_ids"]
        assert first.tokenizer.convert_ids_to_tokens(ids[-1]) == END and len(ids) <= 32
        with torch.no_grad():
            states = first.model(input_ids=torch.tensor([ids])).last_hidden_state  # (1, L, D)
        expected.append(states[0, -1].numpy())
    expected_vectors = unit_vectors(np.stack(expected))
    alone = np.concatenate([vectors(encoder, [text]) for text in texts])
    np.testing.assert_allclose(alone, expected_vectors, atol=2e-6)
    np.testing.assert_allclose(vectors(encoder, texts), expected_vectors, atol=2e-6)
    assert first.tokenizer.padding_side == "right"
    opened = open_model(folders[name], pooling="last")  # as it is, padded on the left
    np.testing.assert_allclose(opened.encode(texts, lang="en"), expected_vectors, atol=2e-6)


@pytest.mark.parametrize(("name", "pooling"), [("modernbert", "mean"), ("qwen", "last"), ("llama", "last")])
def test_runs_of_other_architectures(
    folders: dict[str, Path],
    name: str,
    pooling: str,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They train, resume exactly, open in sentence-transformers and are exported to ONNX."""
    settings = ["src.kind=pretrained", f"src.name={folders[name]}", f"src.pooling={pooling}", "tgt.width=16"]
    settings += ["schedule.steps=4", "schedule.evaluate_every=2", "schedule.checkpoint_every=2"]
    out, again = tmp_path / "run", tmp_path / "again"
    train(recipe, *settings, f"out={out}")
    library = unit_vectors(SentenceTransformer(str(out / "model"), device="cpu").encode(EN, task="en"))
    np.testing.assert_allclose(open_model(out).encode(EN, lang="en"), library, atol=1e-5)
    assert np.abs(library - vectors(build(folders[name], PoolingMode(pooling)), EN)).max() > 1e-4  # it learnt
    export_model(str(out), "en", "onnx", tmp_path / "onnx")
    np.testing.assert_allclose(open_model(tmp_path / "onnx").encode(EN, lang="en"), library, atol=1e-5)
    usual = Trainer.step

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        values = usual(self, *arguments)
        if arguments[-1].step + 1 == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return values

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert train(recipe, *settings, f"out={again}").stop == "SIGINT"
    monkeypatch.undo()
    train(recipe, *settings, f"out={again}", resume=True)
    assert_same_state(out, again)


@pytest.mark.parametrize("name", ["modernbert", "qwen"])
def test_dropout_reaches_the_attention(folders: dict[str, Path], name: str) -> None:
    """At 0 training mode changes nothing; above it attention drops weights, also where it is a number of the layer."""
    encoder = build(folders[name])
    features = encoder.tokenize(EN[:8])
    encoder.set_dropout(0.0)
    assert not encoder.has_dropout
    with torch.no_grad():
        still = encoder.eval()(features)
        assert torch.equal(encoder.train()(features), still)
        encoder.set_dropout(0.5)
        assert encoder.has_dropout
        for layer in encoder.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0  # what is left is inside attention
        torch.manual_seed(0)
        first, second = encoder.train()(features), encoder(features)
        assert not torch.allclose(first, second, atol=1e-5)
        assert torch.equal(encoder.eval()(features), still)


def test_a_model_without_dropout_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """One line says that dropout has no effect."""
    config = EncoderConfig("en", EncoderKind.static, width=16, vocab_size=300, dropout=0.0)
    set_dropout(build_encoder(config, EN), EncoderConfig("en", dropout=0.1))
    assert "en: dropout 0.1 has no effect, because this model has no dropout" in caplog.text


@pytest.mark.parametrize("name", ["modernbert", "qwen"])
def test_kinds_of_attention_agree(folders: dict[str, Path], name: str, recipe: Path) -> None:
    """Eager and sdpa are two ways to the same vectors; the saved model does not keep the choice."""
    found = {}
    for attention in (Attention.auto, Attention.eager, Attention.sdpa):
        encoder = build(folders[name])
        encoder.set_attention(attention)
        first: Any = encoder.layers[0]
        used = "sdpa" if attention == Attention.auto else attention.value
        assert first.model.config._attn_implementation == used
        found[attention] = vectors(encoder, EN)
    for other in (Attention.eager, Attention.sdpa):
        np.testing.assert_allclose(found[other], found[Attention.auto], atol=2e-6)
    assert train(recipe, "src.attention=eager", "schedule.steps=1").step == 1
    assert "eager" not in (recipe.parent / "run" / "model" / "en_0_Transformer" / "config.json").read_text("utf-8")


def test_flash_attention_is_refused_where_it_cannot_run(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, without its package, in fp32: one line each, before the data is read."""
    with pytest.raises(ConfigError, match=r"optimizer\.precision is 'fp32'; expected bf16 or fp16 for src\.attention"):
        load_config(recipe, ["src.attention=flash_attention_2"])
    settings = ["src.attention=flash_attention_2", "optimizer.precision=bf16", "data.train=[nowhere.tsv]"]
    with pytest.raises(
        ConfigError, match=r"src\.attention is flash_attention_2, and PyTorch finds no CUDA GPU; expected"
    ):
        train(recipe, *settings)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(init_encoders, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"and flash-attn is not installed; pip install flash-attn, or use auto or sdpa"
    ):
        check_attention(load_config(recipe, settings))
    with pytest.raises(ConfigError, match=r"tgt\.attention is 'sdpa'; expected auto when tgt\.kind is static"):
        load_config(recipe, ["tgt.attention=sdpa", "tgt.kind=static"])
    table = build_encoder(EncoderConfig("en", EncoderKind.static, width=16, vocab_size=300), EN)
    with pytest.raises(ModelError, match=r"en: attention sdpa of a static model; expected auto"):
        set_attention(table, EncoderConfig("en", attention=Attention.sdpa))


def test_attention_without_fp32_runs_in_half_precision(folders: dict[str, Path]) -> None:
    """Flash attention takes bf16 and fp16 only: outside of autocast, as held-out pairs are encoded, it gets bf16."""
    encoder = build(folders["modernbert"])
    exact, features = vectors(encoder, EN[:4]), encoder.tokenize(EN[:4])
    seen: list[torch.dtype] = []
    first: Any = encoder.layers[0]
    first.model.layers[0].attn.Wqkv.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    encoder.needs_half = True
    with torch.no_grad():
        np.testing.assert_allclose(encoder(features).float(), exact, atol=0.05)
        with torch.autocast("cpu", torch.float16):
            encoder(features)
    assert seen == [torch.bfloat16, torch.float16]


def test_a_missing_kind_of_attention_is_named(folders: dict[str, Path]) -> None:
    """What transformers says, on one line."""
    if importlib.util.find_spec("flash_attn"):
        pytest.skip("flash-attn is installed")
    with pytest.raises(ModelError, match=r"^en: attention flash_attention_2: [^\n]*; expected auto$"):
        set_attention(build(folders["qwen"]), EncoderConfig("en", attention=Attention.flash_attention_2))
