"""The int8 back-end: a packed BERT in onnxruntime, whose matrices are multiplied as they are stored, without PyTorch.

`int8_graph.py` says how. The graphs of a packed folder are files in it, `int8-LANG.onnx`. Their checksums, and that of
the model that they were made for, are in a file for `sha256sum -c`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dualmoco.core.errors import ModelError
from dualmoco.core.storage import file_sha256, write_bytes, write_text
from dualmoco.models.backends.int8_graph import INT8_POOLINGS, BertShape, DenseLayer, make_int8_graph
from dualmoco.models.backends.st_format import (
    DENSE,
    LAYOUT_ERRORS,
    POOLING,
    TRANSFORMER,
    Layer,
    UnknownLayoutError,
    check_projection,
    pop_normalize,
    read_layout,
    read_prompt,
    read_settings,
    read_tokenizer,
)
from dualmoco.models.backends.static import check_vocabulary
from dualmoco.models.backends.tokens import TOKEN_IDS, TOKEN_MASK, Padding, TokenSource, check_length
from dualmoco.models.folder import GRAPH_CHECKSUMS, INT8_FILE, folder_sha256
from dualmoco.models.int8_format import INT8_GRAPH, check_packed

BERT_DEFAULTS = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
"""The only values of these settings that this back-end supports."""
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
MODEL_LINE = "# model "  # begins the line of the model's checksum, a comment for sha256sum


@dataclass(frozen=True)
class Int8Encoder:
    """The graph of one language and its tokens."""

    graph: Path
    source: TokenSource


@dataclass(frozen=True)
class _PackedBert:
    """An encoder that the back-end supports, by the folders of its layers."""

    bert: Path
    shape: BertShape
    projections: tuple[Path, ...]
    unit: bool  # whether the encoder scales its vectors to unit length

    def check(self, source: TokenSource) -> None:
        """Refuses weights that are damaged or do not fit the settings, with ModelError."""
        tensors, config = _load_packed(self.bert), read_settings(self.bert)
        check_vocabulary(tensors["embeddings.word_embeddings.weight"].shape, source.tokenizer, self.bert)
        _check_shapes(tensors, _bert_shapes(config), self.bert)
        width = int(config["hidden_size"])
        for folder in self.projections:
            tensors = _load_packed(folder)
            outputs = len(tensors["linear.weight"])
            _check_shapes(tensors, {"linear.weight": (outputs, width)}, folder)
            width = outputs


def read_int8_folder(folder: Path, sha256: str, prompt: str = "") -> dict[str, Int8Encoder] | None:
    """Reads a packed model, by language, whose checksum is known; None if it has anything not supported here.

    ModelError if weights, settings or graphs were changed since the model was packed. An empty prompt means the model's
    own.
    """
    found = _read_encoders(folder, prompt)
    if found is None:
        return None
    checksums = _read_checksums(folder)
    if checksums.get(MODEL_LINE) != sha256:
        for encoder, source in found.values():
            encoder.check(source)
        raise ModelError(
            f"{folder}: has no int8 graph, or was changed since it was packed; expected a model as it was packed: make "
            "it again, or use back-end torch"
        )
    graphs = {encoder: folder / INT8_GRAPH.format(lang) for lang, (encoder, _) in reversed(found.items())}
    for path in graphs.values():
        if not path.is_file() or file_sha256(path) != checksums.get(path.name):
            raise ModelError(f"{path}: missing or damaged; expected the graph of the model: install or make it again")
    return _shared({lang: Int8Encoder(graphs[encoder], source) for lang, (encoder, source) in found.items()})


def _shared(encoders: dict[str, Int8Encoder]) -> dict[str, Int8Encoder]:
    """The same encoders; languages that share a graph get the same one."""
    first = {encoder.graph: encoder for encoder in reversed(encoders.values())}
    return {lang: first[encoder.graph] for lang, encoder in encoders.items()}


def write_int8_graphs(folder: Path) -> None:
    """Writes the graphs of a packed folder and their checksums, if the back-end supports the model."""
    found = _read_encoders(folder, "")
    if found is None:
        return
    graphs: dict[_PackedBert, Path] = {}
    for lang, (encoder, source) in found.items():
        if encoder not in graphs:
            encoder.check(source)
            graphs[encoder] = folder / INT8_GRAPH.format(lang)
            write_bytes(graphs[encoder], _graph(folder, encoder))
    lines = [f"{file_sha256(path)}  {path.name}\n" for path in graphs.values()]
    write_text(folder / GRAPH_CHECKSUMS, "".join([f"{MODEL_LINE}{folder_sha256(folder)}\n", *lines]))


def _graph(folder: Path, encoder: _PackedBert) -> bytes:
    dense = [DenseLayer(place) for place in encoder.projections]
    return make_int8_graph(encoder.bert, encoder.shape, dense, unit=encoder.unit, home=folder)


def _read_checksums(folder: Path) -> dict[str, str]:
    """Checksums of graphs by name, and of the model under MODEL_LINE; none if there is no such file."""
    try:
        lines = (folder / GRAPH_CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    found = {}
    for line in lines:
        sha256, _, name = line.partition("  ")
        if line.startswith(MODEL_LINE):
            sha256, name = line.removeprefix(MODEL_LINE), MODEL_LINE
        found[name] = sha256
    return found


def _read_encoders(folder: Path, prompt: str) -> dict[str, tuple[_PackedBert, TokenSource]] | None:
    """Encoders and tokens by language; None if one is not a BERT, or has anything not supported here."""
    try:
        layout = read_layout(folder)
        prompt = prompt or read_prompt(folder)
        return {lang: _read_encoder(layers, prompt) for lang, layers in layout.items()}
    except LAYOUT_ERRORS:
        return None  # sentence-transformers opens it, or says what is wrong with it


def _read_encoder(layers: tuple[Layer, ...], prompt: str) -> tuple[_PackedBert, TokenSource]:
    (first, folder), (second, pooling), *rest = layers
    unit = pop_normalize(rest)
    if (first, second) != (TRANSFORMER, POOLING) or any(layer.kind != DENSE for layer in rest):
        raise UnknownLayoutError
    for layer in rest:
        check_projection(layer.folder)
    if not all((layer / INT8_FILE).is_file() for layer in (folder, *(one.folder for one in rest))):
        raise UnknownLayoutError
    shape, source = _read_shape(folder, pooling), _read_tokens(folder, prompt)
    return _PackedBert(folder, shape, tuple(layer.folder for layer in rest), unit), source


def _load_packed(folder: Path) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = load_file(folder / INT8_FILE)
    check_packed(tensors, folder / INT8_FILE)
    return tensors


def _bert_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that a BERT of these settings has, with their shapes."""
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}_embeddings.weight": (int(config[key]), width) for name, key in tables.items()
    }
    layers = [f"encoder.layer.{number}." for number in range(int(config["num_hidden_layers"]))]
    norms = ["embeddings", *(f"{layer}{name}" for layer in layers for name in ("attention.output", "output"))]
    shapes |= {f"{name}.LayerNorm.{part}": (width,) for name in norms for part in ("weight", "bias")}
    for layer in layers:
        square = [f"attention.self.{part}" for part in ("query", "key", "value")] + ["attention.output.dense"]
        sizes = {name: (width, width) for name in square}
        sizes |= {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
        for name, size in sizes.items():
            shapes |= {f"{layer}{name}.weight": size, f"{layer}{name}.bias": size[:1]}
    return shapes


def _check_shapes(tensors: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """Refuses tensors that are missing or of another shape, and matrices that are not int8, with ModelError."""
    for name, shape in expected.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape or 0 in shape or (len(shape) == 2 and tensors[name].dtype != np.int8):
            raise ModelError(f"{folder / INT8_FILE}: {name} {found or 'is missing'}; expected {shape} by config.json")


def _read_shape(folder: Path, pooling: Path) -> BertShape:
    config, pools = read_settings(folder), read_settings(pooling)
    text = read_settings(folder, "sentence_bert_config.json")
    is_known = all(config.get(key, value) == value for key, value in BERT_DEFAULTS.items())
    is_bert = config["model_type"] == "bert" and text["modality_config"] == TEXT_ONLY
    known_pooling = pools["pooling_mode"] in INT8_POOLINGS and pools.get("include_prompt", True)
    if not (is_bert and is_known and known_pooling):
        raise UnknownLayoutError
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    if layers < 1 or heads < 1 or config["hidden_size"] % heads:
        sizes = f"{layers} layers, {heads} heads, width {config['hidden_size']}"
        raise ModelError(
            f"{folder / 'config.json'}: {sizes}; expected at least one each, and heads that divide the width"
        )
    return BertShape(layers, heads, config["layer_norm_eps"], pools["pooling_mode"])


def _read_tokens(folder: Path, prompt: str) -> TokenSource:
    config = read_settings(folder, "tokenizer_config.json")
    if any(config.get(side, "right") != "right" for side in ("padding_side", "truncation_side")):
        raise UnknownLayoutError
    tokenizer = read_tokenizer(folder)
    tokenizer.no_padding()
    positions = int(read_settings(folder)["max_position_embeddings"])
    tokenizer.enable_truncation(check_length(config["model_max_length"], positions, folder))
    padding = tokenizer.token_to_id(config["pad_token"])
    if padding is None:
        raise UnknownLayoutError
    return TokenSource(tokenizer, (TOKEN_IDS, TOKEN_MASK), Padding(padding), prompt, positions)
