"""int8 graphs of networks: balanced channels change nothing but the rounding, which a loop checks by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, RobertaConfig, RobertaModel

from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends import int8_export, pytorch
from dualmoco.models.backends.int8_graph import Int8GraphBuilder
from dualmoco.models.backends.pytorch import encode_by_itself
from dualmoco.models.build import build_encoder
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.load import run_network
from dualmoco.models.network import Encoder

EN = [src for src, _ in generate_pairs(60, seed=8)]
TEXTS = [*EN[:30], "a", " ".join(EN[:20])]
PARTS = ("weight", "bias")
SIZES: dict[str, Any] = {"vocab_size": 400, "pad_token_id": 0}
BERT_SIZES = SIZES | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "bert": lambda: BertModel(BertConfig(**BERT_SIZES, max_position_embeddings=40)),
    "roberta": lambda: RobertaModel(RobertaConfig(**BERT_SIZES, max_position_embeddings=41)),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(**SIZES, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40)
    ),
}


def make_encoder(kind: str, pooling: str = "mean", *, has_tanh: bool = False) -> Encoder:
    """A random network of some type, whose layers matter."""
    torch.manual_seed(3)
    config = EncoderConfig("en", EncoderKind.bert, width=32, layers=1, heads=2, vocab_size=400, max_tokens=40)
    encoder = build_encoder(config, EN)
    first: Any = encoder.layers[0]
    first.model = NETWORKS[kind]()
    layers = [first, Pooling(32, pooling_mode=pooling)]
    made = Encoder([*layers, Dense(32, 24, activation_function=torch.nn.Tanh())] if has_tanh else layers)
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(3).add_(0.1 * torch.randn_like(weight))
    return made.eval()


def lowest_cosine(encoder: Encoder) -> float:
    """Of the vectors in int8 with the network's own."""
    found = run_network(encoder, "onnx-int8", threads=1).encode(TEXTS)
    return float((unit_vectors(encode_by_itself(encoder, TEXTS)) * found).sum(axis=1).min())


@pytest.mark.parametrize(
    ("kind", "pooling", "has_tanh"),
    [("bert", "mean", True), ("bert", "cls", False), ("roberta", "mean", False), ("distilbert", "cls", True)],
)
def test_without_rounding_vectors_are_those_of_the_network(
    kind: str, pooling: str, has_tanh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balance, lift, positions and names of layers are right if weights and activations are not rounded."""

    def keep(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        scales = {f"{name}.scale": np.ones(len(one), np.float32) for name, one in tensors.items() if one.ndim == 2}
        return {**tensors, **scales}

    def shift(graph: Int8GraphBuilder, values: str, layer: Any) -> tuple[str, str]:
        values = graph.node("Mul", values, layer.balance) if layer.is_balanced else values
        values = graph.node("Add", values, layer.lift) if layer.is_lifted else values
        return values, values

    def multiply(graph: Int8GraphBuilder, quantized: tuple[str, str], layers: Sequence[Any]) -> str:
        matrix, bias = (graph.node("Concat", *(f"{one.name}.{part}" for one in layers), axis=0) for part in PARTS)
        product = graph.node("MatMul", quantized[0], graph.node("Transpose", matrix, perm=[1, 0]))
        return str(graph.node("Add", product, bias))

    monkeypatch.setattr(int8_export, "pack_tensors", keep)
    monkeypatch.setattr(Int8GraphBuilder, "quantized", shift)
    monkeypatch.setattr(Int8GraphBuilder, "linear", multiply)
    encoder = make_encoder(kind, pooling, has_tanh=has_tanh)
    found = run_network(encoder, "onnx-int8", threads=1).encode(TEXTS)
    np.testing.assert_allclose(found, unit_vectors(encode_by_itself(encoder, TEXTS)), atol=2e-5)


@pytest.mark.parametrize("kind", list(NETWORKS))
def test_vectors_in_int8_are_near(kind: str) -> None:
    """And not equal."""
    assert 0.99 < lowest_cosine(make_encoder(kind)) < 0.999999


def test_balance_makes_large_channels_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same network, written with one large channel of attention, would lose the others of that activation."""
    encoder = make_encoder("bert")
    plain, first = lowest_cosine(encoder), encoder.layers[0]
    for block in first.model.encoder.layer:  # type: ignore[union-attr]
        with torch.no_grad():
            block.attention.self.value.weight[5] *= 200
            block.attention.self.value.bias[5] *= 200
            block.attention.output.dense.weight[:, 5] /= 200
    assert lowest_cosine(encoder) == pytest.approx(plain, abs=0.002)
    monkeypatch.setattr(int8_export, "_balance", lambda tensors, layers, peaks: np.ones_like(peaks))
    monkeypatch.setitem(pytorch.LOWEST_COSINE, "onnx-int8", -1.0)
    assert lowest_cosine(encoder) < plain - 0.01


@pytest.mark.parametrize("is_lifted", [False, True])
def test_products_are_those_of_a_loop(is_lifted: bool, tmp_path: Path) -> None:
    """A layer with factors, and with values that have a minimum, gives what rounding by hand gives."""
    generator = np.random.default_rng(0)
    matrix = generator.integers(-127, 128, (4, 6)).astype(np.int8)
    scales, bias = (generator.random(4).astype(np.float32) for _ in range(2))
    balance = (0.1 + generator.random(6)).astype(np.float32)
    rows = generator.standard_normal((5, 6)).astype(np.float32)
    rows = np.maximum(rows, np.float32(-0.17)) if is_lifted else rows
    tensors: dict[str, np.ndarray] = {
        "a.weight": matrix,
        "a.weight.scale": scales,
        "a.bias": bias,
        "a.balance": balance,
    }
    graph = Int8GraphBuilder()
    if is_lifted:
        tensors["a.lift"] = np.float32(0.17) * balance
    layer = graph.weights(tensors)["a"]
    path = tmp_path / "graph.onnx"
    path.write_bytes(graph.finish(graph.dense(graph.constant(rows), [layer])))
    nothing = np.zeros((1, 1), dtype=np.int64)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {"input_ids": nothing, "attention_mask": nothing})[0]
    for row, line in zip(rows.astype(np.float64), found, strict=True):
        values = (row + (0.17 if is_lifted else 0)) * balance
        step = np.abs(values).max() / (255 if is_lifted else 127)
        for column in range(4):
            total = sum(round(value / step) * int(weight) for value, weight in zip(values, matrix[column], strict=True))
            assert line[column] == pytest.approx(total * step * scales[column] + bias[column], rel=1e-5, abs=1e-4)


