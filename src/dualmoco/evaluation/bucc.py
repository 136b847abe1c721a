"""BUCC 2018, the shared task itself (table 2 of the paper): precision, recall and F1 of margin-based mining.

The test split is scored if its gold is there, with a threshold from development gold. Otherwise the sample is scored,
even if the larger training split is there too, because published figures without the test gold are of the sample. Its
sources are split into two halves by a hash of their ids, and each half is judged by the threshold that is best for the
other half ("cross-fitted"). The name of the scored split is part of the signature.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.evaluation.metrics import Extraction, Signer
from dualmoco.evaluation.task import JudgedMining, Sentences, TaskResult
from dualmoco.mining.margins import Margin, select_pairs
from dualmoco.mining.threshold import best_threshold
from dualmoco.models.model import Identity
from dualmoco.search.exact import nearest_both_ways
from dualmoco.text.files import read_table
from dualmoco.text.languages import base_language

DEVELOPMENT_SPLITS = ("sample", "dev", "training")  # the smallest first; some publish the sample as dev


class BuccSplit(NamedTuple):
    """One part of the shared task."""

    name: str
    paths: Sequence[Path]
    src_ids: Sequence[str]
    src: Sequence[str]
    tgt_ids: Sequence[str]
    tgt: Sequence[str]
    gold: Sequence[tuple[str, str]]


class Bucc:
    """Files `zh-en.SPLIT.zh` and `zh-en.SPLIT.en` (`id<TAB>sentence`) and `zh-en.SPLIT.gold` (`zh-id<TAB>en-id`)."""

    def __init__(self, folder: Path, pair: str, margin: Margin = Margin.distance, k: int = 3) -> None:
        self.pair, self.margin, self.k = pair, margin, k
        self.langs = [base_language(code) for code in pair.split("-")]
        found = [name for name in DEVELOPMENT_SPLITS if (folder / f"{pair}.{name}.gold").is_file()]
        if not found:
            raise DataError(f"{folder}: no {pair}.training.gold, {pair}.dev.gold or {pair}.sample.gold; expected one")
        has_test = (folder / f"{pair}.test.gold").is_file()
        self.test = read_bucc(folder, pair, "test") if has_test else None
        self.dev = read_bucc(folder, pair, found[-1] if has_test else found[0])  # the largest chooses a threshold best

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sides of every split."""
        splits = [split for split in (self.dev, self.test) if split]
        sides = [text for split in splits for text in split.src], [text for split in splits for text in split.tgt]
        return dict(zip(self.langs, sides, strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Mines every split and scores the pairs above the threshold."""
        dev = self._mine(self.dev, sentences)
        if self.test is None:
            split, pairs = self.dev, dev
            accepted, protocol = cross_fitted(dev), "threshold cross-fitted"
        else:
            split, pairs = self.test, self._mine(self.test, sentences)
            accepted, protocol = pairs.scores >= dev.threshold, f"threshold from {self.dev.name}"
        signer = Signer(identity, "bucc", [*self.dev.paths, *(self.test.paths if self.test else [])])
        size = f"{len(split.src)}x{len(split.tgt)}"
        settings = {"split": split.name, "size": size, "margin": self.margin.value, "k": self.k}
        subset, best = f"{self.pair} {split.name}", pairs.scores >= pairs.threshold
        scores = [
            *signer.extraction_scores(subset, protocol, extraction(pairs, accepted), **settings),
            *signer.extraction_scores(subset, "gold-optimal threshold", extraction(pairs, best), **settings),
        ]
        return TaskResult(scores, mined=replace(pairs, threshold=dev.threshold))

    def _mine(self, split: BuccSplit, sentences: Sentences) -> JudgedMining:
        """Mines one split; `threshold` is the best one for its own gold."""
        src, tgt = list(dict.fromkeys(split.src)), list(dict.fromkeys(split.tgt))
        vectors = sentences.vectors(src, self.langs[0]), sentences.vectors(tgt, self.langs[1])
        with counting("mining", len(src)) as progress:
            near = nearest_both_ways(*vectors, self.k, progress=progress)
        pairs = select_pairs(*near, self.margin)
        src_ids, tgt_ids = _unique_ids(split.src, split.src_ids), _unique_ids(split.tgt, split.tgt_ids)
        names = [(src_ids.get(src[i]), tgt_ids.get(tgt[j])) for i, j in zip(pairs.src, pairs.tgt, strict=True)]
        kept = np.array([place for place, (a, b) in enumerate(names) if a and b], dtype=np.int64)
        gold = set(split.gold)
        found = [(a, b) for a, b in names if a and b]
        scores, correct = pairs.scores[kept], np.array([pair in gold for pair in found], dtype=bool)
        best = best_threshold(scores, correct, len(gold))
        return JudgedMining(scores, correct, [a for a, _ in found], [b for _, b in found], split.gold, best.value)


def cross_fitted(pairs: JudgedMining) -> np.ndarray:
    """Flags of the accepted pairs if each half of the sources takes the threshold that is best for the other half."""
    halves = np.array([_half(name) for name in pairs.src_ids], dtype=np.int64)
    gold = Counter(_half(src) for src, _ in pairs.gold)
    accepted = np.zeros(len(halves), dtype=bool)
    for half in (0, 1):
        others = halves != half
        threshold = best_threshold(pairs.scores[others], pairs.correct[others], max(1, gold[1 - half]))
        accepted |= (halves == half) & (pairs.scores >= threshold.value)
    return accepted


def extraction(pairs: JudgedMining, accepted: np.ndarray) -> Extraction:
    """Counts of accepted, correct and gold pairs per source sentence."""
    extracted = Counter(name for name, taken in zip(pairs.src_ids, accepted, strict=True) if taken)
    right = zip(pairs.src_ids, accepted & pairs.correct, strict=True)
    correct = Counter(name for name, taken in right if taken)
    gold = Counter(src for src, _ in pairs.gold)
    ids = sorted({*extracted, *gold})
    counts = [np.array([counter[name] for name in ids], dtype=np.int64) for counter in (extracted, correct, gold)]
    return Extraction(ids, *counts)


def read_bucc(folder: Path, pair: str, split: str) -> BuccSplit:
    """Reads one split: sample, dev, training or test; DataError if a file is missing or damaged."""
    codes = pair.split("-")
    paths = [folder / f"{pair}.{split}.{end}" for end in (*codes, "gold")]
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: not found; expected the BUCC files {', '.join(p.name for p in paths)}")
    sides = [_read_side(path) for path in paths[:2]]
    known = [set(ids) for ids, _ in sides]
    gold = list[tuple[str, str]]()
    for number, (src, tgt) in read_table(paths[2], [0, 1]):
        for name, ids, path in ((src, known[0], paths[0]), (tgt, known[1], paths[1])):
            if name not in ids:
                raise DataError(f"{paths[2]}:{number}: id {name!r} is not in {path.name}; expected gold of that file")
        gold.append((src, tgt))
    if len(set(gold)) < len(gold):
        raise DataError(f"{paths[2]}: {len(gold) - len(set(gold))} gold pairs are repeated; expected each once")
    return BuccSplit(split, paths, *sides[0], *sides[1], gold)


def _read_side(path: Path) -> tuple[list[str], list[str]]:
    first: dict[str, int] = {}
    texts = []
    for number, (name, text) in read_table(path, [0, 1]):
        if name in first:
            raise DataError(f"{path}:{number}: id {name!r} was used on line {first[name]}; expected unique ids")
        first[name] = number
        texts.append(text)
    return list(first), texts


def _unique_ids(texts: Sequence[str], ids: Sequence[str]) -> dict[str, str]:
    """Ids of sentences that occur once: as in LASER's script, repeated sentences are mined but not counted."""
    counts = Counter(texts)
    return {text: name for text, name in zip(texts, ids, strict=True) if counts[text] == 1}


def _half(name: str) -> int:
    return zlib.crc32(name.encode()) % 2
