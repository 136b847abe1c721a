"""Re-alignment between confirmed links, and words of links that translate each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import dualmoco
from aligned_files import merged
from dualmoco.alignment.aligner import Side, align_sides
from dualmoco.alignment.anchors import find_anchors
from dualmoco.alignment.editing import SIDES, EditedAlignment, LinkRow, rows_of_aligned
from dualmoco.alignment.lexical import split_words, translated_words
from dualmoco.alignment.realign import Realigner
from dualmoco.core.errors import ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.embedded import FAST_MODEL
from dualmoco.models.load import open_model
from dualmoco.models.model import Model

LANGS = "en", "zh"


@pytest.fixture(scope="module")
def model() -> Model:
    """The fast embedded model."""
    return open_model(FAST_MODEL)


@pytest.fixture
def edited(model: Model) -> EditedAlignment:
    """An alignment of texts with links of several types."""
    src, tgt, _ = merged(0, 60)
    found = dualmoco.align(src, tgt, model=model, split="no", runs="averaged", progress=False)
    return EditedAlignment(LANGS, rows_of_aligned(found.aligned))


def sizes(rows: Sequence[LinkRow]) -> list[tuple[int, int, float | None]]:
    return [(len(row.src), len(row.tgt), row.confidence) for row in rows]


def fresh(rows: Sequence[LinkRow], model: Model) -> list[tuple[int, int, float | None]]:
    """Numbers of sentences and confidence of the links that an aligner makes of the sentences of some rows."""
    texts = [[part.text for row in rows for part in row.side(side)] for side in SIDES]
    words = split_words((texts[0], texts[1]), LANGS)
    vectors = [model.encode_as(part, lang) for part, lang in zip(texts, LANGS, strict=True)]
    src, tgt = (Side.from_sentences(texts[k], LANGS[k], vectors[k], None, words[k]) for k in range(2))
    links = align_sides(src, tgt, find_anchors(src.vectors, tgt.vectors))
    counts = [np.diff(spans)[:, 0].tolist() for spans in (links.src, links.tgt)]
    return list(zip(*counts, links.confidence.tolist(), strict=True))


def test_confirmed_links_stay_and_the_rest_is_aligned_afresh(
    edited: EditedAlignment, model: Model, tmp_path: Path
) -> None:
    """Each stretch between confirmed links is aligned as a text of its own; undoing brings back what was there."""
    edited.apply({"type": "merge", "row": 4, "count": 3})
    edited.apply({"type": "confirm", "row": 12})
    edited.apply({"type": "split", "row": 20, "src": 1, "tgt": 0})
    edited.apply({"type": "confirm", "row": 20})
    confirmed = [row for row in edited.rows if row.is_confirmed]
    before = edited.rows.copy()
    stretches = edited.rows[:12], edited.rows[13:20], edited.rows[21:]
    edited.apply(Realigner(tmp_path / "vectors.safetensors", model, LANGS).plan(edited))
    assert [row for row in edited.rows if row.is_confirmed] == confirmed
    places = [number for number, row in enumerate(edited.rows) if row.is_confirmed]
    parts = edited.rows[: places[0]], edited.rows[places[0] + 1 : places[1]], edited.rows[places[1] + 1 :]
    for part, stretch in zip(parts, stretches, strict=True):
        assert sizes(part) == fresh(stretch, model)
    assert edited.rows != before
    edited.apply({"type": "undo"})
    assert edited.rows == before


def test_a_stretch_without_one_side_is_left_out(model: Model, tmp_path: Path) -> None:
    """Its sentences have no counterpart."""
    src, tgt, _ = merged(0, 6)
    found = dualmoco.align(src, tgt, model=model, split="no", progress=False)
    rows = rows_of_aligned(found.aligned)
    edited = EditedAlignment(LANGS, [*rows, LinkRow(rows[0].src + rows[1].src, ())])
    for number in range(len(rows)):
        edited.apply({"type": "confirm", "row": number})
    edited.apply(Realigner(tmp_path / "v", model, LANGS).plan(edited))
    assert sizes(edited.rows[len(rows) :]) == [(1, 0, 1.0)] * len(rows[0].src + rows[1].src)


def test_only_edited_sentences_are_encoded_again(
    edited: EditedAlignment, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by another process, which reads the file; a damaged file is made again."""
    encoded: list[str] = []
    encode = Model.encode_as

    def count(self: Model, texts: Sequence[str], lang: str) -> Vectors:
        encoded.extend(texts)
        return encode(self, texts, lang)

    monkeypatch.setattr(Model, "encode_as", count)
    path = tmp_path / "vectors.safetensors"
    texts = {part.text for side in SIDES for part in edited.sentences(side)}
    realigner = Realigner(path, model, LANGS)
    realigner.plan(edited)
    assert sorted(encoded) == sorted(texts)
    encoded.clear()
    edited.apply({"type": "edit", "row": 3, "side": "src", "position": 0, "text": "A new sentence."})
    realigner.plan(edited)
    vectors = Realigner(path, model, LANGS).vectors.both(edited)
    assert encoded == ["A new sentence."]
    path.write_bytes(path.read_bytes()[:1000])
    again = Realigner(path, model, LANGS).vectors.both(edited)
    assert len(encoded) > 50
    for old, new in zip(vectors, again, strict=True):
        np.testing.assert_allclose(old, new, atol=1e-6)


def test_a_model_without_the_language_is_refused(model: Model, tmp_path: Path) -> None:
    """Before any work."""
    with pytest.raises(ModelError, match="fr"):
        Realigner(tmp_path / "v", model, ("en", "fr"))


def test_words_that_translate_each_other_are_found() -> None:
    """As spans of characters, by the embedded vectors; words without letters have no translation."""
    texts = [("The crow drank water.", "乌鸦喝了水。"), ("The dog drank milk.", "狗喝了牛奶。")]
    found = {(texts[0][0][slice(*src)], texts[0][1][slice(*tgt)]) for src, tgt in translated_words(texts, LANGS, 0)}
    assert ("crow", "乌鸦") in found or ("crow", "鸦") in found
    assert ("water", "水") in found and not any(mark in pair for pair in found for mark in (".", "。"))


def test_words_of_many_languages_are_found() -> None:
    """By the vectors of the table of many languages, whole words although its tokens are parts of words."""
    texts = [("Der Hund trinkt Wasser.", "Le chien boit de l'eau.")]
    spans = translated_words(texts, ("de", "fr"), 0)
    assert ("Hund", "chien") in {(texts[0][0][slice(*src)], texts[0][1][slice(*tgt)]) for src, tgt in spans}


def test_words_of_other_languages_are_learned_from_the_document() -> None:
    """Without vectors, what occurs together often is a translation; a text without words has none."""
    words = [("cat", "katt"), ("dog", "hund"), ("house", "hus"), ("tree", "träd")]
    texts = [(f"{a} {c}", f"{b} {d}") for a, b in words for c, d in words if a != c] * 4
    found = {
        (texts[0][0][slice(*src)], texts[0][1][slice(*tgt)]) for src, tgt in translated_words(texts, ("en", "sv"), 0)
    }
    assert found == {("cat", "katt"), ("dog", "hund")}
    assert translated_words([("...", "!")], ("en", "sv"), 0) == []
