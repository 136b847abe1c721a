"""Open any model by its name.

    en-zh, en-zh-static, ...      the models that come with dualmoco
    runs/x, runs/x/model          a run, or a model folder of dualmoco, sentence-transformers or transformers
    hybrid/x                      several models combined, a folder of `dualmoco combine`
    exported/x                    a folder of `dualmoco export`, for ONNX or sentence-transformers
    owner/name                    a model of the Hugging Face Hub
    package:NAME                  a model that is installed as a Python package
    words:FILE, words:en=FILE,zh=FILE    averaged word vectors
    embeddings:FOLDER             vectors made elsewhere

Heavy libraries are imported where they are needed: a static model opens without PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.hardware import find_accelerator
from dualmoco.core.vectors import Vectors
from dualmoco.models.config import FIRST_LAST, PoolingMode
from dualmoco.models.embedded import DEFAULT_MODEL, EMBEDDED, all_languages, check_embedded, default_model, no_default
from dualmoco.models.folder import (
    check_folder,
    check_links,
    folder_sha256,
    guard_opening,
    model_folder,
    portable_name,
    read_conversion,
    read_trained_dimensions,
)
from dualmoco.models.hybrid import HybridPart, assemble_hybrid, check_part, find_part_folder, is_hybrid, read_hybrid
from dualmoco.models.int8_format import is_packed
from dualmoco.models.model import (
    ANY_LANGUAGE,
    AUTO,
    BACKENDS,
    BF16,
    FP16,
    FP32,
    INT8,
    ONNX,
    ONNX_INT8,
    PRECISIONS,
    STATIC,
    TORCH,
    Backend,
    Identity,
    Model,
    assemble_model,
    no_letters,
)
from dualmoco.text.containers import as_sentences
from dualmoco.text.languages import recognize_language

if TYPE_CHECKING:
    from dualmoco.models.network import Encoder

MODEL_PREFIXES = ("package", "words", "embeddings")
POOLING_NAMES = (*(mode.value for mode in PoolingMode), FIRST_LAST)
TORCH_DTYPES = {FP32: "float32", FP16: "float16", BF16: "bfloat16"}


@dataclass(frozen=True)
class _Settings:
    """How to run a model; see `open_model`."""

    backend: str
    pooling: str
    prompt: str
    compute: str
    threads: int | None
    device: str | None
    part: HybridPart | None = None
    """The part of a hybrid to open; `backend` then applies only to networks, and static encoders stay static."""

    @property
    def are_own(self) -> bool:
        """Whether the model's own pooling and fp32 are used."""
        return (self.pooling, self.compute) == (AUTO, FP32)


def open_model(
    name: str | Path = DEFAULT_MODEL,
    backend: str = AUTO,
    *,
    pooling: str = AUTO,
    prompt: str = "",
    compute: str = FP32,
    threads: int | None = None,
    device: str | None = None,
    dimension: int | None = None,
) -> Model:
    """Opens a model; code in its folder is never run.

    Args:
        name: `en-zh`, `en-zh-static` or `many-static`, which come with dualmoco; a model folder, a run folder, a hub
            name or a folder of `dualmoco export`; `package:NAME`, an installed package; `words:FILE` or
            `words:en=FILE,zh=FILE`, averaged word vectors; `embeddings:FOLDER`, vectors made elsewhere.
        backend: torch, static, int8, onnx, onnx-int8, or auto: static for an average of token vectors, int8 for a
            packed BERT, torch for other networks, and the format of an exported model. In a hybrid it applies to the
            parts that are networks.
        pooling: `auto` for the model's own, or mean if it has none; mean, max, cls, last or first-last to override.
        prompt: Text before every sentence, for example "query: "; empty for the model's own prompt, if any.
        compute: Precision that a network computes in: fp32, or on a GPU fp16 or bf16.
        threads: CPU threads of onnxruntime, or of PyTorch in the whole process (default: DUALMOCO_THREADS or
            OMP_NUM_THREADS, for PyTorch only the latter, or the number of cores).
        device: Device of PyTorch, such as cpu, cuda, cuda:1 or mps (default: a GPU if there is one). Other back-ends
            run on the CPU, so with another device `auto` means torch.
        dimension: Number of leading components to keep in all vectors of the model, scaled to unit length again
            (default: all). It works best for models that were trained with `contrast.dimensions`.

    Returns:
        The model.

    Raises:
        ConfigError: A back-end, pooling or precision is unknown, or the model does not support it.
        ModelError: The model does not exist, or cannot be loaded safely or run with these settings.
        DataError: A file of vectors cannot be read.
    """
    name = str(name)
    with guard_opening(name):
        prefix, rest = split_name(name)
    _check_choice("back-end", backend, (*BACKENDS, prefix) if prefix else BACKENDS)
    _check_choice("pooling", pooling, POOLING_NAMES)
    _check_choice("compute", compute, PRECISIONS)
    if threads is not None and threads < 1:
        raise ConfigError(f"threads {threads}; expected at least 1, or None for one per core")
    if device not in (None, "cpu"):
        backend = _check_device(str(device), backend)
    settings = _Settings(backend, pooling, prompt, compute, threads, device)
    with guard_opening(name):
        folder = find_folder(name)
        if folder and name in EMBEDDED:
            check_embedded(name, folder_sha256(folder))
        model = _open_baseline(name, prefix, rest, settings) if folder is None else _open_folder(folder, name, settings)
        if dimension is not None:
            model.shorten(dimension, read_trained_dimensions(folder) if folder else ())
    model.folder = folder
    model.reopen = partial(
        open_model,
        portable_name(name),
        backend,
        pooling=pooling,
        prompt=prompt,
        compute=compute,
        threads=threads,
        device=device,
        dimension=dimension,
    )
    return model


