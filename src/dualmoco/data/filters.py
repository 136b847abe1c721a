"""Cleaning steps: normalizers, which rewrite single sentences, then filters, which drop sentence pairs.

Both work on a whole `PairBlock` at once. A normalizer runs only on sentences with a character that it may change.
"""

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

REPLACEMENT_CHARACTER = 0xFFFD  # what decoders write for invalid bytes
IDENTIFIABLE_LETTERS = 15  # language identification is unreliable for fewer letters
RATIO_OFFSET = 4  # tokens added to both lengths, so that one more word does not drop a short pair

_breaking_tag = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|td|th|h[1-6])\b[^<>]*>", re.IGNORECASE)
_tag = re.compile(r"<(?:/?[A-Za-z][^<>]*|!--.*?--)>", re.DOTALL)
_entity = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def strip_markup(text: str) -> str:
    """Removes tags and resolves entities; tags that break a line leave a space."""
    without_tags = _tag.sub("", _breaking_tag.sub(" ", text))
    return _entity.sub(lambda found: html.unescape(found.group()), without_tags)


def compose(text: str) -> str:
    """Unicode NFC."""
    return unicodedata.normalize("NFC", text)


def strip_controls(text: str) -> str:
    """Removes control, format and private characters."""
    return "".join(character for character in text if not is_control(character))


def join_spaces(text: str) -> str:
    """Replaces each run of white space by one space, and strips both ends."""
    return " ".join(text.split())


NORMALIZERS: dict[str, tuple[Callable[[str], str], int]] = {  # and the kinds of characters that each may change
    "markup": (strip_markup, MARKUP),
    "nfc": (compose, COMPOSED),
    "controls": (strip_controls, CONTROL),
    "spaces": (join_spaces, SPACE),
}


def rewrite(block: PairBlock, config: CleanConfig, langs: tuple[str, str], changed: Counter[str]) -> PairBlock:
    """Applies the normalizers to both sides of a block; `changed` counts changed sentences by normalizer."""
    sides = [_normalize_column(column, config, changed) for column in (block.src, block.tgt)]
    for side, lang in enumerate(langs):
        if config.chinese != Chinese.keep and base_language(lang) == "zh":
            sides[side] = _convert_column(sides[side], config.chinese, changed)
    return PairBlock(sides[0], sides[1], block.lines)


def _normalize_column(column: TextColumn, config: CleanConfig, changed: Counter[str]) -> TextColumn:
    steps = {name: step for name, step in NORMALIZERS.items() if getattr(config, name)}
    if not steps or not len(column):
        return column
    column = column.compact()
    watched = sum(kinds for _, kinds in steps.values())
    suspects = column.count((lookup(character_kinds(), column.codes) & watched) != 0) > 0
    if "spaces" in steps:
        suspects |= _has_loose_spaces(column)
    rows = np.flatnonzero(suspects)
    texts = []
    for text in column.take(rows).texts():
        for name, (function, _) in steps.items():
            new = function(text)
            changed[name] += new != text
            text = new
        texts.append(text)
    return column.replace(rows, texts).compact() if len(rows) else column


def _has_loose_spaces(column: TextColumn) -> Mask:
    """Whether each row starts or ends with a space or contains two in a row."""
    padded = np.append(column.codes == ord(" "), False)
    edges = (column.lengths > 0) & (padded[column.starts] | padded[column.ends - 1])
    loose: Mask = edges | (column.count(padded[:-1] & padded[1:]) > 0)
    return loose


def _convert_column(column: TextColumn, target: Chinese, changed: Counter[str]) -> TextColumn:
    column = column.compact()
    if target == Chinese.simplified:
        touched = np.isin(column.codes, np.fromiter(simplified_characters(), dtype=np.uint32))
    else:
        touched = (lookup(character_kinds(), column.codes) & IDEOGRAPH) != 0
    rows = np.flatnonzero(column.count(touched) > 0)
    old = column.take(rows).texts()
    new = [convert_chinese(text, target) for text in old]
    changed["chinese"] += sum(before != after for before, after in zip(old, new, strict=True))
    return column.replace(rows, new).compact() if len(rows) else column


@dataclass(frozen=True)
class TextStats:
    """One side of a block, without gaps, and counts of its characters and words."""

    column: TextColumn
    lang: str

    @cached_property
    def kinds(self) -> np.ndarray:
        """Flags of each code point."""
        return lookup(character_kinds(), self.column.codes)

    @cached_property
    def token_starts(self) -> Mask:
        """For each code point, whether a word begins there; each letter of a script without spaces is a word."""
        word = (self.kinds & WORD_PART) != 0
        begins = word.copy()
        begins[1:] &= ~word[:-1]
        first = self.column.starts[self.column.lengths > 0]
        begins[first] = word[first]
        return np.asarray(begins | ((self.kinds & IDEOGRAPH) != 0))

    @cached_property
    def tokens(self) -> Ints:
        """Words of each row."""
        return self.column.count(self.token_starts)

    @cached_property
    def letters(self) -> Ints:
        """Letters of each row, in any script."""
        return self.column.count((self.kinds & LETTER) != 0)

    def share_of(self, lang: str) -> np.ndarray:
        """Share of each row's words that begin with a letter of a language's scripts; 1 for rows without letters."""
        members = lookup(script_members(scripts_of(lang)), self.column.codes)
        own = self.column.count(self.token_starts & members)
        words = self.column.count(self.token_starts & ((self.kinds & LETTER) != 0))
        return np.where(words > 0, own / np.maximum(words, 1), 1.0)

    @cached_property
    def own_share(self) -> np.ndarray:
        """Share of each row's words in the scripts of its own language."""
        return self.share_of(self.lang)


