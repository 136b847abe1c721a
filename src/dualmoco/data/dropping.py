"""Steps of cleaning that drop a pair. Each is a pure function of what is measured on a block of pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dualmoco.data.block import Ints, Mask, PairBlock, TextColumn, lookup
from dualmoco.data.characters import IDEOGRAPH, LETTER, WORD, character_kinds, script_members
from dualmoco.data.languages import base_language, identify, scripts_of, share_script
from dualmoco.data.recipe import CleanConfig, Identify

DAMAGED = 0xFFFD  # what stands for bytes that were no text
IDENTIFIABLE = 15  # letters below which the language of a sentence is a guess
SHORT = 4  # tokens added to both lengths before their ratio, so that one word more does not condemn a short pair


@dataclass(frozen=True)
class Measured:
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
        word = (self.kinds & WORD) != 0
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


Sides = tuple[Measured, Measured]
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


def _misread(side: Measured, other: str, config: CleanConfig) -> Mask:
    """Mask of identifiable sentences in the other side's language or, with `always`, not in their own."""
    wrong = np.zeros(len(side.side), dtype=bool)
    rows = np.flatnonzero(side.letters >= IDENTIFIABLE)
    own, other = base_language(side.lang), base_language(other)
    found = (identify(text) for text in side.side.take(rows).texts())
    wrong[rows] = [lang != own if config.language == Identify.always else lang == other for lang in found]
    return wrong


def _either(sides: Sides, holds: Callable[[Measured], np.ndarray]) -> Mask:
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


def condemn(sides: Sides, config: CleanConfig) -> Iterator[tuple[str, Mask]]:
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
    sides = (Measured(block.src.compact(), langs[0]), Measured(block.tgt.compact(), langs[1]))
    left = np.ones(len(block), dtype=bool)
    for name, condemned in condemn(sides, config):
        dropped[name] += int(condemned.sum())
        left &= ~condemned
    return PairBlock(sides[0].side, sides[1].side, block.lines).take(left)
