"""Packed BERTs read from their folder as they are stored, for the int8 back-end: neither unpacked nor built anew.

Only what is known to the last detail is read here: BERT with absolute positions, cls or mean pooling, projections
without activation, unit length. Anything else is left to sentence-transformers itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dualmoco.models.backends.int8 import BertShape, Int8Backend, Int8Bert, Tensors
from dualmoco.models.backends.layout import (
    DENSE,
    LAYOUT_ERRORS,
    UNIT,
    Layer,
    UnknownLayoutError,
    check_projection,
    keeps_names,
    read_layout,
    read_prompt,
    read_settings,
)
from dualmoco.models.backends.tokens import TOKEN_IDS, TOKEN_MASK, Padding, TokenSource
from dualmoco.models.packing import PACKED

TRANSFORMER, POOLING = "Transformer", "Pooling"
KNOWN = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
"""Settings of a BERT that are understood; what is not said is so."""
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
POOLINGS = ("cls", "mean")


@dataclass(frozen=True)
class Int8Encoder:
    """The network of one language and its tokens."""

    network: Int8Bert
    source: TokenSource

    def run(self) -> Int8Backend:
        """What runs it."""
        return Int8Backend(self.network, self.source)


def read_int8_folder(folder: Path, prompt: str = "") -> dict[str, Int8Encoder] | None:
    """Reads a packed model all of whose encoders are BERTs.

    Args:
        folder: A packed sentence-transformers folder.
        prompt: Put before every sentence; the model's own if empty.

    Returns:
        An encoder for each language, the same for languages that share it; None if the folder holds anything else, or
        anything that is not known here.
    """
    try:
        layout = read_layout(folder)
        prompt = prompt or read_prompt(folder)
        encoders = {layers: _read_encoder(layers, prompt) for layers in dict.fromkeys(layout.values())}
        return {lang: encoders[layers] for lang, layers in layout.items()}
    except LAYOUT_ERRORS:
        return None  # sentence-transformers opens it, or says what is wrong with it


def _read_encoder(layers: tuple[Layer, ...], prompt: str) -> Int8Encoder:
    (first, folder), (second, pooling), *rest = layers
    unit = bool(rest) and rest[-1].kind == UNIT
    if unit and not keeps_names(read_settings(rest.pop().folder)):
        raise UnknownLayoutError
    if (first, second) != (TRANSFORMER, POOLING) or any(layer.kind != DENSE for layer in rest):
        raise UnknownLayoutError
    projections = [_read_projection(layer.folder) for layer in rest]
    network = Int8Bert(_read_packed(folder), _read_shape(folder, pooling), projections, unit=unit)
    return Int8Encoder(network, _read_tokens(folder, prompt))


def _read_shape(folder: Path, pooling: Path) -> BertShape:
    config, pools = read_settings(folder), read_settings(pooling)
    text = read_settings(folder, "sentence_bert_config.json")
    is_known = all(config.get(key, value) == value for key, value in KNOWN.items())
    is_bert = config["model_type"] == "bert" and text["modality_config"] == TEXT_ONLY
    if not (is_bert and is_known) or pools["pooling_mode"] not in POOLINGS or not pools.get("include_prompt", True):
        raise UnknownLayoutError
    return BertShape(
        config["num_hidden_layers"], config["num_attention_heads"], config["layer_norm_eps"], pools["pooling_mode"]
    )


def _read_projection(folder: Path) -> Tensors:
    check_projection(folder)
    return _read_packed(folder)


def _read_packed(folder: Path) -> Tensors:
    from safetensors.torch import load_file

    return load_file(folder / PACKED)


def _read_tokens(folder: Path, prompt: str) -> TokenSource:
    from tokenizers import Tokenizer

    config = read_settings(folder, "tokenizer_config.json")
    if any(config.get(side, "right") != "right" for side in ("padding_side", "truncation_side")):
        raise UnknownLayoutError
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(int(config["model_max_length"]))
    padding = tokenizer.token_to_id(config["pad_token"])
    if padding is None:
        raise UnknownLayoutError
    return TokenSource(tokenizer, (TOKEN_IDS, TOKEN_MASK), Padding(padding), prompt)
