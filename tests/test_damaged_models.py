"""Damaged and hostile model folders: refused in one line that names the folder, and never read from elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from dualmoco.core.errors import DataError, ModelError, RunError
from dualmoco.core.vectors import unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.mining.knn import MiningSettings
from dualmoco.mining.threshold import read_calibration
from dualmoco.models.export import is_export
from dualmoco.models.folder import INT8_FILE, WEIGHTS_FILE
from dualmoco.models.load import open_model
from dualmoco.models.pack import pack_model
from dualmoco.models.tokenizer import train_tokenizer
from dualmoco.training.checkpoint import load_checkpoint, save_checkpoint
from dualmoco.training.objective import Objective
from dualmoco.training.schedule import RunProgress

TOKENIZER = train_tokenizer([src for src, _ in generate_pairs(100, seed=4)], 300, 16, special_tokens=False)
Tensors = dict[str, np.ndarray]


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A static model with a projection."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [
        StaticEmbedding(TOKENIZER, embedding_dim=8),
        Dense(8, 4, activation_function=nn.Identity()),
        Normalize(),
    ]
    folder = tmp_path / "static"
    SentenceTransformer(modules=layers, device="cpu").save(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def packed(static: Path, tmp_path: Path) -> Path:
    """The same model as int8."""
    pack_model(static, tmp_path / "packed")
    return tmp_path / "packed"


@pytest.fixture
def bert(sentence_folder: Path, tmp_path: Path) -> Path:
    """A copy of a random BERT."""
    return Path(shutil.copytree(sentence_folder, tmp_path / "bert"))


def change(path: Path, edit: Callable[[Tensors], Any]) -> None:
    """Edits the tensors of a file."""
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path)


def refuse(folder: Path, expected: str, **settings: Any) -> None:
    """Opening fails with one line that matches."""
    with pytest.raises(ModelError, match=expected) as caught:
        open_model(folder, **settings).encode(["the cat"], lang="en")
    assert "\n" not in str(caught.value)


def weights_of(folder: Path, name: str) -> Path:
    """The weights of the layer whose folder ends with a name; the first layer is in the model's folder itself."""
    places = sorted(folder.rglob("*.safetensors"), key=lambda path: not path.parent.name.endswith(name))
    return places[0] if name != "StaticEmbedding" else next(folder.glob("*.safetensors"))


NAN, INF = np.float32(np.nan), np.float32(np.inf)
TABLES: dict[str, tuple[str, Callable[[Tensors], Any]]] = {
    "few rows": ("at least", lambda t: t.update({"embedding.weight": t["embedding.weight"][:5]})),
    "one dimension": ("at least", lambda t: t.update({"embedding.weight": t["embedding.weight"][:, 0]})),
    "dimension 0": ("at least", lambda t: t.update({"embedding.weight": t["embedding.weight"][:, :0]})),
    "nan": ("NaN or infinity", lambda t: t["embedding.weight"].__setitem__((3, 1), NAN)),
    "infinity": ("NaN or infinity", lambda t: t["embedding.weight"].__setitem__((3, 1), INF)),
}


@pytest.mark.parametrize("fault", TABLES)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_damaged_table_is_refused(static: Path, fault: str, backend: str) -> None:
    """Rows for every token, a dimension and finite numbers, whichever library reads them."""
    expected, edit = TABLES[fault]
    change(weights_of(static, "StaticEmbedding"), edit)
    if backend == "torch" and fault in ("one dimension", "dimension 0"):
        expected = "static"  # in the words of the library
    refuse(static, expected, backend=backend)


