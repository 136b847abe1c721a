"""Export one language of a model for other programs: a folder for sentence-transformers, or ONNX in fp32 or int8.

The folder is opened again and compared with the model before it is put in place. A hybrid is exported to ONNX part by
part, with its static parts for sentence-transformers. A hybrid cannot be exported to sentence-transformers as a whole,
because no module of that library runs two encoders with separate tokenizers and joins their vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dualmoco.core import VERSION
from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.storage import new_folder, read_json, write_json
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.onnx_export import make_graph
from dualmoco.models.backends.onnx_runtime import (
    OnnxBackend,
    OnnxConfig,
    is_onnx_folder,
    open_onnx_folder,
    write_onnx_folder,
)
from dualmoco.models.backends.pytorch import CHECK_SENTENCES, check_agreement, reference_vectors, token_source
from dualmoco.models.card import CardSubject, write_card
from dualmoco.models.embedded import EMBEDDED
from dualmoco.models.folder import (
    DIMENSIONS_KEY,
    MODEL_RECORD,
    TEXT_KEY,
    check_place,
    folder_sha256,
    read_conversion,
    read_trained_dimensions,
)
from dualmoco.models.hybrid import find_part_folder, is_hybrid, read_hybrid, write_hybrid
from dualmoco.models.load import find_folder, open_model, run_network
from dualmoco.models.model import ANY_LANGUAGE, ONNX, ONNX_INT8, TORCH, Identity, Model
from dualmoco.models.network import (
    Encoder,
    add_nfkc_normalizer,
    carries_nfkc,
    is_static,
    open_network,
    save_encoder,
    take_all_tokens,
)
from dualmoco.models.text_normalization import NO_CONVERSION, TextConversion

SENTENCE_TRANSFORMERS = "sentence-transformers"
TARGETS = (SENTENCE_TRANSFORMERS, ONNX, ONNX_INT8)
EXPORT_FORMAT = "dualmoco-export-1"


@dataclass(frozen=True)
class Exported:
    """An exported folder."""

    out: str
    to: str
    lang: str
    model: str
    sha256: str  # checksum of the model
    lowest_cosine: float  # lowest cosine between vectors of the export and the model, on the check sentences
    bytes: int


@dataclass(frozen=True)
class _Part:
    """The network of one language, and the model it comes from."""

    network: Encoder
    folder: Path  # of the model
    identity: Identity
    lang: str
    any_language: bool
    conversion: TextConversion
    dimensions: list[int]  # dimensions that it was trained for, according to its record

    def convert(self, texts: Sequence[str]) -> list[str]:
        """Sentences after text conversion, as input of the network."""
        return self.conversion.apply(texts, self.lang)


def export_model(model: str, lang: str, to: str, out: Path, *, overwrite: bool = False) -> Exported:
    """Writes one language of a model.

    Args:
        model: A model or run folder, a hybrid, a hub name, or `package:NAME` of a network.
        lang: Language.
        to: One of TARGETS.
        out: Folder to write; an earlier export is replaced.
        overwrite: Whether to replace any folder there.

    Returns:
        A summary of the export.

    Raises:
        ConfigError: The target is unknown, or the folder contains other files.
        ModelError: The model cannot be exported, or the export does not return the vectors of the model.
        RunError: The folder cannot be written.
    """
    check_export(model, to, out, overwrite=overwrite)
    folder = find_folder(model)
    if folder is None:
        raise ModelError(f"{model}: not a network; expected the model folder, hub name or package:NAME of a network")
    return export_folder(model, folder, lang, to, out)


def check_export(model: str, to: str, out: Path, *, overwrite: bool) -> None:
    """ConfigError if the target is unknown, or if `out` would replace a folder that is not an export."""
    if to not in TARGETS:
        raise ConfigError(f"--to {to}; expected one of {', '.join(TARGETS)}")
    check_place(out, [Path(model)], "export", replace=overwrite or is_export(out))


def export_folder(model: str, folder: Path, lang: str, to: str, out: Path) -> Exported:
    """Writes one language of the model in `folder`, which is called `model`; see `export_model`."""
    if is_hybrid(folder):
        _check_hybrid(model, folder, to)
    hybrid = open_model(model, TORCH) if is_hybrid(folder) else None  # the weights of a packed model in fp32, not int8
    inside = (
        {f"{model}/{part.folder}": find_part_folder(folder, part) for part in read_hybrid(folder)} if hybrid else {}
    )
    parts = [_open_part(name, place, lang) for name, place in (inside or {model: folder}).items()]
    if to != SENTENCE_TRANSFORMERS and all(is_static(part.network) for part in parts):
        raise ModelError(
            f"{model}: a static model, which would not be faster with ONNX; expected a transformer, "
            f"or --to {SENTENCE_TRANSFORMERS}"
        )
    with new_folder(out) as place:
        cosine = _write_hybrid(place, hybrid, folder, parts, to) if hybrid else _write_part(place, parts[0], to)
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    identity = hybrid.identity if hybrid else parts[0].identity
    return Exported(str(out), to, lang, model, identity.sha256, cosine, size)


def _check_hybrid(model: str, folder: Path, to: str) -> None:
    """ModelError for parts that are packages, and for exports that sentence-transformers could not open."""
    for part in read_hybrid(folder):
        if part.is_package and to != SENTENCE_TRANSFORMERS:
            raise ModelError(f"{model}: its part {part.folder} is not a network; expected a hybrid of model folders")
    if to != SENTENCE_TRANSFORMERS:
        return
    parts = read_hybrid(folder)
    named = " and ".join(
        f"dualmoco export {part.folder if part.folder in EMBEDDED else find_part_folder(folder, part)}"
        for part in parts
        if not part.is_package
    )
    raise ModelError(
        f"{model}: a hybrid of {len(parts)} models, which {SENTENCE_TRANSFORMERS} cannot run as one; export its parts "
        f"({named}) and join their vectors as docs/guides/export.md shows, or use --to {ONNX}"
    )


def is_export(folder: Path) -> bool:
    """Whether a folder was written by `export_model`."""
    if is_onnx_folder(folder):
        return True
    try:
        return bool(read_json(folder / MODEL_RECORD)["format"] == EXPORT_FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _open_part(name: str, folder: Path, lang: str) -> _Part:
    opened = open_network(folder)
    any_language = ANY_LANGUAGE in opened.encoders
    network = opened.encoders.get(ANY_LANGUAGE if any_language else lang)
    if network is None:
        raise ModelError(f"{name}: has no language {lang!r}; expected one of {', '.join(opened.encoders)}")
    take_all_tokens(network)
    identity = Identity(name, folder_sha256(folder), opened.pooling)
    conversion = read_conversion(folder) if any_language else read_conversion(folder).of(lang)
    dimensions = read_trained_dimensions(folder)
    return _Part(network, folder, identity, lang, any_language, conversion, dimensions)


def _write_hybrid(folder: Path, hybrid: Model, source: Path, parts: Sequence[_Part], to: str) -> float:
    """Writes every part into its own sub-folder."""
    written, lang = [], parts[0].lang
    for number, (old, part) in enumerate(zip(read_hybrid(source), parts, strict=True), start=1):
        target = SENTENCE_TRANSFORMERS if is_static(part.network) else to
        place = folder / f"part-{number}"
        _write_part(place, part, target)
        sha256 = folder_sha256(place) if target == SENTENCE_TRANSFORMERS else part.identity.sha256
        written.append(replace(old, folder=place.name, sha256=sha256))
    write_hybrid(folder, written, {})
    opened = open_model(folder)
    hybrid.warned_of_cuts = opened.warned_of_cuts = True  # some check sentences are long on purpose
    reference = hybrid.encode(CHECK_SENTENCES, lang=lang, progress=False)
    cosine = check_agreement(to, lambda texts: opened.encode(texts, lang=lang, progress=False), reference)
    _write_record(folder, hybrid.identity, lang, cosine, {TEXT_KEY: NO_CONVERSION.to_json()})
    return cosine


def _write_part(folder: Path, part: _Part, to: str) -> float:
    reference = reference_vectors(part.network, part.convert(CHECK_SENTENCES))
    if part.conversion.nfkc:
        add_nfkc_normalizer(part.network)
    if to == SENTENCE_TRANSFORMERS:
        return _write_sentence_transformers(folder, part, reference)
    return _write_onnx(folder, part, to, reference)


def _write_sentence_transformers(folder: Path, part: _Part, reference: Vectors) -> float:
    save_encoder(part.network, folder)
    network, prompt = open_network(folder).encoders.get(ANY_LANGUAGE), part.network.prompt
    if network is None or network.prompt != prompt:
        raise ModelError(f"{part.identity.name}: not saved correctly; expected one route and prompt {prompt!r}")
    backend = run_network(network, TORCH)
    cosine = check_agreement(SENTENCE_TRANSFORMERS, lambda texts: backend.encode(part.convert(texts)), reference)
    dimensions = {DIMENSIONS_KEY: part.dimensions} if part.dimensions else {}
    _write_record(folder, part.identity, part.lang, cosine, {TEXT_KEY: part.conversion.to_json(), **dimensions})
    left = replace(part.conversion, nfkc=part.conversion.nfkc and not carries_nfkc(network))
    title = f"{part.identity.name.rpartition('/')[2].removeprefix('package:')}-{part.lang}"
    write_card(CardSubject(folder, title, [part.lang], part.network.dimension), left, part.folder)
    return cosine


def _write_record(folder: Path, identity: Identity, lang: str, cosine: float, more: Mapping[str, object]) -> None:
    record = {
        "format": EXPORT_FORMAT,
        "version": VERSION,
        "lang": lang,
        "lowest_cosine": cosine,
        **more,
        **asdict(identity),
    }
    write_json(folder / MODEL_RECORD, record)


def _write_onnx(folder: Path, part: _Part, to: str, reference: Vectors) -> float:
    source = token_source(part.network)
    if source is None:
        raise ModelError(
            f"{part.identity.name}: not a transformer of plain text; expected a transformer, or --to "
            f"{SENTENCE_TRANSFORMERS}"
        )
    graph = make_graph(to, part.network, source)
    made = OnnxBackend(to, graph, source)
    cosine = check_agreement(to, lambda texts: made.encode(part.convert(texts)), reference)
    pooling = next((str(layer.pooling_mode) for layer in part.network.layers if hasattr(layer, "pooling_mode")), "own")
    config = OnnxConfig(
        backend=to,
        lang=part.lang,
        any_language=part.any_language,
        model=part.identity.name,
        sha256=part.identity.sha256,
        pooling=pooling,
        width=made.dimension,
        max_tokens=source.max_tokens,
        positions=source.positions,
        inputs=made.source.inputs,
        padding=source.padding,
        prompt=part.network.prompt,
        lowest_cosine=cosine,
        text=part.conversion.to_json(),
    )
    write_onnx_folder(folder, graph, source, config)
    opened = open_onnx_folder(folder, part.identity.name)
    opened.warned_of_cuts = True
    check_agreement(to, lambda texts: opened.encode(texts, lang=part.lang, progress=False), reference)
    return cosine
