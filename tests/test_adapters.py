"""A model under the names of other frameworks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import dualmoco
from dualmoco.core.errors import DataError, ModelError

ENGLISH, CHINESE = "Tom bought two books.", "汤姆买了两本书。"


def test_languages_of_texts_are_recognised(tiny_model: Path) -> None:
    """Each text has the vector of its own language, as lists of numbers; a blank one has zeros."""
    model = dualmoco.load(tiny_model)
    embeddings = dualmoco.Embeddings(model)
    found = embeddings.embed_documents([ENGLISH, "", CHINESE, "Two\nlines."])
    assert isinstance(found, list) and isinstance(found[0], list) and isinstance(found[0][0], float)
    assert np.array_equal(found[0], model.encode(ENGLISH, lang="en")[0]) and not any(found[1])
    assert np.array_equal(found[2], model.encode(CHINESE, lang="zh")[0])
    assert embeddings.embed_query(CHINESE) == found[2] == asyncio.run(embeddings.aembed_query(CHINESE))
    assert asyncio.run(embeddings.aembed_documents([ENGLISH])) == found[:1]
    assert embeddings.embed_documents([]) == []


def test_a_language_can_be_named(tiny_model: Path) -> None:
    """Then every text is encoded in it; a language that the model lacks is refused when it is opened."""
    embeddings = dualmoco.Embeddings(tiny_model, lang="en-US")
    assert np.array_equal(embeddings.embed_query("12"), embeddings.model.encode("12", lang="en")[0])
    with pytest.raises(ModelError, match="has no language 'fr'"):
        dualmoco.Embeddings(tiny_model, lang="fr")
    with pytest.raises(DataError, match=r"^texts: a dict; expected strings in a list"):
        embeddings.embed_documents({"a": "b"})
