"""Sentences and their nearest neighbours, as in the paper's last table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualmoco.evaluation.sentences import Sentences
from dualmoco.search.neighbors import nearest

QUERIES = 5
SHOWN = 3


@dataclass(frozen=True)
class Example:
    """A query and its neighbours, the nearest first."""

    query: str
    query_lang: str
    lang: str
    found: Sequence[tuple[float, str]]
    corpus: int
    """How many sentences were searched."""


def retrieval_examples(
    sentences: Sentences, queries: Sequence[str], query_lang: str, lang: str, *, count: int = QUERIES, seed: int = 0
) -> list[Example]:
    """Nearest sentences of random queries among all that were encoded, exact matches excluded.

    Args:
        sentences: Encoded sentences, which are the corpus.
        queries: Sentences to choose from.
        query_lang: Their language.
        lang: The language to search in.
        count: How many queries.
        seed: Of the choice.

    Returns:
        One example a query.
    """
    corpus = sentences.texts(lang)
    rows = np.random.default_rng(seed).choice(len(queries), size=min(count, len(queries)), replace=False)
    chosen = [queries[row] for row in sorted(rows.tolist())]
    near = nearest(sentences.vectors(chosen, query_lang), sentences.vectors(corpus, lang), 4 * SHOWN)
    examples = []
    for row, query in enumerate(chosen):
        found = [(float(near.scores[row, place]), corpus[key]) for place, key in enumerate(near.ids[row].tolist())]
        apart = [(score, text) for score, text in found if _folded(text) != _folded(query)]
        examples.append(Example(query, query_lang, lang, apart[:SHOWN], len(corpus)))
    return examples


def _folded(text: str) -> str:
    return " ".join(text.lower().split())
