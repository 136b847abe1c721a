"""Sentence alignment of whole documents: strict and lax precision, recall and F1, counted like vecalign's scorer.

A link is strictly correct if gold has the same link, and laxly correct if gold has a link that shares a sentence with
it on both sides. Precision counts every link, including deletions; recall counts only gold links with both sides.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dualmoco.alignment.aligner import DEFAULT_LONGEST, Links, Side, align_sides, join_sentences
from dualmoco.alignment.anchors import find_anchors
from dualmoco.alignment.lexical import split_words
from dualmoco.core.errors import DataError
from dualmoco.evaluation.metrics import Extraction, Signer, value_of
from dualmoco.evaluation.task import Sentences, TaskResult
from dualmoco.models.model import Identity
from dualmoco.text.files import read_lines
from dualmoco.text.languages import base_language

GOLD = ".gold"
Link = tuple[tuple[int, ...], tuple[int, ...]]  # numbers of source and target sentences, from 0


@dataclass(frozen=True)
class GoldDocument:
    """A document in two languages with its gold links."""

    name: str
    paths: Sequence[Path]
    src: Sequence[str]
    tgt: Sequence[str]
    gold: Sequence[Link]


class Align:
    """Documents `NAME.zh` and `NAME.en`, one sentence per line, and `NAME.gold`: `1,2:1` from 1, or `[0, 1]:[0]`."""

    def __init__(self, folder: Path, pair: str) -> None:
        self.pair, self.langs = pair, [base_language(code) for code in pair.split("-")]
        self.documents = [read_gold_document(path, pair) for path in sorted(folder.glob(f"*{GOLD}"))]
        if not self.documents:
            raise DataError(f"{folder}: no *{GOLD} file; expected documents such as 001.zh, 001.en and 001{GOLD}")
        self.name = folder.name

    def texts(self) -> Mapping[str, Sequence[str]]:
        """All sentences, and all spans of them that a link may contain."""
        sides = [document.src for document in self.documents], [document.tgt for document in self.documents]
        return {
            lang: [
                join_sentences(text[first : first + size], lang)
                for text in texts
                for size in range(1, DEFAULT_LONGEST + 1)
                for first in range(len(text) - size + 1)
            ]
            for lang, texts in zip(self.langs, sides, strict=True)
        }

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Aligns every document and compares its links with gold."""
        golds = [document.gold for document in self.documents]
        made = [self.align(document, sentences) for document in self.documents]
        signer = Signer(identity, "align", [path for document in self.documents for path in document.paths])
        settings = {"pair": self.pair, "documents": len(golds), "longest": DEFAULT_LONGEST, "lexicon": "learnt"}
        scores = []
        for protocol in ("strict", "lax"):
            sample = agreement(golds, made, lax=protocol == "lax")
            scores += signer.extraction_scores(self.name, protocol, sample, **settings)
        return TaskResult(scores)

    def align(self, document: GoldDocument, sentences: Sentences) -> list[Link]:
        """The links of one document."""
        texts = document.src, document.tgt
        words = split_words(texts, (self.langs[0], self.langs[1]))
        src, tgt = (
            Side.from_sentences(text, lang, sentences.vectors(text, lang), partial(sentences.vectors, lang=lang), own)
            for text, lang, own in zip(texts, self.langs, words, strict=True)
        )
        return as_sets(align_sides(src, tgt, find_anchors(src.vectors, tgt.vectors)))


def agreement(golds: Sequence[Sequence[Link]], made: Sequence[Sequence[Link]], *, lax: bool) -> Extraction:
    """Compares the links of each document with gold; counts are per first sentence of a link."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])  # extracted, correct, gold, found
    for number, (gold, links) in enumerate(zip(golds, made, strict=True)):
        both = [link for link in gold if all(link)], [link for link in links if all(link)]
        for link, right in _judged(set(links), gold, lax):
            counts[_unit(number, link)][0] += 1
            counts[_unit(number, link)][1] += right
        for link, right in _judged(set(both[0]), both[1], lax):
            counts[_unit(number, link)][2] += 1
            counts[_unit(number, link)][3] += right
    ids = sorted(counts)
    return Extraction(ids, *np.array([counts[name] for name in ids], dtype=np.int64).reshape(-1, 4).T)


def link_f1(golds: Sequence[Sequence[Link]], made: Sequence[Sequence[Link]], *, lax: bool = False) -> float:
    """F1 in percent of the links of documents; see `agreement`."""
    return value_of(agreement(golds, made, lax=lax))


def as_sets(links: Links) -> list[Link]:
    """Links as tuples of sentence numbers."""
    return [
        (tuple(range(*src)), tuple(range(*tgt)))
        for src, tgt in zip(links.src.tolist(), links.tgt.tolist(), strict=True)
    ]


def read_gold_document(path: Path, pair: str) -> GoldDocument:
    """Reads a gold file and its two texts, whose extensions are the languages of `pair`, gold's left side first."""
    sides = [path.with_suffix(f".{code}") for code in pair.split("-")]
    for side in sides:
        if not side.is_file():
            raise DataError(f"{side}: no such file; expected the text of {path.name}, one sentence per line")
    src, tgt = ([line.strip() for line in read_lines(side)] for side in sides)
    gold = []
    for number, line in enumerate(read_lines(path), start=1):
        link = parse_link(line)
        if link is None or max(link[0], default=0) >= len(src) or max(link[1], default=0) >= len(tgt):
            raise DataError(
                f"{path}:{number}: {line!r:.60}; expected lines of {sides[0].name} ({len(src):,}), a colon, lines of "
                f"{sides[1].name} ({len(tgt):,}): 1,2:1"
            )
        gold.append(link)
    return GoldDocument(path.stem, [*sides, path], src, tgt, gold)


def parse_link(line: str) -> Link | None:
    """Sentences from 0 of a line such as `1,2:1`, from 1, or `[0, 1]:[0]`, from 0; None if it is neither."""
    match = re.fullmatch(r"\s*(\[?)([\d,\s]*)\]?\s*:\s*\[?([\d,\s]*)\]?\s*(?::.*)?", line)
    if match is None:
        return None
    first = 0 if match[1] else 1
    src, tgt = (tuple(int(word) - first for word in side.replace(",", " ").split()) for side in (match[2], match[3]))
    return (src, tgt) if min((*src, *tgt), default=0) >= 0 else None


def _judged(links: set[Link], others: Sequence[Link], lax: bool) -> list[tuple[Link, bool]]:
    """Whether each link is among the others, or shares a sentence on both sides with one of them."""
    known, near = set(others), defaultdict[int, set[int]](set)
    for src, tgt in others:
        for sentence in src:
            near[sentence].update(tgt)
    shares = {link: bool(lax and set(link[1]) & {tgt for src in link[0] for tgt in near[src]}) for link in links}
    return [(link, link in known or shares[link]) for link in links if any(link)]


def _unit(document: int, link: Link) -> str:
    src, tgt = link
    return f"{document}:{src[0]}" if src else f"{document}:+{tgt[0]}"


def is_aligned(folder: Path, pair: str) -> bool:
    """Whether the gold files of a folder link documents in the same folder, and are not gold of another task."""
    golds = list(folder.glob(f"*{GOLD}"))
    texts = [path.with_suffix(f".{code}") for path in golds for code in pair.split("-")]
    return all(path.is_file() for path in texts) and all(parse_link(next(read_lines(path), "")) for path in golds)
