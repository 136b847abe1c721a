"""Cleaning steps: normalizers that rewrite a sentence, and filters that drop a pair."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dualmoco.data.config import CleanConfig, Identify
from dualmoco.data.text_column import Ints, Mask, PairBlock, TextColumn, lookup
from dualmoco.text.characters import (
    COMPOSED,
    CONTROL,
    IDEOGRAPH,
    LETTER,
    MARKUP,
    SPACE,
    WORD_PART,
    character_kinds,
    convert_chinese,
    is_control,
    script_members,
    simplified_characters,
)
from dualmoco.text.languages import Chinese, base_language, identify, scripts_of, share_script

_breaking = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|td|th|h[1-6])\b[^<>]*>", re.IGNORECASE)
_tag = re.compile(r"<(?:/?[A-Za-z][^<>]*|!--.*?--)>", re.DOTALL)
_entity = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


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


DAMAGED = 0xFFFD  # what stands for bytes that were no text
IDENTIFIABLE = 15  # letters below which the language of a sentence is a guess
SHORT = 4  # tokens added to both lengths before their ratio, so that one word more does not condemn a short pair


@dataclass(frozen=True)
class TextStats:
    """One side of a block, and its lengths."""

    side: TextColumn
    lang: str

    @cached_property
    def kinds(self) -> np.ndarray:
        """What each code point is."""
        return lookup(character_kinds(), self.side.codes)

    @cached_property
    def token_starts(self) -> Mask:
        """For each code point, whether a word begins there; each letter of a script without spaces is a word."""
        word = (self.kinds & WORD_PART) != 0
        begins = word.copy()
        begins[1:] &= ~word[:-1]
        inner = self.side.starts[self.side.lengths > 0]
        begins[inner] = word[inner]
        return np.asarray(begins | ((self.kinds & IDEOGRAPH) != 0))

    @cached_property
    def tokens(self) -> Ints:
        """Words of each row."""
        return self.side.count(self.token_starts)

    @cached_property
    def letters(self) -> Ints:
        """Letters of any script."""
        return self.side.count((self.kinds & LETTER) != 0)

    @cached_property
    def own_share(self) -> np.ndarray:
        """Which part of each row's words is written in its language's scripts."""
        return self.share_of(self.lang)

    def share_of(self, lang: str) -> np.ndarray:
        """Which part of each row's words begins with a letter of a language's scripts; 1 for rows without letters."""
        members = lookup(script_members(scripts_of(lang)), self.side.codes)
        own = self.side.count(self.token_starts & members)
        words = self.side.count(self.token_starts & ((self.kinds & LETTER) != 0))
        return np.where(words > 0, own / np.maximum(words, 1), 1.0)


Sides = tuple[TextStats, TextStats]
Drop = Callable[[Sides, CleanConfig], Mask]


def _empty(sides: Sides, config: CleanConfig) -> Mask:
    return _either(sides, lambda side: side.side.lengths == 0)


def _damaged(sides: Sides, config: CleanConfig) -> Mask:
    return _either(sides, lambda side: side.side.count(side.side.codes == DAMAGED) > 0)


def _no_letters(sides: Sides, config: CleanConfig) -> Mask:
    return _either(sides, lambda side: side.letters == 0)


def _too_short(sides: Sides, config: CleanConfig) -> Mask:
    return _either(sides, lambda side: (side.side.lengths < config.min_chars) | (side.tokens < config.min_tokens))


def _too_long(sides: Sides, config: CleanConfig) -> Mask:
    return _either(
        sides, lambda side: _above(side.side.lengths, config.max_chars) | _above(side.tokens, config.max_tokens)
    )


def _above(lengths: Ints, limit: int) -> Mask:
    return np.asarray((lengths > limit) & (limit > 0))


def _length_ratio(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = (side.tokens + SHORT for side in sides)
    return np.asarray(np.maximum(src, tgt) > config.max_ratio * np.minimum(src, tgt))


def _identical(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = (side.side for side in sides)
    same: Mask = np.asarray(src.lengths == tgt.lengths)
    rows = np.flatnonzero(same)
    pairs = zip(src.take(rows).texts(), tgt.take(rows).texts(), strict=True)
    same[rows] = [one == other for one, other in pairs]
    return same


def _swapped(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = sides
    wrong = _wrong_script(sides, config)
    if share_script(src.lang, tgt.lang) or not wrong.any():
        return np.zeros(len(wrong), dtype=bool)
    crossed = (src.share_of(tgt.lang) >= config.min_script) & (tgt.share_of(src.lang) >= config.min_script)
    return np.asarray(crossed & wrong)


def _wrong_script(sides: Sides, config: CleanConfig) -> Mask:
    return _either(sides, lambda side: side.own_share < config.min_script)


def _wrong_language(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = sides
    if config.language == Identify.auto and not share_script(src.lang, tgt.lang):
        return np.zeros(len(src.side), dtype=bool)
    return _misread(src, tgt.lang, config) | _misread(tgt, src.lang, config)


def _misread(side: TextStats, other: str, config: CleanConfig) -> Mask:
    """Mask of identifiable sentences in the other side's language or, with `always`, not in their own."""
    wrong = np.zeros(len(side.side), dtype=bool)
    rows = np.flatnonzero(side.letters >= IDENTIFIABLE)
    own, other = base_language(side.lang), base_language(other)
    found = (identify(text) for text in side.side.take(rows).texts())
    wrong[rows] = [lang != own if config.language == Identify.always else lang == other for lang in found]
    return wrong


