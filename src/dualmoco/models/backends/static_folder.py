"""Static models read from their folder without PyTorch: tables and projections in safetensors, tokenizers in JSON.

Only what is known to the last detail is read here: averages of token vectors, projections without activation, dropout,
unit length, one route a language. Anything else is left to sentence-transformers itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.layout import (
    DENSE,
    LAYOUT_ERRORS,
    UNIT,
    Layer,
    UnknownLayoutError,
    keeps_names,
    read_layout,
    read_projection,
    read_prompt,
    read_settings,
    read_tensors,
)
from dualmoco.models.backends.static import StaticTable

TABLE = "StaticEmbedding"


@dataclass(frozen=True)
class StaticFolder:
    """The tables of a model, and what it wants before every sentence."""

    tables: dict[str, StaticTable]
    """One for each language, the same for languages that share it; or one alone under ANY_LANGUAGE."""
    prompt: str


def read_static_folder(folder: Path) -> StaticFolder | None:
    """Reads a model all of whose encoders are static.

    Args:
        folder: A sentence-transformers folder.

    Returns:
        Its tables; None if the folder holds anything else, or anything that is not known here.
    """
    try:
        layout = read_layout(folder)
        tables = {layers: _read_table(layers) for layers in dict.fromkeys(layout.values())}
        return StaticFolder({lang: tables[layers] for lang, layers in layout.items()}, read_prompt(folder))
    except LAYOUT_ERRORS:
        return None  # sentence-transformers opens it, or says what is wrong with it


def _read_table(layers: Sequence[Layer]) -> StaticTable:
    """The table of one encoder, with the projections behind it multiplied in."""
    (first, folder), *rest = layers
    if first != TABLE:
        raise UnknownLayoutError
    normalize = bool(rest) and rest[-1].kind == UNIT
    if normalize and not keeps_names(read_settings(rest.pop().folder)):
        raise UnknownLayoutError
    weight = _read_embedding(folder)
    vectors = np.concatenate([weight, np.zeros((1, weight.shape[1]), dtype=np.float32)])
    for kind, place in rest:
        if kind != DENSE:
            raise UnknownLayoutError
        matrix, bias = read_projection(place)
        vectors = vectors @ matrix.T if bias is None else vectors @ matrix.T + bias
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return StaticTable(tokenizer, np.ascontiguousarray(vectors), normalize)


def _read_embedding(folder: Path) -> Vectors:
    tensors = read_tensors(folder)
    if set(tensors) != {"embedding.weight"}:
        raise UnknownLayoutError
    return tensors["embedding.weight"]