SCALE = "embedding.weight.scale"
SCALES: dict[str, tuple[str, Callable[[Tensors], Any]]] = {
    "zero": ("finite number above 0", lambda t: t[SCALE].__setitem__(2, 0)),
    "nan": ("finite number above 0", lambda t: t[SCALE].__setitem__(2, NAN)),
    "missing": ("one scale each", lambda t: t.pop(SCALE)),
    "too few": ("one scale each", lambda t: t.update({SCALE: t[SCALE][:7]})),
    "one number": ("one scale each", lambda t: t.update({SCALE: t[SCALE][:1]})),
    "flat weight": ("one scale each", lambda t: t.update({"embedding.weight": t["embedding.weight"][:, 0]})),
    "wide numbers": ("one scale each", lambda t: t.update({SCALE: t[SCALE].astype(np.float64)})),
}


@pytest.mark.parametrize("fault", SCALES)
def test_damaged_scales_are_refused(packed: Path, fault: str) -> None:
    """Every row of a packed matrix has one scale above 0."""
    expected, edit = SCALES[fault]
    change(weights_of(packed, "StaticEmbedding"), edit)
    refuse(packed, expected)


def test_a_projection_of_another_shape_is_refused(static: Path) -> None:
    """It must take what the table gives."""
    change(weights_of(static, "Dense"), lambda t: t.update({"linear.weight": t["linear.weight"][:, :5]}))
    refuse(static, "expected 8 columns")


@pytest.mark.parametrize("name", ["encoder.layer.0.output.dense.weight", "embeddings.word_embeddings.weight"])
def test_a_bert_without_a_tensor_is_refused(bert: Path, name: str) -> None:
    """The library would replace it by random numbers."""
    change(bert / WEIGHTS_FILE, lambda t: t.pop(name))
    refuse(bert, f"weights are missing, such as {name}")


def test_a_bert_without_its_last_layer_is_refused(bert: Path) -> None:
    """The number of layers is that of config.json."""
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    refuse(bert, "16 weights are missing, such as encoder.layer.1")


def test_a_bert_without_a_pooler_is_opened(bert: Path) -> None:
    """Sentence vectors do not use it."""
    change(bert / WEIGHTS_FILE, lambda t: [t.pop(name) for name in list(t) if name.startswith("pooler.")])
    assert open_model(bert).encode("the cat", lang="en").any()


def test_a_bert_with_nan_is_refused(bert: Path) -> None:
    """Before any sentence is encoded."""
    change(bert / WEIGHTS_FILE, lambda t: t["embeddings.LayerNorm.weight"].__setitem__(0, NAN))
    refuse(bert, "NaN or infinity")


WORDS = "embeddings.word_embeddings.weight"
LAYER_WEIGHT = "encoder.layer.0.intermediate.dense.weight"
PACKED_BERTS: dict[str, tuple[str, Callable[[Tensors], Any]]] = {
    "few rows": ("at least", lambda t: t.update({name: t[name][:5] for name in (WORDS, WORDS + ".scale")})),
    "no layer": ("missing", lambda t: [t.pop(name) for name in list(t) if name.startswith("encoder.layer.0.")]),
    "narrow": ("by config.json", lambda t: t.update({LAYER_WEIGHT: t[LAYER_WEIGHT][:, :8]})),
    "float": ("one scale each", lambda t: t.update({LAYER_WEIGHT: t[LAYER_WEIGHT].astype(np.float32)})),
}


@pytest.mark.parametrize("fault", PACKED_BERTS)
def test_a_damaged_packed_bert_is_refused(bert: Path, tmp_path: Path, fault: str) -> None:
    """Its tensors are those that its settings describe."""
    pack_model(bert, tmp_path / "packed")
    expected, edit = PACKED_BERTS[fault]
    change(tmp_path / "packed" / INT8_FILE, edit)
    refuse(tmp_path / "packed", expected, backend="int8")


def test_unit_vectors_do_not_hide_faults() -> None:
    """NaN, infinity and lengths beyond fp32 do not become vectors of zeros."""
    vectors = np.array([[3, 4], [0, 0], [np.nan, 1], [np.inf, 1], [3e38, 3e38]], dtype=np.float32)
    made = unit_vectors(vectors)
    assert made[:2].tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]
    assert np.isnan(made[2:]).any(axis=1).all()