def _either(sides: Sides, holds: Callable[[TextStats], np.ndarray]) -> Mask:
    return np.asarray(holds(sides[0]) | holds(sides[1]))


DROPS: dict[str, tuple[Drop, Callable[[CleanConfig], bool]]] = {  # and whether a recipe asks for it
    "empty side": (_empty, lambda config: True),
    "damaged characters": (_damaged, lambda config: config.damaged),
    "no letters": (_no_letters, lambda config: config.letters),
    "identical sides": (_identical, lambda config: config.identical),
    "too short": (_too_short, lambda config: config.min_chars > 1 or config.min_tokens > 0),
    "too long": (_too_long, lambda config: config.max_chars > 0 or config.max_tokens > 0),
    "length ratio": (_length_ratio, lambda config: config.max_ratio > 0),
    "swapped sides": (_swapped, lambda config: config.min_script > 0),
    "wrong script": (_wrong_script, lambda config: config.min_script > 0),
    "wrong language": (_wrong_language, lambda config: config.language != Identify.never),
}


def apply_filters(sides: Sides, config: CleanConfig) -> Iterator[tuple[str, Mask]]:
    """Yields each step a recipe asks for and the rows that it is the first to condemn."""
    left = np.ones(len(sides[0].side), dtype=bool)
    for name, (step, wanted) in DROPS.items():
        if wanted(config):
            condemned = step(sides, config) & left
            left &= ~condemned
            yield name, condemned


def drop(block: PairBlock, config: CleanConfig, langs: tuple[str, str], dropped: Counter[str]) -> PairBlock:
    """Removes the pairs that a step condemns.

    Args:
        block: Pairs after rewriting.
        config: Which steps, and their limits.
        langs: Source and target language.
        dropped: Counts pairs, by the first step that condemned them.

    Returns:
        The pairs that are left, in order.
    """
    sides = (TextStats(block.src.compact(), langs[0]), TextStats(block.tgt.compact(), langs[1]))
    left = np.ones(len(block), dtype=bool)
    for name, condemned in apply_filters(sides, config):
        dropped[name] += int(condemned.sum())
        left &= ~condemned
    return PairBlock(sides[0].side, sides[1].side, block.lines).take(left)
