"""One language of a model as a folder for others: sentence-transformers, or ONNX in single precision or int8.

What is written is opened again and compared with the model before it takes its place.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.storage import new_folder, write_json
from dualmoco.core.version import VERSION
from dualmoco.models.backends.agreement import check_agreement
from dualmoco.models.backends.onnx_folder import OnnxConfig, is_onnx_folder, open_onnx_folder, write_onnx_folder
from dualmoco.models.backends.onnx_graph import make_graph
from dualmoco.models.backends.onnx_runtime import OnnxBackend
from dualmoco.models.backends.pytorch import token_source
from dualmoco.models.encoder import Encoder, is_static
from dualmoco.models.folder import RECORD, folder_sha256
from dualmoco.models.model import ANY_LANGUAGE, ONNX, ONNX_INT8, TORCH, Identity
from dualmoco.models.network import open_network, save_encoder
from dualmoco.models.opening import find_folder
from dualmoco.models.running import reference_vectors, run_network

SENTENCE_TRANSFORMERS = "sentence-transformers"
TARGETS = (SENTENCE_TRANSFORMERS, ONNX, ONNX_INT8)
EXPORT_FORMAT = "dualmoco-export-1"


@dataclass(frozen=True)
class Exported:
    """What was written."""

    out: str
    to: str
    lang: str
    model: str
    sha256: str
    """Of the model."""
    lowest_cosine: float
    """Of the export's vectors with the model's, on the sentences that back-ends are checked with."""
    bytes: int


@dataclass(frozen=True)
class _Part:
    """The network of one language, and what it comes from."""

    network: Encoder
    identity: Identity
    lang: str
    any_language: bool
    prompt: str


def export_model(model: str, lang: str, to: str, out: Path, *, overwrite: bool = False) -> Exported:
    """Writes one language of a model.

    Args:
        model: A model or run folder, a hub name, or `package:NAME` of a network.
        lang: The language.
        to: One of TARGETS.
        out: The folder to write; an earlier export there is replaced.
        overwrite: Replace whatever folder is there.

    Returns:
        What was written.

    Raises:
        ConfigError: An unknown target, or a folder that holds something else.
        ModelError: A model that cannot be exported so, or whose export does not give its vectors.
        RunError: The folder cannot be written.
    """
    if to not in TARGETS:
        raise ConfigError(f"--to {to}; expected one of {', '.join(TARGETS)}")
    check_place(out, Path(model), overwrite=overwrite)
    part = _open_part(model, lang)
    if to != SENTENCE_TRANSFORMERS and is_static(part.network):
        raise ModelError(
            f"{model}: a static model, which ONNX would not make faster; expected a transformer, "
            f"or --to {SENTENCE_TRANSFORMERS}"
        )
    with new_folder(out) as folder:
        write = _write_sentence_transformers if to == SENTENCE_TRANSFORMERS else _write_onnx
        cosine = write(folder, part, to)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Exported(str(out), to, lang, model, part.identity.sha256, cosine, size)


def check_place(out: Path, model: Path, *, overwrite: bool) -> None:
    """Refuses to write over what is no export.

    Args:
        out: The folder to write.
        model: The model's, if it is one.
        overwrite: Whether anything but the model may be replaced.

    Raises:
        ConfigError: There is something else.
    """
    if out.is_file():
        raise ConfigError(f"{out}: a file; expected a folder to write")
    if model.is_dir() and model.resolve().is_relative_to(out.resolve()):
        raise ConfigError(f"{out}: holds the model itself; expected another folder")
    if out.is_dir() and any(out.iterdir()) and not overwrite and not is_export(out):
        raise ConfigError(f"{out}: a folder that is no export; expected a new one, or --overwrite to replace it")


def is_export(folder: Path) -> bool:
    """Whether a folder was written by `export_model`."""
    try:
        return (
            is_onnx_folder(folder)
            or json.loads((folder / RECORD).read_text(encoding="utf-8"))["format"] == EXPORT_FORMAT
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _open_part(model: str, lang: str) -> _Part:
    folder = find_folder(model)
    if folder is None:
        raise ModelError(f"{model}: no network; expected a model folder, a hub name or package:NAME of one")
    opened = open_network(folder)
    any_language = ANY_LANGUAGE in opened.encoders
    network = opened.encoders.get(ANY_LANGUAGE if any_language else lang)
    if network is None:
        raise ModelError(f"{model}: has no language {lang!r}; expected one of {', '.join(opened.encoders)}")
    identity = Identity(model, folder_sha256(folder), opened.pooling)
    return _Part(network, identity, lang, any_language, opened.prompt)


def _write_sentence_transformers(folder: Path, part: _Part, to: str) -> float:
    save_encoder(part.network, folder, part.prompt)
    opened = open_network(folder)
    if ANY_LANGUAGE not in opened.encoders or opened.prompt != part.prompt:
        raise ModelError(f"{part.identity.name}: not written as it is; expected one route and prompt {part.prompt!r}")
    backend = run_network(opened.encoders[ANY_LANGUAGE], TORCH, prompt=opened.prompt)
    cosine = check_agreement(to, backend.encode, reference_vectors(part.network, part.prompt))
    record = {
        "format": EXPORT_FORMAT,
        "version": VERSION,
        "lang": part.lang,
        "lowest_cosine": cosine,
        **asdict(part.identity),
    }
    write_json(folder / RECORD, record)
    return cosine


def _write_onnx(folder: Path, part: _Part, to: str) -> float:
    source = token_source(part.network, part.prompt)
    if source is None:
        raise ModelError(
            f"{part.identity.name}: no transformer of plain text; expected one, or --to {SENTENCE_TRANSFORMERS}"
        )
    graph = make_graph(to, part.network, source)
    made = OnnxBackend(to, graph, source)
    reference = reference_vectors(part.network, part.prompt)
    cosine = check_agreement(to, made.encode, reference)
    truncation = source.tokenizer.truncation
    pooling = next((str(layer.pooling_mode) for layer in part.network.layers if hasattr(layer, "pooling_mode")), "own")
    write_onnx_folder(folder, graph, source, OnnxConfig(
        backend=to, lang=part.lang, any_language=part.any_language, model=part.identity.name,
        sha256=part.identity.sha256, pooling=pooling, width=made.dimension,
        max_tokens=truncation["max_length"] if truncation else None,
        inputs=source.inputs, padding=source.padding, prompt=part.prompt, lowest_cosine=cosine,
    ))  # fmt: skip
    check_agreement(to, open_onnx_folder(folder, part.identity.name).backend(part.lang).encode, reference)
    return cosine