CHECKPOINTS: dict[str, tuple[str, str, Callable[[Tensors], Any]]] = {
    "one row": ("model", "expected", lambda t: t.update({"layer.weight": t["layer.weight"][:1]})),
    "missing": ("model", "missing", lambda t: t.pop("layer.bias")),
    "double": ("model", "float64", lambda t: t.update({"layer.weight": t["layer.weight"].astype(np.float64)})),
    "moment": ("optimizer", "damaged", lambda t: t.update({"0.exp_avg": t["0.exp_avg"][:1]})),
    "stranger": ("optimizer", "damaged", lambda t: t.update({"9.exp_avg": t["0.exp_avg"]})),
}


@pytest.mark.parametrize("fault", CHECKPOINTS)
def test_a_checkpoint_of_other_shapes_is_refused(tmp_path: Path, fault: str) -> None:
    """A tensor of one row would be repeated; nothing is restored then."""
    network = Objective()
    network.layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters())
    network.layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, RunProgress(step=1), network, optimizer, None, keep=1, signature="same", encoders={})
    checkpoint = next(tmp_path.iterdir())
    load_checkpoint(checkpoint, network, optimizer, None, signature="same")
    name, expected, edit = CHECKPOINTS[fault]
    change(checkpoint / f"{name}.safetensors", edit)
    with pytest.raises(RunError, match=expected):
        load_checkpoint(checkpoint, network, optimizer, None, signature="same")


def test_paths_out_of_the_folder_are_refused(static: Path, tmp_path: Path) -> None:
    """Neither parents nor absolute paths nor folders that the checksum leaves out."""
    shutil.copytree(static / "1_Dense", tmp_path / "1_Dense")
    for hidden in (".hidden", "nli"):
        shutil.copytree(static / "1_Dense", static / hidden)
    modules = json.loads((static / "modules.json").read_text())
    for path in ("../1_Dense", str(tmp_path / "1_Dense"), ".hidden", "nli", "1_Dense/../../1_Dense"):
        (static / "modules.json").write_text(json.dumps([modules[0], modules[1] | {"path": path}, modules[2]]))
        refuse(static, "inside the model folder")


def test_shards_and_tokenizers_elsewhere_are_refused(bert: Path, tmp_path: Path) -> None:
    """The index of shards and the settings of a tokenizer can name files, too."""
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    refuse(bert, "inside the model folder")
    (bert / "model.safetensors.index.json").unlink()
    shutil.copy(bert / "tokenizer.json", tmp_path / "other.json")
    settings = json.loads((bert / "tokenizer_config.json").read_text())
    (bert / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_file": str(tmp_path / "other.json")}))
    refuse(bert, "no files by path")


def test_links_out_of_the_folder_are_refused(static: Path, tmp_path: Path) -> None:
    """Files and folders alike; a link to the whole folder is fine."""
    (tmp_path / "link").symlink_to(static)
    assert open_model(tmp_path / "link").identity.sha256 == open_model(static).identity.sha256
    shutil.move(static / "1_Dense", tmp_path / "dense")
    (static / "1_Dense").symlink_to(tmp_path / "dense")
    refuse(static, "a link to")
    (static / "1_Dense").unlink()
    shutil.move(tmp_path / "dense", static / "1_Dense")
    shutil.move(static / "tokenizer.json", tmp_path / "tokenizer.json")
    (static / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    refuse(static, "a link to")


def test_the_cache_of_the_hub_is_opened(static: Path, tmp_path: Path) -> None:
    """Its snapshots hold links to the files in blobs."""
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "123"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in static.rglob("*") if path.is_file())):
        shutil.copy(file, blobs / str(number))
        place = snapshot / file.relative_to(static)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(Path(*[".."] * (len(place.relative_to(blobs.parent).parts) - 1), "blobs", str(number)))
    assert open_model(snapshot).identity.sha256 == open_model(static).identity.sha256