def test_graphs_have_standard_operators_alone() -> None:
    """So that other runtimes than onnxruntime know them."""
    encoder = make_encoder("bert")
    source = pytorch.token_source(encoder)
    assert source is not None
    graph = onnx.load_from_string(int8_export.quantize_network(encoder, source, EN[:4]))
    onnx.checker.check_model(graph, full_check=True)
    assert {node.domain for node in graph.graph.node} == {""}
    assert [one.name for one in graph.graph.input] == ["input_ids", "attention_mask"]


def test_a_cpu_without_int8_instructions_gets_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are exact in either mode of onnxruntime."""
    encoder = make_encoder("bert")
    expected = run_network(encoder, "onnx-int8").encode(TEXTS)
    monkeypatch.setattr("dualmoco.models.backends.onnx_runtime.has_int8_instructions", lambda: False)
    np.testing.assert_allclose(run_network(encoder, "onnx-int8").encode(TEXTS), expected, atol=1e-5)


def use_relu(encoder: Encoder) -> None:
    """Another activation than the graph has."""
    first: Any = encoder.layers[0]
    first.model.config.hidden_act = "relu"


def use_max(encoder: Encoder) -> None:
    """Another pooling than the graph has."""
    pooling: Any = encoder.layers[1]
    pooling.pooling_mode = "max"


def use_other_type(encoder: Encoder) -> None:
    """A network that only looks like BERT."""
    first: Any = encoder.layers[0]
    first.model.config.model_type = "mpnet"


@pytest.mark.parametrize(
    ("change", "given"),
    [(use_relu, "bert with relu, pooling mean"), (use_max, "bert with gelu, pooling max"), (use_other_type, "mpnet")],
)
def test_other_networks_are_refused(change: Callable[[Encoder], None], given: str) -> None:
    """In one line with what is expected, and what to use instead."""
    encoder = make_encoder("bert")
    change(encoder)
    with pytest.raises(
        ModelError, match=rf"onnx-int8: {given}.*; expected .*bert, .*gelu, pooling cls or mean.*: use onnx$"
    ):
        run_network(encoder, "onnx-int8")
