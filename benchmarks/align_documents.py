"""Documents with known links, made from corpora of ordered pairs, and disturbed to test the robustness of aligners.

Consecutive pairs are split into sentences. Pairs with several sentences on both sides are skipped, because the links
between their sentences are unknown. Of the one-to-one pairs, some are dropped, some lose a side, and in some a clause
is moved across a sentence end, so that only a 2-2 link is right. All random choices are seeded. The input is
`DATA/parallel/*.tsv.xz`, and the output is `GoldDocument`.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from dualmoco.core.errors import require
from dualmoco.evaluation.align import Align, GoldDocument, Link
from dualmoco.text.files import read_lines
from dualmoco.text.languages import WITHOUT_SPACES

Sides = tuple[list[str], list[str]]
"""Sentences of the source and of the target."""
Side = Literal["src", "tgt"]
LANGS = "en", "zh"
CLAUSE_END, CLAUSE_ENDS = "[,;:] ", {"ja": "[、；：]", "zh": "[，；：,]"}  # of a language with spaces, and of others
CLAUSE_MARKS = ",;:，；：、 "
LEAST_CLAUSE = 4  # minimum characters on each side of the end of a clause
LONGEST = 5  # maximum sentences per side of a link
LINKS = 220  # of a document
KINDS = ("dropped", "without target", "without source", "clause moved", "clause split", "kept")
"""What can happen to a one-to-one pair."""


@dataclass(frozen=True)
class Plan:
    """Corpora of documents, and how often each change is made to a one-to-one pair."""

    starts: Mapping[str, Sequence[int]]
    """First line of each document in its corpus; also its seed."""
    pairs: int
    """Maximum number of pairs."""
    limits: Sequence[float]
    """Cumulative shares of the first kinds."""


PLANS = {
    "mixed": Plan(
        {
            "bible": (3_000, 12_000, 20_000),
            "quran": (1_000, 4_000),
            "bolt_forum_nlm": (500,),
            "sci_abstracts_alphadl": (500,),
            "tvsub": (300_000, 900_000),
            "lctt_articles": (50_000, 150_000),
            "wesnoth": (3_000,),
        },
        1_500,
        (0.45, 0.47, 0.49, 0.53, 0.53),
    ),
    "dense": Plan(
        {
            "bible": (30_000,),
            "quran": (2_000,),
            "bolt_forum_nlm": (1_000,),
            "sci_abstracts_alphadl": (800,),
            "tvsub": (400_000, 1_200_000),
            "msctd": (20_000,),
            "lctt_articles": (100_000,),
        },
        4_500,
        (0.82, 0.827, 0.834, 0.85, 0.85),
    ),
    "natural": Plan(
        {
            "bible": (5_000, 25_000, 40_000),
            "quran": (3_000, 5_000),
            "bolt_forum_nlm": (2_000,),
            "sci_abstracts_alphadl": (2_000,),
            "tvsub": (600_000, 1_400_000),
            "lctt_articles": (200_000,),
            "wesnoth": (8_000,),
            "msctd": (50_000,),
        },
        1_500,
        (0.0, 0.008, 0.016, 0.04, 0.04),
    ),
}
"""Two thirds of all links, less than half, or four fifths are one-to-one."""


@dataclass(frozen=True)
class Suite:
    """Documents of two languages."""

    name: str
    langs: tuple[str, str]
    documents: Sequence[GoldDocument]


def generated_suites(data: Path) -> list[Suite]:
    """The documents of all plans.

    Args:
        data: Folder that contains parallel/.

    Returns:
        One suite per plan, English to Chinese.
    """
    return [Suite(name, LANGS, generated_documents(data, plan)) for name, plan in PLANS.items()]


def mac_dev(data: Path) -> Suite:
    """Six chapters of literature aligned by people, Chinese to English, from `DATA/eval/mac-dev`."""
    return Suite("MAC-Dev", ("zh", "en"), Align(data / "eval" / "mac-dev", "zh-en").documents)


def textberg(data: Path) -> Suite:
    """One yearbook of the Swiss Alpine Club, German to French, from `DATA/eval/textberg-dev`."""
    return Suite("Text+Berg dev", ("de", "fr"), Align(data / "eval" / "textberg-dev", "de-fr").documents)


def generated_documents(data: Path, plan: Plan) -> list[GoldDocument]:
    """The documents of one plan, up to 220 links each, English to Chinese."""
    documents = []
    for corpus, starts in plan.starts.items():
        path = data / "parallel" / f"{corpus}.tsv.xz"
        for start in starts:
            linked = make_links(_ordered_pairs(path, start, plan.pairs), LANGS, plan.limits, start)
            documents.append(make_document(f"{corpus}-{start}", [path], linked))
    return documents


def make_document(name: str, paths: Sequence[Path], linked: Iterator[Sides]) -> GoldDocument:
    """The document of the next 220 links."""
    texts: Sides = [], []
    gold: list[Link] = []
    for sides in islice(linked, LINKS):
        src, tgt = (tuple(range(len(a), len(a) + len(b))) for a, b in zip(texts, sides, strict=True))
        gold.append((src, tgt))
        texts[0].extend(sides[0])
        texts[1].extend(sides[1])
    return GoldDocument(name, paths, *texts, gold)


def delete_sentences(document: GoldDocument, share: float, side: Side, seed: int) -> GoldDocument:
    """Deletes random sentences of one side; a link that loses that side becomes one-sided links of one sentence."""
    texts = {"src": document.src, "tgt": document.tgt}
    count = len(texts[side])
    gone = set(random.Random(seed).sample(range(count), round(share * count)))
    kept = [number for number in range(count) if number not in gone]
    texts[side] = [texts[side][number] for number in kept]
    gold = _renumbered(document.gold, {old: new for new, old in enumerate(kept)}, side)
    return replace(document, src=texts["src"], tgt=texts["tgt"], gold=gold)


def swap_chapters(document: GoldDocument) -> GoldDocument:
    """Swaps the first and the second third of the target, cut between links, so that links are no longer in order."""
    count = len(document.tgt)
    first, second = (_between_links(document, count * third // 3) for third in (1, 2))
    order = [*range(first, second), *range(first), *range(second, count)]
    gold = _renumbered(document.gold, {old: new for new, old in enumerate(order)}, "tgt")
    return replace(document, tgt=[document.tgt[number] for number in order], gold=gold)


def insert_foreign(document: GoldDocument, lines: Sequence[str]) -> GoldDocument:
    """Inserts lines without a source into the middle of the target, between two links; each is a one-sided link."""
    place = _between_links(document, len(document.tgt) // 2)
    moved = {number: number + len(lines) * (number >= place) for number in range(len(document.tgt))}
    added: list[Link] = [((), (number,)) for number in range(place, place + len(lines))]
    tgt = [*document.tgt[:place], *lines, *document.tgt[place:]]
    return replace(document, tgt=tgt, gold=[*_renumbered(document.gold, moved, "tgt"), *added])


def _ordered_pairs(path: Path, start: int, most: int) -> list[tuple[str, str]]:
    """Pairs from a line on, without repeated sentences, because links of equal sentences cannot be judged."""
    seen: set[str] = set()
    pairs: list[tuple[str, str]] = []
    for line in islice(read_lines(path), start, None):
        sides = line.split("\t")
        if len(sides) == 2 and all(side.strip() for side in sides) and not seen.intersection(sides):
            seen.update(sides)
            pairs.append((sides[0], sides[1]))
            if len(pairs) == most:
                break
    return pairs


def make_links(
    pairs: Iterable[tuple[str, str]], langs: tuple[str, str], limits: Sequence[float], seed: int
) -> Iterator[Sides]:
    """Yields both sides of the links made from pairs."""
    chance, rest = random.Random(seed), iter(pairs)
    for pair in rest:
        src, tgt = _split(pair, langs)
        if min(len(src), len(tgt)) != 1 or max(len(src), len(tgt)) > LONGEST:
            continue
        single = len(src) == len(tgt) == 1
        kind = KINDS[bisect_right(limits, chance.random())] if single else "kept"
        if kind == "clause moved":
            side, following = chance.randrange(2), next(rest, None)
            if following is None:
                return
            yield _moved((src, tgt), _split(following, langs), side, langs[side])
        elif kind == "clause split":
            side = chance.randrange(2)
            yield _halved((src, tgt), side, langs[side])
        elif kind != "dropped":
            yield ([] if kind == "without source" else src), ([] if kind == "without target" else tgt)


def _split(pair: tuple[str, str], langs: tuple[str, str]) -> Sides:
    """The sentences of both sides."""
    segment = require("sentencex", "align", "Splitting into sentences").segment
    src, tgt = (
        [part.strip() for part in segment(lang, text) if part.strip()] for lang, text in zip(langs, pair, strict=True)
    )
    return src, tgt


def _moved(sides: Sides, following: Sides, side: int, lang: str) -> Sides:
    """A 2-2 link with a clause of one sentence moved to the next; only the first pair if that is impossible."""
    place = _clause_end(sides[side][0], lang)
    if place is None or len(following[0]) != 1 or len(following[1]) != 1:
        return sides
    texts = [sides[0] + following[0], sides[1] + following[1]]
    first, second = texts[side]
    texts[side] = [first[:place].strip(), first[place:] + ("" if lang in WITHOUT_SPACES else " ") + second]
    return texts[0], texts[1]


def _halved(sides: Sides, side: int, lang: str) -> Sides:
    """A link of one sentence with its two clauses as sentences; the pair itself if that is impossible."""
    text = sides[side][0]
    place = _clause_end(text, lang)
    if place is None:
        return sides
    first, second = text[:place].rstrip(CLAUSE_MARKS), text[place:].strip()
    halves = [first + ("。" if lang in WITHOUT_SPACES else "."), second[:1].upper() + second[1:]]
    return (halves, sides[1]) if side == 0 else (sides[0], halves)


def _clause_end(text: str, lang: str) -> int | None:
    """The place after the punctuation mark nearest to the middle of a sentence, if it has one away from its ends."""
    places = [mark.end() for mark in re.finditer(CLAUSE_ENDS.get(lang, CLAUSE_END), text)]
    places = [place for place in places if LEAST_CLAUSE <= place <= len(text) - LEAST_CLAUSE]
    return min(places, key=lambda place: abs(place - len(text) / 2), default=None)


def _renumbered(gold: Iterable[Link], numbers: dict[int, int], side: Side) -> list[Link]:
    """Links with new numbers on one side, without the sentences that have none; one-sided links have one sentence."""
    links: list[Link] = []
    for src, tgt in gold:
        if side == "src":
            src = tuple(numbers[number] for number in src if number in numbers)
        else:
            tgt = tuple(numbers[number] for number in tgt if number in numbers)
        if src and tgt:
            links.append((src, tgt))
        else:
            links += [((number,), ()) for number in src] + [((), (number,)) for number in tgt]
    return links


def _between_links(document: GoldDocument, place: int) -> int:
    """The last place in the target, up to the given one, that no link crosses."""
    return next((tgt[0] for _, tgt in document.gold if tgt and tgt[0] <= place <= tgt[-1]), place)
