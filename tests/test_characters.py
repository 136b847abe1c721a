from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualmoco.data.text_column import TextColumn
from dualmoco.text.characters import (
    COMPOSED,
    CONTROL,
    IDEOGRAPH,
    LETTER,
    MARKUP,
    SPACE,
    WORD_PART,
    character_kinds,
    normalize,
    script_members,
    simplified_characters,
)

pytestmark = pytest.mark.usefixtures("character_tables")

ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
ODD_TEXT = st.text(
    st.sampled_from("aAéE\u0301ßﬁ½①Ａ。 ，-\u200d\u00ad가ᄀ\u1161ｶﾞか\u3099漢汉İ\u0130Ǆ😀𠀀_\u0000٣"), max_size=8
)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Hello, World!", "helloworld"),
        ("ＨＥＬＬＯ　ｗｏｒｌｄ", "helloworld"),
        (" hello\tworld\u00a0\u3000", "helloworld"),
        ("hello_world...", "helloworld"),
        ("«Hello» — (world)", "helloworld"),
        ("你 好 , 世界 !", "你好世界"),
        ("漢語", "汉语"),
        ("ﾊﾛｰ", "ハロー"),
        ("Straße", "strasse"),
        ("ﬁne ² x", "fine2x"),
        ("nai\u0308ve", "naïve"),
        ("It's 3.5%", "its35"),
        ("!!!", "!!!"),
        (" ？！ ", "?!"),
        ("   ", ""),
    ],
)
def test_normalize(sentence: str, expected: str) -> None:
    assert normalize(sentence) == expected
    assert normalize(expected) == expected


@given(st.lists(st.one_of(ANY_TEXT, ODD_TEXT), max_size=6))
def test_folding_a_block_is_normalizing_each_row(sentences: list[str]) -> None:
    assert TextColumn.from_texts(sentences).fold().texts() == [normalize(sentence) for sentence in sentences]


def test_folding_agrees_on_every_character_of_the_basic_plane() -> None:
    characters = [f"x{chr(code)}y" for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    assert TextColumn.from_texts(characters).fold().texts() == [normalize(text) for text in characters]


@pytest.mark.parametrize(
    ("character", "expected"),
    [
        ("a", LETTER | WORD_PART),
        ("7", WORD_PART),
        ("汉", LETTER | IDEOGRAPH),
        ("カ", LETTER | IDEOGRAPH),
        ("ｶ", LETTER | IDEOGRAPH),
        ("한", LETTER | WORD_PART),
        (" ", 0),
        ("\u3000", SPACE),
        ("\t", SPACE),
        ("\0", CONTROL),
        ("\u200b", CONTROL),
        ("\u200d", 0),
        ("<", MARKUP),
        ("\u0301", COMPOSED | LETTER | WORD_PART),
        ("!", 0),
    ],
)
def test_kinds(character: str, expected: int) -> None:
    assert character_kinds()[ord(character)] == expected


def test_composed_marks_every_character_that_nfc_changes() -> None:
    kinds = character_kinds()
    for code in range(0x10000):
        if not 0xD800 <= code < 0xE000 and unicodedata.normalize("NFC", chr(code)) != chr(code):
            assert kinds[code] & COMPOSED, hex(code)


def test_scripts() -> None:
    latin, han = script_members(frozenset({"LATIN"})), script_members(frozenset({"CJK"}))
    assert latin[[ord("a"), ord("é"), ord("Ａ")]].all()
    assert not latin[[ord("я"), ord("汉"), ord("1")]].any()
    assert han[ord("汉")] and not han[ord("か")]


def test_simplified_characters_map_one_to_one() -> None:
    table = simplified_characters()
    assert chr(table[ord("漢")]) == "汉"
    assert ord("汉") not in table
    assert len(table) > 2000


def test_tables_cover_the_basic_plane() -> None:
    assert len(character_kinds()) == 0x10001
    assert character_kinds().dtype == np.uint8
