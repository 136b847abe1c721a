"""The int8 back-end: a packed BERT beside the network that sentence-transformers makes of the same weights."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import save_file

import spawned
from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.int8 import write_int8_graphs
from dualmoco.models.backends.int8_graph import Int8GraphBuilder
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind, PoolingMode
from dualmoco.models.folder import INT8_FILE, copy_model
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.models.network import save_encoders
from dualmoco.models.pack import pack_model

EN, ZH = ([*side] for side in zip(*generate_pairs(60, seed=8), strict=True))
TEXTS = {"en": [*EN, "", "word " * 90, "?"], "zh": [*ZH, "", "字" * 90, "。"]}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two BERTs, one pooled by mean, one by [CLS] with a projection; not to be changed."""
    place = tmp_path_factory.mktemp("int8")
    torch.manual_seed(3)
    src = EncoderConfig("en", EncoderKind.bert, width=64, layers=3, heads=4, vocab_size=400, max_tokens=32)
    tgt = EncoderConfig(
        "zh",
        EncoderKind.bert,
        width=32,
        layers=2,
        heads=2,
        vocab_size=400,
        max_tokens=24,
        pooling=PoolingMode.cls,
        projection=64,
    )
    encoders = build_encoders(src, tgt, {"en": EN, "zh": ZH})
    with torch.no_grad():  # as they come, layers of random weights hardly matter
        for encoder in encoders.values():
            for weight in encoder.parameters():
                weight.mul_(3).add_(0.1 * torch.randn_like(weight))
    save_encoders(encoders, place / "whole")
    pack_model(place / "whole", place / "packed")
    return place / "packed"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_vectors_are_those_of_the_unpacked_network(packed: Path, lang: str) -> None:
    """Up to the rounding of activations."""
    model, reference = open_model(packed), open_model(packed, "torch").encode(TEXTS[lang], lang=lang)
    assert (model.backend(lang).name, model.backend(lang).dimension) == ("int8", 64)
    cosines = (model.encode(TEXTS[lang], lang=lang) * reference).sum(axis=1)
    assert cosines[TEXTS[lang].index("")] == 0
    assert np.delete(cosines, TEXTS[lang].index("")).min() > 0.98


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_only_rounding_tells_it_from_the_network(
    packed: Path, lang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With products in fp32 vectors are the network's to the last digits: attention, pooling, cutting, all of it."""

    def exact(graph: Int8GraphBuilder, quantized: tuple[str, str], layers: list[Any]) -> str:
        matrices = [graph.rows(layer, None) for layer in layers]
        matrix = graph.node("Transpose", graph.node("Concat", *matrices, axis=0), perm=[1, 0])
        product = graph.node("MatMul", quantized[0], matrix)
        if not layers[0].has_bias:
            return str(product)
        return str(graph.node("Add", product, graph.node("Concat", *(layer.bias for layer in layers), axis=0)))

    folder = shutil.copytree(packed, tmp_path / "exact")
    monkeypatch.setattr(Int8GraphBuilder, "quantized", lambda graph, values, layer: (values, values))
    monkeypatch.setattr(Int8GraphBuilder, "linear", exact)
    write_int8_graphs(folder)
    reference = open_model(folder, "torch").encode(TEXTS[lang], lang=lang)
    np.testing.assert_allclose(open_model(folder).encode(TEXTS[lang], lang=lang), reference, atol=2e-5)


def test_rows_multiply_to_the_precision_of_int8(tmp_path: Path) -> None:
    """Each row of the inputs has a scale of its own, so a large one beside it costs a small one nothing."""
    generator = np.random.default_rng(0)
    weight = generator.integers(-127, 128, (7, 32)).astype(np.int8)
    scales, bias = (generator.random(7).astype(np.float32) for _ in range(2))
    save_file({"a.weight": weight, "a.weight.scale": scales, "a.bias": bias}, tmp_path / INT8_FILE)
    inputs = generator.standard_normal((5, 32)) * np.array([1.0, 1e-3, 1e4, 0.0, 1.0])[:, None]
    graph = Int8GraphBuilder(tmp_path)
    values = graph.constant(inputs.astype(np.float32))
    (tmp_path / "graph.onnx").write_bytes(graph.finish(graph.dense(values, [graph.weights(tmp_path)["a"]])))
    session = onnxruntime.InferenceSession(tmp_path / "graph.onnx", providers=["CPUExecutionProvider"])
    nothing = np.zeros((1, 1), dtype=np.int64)
    found = session.run(None, {"input_ids": nothing, "attention_mask": nothing})[0]
    exact = inputs @ (weight * scales.astype(np.float64)[:, None]).T + bias
    peaks = np.abs(inputs).max(axis=1, keepdims=True)
    bound = peaks / 127 / 2 * (np.abs(weight.astype(np.float64)) * scales[:, None]).sum(axis=1)
    assert (np.abs(found - exact) <= 1.001 * bound + 1e-5 * np.abs(exact) + 1e-6).all()
    np.testing.assert_array_equal(found[3], bias)


def test_graphs_are_standard_onnx_without_weights(packed: Path) -> None:
    """The checker of ONNX accepts them, other runtimes know all operators, and weights are in one place alone."""
    for lang in ("en", "zh"):
        path = packed / f"int8-{lang}.onnx"
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(str(path), load_external_data=False)
        assert {node.domain for node in model.graph.node} == {""} and path.stat().st_size < 100_000
        places = {entry.value for tensor in model.graph.initializer for entry in tensor.external_data[:1]}
        assert places and all(place.endswith(INT8_FILE) for place in places)


@pytest.mark.parametrize("damage", [b"", b"not a graph", None], ids=["empty", "other", "missing"])
def test_a_damaged_graph_is_refused(packed: Path, tmp_path: Path, damage: bytes | None) -> None:
    """In one line that names the file; so are graphs of other weights."""
    folder = shutil.copytree(packed, tmp_path / "model")
    graph = folder / "int8-zh.onnx"
    graph.unlink()
    if damage is not None:
        graph.write_bytes(damage)
    with pytest.raises(ModelError, match=r"int8-zh\.onnx: missing or damaged; expected the graph"):
        open_model(folder)
    assert open_model(folder, "torch").backend("en").name == "torch"
    edit("en_0_Transformer/config.json", layer_norm_eps=1e-3)(folder)
    with pytest.raises(ModelError, match="has no int8 graph, or was changed since it was packed"):
        open_model(folder)


def test_an_old_onnxruntime_says_what_to_install(packed: Path, tmp_path: Path) -> None:
    """A graph of a later version of ONNX than the installed one knows is what an old onnxruntime is given."""
    folder = shutil.copytree(packed, tmp_path / "model")
    graph = folder / "int8-en.onnx"
    before = hashlib.sha256(graph.read_bytes()).hexdigest()
    model = onnx.load(str(graph), load_external_data=False)
    model.ir_version = 99
    graph.write_bytes(model.SerializeToString())
    sums = folder / "int8-graphs.sha256"
    sums.write_text(sums.read_text().replace(before, hashlib.sha256(graph.read_bytes()).hexdigest()))
    version = re.escape(onnxruntime.__version__)
    with pytest.raises(ModelError) as found:
        open_model(folder).backend("en")
    assert re.search(rf"onnxruntime {version} .*IR version.*; expected version 1\.23 or later", str(found.value))
    assert "pip install -U onnxruntime" in str(found.value) and "\n" not in str(found.value)


def test_threads_can_be_chosen(packed: Path) -> None:
    """For a model and its copies in other processes; fewer than one thread is refused."""

    def workers(model: Model) -> int:
        backend: Any = model.backend("en")
        return int(backend._make_workers()._max_workers)

    model = open_model(packed, threads=3)
    assert workers(model) == workers(pickle.loads(pickle.dumps(model))) == 3
    with pytest.raises(ConfigError, match="threads 0; expected at least 1, or None"):
        open_model(packed, threads=0)


def test_copies_keep_their_graphs(packed: Path, tmp_path: Path) -> None:
    """A part of a hybrid is as fast as the model alone, and graphs do not count as part of its identity."""
    copy_model(packed, tmp_path / "copy")
    copied, model = open_model(tmp_path / "copy"), open_model(packed)
    assert copied.identity.sha256 == model.identity.sha256 and copied.backend("en").name == "int8"
    np.testing.assert_array_equal(copied.encode(EN, lang="en"), model.encode(EN, lang="en"))


def test_a_vector_does_not_depend_on_its_batch(packed: Path) -> None:
    """Alone or among longer sentences."""
    model = open_model(packed)
    together, alone = model.encode(EN, lang="en"), np.concatenate([model.encode([text], lang="en") for text in EN])
    np.testing.assert_allclose(together, alone, atol=2e-3)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_cpu_without_int8_instructions_gets_the_same(
    packed: Path, lang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products are exact in either mode of onnxruntime."""
    expected = open_model(packed).encode(TEXTS[lang], lang=lang)
    monkeypatch.setattr("dualmoco.models.backends.onnx_runtime.has_int8_instructions", lambda: False)
    np.testing.assert_allclose(open_model(packed).encode(TEXTS[lang], lang=lang), expected, atol=1e-5)


def test_eight_threads_and_new_processes(packed: Path) -> None:
    """Threads that encode at once and processes that were spawned get the vectors that one thread gets."""
    model = open_model(packed)
    expected = model.encode(EN, lang="en")
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: model.encode(EN, lang="en", progress=False), range(16)):
            np.testing.assert_allclose(found, expected, atol=2e-3)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        for found in processes.map(spawned.encode, [packed, packed], [EN, EN]):
            np.testing.assert_allclose(found, expected, atol=2e-3)


def test_it_needs_neither_pytorch_nor_transformers(packed: Path) -> None:
    """So that a model is there in a moment."""
    code = f"""
import sys
from dualmoco.models.load import open_model
open_model({str(packed)!r}).encode(["one"], lang="en")
assert not {{"torch", "transformers", "sentence_transformers"}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def edit(name: str, **settings: object) -> Callable[[Path], None]:
    """Changes settings in a file of the first route."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | settings), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    "change",
    [
        edit("en_0_Transformer/config.json", hidden_act="relu"),
        edit("en_1_Pooling/config.json", pooling_mode="max"),
        edit("en_0_Transformer/tokenizer_config.json", padding_side="left"),
    ],
)
def test_what_it_does_not_know_is_left_to_sentence_transformers(
    packed: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Rather than computed wrongly."""
    folder = shutil.copytree(packed, tmp_path / "other")
    change(folder)
    assert open_model(folder).backend("en").name == "torch"
    with pytest.raises(ModelError, match="back-end int8 is for packed BERT models"):
        open_model(folder, "int8")


def test_an_unpacked_model_has_no_int8_back_end(packed: Path) -> None:
    """Said in one line."""
    with pytest.raises(ModelError, match="back-end int8 is for packed BERT models; expected one, or back-end auto"):
        open_model(packed.parent / "whole", "int8")


def test_a_gpu_runs_the_network_itself(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where int8 is not the fastest, `auto` is torch; `int8` is still to be had."""
    monkeypatch.setattr("dualmoco.models.load.find_accelerator", lambda: "cuda")
    assert open_model(packed).backend("en").name == "torch"
    assert open_model(packed, "int8").backend("en").name == "int8"