def test_a_pickle_beside_a_decoy_is_refused(static: Path) -> None:
    """Only weights under the name that libraries prefer keep them from reading a pickle."""
    dense = static / "1_Dense"
    torch.save({"linear.weight": torch.zeros(4, 8)}, dense / "pytorch_model.bin")
    assert open_model(static)
    (dense / WEIGHTS_FILE).rename(dense / "decoy.safetensors")
    refuse(static, "never loaded")


@pytest.mark.parametrize("name", ["X.PY", "1_Dense/x.Py", "x.pyc"])
def test_code_under_any_spelling_is_refused(static: Path, name: str) -> None:
    """Endings are compared without case."""
    (static / name).write_text("print('run')")
    refuse(static, "code in a model folder")


NESTED = "[" * 100_000
DAMAGED: dict[str, str] = {
    "modules.json": NESTED,
    "dualmoco.json": NESTED,
    "hybrid.json": NESTED,
    "config_sentence_transformers.json": NESTED,
    "1_Dense/config.json": "[1]",
    "tokenizer.json": '{"version": "1.0", "model": {}}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_json_file_is_one_line(static: Path, name: str) -> None:
    """Deep nesting and files of another shape."""
    (static / name).write_text(DAMAGED[name])
    refuse(static, "static")


@pytest.mark.parametrize("content", [{}, {"types": [], "structure": 3}, {"types": {}, "structure": {"en": 3}}, [3]])
def test_a_router_of_another_shape_is_one_line(tiny_model: Path, tmp_path: Path, content: Any) -> None:
    """Routes are lists of names."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "routed"))
    (folder / "router_config.json").write_text(json.dumps(content))
    refuse(folder, "routed")


@pytest.mark.parametrize("heads", [0, -1, 3])
@pytest.mark.parametrize("backend", ["torch", "int8"])
def test_impossible_heads_are_one_line(bert: Path, tmp_path: Path, heads: int, backend: str) -> None:
    """The number of heads divides the width."""
    folder = bert
    if backend == "int8":
        folder = tmp_path / "packed"
        pack_model(bert, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": heads}))
    refuse(folder, folder.name, backend=backend)


@pytest.mark.parametrize("length", ["0", "-3", "Infinity", "NaN"])
@pytest.mark.parametrize("backend", ["torch", "int8"])
def test_impossible_lengths_are_one_line_or_ignored(bert: Path, tmp_path: Path, length: str, backend: str) -> None:
    """The longest sentence has at least one token; infinity means that PyTorch's own limit is taken."""
    folder = bert
    if backend == "int8":
        folder = tmp_path / "packed"
        pack_model(bert, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    text = json.dumps(settings | {"model_max_length": "HERE"}).replace('"HERE"', length)
    (folder / "tokenizer_config.json").write_text(text)
    if backend == "torch" and length == "Infinity":
        assert open_model(folder, backend).encode("the cat", lang="en").any()
    else:
        refuse(folder, "model_max_length|max_length|length", backend=backend)


def test_an_empty_array_is_one_line(tmp_path: Path) -> None:
    """A file without a byte, and one without a row."""
    (tmp_path / "en.txt").write_text("a\n")
    for write in (lambda path: path.write_bytes(b""), lambda path: np.save(path, np.empty((0, 4), np.float32))):
        write(tmp_path / "en.npy")
        with pytest.raises(DataError, match=r"en\.npy"):
            open_model(f"embeddings:{tmp_path}")


def test_a_nested_calibration_is_not_used(tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is the record of an export."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (folder / "calibration.json").write_text(NESTED)
    assert read_calibration(open_model(folder), ("en", "zh"), MiningSettings()) is None
    assert "calibration.json: not used (calibration.json is nested too deeply)" in caplog.text
    (folder / "dualmoco.json").write_text(NESTED)
    assert not is_export(folder)
