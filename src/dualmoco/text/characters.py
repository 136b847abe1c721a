"""Properties of Unicode characters, as tables over code points, so that numpy can classify whole blocks of text.

`normalize` defines when two sentences are the same; `folded_characters` is its effect on single characters.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

import numpy as np

from dualmoco.text.languages import OPENCC, Chinese

Codes = np.ndarray[tuple[int], np.dtype[np.uint32]]  # code points
LAST_CODE = 0xFFFF  # last code point with its own entry; all higher code points share the entry after it

# Flags of `character_kinds`
COMPOSED = 1  # may change under NFC, alone or with a neighbour
CONTROL = 2  # control, format, private or surrogate character
SPACE = 4  # white space other than U+0020
MARKUP = 8  # opens a tag or an entity
LETTER = 16  # belongs to some script
WORD_PART = 32  # part of a word of a script with spaces
IDEOGRAPH = 64  # counts as a word: Han, Kana, Thai and the like

UNSPACED_SCRIPTS = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
JOINERS = {0x200C, 0x200D}  # shape letters in Persian and Indic scripts, so they must not be removed
REWRITTEN = 0xFFFFFFFF  # in `folded_characters`: call `normalize`

_remove_punctuation = re.compile(r"[\W_]+").sub


def normalize(sentence: str) -> str:
    """Reduces a sentence to its letters and digits without width, case and script variant; if it has none, folds it."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return (_remove_punctuation("", folded) or folded.strip()).translate(simplified_characters())


@cache
def simplified_characters() -> dict[int, int]:
    """The simplified form of every traditional Chinese character that has one."""
    characters = [chr(code) for codes in (range(0x3400, 0xA000), range(0xF900, 0xFB00)) for code in codes]
    simplified = _converter(Chinese.simplified).convert("\n".join(characters)).split("\n")
    pairs = zip(characters, simplified, strict=True)
    return {ord(traditional): ord(simple) for traditional, simple in pairs if traditional != simple}


def convert_chinese(text: str, target: Chinese) -> str:
    """Converts Chinese text to simplified or traditional characters."""
    if target == Chinese.simplified and simplified_characters().keys().isdisjoint(map(ord, text)):
        return text
    return str(_converter(target).convert(text))


@cache
def _converter(target: Chinese) -> Any:
    from opencc import OpenCC

    return OpenCC(OPENCC[target])


@cache
def folded_characters() -> Codes:
    """For each code point, what `normalize` makes of it inside a sentence: a code point, 0 for nothing, or REWRITTEN.

    REWRITTEN marks characters that become several or may merge with a neighbour: their sentences need `normalize`.
    """
    folded = np.full(LAST_CODE + 2, REWRITTEN, dtype=np.uint32)
    simplified = simplified_characters()
    for code in _assigned():
        character = chr(code)
        normal = unicodedata.normalize("NFKC", character)
        if any(_combines(part) for part in normal) or _combines(character):
            continue
        kept = _remove_punctuation("", normal.casefold())
        if len(kept) <= 1:
            folded[code] = simplified.get(ord(kept), ord(kept)) if kept else 0
    return folded


@cache
def character_kinds() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """For each code point, the sum of its flags."""
    kinds = np.full(LAST_CODE + 2, CONTROL | COMPOSED, dtype=np.uint8)
    for code in _assigned():
        character = chr(code)
        category = unicodedata.category(character)
        kind = COMPOSED * (_combines(character) or not unicodedata.is_normalized("NFC", character))
        kind |= CONTROL * is_control(character)
        kind |= SPACE * (character.isspace() and character != " ")
        kind |= MARKUP * (character in "<&")
        if category[0] in "LM":
            kind |= LETTER | (IDEOGRAPH if _script(character) in UNSPACED_SCRIPTS else WORD_PART)
        kinds[code] = kind | WORD_PART * (category[0] == "N")
    return kinds


@cache
def script_members(scripts: frozenset[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each code point, whether it is a letter of one of some scripts, named as in `text.languages.SCRIPTS`."""
    members = np.zeros(LAST_CODE + 2, dtype=bool)
    for code in _assigned():
        character = chr(code)
        if unicodedata.category(character)[0] in "LM":
            members[code] = _script(character) in scripts
    return members


def is_control(character: str) -> bool:
    """Whether a character is a control, format, private or surrogate character, but neither a space nor a joiner."""
    category = unicodedata.category(character)
    return category in ("Cc", "Cf", "Co", "Cs") and not character.isspace() and ord(character) not in JOINERS


def _assigned() -> list[int]:
    """The assigned code points up to LAST_CODE."""
    return [code for code in range(LAST_CODE + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]


def _combines(character: str) -> bool:
    """Whether a character may combine with the one before it, or be reordered."""
    return unicodedata.category(character)[0] == "M" or 0x1100 <= ord(character) <= 0x11FF


def _script(character: str) -> str:
    """The first word of a letter's Unicode name, which is its script."""
    name = unicodedata.name(unicodedata.normalize("NFKC", character)[0], "")
    return name.split(" ", 1)[0]
