"""LoRA adapters: what learns, the closed form of the saved weights, momentum encoders and exact resumption."""

from __future__ import annotations

import os
import signal
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.pytorch import encode_by_itself
from dualmoco.models.build import build_encoder, read_shape
from dualmoco.models.config import AdapterConfig, EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.load import open_model
from dualmoco.models.lora import add_adapter, merge_adapter
from dualmoco.models.network import Encoder, open_routes
from dualmoco.training.checkpoint import last_checkpoint
from dualmoco.training.checkpoint_model import export_encoders
from dualmoco.training.contrast import DualMomentumContrast
from dualmoco.training.memory import _learning_share
from dualmoco.training.recipe import load_config
from dualmoco.training.run import train
from dualmoco.training.trainer import Trainer
from runfolders import assert_same_state, state

TEXTS = [src for src, _ in generate_pairs(60, seed=2)]
ADAPTER = AdapterConfig(rank=3, alpha=6.0)
BERT = EncoderConfig("en", EncoderKind.bert, width=16, layers=2, heads=2, vocab_size=300, projection=8, adapter=ADAPTER)
BOTH = [
    "schedule.evaluate_every=12",  # at the last step alone, so that its checkpoint has the weights of the best model
    "src.adapter.rank=3",
    "src.adapter.dropout=0.2",
    "tgt.adapter.rank=2",
    "tgt.adapter.target_modules=[query,value]",
]


def adapted(config: EncoderConfig = BERT) -> Encoder:
    """A random BERT with an adapter whose second matrices, zeros at first, are random as well."""
    torch.manual_seed(1)
    encoder = build_encoder(config, TEXTS)
    add_adapter(encoder, config)
    for name, weight in encoder.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(weight, std=0.3)
    return encoder


def test_a_new_adapter_changes_nothing_and_learns_alone() -> None:
    """Every linear layer but the unused pooler has one; the projection learns too, everything else stays."""
    torch.manual_seed(1)
    before = build_encoder(BERT, TEXTS)
    encoder = deepcopy(before)
    add_adapter(encoder, BERT)
    np.testing.assert_array_equal(encode_by_itself(encoder, TEXTS), encode_by_itself(before, TEXTS))
    learning = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    linear = {
        name for name, layer in before.named_modules() if isinstance(layer, torch.nn.Linear) and "pooler" not in name
    }
    projection = {name for name in linear if "model" not in name}
    matrices = {f"{name}.lora_{part}.default.weight" for name in linear - projection for part in "AB"}
    assert learning == matrices | {f"{name}.weight" for name in projection} and len(matrices) == 2 * 6 * 2
    count = sum(weight.numel() for name, weight in encoder.named_parameters() if ".lora_" in name)
    head = sum(weight.numel() for name, weight in encoder.named_parameters() if name in learning) - count
    shape = read_shape(before)
    assert round(_learning_share(BERT, shape) * shape.parameters) == count + head


def test_merging_adds_the_product_of_the_matrices() -> None:
    """W + alpha / rank B A: the same vectors from plain layers, and the adapted encoder stays as it is."""
    encoder = adapted()
    own = {name: weight.clone() for name, weight in encoder.named_parameters()}
    merged = merge_adapter(encoder)
    np.testing.assert_allclose(encode_by_itself(merged, TEXTS), encode_by_itself(encoder, TEXTS), atol=1e-6)
    assert not any("lora" in name or "base_layer" in name for name in merged.state_dict())
    for name, weight in merged.named_parameters():
        place = name.removesuffix(".weight")
        if f"{place}.lora_A.default.weight" in own:
            product = own[f"{place}.lora_B.default.weight"] @ own[f"{place}.lora_A.default.weight"]
            expected = own[f"{place}.base_layer.weight"] + 2 * product
            torch.testing.assert_close(weight, expected)
    assert all(torch.equal(weight, own[name]) for name, weight in encoder.named_parameters())
    assert merge_adapter(merged) is merged


