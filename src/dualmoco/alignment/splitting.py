"""Documents to sentences: lines put together to paragraphs, paragraphs cut apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import accumulate, groupby, islice, pairwise

from dualmoco.alignment.document import Document, Text
from dualmoco.core.errors import DataError, require
from dualmoco.data.languages import WITHOUT_SPACES, base_language

SAMPLE_LINES = 500  # that show whether lines are sentences
SEVERAL_SHARE = 0.1  # of them with more than one sentence, from which they are not
BROKEN_SHARE = 0.5  # of lines that break off in a sentence, from which a text is hard-wrapped
FULL_SHARE = 0.6  # of the longest line's length, from which a line may have been broken for want of room
STOPS_SHARE = 0.1  # of lines with a full stop; fewer, and joined lines would never be cut apart again
OUTLIERS = 100  # one line in so many may be longer than the width of the text: an address, a row of a table

CLOSERS = "”’」』）】"
STOPS = ".!?…。！？｡．؟۔।॥።។။།"
FINAL = re.compile(rf"""[{STOPS}:：]["')\]»›“{CLOSERS}]*$|["»›{CLOSERS}]$""")
QUOTATION = re.compile(
    r"“[^“”]+”|‘(?:[^‘’]|’(?=[a-z]))+’|\"[^\"]+\"|„[^„“]+“|«[^«»]+»|»[^«»]+«|「[^「」]+」|『[^『』]+』"
)
LABEL = re.compile(r"\W*(?:\d{1,3}|[A-Za-z]|[ivx]+)[.)）]\s*")  # 1. or (a): of an item, it belongs to what follows
LEADING_CLOSERS = re.compile(rf"[{CLOSERS}]+")
CONTINUES = re.compile(r"[，、；：,;]")  # begins no sentence
UNFINISHED = re.compile(r"(?:(?<![A-Za-z])[A-Z][a-z]{0,3}\.|》)\s*$")  # Mr. amid Chinese; a title such as 《谁？》
UNCUT = re.compile(
    rf"[。！？｡][{CLOSERS}]*\s*(?=[0-9a-z])"  # the splitter never begins a sentence with a digit or a small letter
    rf"|(?:。）|[。！？｡][”’」』]{{2,}})\s*(?=[^\s{CLOSERS}，、；：])"  # nor looks beyond one closing mark
    r"|…[”’」』]+\s*(?=[“‘「『])"  # one speaker trails off, another begins; elsewhere …… is as often a pause as an end
)
LONG_TEXT = re.compile(r".{4000}[^。！？]*[。！？]+|.+", re.DOTALL)
"""Parts that the splitter is given one by one, for its time grows with the square of a Chinese text's length."""


class SplitMode(StrEnum):
    """Whether the lines of a document are cut into sentences."""

    auto = "auto"
    """Yes for formats with markup and for plain text whose lines are paragraphs or hard-wrapped, else no."""
    yes = "yes"
    """Lines are joined to paragraphs where they were hard-wrapped, and paragraphs are cut."""
    no = "no"
    """Every line that is not empty is one sentence."""


def split_text(text: Text, lang: str, split: SplitMode) -> Document:
    """Finds the sentences of a document.

    Args:
        text: The document as lines.
        lang: Its language.
        split: Whether lines are cut.

    Returns:
        Its sentences with their places: numbers of lines if they are not cut, such as 7, else of paragraphs and of
        sentences in them, such as 3.2.

    Raises:
        DataError: A document without sentences.
        ConfigError: The splitter is not installed.
    """
    code = base_language(lang)
    if split is SplitMode.yes or (split is SplitMode.auto and _needs_cutting(text, code)):
        found = [
            (f"{number}.{position}", sentence)
            for number, paragraph in enumerate(_paragraphs(text.lines, code), start=1)
            for position, sentence in enumerate(map(str.strip, _sentences(paragraph, code)), start=1)
        ]
    else:
        found = [(str(number), line.strip()) for number, line in enumerate(text.lines, start=1) if line.strip()]
    if not found:
        raise DataError(f"{text.name}: holds no sentences; expected at least one line of text")
    places, sentences = zip(*found, strict=True)
    return Document(text.name, sentences, places, lang)


