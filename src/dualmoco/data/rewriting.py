"""Steps of cleaning that change a sentence. Each is a pure function; only rows it can touch are handed to it."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dualmoco.data.block import Mask, PairBlock, TextColumn, lookup
from dualmoco.data.characters import (
    COMPOSED,
    CONTROL,
    IDEOGRAPH,
    MARKUP,
    SPACE,
    character_kinds,
    is_control,
    simplified_characters,
)
from dualmoco.data.languages import base_language
from dualmoco.data.recipe import Chinese, CleanConfig

_breaking = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|td|th|h[1-6])\b[^<>]*>", re.IGNORECASE)
_tag = re.compile(r"<(?:/?[A-Za-z][^<>]*|!--.*?--)>", re.DOTALL)
_entity = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

OPENCC = {Chinese.simplified: "t2s", Chinese.traditional: "s2t"}
"""The conversions of OpenCC, by the characters they write."""


def strip_markup(text: str) -> str:
    """Removes tags and resolves entities; tags that break a line leave a space."""
    without_tags = _tag.sub("", _breaking.sub(" ", text))
    return _entity.sub(lambda found: html.unescape(found.group()), without_tags)


def compose(text: str) -> str:
    """Unicode NFC."""
    return unicodedata.normalize("NFC", text)


def strip_controls(text: str) -> str:
    """Removes control, format and private characters that are no spaces."""
    return "".join(character for character in text if not is_control(character))


def join_spaces(text: str) -> str:
    """Makes every run of white space one space, and none at the ends."""
    return " ".join(text.split())


REWRITES: dict[str, tuple[Callable[[str], str], int]] = {  # and the kinds of characters each may touch
    "markup": (strip_markup, MARKUP),
    "nfc": (compose, COMPOSED),
    "controls": (strip_controls, CONTROL),
    "spaces": (join_spaces, SPACE),
}


def rewrite(block: PairBlock, config: CleanConfig, langs: tuple[str, str], changed: Counter[str]) -> PairBlock:
    """Applies the rewriting steps to both sides.

    Args:
        block: Raw pairs.
        config: Which steps.
        langs: Source and target language.
        changed: Counts sentences changed, by step.

    Returns:
        The block with clean sentences, in the same rows.
    """
    src, tgt = (_rewrite_side(side, config, changed) for side in (block.src, block.tgt))
    if config.chinese != Chinese.keep:
        src, tgt = (
            _convert_side(side, config.chinese, changed) if base_language(lang) == "zh" else side
            for side, lang in zip((src, tgt), langs, strict=True)
        )
    return PairBlock(src, tgt, block.lines)


def _rewrite_side(side: TextColumn, config: CleanConfig, changed: Counter[str]) -> TextColumn:
    steps = {name: step for name, step in REWRITES.items() if getattr(config, name)}
    if not steps or not len(side):
        return side
    side = side.compact()
    watched = sum(kinds for _, kinds in steps.values())
    suspects = side.count((lookup(character_kinds(), side.codes) & watched) != 0) > 0
    if "spaces" in steps:
        suspects |= _has_loose_spaces(side)
    rows = np.flatnonzero(suspects)
    texts = []
    for text in side.take(rows).texts():
        for name, (function, _) in steps.items():
            new = function(text)
            changed[name] += new != text
            text = new
        texts.append(text)
    return side.replace(rows, texts).compact() if len(rows) else side


def _has_loose_spaces(side: TextColumn) -> Mask:
    """Mask of the rows that begin or end with a space or contain two in a row."""
    padded = np.append(side.codes == ord(" "), False)
    filled = side.lengths > 0
    edges = filled & (padded[side.starts] | padded[side.ends - 1])
    loose: Mask = edges | (side.count(padded[:-1] & padded[1:]) > 0)
    return loose


def _convert_side(side: TextColumn, target: Chinese, changed: Counter[str]) -> TextColumn:
    side = side.compact()
    if target == Chinese.simplified:
        touched = np.isin(side.codes, np.fromiter(simplified_characters(), dtype=np.uint32))
    else:
        touched = (lookup(character_kinds(), side.codes) & IDEOGRAPH) != 0
    rows = np.flatnonzero(side.count(touched) > 0)
    old = side.take(rows).texts()
    new = [convert_chinese(text, target) for text in old]
    changed["chinese"] += sum(before != after for before, after in zip(old, new, strict=True))
    return side.replace(rows, new).compact() if len(rows) else side


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