def as_model(
    model: Model | str | Path,
    backend: str = AUTO,
    dimension: int | None = None,
    *,
    pooling: str = AUTO,
    prompt: str = "",
) -> Model:
    """The model, opened in this way if it is given by name; errors as of `open_model`."""
    if not isinstance(model, Model):
        return open_model(model, backend, pooling=pooling, prompt=prompt, dimension=dimension)
    if dimension is not None and dimension != model.dimension:
        raise ConfigError(
            f"dimension {dimension} with {model.identity.name}, which is open with dimension {model.dimension}; "
            "expected a model by name, or one opened with load(name, dimension=...)"
        )
    return model


class GivenText(NamedTuple):
    """A text and what is known of its language."""

    lang: str | None
    """None to recognise it."""
    texts: Iterable[str]
    """Lines or sentences to recognise the language by."""
    name: str = "sentences"
    """Name of the text in error messages."""


def open_for(
    model: Model | str | Path | None,
    texts: Sequence[GivenText],
    backend: str = AUTO,
    dimension: int | None = None,
    *,
    pooling: str = AUTO,
    prompt: str = "",
) -> tuple[Model, list[str]]:
    """Opens the model for some texts, and finds the language of each.

    Args:
        model: A model, or its name; None for the default model, see `default_model`.
        texts: The texts.
        backend: Back-end of a model given by name.
        dimension: Number of leading components to keep, for a model given by name (default: all).
        pooling: Pooling of a model given by name.
        prompt: Prompt of a model given by name.

    Returns:
        The model, and the language of each text, as given or recognised.

    Raises:
        ConfigError: A text has no letters to recognise its language by.
        DataError: A text is in several scripts, or too short to recognise its language.
        ModelError: The model cannot be opened or lacks a language, or no default model has all of them.
    """
    if model is None:
        langs = [text.lang or default_language(text) for text in texts]
        name = default_model(langs)
        return open_model(name, backend, pooling=pooling, prompt=prompt, dimension=dimension), langs
    opened = as_model(model, backend, dimension, pooling=pooling, prompt=prompt)
    return opened, [opened.resolve(*text) for text in texts]


def default_language(text: GivenText) -> str:
    """The language of a text among those of the default models; errors as of `open_for`."""
    known = all_languages()
    found = recognize_language(text.texts, known, text.name)
    if not found:
        raise no_letters(text.name, known)
    if found not in known:
        raise no_default(f"{text.name}: looks like {found}, which no installed model has")
    return found


def similarity(
    src: str | Sequence[str],
    tgt: str | Sequence[str],
    *,
    model: Model | str | Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    backend: str = AUTO,
    dimension: int | None = None,
) -> Vectors:
    """Returns the cosine similarity of every sentence of one list with every sentence of another, shape (n, m).

    Args:
        src: One sentence or n sentences.
        tgt: One sentence or m sentences.
        model: Model that encodes both, or its name; chosen by the languages if None.
        src_lang: Language of `src`; recognised if None.
        tgt_lang: Language of `tgt`; recognised if None.
        backend: Back-end of a model given by name.
        dimension: Number of leading components to keep, for a model given by name (default: all).

    Raises:
        ConfigError: A language is not given, and there are no letters to recognise it by.
        DataError: An argument is something other than sentences of one language.
        ModelError: The model cannot be opened, or lacks a language.

    Examples:
        >>> bool(similarity("It is raining.", ["下雨了。", "我喜欢喝茶。"]).argmax() == 0)
        True
    """
    sides, named = (as_sentences(src), as_sentences(tgt)), (src_lang, tgt_lang)
    opened, langs = open_for(model, list(map(GivenText, named, sides)), backend, dimension)
    src_vectors, tgt_vectors = (
        opened.encode_as(side, lang) if given is None else opened.encode(side, lang=lang)
        for side, given, lang in zip(sides, named, langs, strict=True)
    )
    return opened.similarity(src_vectors, tgt_vectors)


