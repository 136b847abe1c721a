"""Networks on disk: opened from any model folder, saved as sentence-transformers folders.

A model of ours is a Router with one route a language and holds only that library's own modules, so it opens without
dualmoco. Whatever precision weights are stored in, they are opened in single precision: how a network computes is a
setting of whoever runs it. Shapes: N sentences, L tokens, D dimension.
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
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from dualmoco.core.errors import ModelError
from dualmoco.models.encoder import Encoder
from dualmoco.models.folder import check_folder
from dualmoco.models.hybrid import is_hybrid
from dualmoco.models.model import ANY_LANGUAGE
from dualmoco.models.packing import unpacked
from dualmoco.models.recipe import FIRST_LAST

LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class OpenedNetwork:
    """The networks of a model folder, without anything added."""

    encoders: dict[str, Encoder]
    """One for each language, the same for languages that share it; or one alone under ANY_LANGUAGE."""
    pooling: str
    """`own` if the model says itself how it pools, else mean, max, cls or first-last."""
    prompt: str = ""
    """What the model wants before every sentence."""


def open_network(folder: Path, pooling: str | None = None) -> OpenedNetwork:
    """Opens a model of dualmoco, of sentence-transformers or of transformers.

    Args:
        folder: Of the model.
        pooling: mean, max, cls or first-last, not the model's own; a model without any pools by mean.

    Returns:
        Its encoders, whose vectors are of unit length only if the model makes them so, on the CPU.

    Raises:
        ModelError: A model that cannot be loaded safely, or a pooling for a model without one transformer.
    """
    opened = open_modules(folder)
    if isinstance(opened, Transformer):
        return OpenedNetwork({ANY_LANGUAGE: _pooled(opened, pooling or "mean")}, pooling or "mean")
    layers = list(opened.children())
    prompt = str(opened.prompts.get(opened.default_prompt_name or "") or "")
    if pooling and isinstance(layers[0], Transformer):
        return OpenedNetwork({ANY_LANGUAGE: _pooled(layers[0], pooling)}, pooling, prompt)
    if pooling:
        kind = type(layers[0]).__name__
        raise ModelError(
            f"{folder}: pooling {pooling} is for one Transformer, this model begins with a {kind}; use auto"
        )
    if isinstance(layers[0], Router):
        return OpenedNetwork(_routes(layers[0]), "own", prompt)
    return OpenedNetwork({ANY_LANGUAGE: Encoder(layers)}, "own", prompt)


def open_routes(folder: Path) -> dict[str, Encoder]:
    """Opens a folder that `save_encoders` wrote.

    Args:
        folder: The folder.

    Returns:
        An encoder for each language, in the order they were saved.

    Raises:
        ModelError: Not such a folder.
    """
    encoders = open_network(folder).encoders
    if ANY_LANGUAGE in encoders:
        raise ModelError(f"{folder}: a model of one route; expected one route a language, as dualmoco train saves it")
    return encoders


def open_modules(folder: Path) -> SentenceTransformer | Transformer:
    """A model of sentence-transformers whole, of transformers as the one module it is, in single precision.

    Args:
        folder: Of the model.

    Returns:
        The model, on the CPU.

    Raises:
        ModelError: A model that cannot be loaded safely.
    """
    if is_hybrid(folder):
        raise ModelError(f"{folder}: a hybrid of several models; expected a single one, such as one of its parts")
    check_folder(folder)
    disable_progress_bar()
    weights = {"use_safetensors": True, "dtype": "float32"}
    opened: SentenceTransformer | Transformer
    try:
        with unpacked(folder) as whole:
            if (whole / "modules.json").is_file():
                opened = SentenceTransformer(str(whole), device="cpu", trust_remote_code=False, model_kwargs=weights)
            else:
                opened = Transformer(str(whole), model_kwargs=weights)
    except LOADING_ERRORS as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{folder}: cannot be opened as a model: {reason}") from None
    opened.float()  # modules other than the transformer come as they are stored
    return opened


def route_of(router: Router, lang: str, name: str) -> nn.Module:
    """The modules of one language; ModelError if the model does not have it."""
    if lang not in router.sub_modules:
        raise ModelError(f"{name}: has no language {lang!r}; expected one of {', '.join(router.sub_modules)}")
    return router.sub_modules[lang]


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


class FirstLastPooling(nn.Module):
    """Mean over a sentence's tokens of the average of the first and the last transformer layer.

    A pooling that sentence-transformers does not have; BERT-whitening and SimCSE's BERT rows are computed with it.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Adds `sentence_embedding` (N, D) to what a transformer gives with all its layers."""
        layers: tuple[Tensor, ...] = features["all_layer_embeddings"]  # word embeddings, then one a layer: (N, L, D)
        tokens = (layers[1] + layers[-1]) / 2
        mask = features["attention_mask"].unsqueeze(-1).to(tokens.dtype)  # (N, L, 1)
        return {**features, "sentence_embedding": (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)}

    def get_embedding_dimension(self) -> int:
        """D."""
        return self.dimension


def _routes(router: Router) -> dict[str, Encoder]:
    """The encoder of each language; languages whose routes are the same modules have the same encoder."""
    distinct: dict[tuple[int, ...], Encoder] = {}
    encoders: dict[str, Encoder] = {}
    for lang, route in router.sub_modules.items():
        layers = list(route.children())
        encoders[lang] = distinct.setdefault(tuple(map(id, layers)), Encoder(layers))
    return encoders


def _pooled(first: Transformer, pooling: str) -> Encoder:
    if pooling == FIRST_LAST:
        first.model.config.output_hidden_states = True
        return Encoder([first, FirstLastPooling(first.get_embedding_dimension())])
    return Encoder([first, Pooling(first.get_embedding_dimension(), pooling_mode=pooling)])
