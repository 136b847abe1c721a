"""Tests of data/filters.py: normalizers and filters."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualmoco.data.config import CleanConfig, Identify
from dualmoco.data.filters import (
    FILTERS,
    NORMALIZERS,
    TextStats,
    drop,
    join_spaces,
    rewrite,
    strip_controls,
    strip_markup,
)
from dualmoco.data.text_column import PairBlock, TextColumn
from dualmoco.text.languages import Chinese

pytestmark = pytest.mark.usefixtures("character_tables")

LANGS = ("en", "zh")
OFF = CleanConfig(
    markup=False,
    nfc=False,
    controls=False,
    spaces=False,
    max_chars=0,
    min_tokens=0,
    max_tokens=0,
    max_ratio=0,
    min_script=0,
    language=Identify.never,
)


def block_of(*pairs: tuple[str, str]) -> PairBlock:
    src, tgt = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return PairBlock(TextColumn.from_texts(src), TextColumn.from_texts(tgt), np.arange(len(pairs)))


def pairs_of(block: PairBlock) -> list[tuple[str, str]]:
    return list(zip(block.src.texts(), block.tgt.texts(), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>bold</b> and <i class='x'>more</i>", "bold and more"),
        ("one<br/>two<p>three</p>", "one two three "),
        ("fish &amp; chips &#39;n&#x27; &nosuch; a&b", "fish & chips 'n' &nosuch; a&b"),
        ("1 < 2 > 0, a <- b", "1 < 2 > 0, a <- b"),
        ("<!-- gone -->left", "left"),
    ],
)
def test_markup(text: str, expected: str) -> None:
    assert strip_markup(text) == expected


def test_controls_and_spaces() -> None:
    assert strip_controls("a\0b\u200bc\u00add\te\u200d") == "abcd\te\u200d"
    assert join_spaces(" a\u3000 b\t\tc\n") == "a b c"


@given(st.lists(st.text(st.sampled_from("ab <>&;/br \t\u3000\0\u200be\u0301漢😀\u00a0"), max_size=8), max_size=5))
def test_rewriting_a_block_is_rewriting_each_row(texts: list[str]) -> None:
    """Rows are chosen by their characters; none that a normalizer changes may be missed."""
    expected = []
    for text in texts:
        for function, _ in NORMALIZERS.values():
            text = function(text)
        expected.append(text)
    block = block_of(*((text, text) for text in texts))
    done = rewrite(block, CleanConfig(), LANGS, Counter())
    assert pairs_of(done) == [(text, text) for text in expected]


@pytest.mark.parametrize("step", list(NORMALIZERS))
def test_each_rewriting_step_has_its_switch_and_counter(step: str) -> None:
    text = "<b>x</b>\0 e\u0301  y"
    changed: Counter[str] = Counter()
    done = rewrite(block_of((text, "好")), replace(OFF, **{step: True}), LANGS, changed)  # type: ignore[arg-type]
    assert changed == {step: 1}
    assert done.src.texts() == [NORMALIZERS[step][0](text)] != [text]
    assert rewrite(block_of((text, "好")), OFF, LANGS, Counter()).src.texts() == [text]


def test_chinese_variants() -> None:
    block = block_of(("漢", "漢語後臺"), ("x", "汉语"))
    changed: Counter[str] = Counter()
    simple = rewrite(block, replace(OFF, chinese=Chinese.simplified), LANGS, changed)
    assert pairs_of(simple) == [("漢", "汉语后台"), ("x", "汉语")]
    assert changed == {"chinese": 1}
    back = rewrite(simple, replace(OFF, chinese=Chinese.traditional), LANGS, Counter())
    assert back.tgt.texts()[1] == "漢語"


GOOD = ("This is a good sentence.", "这是一个好句子。")
CASES: list[tuple[str, tuple[str, str], dict[str, object]]] = [
    ("empty side", ("", "好"), {}),
    ("damaged characters", ("caf\ufffd is open", "咖啡馆开门了"), {}),
    ("no letters", ("12:30", "十二点半"), {}),
    ("identical sides", ("Ubuntu 汉", "Ubuntu 汉"), {}),
    ("too short", ("Hello", "你好吗"), {"min_tokens": 2}),
    ("too long", ("a" * 60, "好"), {"max_chars": 50}),
    ("too long", ("a b c d e f g h i", "好"), {"max_tokens": 8}),
    ("length ratio", ("one two three four five six seven eight nine ten eleven twelve", "好"), {"max_ratio": 3.0}),
    ("swapped sides", ("这是一个句子", "This is a sentence"), {"min_script": 0.5}),
    ("wrong script", ("This is one", "This is another"), {"min_script": 0.5}),
    ("wrong language", ("Dies ist ein deutscher Satz, ganz sicher.", "这是一个好句子"), {"language": Identify.always}),
]


@pytest.mark.parametrize(("step", "bad", "setting"), CASES)
def test_each_dropping_step(step: str, bad: tuple[str, str], setting: dict[str, object]) -> None:
    dropped: Counter[str] = Counter()
    left = drop(block_of(GOOD, bad, GOOD), replace(OFF, **setting), LANGS, dropped)  # type: ignore[arg-type]
    assert pairs_of(left) == [GOOD, GOOD]
    assert +dropped == {step: 1}
    if setting:
        assert len(drop(block_of(GOOD, bad, GOOD), OFF, LANGS, Counter())) == 3


def test_every_dropping_step_has_a_case() -> None:
    assert {step for step, _, _ in CASES} == set(FILTERS)


def test_every_switch_is_exercised() -> None:
    used = {key for _, _, setting in CASES for key in setting} | set(NORMALIZERS) | {"chinese"}
    assert used == {setting.name for setting in fields(CleanConfig)}


def test_untranslated_pairs_of_one_script_are_caught_by_language() -> None:
    pairs = [
        ("The weather is lovely in the mountains today.", "Das Wetter ist heute in den Bergen herrlich."),
        ("The weather is lovely in the mountains today.", "The weather was lovely in the mountains yesterday."),
        ("ok", "ok!"),
    ]
    dropped: Counter[str] = Counter()
    left = drop(block_of(*pairs), replace(OFF, language=Identify.auto), ("en", "de"), dropped)
    assert pairs_of(left) == [pairs[0], pairs[2]]
    assert +dropped == {"wrong language": 1}


def test_a_pair_is_counted_once_under_the_first_step() -> None:
    dropped: Counter[str] = Counter()
    drop(block_of(("", ""), ("<>", "<>")), CleanConfig(), LANGS, dropped)
    assert sum(dropped.values()) == 2
    assert dropped["empty side"] == 1


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("one two", 2), ("don't 3.5", 4), ("你好 world", 3), ("a", 1), ("，。", 0)]
)
def test_tokens(text: str, tokens: int) -> None:
    side = TextColumn.from_texts(["x y", text, "z"])
    assert TextStats(side, "en").tokens.tolist() == [2, tokens, 1]
    assert TextStats(TextColumn.from_texts([text]), "en").tokens.tolist() == [tokens]


def test_an_empty_block_stays_empty() -> None:
    assert len(drop(rewrite(block_of(), CleanConfig(), LANGS, Counter()), CleanConfig(), LANGS, Counter())) == 0