def split_name(name: str) -> tuple[str, str]:
    """Splits a model name into its prefix and the rest; both are empty for folders and hub names."""
    prefix, _, rest = name.partition(":")
    if not rest or Path(name).exists():
        return "", ""
    if prefix not in MODEL_PREFIXES:
        known = ", ".join(f"{known}:" for known in MODEL_PREFIXES)
        raise ModelError(
            f"{name}: no such folder, and {prefix}: is not a known prefix; expected one of {known} or a hub name"
        )
    return prefix, rest


def find_folder(name: str) -> Path | None:
    """The folder of a network, downloaded if necessary; None for other models, ModelError for an unknown name."""
    prefix, rest = split_name(name)
    if not prefix:
        return model_folder(name)
    if prefix != "package":
        return None
    from dualmoco.models.external import network_folder

    return network_folder(rest)


def _check_choice(setting: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{setting} {value!r}; expected one of {', '.join(known)}")


def _check_device(device: str, backend: str) -> str:
    """The back-end that runs on a device other than the CPU; ConfigError if there is none."""
    import torch

    if backend not in (AUTO, TORCH):
        raise ConfigError(f"device {device} with back-end {backend}, which runs on the CPU; expected back-end {TORCH}")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"device {device}: cannot be used here ({reason}); expected cpu, or none") from None
    return TORCH


def _open_baseline(name: str, prefix: str, rest: str, settings: _Settings) -> Model:
    """Opens a model that is not a network."""
    _refuse_settings(name, settings)
    if prefix == "package":
        from dualmoco.models.external import open_package as open_it
    elif prefix == "words":
        from dualmoco.models.external import open_words as open_it
    else:
        from dualmoco.models.external import open_precomputed as open_it
    return _check_own_backend(open_it(rest), settings.backend)


def _open_folder(folder: Path, title: str, settings: _Settings) -> Model:
    """Opens a model folder: a hybrid, an ONNX export, static encoders without PyTorch, or any other network."""
    from dualmoco.models.backends.onnx_runtime import is_onnx_folder, open_onnx_folder

    if is_hybrid(folder):
        _refuse_settings(title, settings)
        parts = read_hybrid(folder)
        models = [_open_hybrid_part(folder, part, title, settings) for part in parts]
        return assemble_hybrid(title, models, [part.weight for part in parts])
    if is_onnx_folder(folder):
        check_links(folder)
        _refuse_settings(title, settings)
        opened = open_onnx_folder(folder, title, settings.threads)
        if settings.part:
            check_part(settings.part, opened.identity)
        return _check_own_backend(opened, settings.backend)
    check_folder(folder)
    identity = Identity(title, folder_sha256(folder))
    if settings.part:
        check_part(settings.part, identity)
    return (
        _open_static(folder, identity, settings)
        or _open_int8(folder, identity, settings)
        or _open_network(folder, identity, settings)
    )


def _open_hybrid_part(hybrid: Path, part: HybridPart, title: str, settings: _Settings) -> Model:
    """Opens a part of a hybrid, which may be a package that is not a network."""
    if not part.is_package:
        place = find_part_folder(hybrid, part)
        return _open_folder(place, f"{title}/{part.folder}", replace(settings, part=part))
    opened = _open_baseline(part.folder, *split_name(part.folder), replace(settings, backend=AUTO))
    check_part(part, opened.identity)
    return opened


def _open_static(folder: Path, identity: Identity, settings: _Settings) -> Model | None:
    """Opens a model of static encoders; None if it is not one, or if another back-end was requested."""
    if not (settings.backend in (AUTO, STATIC) or settings.part) or not settings.are_own:
        return None
    from dualmoco.models.backends.static import StaticBackend, read_static_folder

    tables = read_static_folder(folder, settings.prompt)
    if tables is None:
        return None
    named = identity.pooled("own", {lang: table.prompt for lang, table in tables.items()})
    return assemble_model(named, tables, StaticBackend, read_conversion(folder))


