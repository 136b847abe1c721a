"""Sentence vectors with the interfaces of other frameworks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from dualmoco.models.embedded import default_model
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.text.containers import as_sentences


class Embeddings:
    """A model with the interface that LangChain and similar libraries expect; LangChain itself is not needed.

    The language of each text is recognised. A text may have several lines.

    Args:
        model: Model, or its name; by default `en-zh`, or for another `lang` the model that has it.
        lang: Language of all texts, if they share one.

    Examples:
        >>> embeddings = Embeddings("en-zh-static")
        >>> len(embeddings.embed_query("It is raining.")) == embeddings.model.dimension
        True
    """

    def __init__(self, model: Model | str | Path | None = None, *, lang: str | None = None) -> None:
        name = model or default_model([lang] if lang else [])
        self.model = name if isinstance(name, Model) else open_model(name)
        self.lang = None if lang is None else self.model.language(lang)

    def embed_documents(self, texts: Iterable[str]) -> list[list[float]]:
        """The unit vectors of texts; zeros for a blank text."""
        given = as_sentences(texts, "texts")
        if self.lang is None:
            return self.model.encode_each(given).tolist()
        return self.model.encode_as(given, self.lang, progress=False).tolist()

    def embed_query(self, text: str) -> list[float]:
        """The unit vector of a query."""
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: Iterable[str]) -> list[list[float]]:
        """Same as `embed_documents`, in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Same as `embed_query`, in a thread."""
        return await asyncio.to_thread(self.embed_query, text)
