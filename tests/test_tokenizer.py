"""Tokenizers that are trained on a corpus: their entries and marks, and tables that start from a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dualmoco.core.errors import DualmocoError
from dualmoco.core.vectors import unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import build_encoder
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.load import open_model
from dualmoco.models.tokenizer import entry_texts, train_tokenizer

SRC_TEXTS, TGT_TEXTS = ([*side] for side in zip(*generate_pairs(300, seed=1), strict=True))
TEXTS = {"en": SRC_TEXTS, "zh": TGT_TEXTS}
SPECIAL = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


@pytest.mark.parametrize(("lang", "length"), [("en", 3), ("en", 16), ("zh", 2), ("zh", 4)])
def test_tokenizer_pieces_are_short_enough(lang: str, length: int) -> None:
    """No entry is longer than allowed, sentences are cut into entries, and nothing of them is lost."""
    tokenizer = train_tokenizer(TEXTS[lang], 1500, length, special_tokens=False)
    entries = tokenizer.get_vocab().keys() - SPECIAL
    assert SPECIAL < tokenizer.get_vocab().keys()
    assert 1 < max(map(len, entries)) <= length
    pieces = [tokenizer.encode(text).tokens for text in TEXTS[lang]]
    assert {piece for row in pieces for piece in row} <= entries
    assert ["".join(row) for row in pieces] == ["".join(text.lower().split()) for text in _folded(TEXTS[lang])]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_tokenizer_pieces_are_as_long_as_allowed(length: int) -> None:
    """The longest entry has exactly the length that the settings name."""
    tokenizer = train_tokenizer(TGT_TEXTS, 1500, length, special_tokens=False)
    assert max(map(len, tokenizer.get_vocab().keys() - SPECIAL)) == length


def _folded(texts: list[str]) -> list[str]:
    """Full-width marks as the tokenizer writes them."""
    return [text.replace("，", ",").replace("？", "?").replace("！", "!") for text in texts]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_table_starts_from_a_models_vectors_of_its_entries(lang: str) -> None:
    """Each entry, alone in a sentence, has the direction that the model gives its text; special tokens are random."""
    config = EncoderConfig(
        lang=lang, kind=EncoderKind.static, width=384, vocab_size=300, max_piece_length=4, entry_vectors="en-zh-static"
    )
    table = build_encoder(config, TEXTS[lang]).eval()
    texts = entry_texts(train_tokenizer(TEXTS[lang], 300, 4, special_tokens=False))
    assert len(texts) >= 294 and not any("[" in text for text in texts.values())
    weights = next(table.parameters()).detach().numpy()  # (300, 384)
    wanted = open_model("en-zh-static").encode(list(texts.values()), lang=lang, progress=False)
    assert np.allclose(unit_vectors(weights[list(texts)]), wanted, atol=1e-5)
    assert not np.allclose(np.linalg.norm(weights[:2], axis=1), 6.0, atol=0.5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"width": 24}, "vectors of dimension 384; expected 24, the width of the en encoder"), ({"lang": "xx"}, "xx")],
)
def test_a_model_that_a_table_cannot_start_from(settings: dict[str, object], expected: str) -> None:
    """Another dimension, or a language that it does not have: one line."""
    config = EncoderConfig(lang="en", kind=EncoderKind.static, width=384, vocab_size=300, entry_vectors="en-zh-static")
    with pytest.raises(DualmocoError, match=expected):
        build_encoder(replace(config, **settings), SRC_TEXTS)  # type: ignore[arg-type]


def test_tokenizer_surrounds_sentences_if_asked() -> None:
    """[CLS] and [SEP] are there with special tokens and not without; case and unknown characters are handled."""
    with_marks, without = (train_tokenizer(SRC_TEXTS, 300, 16, special_tokens=special) for special in (True, False))
    tokens = with_marks.encode("Tom").tokens
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]") and tokens[1:-1] == without.encode("tOM").tokens
    assert without.encode("龘").tokens == ["[UNK]"]
    assert with_marks.get_vocab_size() == 300 and without.get_vocab_size() == 300
