"""The ONNX back-ends: a graph in onnxruntime on the CPU, in fp32 or int8, without PyTorch; and its folder on disk.

A folder contains the graph, a tokenizer and `config.json` with checksums of both. Shapes: n sentences, D dimension.
"""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dualmoco.core import VERSION
from dualmoco.core.errors import ModelError
from dualmoco.core.hardware import has_int8_instructions, thread_count
from dualmoco.core.storage import file_sha256, write_bytes, write_json
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.tokens import Arrays, Padding, TokenBackend, TokenSource
from dualmoco.models.folder import TOKENIZER_FILE
from dualmoco.models.model import ANY_LANGUAGE, Identity, Model, assemble_model
from dualmoco.models.text_normalization import parse_conversion

ONNX_BATCH_TOKENS = 512
WITHOUT_OVERFLOW = "session.x64quantprecision", "1"
"""Slower but exact setting for CPUs without VNNI, which otherwise add two products in 16 bits."""
OLDEST_ONNXRUNTIME = "1.23"  # same as in pyproject.toml
ONNX_OUTPUT = "sentence_embedding"
GRAPH_FILE, ONNX_CONFIG = "model.onnx", "config.json"
ONNX_FORMAT = "dualmoco-onnx-1"
RECORDED_LIBRARIES = ("onnx", "onnxruntime", "tokenizers", "torch")
HOW_TO_USE = (
    "batch = tokenizers.Tokenizer.from_file('tokenizer.json').encode_batch(sentences); give input_ids (ids), "
    "attention_mask and, if listed, token_type_ids (type_ids) as int64 arrays to onnxruntime; put the prompt before "
    "every sentence; convert sentences as `text` says, if it says anything (chinese: OpenCC t2s or s2t; the tokenizer "
    "does nfkc); sentence_embedding holds unit vectors"
)


class OnnxBackend(TokenBackend):
    """Runs a graph, or a graph file, in onnxruntime; each of `threads` (default: one per core) runs a batch."""

    def __init__(self, name: str, graph: bytes | Path, source: TokenSource, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a batch is too small to split, so each core runs its own
        if not has_int8_instructions():
            options.add_session_config_entry(*WITHOUT_OVERFLOW)
        try:
            self.session = onnxruntime.InferenceSession(
                str(graph) if isinstance(graph, Path) else graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"onnxruntime {onnxruntime.__version__} cannot read the graph: {reason}; expected version "
                f"{OLDEST_ONNXRUNTIME} or later (pip install -U onnxruntime), or export the model again"
            ) from None
        self.name = name
        source = replace(source, inputs=tuple(one.name for one in self.session.get_inputs()))
        workers = thread_count(threads)
        dimension = int(self.run(next(source.batches(["a"], ONNX_BATCH_TOKENS))).shape[1])
        super().__init__(source, dimension, ONNX_BATCH_TOKENS, partial(ThreadPoolExecutor, workers))

    def run(self, arrays: Arrays) -> Vectors:
        """Vectors (N, D) of a padded batch (N, L), of unit length except for rounding."""
        vectors: Vectors = np.asarray(self.session.run([ONNX_OUTPUT], arrays)[0])
        return vectors


def check_onnx(*packages: str) -> None:
    """ModelError if onnx or onnxruntime is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"{' and '.join(missing)} not installed; expected for ONNX: pip install 'dualmoco[onnx]'")


@dataclass(frozen=True)
class OnnxConfig:
    """The contents of `config.json`."""

    backend: str
    lang: str
    any_language: bool  # whether the model accepts text of any language, not only of `lang`
    model: str
    sha256: str  # checksum of the model that was exported
    pooling: str
    width: int
    max_tokens: int | None
    inputs: tuple[str, ...]
    padding: Padding
    prompt: str
    lowest_cosine: float  # lowest cosine with the model itself, on the check sentences
    positions: int | None = None  # maximum tokens of the network; missing in exports of earlier versions
    text: dict[str, Any] = field(default_factory=dict)  # the text conversion of the model
    files: dict[str, str] = field(default_factory=dict)  # the checksum of each file


def write_onnx_folder(folder: Path, graph: bytes, source: TokenSource, config: OnnxConfig) -> None:
    """Writes a graph, its tokenizer, and `config` with the checksums of both, into a folder."""
    write_bytes(folder / GRAPH_FILE, graph)
    tokenizer: Tokenizer = Tokenizer.from_str(source.tokenizer.to_str())
    token = tokenizer.id_to_token(source.padding.token_id) or "[PAD]"
    tokenizer.enable_padding(
        direction="left" if source.padding.left else "right",
        pad_id=source.padding.token_id,
        pad_type_id=source.padding.type_id,
        pad_token=token,
    )
    write_bytes(folder / TOKENIZER_FILE, tokenizer.to_str(pretty=True).encode("utf-8"))
    content = asdict(config) | {
        "files": {name: file_sha256(folder / name) for name in (GRAPH_FILE, TOKENIZER_FILE)},
        "versions": {"dualmoco": VERSION, **{name: version(name) for name in RECORDED_LIBRARIES}},
        "use": HOW_TO_USE,
    }
    write_json(folder / ONNX_CONFIG, {"format": ONNX_FORMAT, **content})


def is_onnx_folder(folder: Path) -> bool:
    """Whether a folder was written by `write_onnx_folder`, judged by its config.json."""
    if not (folder / GRAPH_FILE).is_file():
        return False
    try:
        return bool(json.loads((folder / ONNX_CONFIG).read_text(encoding="utf-8"))["format"] == ONNX_FORMAT)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def open_onnx_folder(folder: Path, title: str, threads: int | None = None) -> Model:
    """Opens a folder of `write_onnx_folder` as the model `title`; ModelError if files are missing or have changed."""
    content: dict[str, Any] = json.loads((folder / ONNX_CONFIG).read_text(encoding="utf-8"))
    names = OnnxConfig.__dataclass_fields__
    try:
        content |= {"padding": Padding(**content["padding"]), "inputs": tuple(content["inputs"])}
        config = OnnxConfig(**{name: value for name, value in content.items() if name in names})
        texts = (config.lang, config.prompt, config.backend, config.pooling, config.sha256)
        if not all(isinstance(text, str) for text in (*texts, *config.inputs)):
            raise TypeError("a name is not a string")
        damaged = [name for name, known in config.files.items() if file_sha256(folder / name) != known]
    except (OSError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder}: an incomplete export ({error}); export the model again") from None
    if damaged or set(config.files) != {GRAPH_FILE, TOKENIZER_FILE}:
        raise ModelError(
            f"{folder}: {', '.join(damaged) or ONNX_CONFIG} changed since the export; export the model again"
        )
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    tokenizer.no_padding()
    source = TokenSource(tokenizer, config.inputs, config.padding, config.prompt, config.positions)
    return assemble_model(
        Identity(title, config.sha256).pooled(config.pooling, {config.lang: config.prompt}),
        {ANY_LANGUAGE if config.any_language else config.lang: source},
        lambda source: OnnxBackend(config.backend, (folder / GRAPH_FILE).read_bytes(), source, threads),
        parse_conversion(config.text, folder / ONNX_CONFIG),
    )