Sides = tuple[TextStats, TextStats]
Filter = Callable[[Sides, CleanConfig], Mask]


def _either(holds: Callable[[TextStats, CleanConfig], np.ndarray]) -> Filter:
    """A filter that drops pairs if one or both sides have a property."""
    return lambda sides, config: np.asarray(holds(sides[0], config) | holds(sides[1], config))


def _is_identical(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = (side.column for side in sides)
    same: Mask = np.asarray(src.lengths == tgt.lengths)
    rows = np.flatnonzero(same)
    pairs = zip(src.take(rows).texts(), tgt.take(rows).texts(), strict=True)
    same[rows] = [one == other for one, other in pairs]
    return same


def _is_damaged(side: TextStats, config: CleanConfig) -> np.ndarray:
    return side.column.count(side.column.codes == REPLACEMENT_CHARACTER) > 0


def _is_too_long(side: TextStats, config: CleanConfig) -> np.ndarray:
    max_chars, max_tokens = config.max_chars or np.inf, config.max_tokens or np.inf
    return (side.column.lengths > max_chars) | (side.tokens > max_tokens)


def _has_wrong_ratio(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = (side.tokens + RATIO_OFFSET for side in sides)
    return np.asarray(np.maximum(src, tgt) > config.max_ratio * np.minimum(src, tgt))


_has_wrong_script = _either(lambda side, config: side.own_share < config.min_script)


def _is_swapped(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = sides
    wrong = _has_wrong_script(sides, config)
    if share_script(src.lang, tgt.lang) or not wrong.any():
        return np.zeros(len(wrong), dtype=bool)
    crossed = (src.share_of(tgt.lang) >= config.min_script) & (tgt.share_of(src.lang) >= config.min_script)
    return np.asarray(crossed & wrong)


def _has_wrong_language(sides: Sides, config: CleanConfig) -> Mask:
    src, tgt = sides
    if config.language == Identify.auto and not share_script(src.lang, tgt.lang):
        return np.zeros(len(src.column), dtype=bool)
    return _is_misplaced(src, tgt.lang, config) | _is_misplaced(tgt, src.lang, config)


def _is_misplaced(side: TextStats, other: str, config: CleanConfig) -> Mask:
    """Whether each identifiable sentence is in the other side's language or, with `always`, not in its own."""
    wrong = np.zeros(len(side.column), dtype=bool)
    rows = np.flatnonzero(side.letters >= IDENTIFIABLE_LETTERS)
    own, other = base_language(side.lang), base_language(other)
    found = (identify(text) for text in side.column.take(rows).texts())
    wrong[rows] = [lang != own if config.language == Identify.always else lang == other for lang in found]
    return wrong


FILTERS: dict[str, tuple[Filter, Callable[[CleanConfig], bool]]] = {  # and whether the settings ask for it
    "empty side": (_either(lambda side, _: side.column.lengths == 0), lambda config: True),
    "damaged characters": (_either(_is_damaged), lambda config: True),
    "no letters": (_either(lambda side, _: side.letters == 0), lambda config: True),
    "identical sides": (_is_identical, lambda config: True),
    "too short": (_either(lambda side, config: side.tokens < config.min_tokens), lambda config: config.min_tokens > 0),
    "too long": (_either(_is_too_long), lambda config: config.max_chars > 0 or config.max_tokens > 0),
    "length ratio": (_has_wrong_ratio, lambda config: config.max_ratio > 0),
    "swapped sides": (_is_swapped, lambda config: config.min_script > 0),
    "wrong script": (_has_wrong_script, lambda config: config.min_script > 0),
    "wrong language": (_has_wrong_language, lambda config: config.language != Identify.never),
}


def apply_filters(sides: Sides, config: CleanConfig) -> Iterator[tuple[str, Mask]]:
    """Yields the name of each filter that the settings ask for, and the rows that it is the first to drop."""
    left = np.ones(len(sides[0].column), dtype=bool)
    for name, (function, is_wanted) in FILTERS.items():
        if is_wanted(config):
            dropped = function(sides, config) & left
            left &= ~dropped
            yield name, dropped


def drop(block: PairBlock, config: CleanConfig, langs: tuple[str, str], dropped: Counter[str]) -> PairBlock:
    """Removes the pairs that a filter drops from a rewritten block; `dropped` counts them by filter."""
    sides = (TextStats(block.src.compact(), langs[0]), TextStats(block.tgt.compact(), langs[1]))
    left = np.ones(len(block), dtype=bool)
    for name, rows in apply_filters(sides, config):
        dropped[name] += int(rows.sum())
        left &= ~rows
    return PairBlock(sides[0].column, sides[1].column, block.lines).take(left)
