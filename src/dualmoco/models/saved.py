"""Models on disk: opened from any folder or hub name, saved as sentence-transformers folders.

A model of ours is a Router with one route a language and holds only that library's own modules, so it opens without
dualmoco.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers.utils.logging import disable_progress_bar

from dualmoco.core.errors import ModelError
from dualmoco.models.encoder import Encoder
from dualmoco.models.folder import check_folder
from dualmoco.models.hub import fetch_model
from dualmoco.models.pooling import FIRST_LAST, FirstLastPooling

LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class OpenedModel:
    """A model as its folder or hub name gives it, without anything added."""

    encoders: dict[str, Encoder] | Encoder
    """One for each language, or one that takes any."""
    pooling: str
    """`own` if the model says itself how it pools, else mean, max or cls."""
    prompt: str = ""
    """What the model wants before every sentence."""


def open_model(name: str, pooling: str | None = None) -> OpenedModel:
    """Opens any model: of dualmoco, of sentence-transformers or of transformers.

    Args:
        name: Folder or hub name.
        pooling: mean, max, cls or first-last, not the model's own; a model without any pools by mean unless told.

    Returns:
        Its encoders, whose vectors are of unit length only if the model makes them so, on the CPU.

    Raises:
        ModelError: A model that cannot be loaded safely, or a pooling for a model without one transformer.
    """
    opened = open_any(name)
    if isinstance(opened, Transformer):
        return OpenedModel(_pooled(opened, pooling or "mean"), pooling or "mean")
    layers = list(opened.children())
    prompt = str(opened.prompts.get(opened.default_prompt_name or "") or "")
    if pooling and isinstance(layers[0], Transformer):
        return OpenedModel(_pooled(layers[0], pooling), pooling, prompt)
    if pooling:
        kind = type(layers[0]).__name__
        raise ModelError(f"{name}: pooling {pooling} is for one Transformer, this model begins with a {kind}; use auto")
    if isinstance(layers[0], Router):
        routes = layers[0].sub_modules.items()
        return OpenedModel({lang: Encoder(route.children()) for lang, route in routes}, "own", prompt)
    return OpenedModel(Encoder(layers), "own", prompt)


def save_encoders(encoders: Mapping[str, Encoder], path: Path) -> None:
    """Writes a sentence-transformers folder with one route a language and no default route."""
    disable_progress_bar()
    routes: dict[str, list[Any]] = {lang: list(encoder.layers.children()) for lang, encoder in encoders.items()}
    router = Router(routes, allow_empty_key=False)
    device = str(next(router.parameters()).device)  # SentenceTransformer moves its modules: leave them where they are
    SentenceTransformer(modules=[router], device=device, similarity_fn_name="dot").save(
        str(path), create_model_card=False, safe_serialization=True
    )


def save_encoder(encoder: Encoder, path: Path, prompt: str = "") -> None:
    """Writes the encoder of one language as a sentence-transformers folder that needs no task.

    Args:
        encoder: The encoder.
        path: The folder.
        prompt: What the model wants before every sentence.
    """
    disable_progress_bar()
    model = SentenceTransformer(modules=list(encoder.layers.children()), device="cpu")
    if prompt:
        model.prompts, model.default_prompt_name = {"sentence": prompt}, "sentence"
    model.save(str(path), create_model_card=False, safe_serialization=True)


def load_encoders(path: str | Path) -> dict[str, Encoder]:
    """Opens a folder that `save_encoders` wrote.

    Args:
        path: The folder.

    Returns:
        An encoder for each language, in the order they were saved.

    Raises:
        ModelError: Not such a folder, or one with pickled weights or code in it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; expected a model folder such as runs/demo/model")
    check_folder(folder)
    if not (folder / "modules.json").is_file():
        raise ModelError(f"{folder}: no modules.json; expected a folder saved by dualmoco train (RUN/model)")
    router = next(_open(folder).children())
    if not isinstance(router, Router):
        raise ModelError(f"{folder}: a model of one route; expected one route a language, as dualmoco train saves it")
    return {lang: Encoder(layers.children()) for lang, layers in router.sub_modules.items()}


def _open(name: str | Path) -> SentenceTransformer:
    disable_progress_bar()
    try:
        return SentenceTransformer(
            str(name), device="cpu", trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )
    except LOADING_ERRORS as error:
        raise ModelError(f"{name}: cannot be opened as a model: {_first_line(error)}") from None


def open_any(name: str) -> SentenceTransformer | Transformer:
    """A model of sentence-transformers whole, of transformers as the one module it is."""
    folder = Path(name) if Path(name).is_dir() else fetch_model(name)
    check_folder(folder)
    if (folder / "modules.json").is_file():
        return _open(folder)
    disable_progress_bar()
    try:
        plain: Transformer = Transformer(str(folder), model_kwargs={"use_safetensors": True})
        return plain
    except LOADING_ERRORS as error:
        raise ModelError(f"{name}: cannot be opened as a model: {_first_line(error)}") from None


def route_of(router: Router, lang: str, name: str) -> nn.Module:
    """The modules of one language; ModelError if the model does not have it."""
    if lang not in router.sub_modules:
        raise ModelError(f"{name}: has no language {lang!r}; expected one of {', '.join(router.sub_modules)}")
    return router.sub_modules[lang]


def _pooled(first: Transformer, pooling: str) -> Encoder:
    if pooling == FIRST_LAST:
        first.model.config.output_hidden_states = True
        return Encoder([first, FirstLastPooling(first.get_embedding_dimension())])
    return Encoder([first, Pooling(first.get_embedding_dimension(), pooling_mode=pooling)])


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