def test_momentum_encoders_share_what_does_not_learn() -> None:
    """Only adapters and projections are copied and moved, by equation 1; a checkpoint holds the base weights once."""
    encoder = adapted()
    contrast = DualMomentumContrast(encoder, encoder, dimension=8, queue_size=4, temperature=0.1)
    learning = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    slow = dict(contrast.src_momentum_encoder.named_parameters())
    assert {name for name, weight in encoder.named_parameters() if slow[name] is not weight} == learning
    assert len(dict(contrast.named_parameters())) == len(slow) + len(learning) + 1
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if name in learning:
                weight.add_(1)
    before = {name: weight.clone() for name, weight in encoder.named_parameters()}
    contrast.update_momentum(0.75)
    for name, weight in encoder.named_parameters():
        assert torch.equal(weight, before[name])
        torch.testing.assert_close(slow[name], weight - 0.75 if name in learning else weight)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_the_adapter(checkpointing: bool) -> None:
    """Those of autograd on the merged weights, by the chain rule; also if activations are computed twice."""
    encoder = adapted(replace(BERT, dropout=0.0))
    encoder.set_dropout(0.0)
    merged = merge_adapter(encoder).requires_grad_(True)
    if checkpointing:
        encoder.checkpoint_gradients()
    goal = torch.randn(len(TEXTS), 8, generator=torch.Generator().manual_seed(0))
    for network in (encoder, merged):
        (network.train()(network.tokenize(TEXTS)) * goal).sum().backward()
    weights, plain = dict(encoder.named_parameters()), dict(merged.named_parameters())
    places = [
        name.removesuffix(".lora_A.default.weight") for name in weights if name.endswith(".lora_A.default.weight")
    ]
    assert len(places) == 12
    for place in places:
        full = plain[f"{place}.weight"].grad
        down, up = (weights[f"{place}.lora_{part}.default.weight"] for part in "AB")
        assert full is not None and down.grad is not None and up.grad is not None
        torch.testing.assert_close(down.grad, 2 * up.T @ full, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(up.grad, 2 * full @ down.T, atol=1e-4, rtol=1e-3)


def test_a_run_saves_plain_models_and_resumes_exactly(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved weights are the initial ones plus the product of the checkpoint's matrices; peft is not needed."""
    out, again = tmp_path / "run", tmp_path / "again"
    train(recipe, *BOTH, f"out={out}")
    saved, tensors = out / "model", state(out)
    assert not [path for path in saved.rglob("*") if "adapter" in path.name]
    initial = load_file(out / "initial" / "en_0_Transformer" / "model.safetensors")
    trained = load_file(saved / "en_0_Transformer" / "model.safetensors")
    assert initial.keys() == trained.keys()
    prefix = "model.contrast.src_encoder.layers.0.model."
    changed = [name for name in initial if not torch.equal(initial[name], trained[name])]
    assert len(changed) == 12
    for name in changed:
        down, up = (tensors[f"{prefix}{name.removesuffix('weight')}lora_{part}.default.weight"] for part in "AB")
        torch.testing.assert_close(trained[name], initial[name] + 16 / 3 * up @ down)
    zh = load_file(saved / "zh_0_Transformer" / "model.safetensors")
    before = load_file(out / "initial" / "zh_0_Transformer" / "model.safetensors")
    assert {name.split(".")[-2] for name in zh if not torch.equal(zh[name], before[name])} == {"query", "value"}
    library = SentenceTransformer(str(saved), device="cpu").encode(TEXTS, task="en")
    np.testing.assert_allclose(open_model(out).encode(TEXTS, lang="en"), library, atol=1e-5)
    export_model(str(out), "en", "onnx", tmp_path / "onnx")
    np.testing.assert_allclose(open_model(tmp_path / "onnx").encode(TEXTS, lang="en"), library, atol=1e-5)
    checkpoint = str(last_checkpoint(out))
    export_encoders(checkpoint, None, "sentence-transformers", tmp_path / "last")
    np.testing.assert_allclose(open_model(tmp_path / "last").encode(TEXTS, lang="en"), library, atol=1e-5)
    export_encoders(checkpoint, None, "sentence-transformers", tmp_path / "momentum", momentum=True)
    slow = load_file(tmp_path / "momentum" / "en_0_Transformer" / "model.safetensors")
    prefix = "model.contrast.src_momentum_encoder.layers.0.model."
    for name in changed:
        down, up = (tensors[f"{prefix}{name.removesuffix('weight')}lora_{part}.default.weight"] for part in "AB")
        torch.testing.assert_close(slow[name], initial[name] + 16 / 3 * up @ down)
    usual = Trainer.step

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        values = usual(self, *arguments)
        if arguments[-1].step + 1 == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return values

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert train(recipe, *BOTH, f"out={again}").stop == "SIGINT"
    monkeypatch.undo()
    train(recipe, *BOTH, f"out={again}", resume=True)
    assert_same_state(out, again)
    for lang, encoder in open_routes(again / "model").items():
        expected = open_routes(saved)[lang].state_dict()
        assert all(torch.equal(weight, expected[name]) for name, weight in encoder.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["src.adapter.rank=-1"], r"src\.adapter\.rank is -1; expected at least 0"),
        (["src.kind=static", "src.adapter.rank=2"], r"src\.adapter\.rank is 2; expected 0 when src\.kind is static"),
        (["tgt.kind=shared", "tgt.adapter.rank=2"], r"tgt\.adapter\.rank is 2; expected 0 when tgt\.kind is shared"),
        (
            ["src.kind=pretrained", "src.name=x", "src.frozen=true", "src.adapter.rank=2"],
            r"src\.adapter\.rank is 2; expected 0 when src\.frozen is true: an adapter must be trained",
        ),
        (
            ["src.adapter.rank=2", "src.trainable=head"],
            r"src\.trainable is 'head'; expected all when src\.adapter\.rank",
        ),
        (["src.adapter.alpha=0"], r"src\.adapter\.alpha is 0\.0; expected above 0"),
        (["src.adapter.dropout=1"], r"src\.adapter\.dropout is 1\.0; expected from 0 to below 1"),
    ],
)
def test_settings_that_cannot_be(recipe: Path, settings: list[str], expected: str) -> None:
    """Before anything is read, in one line."""
    with pytest.raises(ConfigError, match=expected):
        load_config(recipe, settings)


def test_models_that_cannot_have_it() -> None:
    """A table of token vectors, and names that no layer has."""
    table = build_encoder(EncoderConfig("en", EncoderKind.static, width=16, vocab_size=300), TEXTS)
    with pytest.raises(ModelError, match=r"en: adapter\.rank 3 of a static model; expected 0"):
        add_adapter(table, BERT)
    with pytest.raises(ModelError, match=r"target_modules q_proj not found; expected some of query, key, value, dense"):
        adapted(replace(BERT, adapter=replace(ADAPTER, target_modules=["q_proj"])))
