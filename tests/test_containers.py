"""Sentences in every container that people pass, and containers that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dualmoco.core.errors import DataError
from dualmoco.text.containers import as_sentences

pd = pytest.importorskip("pandas")
TEXTS = ["a b", "猫。", ""]
CONTAINERS = {
    "list": TEXTS,
    "tuple": tuple(TEXTS),
    "generator": (text for text in TEXTS),
    "dict values": {1: "a b", 2: "猫。", 3: ""}.values(),
    "numpy": np.array(TEXTS),
    "numpy objects": np.array(TEXTS, dtype=object),
    "numpy scalars": list(np.array(TEXTS)),
    "series": pd.Series(TEXTS, index=["x", "columns", "z"]),
    "categories": pd.Series(TEXTS, dtype="category"),
    "index": pd.Index(TEXTS),
    "arrow": pa.array(TEXTS),
    "arrow chunks": pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "arrow dictionary": pa.array(TEXTS).dictionary_encode(),
}
REFUSED = {
    "dict": ({"a": "b"}, r"^tgt: a dict; expected strings in a list, tuple, Series or array$"),
    "set": ({"a"}, r"^tgt: a set; expected"),
    "bytes": (b"abc", r"^tgt: a bytes; expected"),
    "path": (Path("a.txt"), r"^tgt: a \w*Path; expected"),
    "number": (3, r"^tgt: a int; expected"),
    "nothing": (None, r"^tgt: a NoneType; expected"),
    "matrix": (np.array([["a", "b"]]), r"^tgt: a ndarray; expected"),
    "scalar": (np.array("a"), r"^tgt: a ndarray; expected"),
    "frame": (pd.DataFrame({"en": TEXTS}), r"^tgt: a table \(DataFrame\); expected one column of it"),
    "table": (pa.table({"en": TEXTS}), r"^tgt: a table \(Table\); expected one column of it"),
    "batch": (pa.RecordBatch.from_pydict({"en": TEXTS}), r"^tgt: a table \(RecordBatch\); expected one column"),
    "number inside": (["a", 3], r"^tgt: item 1 is 3, a int; expected a string$"),
    "missing": (pd.Series(["a", "b", None], dtype=object), r"^tgt: item 2 is None, a NoneType; expected a string$"),
    "not a number": (["a", float("nan")], r"^tgt: item 1 is nan, a float; expected a string$"),
    "arrow null": (pa.array([None, "a"]), r"^tgt: item 0 is None, a NoneType; expected a string$"),
    "lists": ([["a"], ["b"]], r"^tgt: item 0 is \['a'\], a list; expected a string$"),
    "bytes inside": (np.array([b"a"]), r"^tgt: item 0 is b'a', a bytes; expected a string$"),
    "numbers": (np.arange(3), r"^tgt: item 0 is 0, a int; expected a string$"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_sequences_of_strings_become_a_list(name: str) -> None:
    """Every container gives its strings in their order."""
    assert as_sentences(CONTAINERS[name]) == TEXTS


def test_one_string_is_one_sentence() -> None:
    """A string is not a list of its letters."""
    assert as_sentences("a b") == ["a b"]


@pytest.mark.parametrize("name", REFUSED)
def test_other_things_are_refused_in_one_line(name: str) -> None:
    """Containers without an order, tables, numbers and missing values are named, with their place."""
    given, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        as_sentences(given, "tgt")


def test_long_items_are_quoted_briefly() -> None:
    """A message stays one short line."""
    given: Any = ["a", ["x" * 1000]]
    with pytest.raises(DataError) as caught:
        as_sentences(given)
    assert len(str(caught.value)) < 120