def _needs_cutting(text: Text, code: str) -> bool:
    if not text.is_plain:
        return True
    sample = list(islice(filter(None, map(_collapse, text.lines)), SAMPLE_LINES))
    # a quotation of several sentences is no sign, for other splitters may have kept it whole
    several = sum(len(_cut(line, code)) > 1 for line in sample)
    return several >= max(1, SEVERAL_SHARE * len(sample)) or _is_wrapped(text.lines, code)


def _is_wrapped(lines: Sequence[str], code: str) -> bool:
    """Whether most lines that another one follows break off in a sentence."""
    width = _width(lines)
    followed = [pair for group in _groups(lines) for pair in pairwise(group)]
    broken = sum(_is_broken(line, following, width, code) for line, following in followed)
    stops = sum(not set(STOPS).isdisjoint(line) for line, _ in followed)
    return bool(followed) and broken >= BROKEN_SHARE * len(followed) and stops >= STOPS_SHARE * len(followed)


def _paragraphs(lines: Sequence[str], code: str) -> Iterator[str]:
    """Yields the lines between empty ones, those that were hard-wrapped put together."""
    width = _width(lines)
    for group in _groups(lines):
        paragraph = [group[0]]
        for line, following in pairwise(group):
            if not _is_broken(line, following, width, code):
                yield "".join(paragraph)
                paragraph = []
            elif code not in WITHOUT_SPACES and not re.search(r"\w-$", line):
                paragraph.append(" ")
            paragraph.append(following)
        yield "".join(paragraph)


def _groups(lines: Sequence[str]) -> list[list[str]]:
    """The lines between empty ones."""
    return [list(group) for is_text, group in groupby(map(_collapse, lines), key=bool) if is_text]


def _collapse(line: str) -> str:
    return " ".join(line.split())  # the splitter fails on some white space that is not a plain space


def _width(lines: Sequence[str]) -> int:
    lengths = sorted(filter(None, (len(_collapse(line)) for line in lines)))
    return lengths[-1 - len(lengths) // OUTLIERS] if lengths else 0


def _is_broken(line: str, following: str, width: int, code: str) -> bool:
    """Whether a line ended for want of room, so that the one after it continues its sentence."""
    if len(line) < FULL_SHARE * width:
        return False
    if not FINAL.search(line):
        return True
    # a full stop may be that of an abbreviation, which the splitter knows
    together = f"{line} {following}"
    return line.endswith(".") and len(line) + 1 not in accumulate(map(len, _cut(together, code)))


def _sentences(paragraph: str, code: str) -> list[str]:
    """Cuts a paragraph into sentences, those inside quotations too."""
    return [sentence for part in _cut(paragraph, code) for sentence in _open_quotations(part, code)]


def _open_quotations(sentence: str, code: str) -> list[str]:
    """Cuts a sentence inside its quotations, most of which the splitter keeps whole however long they are."""
    ends: list[int] = []
    for quotation in QUOTATION.finditer(sentence):
        start = quotation.start() + 1
        inside = _sentences(sentence[start : quotation.end() - 1], code)
        ends += [start + end for end in accumulate(map(len, inside[:-1]))]
    return _cut_at(sentence, ends)


def _cut(paragraph: str, code: str) -> list[str]:
    """Cuts a paragraph into sentences that are together the same text, and mends what the splitter does wrong."""
    segment = require("sentencex", "align", "Splitting into sentences").segment
    pieces = [piece for part in LONG_TEXT.findall(paragraph) for piece in segment(code, part)]
    sentences: list[str] = []
    for piece in _mend_unspaced(pieces) if code in WITHOUT_SPACES else pieces:
        if sentences and _belong_together(sentences[-1], piece, code):
            sentences[-1] += piece
        else:
            sentences.append(piece)
    return sentences


def _mend_unspaced(pieces: Sequence[str]) -> list[str]:
    """Gives back to a sentence the marks that close it, and cuts where the splitter did not."""
    mended: list[str] = []
    for piece in pieces:
        if mended and (closing := LEADING_CLOSERS.match(piece)):
            mended[-1] += closing[0]
            piece = piece[closing.end() :]
        mended += _cut_at(piece, [match.end() for match in UNCUT.finditer(piece)])
    return mended


def _cut_at(text: str, ends: Sequence[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)]) if start < end]


def _belong_together(left: str, right: str, code: str) -> bool:
    if not (any(map(str.isalnum, left)) and any(map(str.isalnum, right))) or LABEL.fullmatch(left):
        return True
    return code in WITHOUT_SPACES and bool(CONTINUES.match(right) or UNFINISHED.search(left))
