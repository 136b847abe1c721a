"""The ONNX back-ends: a graph in onnxruntime on the CPU, in single precision or int8, without PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dualmoco.core.errors import ModelError
from dualmoco.core.storage import file_sha256, write_bytes, write_json
from dualmoco.core.vectors import Vectors
from dualmoco.core.version import VERSION
from dualmoco.models.backends.tokens import Arrays, Padding, TokenSource
from dualmoco.models.model import ANY_LANGUAGE, Identity, Model, assemble_model
from dualmoco.models.text_normalization import parse_conversion

BUDGET = 512
"""Tokens in a batch."""
OUTPUT = "sentence_embedding"


class OnnxBackend:
    """A graph in onnxruntime.

    Args:
        name: onnx or onnx-int8.
        graph: Of inputs as `source` names them.
        source: Its tokens.
        threads: Each of which takes a batch; one a core, or what OMP_NUM_THREADS says, if None.

    Raises:
        ModelError: onnxruntime is not installed or cannot read the graph.
    """

    is_unit = False

    def __init__(self, name: str, graph: bytes, source: TokenSource, threads: int | None = None) -> None:
        check_onnx("onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a batch is too small to share: each core takes its own
        try:
            self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises classes of its own, without a common base
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(f"a graph that onnxruntime cannot read: {reason}; export it again") from None
        self.name, self.source = name, source
        self.workers = ThreadPoolExecutor(threads or int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        self.dimension = int(self._run(next(source.batches(["a"], BUDGET))).shape[1])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order, of unit length but for rounding."""
        return self.source.encode(texts, BUDGET, self.dimension, self._run, self.workers)

    def _run(self, arrays: Arrays) -> Vectors:
        vectors: Vectors = np.asarray(self.session.run([OUTPUT], arrays)[0])
        return vectors


def check_onnx(*packages: str) -> None:
    """Refuses to work without the extra.

    Args:
        packages: Some of onnx and onnxruntime.

    Raises:
        ModelError: One is not installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"{' and '.join(missing)} not installed; expected for ONNX: pip install 'dualmoco[onnx]'")


GRAPH, TOKENIZER, CONFIG = "model.onnx", "tokenizer.json", "config.json"
ONNX_FORMAT = "dualmoco-onnx-1"
LIBRARIES = ("onnx", "onnxruntime", "tokenizers", "torch")
USE = (
    "batch = tokenizers.Tokenizer.from_file('tokenizer.json').encode_batch(sentences); give input_ids (ids), "
    "attention_mask and, if listed, token_type_ids (type_ids) as int64 arrays to onnxruntime; put the prompt before "
    "every sentence; convert sentences as `text` says, if it says anything (chinese: OpenCC t2s or s2t; the tokenizer "
    "does nfkc); sentence_embedding holds unit vectors"
)


@dataclass(frozen=True)
class OnnxConfig:
    """What a folder holds, but for its tokenizer."""

    backend: str
    lang: str
    any_language: bool
    """Whether the model takes text of every language, not only of `lang`."""
    model: str
    sha256: str
    """Of the model it was made from."""
    pooling: str
    width: int
    max_tokens: int | None
    inputs: tuple[str, ...]
    padding: Padding
    prompt: str
    lowest_cosine: float
    """With the model itself, on the sentences that back-ends are checked with."""
    text: dict[str, Any] = field(default_factory=dict)
    """The text conversion of the model."""
    files: dict[str, str] = field(default_factory=dict)
    """The checksum of each."""


def write_onnx_folder(folder: Path, graph: bytes, source: TokenSource, config: OnnxConfig) -> None:
    """Fills a folder.

    Args:
        folder: Where to.
        graph: The network.
        source: Its tokens.
        config: What they are; the checksums of files are added.
    """
    write_bytes(folder / GRAPH, graph)
    tokenizer: Tokenizer = Tokenizer.from_str(source.tokenizer.to_str())
    token = tokenizer.id_to_token(source.padding.token_id) or "[PAD]"
    tokenizer.enable_padding(
        direction="left" if source.padding.left else "right",
        pad_id=source.padding.token_id,
        pad_type_id=source.padding.type_id,
        pad_token=token,
    )
    write_bytes(folder / TOKENIZER, tokenizer.to_str(pretty=True).encode("utf-8"))
    content = asdict(config) | {
        "files": {name: file_sha256(folder / name) for name in (GRAPH, TOKENIZER)},
        "versions": {"dualmoco": VERSION, **{name: version(name) for name in LIBRARIES}},
        "use": USE,
    }
    write_json(folder / CONFIG, {"format": ONNX_FORMAT, **content})


def is_onnx_folder(folder: Path) -> bool:
    """Whether a folder was made by `write_onnx_folder`, as far as its config.json says."""
    if not (folder / GRAPH).is_file():
        return False
    try:
        return bool(json.loads((folder / CONFIG).read_text(encoding="utf-8"))["format"] == ONNX_FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_onnx_folder(folder: Path, title: str, threads: int | None = None) -> Model:
    """Opens an exported model.

    Args:
        folder: Of `write_onnx_folder`.
        title: What to call it in results.
        threads: Of onnxruntime.

    Returns:
        The model.

    Raises:
        ModelError: Files that are not those that were exported.
    """
    content: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    names = OnnxConfig.__dataclass_fields__
    try:
        content |= {"padding": Padding(**content["padding"]), "inputs": tuple(content["inputs"])}
        config = OnnxConfig(**{name: value for name, value in content.items() if name in names})
        damaged = [name for name, known in config.files.items() if file_sha256(folder / name) != known]
    except (OSError, TypeError, KeyError) as error:
        raise ModelError(f"{folder}: an export that is not whole ({error}); export the model again") from None
    if damaged or set(config.files) != {GRAPH, TOKENIZER}:
        raise ModelError(f"{folder}: {', '.join(damaged) or CONFIG} changed since the export; export the model again")
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    source = TokenSource(tokenizer, config.inputs, config.padding, config.prompt)
    return assemble_model(
        Identity(title, config.sha256, config.pooling),
        {ANY_LANGUAGE if config.any_language else config.lang: source},
        lambda source: OnnxBackend(config.backend, (folder / GRAPH).read_bytes(), source, threads),
        parse_conversion(config.text, folder / CONFIG),
    )