def _open_int8(folder: Path, identity: Identity, settings: _Settings) -> Model | None:
    """Opens a packed BERT as stored; None if the model is not one, or if another back-end was requested."""
    if settings.backend not in (AUTO, INT8) or not settings.are_own:
        return None
    if is_packed(folder) and (settings.backend == INT8 or find_accelerator() is None):
        from dualmoco.models.backends.int8 import read_int8_folder
        from dualmoco.models.backends.onnx_runtime import OnnxBackend

        found = read_int8_folder(folder, identity.sha256, settings.prompt)
        if found:
            return assemble_model(
                identity.pooled("own", {lang: encoder.source.prompt for lang, encoder in found.items()}),
                found,
                lambda encoder: OnnxBackend(INT8, encoder.graph, encoder.source, settings.threads),
                read_conversion(folder),
            )
    if settings.backend == INT8:
        raise ModelError(f"{identity.name}: back-end int8 is for packed BERT models; expected one, or back-end auto")
    return None


def _open_network(folder: Path, identity: Identity, settings: _Settings) -> Model:
    """Opens any network with the libraries that know it."""
    from dualmoco.models.network import is_static, open_network

    opened = open_network(folder, None if settings.pooling == AUTO else settings.pooling, settings.prompt)
    _set_torch_threads(settings.threads)

    def run(encoder: Encoder) -> Backend:
        name = AUTO if settings.part and is_static(encoder) else settings.backend
        return run_network(encoder, name, compute=settings.compute, threads=settings.threads, device=settings.device)

    named = identity.pooled(opened.pooling, opened.prompts)
    return assemble_model(named, opened.encoders, run, read_conversion(folder))


def _set_torch_threads(threads: int | None) -> None:
    import torch

    if threads:
        torch.set_num_threads(threads)


def run_network(
    encoder: Encoder,
    name: str = AUTO,
    *,
    compute: str = FP32,
    threads: int | None = None,
    device: str | None = None,
) -> Backend:
    """Makes the back-end `name` of a network; ModelError if its vectors do not agree with those of PyTorch."""
    import torch

    from dualmoco.models.backends.pytorch import check_agreement, reference_vectors, run_in_torch
    from dualmoco.models.network import take_all_tokens

    if name == INT8:
        raise ModelError("back-end int8 is for packed BERT models; expected one, or back-end auto")
    _check_choice("back-end", name, BACKENDS)
    take_all_tokens(encoder)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if compute != FP32 and (device == "cpu" or name not in (AUTO, TORCH)):
        raise ConfigError(f"compute {compute} with back-end {name} on a {device}; expected {FP32}, or torch on a GPU")
    made = _other_than_torch(encoder, name, threads) if compute == FP32 else None
    if made is None:
        running = run_in_torch(encoder.to(device, getattr(torch, TORCH_DTYPES[compute])))
        with guard_opening(name):
            running.encode(
                ["a"]
            )  # invalid settings that the libraries do not check fail here, not in the middle of a text
        return running
    check_agreement(made.name, made.encode, reference_vectors(encoder))
    return made


def _other_than_torch(encoder: Encoder, name: str, threads: int | None) -> Backend | None:
    """The static or ONNX back-end, if it was requested or if it is the default of a static encoder."""
    if name in (AUTO, STATIC):
        from dualmoco.models.backends.static import StaticBackend
        from dualmoco.models.network import static_table

        table = static_table(encoder)
        if table is None and name == STATIC:
            raise ModelError(
                "back-end static: not a table of token vectors; expected a static model, or --backend torch"
            )
        return StaticBackend(table) if table else None
    if name not in (ONNX, ONNX_INT8):
        return None
    from dualmoco.models.backends.onnx_export import make_graph
    from dualmoco.models.backends.onnx_runtime import OnnxBackend
    from dualmoco.models.backends.pytorch import token_source

    source = token_source(encoder)
    if source is None:
        raise ModelError(f"back-end {name}: not a transformer of plain text; expected a transformer, or --backend auto")
    return OnnxBackend(name, make_graph(name, encoder, source), source, threads)


def _refuse_settings(name: str, settings: _Settings) -> None:
    """ConfigError if a pooling, prompt or precision is given for a model that has none to choose."""
    if not settings.are_own or settings.prompt:
        raise ConfigError(
            f"{name}: has no choice of pooling, prompt or compute; expected pooling auto, no prompt, compute {FP32}"
        )


def _check_own_backend(model: Model, backend: str) -> Model:
    """The model; ConfigError if the requested back-end is not its only one."""
    lang = model.languages[0] if model.languages else ANY_LANGUAGE
    own = model.backend(lang).name
    if backend not in (AUTO, own):
        raise ConfigError(f"{model.identity.name}: back-end {backend!r}; expected {own}, its only back-end, or auto")
    return model
