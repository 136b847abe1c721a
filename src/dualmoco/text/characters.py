"""What each Unicode character is, as tables over code points, so that whole blocks of text are judged at once.

`normalize` says when two sentences are the same; `folded_characters` holds its effect on single characters.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

import numpy as np

from dualmoco.text.languages import OPENCC, Chinese

Codes = np.ndarray[tuple[int], np.dtype[np.uint32]]  # code points
LAST = 0xFFFF  # code point with an entry of its own; those above share the last entry and are looked at one by one

COMPOSED = 1  # may change under NFC, alone or with a neighbour
CONTROL = 2  # control, format, private or surrogate character
SPACE = 4  # white space other than U+0020
MARKUP = 8  # opens a tag or an entity
LETTER = 16  # belongs to some script
WORD = 32  # part of a word that spaces delimit
IDEOGRAPH = 64  # a word of its own, near enough: Han, Kana, Thai and the like

UNSPACED_SCRIPTS = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
JOINERS = {0x200C, 0x200D}  # shape letters in Persian and Indic scripts, so not to be stripped
REWRITTEN = 0xFFFFFFFF  # in `folded_characters`: ask `normalize`

_remove_punctuation = re.compile(r"[\W_]+").sub


def normalize(sentence: str) -> str:
    """Keeps what makes two sentences the same: letters and digits, without width, case, punctuation or script variant.

    Args:
        sentence: Any text.

    Returns:
        Letters and digits alone, Chinese in simplified characters; the folded text itself if it has neither.
    """
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return (_remove_punctuation("", folded) or folded.strip()).translate(simplified_characters())


@cache
def simplified_characters() -> dict[int, int]:
    """The simplified form of every traditional Chinese character that has one."""
    from opencc import OpenCC

    characters = [chr(code) for codes in (range(0x3400, 0xA000), range(0xF900, 0xFB00)) for code in codes]
    simplified = OpenCC("t2s").convert("\n".join(characters)).split("\n")
    pairs = zip(characters, simplified, strict=True)
    return {ord(traditional): ord(simple) for traditional, simple in pairs if traditional != simple}


@cache
def folded_characters() -> Codes:
    """For each code point, what `normalize` makes of it inside a sentence: a code point, 0 for nothing, or REWRITTEN.

    Characters that grow, or that may melt with a neighbour, are REWRITTEN: their sentences go through `normalize`.
    """
    folded = np.full(LAST + 2, REWRITTEN, dtype=np.uint32)
    simplified = simplified_characters()
    for code in _assigned():
        character = chr(code)
        normal = unicodedata.normalize("NFKC", character)
        if any(_melts(part) for part in normal) or _melts(character):
            continue
        kept = _remove_punctuation("", normal.casefold())
        if len(kept) <= 1:
            folded[code] = simplified.get(ord(kept), ord(kept)) if kept else 0
    return folded


@cache
def character_kinds() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """For each code point, the sum of the constants above that hold for it."""
    kinds = np.full(LAST + 2, CONTROL | COMPOSED, dtype=np.uint8)
    for code in _assigned():
        character = chr(code)
        category = unicodedata.category(character)
        kind = COMPOSED * (_melts(character) or not unicodedata.is_normalized("NFC", character))
        kind |= CONTROL * is_control(character)
        kind |= SPACE * (character.isspace() and character != " ")
        kind |= MARKUP * (character in "<&")
        if category[0] in "LM":
            kind |= LETTER | (IDEOGRAPH if _script_word(character) in UNSPACED_SCRIPTS else WORD)
        kinds[code] = kind | WORD * (category[0] == "N")
    return kinds


@cache
def script_members(scripts: frozenset[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each code point, whether it is a letter of one of some scripts, named as Unicode names their letters."""
    members = np.zeros(LAST + 2, dtype=bool)
    for code in _assigned():
        character = chr(code)
        if unicodedata.category(character)[0] in "LM":
            members[code] = _script_word(character) in scripts
    return members


def is_control(character: str) -> bool:
    """Whether a character is no text: control, format, private or surrogate, but neither space nor joiner."""
    category = unicodedata.category(character)
    return category in ("Cc", "Cf", "Co", "Cs") and not character.isspace() and ord(character) not in JOINERS


def _assigned() -> list[int]:
    """The assigned code points up to LAST."""
    return [code for code in range(LAST + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]


def _melts(character: str) -> bool:
    """Whether a character may combine with the one before it, or reorder."""
    return unicodedata.category(character)[0] == "M" or 0x1100 <= ord(character) <= 0x11FF


def _script_word(character: str) -> str:
    """The first word of a letter's name, which names its script."""
    name = unicodedata.name(unicodedata.normalize("NFKC", character)[0], "")
    return name.split(" ", 1)[0]


def convert_chinese(text: str, target: Chinese) -> str:
    """Writes Chinese in other characters.

    Args:
        text: A sentence in Chinese.
        target: Simplified or traditional.

    Returns:
        The sentence; itself where there is nothing to convert.
    """
    if target == Chinese.simplified and simplified_characters().keys().isdisjoint(map(ord, text)):
        return text
    return str(_converter(target).convert(text))


@cache
def _converter(target: Chinese) -> Any:
    from opencc import OpenCC

    return OpenCC(OPENCC[target])
