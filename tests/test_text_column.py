from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dualmoco.data.text_column import PairBlock, TextColumn, hash_rows, sentence_ids, to_codes, to_text
from dualmoco.text.characters import normalize

pytestmark = pytest.mark.usefixtures("character_tables")

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=10), max_size=8)


@given(TEXTS)
def test_a_side_gives_its_texts_back(texts: list[str]) -> None:
    side = TextColumn.from_texts(texts)
    assert len(side) == len(texts)
    assert side.texts() == texts
    assert side.to_arrow().to_pylist() == texts
    assert side.lengths.tolist() == [len(text) for text in texts]


@given(TEXTS)
def test_taken_rows_are_the_same_after_compacting(texts: list[str]) -> None:
    rows = [row for row in reversed(range(len(texts))) if row % 3 != 1]
    side = TextColumn.from_texts(texts).take(np.array(rows, dtype=np.int64))
    expected = [texts[row] for row in rows]
    assert side.texts() == side.compact().texts() == side.to_arrow().to_pylist() == expected
    assert len(side.compact().codes) == sum(map(len, expected))


@given(TEXTS)
def test_count_is_a_count_a_row(texts: list[str]) -> None:
    side = TextColumn.from_texts(texts)
    assert side.count(side.codes % 2 == 0).tolist() == [sum(ord(c) % 2 == 0 for c in text) for text in texts]


def test_replace_changes_only_its_rows() -> None:
    side = TextColumn.from_texts(["a", "b", "c"])
    changed = side.replace(np.array([0, 2]), ["long text", ""])
    assert changed.texts() == ["long text", "b", ""]
    assert side.texts() == ["a", "b", "c"]


@given(TEXTS)
def test_ids_are_equal_exactly_for_equal_normal_forms(texts: list[str]) -> None:
    ids = sentence_ids(texts).tolist()
    for one, other in zip(ids, texts, strict=True):
        for two, another in zip(ids, texts, strict=True):
            assert (one == two) == (normalize(other) == normalize(another))


def test_ids_do_not_depend_on_neighbours() -> None:
    assert sentence_ids(["x", "Hello!", "y"])[1] == sentence_ids(["hello"])[0]


def test_different_sentences_have_different_ids() -> None:
    """One letter, digit or accent more is another sentence; so is other punctuation where there is nothing else."""
    different = ["hello", "hallo", "hellos", "hello 1", "hello 2", "héllo", "你好", "您好", "!", "!!", "?", ""]
    different += [f"sentence number {number}" for number in range(5000)]
    assert len(set(sentence_ids(different).tolist())) == len(different)


def test_ids_are_stable() -> None:
    """Ids are written to run folders and compared later, so they must never change."""
    ids = sentence_ids(iter(["Hello, World!", "漢語。"]))
    assert ids.dtype == np.int64 and ids.shape == (2,)
    expected = [xxhash.xxh3_64_intdigest(text.encode("utf-32-le")) for text in ("helloworld", "汉语")]
    assert ids.view(np.uint64).tolist() == expected
    assert sentence_ids([]).shape == (0,)


def test_block_takes_both_sides() -> None:
    block = PairBlock(TextColumn.from_texts(["a", "b"]), TextColumn.from_texts(["c", "d"]), np.array([1, 2]))
    taken = block.take(np.array([False, True]))
    assert (taken.src.texts(), taken.tgt.texts(), taken.lines.tolist()) == (["b"], ["d"], [2])


def test_no_rows() -> None:
    empty = TextColumn.from_texts([])
    assert empty.texts() == [] and empty.fold().texts() == [] and len(hash_rows(empty)) == 0
    assert empty.to_arrow().to_pylist() == []


def test_codes_round_trip() -> None:
    assert to_text(to_codes("aé汉😀")) == "aé汉😀"
