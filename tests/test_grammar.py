"""Tests of the grammar that gives the demo its corpus."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dualmoco.data import grammar
from dualmoco.data.grammar import MAX_PAIRS, NOUNS, PATTERNS, generate_pairs

SOURCE = Path(grammar.__file__).resolve().parents[2]
VOWEL_LETTERS_WITH_A = {"useful", "university", "uniform", "used", "one"}


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    """The corpus of the demo's size that the tests read."""
    return generate_pairs(40_000, seed=3)


def _digest(pairs: list[tuple[str, str]]) -> str:
    return hashlib.sha256("\n".join(f"{en}\t{zh}" for en, zh in pairs).encode()).hexdigest()


def test_pairs_are_distinct_on_both_sides(pairs: list[tuple[str, str]]) -> None:
    """No English and no Chinese sentence occurs twice."""
    assert len(pairs) == 40_000
    assert len({english for english, _ in pairs}) == 40_000
    assert len({chinese for _, chinese in pairs}) == 40_000


def test_translation_is_one_to_one_across_seeds(pairs: list[tuple[str, str]]) -> None:
    """A sentence has the same translation whatever the seed, in both directions."""
    union = {pair for seed in range(4) for pair in generate_pairs(30_000, seed=seed)} | set(pairs)
    assert len(union) > 60_000
    assert len({english for english, _ in union}) == len(union)
    assert len({chinese for _, chinese in union}) == len(union)


def test_largest_count_is_given() -> None:
    """As many pairs as promised can be drawn."""
    assert len(set(generate_pairs(MAX_PAIRS))) == MAX_PAIRS >= 60_000


