"""Sentences given in Python, in whatever holds strings: lists, tuples, NumPy and Arrow arrays, Series, generators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from dualmoco.core.errors import DataError

LIST_METHODS = ("to_pylist", "tolist", "to_list")  # of Arrow, of NumPy and pandas, of polars
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # lone surrogates, which stand for bytes that are not UTF-8
EXPECTED_PAIRS = "expected pairs of strings, or a table with a column per side"
EXPECTED_SENTENCES = "expected strings in a list, tuple, Series or array"


def as_sentences(given: Any, name: str = "sentences") -> list[str]:
    """Returns sentences as a list of strings.

    Args:
        given: One sentence, or several in a list, a tuple, a generator, a pandas or polars Series, a NumPy array of one
            dimension, or an Arrow array.
        name: Name of the sentences in error messages.

    Raises:
        DataError: A container without an order or with several columns, such as a dict, a set or a DataFrame, or an
            item that is not a string.

    Examples:
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


def as_pairs(
    given: Any, columns: tuple[str, str] | None = None, langs: tuple[str, str] = ("", "")
) -> list[tuple[str, str]]:
    """Returns sentence pairs as a list of tuples.

    Args:
        given: Pairs of strings in a list, tuple or generator; or a table with a column per side: a pandas or polars
            DataFrame, an Arrow table, or a dict of two lists.
        columns: Names of the source and target columns of a table (default: columns named after the languages, or
            `src` and `tgt`, or the only two columns).
        langs: Source and target language.

    Raises:
        DataError: `given` is anything else.

    Examples:
        >>> as_pairs({"en": ["It is raining."], "zh": ["在下雨。"]})
        [('It is raining.', '在下雨。')]
    """
    names = getattr(given, "column_names", None) or getattr(given, "columns", None)
    if isinstance(given, Mapping):
        names = list(given)
    if names is not None:
        src, tgt = _choose_columns([str(name) for name in names], columns, langs)
        sides = as_sentences(given[src], f"column {src}"), as_sentences(given[tgt], f"column {tgt}")
        if len(sides[0]) != len(sides[1]):
            raise DataError(
                f"columns {src} and {tgt} have {len(sides[0]):,} and {len(sides[1]):,} rows; expected the same number"
            )
        return list(zip(*sides, strict=True))
    if isinstance(given, str | bytes | Set) or not isinstance(given, Iterable):
        raise DataError(f"pairs: a {type(given).__name__}; {EXPECTED_PAIRS}")
    pairs = []
    for place, pair in enumerate(given):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or [type(text) for text in pair] != [str, str]:
            raise DataError(f"pairs: item {place} is {pair!r:.60}; {EXPECTED_PAIRS}")
        pairs.append((pair[0], pair[1]))
    return pairs


def _choose_columns(names: list[str], columns: tuple[str, str] | None, langs: tuple[str, str]) -> tuple[str, str]:
    """The source and target columns of a table; DataError if they are ambiguous."""
    choices = [columns] if columns else [langs, ("src", "tgt"), ("source", "target")]
    for src, tgt in choices:
        if src in names and tgt in names:
            return src, tgt
    if columns is None and len(names) == 2:
        return names[0], names[1]
    raise DataError(f"a table with the columns {', '.join(names)}; expected src and tgt: set columns=(SOURCE, TARGET)")


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
    """DataError if a sentence cannot be written as UTF-8."""
    for sentence in sentences:
        if HALF_CHARACTER.search(sentence):
            raise DataError(f"{sentence!r:.60}: an unpaired surrogate, as from invalid UTF-8; expected text")
