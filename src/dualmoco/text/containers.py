"""Sentences given in Python, in whatever holds strings: lists, tuples, NumPy and Arrow arrays, Series, generators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Any

from dualmoco.core.errors import DataError

LIST_METHODS = ("to_pylist", "tolist", "to_list")  # of Arrow, of NumPy and pandas, of polars
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # lone surrogates, which stand for bytes that are not UTF-8
EXPECTED_SENTENCES = "expected strings in a list, tuple, Series or array"


def as_sentences(given: Any, name: str = "sentences") -> list[str]:
    """Returns sentences as a list of strings.

    Args:
        given: One sentence, or several in a list, a tuple, a generator, a pandas or polars Series, a NumPy array of one
            dimension, or an Arrow array.
        name: What they are, for messages.

    Raises:
        DataError: A container without an order or with several columns, such as a dict, a set or a DataFrame, or an
            item that is not a string.

    Example:
        >>> as_sentences(("It is raining.", "Tom bought two books."))
        ['It is raining.', 'Tom bought two books.']
    """
    if isinstance(given, str):
        return [given]
    _check_container(given, name)
    method = next((getattr(given, known) for known in LIST_METHODS if hasattr(given, known)), None)
    sentences = list(given if method is None else method())
    if set(map(type, sentences)) - {str}:
        _check_items(sentences, name)
    return sentences


def _check_container(given: Any, name: str) -> None:
    kind = type(given).__name__
    if hasattr(type(given), "columns"):
        raise DataError(f"{name}: a table ({kind}); expected one column of it, such as table['text']")
    is_wrong = isinstance(given, bytes | bytearray | memoryview | Mapping | Set) or not isinstance(given, Iterable)
    if is_wrong or getattr(given, "ndim", 1) != 1:
        raise DataError(f"{name}: a {kind}; {EXPECTED_SENTENCES}")


def _check_items(items: list[Any], name: str) -> None:
    for place, item in enumerate(items):
        if not isinstance(item, str):
            raise DataError(f"{name}: item {place} is {item!r:.40}, a {type(item).__name__}; expected a string")


def check_characters(sentences: Iterable[str]) -> None:
    """Refuses sentences that cannot be written as UTF-8, with DataError."""
    for sentence in sentences:
        if HALF_CHARACTER.search(sentence):
            raise DataError(f"{sentence!r:.60}: half a character, as of invalid UTF-8; expected text")