def test_seed_decides_the_pairs() -> None:
    """The same seed gives the same pairs, another seed others, a smaller count a prefix."""
    first = generate_pairs(500, seed=1)
    assert generate_pairs(500, seed=1) == first
    assert generate_pairs(100, seed=1) == first[:100]
    assert generate_pairs(500, seed=2) != first


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_pairs_do_not_depend_on_hash_seed(hash_seed: str) -> None:
    """A process with another PYTHONHASHSEED draws the same pairs."""
    code = (
        "import sys; from dualmoco.data.grammar import generate_pairs\n"
        "rows = '\\n'.join(f'{en}\\t{zh}' for en, zh in generate_pairs(3000, seed=5))\n"
        "sys.stdout.buffer.write(rows.encode())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SOURCE)}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
    assert hashlib.sha256(output).hexdigest() == _digest(generate_pairs(3000, seed=5))


def test_english_is_written_as_a_sentence(pairs: list[tuple[str, str]]) -> None:
    """English starts with a capital, ends with punctuation, and leaves no gap or placeholder."""
    sentence = re.compile(r"[A-Z][A-Za-z',.\- ]*[A-Za-z][.?!]")
    assert [en for en, _ in pairs if not sentence.fullmatch(en) or "  " in en] == []


def test_chinese_is_written_as_a_sentence(pairs: list[tuple[str, str]]) -> None:
    """Chinese is of Han characters and full-width punctuation alone."""
    sentence = re.compile(r"[\u4e00-\u9fff]+(，[\u4e00-\u9fff]+)*[。？！]")
    assert [zh for _, zh in pairs if not sentence.fullmatch(zh)] == []


def test_questions_are_questions_in_both_languages(pairs: list[tuple[str, str]]) -> None:
    """The punctuation at the end is the same on both sides."""
    assert any(en.endswith("?") for en, _ in pairs)
    assert [pair for pair in pairs if pair[0].endswith("?") != pair[1].endswith("？")] == []


def test_articles_agree(pairs: list[tuple[str, str]]) -> None:
    """The article is "a" before consonant sounds and "an" before vowel sounds."""
    found = {match for en, _ in pairs for match in re.findall(r"(?<![\w'])([Aa]n?) ([A-Za-z]+)", en)}
    words = {article.lower(): {word.lower() for a, word in found if a == article} for article, _ in found}
    assert {word for word in words["a"] if word[0] in "aeiou"} - VOWEL_LETTERS_WITH_A == set()
    assert {word for word in words["an"] if word[0] not in "aeiou"} == set()
    assert words["an"] & VOWEL_LETTERS_WITH_A == set()
    assert {"apple", "interesting", "english"} <= words["an"] and {"book", "useful"} <= words["a"]


@pytest.mark.parametrize(
    "wrong",
    [
        r"^(He|She|Tom|Mary|My teacher) (go|are|were|do|want|like|usually (go|take|do))\b",
        r"^(I|You|We|They|The students) (goes|is|does|wants|likes|usually (goes|takes|does))\b",
        r"\b(watchs|washs|gos|dos|flys|studys|plaies|haves)\b",
        r"\b(swiming|takeing|writeing|swimed|takeed|readed|drinked|eated|flyed|writed|drawed|singed|studyed)\b",
        r"\bThere is (two|three|four|five|six|seven|eight|nine)\b|\bThere are an? ",
    ],
)
def test_english_forms_agree(pairs: list[tuple[str, str]], wrong: str) -> None:
    """Verbs agree with their subjects and nouns with their numbers."""
    assert [en for en, _ in pairs if re.search(wrong, en)] == []


def test_counted_nouns_are_plural(pairs: list[tuple[str, str]]) -> None:
    """The plural follows a number above one, the singular an article."""
    counted = {(a, b) for en, _ in pairs for a, b in re.findall(r"\b(two|three|four|an?) ([a-z]+)", en)}
    for noun in NOUNS:
        one, many = noun.one.split()[0], noun.many.split()[0]
        if one != many:
            assert {("two", one), ("three", one), ("four", one), ("a", many), ("an", many)} & counted == set()
        assert {("a", one), ("an", one)} & counted


@pytest.mark.parametrize(
    "wrong",
    [
        "二[本支件顶条双把个台部块瓶只匹头辆盏点]",
        "[一两三四五六七八九](书|猫|衬衫)",
        "了了",
        "的的",
        "在在",
        "(昨天|上星期|上周末|前天)[^，]*会",
    ],
)
def test_chinese_forms_agree(pairs: list[tuple[str, str]], wrong: str) -> None:
    """Numbers take 两 and a measure word, particles come once, and 会 never tells the past."""
    assert [zh for _, zh in pairs if re.search(wrong, zh)] == []


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("yesterday", "昨天"),
        ("three", "三"),
        ("Tom", "汤姆"),
        ("not", "[不没]"),
        ("because", "因为"),
        ("Beijing", "北京"),
    ],
)
def test_words_are_translated(pairs: list[tuple[str, str]], english: str, chinese: str) -> None:
    """What the English says, the Chinese says too."""
    rows = [(en, zh) for en, zh in pairs if re.search(rf"(?<!before )\b{english}\b", en)]
    assert len(rows) > 100
    assert [row for row in rows if not re.search(chinese, row[1])] == []


def test_patterns_share_the_corpus(pairs: list[tuple[str, str]]) -> None:
    """Every kind of sentence has a good part of the corpus."""
    kinds = (
        "If ",
        "There ",
        "Please ",
        "Could ",
        "Let's ",
        "Would ",
        "Where ",
        "How much ",
        " because ",
        " than ",
    )
    counts = {kind: sum(kind in en for en, _ in pairs) for kind in kinds}
    assert len(PATTERNS) >= 10
    assert min(counts.values()) > 400, counts


@pytest.mark.parametrize("count", [0, -3, MAX_PAIRS + 1])
def test_count_out_of_range_is_refused(count: int) -> None:
    """The message says what was given and what is expected."""
    with pytest.raises(ValueError, match=rf"{count}\b.*1 to {MAX_PAIRS}"):
        generate_pairs(count)
