"""Sentences of a document: joins hard-wrapped lines into paragraphs and splits the paragraphs.

sentencex splits, and its mistakes in Chinese text and in quotations are then fixed by our own rules. When a text is
split, lines without letters, such as page numbers, section numbers and rules, are not sentences and are dropped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby, islice, pairwise

from dualmoco.core.errors import DataError, require
from dualmoco.text.languages import WITHOUT_SPACES, base_language, text_separator


@dataclass(frozen=True)
class Text:
    """A document as lines, before it is split; an empty line ends a paragraph."""

    name: str  # file name, for messages
    lines: Sequence[str]
    is_plain: bool = True  # whether lines may be sentences; in formats with markup they are paragraphs


@dataclass(frozen=True)
class Document:
    """A document as sentences, none of them empty."""

    name: str
    sentences: Sequence[str]
    places: Sequence[str]  # of each sentence, from 1: its line, or its paragraph and its number there, such as 3.2
    lang: str


SAMPLE_LINES = 500  # lines that are checked for being sentences
SEVERAL_SHARE = 0.1  # a text is split if this share of lines has several sentences
BROKEN_SHARE = 0.5  # a text is hard-wrapped if this share of lines ends inside a sentence
FULL_SHARE = 0.6  # a line may have been wrapped from this share of the text width
STOPS_SHARE = 0.1  # share of lines with a full stop; with fewer, joined lines would never be split again
WIDTH_OUTLIERS = 100  # one line in this many may be wider than the text: a URL, a table row

CLOSERS = "”’」』）】"
STOPS = ".!?…。！？｡．؟۔।॥።។။།"
FINAL = re.compile(rf"""[{STOPS}:：]["')\]»›“{CLOSERS}]*$|["»›”’」』]$""")
QUOTATION = re.compile(
    r"“[^“”]+”|‘(?:[^‘’]|’(?=[a-z]))+’|\"[^\"]+\"|„[^„“]+“|«[^«»]+»|»[^«»]+«|「[^「」]+」|『[^『』]+』"
)
ITEM_LABEL = re.compile(r"\W*(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[ivx]+)[.)）]\s*")
"""1. or (a) or 13.3.1., which belongs to the text after it."""
LEADING_CLOSERS = re.compile(rf"[{CLOSERS}]+")
CONTINUES = re.compile(r"[，、；：,;]")  # cannot start a sentence
UNFINISHED = re.compile(r"(?:(?<![A-Za-z])[A-Z][a-z]{0,3}\.|》)\s*$")  # Mr. in Chinese text; a title such as 《谁？》
MISSED_END = re.compile(
    rf"[。！？｡][{CLOSERS}]*\s*(?=[0-9a-z])"  # sentencex never starts a sentence with a digit or a lowercase letter
    rf"|(?:。）|[。！？｡][”’」』]{{2,}})\s*(?=[^\s{CLOSERS}，、；：])"  # nor does it look past one closing mark
    r"|…[”’」』]+\s*(?=[“‘「『])"  # one speaker trails off and another starts; elsewhere …… is often just a pause
)
INNER_STOPS = {
    code: re.compile(pattern)
    for code, pattern in {
        "cs": r"\b[IVX]{2,}\.",
        "de": r"\b(?:[Dd](?:er|ie|as|em|en|es)|[AaIi]m|[Vv]om|[Zz]u[mr]|[Bb]eim) \d{1,3}\.|\b[IVX]{2,}\.",
        "es": r"\b(?:Avd?a?|[ap]\. ?m)\.",
        "fr": r"\b(?:av|ap)\. J\.|\b(?:Bd|Av)\.",
        "nl": r"\b(?:o\.a|d\.w\.z|m\.n)\.",
        "pl": r"\b(?:godz|ul|al)\.",
        "pt": r"\b(?:Av|R|Pç)\.",
        "tr": r"\b(?:Cad|Sok|Mah|Bul)\.|\b[IVX]{2,}\.",
    }.items()
}
"""Text whose full stops do not end a sentence: abbreviations and ordinals that sentencex splits."""
CONTINUED = re.compile(r"[.!?…]+(?=[\"»”’)]*\s*[—–-]?\s*(\w))")  # its stops are inside if a lowercase letter follows
DUTCH_APOSTROPHE = re.compile(r"(?<=\s)['’](?=[snt]\s[A-Z])")  # as in 's Avonds, which starts a sentence
MASKED_STOP = ","  # replaces stops that do not end a sentence while sentencex splits
LONG_TEXT = re.compile(r".{4000}[^。！？]*[。！？]+|.+", re.DOTALL)
"""Parts that are split separately, because sentencex takes quadratic time on Chinese text."""


class SplitMode(StrEnum):
    """Whether lines are split into sentences."""

    auto = "auto"  # yes for formats with markup and for lines that are paragraphs or hard-wrapped, no otherwise
    yes = "yes"  # hard-wrapped lines are joined into paragraphs, which are split
    no = "no"  # each line that is not empty is one sentence


def split_text(text: Text, lang: str, split: SplitMode) -> Document:
    """Splits a document into sentences; DataError if there are none, ConfigError if sentencex is not installed."""
    code = base_language(lang)
    if split is SplitMode.yes or (split is SplitMode.auto and _needs_splitting(text, code)):
        found = [
            (f"{number}.{position}", sentence)
            for number, paragraph in enumerate(_paragraphs(text.lines, code), start=1)
            for position, sentence in enumerate(map(str.strip, _sentences(paragraph, code)), start=1)
        ]
    else:
        found = [(str(number), line.strip()) for number, line in enumerate(text.lines, start=1) if line.strip()]
    if not found:
        raise DataError(f"{text.name}: contains no sentences; expected at least one line of text")
    places, sentences = zip(*found, strict=True)
    return Document(text.name, sentences, places, lang)


def _needs_splitting(text: Text, code: str) -> bool:
    if not text.is_plain:
        return True
    sample = list(islice(filter(None, map(collapse_spaces, text.lines)), SAMPLE_LINES))
    # quotations do not count, because other splitters may have kept those of several sentences whole
    several = sum(len(_segment(line, code)) > 1 for line in sample)
    return several >= max(1, SEVERAL_SHARE * len(sample)) or _is_wrapped(text.lines, code)


def _is_wrapped(lines: Sequence[str], code: str) -> bool:
    """Whether most lines that are followed by another line end inside a sentence."""
    width = _text_width(lines)
    followed = [pair for block in _blocks(lines, width) for pair in pairwise(block)]
    broken = sum(_is_broken(line, following, width, code) for line, following in followed)
    stops = sum(not set(STOPS).isdisjoint(line) for line, _ in followed)
    return bool(followed) and broken >= BROKEN_SHARE * len(followed) and stops >= STOPS_SHARE * len(followed)


def _paragraphs(lines: Sequence[str], code: str) -> Iterator[str]:
    """Yields paragraphs: the lines between empty lines, with hard-wrapped ones joined."""
    width = _text_width(lines)
    for block in _blocks(lines, width):
        paragraph = block[0]
        for line, following in pairwise(block):
            if _is_broken(line, following, width, code):
                paragraph = join_lines(paragraph, following, code)
            else:
                yield paragraph
                paragraph = following
        yield paragraph


def join_lines(left: str, right: str, code: str) -> str:
    """Two parts of a hard-wrapped text as one; a hyphen at the end of a line is kept."""
    return left + ("" if re.search(r"\w-$", left) else text_separator(left, right, code)) + right


def has_letters(text: str) -> bool:
    """Whether a text has letters or characters of a script, not only digits and punctuation."""
    return any(map(str.isalpha, text))


def ends_sentence(line: str) -> bool:
    """Whether a line ends with a full stop, a colon or a closing quotation mark."""
    return bool(FINAL.search(line))


def _blocks(lines: Sequence[str], width: int) -> list[list[str]]:
    """The lines between empty lines; sentencex fails on some white space, so only plain spaces are left."""
    blocks = (block for is_text, block in groupby(map(collapse_spaces, lines), key=bool) if is_text)
    return [kept for block in blocks if (kept := _with_letters(block, width))]


def _with_letters(block: Iterable[str], width: int) -> list[str]:
    """The lines of a block without those that have no letters, unless such a line ends a wrapped sentence."""
    kept: list[str] = []
    for line in block:
        is_end = kept and ends_sentence(line) and _is_full(kept[-1], width) and not ends_sentence(kept[-1])
        if has_letters(line) or is_end:
            kept.append(line)
    return kept


def collapse_spaces(text: str) -> str:
    """A text with single spaces instead of any white space."""
    return " ".join(text.split())


def _columns(line: str) -> int:
    """Columns of a line on a screen, where a Chinese character is as wide as two Latin letters."""
    return len(line) + (0 if line.isascii() else sum(unicodedata.east_asian_width(char) in "WF" for char in line))


def _text_width(lines: Sequence[str]) -> int:
    """The width of all lines except a few outliers; lines without letters are ignored."""
    widths = sorted(_columns(collapse_spaces(line)) for line in lines if has_letters(line))
    return widths[-1 - len(widths) // WIDTH_OUTLIERS] if widths else 0


def _is_full(line: str, width: int) -> bool:
    return _columns(line) >= FULL_SHARE * width


def _is_broken(line: str, following: str, width: int, code: str) -> bool:
    """Whether a line was wrapped, so that the line after it continues its sentence."""
    if not _is_full(line, width):
        return False
    if not ends_sentence(line):
        return True
    # the full stop may end an abbreviation, which sentencex recognises
    return line.endswith(".") and len(line) + 1 not in accumulate(map(len, _segment(f"{line} {following}", code)))


def _sentences(paragraph: str, code: str) -> list[str]:
    """Splits a paragraph into sentences, also inside quotations, most of which sentencex keeps whole."""
    return [sentence for part in _segment(paragraph, code) for sentence in _split_quotations(part, code)]


def _split_quotations(sentence: str, code: str) -> list[str]:
    ends: list[int] = []
    for quotation in QUOTATION.finditer(sentence):
        start = quotation.start() + 1
        inside = _sentences(sentence[start : quotation.end() - 1], code)
        ends += [start + end for end in accumulate(map(len, inside[:-1]))]
    return _cut_at(sentence, ends)


def _segment(paragraph: str, code: str) -> list[str]:
    """Splits a paragraph with sentencex and fixes its mistakes; the sentences add up to the paragraph."""
    segment = require("sentencex", "align", "Splitting into sentences").segment
    pieces: list[str] = []
    for part in LONG_TEXT.findall(paragraph):
        ends = [*accumulate(map(len, segment(code, _mask_stops(part, code))))]
        pieces += _cut_at(part, ends)
    sentences: list[str] = []
    for piece in _fix_unspaced(pieces) if code in WITHOUT_SPACES else pieces:
        if sentences and _belong_together(sentences[-1], piece, code):
            sentences[-1] += piece
        else:
            sentences.append(piece)
    return sentences


def _mask_stops(text: str, code: str) -> str:
    """A text of the same length that sentencex splits better: stops that do not end a sentence are MASKED_STOP."""

    def mask(match: re.Match[str]) -> str:
        return re.sub(rf"[{STOPS}]", MASKED_STOP, match[0])

    if code == "nl":
        text = DUTCH_APOSTROPHE.sub("X", text)
    if code not in WITHOUT_SPACES:
        text = CONTINUED.sub(lambda match: mask(match) if match[1].islower() else match[0], text)
    return INNER_STOPS[code].sub(mask, text) if code in INNER_STOPS else text


def _fix_unspaced(pieces: Sequence[str]) -> list[str]:
    """Moves closing marks back to the sentence they close, and splits where sentencex missed an end."""
    fixed: list[str] = []
    for piece in pieces:
        if fixed and (closing := LEADING_CLOSERS.match(piece)):
            fixed[-1] += closing[0]
            piece = piece[closing.end() :]
        fixed += _cut_at(piece, [match.end() for match in MISSED_END.finditer(piece)])
    return fixed


def _cut_at(text: str, ends: Sequence[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)]) if start < end]


def _belong_together(left: str, right: str, code: str) -> bool:
    if not (any(map(str.isalnum, left)) and any(map(str.isalnum, right))) or ITEM_LABEL.fullmatch(left):
        return True
    return code in WITHOUT_SPACES and bool(CONTINUES.match(right) or UNFINISHED.search(left))
